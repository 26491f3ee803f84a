"""Generalized advantage estimation for groups of agents."""

from __future__ import annotations

from typing import Any, ClassVar, final

from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.keys import as_tuple
from rl.objectives import _foreign
from rl.objectives._batch.agents import group_of, in_group
from rl.objectives.estimators._gae import GAE

__all__ = ["MultiAgentGAE"]


@final
@_foreign.multi_agent_gae
class MultiAgentGAE(GAE):
    """Generalized advantage estimation for each agent of a group.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16, on
    values ``[*B, T, n_agents, 1]``. A reward and done flags of the whole group, ``[*B, T, 1]``, count for each agent.

    If the value network writes ``(group, "state_value")``, it reads ``("next", group, "reward")``, or without it
    the reward of the team, ``("next", "reward")``, and writes ``advantage``, ``value_target`` and ``state_value`` of
    the group; done flags are those of the root. Otherwise keys are those of `GAE`. `set_keys` names others:
    ``done=(group, "done")`` and ``terminated=(group, "terminated")`` where agents leave before the episode ends.

    Where the batch has ``(group, "mask")`` (bool ``[*B, T, n_agents]``) agents that do not act change nothing: the
    network reads 0 in place of their observations, unless it is recurrent, their reward is 0, and advantages pass
    over such steps: the next value of an agent is that of its next act, discounted. With done flags of each agent,
    rewards in such steps count until the agent is done, as in games where players take turns. With `average_gae` agents
    that do not act are left out of mean and deviation.

    Args:
        gamma: discount, in [0, 1].
        lmbda: weight of longer returns, in [0, 1].
        value_network: writes ``state_value`` ``[*B, T, n_agents, 1]``; if None, the batch already holds it.
        value_norm: has ``denormalize``, as `PopArtValueNorm` of rl-modules: the network's values are normalized, and
            advantages and targets are in units of return.
        others: those of `GAE`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(4, 1), [("agents", "observation")], [("agents", "state_value")])
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> agents = TensorDict(observation=torch.randn(2, 5, 3, 4), batch_size=[2, 5, 3])
        >>> after = TensorDict(agents=agents.clone().set("reward", torch.ones(2, 5, 3, 1)), done=flag, terminated=flag)
        >>> batch = TensorDict(agents=agents, next=after, batch_size=[2, 5])
        >>> MultiAgentGAE(value_network=critic)(batch)["agents", "advantage"].shape
        torch.Size([2, 5, 3, 1])
    """

    _repeats: ClassVar[bool] = True
    _grouped: ClassVar[tuple[str, ...]] = ("reward", "advantage", "value_target")

    def __init__(self, *, value_network: nn.Module | None = None, value_norm: Any = None, **others: Any) -> None:
        if value_norm is not None and not hasattr(value_norm, "denormalize"):
            raise SpecError(f"MultiAgentGAE got value_norm={value_norm!r}, which has no denormalize(value)")
        super().__init__(value_network=value_network, **others)
        self.value_norm = value_norm
        written = [key for key in getattr(value_network, "out_keys", ()) if as_tuple(key)[-1] == "state_value"]
        if len(written) == 1 and (group := group_of(written[0])):
            names = {name: in_group(group, name) for name in self._grouped}
            self.set_keys(value=written[0], **names)

    def _denormalized(self, value: Tensor) -> Tensor:
        return value if self.value_norm is None else self.value_norm.denormalize(value)
