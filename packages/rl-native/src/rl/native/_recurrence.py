"""`rl.core.interfaces.LinearRecurrence` in C, with the returns that are built on it."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import Parameter

from rl.core.checks import same_shape
from rl.core.errors import SpecError
from rl.native import _recurrence_ops as _ops
from rl.native._library import require, why
from rl.native._returns import BITS, GAE, PLAIN, TD_LAMBDA, VTRACE, dimension, refuse_out, run

__all__ = ["NativeRecurrence"]

_PLAIN_TYPES = frozenset((Tensor, Parameter))
_OPS = torch.ops.rl_native
assert _ops.library is not None  # what `_OPS` holds comes from there


def _is_traced() -> bool:
    """Whether somebody looks at the operators that run, so that calls past them would be lost."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001 - there is no public question
        or torch._C._are_functorch_transforms_active()  # noqa: SLF001 - likewise
    )


def _one_kind(like: Tensor, numbers: tuple[Tensor | None, ...], flags: tuple[Tensor, ...], *, traced: bool) -> bool:
    """Whether all are on the CPU, of one shape and type, flags bool, and none asks for a gradient."""
    dtype, shape = like.dtype, like.shape
    if dtype not in BITS:
        return False
    # Loops in the open: this runs at every call, and what a small batch costs is mostly this.
    with_gradient = torch.is_grad_enabled()
    for tensor in numbers:
        if tensor is None:
            continue
        if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu:
            return False
        if (with_gradient and tensor.requires_grad) or not (traced or type(tensor) in _PLAIN_TYPES):
            return False
    for tensor in flags:
        if tensor.dtype is not torch.bool or tensor.shape != shape or not tensor.is_cpu:
            return False
        if not (traced or type(tensor) in _PLAIN_TYPES):
            return False
    return True


def _coefficient(value: float | Tensor, like: Tensor, *, traced: bool) -> tuple[float, Tensor | None]:
    """A coefficient as a number, or as a tensor by step."""
    if type(value) is float or not isinstance(value, Tensor):
        return float(value), None
    if value.ndim:
        return 0.0, value
    if not traced and not (value.requires_grad and torch.is_grad_enabled()):
        return float(value.to(like.dtype)), None
    return 0.0, value.to(like).expand(like.shape)


