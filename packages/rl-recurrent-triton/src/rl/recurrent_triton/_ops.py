"""All layers of an LSTM or a GRU as operators of torch, with their gradients: one node of a compiled graph.

They are registered when this module is imported, and differentiate once.

| argument | shape | |
|---|---|---|
| `x` | `[B, T, I]` | any floating type, as all that follow |
| `weights` | | by layer: `weight_ih`, `weight_hh`, and with `biased` `bias_ih`, `bias_hh` |
| `h0`, `c0` | `[B, layers, H]` | before the first step |
| `mask` | `[B, T]`, bool | true at resets of the state before the step |
| `reset_h`, `reset_c` | `[B, T, layers, H]` | reset states; zero if None |
| `dtype` | | of products and gates |
| `keep` | | whether gates are kept for the gradient, instead of being computed again |
| `precision` | | of products, see `rl.core.RecurrentOptions` |

Results: states after each step, `[layers, B, T, H]`, and the gates that were kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

from rl.core.errors import BackendError
from rl.recurrent_triton._compute import Given, How, compute, differentiate, results
from rl.recurrent_triton._layers import GRULayer, Layer, LSTMLayer
from rl.recurrent_triton._validation import check_plain_tensors


def run(how: How, x: Tensor, weights: list[Tensor], rest: tuple[Any, ...], *, differentiated: bool) -> list[Tensor]:
    """States after each step.

    Args:
        how: Kind of computation, see `How`.
        x: Inputs; see `rl.recurrent_triton._ops` for this and the following.
        weights: Weights of all layers.
        rest: States before the first step, mask, reset states.
        differentiated: Whether a gradient may be computed.
    """
    if not differentiated:
        return compute(how, Given.of(how, x, weights, rest))[0]
    found: Any = _Sequence.apply(how, len(weights), x, *weights, *rest)
    return list(found)


def once(*_: Any) -> NoReturn:
    """Reject a second derivative.

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
        check_plain_tensors(grads)
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


# ruff: noqa: FBT001  signatures are those of the operators


_library = torch.library.Library("rl_recurrent_triton", "FRAGMENT")
_HOW = "ScalarType dtype, bool keep, str? precision"


class _Operators:
    """The functions of both operators of one cell.

    Args:
        kind: Kind of the layers.
    """

    def __init__(self, kind: type[Layer]) -> None:
        self.kind, self.parts = kind, kind.parts
        self.backward: Any = None

    def run(self, x: Tensor, weights: list[Tensor], biased: bool, *rest: Any) -> tuple[Tensor, ...]:
        *given, dtype, keep, precision = rest
        how = How(self.kind, biased, dtype, keep, precision)
        states, gates = compute(how, Given.of(how, x, weights, given))
        return (*states, gates)

    def fake(self, x: Tensor, _: list[Tensor], biased: bool, h0: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        how = How(self.kind, biased, *rest[-3:])
        states, gates = results(how, x, h0.shape[1], h0.shape[-1])
        return (*states, gates)

    def run_backward(self, *arguments: Any) -> tuple[Any, ...]:
        grads, (x, weights, biased, *rest) = arguments[: self.parts], arguments[self.parts :]
        *tensors, wanted, dtype, keep, precision = rest
        states, gates = tensors[-self.parts - 1 : -1], tensors[-1]
        how = How(self.kind, biased, dtype, keep, precision)
        given = Given.of(how, x, weights, tensors[: -self.parts - 1])
        found = differentiate(how, given, states, gates, grads, wanted)
        pairs = zip(found.weights, weights, strict=True)
        others = zip((*found.first, *found.resets), (*given.first, *given.resets), strict=True)
        return (
            _present(found.x, x),
            [_present(grad, like) for grad, like in pairs],
            *(_present(grad, x if like is None else like) for grad, like in others),
        )

    def fake_backward(self, *arguments: Any) -> tuple[Any, ...]:
        x, weights, _, *rest = arguments[self.parts :]
        given = [*rest[: self.parts], *rest[self.parts + 1 : 2 * self.parts + 1]]
        of_x, *wanted = rest[3 * self.parts + 2]
        return (
            _alike(x, of_x),
            [_alike(weight, want) for weight, want in zip(weights, wanted[len(given) :], strict=True)],
            *(_alike(x if like is None else like, want) for like, want in zip(given, wanted, strict=False)),
        )

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the gradient needs."""
        ctx.set_materialize_grads(False)
        x, weights, biased, *tensors, dtype, keep, precision = inputs
        ctx.mark_non_differentiable(output[-1])
        ctx.save_for_backward(x, *weights, *tensors, *output)
        ctx.how = len(weights), biased, dtype, keep, precision

    def gradient(self, ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """Gradients of all arguments."""
        count, biased, *how = ctx.how
        x, *saved = ctx.saved_tensors
        of_x, of_weights, _, *needs = ctx.needs_input_grad
        states = [*needs[: self.parts], *needs[self.parts + 1 : 2 * self.parts + 1]]
        wanted = [of_x, *states, *of_weights]
        if all(grad is None for grad in grads[:-1]):
            return (None, [None] * count, *[None] * (len(needs) + 1))
        found = self.backward(*grads[:-1], x, saved[:count], biased, *saved[count:], wanted, *how)
        x_grad, weight_grads, *rest = found
        rest = [grad if want else None for grad, want in zip(rest, states, strict=True)]
        weight_grads = [grad if want else None for grad, want in zip(weight_grads, of_weights, strict=True)]
        first, resets = rest[: self.parts], rest[self.parts :]
        return (x_grad if of_x else None, weight_grads, None, *first, None, *resets, None, None, None)


def _present(grad: Tensor | None, like: Tensor) -> Tensor:
    """Without elements for what is not wanted: results of operators cannot be None."""
    return like.new_empty(0) if grad is None else grad


def _alike(like: Tensor, want: bool) -> Tensor:
    return like.new_empty(like.shape if want else (0,))


def _define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: Callable[..., Any],
    setup: Callable[..., Any] | None = None,
) -> Any:
    """Register an operator for all devices; return its overload."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rl_recurrent_triton::{name}", fake, lib=_library)
    torch.library.register_autograd(f"rl_recurrent_triton::{name}", gradient, setup_context=setup, lib=_library)
    return getattr(torch.ops.rl_recurrent_triton, name).default


def _both(name: str, kind: type[Layer], states: Sequence[str]) -> tuple[Any, Any]:
    """Register both operators of a cell."""
    cell = _Operators(kind)
    given = ", ".join(
        (
            "Tensor x, Tensor[] weights, bool biased",
            *(f"Tensor {state}0" for state in states),
            "Tensor mask",
            *(f"Tensor? reset_{state}" for state in states),
        )
    )
    grads = ", ".join(f"Tensor? grad_{state}" for state in states)
    kept = ", ".join(f"Tensor {state}" for state in (*states, "gates"))
    some = ", ".join(["Tensor"] * 2 * len(states))
    cell.backward = _define(
        f"{name}_backward({grads}, {given}, {kept}, bool[] wanted, {_HOW}) -> (Tensor, Tensor[], {some})",
        cell.run_backward,
        cell.fake_backward,
        once,
    )
    outputs = ", ".join(["Tensor"] * (len(states) + 1))
    forward = _define(f"{name}({given}, {_HOW}) -> ({outputs})", cell.run, cell.fake, cell.gradient, cell.setup)
    return forward, cell.backward


lstm, lstm_backward = _both("lstm", LSTMLayer, ("h", "c"))
gru, gru_backward = _both("gru", GRULayer, ("h",))
