"""Generalized advantage estimation for groups of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Key
from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, next_key
from rl.objectives import _foreign
from rl.objectives._batch.agents import acting, bootstrapped, group_of, in_group, mask_keys, per_agent, without_idle
from rl.objectives._batch.mask import fitted
from rl.objectives.estimators._gae import GAE
from rl.objectives.functional._recurrence import linear_recurrence

__all__ = ["MultiAgentGAE"]


@final
@_foreign.multi_agent_gae
class MultiAgentGAE(GAE):
    """Generalized advantage estimation for each agent of a group.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16, on
    values ``[*B, T, n_agents, 1]``. A reward and done flags of the whole group, ``[*B, T, 1]``, count for each agent.

    If the value network writes ``(group, "state_value")``, it reads ``("next", group, "reward")`` and writes
    ``advantage``, ``value_target`` and ``state_value`` of the group; done flags are those of the root. Otherwise keys
    are those of `GAE`. `set_keys` names others: ``reward="reward"`` for a shared reward, ``done=(group, "done")`` and
    ``terminated=(group, "terminated")`` where agents leave before the episode ends.

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

    def counted(self, tensordict: TensorDictBase) -> Tensor | None:
        """The agents that act in valid steps, ``[*B, T, n_agents]``, if the batch has ``(group, "mask")``."""
        return acting(tensordict, self._agent_keys, super().counted(tensordict), type(self).__name__)

    def _mask_reads(self) -> tuple[Key, ...]:
        return mask_keys(self._agent_keys, after=True)

    @property
    def _agent_keys(self) -> dict[str, Any]:
        """The keys, with an ``action``, whose group `acting` and `bootstrapped` search for the mask."""
        return {**self._keys, "action": self._keys["advantage"]}

    def _acting(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor] | None:
        """The masks of agents that act, and of those with a next value; None without ``(group, "mask")``."""
        now = acting(tensordict, self._agent_keys, None, type(self).__name__)
        return None if now is None else (now, bootstrapped(tensordict, self._agent_keys, now))

    def without_idle(self, tensordict: TensorDictBase, entries: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        masks, keys = self._acting(tensordict), self._keys
        if masks is None:
            return {}
        reward = next_key(keys["reward"])
        flags = {next_key(keys[name]) for name in ("done", "terminated")}
        rest = {} if self._states else {key: entries[key] for key in entries if key not in flags}
        group = group_of(keys["advantage"])
        out = without_idle({**rest, reward: entries[reward]}, group, masks, outcome={reward})
        left: Tensor | None = tensordict.get(keys["done"], None) if group_of(keys["done"]) == group else None
        if left is not None and reward in out:  # agents that are still in the episode wait for their turn
            out[reward] = entries[reward].where(fitted(masks[0], left) | ~left.bool(), 0)
        return out

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:
        """`estimate`, with what the agents share repeated for each."""
        estimate, masks = super().formula(tensordict), self._acting(tensordict)

        def of_agents(value: Tensor, next_value: Tensor, *outcome: Any) -> tuple[Tensor, Tensor]:
            if self.value_norm is not None:
                value, next_value = (self.value_norm.denormalize(one) for one in (value, next_value))
            reward, done, terminated = per_agent(value, outcome[:3])
            if masks is not None:
                value, next_value = self._passed_over(value, next_value, (reward, done, terminated), masks, outcome[3])
            return estimate(value, next_value, reward, done, terminated, outcome[3])

        return of_agents

    def _passed_over(
        self, value: Tensor, next_value: Tensor, outcome: Sequence[Tensor], masks: tuple[Tensor, Tensor], time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Value and next value that skip the steps in which an agent does not act.

        After a step whose next step the agent skips, the next value is the sum of its discounted rewards until its
        next act and of the discounted value there. The value of a skipped step is the same sum, so that it has no
        advantage.
        """
        reward, done, terminated = outcome
        now, later = (fitted(mask, value) for mask in masks)
        open_ended = ~(later | done)  # the agent does not act next, and the episode continues
        after = next_value.where(later & ~terminated, 0)
        added = value.where(now, reward + self.gamma * after)
        kept = (self.gamma * (open_ended & ~now)).expand(value.shape).to(value.dtype)
        passed = linear_recurrence(added, kept, time_dim)
        steps = value.shape[time_dim]
        last = torch.zeros_like(passed.narrow(time_dim, 0, 1))
        following = torch.cat([passed.narrow(time_dim, 1, steps - 1), last], time_dim)
        return passed, following.where(open_ended, after)
