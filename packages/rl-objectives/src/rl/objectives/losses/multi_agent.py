"""Losses of groups of agents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError
from rl.core.keys import NestedKey, as_tuple, next_key
from rl.objectives._agents import Entries, group_of, in_group
from rl.objectives._batch import expand_right
from rl.objectives._estimator_base import ValueEstimatorBase
from rl.objectives._networks import NetworkCall, actor_keys
from rl.objectives.estimators import MultiAgentGAE, ValueEstimators, estimator_class
from rl.objectives.losses.policy_gradient._ppo import ClipPPOLoss
from rl.objectives.losses.q_learning import DQNLoss
from rl.objectives.targets import make_target

__all__ = ["IPPOLoss", "MAPPOLoss", "QMixerLoss"]


@module_arguments()
class MAPPOLoss(ClipPPOLoss):
    """Proximal policy optimization of a group of agents, with a centralized critic.

    Yu et al., "The surprising effectiveness of PPO in cooperative multi-agent games", 2022, eq. 1 and 2. It is
    `ClipPPOLoss` with a dimension of agents: log-probabilities ``[*B, n_agents]``, values and advantages
    ``[*B, n_agents, 1]``, and means over agents and batch.

    Keys are those of `ClipPPOLoss` in the group of the actor's action: ``(group, "action")``, ``(group, "advantage")``,
    ``("next", group, "reward")`` and so on; without a reward in the group it is that of the team, ``("next",
    "reward")``. Done flags are those of the root. `set_keys` names others: ``done=(group, "done")`` and
    ``terminated=(group, "terminated")`` where agents leave before the episode ends. Where the batch has ``(group,
    "mask")`` (bool ``[*B, n_agents]``), agents that do not act change nothing: networks read 0 in place of their
    observations, unless they are recurrent. Without ``advantage`` in the batch it is estimated with `MultiAgentGAE`.

    Args:
        actor_network: Policy with a distribution; returns log-probabilities ``[*B, n_agents]``.
        critic_network: Network that writes ``(group, "state_value")`` ``[*B, n_agents, 1]``, of the observations of all
            agents or of a state: `MultiAgentMLP` with ``centralized=True``.
        value_norm: Normalization of the targets of the critic, as `PopArtValueNorm` of rl-modules; it has ``update``,
            ``normalize`` and ``denormalize``. Targets of agents that act, of each batch in training mode, are included
            in its statistics.
        normalize_advantage: Argument of `PPOLoss`; over each agent's part of the batch.
        normalize_advantage_exclude_dims: Dimensions of the advantage ``[*B, n_agents, 1]`` that are normalized apart;
            ``(-2,)``, the agents.
        others: Arguments of `ClipPPOLoss`.

    Raises:
        ContractError: If a network does not write a key that is read.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> body = TensorDictModule(nn.Linear(4, 2), [("agents", "observation")], [("agents", "logits")])
        >>> head = ProbabilisticTensorDictModule(
        ...     {"logits": ("agents", "logits")}, [("agents", "action")], return_log_prob=True,
        ...     distribution_class=torch.distributions.Categorical, log_prob_key=("agents", "action_log_prob"),
        ... )
        >>> critic = TensorDictModule(nn.Linear(4, 1), [("agents", "observation")], [("agents", "state_value")])
        >>> loss = MAPPOLoss(ProbabilisticTensorDictSequential(body, head), critic)
        >>> loss.in_keys[-2:]
        [('agents', 'advantage'), ('agents', 'value_target')]
    """

    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.MAGAE

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        value_norm: Any = None,
        normalize_advantage: bool = True,
        normalize_advantage_exclude_dims: tuple[int, ...] = (-2,),
        **others: Any,
    ) -> None:
        if value_norm is not None and not all(hasattr(value_norm, f) for f in ("update", "normalize", "denormalize")):
            raise ArgumentError(
                f"{type(self).__name__} got value_norm={value_norm!r}: it has update, normalize and denormalize, as"
                " PopArtValueNorm(1) of rl-modules"
            )
        super().__init__(
            actor_network,
            critic_network,
            normalize_advantage=normalize_advantage,
            normalize_advantage_exclude_dims=normalize_advantage_exclude_dims,
            **others,
        )
        self.value_norm = value_norm
        group = group_of(actor_keys(actor_network)["action"])
        names = ("value", "advantage", "value_target", "reward")
        self.set_keys(**{name: in_group(group, str(self.default_keys[name])) for name in names})

    def _make_estimator(self, kind: ValueEstimators | str, arguments: dict[str, Any]) -> ValueEstimatorBase:
        if estimator_class(kind) is MultiAgentGAE:
            arguments = {"value_norm": self.value_norm, **arguments}
        return super()._make_estimator(kind, arguments)

    def _value_loss(self, entries: Entries, size: torch.Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        norm, key = self.value_norm, self._keys["value_target"]
        if norm is None:
            return super()._value_loss(entries, size, mask)
        target = entries[key].detach()
        if self.training:
            valid = target if mask is None else target[expand_right(mask, target).squeeze(-1)]
            if len(valid):
                norm.update(valid)
        loss, value = super()._value_loss({**entries, key: norm.normalize(target)}, size, mask)
        return loss, norm.denormalize(value)


class IPPOLoss(MAPPOLoss):
    """Proximal policy optimization of independent agents, each with a critic of its own observation.

    De Witt et al., "Is independent learning all you need in the StarCraft multi-agent challenge?", 2020, eq. 5 and 6.

    It computes what `MAPPOLoss` does, with the same arguments and keys; the difference is in the critic, which is
    decentralized: `MultiAgentMLP` with ``centralized=False``.

    Args:
        actor_network: Argument of `MAPPOLoss`.
        critic_network: Network that writes ``(group, "state_value")`` ``[*B, n_agents, 1]``, each of the agent's own
            observation.
        others: Arguments of `MAPPOLoss`.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> body = TensorDictModule(nn.Linear(4, 2), [("wolves", "observation")], [("wolves", "logits")])
        >>> head = ProbabilisticTensorDictModule(
        ...     {"logits": ("wolves", "logits")}, [("wolves", "action")], return_log_prob=True,
        ...     distribution_class=torch.distributions.Categorical, log_prob_key=("wolves", "action_log_prob"),
        ... )
        >>> critic = TensorDictModule(nn.Linear(4, 1), [("wolves", "observation")], [("wolves", "state_value")])
        >>> IPPOLoss(ProbabilisticTensorDictSequential(body, head), critic).tensor_keys.reward
        ('wolves', 'reward')
    """


@final
@module_arguments()
class QMixerLoss(DQNLoss):
    """Q-learning of a team: a mixer computes the value of the team from the values of the agents' actions.

    Rashid et al., "QMIX: Monotonic value function factorisation for deep multi-agent reinforcement learning", 2018, eq.
    6; with `VDNMixer` Sunehag et al., "Value-decomposition networks for cooperative multi-agent learning", 2018.

    Keys of agents are in the group of the local network's ``action_value``. It reads the inputs of both networks at the
    root and under ``next``, ``(group, "action")`` (one-hot ``[*B, n_agents, n]`` or integer ``[*B, n_agents]``),
    ``("next", "reward")`` ``[*B, 1]``, ``("next", "done")`` and, if there, ``("next", "terminated")``. A reward of each
    agent, ``set_keys(reward=(group, "reward"))``, is averaged; of flags of each agent, ``done=(group, "done")`` and
    ``terminated=(group, "terminated")``, the last to end ends the team, and those that terminated have no next value.
    Where the batch has ``(group, "mask")`` (bool ``[*B, n_agents]``), values, rewards and observations of agents that
    do not act are 0. Returns scalars: ``loss``, and detached means of ``td_error`` (absolute), ``pred_value`` and
    ``target_value``. Writes ``td_error`` ``[*B]`` into the batch.

    Args:
        local_value_network: Network that writes ``(group, "action_value")`` ``[*B, n_agents, n]``; if it also writes
            ``(group, "chosen_action_value")`` ``[*B, n_agents, 1]``, as `QValueActor` does, that is the value of the
            next state, with its mask of legal actions.
        mixer_network: Network that reads ``(group, "chosen_action_value")`` and, for QMIX, a state; writes
            ``chosen_action_value`` ``[*B, 1]``.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_value: Whether next states are valued by copies of both networks, that `SoftUpdate` or `HardUpdate` moves.
        double_dqn: Whether the next actions are the trained network's choice.
        action_space: Kind of the action, ``"one-hot"``, ``"categorical"`` or a spec; None accepts both.
        gamma: Discount, in [0, 1].
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If a network does not write a key that is read.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(nn.Linear(4, 2), [("agents", "observation")], [("agents", "action_value")])
        >>> team = TensorDictModule(
        ...     lambda values: values.sum(-2), [("agents", "chosen_action_value")], ["chosen_action_value"]
        ... )
        >>> loss = QMixerLoss(net, team, action_space="categorical")
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> agents = TensorDict(observation=torch.randn(8, 3, 4), action=torch.randint(2, (8, 3)), batch_size=[8, 3])
        >>> after = TensorDict(agents=agents, reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> loss(TensorDict(agents=agents, next=after, batch_size=[8]))["loss"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **{name: key for name, key in DQNLoss.default_keys.items() if name != "chosen_action_value"},
        "local_value": "chosen_action_value",
        "global_value": "chosen_action_value",
    }
    _chosen: ClassVar[str] = "local_value"

    mixer_network: nn.Module
    target_mixer_network: nn.Module | None

    def __init__(
        self,
        local_value_network: nn.Module,
        mixer_network: nn.Module,
        *,
        loss_function: str = "l2",
        delay_value: bool = True,
        double_dqn: bool = False,
        action_space: Any = None,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            local_value_network,
            loss_function=loss_function,
            delay_value=delay_value,
            double_dqn=double_dqn,
            action_space=action_space,
            gamma=gamma,
            reduction=reduction,
        )
        self.mixer_network = mixer_network
        self.target_mixer_network = make_target(mixer_network, type(self).__name__) if delay_value else None
        written = [key for key in local_value_network.out_keys if as_tuple(key)[-1] == "action_value"]  # pyright: ignore[reportGeneralTypeIssues] - checked by the call
        group = group_of(written[0]) if written else ()
        names = {"action_value": "action_value", "action": "action", "local_value": "chosen_action_value"}
        self.set_keys(**{name: in_group(group, key) for name, key in names.items()})

    @property
    def local_value_network(self) -> nn.Module:
        """The network of the agents; its copy is ``target_value_network``."""
        return self.value_network

    def _derive(self) -> Contract:
        contract = super()._derive()
        mixer = self._modules.get("mixer_network")
        if mixer is None:  # it is set after the first derivation
            return contract
        value = {"global_value": self._keys["global_value"]}
        self._mixer, followed = NetworkCall(mixer, value), self.target_mixer_network
        self._target_mixer = self._mixer if followed is None else NetworkCall(followed, value)
        known = {key.name for key in contract.reads} | {self._keys["local_value"]}
        self._mixed_keys = [key for key in self._mixer.in_keys if key != self._keys["local_value"]]
        more = [key for key in self._mixed_keys if key not in known]
        inputs = (Key(key, doc="input of the mixer") for key in more)
        after = (Key(next_key(key), doc="the same after the step") for key in more)
        return replace(contract, reads=(*contract.reads, *inputs, *after))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size = self._keys, tensordict.batch_size
        agents = self._agents
        now, later = (None, None) if agents is None else (entries.get(agents.key), entries.get(agents.next_key))
        steps = mask if mask is None or mask.ndim == len(size) else mask.any(-1)
        later = self._of_team(entries, now, later, len(size))
        action_value, after = self._evaluate(entries, size)
        chosen = self._value_of_action(action_value, entries[keys["action"]])
        state = {key: entries[key] for key in self._mixed_keys}
        predicted = self._mix(self._mixer, chosen, now, state, size)
        with torch.no_grad():
            state = {key: entries[next_key(key)] for key in self._mixed_keys}
            following = self._next_value(entries, after, size)
            following = self._mix(self._target_mixer, following, later, state, size)
            target = self._target(tensordict, entries, steps, following)
        return self._fit(tensordict, predicted, target, entries, steps)

    def _of_team(self, entries: Entries, now: Tensor | None, later: Tensor | None, dims: int) -> Tensor | None:
        """Make reward and flags of agents, ``[*B, n_agents, 1]``, those of the team; return the mask of next values."""
        reward, done, terminated = (next_key(self._keys[name]) for name in ("reward", "done", "terminated"))
        if entries[reward].ndim == dims + 2:
            rewards = entries[reward]
            entries[reward] = (rewards if now is None else rewards.where(expand_right(now, rewards), 0)).mean(-2)
        ends = entries[done].bool()
        for key in (done, terminated):
            flags = entries.get(key)
            if flags is None or flags.ndim != dims + 2:
                continue
            flags = flags.bool()
            if key == terminated:
                alive = ~flags.squeeze(-1)
                later = alive if later is None else later & alive
            if now is not None:
                gone = ~expand_right(now, flags)  # not a team mate that waits for its turn
                flags = flags | (gone & ends if ends.shape == flags.shape else gone)
            entries[key] = flags.all(-2)
        return later

    def _mix(
        self, mixer: NetworkCall, values: Tensor, alive: Tensor | None, state: Entries, size: torch.Size
    ) -> Tensor:
        """Return the value of the team, ``[*B, 1]``; agents that do not act have the value 0."""
        if alive is not None:
            values = values.where(expand_right(alive, values), 0)
        return mixer({**state, self._keys["local_value"]: values}, size)[0]
