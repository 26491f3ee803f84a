"""Autograd functions for eager calls, which cost less on the host than the operators."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

from rl.core.errors import BackendError
from rl.recurrent_triton._arguments import require_plain_tensors
from rl.recurrent_triton._compute import Given, How, compute, differentiate

__all__ = ["once", "run"]


def run(how: How, x: Tensor, weights: list[Tensor], rest: tuple[Any, ...], *, differentiated: bool) -> list[Tensor]:
    """States after each step.

    Args:
        how: see `How`.
        x: see `rl.recurrent_triton._ops`, as the following.
        weights: of all layers.
        rest: states before the first step, mask, reset states.
        differentiated: whether there will be a gradient.
    """
    if not differentiated:
        return compute(how, Given.of(how, x, weights, rest))[0]
    found: Any = _Sequence.apply(how, len(weights), x, *weights, *rest)
    return list(found)


def once(*_: Any) -> NoReturn:
    """Refuse a second derivative.

    Raises:
        BackendError: in any case.
    """
    raise BackendError(
        "the recurrent back end 'triton' differentiates once: for gradients of gradients run the recurrence step by"
        " step"
    )


class _Sequence(Function):
    """The forward pass; gates are kept beside what goes in and out."""

    @staticmethod
    def forward(ctx: Any, how: How, count: int, x: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        states, gates = compute(how, Given.of(how, x, tensors[:count], tensors[count:]))
        ctx.save_for_backward(x, *tensors, *states, gates)
        ctx.how = how, count
        return tuple(states)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        how, count = ctx.how
        _, _, of_x, *needs = ctx.needs_input_grad
        of_weights, of_rest = needs[:count], needs[count:]
        parts = how.kind.parts
        wanted = [of_x, *of_rest[:parts], *of_rest[parts + 1 :], *of_weights]
        if all(grad is None for grad in grads):
            return (None,) * (3 + len(needs))
        require_plain_tensors(grads)
        gradient: Any = _Gradient.apply if torch.is_grad_enabled() else _gradient
        x_grad, *rest = gradient(how, count, wanted, *ctx.saved_tensors, *grads)
        return (None, None, x_grad, *rest[2 * parts :], *rest[:parts], None, *rest[parts : 2 * parts])


class _Gradient(Function):
    """Backward pass as an autograd function, so that a second derivative raises."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        del ctx
        return _gradient(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        del ctx, grads
        once()


def _gradient(how: How, count: int, wanted: list[bool], x: Tensor, *tensors: Any) -> tuple[Tensor | None, ...]:
    parts = how.kind.parts
    weights, rest, kept = tensors[:count], tensors[count : -2 * parts - 1], tensors[-2 * parts - 1 :]
    given = Given.of(how, x, weights, rest)
    found = differentiate(how, given, kept[:parts], kept[parts], kept[parts + 1 :], wanted)
    return (found.x, *found.first, *found.resets, *found.weights)
