"""Proximal policy optimization of groups of agents."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.objectives import _foreign
from rl.objectives._batch.agents import group_of, in_group
from rl.objectives._batch.mask import fitted
from rl.objectives._networks.calls import actor_keys
from rl.objectives.estimators._base import ValueEstimatorBase
from rl.objectives.estimators._kinds import ValueEstimators, estimator_class
from rl.objectives.estimators._multi_agent_gae import MultiAgentGAE
from rl.objectives.losses._base import Entries
from rl.objectives.losses.policy_gradient._ppo import ClipPPOLoss

__all__ = ["IPPOLoss", "MAPPOLoss"]


@_foreign.ppo_loss
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
        actor_network: policy with a distribution; gives log-probabilities ``[*B, n_agents]``.
        critic_network: writes ``(group, "state_value")`` ``[*B, n_agents, 1]``, of the observations of all agents or of
            a state: `MultiAgentMLP` with ``centralized=True``.
        value_norm: normalizes the targets of the critic, as `PopArtValueNorm` of rl-modules; it has ``update``,
            ``normalize`` and ``denormalize``. Targets of agents that act, of each batch in training mode, are included
            in its statistics.
        normalize_advantage: as for `PPOLoss`; over each agent's part of the batch.
        normalize_advantage_exclude_dims: dimensions of the advantage ``[*B, n_agents, 1]`` that are normalized apart;
            ``(-2,)``, the agents.
        others: those of `ClipPPOLoss`.

    Raises:
        ContractError: if a network does not write a key that is read.
        SpecError: if an argument is out of its range.

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
            raise SpecError(
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
            valid = target if mask is None else target[fitted(mask, target).squeeze(-1)]
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
        actor_network: as there.
        critic_network: writes ``(group, "state_value")`` ``[*B, n_agents, 1]``, each of the agent's own observation.
        others: as there.

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
