"""Generalized advantage estimation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ArgumentError
from rl.objectives._batch import as_flags
from rl.objectives.functional._recurrence import Pair, check_apart, fused_form, linear_recurrence, write
from rl.objectives.functional._returns import Coefficient, Recurrence, check_shapes, loop, time_index, weight


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
    done, terminated = as_flags(done, terminated)
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
    """Compute the generalized advantage estimate and value target, as a loop over time.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16.

    Args:
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1].
        state_value: Value of each state, ``[*B, T, F]``, units of return.
        next_state_value: Value of the state that each step reached, same shape; at an episode's end that is the final
            state, not the one after a reset.
        reward: Reward of each step, same shape.
        done: Whether the episode ended with the step, same shape.
        terminated: Whether it ended in a state without a future; `done` if None.
        time_dim: Dimension of time.

    Returns:
        The advantage, and the advantage plus `state_value`, both ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.

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
    """Compute `generalized_advantage_estimate` through the installed back end; same arguments, same result.

    Args:
        gamma: Argument of `generalized_advantage_estimate`.
        lmbda: Argument of `generalized_advantage_estimate`.
        state_value: Argument of `generalized_advantage_estimate`.
        next_state_value: Argument of `generalized_advantage_estimate`.
        reward: Argument of `generalized_advantage_estimate`.
        done: Argument of `generalized_advantage_estimate`.
        terminated: Argument of `generalized_advantage_estimate`.
        time_dim: Argument of `generalized_advantage_estimate`.
        out: Two tensors for the results, which are returned; avoids the cost of new memory for large batches. They take
            no gradient and overlap no argument.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If `out` cannot be written.

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


def vtrace_advantage_estimate(  # noqa: PLR0913 - the terms of the formula
    gamma: Coefficient,
    log_pi: Tensor,
    log_mu: Tensor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    rho_thresh: float = 1.0,
    c_thresh: float = 1.0,
    lmbda: Coefficient = 1.0,
    time_dim: int = -2,
    out: Pair | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the V-trace advantage and value target, through the installed back end.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
    eq. 1; the advantage is that of its section 4.2, ``rho_t * (r_t + gamma * v_{t+1} - V(s_t))``; `lmbda` is that of
    its remark 2. ``v_{t+1}`` is ``next_state_value_t + (target_{t+1} - state_value_{t+1})``: the target of the
    following row, as in the paper, where `state_value` there equals `next_state_value` here. Where an episode or the
    batch ends, ``v_{t+1}`` is the value of the state that the step reached, and nothing if terminated.

    Args:
        gamma: Discount, in [0, 1].
        log_pi: Log-probability of each action under the policy that is evaluated, ``[*B, T, F]``, nats.
        log_mu: Log-probability under the policy that took it, same shape.
        state_value: Value of each state, same shape, units of return.
        next_state_value: Value of the state that each step reached, same shape.
        reward: Reward of each step, same shape.
        done: Whether the episode ended with the step, same shape.
        terminated: Whether it ended in a state without a future; `done` if None.
        rho_thresh: Largest weight of a temporal difference, at least `c_thresh`.
        c_thresh: Largest weight of what follows, at least 0.
        lmbda: Weight of longer returns, in [0, 1].
        time_dim: Dimension of time.
        out: Tensors for both results, which are returned; as for `vec_generalized_advantage_estimate`.

    Returns:
        The advantage and the value target, both ``[*B, T, F]``.

    Raises:
        ShapeError: If shapes differ.
        ArgumentError: If the thresholds are not ``0 <= c_thresh <= rho_thresh``, or `out` cannot be written.

    Example:
        >>> value, reward, log_prob = torch.zeros(1, 3, 1), torch.ones(1, 3, 1), torch.zeros(1, 3, 1)
        >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
        >>> advantage, target = vtrace_advantage_estimate(0.5, log_prob, log_prob, value, value, reward, done)
        >>> target.flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    check_thresholds(rho_thresh, c_thresh, "vtrace_advantage_estimate")
    shape = reward.shape
    if log_pi.shape != shape or log_mu.shape != shape:
        check_shapes(reward, log_pi=log_pi, log_mu=log_mu)
    rest = state_value, next_state_value, reward, done, terminated, time_dim
    more: dict[str, Any] = {"rho_bar": rho_thresh, "c_bar": c_thresh}
    if out is not None:
        more["out"] = out
        for one in out:
            check_apart(one, (log_pi, log_mu))  # the kernel sees their ratio only
    ratio = log_pi - log_mu
    ratio = ratio.exp_() if ratio.is_floating_point() else ratio.exp()  # new memory would cost more than exp does
    fused = fused_form("vtrace", reward)
    found = None if fused is None else fused(gamma, lmbda, ratio, *rest, **more)
    if found is not None:
        return found
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
    done, terminated = as_flags(done, terminated)
    rho = ratio.clamp_max(rho_thresh)
    delta = rho * (reward + gamma * next_state_value.masked_fill(terminated, 0) - state_value)
    trace = weight(gamma * (lmbda * ratio.clamp_max(c_thresh)), delta, done)
    beyond = linear_recurrence(delta, trace, time_dim)
    steps = reward.shape[time_dim]
    # v_{t+1} less the value of the state that the step reached; 0 after the last step.
    following = torch.cat(
        (beyond.narrow(time_dim, min(1, steps), max(steps - 1, 0)), torch.zeros_like(beyond)), time_dim
    )
    following = following.narrow(time_dim, 0, steps).masked_fill(done, 0)
    advantage = delta + weight(gamma * rho, delta, done) * following
    found = advantage, beyond + state_value
    if out is None:
        return found
    inputs = (gamma, lmbda, log_pi, log_mu, state_value, next_state_value, reward, done, terminated)
    write(out, found, inputs)
    return out


def check_thresholds(rho_thresh: float, c_thresh: float, owner: str) -> None:
    """Raise unless the thresholds are in order.

    Args:
        rho_thresh: Argument of `vtrace_advantage_estimate`.
        c_thresh: Argument of `vtrace_advantage_estimate`.
        owner: Name of the caller in messages.

    Raises:
        ArgumentError: If they are not ``0 <= c_thresh <= rho_thresh``.
    """
    if not 0 <= c_thresh <= rho_thresh:
        raise ArgumentError(
            f"{owner} got rho_thresh={rho_thresh} and c_thresh={c_thresh}; expected 0 <= c_thresh <= rho_thresh"
        )