@final
class NativeRecurrence:
    """``x_t = d_t + c_t * x_{t+1}`` in C, and the returns that are built on it in one pass over memory.

    For float32 and float64 on the CPU. Memory need not be dense: ``[*B, T, F]``, ``[T, *B, F]`` and transposed views
    of either are read and written where they lie.

    The recurrence is differentiable any number of times. `gae`, `td_lambda` and `vtrace` are not: they return None
    where a gradient is asked for, or where the arguments are of another kind than the kernels take, and compute
    nothing then. Everything here can be traced by `torch.compile`.

    Raises:
        RLError: if there is no compiled library.

    Example:
        >>> recurrence = NativeRecurrence()
        >>> recurrence(torch.ones(1, 3, 1), torch.full((1, 3, 1), 0.5), -2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """

    name = "native"

    def __init__(self) -> None:
        require()

    @property
    def why(self) -> str:
        """What is compiled, for ``rl doctor``."""
        return why()

    def __repr__(self) -> str:
        return f"NativeRecurrence({self.why})"

    def __call__(self, d: Tensor, c: Tensor, time_dim: int, *, out: Tensor | None = None) -> Tensor:
        """The recurrence, with ``x_T = 0``.

        Args:
            d: what each step adds, ``[*B, T, F]``, float32 or float64.
            c: weight of the step that follows, same shape and type; the last one is never read.
            time_dim: where time is.
            out: is written and returned, if given; overlaps neither argument. No gradient then.

        Returns:
            Same shape.

        Raises:
            ShapeError: if shapes differ, or there is no such dimension.
            SpecError: if a type is not taken, or `out` cannot be written.

        Example:
            >>> recurrence, memory = NativeRecurrence(), torch.empty(3)
            >>> recurrence(torch.ones(3), torch.full((3,), 0.5), 0, out=memory) is memory
            True
        """
        same_shape(d=d, c=c)
        dim = dimension(time_dim, d)
        if d.dtype not in BITS or c.dtype != d.dtype:
            raise SpecError(f"the native recurrence got d of {d.dtype} and c of {c.dtype}; it takes float32 or float64")
        traced = _is_traced()
        if traced or not _one_kind(d, (d, c), (), traced=traced):
            if out is not None:
                raise SpecError(
                    "the native recurrence cannot write into out where a gradient is asked for, the call is traced or"
                    " a tensor is not a plain one on the CPU; leave out away"
                )
            return _OPS.linear_recurrence(d, c, dim, False)  # noqa: FBT003 - of the schema
        if out is None:
            out = torch.empty_like(d)
        else:
            refuse_out((out,), (d, c), d)
        run(PLAIN, (d, None, None, None, c, None, None, None, out, None), dim)
        return out

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
            gamma: discount: a number, or a tensor of no dimensions or of the reward's shape.
            lmbda: weight of longer returns, likewise.
            state_value: value of each state, ``[*B, T, F]``, float32 or float64.
            next_state_value: value of the state that each step reached.
            reward: of each step.
            done: whether the episode ended with the step, bool.
            terminated: whether it ended in a state without a future; `done` if None.
            time_dim: where time is.
            out: both results are written there, if given.

        Returns:
            The advantage, and the advantage plus `state_value`; None if this is not a case for the kernel.

        Raises:
            ShapeError: if there is no such dimension, or `out` has another shape.
            SpecError: if `out` is given and cannot be written.

        Example:
            >>> value, reward = torch.zeros(1, 3, 1), torch.ones(1, 3, 1)
            >>> done = torch.zeros(1, 3, 1, dtype=torch.bool)
            >>> advantage, target = NativeRecurrence().gae(0.5, 1.0, value, value, reward, done, None, -2)
            >>> advantage.flatten()
            tensor([1.7500, 1.5000, 1.0000])
        """
        traced = _is_traced()
        terminated = done if terminated is None else terminated
        g, gammas = _coefficient(gamma, reward, traced=traced)
        lam, lmbdas = _coefficient(lmbda, reward, traced=traced)
        numbers = (reward, state_value, next_state_value, gammas, lmbdas)
        if not _one_kind(reward, numbers, (done, terminated), traced=traced):
            return _not_mine("gae", out)
        dim = dimension(time_dim, reward)
        if traced:
            if out is not None:
                return _not_mine("gae", out)
            return _OPS.gae(state_value, next_state_value, reward, done, terminated, gammas, lmbdas, g, lam, dim)
        first, second = _outputs(out, (*numbers, done, terminated), reward)
        slots = (reward, state_value, next_state_value, None, gammas, lmbdas, done, terminated, first, second)
        run(GAE, slots, dim, g, lam)
        return first, second

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
        """The lambda return; with `lmbda` 1 all rewards to the end, and the value of what comes behind.

        Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 12.20.

        Args:
            gamma: as for `gae`.
            lmbda: as for `gae`.
            next_state_value: value of the state that each step reached, ``[*B, T, F]``; None bootstraps nothing.
            reward: as for `gae`.
            done: as for `gae`.
            terminated: as for `gae`.
            time_dim: where time is.
            out: is written and returned, if given.

        Returns:
            The return of each step; None if this is not a case for the kernel.

        Raises:
            ShapeError: if there is no such dimension, or `out` has another shape.
            SpecError: if `out` is given and cannot be written.

        Example:
            >>> done = torch.tensor([[[False], [True], [False]]])
            >>> NativeRecurrence().td_lambda(0.5, 1.0, None, torch.ones(1, 3, 1), done, None, -2).flatten()
            tensor([1.5000, 1.0000, 1.0000])
        """
        traced = _is_traced()
        terminated = done if terminated is None else terminated
        g, gammas = _coefficient(gamma, reward, traced=traced)
        lam, lmbdas = _coefficient(lmbda, reward, traced=traced)
        numbers = (reward, next_state_value, gammas, lmbdas)
        if not _one_kind(reward, numbers, (done, terminated), traced=traced):
            return _not_mine("td_lambda", out)
        dim = dimension(time_dim, reward)
        if traced:
            if out is not None:
                return _not_mine("td_lambda", out)
            return _OPS.td_lambda(next_state_value, reward, done, terminated, gammas, lmbdas, g, lam, dim)
        if out is None:
            out = torch.empty_like(reward)
        else:
            refuse_out((out,), (*numbers, done, terminated), reward)
        slots = (reward, None, next_state_value, None, gammas, lmbdas, done, terminated, out, None)
        run(TD_LAMBDA, slots, dim, g, lam)
        return out

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
            gamma: as for `gae`.
            lmbda: as for `gae`.
            ratio: probability of the action now over that when it was taken, ``[*B, T, F]``.
            state_value: as for `gae`.
            next_state_value: as for `gae`.
            reward: as for `gae`.
            done: as for `gae`.
            terminated: as for `gae`.
            time_dim: where time is.
            rho_bar: largest weight of a temporal difference.
            c_bar: largest weight of what follows.
            out: both results are written there, if given.

        Returns:
            The advantage and the value target; None if this is not a case for the kernel.

        Raises:
            ShapeError: if there is no such dimension, or `out` has another shape.
            SpecError: if `out` is given and cannot be written.

        Example:
            >>> one, done = torch.ones(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.bool)
            >>> advantage, target = NativeRecurrence().vtrace(0.5, 1.0, one, 0 * one, 0 * one, one, done, None, -2)
            >>> target.flatten()
            tensor([1.5000, 1.0000])
        """
        traced = _is_traced()
        terminated = done if terminated is None else terminated
        g, gammas = _coefficient(gamma, reward, traced=traced)
        lam, lmbdas = _coefficient(lmbda, reward, traced=traced)
        numbers = (reward, state_value, next_state_value, ratio, gammas, lmbdas)
        if not _one_kind(reward, numbers, (done, terminated), traced=traced):
            return _not_mine("vtrace", out)
        dim = dimension(time_dim, reward)
        if traced:
            if out is not None:
                return _not_mine("vtrace", out)
            flags, clips = (done, terminated), (float(rho_bar), float(c_bar))
            return _OPS.vtrace(
                ratio, state_value, next_state_value, reward, *flags, gammas, lmbdas, g, lam, dim, *clips
            )
        first, second = _outputs(out, (*numbers, done, terminated), reward)
        slots = (reward, state_value, next_state_value, ratio, gammas, lmbdas, done, terminated, first, second)
        run(VTRACE, slots, dim, g, lam, rho_bar, c_bar)
        return first, second


def _not_mine(name: str, out: object) -> None:
    """None, unless somebody waits for `out` to be written.

    Raises:
        SpecError: if so.
    """
    if out is not None:
        raise SpecError(
            f"{name} with out takes plain tensors on the CPU, all of one shape and of float32 or float64, flags of"
            " bool, and no gradient; leave out away, or make the arguments so"
        )


def _outputs(
    out: tuple[Tensor, Tensor] | None, inputs: tuple[Tensor | None, ...], like: Tensor
) -> tuple[Tensor, Tensor]:
    if out is None:
        return torch.empty_like(like), torch.empty_like(like)
    refuse_out(out, inputs, like)
    return out
