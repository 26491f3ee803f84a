"""Generalized advantage estimation."""

from __future__ import annotations

from torch import Tensor

from rl.objectives._batch.done_flags import ended
from rl.objectives.functional._out import Pair, write
from rl.objectives.functional._recurrence import fused_form, linear_recurrence
from rl.objectives.functional._shared import Coefficient, Recurrence, check_shapes, loop, time_index, weight

__all__ = ["generalized_advantage_estimate", "vec_generalized_advantage_estimate"]


def _gae(
    recurrence: Recurrence,
    gamma: Coefficient,
    lmbda: Coefficient,
    values: tuple[Tensor, Tensor],
    outcome: tuple[Tensor, Tensor, Tensor | None],
    time_dim: int,
) -> tuple[Tensor, Tensor]:
    (state_value, next_state_value), (reward, done, terminated) = values, outcome
    check_shapes(
        reward,
        state_value=state_value,
        next_state_value=next_state_value,
        done=done,
        terminated=terminated,
        gamma=gamma,
        lmbda=lmbda,
    )
    time_dim = time_index(time_dim, reward)
    done, terminated = ended(done, terminated)
    delta = reward + gamma * next_state_value.masked_fill(terminated, 0) - state_value
    advantage = recurrence(delta, weight(gamma * lmbda, delta, done), time_dim)
    return advantage, advantage + state_value


def generalized_advantage_estimate(
    gamma: Coefficient,
    lmbda: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimate and value target, as a loop over time.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16.

    Args:
        gamma: discount, in [0, 1].
        lmbda: weight of longer returns, in [0, 1].
        state_value: value of each state, ``[*B, T, F]``, units of return.
        next_state_value: value of the state that each step reached, same shape; at an episode's end that is the final
            state, not the one after a reset.
        reward: of each step, same shape.
        done: whether the episode ended with the step, same shape.
        terminated: whether it ended in a state without a future; `done` if None.
        time_dim: where time is.

    Returns:
        The advantage, and the advantage plus `state_value`, both ``[*B, T, F]``.

    Raises:
        ShapeError: if shapes differ.

    Example:
        >>> import torch
        >>> value, reward = torch.zeros(1, 3, 1), torch.ones(1, 3, 1)
        >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
        >>> advantage, target = generalized_advantage_estimate(0.5, 1.0, value, value, reward, done)
        >>> advantage.flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    values, outcome = (state_value, next_state_value), (reward, done, terminated)
    return _gae(loop, gamma, lmbda, values, outcome, time_dim)


def vec_generalized_advantage_estimate(
    gamma: Coefficient,
    lmbda: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
    out: Pair | None = None,
) -> tuple[Tensor, Tensor]:
    """`generalized_advantage_estimate` through the installed back end; same arguments, same result.

    Args:
        gamma: as there.
        lmbda: as there.
        state_value: as there.
        next_state_value: as there.
        reward: as there.
        done: as there.
        terminated: as there.
        time_dim: as there.
        out: two tensors for the results, which are returned; avoids the cost of new memory for large batches. They
            take no gradient and overlap no argument.

    Raises:
        ShapeError: if shapes differ.
        SpecError: if `out` cannot be written.

    Example:
        >>> import torch
        >>> value, reward = torch.zeros(1, 3, 1), torch.ones(1, 3, 1)
        >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
        >>> advantage, target = vec_generalized_advantage_estimate(0.5, 1.0, value, value, reward, done)
        >>> advantage.flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    fused = fused_form("gae", reward)
    if fused is not None:
        # A back end may lack the argument `out`.
        if out is None:
            found = fused(gamma, lmbda, state_value, next_state_value, reward, done, terminated, time_dim)
        else:
            found = fused(gamma, lmbda, state_value, next_state_value, reward, done, terminated, time_dim, out=out)
        if found is not None:
            return found
    values, outcome = (state_value, next_state_value), (reward, done, terminated)
    found = _gae(linear_recurrence, gamma, lmbda, values, outcome, time_dim)
    if out is None:
        return found
    write(out, found, (gamma, lmbda, *values, *outcome))
    return out
