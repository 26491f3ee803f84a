"""Shared parts of the returns: shape checks, flags, weights, and the loop over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, ShapeError
from rl.objectives._batch import as_flags
from rl.objectives.functional._recurrence import fused_form, linear_recurrence, write

Recurrence = Callable[[Tensor, Tensor, int], Tensor]
Coefficient = float | Tensor


def loop(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """Compute ``x_t = d_t + c_t * x_{t+1}``, and ``x_t = d_t`` where ``c_t`` is 0, as a loop over time."""
    if not d.shape[time_dim]:
        return d.clone()
    following = torch.zeros_like(d.select(time_dim, 0))
    rows: list[Tensor] = []
    for d_t, c_t in zip(reversed(d.unbind(time_dim)), reversed(c.unbind(time_dim)), strict=True):
        following = d_t + c_t * following.masked_fill(c_t == 0, 0)
        rows.append(following)
    return torch.stack(rows[::-1], time_dim)


def check_shapes(reward: Tensor, **others: Tensor | float | None) -> None:
    """Raise if shapes differ, so that nothing broadcasts."""
    for name, other in others.items():
        if not isinstance(other, Tensor) or other.shape == reward.shape:
            continue
        if name in ("gamma", "lmbda"):
            if other.numel() == 1 and other.ndim <= reward.ndim:
                continue
            raise ShapeError(
                f"{name} has shape {tuple(other.shape)} and reward {tuple(reward.shape)}: pass a number, or a tensor"
                " of the reward's shape"
            )
        raise ShapeError(
            f"{name} has shape {tuple(other.shape)} and reward {tuple(reward.shape)}: they would broadcast; values,"
            " rewards and flags all are [*B, T, F], F = 1 included"
        )


def weight(value: Coefficient, like: Tensor, cut: Tensor) -> Tensor:
    """Expand a coefficient to the shape of `like`, zero where `cut`."""
    if not isinstance(value, Tensor):
        return torch.full_like(like, value).masked_fill_(cut, 0)
    return value.to(like).expand(like.shape).masked_fill(cut, 0)


def time_index(time_dim: int, reward: Tensor) -> int:
    if not -reward.ndim <= time_dim < reward.ndim:
        raise ShapeError(
            f"time_dim is {time_dim}, which a reward of shape {tuple(reward.shape)} does not have: rewards are"
            " [*B, T, F], with the feature dimension"
        )
    return time_dim % reward.ndim


def td0_return_estimate(
    gamma: Coefficient,
    next_state_value: Tensor,
    reward: Tensor,
    terminated: Tensor | None = None,
    *,
    done: Tensor | None = None,
) -> Tensor:
    """Compute one-step returns: the reward and the discounted value of the next state.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 6.2.

    Args:
        gamma: Discount, in [0, 1].
        next_state_value: Value of the state that each step reached, ``[*B, F]``, units of return.
        reward: Reward of each step, same shape.
        terminated: Whether it ended in a state without a future, same shape; `done` if None.
        done: Flag that is used if `terminated` is None.

    Returns:
        ``reward + gamma * next_state_value``, without the second term where terminated; same shape.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If neither flag is given.

    Example:
        >>> import torch
        >>> td0_return_estimate(0.9, torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[False], [True]])).flatten()
        tensor([1.9000, 1.0000])
    """
    terminated = done if terminated is None else terminated
    if terminated is None:
        raise ArgumentError("td0_return_estimate got neither terminated nor done; pass terminated")
    check_shapes(reward, next_state_value=next_state_value, terminated=terminated, gamma=gamma)
    terminated = terminated if terminated.dtype is torch.bool else terminated.bool()
    return reward + gamma * next_state_value.masked_fill(terminated, 0)


def td0_advantage_estimate(
    gamma: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
) -> Tensor:
    """Compute `td0_return_estimate` less the value of the state: the temporal difference error, ``[*B, F]``.

    Raises:
        ShapeError: If shapes differ.

    Example:
        >>> import torch
        >>> flag = torch.zeros(1, 1, dtype=torch.bool)
        >>> td0_advantage_estimate(0.9, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), flag)
        tensor([[0.9000]])
    """
    check_shapes(reward, state_value=state_value)
    return td0_return_estimate(gamma, next_state_value, reward, terminated, done=done) - state_value


def _td_lambda(
    recurrence: Recurrence,
    gamma: Coefficient,
    lmbda: Coefficient,
    next_state_value: Tensor,
    outcome: tuple[Tensor, Tensor, Tensor | None],
    time_dim: int,
) -> Tensor:
    reward, done, terminated = outcome
    check_shapes(reward, next_state_value=next_state_value, done=done, terminated=terminated, gamma=gamma, lmbda=lmbda)
    time_dim = time_index(time_dim, reward)
    done, terminated = as_flags(done, terminated)
    steps = reward.shape[time_dim]
    # Where nothing follows, the one-step return stands alone; the last step of the batch is such a place.
    last = torch.arange(steps, device=reward.device) == steps - 1
    cut = done | last.view(-1, *(1,) * (reward.ndim - 1 - time_dim))
    bootstrap = gamma * next_state_value.masked_fill(terminated, 0)
    follow = weight(lmbda, bootstrap, cut)
    return recurrence(reward + bootstrap * (1 - follow), gamma * follow, time_dim)


@foreign_arguments()
def td_lambda_return_estimate(
    gamma: Coefficient,
    lmbda: Coefficient,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """Compute lambda returns, as a loop over time.

    ``G_t = r_t + gamma * ((1 - lmbda) * V(s_{t+1}) + lmbda * G_{t+1})``; at an episode's end ``G_t = r_t + gamma *
    V(s_{t+1})``, the second term only if not terminated. Sutton and Barto, "Reinforcement learning: an introduction",
    2018, eq. 12.20.

    Args:
        gamma: Discount, in [0, 1]; one that changes by step weighs what follows that step.
        lmbda: Weight of longer returns, in [0, 1].
        next_state_value: Value of the state that each step reached, ``[*B, T, F]``, units of return.
        reward: Reward of each step, same shape.
        done: Whether the episode ended with the step, same shape.
        terminated: Whether it ended in a state without a future; `done` if None.
        time_dim: Dimension of time.

    Returns:
        The return of each step, ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.

    Example:
        >>> import torch
        >>> value, reward = torch.zeros(1, 3, 1), torch.ones(1, 3, 1)
        >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
        >>> td_lambda_return_estimate(0.5, 1.0, value, reward, done).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    return _td_lambda(loop, gamma, lmbda, next_state_value, (reward, done, terminated), time_dim)


