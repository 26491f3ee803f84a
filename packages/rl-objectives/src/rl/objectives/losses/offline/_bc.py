"""Behaviour cloning."""

from __future__ import annotations

from typing import Any, ClassVar, final

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import nn

from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError
from rl.core.keys import NestedKey, key_str
from rl.objectives._batch.agents import mask_keys
from rl.objectives._batch.mask import MASK, scalar
from rl.objectives._networks.calls import ActorCall, NetworkCall, actor_keys, input_key
from rl.objectives._networks.composite import joint, listed, taken
from rl.objectives.functional._regression import check_distance, distance, reduce
from rl.objectives.losses._base import LossModule

__all__ = ["BCLoss"]


@final
class BCLoss(LossModule):
    """Behaviour cloning: the actor imitates the actions of a data set.

    Pomerleau, "ALVINN: An autonomous land vehicle in a neural network", 1989. A policy with a distribution maximizes
    the log-probability of the actions; a deterministic one minimizes the distance to them.

    Reads the inputs of the actor, ``action`` (or the key of ``set_keys(action_target=...)``) and, if there,
    ``("collector", "mask")`` bool ``[*B]``, which masks out padding. Returns the scalar ``loss_bc``. A
    recurrent actor reads the batch as sequences.

    Args:
        actor_network: the policy.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``: the distance of the policy's deterministic action and that
            of the batch. None for the negative log-probability, and for ``"l2"`` if the policy has no distribution.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch.

    Raises:
        ContractError: if the actor has no keys.
        SpecError: if an argument is out of its range.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), batch_size=[8])
        >>> BCLoss(actor)(batch)["loss_bc"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "action": "action",
        "action_target": "action",
        "done": "done",
        "mask": MASK,
    }

    def __init__(
        self, actor_network: nn.Module, *, loss_function: str | None = None, reduction: str | None = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        stochastic = callable(getattr(actor_network, "get_dist", None))
        if loss_function is None and not stochastic:
            loss_function = "l2"
        self.loss_function = None if loss_function is None else check_distance(loss_function, type(self).__name__)
        self.actor_network = actor_network
        self._keys["action"] = self._keys["action_target"] = actor_keys(actor_network)["action"]
        self.derive_early()

    def set_keys(self, **names: Any) -> None:
        if "action" in names:
            names.setdefault("action_target", names["action"])
        super().set_keys(**names)

    def _derive(self) -> Contract:
        keys = self._keys
        if self.loss_function is None:
            self._actor: ActorCall | NetworkCall = ActorCall(self.actor_network)
        else:
            self._actor = NetworkCall(self.actor_network, {"action": keys["action"]})
        self._states = self._actor.states
        targets = listed(keys["action_target"])
        inputs = [key for key in self._actor.in_keys if key not in targets]
        return Contract(
            (
                *(input_key(key, self._states, "input of the actor") for key in inputs),
                *(Key(key, doc="action of the data set") for key in targets),
                *mask_keys(keys),
            ),
            (scalar("loss_bc", "distance to the actions of the data set, or their negative log-probability"),),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        size, key, target = tensordict.batch_size, self._keys["action"], self._keys["action_target"]
        expert = dict(zip(listed(key), (entries[one] for one in listed(target)), strict=True))
        if isinstance(self._actor, ActorCall):
            elements = -joint(self._actor(entries, size).log_prob(taken(expert, key, size)))
        else:
            with set_interaction_type(InteractionType.DETERMINISTIC):
                (action,) = self._actor(entries, size)
            given = expert[key]
            if action.shape != given.shape:
                raise ShapeError(
                    f"BCLoss got actions of shape {tuple(action.shape)} from the actor, and {key_str(target)} has"
                    f" {tuple(given.shape)}: they would broadcast"
                )
            elements = distance(action, given.to(action.dtype), str(self.loss_function)).mean(-1)
        return TensorDict({"loss_bc": reduce(elements, self.reduction, mask)})
