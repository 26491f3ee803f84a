"""States and gradients of all layers as plain functions, called inside autograd functions and operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.recurrent_triton._layers import Layer, Shared
from rl.recurrent_triton._passes import Wanted, run_backward, run_forward
from rl.recurrent_triton._sequence import on_device, state_dtype

__all__ = ["Given", "Gradients", "How", "compute", "differentiate", "results"]

KEPT = 4
"""Slots of gates that are kept, of both cells."""


@dataclass(frozen=True)
class How:
    """How to compute.

    Args:
        kind: of layers.
        biased: whether weights have biases among them.
        dtype: of products and gates.
        keep: whether gates are kept for the gradient, instead of being computed again.
        precision: of products, see `rl.core.RecurrentOptions`.
    """

    kind: type[Layer]
    biased: bool
    dtype: torch.dtype
    keep: bool
    precision: str | None

    @property
    def each(self) -> int:
        """Weights of a layer."""
        return 4 if self.biased else 2


@dataclass(frozen=True)
class Given:
    """What is computed from; see `rl.recurrent_triton._ops` for shapes."""

    x: Tensor
    weights: Sequence[Tensor]
    first: Sequence[Tensor]
    mask: Tensor
    resets: Sequence[Tensor | None]

    @staticmethod
    def of(how: How, x: Tensor, weights: Sequence[Tensor], rest: Sequence[Any]) -> Given:
        """From the states before the first step, the mask, and the reset states, in this order."""
        parts = how.kind.parts
        return Given(x, weights, rest[:parts], rest[parts], rest[parts + 1 :])


@dataclass(frozen=True)
class Gradients:
    """None for what was not asked for."""

    x: Tensor | None
    weights: list[Tensor | None]
    first: list[Tensor | None]
    resets: list[Tensor | None]


def results(how: How, x: Tensor, layers: int, hidden: int) -> tuple[list[Tensor], Tensor]:
    """Empty states, ``[layers, B, T, H]`` each, and gates; without elements if they are not kept."""
    shape, kept = (layers, *x.shape[:2]), state_dtype(how.dtype)
    states = [x.new_empty((*shape, hidden), dtype=kept) for _ in range(how.kind.parts)]
    return states, x.new_empty((*shape, KEPT * hidden) if how.keep else (0,), dtype=how.dtype)


def compute(how: How, given: Given) -> tuple[list[Tensor], Tensor]:
    """States after each step, and the gates that are kept."""
    states, gates = results(how, given.x, len(given.weights) // how.each, given.first[0].shape[-1])
    if given.mask.numel():
        with on_device(given.x.device, how.precision) as precision:
            run_forward(_layers(how, given, states, precision), given.x, gates if how.keep else None)
    return states, gates


def differentiate(
    how: How,
    given: Given,
    states: Sequence[Tensor],
    gates: Tensor,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> Gradients:
    """Gradients of all that is given.

    Args:
        how: as in `compute`.
        given: as in `compute`.
        states: that it gave.
        gates: that it gave.
        grads: of the states; None is zero.
        wanted: which gradients: of inputs, of first states, of reset states, of weights.
    """
    asked = _asked(wanted, how.kind.parts, how.each)
    if not given.mask.numel():
        return _of_no_steps(given, wanted)
    with on_device(given.x.device, how.precision) as precision:
        layers = _layers(how, given, states, precision)
        of_x, of_resets = run_backward(layers, given.x, grads, gates if how.keep else None, asked)
        of_weights = [
            g for layer, want in zip(layers, asked.weights, strict=True) for g in layer.weight_gradients(want)
        ]
        of_first = [
            torch.stack([layer.incoming[place] for layer in layers], 1).to(like.dtype) if want else None
            for place, (like, want) in enumerate(zip(given.first, asked.first, strict=True))
        ]
    pairs = zip(of_resets, given.resets, strict=True)
    resets = [None if grad is None or like is None else grad.to(like.dtype) for grad, like in pairs]
    return Gradients(of_x, of_weights, of_first, resets)


def _layers(how: How, given: Given, states: Sequence[Tensor], precision: str) -> list[Layer]:
    each, kept = how.each, state_dtype(how.dtype)
    shared = Shared(given.mask.contiguous(), how.dtype, precision)
    first = [part.to(kept) for part in given.first]
    resets = [None if part is None else in_rows(part) for part in given.resets]
    return [
        how.kind(
            given.weights[each * place : each * (place + 1)],
            tuple(part[:, place].contiguous() for part in first),
            [None if part is None else part[:, :, place] for part in resets],
            tuple(part[place] for part in states),
            shared,
        )
        for place in range(len(given.weights) // each)
    ]


def in_rows(part: Tensor) -> Tensor:
    """With elements of a row side by side, as kernels read them."""
    return part if part.stride(-1) == 1 else part.contiguous()


def _asked(wanted: Sequence[bool], parts: int, each: int) -> Wanted:
    inputs, *rest = wanted
    first, resets, weights = rest[:parts], rest[parts : 2 * parts], rest[2 * parts :]
    by_layer = [list(weights[start : start + each]) for start in range(0, len(weights), each)]
    return Wanted(inputs, tuple(first), tuple(resets), by_layer)


def _of_no_steps(given: Given, wanted: Sequence[bool]) -> Gradients:
    every = (given.x, *given.first, *given.resets, *given.weights)
    found = [
        torch.zeros_like(like) if want and like is not None else None for like, want in zip(every, wanted, strict=True)
    ]
    parts = len(given.first)
    of_x, *rest = found
    return Gradients(of_x, rest[2 * parts :], rest[:parts], rest[parts : 2 * parts])
