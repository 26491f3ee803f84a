"""`rl.core.interfaces.LinearRecurrence` in C, with the returns that are built on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.graph import increment_version

from rl.core.checks import same_shape
from rl.core.errors import SpecError
from rl.native import _recurrence_ops as _ops
from rl.native._calls import function, why_slower
from rl.native._library import require, why
from rl.native._looks import Job, are_taken, coefficient, run_closer, run_traced
from rl.native._returns import BITS, GAE, PLAIN, TD_LAMBDA, VTRACE, dimension, refuse_out, run
from rl.native._traced import is_dual, is_traced, is_transformed

__all__ = ["NativeRecurrence"]

_is_compiling = torch.compiler.is_compiling
_is_dynamo = torch.compiler.is_dynamo_compiling  # takes half as long; C asks for all others that trace
_fresh = torch.empty_like
_OPS = torch.ops.rl_native
assert _ops.library is not None  # what `_OPS` holds comes from there

_NOT_INTO_OUT = (
    "the native recurrence cannot write into out where a gradient is asked for, the call is traced or a tensor is not a"
    " plain one on the CPU; leave out away"
)


@final
class NativeRecurrence:
    """``x_t = d_t + c_t * x_{t+1}`` in C, and the returns that are built on it in one pass over memory.

    For float32 and float64 on the CPU. Memory need not be dense: ``[*B, T, F]``, ``[T, *B, F]`` and transposed views
    of either are read and written where they lie.

    The recurrence is differentiable any number of times. `gae`, `td_lambda`, `vtrace` and `vtrace_from_log_probs` are
    not: they return None where a gradient is asked for, or where the arguments are of another kind than the kernels
    take, and compute nothing then.

    Raises:
        RLError: if there is no compiled library.

    Example:
        >>> recurrence = NativeRecurrence()
        >>> recurrence(torch.ones(1, 3, 1), torch.full((1, 3, 1), 0.5), -2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """

    name = "native"
    traceable = True
    """Everything here can be traced by `torch.compile`."""

    def __init__(self) -> None:
        require()
        self._run = function("returns", unusual=False)
        self._new = function("new_returns", unusual=None)

    def __reduce__(self) -> tuple[type[NativeRecurrence], tuple[()]]:
        return NativeRecurrence, ()

    @property
    def why(self) -> str:
        """What is compiled, for ``rl doctor``."""
        return why() + why_slower()

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
            SpecError: if a type is not taken, `out` cannot be written, or a tensor carries a derivative forward
                (`torch.func.jvp`).

        Example:
            >>> recurrence, memory = NativeRecurrence(), torch.empty(3)
            >>> recurrence(torch.ones(3), torch.full((3,), 0.5), 0, out=memory) is memory
            True
        """
        if is_traced():
            return self._traced(d, c, time_dim, out)
        absent = None
        numbers = (d, absent, absent, absent, absent, absent, c, absent)
        if out is None:
            found = self._new(PLAIN, time_dim, 0.0, 0.0, 0.0, 0.0, *numbers, absent, absent)
            if found is not None:
                return found
        elif self._run(PLAIN, time_dim, 0.0, 0.0, 0.0, 0.0, *numbers, absent, absent, out, absent):
            increment_version(out)
            return out
        _check(d, c)
        dim = dimension(time_dim, d.shape)
        if not are_taken(numbers, (), traced=False):
            if out is not None:
                raise SpecError(_NOT_INTO_OUT)
            return _OPS.linear_recurrence(d, c, dim, False)  # noqa: FBT003 - of the schema
        if out is not None:
            refuse_out((out,), (d, c), d)
            increment_version(out)
        memory = _fresh(d) if out is None else out
        run(PLAIN, (*numbers, absent, absent, memory, absent), dim)
        return memory

    @staticmethod
    def _traced(d: Tensor, c: Tensor, time_dim: int, out: Tensor | None) -> Tensor:
        """The recurrence where somebody looks at the operators that run."""
        _check(d, c)
        dim = dimension(time_dim, d.shape)
        if out is not None:
            raise SpecError(_NOT_INTO_OUT)
        _refuse_tangents(d, c)
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
            The advantage, and the advantage plus `state_value`; None if this is not a case for the kernel: nothing is
            written then.

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
        terminated = done if terminated is None else terminated
        job = (
            GAE, time_dim, gamma, lmbda, 0.0, 0.0,
            reward, state_value, next_state_value, None, None, None, None, None, done, terminated,
        )  # fmt: skip
        return self._answer(job, out)

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
            The return of each step; None if this is not a case for the kernel: nothing is
            written then.

        Raises:
            ShapeError: if there is no such dimension, or `out` has another shape.
            SpecError: if `out` is given and cannot be written.

        Example:
            >>> done = torch.tensor([[[False], [True], [False]]])
            >>> NativeRecurrence().td_lambda(0.5, 1.0, None, torch.ones(1, 3, 1), done, None, -2).flatten()
            tensor([1.5000, 1.0000, 1.0000])
        """
        terminated = done if terminated is None else terminated
        job = (
            TD_LAMBDA, time_dim, gamma, lmbda, 0.0, 0.0,
            reward, None, next_state_value, None, None, None, None, None, done, terminated,
        )  # fmt: skip
        return self._answer(job, out)

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
            The advantage and the value target; None if this is not a case for the kernel: nothing is
            written then.

        Raises:
            ShapeError: if there is no such dimension, or `out` has another shape.
            SpecError: if `out` is given and cannot be written.

        Example:
            >>> one, done = torch.ones(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.bool)
            >>> advantage, target = NativeRecurrence().vtrace(0.5, 1.0, one, 0 * one, 0 * one, one, done, None, -2)
            >>> target.flatten()
            tensor([1.5000, 1.0000])
        """
        terminated = done if terminated is None else terminated
        job = (
            VTRACE, time_dim, gamma, lmbda, rho_bar, c_bar,
            reward, state_value, next_state_value, ratio, None, None, None, None, done, terminated,
        )  # fmt: skip
        return self._answer(job, out)

    def vtrace_from_log_probs(  # noqa: PLR0913 - the terms of the formula
        self,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        log_pi: Tensor,
        log_mu: Tensor,
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
        """V-trace as `vtrace`, with the ratio ``exp(log_pi - log_mu)``, which never lies in memory as a whole.

        Args:
            gamma: as for `gae`.
            lmbda: as for `gae`.
            log_pi: log-probability of each action now, ``[*B, T, F]``, nats.
            log_mu: log-probability of each action when it was taken, same shape.
            state_value: as for `gae`.
            next_state_value: as for `gae`.
            reward: as for `gae`.
            done: as for `gae`.
            terminated: as for `gae`.
            time_dim: where time is.
            rho_bar: as for `vtrace`.
            c_bar: as for `vtrace`.
            out: both results are written there, if given.

        Returns:
            The advantage and the value target; None if this is not a case for the kernel, or if the call is traced:
            nothing is written then. A ratio that a type holds without all of its digits (below 2e-38 in float32) may
            count as zero.

        Raises:
            ShapeError: if there is no such dimension, or `out` has another shape.
            SpecError: if `out` is given and cannot be written.

        Example:
            >>> one, done = torch.ones(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.bool)
            >>> values = 0 * one, 0 * one, one, done, None, -2
            >>> advantage, target = NativeRecurrence().vtrace_from_log_probs(0.5, 1.0, one, one, *values)
            >>> target.flatten()
            tensor([1.5000, 1.0000])
        """
        terminated = done if terminated is None else terminated
        job = (
            VTRACE, time_dim, gamma, lmbda, rho_bar, c_bar,
            reward, state_value, next_state_value, None, log_pi, log_mu, None, None, done, terminated,
        )  # fmt: skip
        return self._answer(job, out)

    def _answer(self, job: Job, out: Any) -> Any:
        """A return, by C at once if all is as it mostly is."""
        if not _is_dynamo():
            found = self._new(*job) if out is None else self._into(job, out)
            if found is not None:
                return found
        return self._closer(job, out)

    def _into(self, job: Job, out: Any) -> Any:
        """A return into `out`; None if C found something unusual."""
        first, second = (out, None) if job[0] == TD_LAMBDA else _pair(out)
        if not self._run(*job, first, second):
            return None
        increment_version(out)
        return out if second is None else (first, second)

    def _closer(self, job: Job, out: Any) -> Any:
        """A return of arguments that C found unusual, or of a call that is traced."""
        kind, time_dim, gamma, lmbda, rho_bar, c_bar = job[:6]
        reward, value, following, ratio, log_pi, log_mu, _, _, done, terminated = job[6:]
        traced = is_traced()
        g, gammas = coefficient(gamma, reward, traced=traced)
        lam, lmbdas = coefficient(lmbda, reward, traced=traced)
        weights = g, lam, rho_bar, c_bar
        inputs = reward, value, following, ratio, log_pi, log_mu, gammas, lmbdas, done, terminated
        if traced:
            return None if out is not None else run_traced(kind, inputs, time_dim, weights)
        if kind == TD_LAMBDA:
            memory = _fresh(reward) if out is None else out
            first, second = memory, None
        else:
            first, second = memory = (_fresh(reward), _fresh(reward)) if out is None else _pair(out)
        if self._run(kind, time_dim, *weights, *inputs, first, second):
            if out is not None:
                increment_version(out)
            return memory
        return memory if run_closer(kind, inputs, (first, second), time_dim, weights, fresh=out is None) else None


def _pair(out: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if len(out) != 2:
        raise SpecError(f"out has {len(out)} tensor(s); there are 2 results, each needs one")
    return out[0], out[1]


def _check(d: Tensor, c: Tensor) -> None:
    same_shape(d=d, c=c)
    if d.dtype not in BITS or c.dtype != d.dtype:
        raise SpecError(f"the native recurrence got d of {d.dtype} and c of {c.dtype}; it takes float32 or float64")


def _refuse_tangents(*tensors: Tensor) -> None:
    if _is_compiling() or not is_dual():
        return
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise SpecError(
            "the native recurrence has no derivative that travels forward: use rl.objectives.value.functional, which"
            " leaves it out there, or torch.autograd.grad"
        )
