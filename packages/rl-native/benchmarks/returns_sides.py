"""Implementations that `returns.py` compares, by estimator: each is a call without arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl.native._returns import NativeRecurrence

GAMMA, LMBDA = 0.99, 0.95
Sides = dict[str, Callable[[], Any]]


class Batch(NamedTuple):
    """What the estimators read, ``[B, T, 1]`` or ``[T, B, 1]``."""

    value: Tensor
    following: Tensor
    reward: Tensor
    done: Tensor
    terminated: Tensor
    log_pi: Tensor
    log_mu: Tensor

    @classmethod
    def draw(cls, rows: int, steps: int) -> Batch:
        states, reward = torch.randn(rows, steps + 1, 1), torch.randn(rows, steps, 1)
        value, following = states[:, :-1].contiguous(), states[:, 1:].contiguous()
        done = torch.rand(rows, steps, 1) < 0.02
        terminated = done & (torch.rand(rows, steps, 1) < 0.5)
        log_pi, log_mu = (0.1 * torch.randn(rows, steps, 1) for _ in range(2))
        return cls(value, following, reward, done, terminated, log_pi, log_mu)

    def time_first(self) -> Batch:
        return Batch(*(x.transpose(0, 1).contiguous() for x in self))


def stream(batch: Batch) -> Callable[[], object]:
    """Reads and writes as many bytes as GAE: 14 and 8 for each element, into outputs that are used again."""
    first, second, flag = torch.empty_like(batch.value), torch.empty_like(batch.value), torch.empty_like(batch.done)

    def run() -> None:
        torch.add(batch.value, batch.following, out=first)  # 12 bytes
        second.copy_(batch.reward)  # 8
        flag.copy_(batch.done)  # 2

    return run


def native(batch: Batch) -> dict[str, Sides]:
    """The kernels of this package: new outputs, outputs that are used again, and those with time first."""
    kernels, turned = NativeRecurrence(), batch.time_first()
    ratio, out = (batch.log_pi - batch.log_mu).exp(), (torch.empty_like(batch.value), torch.empty_like(batch.value))
    turned_ratio = ratio.transpose(0, 1).contiguous()
    turned_out = torch.empty_like(turned.value), torch.empty_like(turned.value)
    args, first = batch[:5], turned[:5]

    def vtrace(rho: Tensor, values: tuple[Tensor, ...], dim: int, into: tuple[Tensor, Tensor] | None) -> object:
        return kernels.vtrace(GAMMA, 1.0, rho, *values, dim, out=into)

    return {
        "GAE": {
            "native": lambda: kernels.gae(GAMMA, LMBDA, *args, 1),
            "native, out=": lambda: kernels.gae(GAMMA, LMBDA, *args, 1, out=out),
            "native, time first, out=": lambda: kernels.gae(GAMMA, LMBDA, *first, 0, out=turned_out),
        },
        "TD(lambda)": {
            "native": lambda: kernels.td_lambda(GAMMA, LMBDA, *args[1:], 1),
            "native, out=": lambda: kernels.td_lambda(GAMMA, LMBDA, *args[1:], 1, out=out[0]),
            "native, time first, out=": lambda: kernels.td_lambda(GAMMA, LMBDA, *first[1:], 0, out=turned_out[0]),
        },
        "V-trace": {
            # From log-probabilities, as TorchRL does it; the others are given the ratio.
            "native": lambda: vtrace((batch.log_pi - batch.log_mu).exp_(), args, 1, None),
            "native, out=": lambda: vtrace(ratio, args, 1, out),
            "native, time first, out=": lambda: vtrace(turned_ratio, first, 0, turned_out),
        },
    }


@cache
def their_functions() -> Any:
    """TorchRL's; None, with a word why, if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its compiled trees, which are not needed here
            from torchrl.objectives.value import functional
    except ImportError as problem:
        print(f"TorchRL: left out, {problem}")
        return None
    return functional


def torchrl(batch: Batch) -> dict[str, Sides]:
    """TorchRL's functions, if it is installed; for V-trace it has one form, a loop."""
    theirs = their_functions()
    if theirs is None:
        return {}
    args, probabilities = batch[:5], (batch.log_pi, batch.log_mu)
    return {
        "GAE": {
            "TorchRL vec": lambda: theirs.vec_generalized_advantage_estimate(GAMMA, LMBDA, *args),
            "TorchRL loop": lambda: theirs.generalized_advantage_estimate(GAMMA, LMBDA, *args),
        },
        "TD(lambda)": {
            "TorchRL vec": lambda: theirs.vec_td_lambda_return_estimate(GAMMA, LMBDA, *args[1:]),
            "TorchRL loop": lambda: theirs.td_lambda_return_estimate(GAMMA, LMBDA, *args[1:]),
        },
        "V-trace": {"TorchRL loop": lambda: theirs.vtrace_advantage_estimate(GAMMA, *probabilities, *args)},
    }
