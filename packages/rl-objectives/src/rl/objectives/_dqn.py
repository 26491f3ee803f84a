"""Deep Q-learning."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core._sequences import check_sequences
from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError, SpecError
from rl.core.keys import NestedKey, next_key, unwrap
from rl.objectives import _foreign
from rl.objectives._counted import MASK, counted_steps, mask_key, mean_of
from rl.objectives._distance import distance, reduce, refuse_empty, reject_unknown
from rl.objectives._loss_module import LossModule
from rl.objectives._networks import NetworkCall, input_key
from rl.objectives._targets import make_target
from rl.objectives.value._estimator import TDEstimatorBase, ValueEstimatorBase
from rl.objectives.value._kinds import ValueEstimators
from rl.objectives.value.functional._shared import ended as as_flags

__all__ = ["DQNLoss"]

_ONE_HOT, _CATEGORICAL = "one-hot", "categorical"


def _action_space(space: Any, action_key: NestedKey, owner: str) -> str | None:
    """``"one-hot"``, ``"categorical"``, or None if nothing was said; from a name or a spec."""
    if space is None:
        return None
    if isinstance(space, str):
        name = space.replace("_", "-").lower()
    else:
        from rl.core.specs import Categorical, Composite, OneHot

        if isinstance(space, Composite):
            space = space[action_key]
        name = _ONE_HOT if isinstance(space, OneHot) else _CATEGORICAL if isinstance(space, Categorical) else None
    if name not in (_ONE_HOT, _CATEGORICAL):
        raise SpecError(
            f"{owner} chooses among n actions, got action_space={space!r}: give 'one-hot', 'categorical',"
            " or a OneHot or Categorical spec"
        )
    return name


@final
@_foreign.dqn_loss
class DQNLoss(LossModule):
    """Deep Q-learning, with a target network and optionally double.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, algorithm 1; van Hasselt et al., "Deep
    reinforcement learning with double Q-learning", 2016, eq. 4.

    Reads the network's inputs at the root and under ``next``, ``action`` (one-hot ``[*B, n]`` or integer ``[*B]``),
    ``("next", "reward")``, ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]`` and
    ``priority_weight`` ``[*B]``, which weighs the elements, and ``("collector", "mask")`` bool ``[*B]``: steps where it
    is false are padding and count nothing. Returns scalars: ``loss``, and detached means of
    ``td_error`` (absolute), ``pred_value`` and ``target_value``. Into the batch it writes one entry, where a
    prioritized replay buffer looks for it: ``td_error`` ``[*B]``, absolute, detached.

    A network that carries state reads the batch as sequences, whose last dimension is time, from the state that is
    stored where they begin (Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning",
    2019); the value of an outcome is what it says one step after the sequence up to there.

    Args:
        value_network: writes ``action_value`` ``[*B, n]``; of one that also writes ``chosen_action_value``, the next
            state counts with that. A plain module reads ``observation``.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_value: whether next states are valued by a copy, ``target_value_network``, that `SoftUpdate` or
            `HardUpdate` moves.
        double_dqn: whether the next action is the trained network's choice.
        action_space: ``"one-hot"``, ``"categorical"`` or a spec; None takes either as it comes.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch; ``"none"`` has 0 at padding.

    Raises:
        ContractError: if the network does not write ``action_value``, or has parameters without a shape.
        SpecError: if `action_space` is of another kind, or an argument is out of its range.

    Example:
        >>> net = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action_value"])
        >>> loss = DQNLoss(net, action_space="categorical", gamma=0.9)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 4), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(
        ...     observation=torch.randn(8, 4), action=torch.randint(2, (8,)), next=after, batch_size=[8]
        ... )
        >>> loss(batch)["loss"].backward()
        >>> batch["td_error"].shape
        torch.Size([8])
    """

    _defaults: ClassVar[dict[str, NestedKey]] = {
        "action_value": "action_value",
        "chosen_action_value": "chosen_action_value",
        "action": "action",
        "reward": "reward",
        "done": "done",
        "terminated": "terminated",
        "priority": "td_error",
        "priority_weight": "priority_weight",
        "mask": MASK,
    }
    _default_estimator: ClassVar[ValueEstimators] = ValueEstimators.TD0
    _derived: ClassVar[tuple[str, ...]] = ("_choice", "_online", "_target")
    _decisive: ClassVar[tuple[str, ...]] = ("double_dqn",)

    value_network: nn.Module
    target_value_network: nn.Module | None

    def __init__(
        self,
        value_network: nn.Module,
        *,
        loss_function: str = "l2",
        delay_value: bool = True,
        double_dqn: bool = False,
        action_space: Any = None,
        gamma: float = 0.99,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        reject_unknown(owner, kind=loss_function, reduction=reduction)
        if not isinstance(value_network, TensorDictModuleBase) and not hasattr(value_network, "in_keys"):
            value_network = TensorDictModule(value_network, in_keys=["observation"], out_keys=["action_value"])
        self.action_space = _action_space(action_space, self._keys["action"], owner)
        self.loss_function, self.reduction, self.double_dqn = loss_function, reduction, double_dqn
        self.value_network = value_network
        self.target_value_network = make_target(value_network, owner) if delay_value else None
        self.make_value_estimator(gamma=gamma)

    def _accept(self, estimator: ValueEstimatorBase) -> None:
        if not isinstance(estimator, TDEstimatorBase):
            raise SpecError(
                f"{type(self).__name__} cannot use {type(estimator).__name__}, which needs the value of the"
                " policy at each state; it takes TD0, TD1, TDLambda, or a TDEstimatorBase"
            )

    def _prepare(self) -> None:
        keys = self._keys
        if not self._estimators:
            return
        if self.double_dqn and self.target_value_network is None:
            raise SpecError(
                f"{type(self).__name__} got double_dqn=True without delay_value: without a target network it changes"
                " nothing"
            )
        self._online = NetworkCall(self.value_network, [keys["action_value"]])
        out_keys: Any = self.value_network.out_keys
        written = [unwrap(key) for key in out_keys]
        following: nn.Module = self.value_network if self.target_value_network is None else self.target_value_network
        chosen = keys["chosen_action_value"]
        self._choice: NetworkCall | None = None
        if self.double_dqn:
            self._choice = NetworkCall(
                self.value_network, [keys["action"] if keys["action"] in written else keys["action_value"]]
            )
            chosen = keys["action_value"]
        self._target = NetworkCall(following, [chosen if chosen in written else keys["action_value"]])
        inputs = self._online.in_keys
        reads = (
            *(input_key(key, self._online.states) for key in inputs),
            Key(keys["action"], doc="action that was taken, one-hot or integer"),
            *(Key(next_key(key), doc="the same after the step") for key in self._online.outcome_keys),
            Key(next_key(keys["reward"]), (1,), "reward of the step"),
            Key(next_key(keys["done"]), (1,), "whether the episode ended with the step", torch.bool),
        )
        optional = (
            Key(
                next_key(keys["terminated"]),
                (1,),
                "whether it ended for good; done if absent",
                torch.bool,
                optional=True,
            ),
            Key(keys["priority_weight"], (), "weight of the element", optional=True),
            mask_key(keys["mask"]),
        )
        writes = (
            Key("loss", (), "distance of action values and targets", batched=False),
            Key("td_error", (), "mean absolute difference of action values and targets, no gradient", batched=False),
            Key("pred_value", (), "mean value of the actions taken, no gradient", batched=False),
            Key("target_value", (), "mean target, no gradient", batched=False),
        )
        self.contract = Contract((*reads, *optional), writes)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """
        leaves = self.contract.read(tensordict, self)
        count = len(self._online.in_keys)
        root, action, following = leaves[:count], leaves[count], leaves[count + 1 : -2]
        size = tensordict.batch_size

        after: list[Tensor] = []
        if self._online.states:
            check_sequences(tensordict, self._online.states, type(self).__name__, done_key=self._keys["done"])
            (action_value,), after = self._online.sequence(root, size)
        else:
            (action_value,) = self._online(root, size)
        predicted = action_value.gather(-1, self._index(action, action_value))
        with torch.no_grad():
            target = self._target_value(tensordict, root, following, after, *leaves[-2:])
        elements = distance(predicted, target, self.loss_function).squeeze(-1)
        refuse_empty(type(self).__name__, elements, self.reduction)
        weight = tensordict.get(self._keys["priority_weight"], None)
        if weight is not None:
            if weight.shape != elements.shape:
                raise ShapeError(
                    f"{type(self).__name__} got {self._keys['priority_weight']!r} of shape {tuple(weight.shape)} for a"
                    f" batch of shape {tuple(elements.shape)}: they would broadcast; weights are [*B]"
                )
            elements = elements * weight
        mask = counted_steps(tensordict, self._keys["mask"], type(self).__name__)
        predicted = predicted.detach()
        error = (predicted - target).abs().squeeze(-1)
        out = {
            "loss": reduce(elements, self.reduction, mask),
            "td_error": mean_of(error, mask),
            "pred_value": mean_of(predicted, mask),
            "target_value": mean_of(target, mask),
        }
        tensordict.set(self._keys["priority"], error)
        return TensorDict(out)

    def _index(self, action: Tensor, action_value: Tensor) -> Tensor:
        """Which of the n values belongs to the action, ``[*B, 1]`` int64."""
        if action.shape == action_value.shape and self.action_space != _CATEGORICAL:
            return action.long().argmax(-1, keepdim=True)
        if action.shape == action_value.shape[:-1] and self.action_space != _ONE_HOT:
            return action.long().unsqueeze(-1)
        raise ShapeError(
            f"{type(self).__name__} got actions of shape {tuple(action.shape)} for action values of shape"
            f" {tuple(action_value.shape)} and action_space={self.action_space!r}: one-hot actions have that shape,"
            " categorical ones lack its last dimension"
        )

    def _target_value(
        self,
        td: TensorDictBase,
        root: list[Tensor],
        following: list[Tensor],
        after: list[Tensor],
        reward: Tensor,
        done: Tensor,
    ) -> Tensor:
        """What the values of the actions taken are compared with, ``[*B, 1]``; `after` are the online states."""
        estimator = self._estimators[0]
        assert isinstance(estimator, TDEstimatorBase)
        value = self._one_step_on(self._target, root, following, None, td.batch_size)
        if self._choice is not None:
            choice = self._one_step_on(self._choice, root, following, after, td.batch_size)
            index = self._index(choice, value) if self._chooses_action() else choice.argmax(-1, keepdim=True)
            value = value.gather(-1, index)
        elif self._target.out_keys != [self._keys["chosen_action_value"]]:
            value = value.amax(-1, keepdim=True)
        ended = td.get(next_key(self._keys["terminated"]), None)
        done, terminated = as_flags(done, ended)
        return estimator.returns(value, reward, done, terminated, estimator.find_time(td, done))

    def _one_step_on(
        self,
        call: NetworkCall,
        root: list[Tensor],
        following: list[Tensor],
        after: list[Tensor] | None,
        size: torch.Size,
    ) -> Tensor:
        """What a network says of the outcome; one with memory, after it has seen the sequence up to there."""
        if not call.states:
            return call(following, size)[0]
        states = call.sequence(root, size)[1] if after is None else after
        return call.following(root, following, states, size)[0]

    def _chooses_action(self) -> bool:
        return self._choice is not None and self._choice.out_keys == [self._keys["action"]]