@foreign_arguments()
def vec_td_lambda_return_estimate(
    gamma: Coefficient,
    lmbda: Coefficient,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `td_lambda_return_estimate` with the installed back end; same arguments and result.

    `out` is that of `vec_generalized_advantage_estimate`.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If `out` cannot be written.

    Example:
        >>> import torch
        >>> value, reward = torch.zeros(1, 3, 1), torch.ones(1, 3, 1)
        >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
        >>> vec_td_lambda_return_estimate(0.5, 1.0, value, reward, done).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    fused = fused_form("td_lambda", reward)
    if fused is not None:
        # A back end may lack the argument `out`.
        if out is None:
            found = fused(gamma, lmbda, next_state_value, reward, done, terminated, time_dim)
        else:
            found = fused(gamma, lmbda, next_state_value, reward, done, terminated, time_dim, out=out)
        if found is not None:
            return found
    outcome = reward, done, terminated
    found = _td_lambda(linear_recurrence, gamma, lmbda, next_state_value, outcome, time_dim)
    if out is None:
        return found
    write([out], [found], (gamma, lmbda, next_state_value, *outcome))
    return out


@foreign_arguments()
def td_lambda_advantage_estimate(
    gamma: Coefficient,
    lmbda: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """Compute `td_lambda_return_estimate` less the value of the state, ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.

    Example:
        >>> import torch
        >>> value, reward = torch.ones(1, 2, 1), torch.ones(1, 2, 1)
        >>> done = torch.ones(1, 2, 1, dtype=torch.bool)
        >>> td_lambda_advantage_estimate(0.5, 1.0, value, value, reward, done).flatten()
        tensor([0., 0.])
    """
    check_shapes(reward, state_value=state_value)
    returns = td_lambda_return_estimate(gamma, lmbda, next_state_value, reward, done, terminated, time_dim=time_dim)
    return returns - state_value


@foreign_arguments()
def td1_return_estimate(
    gamma: Coefficient,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """Compute TD(1) returns: all rewards to the end of the episode or batch, then the bootstrap; as a loop over time.

    `td_lambda_return_estimate` with ``lmbda = 1``, where the arguments are explained.

    Returns:
        The return of each step, ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.

    Example:
        >>> import torch
        >>> value, reward = torch.full((1, 2, 1), 4.0), torch.ones(1, 2, 1)
        >>> done = torch.zeros(1, 2, 1, dtype=torch.bool)
        >>> td1_return_estimate(0.5, value, reward, done).flatten()
        tensor([2.5000, 3.0000])
    """
    return td_lambda_return_estimate(gamma, 1.0, next_state_value, reward, done, terminated, time_dim=time_dim)


@foreign_arguments()
def td1_advantage_estimate(
    gamma: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """Compute `td1_return_estimate` less the value of the state, ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.

    Example:
        >>> import torch
        >>> value, reward = torch.full((1, 2, 1), 4.0), torch.ones(1, 2, 1)
        >>> done = torch.zeros(1, 2, 1, dtype=torch.bool)
        >>> td1_advantage_estimate(0.5, value, value, reward, done).flatten()
        tensor([-1.5000, -1.0000])
    """
    check_shapes(reward, state_value=state_value)
    return td1_return_estimate(gamma, next_state_value, reward, done, terminated, time_dim=time_dim) - state_value


def _less(returns: Tensor, state_value: Tensor, out: Tensor | None, inputs: Sequence[object]) -> Tensor:
    if out is None:
        return returns - state_value
    write([out], [returns - state_value], (state_value, *inputs))
    return out


@foreign_arguments()
def vec_td_lambda_advantage_estimate(
    gamma: Coefficient,
    lmbda: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `vec_td_lambda_return_estimate` less the value of the state, ``[*B, T, F]``; `out` as there.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If `out` cannot be written.

    Example:
        >>> import torch
        >>> value, reward = torch.ones(1, 2, 1), torch.ones(1, 2, 1)
        >>> done = torch.ones(1, 2, 1, dtype=torch.bool)
        >>> vec_td_lambda_advantage_estimate(0.5, 1.0, value, value, reward, done).flatten()
        tensor([0., 0.])
    """
    check_shapes(reward, state_value=state_value)
    returns = vec_td_lambda_return_estimate(gamma, lmbda, next_state_value, reward, done, terminated, time_dim=time_dim)
    return _less(returns, state_value, out, (gamma, lmbda, next_state_value, reward, done, terminated))


@foreign_arguments()
def vec_td1_return_estimate(
    gamma: Coefficient,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
    out: Tensor | None = None,
) -> Tensor:
    """Compute TD(1) returns with the installed back end; see `td1_return_estimate`.

    `td_lambda_return_estimate` with ``lmbda = 1``, where the arguments are explained; `out` as for
    `vec_generalized_advantage_estimate`.

    Returns:
        The return of each step, ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If `out` cannot be written.

    Example:
        >>> import torch
        >>> value, reward = torch.full((1, 2, 1), 4.0), torch.ones(1, 2, 1)
        >>> done = torch.zeros(1, 2, 1, dtype=torch.bool)
        >>> vec_td1_return_estimate(0.5, value, reward, done).flatten()
        tensor([2.5000, 3.0000])
    """
    return vec_td_lambda_return_estimate(
        gamma, 1.0, next_state_value, reward, done, terminated, time_dim=time_dim, out=out
    )


@foreign_arguments()
def vec_td1_advantage_estimate(
    gamma: Coefficient,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `vec_td1_return_estimate` less the value of the state, ``[*B, T, F]``; `out` as there.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If `out` cannot be written.

    Example:
        >>> import torch
        >>> value, reward = torch.full((1, 2, 1), 4.0), torch.ones(1, 2, 1)
        >>> done = torch.zeros(1, 2, 1, dtype=torch.bool)
        >>> vec_td1_advantage_estimate(0.5, value, value, reward, done).flatten()
        tensor([-1.5000, -1.0000])
    """
    check_shapes(reward, state_value=state_value)
    returns = vec_td1_return_estimate(gamma, next_state_value, reward, done, terminated, time_dim=time_dim)
    return _less(returns, state_value, out, (gamma, next_state_value, reward, done, terminated))


def reward2go(
    reward: Tensor, done: Tensor, gamma: Coefficient = 1.0, *, time_dim: int = -2, out: Tensor | None = None
) -> Tensor:
    """Compute the discounted sum of rewards to the end of the episode or batch, without a bootstrap.

    Args:
        reward: Reward of each step, ``[*B, T, F]``.
        done: Whether the episode ended with the step, same shape.
        gamma: Discount, in [0, 1].
        time_dim: Dimension of time.
        out: Tensor for the result, which is returned; as for `vec_generalized_advantage_estimate`.

    Returns:
        Same shape.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If `out` cannot be written.

    Example:
        >>> import torch
        >>> done = torch.tensor([[[False], [True], [False]]])
        >>> reward2go(torch.ones(1, 3, 1), done, 0.5).flatten()
        tensor([1.5000, 1.0000, 1.0000])
    """
    reward = reward if reward.is_floating_point() else reward.to(torch.get_default_dtype())
    fused = fused_form("td_lambda", reward)
    if fused is not None:
        more = {} if out is None else {"out": out}
        found = fused(gamma, 1.0, None, reward, done, None, time_dim, **more)
        if found is not None:
            return found
    check_shapes(reward, done=done, gamma=gamma)
    time_dim = time_index(time_dim, reward)
    done, _ = as_flags(done, None)
    found = linear_recurrence(reward, weight(gamma, reward, done), time_dim)
    if out is None:
        return found
    write([out], [found], (gamma, reward, done))
    return out
