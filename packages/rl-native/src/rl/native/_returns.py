"""Linear recurrence and fused returns (GAE, TD(lambda), V-trace) in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.graph import increment_version

from rl.core.arguments import same_shape
from rl.core.errors import ArgumentError
from rl.native import _return_kernels as _ops
from rl.native._library import require, why
from rl.native._return_kernels import (
    BITS,
    GAE,
    PLAIN,
    TD_LAMBDA,
    VTRACE,
    Slots,
    check_out,
    compute,
    dimension,
    has_memory,
    is_supported,
    run,
)
from rl.native._tracing import is_dual, is_traced, is_transformed

_is_compiling = torch.compiler.is_compiling
_OPS = torch.ops.rl_native

_NOT_INTO_OUT = (
    "the native recurrence cannot write into out where a gradient is needed, the call is traced or a tensor is not a"
    " plain one on the CPU; leave out away"
)


@final
class NativeRecurrence:
    """``x_t = d_t + c_t * x_{t+1}`` in C, and the returns that are built on it in one pass over memory.

    For float32 and float64 on the CPU, without copies of ``[*B, T, F]``, ``[T, *B, F]`` and transposed views of either.

    The recurrence is differentiable any number of times. `gae`, `td_lambda` and `vtrace` are not: they return None if a
    gradient is needed or the kernels do not support the arguments.

    Raises:
        RLError: If there is no compiled library.

    Example:
        >>> recurrence = NativeRecurrence()
        >>> recurrence(torch.ones(1, 3, 1), torch.full((1, 3, 1), 0.5), -2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """

    name = "native"
    traceable = True
    """All methods can be traced by `torch.compile`."""

    def __init__(self) -> None:
        require()

    def __reduce__(self) -> tuple[type[NativeRecurrence], tuple[()]]:
        return NativeRecurrence, ()

    @property
    def why(self) -> str:
        """The instruction set in use, for ``rl doctor``."""
        return why()

    def __repr__(self) -> str:
        return f"NativeRecurrence({self.why})"

    def __call__(self, d: Tensor, c: Tensor, time_dim: int, *, out: Tensor | None = None) -> Tensor:
        """Compute the recurrence, with ``x_T = 0``.

        Args:
            d: Addend of each step, ``[*B, T, F]``, float32 or float64.
            c: Weight of the following step, same shape and dtype; the last one is not read.
            time_dim: Dimension of time.
            out: Memory of the result, which is returned, if given; must overlap neither argument, and carries no
                gradient.

        Returns:
            x, of the same shape.

        Raises:
            ShapeError: If shapes differ, or the dimension does not exist.
            ArgumentError: If a dtype is not supported, `out` cannot be written, or forward-mode AD
                (`torch.func.jvp`) is active for a tensor.

        Example:
            >>> recurrence, memory = NativeRecurrence(), torch.empty(3)
            >>> recurrence(torch.ones(3), torch.full((3,), 0.5), 0, out=memory) is memory
            True
        """
        if is_traced():
            return self._traced(d, c, time_dim, out)
        _check(d, c)
        dim = dimension(time_dim, d.shape)
        inputs: Slots = (d, None, None, None, c, None, None, None)
        if not is_supported(inputs, traced=False):
            if out is not None:
                raise ArgumentError(_NOT_INTO_OUT)
            for tensor in (d, c):
                if tensor.layout is torch.strided and not has_memory(tensor) and not tensor._is_zerotensor():  # noqa: SLF001 - there is no public way to ask
                    raise ArgumentError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was freed")
            return _OPS.linear_recurrence(d, c, dim, False)  # noqa: FBT003 - of the schema
        if out is None:
            out = torch.empty_like(d)
        else:
            check_out((out,), (d, c), d)
            increment_version(out)
        run(PLAIN, inputs, (out, None), dim)
        return out

    @staticmethod
    def _traced(d: Tensor, c: Tensor, time_dim: int, out: Tensor | None) -> Tensor:
        """Compute the recurrence as an operator, for tracers."""
        _check(d, c)
        dim = dimension(time_dim, d.shape)
        if out is not None:
            raise ArgumentError(_NOT_INTO_OUT)
        _reject_tangents(d, c)
        if is_transformed():
            return _ops.transformed(d, c, dim, False)  # noqa: FBT003 - of the schema
        return _OPS.linear_recurrence(d, c, dim, False)  # noqa: FBT003 - of the schema

    def gae(
        self,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        state_value: Tensor,
        next_state_value: Tensor,
        reward: Tensor,
        done: Tensor,
        terminated: Tensor | None,
        time_dim: int,
        *,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor] | None:
        """Generalized advantage estimate and value target.

        Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16.

        Args:
            gamma: Discount; a number, or a tensor ``[]`` or of the reward's shape.
            lmbda: Weight of longer returns; a number or tensor as `gamma`.
            state_value: Value of each state, ``[*B, T, F]``, float32 or float64.
            next_state_value: Value of the next state.
            reward: Reward of each step.
            done: Whether the episode ended with the step, bool.
            terminated: Whether it ended in a terminal state; `done` if None.
            time_dim: Dimension of time.
            out: Two tensors that receive the results.

        Returns:
            The advantage, and the advantage plus `state_value`; None, without writing, if the kernel does not
            support the arguments.

        Raises:
            ShapeError: If there is no such dimension, or `out` has another shape.
            ArgumentError: If `out` is given and cannot be written.

        Example:
            >>> value, reward = torch.zeros(1, 3, 1), torch.ones(1, 3, 1)
            >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
            >>> advantage, target = NativeRecurrence().gae(0.5, 1.0, value, value, reward, done, None, -2)
            >>> advantage.flatten()
            tensor([1.7500, 1.5000, 1.0000])
        """
        inputs = reward, state_value, next_state_value, None
        return _return(GAE, inputs, (gamma, lmbda), (done, terminated), time_dim, out)

    def td_lambda(
        self,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        next_state_value: Tensor | None,
        reward: Tensor,
        done: Tensor,
        terminated: Tensor | None,
        time_dim: int,
        *,
        out: Tensor | None = None,
    ) -> Tensor | None:
        """Lambda return; with `lmbda` 1 the discounted sum of all rewards, bootstrapped after the last step.

        Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 12.20.

        Args:
            gamma: Argument of `gae`.
            lmbda: Argument of `gae`.
            next_state_value: Value of the next state, ``[*B, T, F]``; None for no bootstrapping.
            reward: Argument of `gae`.
            done: Argument of `gae`.
            terminated: Argument of `gae`.
            time_dim: Dimension of time.
            out: Memory of the result, which is returned, if given.

        Returns:
            The return of each step; None, without writing, if the kernel does not support the arguments.

        Raises:
            ShapeError: If there is no such dimension, or `out` has another shape.
            ArgumentError: If `out` is given and cannot be written.

        Example:
            >>> done = torch.tensor([[[False], [True], [False]]])
            >>> NativeRecurrence().td_lambda(0.5, 1.0, None, torch.ones(1, 3, 1), done, None, -2).flatten()
            tensor([1.5000, 1.0000, 1.0000])
        """
        inputs = reward, None, next_state_value, None
        return _return(TD_LAMBDA, inputs, (gamma, lmbda), (done, terminated), time_dim, out)

    def vtrace(  # noqa: PLR0913 - the terms of the formula
        self,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        ratio: Tensor,
        state_value: Tensor,
        next_state_value: Tensor,
        reward: Tensor,
        done: Tensor,
        terminated: Tensor | None,
        time_dim: int,
        *,
        rho_bar: float = 1.0,
        c_bar: float = 1.0,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor] | None:
        """V-trace advantage and value target.

        Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures",
        2018, eq. 1, with lambda as in its remark 2.

        Args:
            gamma: Argument of `gae`.
            lmbda: Argument of `gae`.
            ratio: Importance ratio of the action, current over behaviour policy, ``[*B, T, F]``.
            state_value: Argument of `gae`.
            next_state_value: Argument of `gae`.
            reward: Argument of `gae`.
            done: Argument of `gae`.
            terminated: Argument of `gae`.
            time_dim: Dimension of time.
            rho_bar: Clipping threshold of the importance weight of the temporal difference.
            c_bar: Clipping threshold of the trace.
            out: Two tensors that receive the results.

        Returns:
            The advantage and the value target; None, without writing, if the kernel does not support the arguments.

        Raises:
            ShapeError: If there is no such dimension, or `out` has another shape.
            ArgumentError: If `out` is given and cannot be written.

        Example:
            >>> one, done = torch.ones(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.bool)
            >>> advantage, target = NativeRecurrence().vtrace(0.5, 1.0, one, 0 * one, 0 * one, one, done, None, -2)
            >>> target.flatten()
            tensor([1.5000, 1.0000])
        """
        inputs = reward, state_value, next_state_value, ratio
        return _return(VTRACE, inputs, (gamma, lmbda, rho_bar, c_bar), (done, terminated), time_dim, out)


def _return(
    kind: int,
    inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    weights: tuple[float | Tensor, ...],
    flags: tuple[Tensor, Tensor | None],
    time_dim: int,
    out: Any,
) -> Any:
    """Compute a return of one kind; None if the kernels do not support the arguments.

    Args:
        kind: Kind of the estimate, `GAE`, `TD_LAMBDA` or `VTRACE`.
        inputs: Reward, value, next value, importance ratio.
        weights: Gamma and lambda, and the thresholds of V-trace.
        flags: Done and terminated.
        time_dim: Dimension of time.
        out: Memory of the result, if given.
    """
    reward, value, following, ratio = inputs
    done, terminated = flags
    if kind != TD_LAMBDA and (value is None or following is None or (kind == VTRACE and ratio is None)):
        return None
    traced = is_traced()
    if traced and not _is_compiling() and (is_dual() or is_transformed()):
        return None
    gamma, gammas = _coefficient(weights[0], reward, traced=traced)
    lmbda, lmbdas = _coefficient(weights[1], reward, traced=traced)
    given: Slots = (reward, value, following, ratio, gammas, lmbdas, done, done if terminated is None else terminated)
    if done is None or not is_supported(given, traced=traced):  # pyright: ignore[reportUnnecessaryComparison]
        return None
    dim = dimension(time_dim, reward.shape)
    rho_bar, c_bar = (float(weights[2]), float(weights[3])) if kind == VTRACE else (0.0, 0.0)
    if traced:
        return None if out is not None else _operator(kind, given, gamma, lmbda, dim, rho_bar, c_bar)
    if out is not None:
        outputs = (out,) if kind == TD_LAMBDA else _pair(out)
        check_out(outputs, given, reward)
        increment_version(outputs)
    return compute(kind, given, dim, gamma, lmbda, rho_bar, c_bar, out=out)


def _operator(kind: int, inputs: Slots, gamma: float, lmbda: float, dim: int, rho_bar: float, c_bar: float) -> Any:
    """Compute the same return as an operator of torch, which tracers see."""
    reward, value, following, ratio, gammas, lmbdas, done, terminated = inputs
    more = reward, done, terminated, gammas, lmbdas, gamma, lmbda, dim
    if kind == GAE:
        return _OPS.gae(value, following, *more)
    if kind == TD_LAMBDA:
        return _OPS.td_lambda(following, *more)
    return _OPS.vtrace(ratio, value, following, *more, rho_bar, c_bar)


def _coefficient(value: float | Tensor, like: Tensor, *, traced: bool) -> tuple[float, Tensor | None]:
    """Return a coefficient as a number, or as a tensor with one value for each step."""
    if not isinstance(value, Tensor):
        return float(value), None
    if value.ndim:
        return 0.0, value
    if not traced and not (value.requires_grad and torch.is_grad_enabled()):
        return float(value.to(like.dtype)), None
    return 0.0, value.to(like).expand(like.shape)


def _pair(out: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if len(out) != 2:
        raise ArgumentError(f"out has {len(out)} tensor(s); there are 2 results, each needs one")
    return out[0], out[1]


def _check(d: Tensor, c: Tensor) -> None:
    same_shape(d=d, c=c)
    if d.dtype not in BITS or c.dtype != d.dtype:
        raise ArgumentError(f"the native recurrence got d of {d.dtype} and c of {c.dtype}; it takes float32 or float64")


def _reject_tangents(*tensors: Tensor) -> None:
    if _is_compiling() or not is_dual():
        return
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise ArgumentError(
            "the native recurrence does not support forward-mode AD: use rl.objectives.value.functional, which does, or"
            " torch.autograd.grad"
        )
