"""Values that skip the steps in which an agent does not act."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl.objectives._batch.mask import fitted
from rl.objectives.functional._recurrence import linear_recurrence

__all__ = ["passed_over"]


def passed_over(
    gamma: float | Tensor,
    value: Tensor,
    next_value: Tensor,
    outcome: Sequence[Tensor],
    masks: tuple[Tensor, Tensor],
    time_dim: int,
) -> tuple[Tensor, Tensor]:
    """Value and next value of each agent that skip the steps in which it does not act, ``[*B, T, n_agents, 1]``.

    After a step whose next step the agent skips, the next value is the sum of its discounted rewards until its
    next act and of the discounted value there. The value of a skipped step is the same sum, so that it has no
    advantage.

    Args:
        gamma: discount.
        value: of each state.
        next_value: of the state that each step reached.
        outcome: reward, done and terminated of each agent, of that shape.
        masks: of agents that act, ``[*B, T, n_agents]``, and of those with a next value.
        time_dim: where time is.
    """
    reward, done, terminated = outcome
    now, later = (fitted(mask, value) for mask in masks)
    open_ended = ~(later | done)  # the agent does not act next, and the episode continues
    after = next_value.where(later & ~terminated, 0)
    added = value.where(now, reward + gamma * after)
    kept = (gamma * (open_ended & ~now)).expand(value.shape).to(value.dtype)
    passed = linear_recurrence(added, kept, time_dim)
    steps = value.shape[time_dim]
    last = torch.zeros_like(passed.narrow(time_dim, 0, 1))
    following = torch.cat([passed.narrow(time_dim, 1, steps - 1), last], time_dim)
    return passed, following.where(open_ended, after)
