"""States and gradients of all layers as plain functions, called inside autograd functions and operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.recurrent_triton._layers import Gradients, Layer, Shared, on_device, rows_of, state_dtype, time_chunks

Steps = tuple[int, int]


@dataclass(frozen=True)
class Wanted:
    """Which gradients are needed.

    Args:
        inputs: Gradient of the inputs.
        first: Gradients of the states before the first step.
        resets: Gradient of each stored state.
        weights: Gradients of the weights, by layer, in the order of its weights.
    """

    inputs: bool
    first: tuple[bool, ...]
    resets: tuple[bool, ...]
    weights: list[list[bool]]

    @property
    def lowest(self) -> int:
        """The lowest layer that something is wanted of; as many as there are if nothing is."""
        if self.inputs or any(self.first) or any(self.resets):
            return 0
        return next((place for place, layer in enumerate(self.weights) if any(layer)), len(self.weights))


def run_forward(layers: Sequence[Layer], x: Tensor, gates: Tensor | None) -> None:
    """Compute the states of all layers.

    Args:
        layers: Layers, with the states to be written.
        x: Inputs of the lowest layer, ``[B, T, I]``.
        gates: Stored gates, ``[layers, B, T, 4 * H]``; a work buffer is allocated if None.
    """
    batch, time = x.shape[:2]
    cuts = time_chunks(batch, time, single=gates is not None)
    work = _Work(x, layers[0], cuts, layers[0].slots)
    for steps in cuts:
        below = x
        for place, layer in enumerate(layers):
            buffer = work.gates(steps) if gates is None else gates[place]
            layer.project(rows_of(below, steps, layer.shared.dtype), buffer)
            layer.forward(buffer, steps, keep=gates is not None)
            below = layer.states[0]


class _Work:
    """Scratch buffer shared by the time chunks."""

    def __init__(self, x: Tensor, layer: Layer, cuts: list[Steps], slots: int) -> None:
        self._like, self._dtype = x, layer.shared.dtype
        self._shape = x.shape[0], cuts[0][1] - cuts[0][0], slots * layer.hidden
        self._buffer: Tensor | None = None

    def gates(self, steps: Steps) -> Tensor:
        """Contiguous, for the gates of these steps."""
        batch, longest, columns = self._shape
        if self._buffer is None:
            self._buffer = self._like.new_empty(batch * longest * columns, dtype=self._dtype)
        length = steps[1] - steps[0]
        return self._buffer[: batch * length * columns].view(batch, length, columns)


@dataclass(frozen=True)
class _Results:
    """Gradients that are written piece by piece."""

    x: Tensor | None
    resets: tuple[Tensor | None, ...]  # [B, T, layers, H], in the type of the states


def run_backward(
    layers: Sequence[Layer], x: Tensor, grads: Sequence[Tensor | None], gates: Tensor | None, wanted: Wanted
) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    """Gradients of inputs and of reset states, the needed ones; the layers hold the others.

    Args:
        layers: Layers, with their states.
        x: Inputs of the forward pass.
        grads: Gradients of the states, ``[layers, B, T, H]`` each; None is zero.
        gates: Stored gates; recomputed if None.
        wanted: Flags of the gradients that are computed.
    """
    batch, time = x.shape[:2]
    whole = (batch, time, len(layers), layers[0].hidden)
    kept = state_dtype(layers[0].shared.dtype)
    results = _Results(
        torch.empty_like(x, memory_format=torch.contiguous_format) if wanted.inputs else None,
        tuple(x.new_zeros(whole, dtype=kept) if want else None for want in wanted.resets),
    )
    for layer in layers:
        layer.begin_backward()
    cuts = time_chunks(batch, time, single=gates is not None)
    work = _Work(x, layers[0], cuts, 4)
    for steps in reversed(cuts):
        above: Tensor | None = None
        for place in reversed(range(wanted.lowest, len(layers))):
            own = _layer_gradients(grads, results, place, steps, above, carry=steps[0] > 0 or any(wanted.first))
            kept_gates = None if gates is None else gates[place]
            above = _layer_backward(layers, place, x, own, kept_gates, work, steps, wanted, results)
    return results.x, results.resets


def _write_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    if out.is_contiguous() and out.dtype == left.dtype:
        torch.mm(left, right, out=out.view(len(left), -1))
    else:
        out.copy_(torch.mm(left, right).view_as(out))


def _layer_gradients(
    grads: Sequence[Tensor | None],
    results: _Results,
    place: int,
    steps: Steps,
    above: Tensor | None,
    *,
    carry: bool,
) -> Gradients:
    """Return the gradients of the states of one layer: the incoming ones, plus that from the layer above for h."""
    here = slice(*steps)
    of_states = [None if grad is None else _in_rows(grad[place, :, here]) for grad in grads]
    if above is not None:
        of_states[0] = above if of_states[0] is None else above.add_(of_states[0])
    of_resets = tuple(None if grad is None else grad[:, here, place] for grad in results.resets)
    return Gradients(tuple(of_states), carry, of_resets)


def _in_rows(grad: Tensor) -> Tensor:
    return grad if grad.stride(-1) == 1 else grad.contiguous()


def _layer_backward(
    layers: Sequence[Layer],
    place: int,
    x: Tensor,
    own: Gradients,
    gates: Tensor | None,
    work: _Work,
    steps: Steps,
    wanted: Wanted,
    results: _Results,
) -> Tensor | None:
    """Go through one layer; the gradient of the states of the layer below, if something is wanted of it."""
    layer, weights = layers[place], wanted.weights[place]
    needs_rows = weights[0] or gates is None
    below = layers[place - 1].states[0] if place else x
    rows = rows_of(below, steps, layer.shared.dtype) if needs_rows else x.new_empty(0)
    before = layer.states_before(steps) if weights[1] or gates is None else None
    grad = work.gates(steps)
    if gates is None and before is not None:
        layer.project(rows, grad)
        layer.add_states(before, grad)
        layer.backward(grad, grad, own, steps, activated=False)  # in place
    elif gates is not None:
        layer.backward(gates, grad, own, steps, activated=True)
    layer.add_weight_gradients(grad, rows, before, weights)
    if place > wanted.lowest:
        through = torch.mm(layer.of_input(grad), layer.weight_ih).view(*grad.shape[:2], -1)
        return through.to(layer.states[0].dtype)
    if results.x is not None:
        _write_product(layer.of_input(grad), layer.weight_ih, results.x[:, slice(*steps)])
    return None


KEPT = 4
"""Slots of gates that are kept, of both cells."""


@dataclass(frozen=True)
class How:
    """How to compute.

    Args:
        kind: Kind of the layers.
        biased: Whether the weights include biases.
        dtype: Dtype of products and gates.
        keep: Whether gates are stored for the gradient, instead of being recomputed.
        precision: Precision of products, see `rl.core.RecurrentOptions`.
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
class ComputedGradients:
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
) -> ComputedGradients:
    """ComputedGradients of all that is given.

    Args:
        how: Kind of computation, as in `compute`.
        given: Tensors of the call, as in `compute`.
        states: States that `compute` returned.
        gates: Gates that `compute` returned.
        grads: Gradients of the states; None is zero.
        wanted: Flags of the gradients that are computed: of inputs, of first states, of reset states, of weights.
    """
    asked = _split_flags(wanted, how.kind.parts, how.each)
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
    return ComputedGradients(of_x, of_weights, of_first, resets)


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
    """Return the tensor with contiguous rows, as kernels read them."""
    return part if part.stride(-1) == 1 else part.contiguous()


def _split_flags(wanted: Sequence[bool], parts: int, each: int) -> Wanted:
    inputs, *rest = wanted
    first, resets, weights = rest[:parts], rest[parts : 2 * parts], rest[2 * parts :]
    by_layer = [list(weights[start : start + each]) for start in range(0, len(weights), each)]
    return Wanted(inputs, tuple(first), tuple(resets), by_layer)


def _of_no_steps(given: Given, wanted: Sequence[bool]) -> ComputedGradients:
    every = (given.x, *given.first, *given.resets, *given.weights)
    found = [
        torch.zeros_like(like) if want and like is not None else None for like, want in zip(every, wanted, strict=True)
    ]
    parts = len(given.first)
    of_x, *rest = found
    return ComputedGradients(of_x, rest[2 * parts :], rest[:parts], rest[parts : 2 * parts])
