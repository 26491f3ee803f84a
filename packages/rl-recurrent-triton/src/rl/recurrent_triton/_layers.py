"""State of one layer during one call: weights, states, gradients, and its kernel calls.

Gates lie in columns, one slot of ``H`` for each. An LSTM has i, f, g, o; inputs and states contribute to all. A GRU
has n, r, z, m, where m is what the states add to n: inputs contribute to n, r, z and states to r, z, m, so that each
product reads or writes adjacent columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor

_ROWS = 4096
"""Rows of a product below which time chunks gain nothing: products would be too small for the device."""

_CHUNKS = 4
"""At most; the work buffer of gates is then as large as the states of an LSTM are, in two."""


@cache
def kernels() -> Any:
    """Return the module that launches the kernels; Triton is imported with it, at first use."""
    from rl.recurrent_triton import _launch

    return _launch


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of states and sums, where products and gates are of `dtype`."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def time_chunks(batch: int, time: int, *, single: bool) -> list[tuple[int, int]]:
    """Return the chunks of time, such that a work buffer holds the gates of one chunk only.

    Args:
        batch: Number of rows.
        time: Number of steps.
        single: Whether all steps are one chunk.

    Example:
        >>> time_chunks(256, 100, single=False), time_chunks(8, 100, single=False)
        ([(0, 25), (25, 50), (50, 75), (75, 100)], [(0, 100)])
    """
    shortest = time if single else max(-(-time // _CHUNKS), -(-_ROWS // batch))
    count = -(-time // min(shortest, time))
    length = -(-time // count)
    return [(start, min(start + length, time)) for start in range(0, time, length)]


@contextmanager
def on_device(device: torch.device, precision: str | None) -> Generator[str]:
    """Launch on `device`, with matrix products in `precision`, whatever autocast says.

    Yields the precision of the kernels. Products outside of them are exact where it is ``"tf32x3"``.

    Args:
        device: Device of all tensors.
        precision: Precision: ``"ieee"``, ``"tf32"``, ``"tf32x3"``; as torch's own recurrent layers if None.
    """
    with ExitStack() as entered:
        if torch.is_autocast_enabled(device.type):
            entered.enter_context(torch.autocast(device.type, enabled=False))
        if device.type != "cuda":
            yield precision or "ieee"
            return
        if device.index != torch.cuda.current_device():
            entered.enter_context(torch.cuda.device(device))
        yield entered.enter_context(_products(precision))


@contextmanager
def _products(precision: str | None) -> Generator[str]:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    of_layers: str = getattr(torch.backends.cudnn.rnn, "fp32_precision", "none")  # torch's stubs do not know it
    found = precision or ("tf32" if "tf32" in {before, of_layers} else "ieee")
    settings.fp32_precision = "tf32" if found == "tf32" else "ieee"
    try:
        yield found
    finally:
        settings.fp32_precision = "none"  # it follows `torch.backends.fp32_precision` again, if that was what it did
        if settings.fp32_precision != before:
            settings.fp32_precision = before


def rows_of(sequence: Tensor, steps: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return these steps of ``[B, T, N]`` as rows of a matrix, in the dtype of the products."""
    return sequence[:, slice(*steps)].to(dtype).reshape(-1, sequence.shape[-1])


def project(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Compute ``rows @ weight^T + bias`` into `out`."""
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)


Steps = tuple[int, int]
States = tuple[Tensor, ...]


@dataclass(frozen=True)
class Shared:
    """Data that the layers of one call share.

    Args:
        mask: Mask of the resets, bool ``[B, T]``.
        dtype: Dtype of products and gates.
        precision: Precision of products in kernels.
    """

    mask: Tensor
    dtype: torch.dtype
    precision: str


@dataclass(frozen=True)
class Gradients:
    """Tensors in which kernels and products read and write gradients of one layer, during one time chunk of n steps.

    Args:
        of_states: Gradients of the states after each step, ``[B, n, H]`` each; None is zero.
        carry: Whether the gradient of the states before the first of these steps is needed.
        of_resets: Gradients of the stored states, ``[B, n, H]`` each, written; None to skip them.
    """

    of_states: tuple[Tensor | None, ...]
    carry: bool
    of_resets: tuple[Tensor | None, ...]


class Layer(ABC):
    """One layer; see the module.

    Args:
        weights: Weights ``weight_ih``, ``weight_hh`` and, if there are any, ``bias_ih``, ``bias_hh``, as torch lays
            them out.
        first: States before the first step, ``[B, H]`` each.
        resets: Stored states, read where the mask is true, ``[B, T, H]`` each; None is zero.
        states: States after each step, ``[B, T, H]`` each.
        shared: Data that all layers share.
    """

    parts: ClassVar[int]
    """States: 2 of an LSTM, 1 of a GRU."""

    slots: ClassVar[int]
    """Of gates that are not kept in the forward pass."""

    fed: ClassVar[int]
    """Slots that the inputs feed, the first ones, and as many the states, the last ones."""

    def __init__(
        self, weights: Sequence[Tensor], first: States, resets: Sequence[Tensor | None], states: States, shared: Shared
    ) -> None:
        self.first, self.resets, self.states, self.shared = first, resets, states, shared
        self.given = weights
        self.hidden = first[0].shape[-1]
        self.weight_ih = self._in_slots(weights[0]).to(shared.dtype)
        self.weight_hh = weights[1].to(shared.dtype).contiguous()
        self._sums: dict[str, Tensor] = {}

    @abstractmethod
    def _in_slots(self, rows: Tensor) -> Tensor:
        """Rows that the inputs feed, from torch's order to that of the slots."""

    @abstractmethod
    def forward(self, gates: Tensor, steps: Steps, *, keep: bool) -> None:
        """Compute the states of these steps from what `project` left in `gates`."""

    @abstractmethod
    def project(self, rows: Tensor, gates: Tensor) -> None:
        """Write what inputs and biases add to `gates`."""

    @abstractmethod
    def add_states(self, before: Tensor, gates: Tensor) -> None:
        """Complete `gates` with what the states before each step add."""

    @abstractmethod
    def backward(self, gates: Tensor, grad: Tensor, own: Gradients, steps: Steps, *, activated: bool) -> None:
        """Write the gradients before the activations to `grad`, and carry those of the states to what came before."""

    @abstractmethod
    def bias_gradients(self) -> tuple[Tensor, Tensor]:
        """Of both biases, in torch's order."""

    # ------------------------------------------------------------------ states

    def states_before(self, steps: Steps) -> Tensor:
        """``h`` before each of these steps, ``[B, n, H]``, in the type of the products."""
        start, stop = steps
        h = self.states[0]
        before = h.new_empty(h.shape[0], stop - start, self.hidden, dtype=self.shared.dtype)
        kernels().states_before(self.first[0], h, self.shared.mask, self.resets[0], before, steps)
        return before

    # ------------------------------------------------------------------ gradients

    def begin_backward(self) -> None:
        """Nothing comes from behind the last step."""
        self.incoming = tuple(torch.zeros_like(part) for part in self.first)

    def of_input(self, grad: Tensor) -> Tensor:
        """Return the columns that belong to the inputs, as a matrix."""
        return grad.flatten(0, 1)[:, : self.fed * self.hidden]

    def of_state(self, grad: Tensor) -> Tensor:
        """Return the columns that belong to the states, as a matrix."""
        return grad.flatten(0, 1)[:, -self.fed * self.hidden :]

    def _through_weights(self, grad: Tensor, own: Gradients, start: int) -> Tensor | None:
        """Gradient of the state before step `start`, zero at resets; None if it is not needed.

        That of the reset states is added to what `own` holds.
        """
        of_resets = own.of_resets[0]
        if of_resets is None and not own.carry:
            return None
        if of_resets is None:
            product = grad[:, 0, -self.fed * self.hidden :] @ self.weight_hh
        else:
            product = (self.of_state(grad) @ self.weight_hh).view_as(of_resets)
            here = self.shared.mask[:, start : start + grad.shape[1], None]
            of_resets.add_(product.masked_fill(~here, 0.0))
            product = product[:, 0]
        return product.to(self.first[0].dtype).masked_fill(self.shared.mask[:, start, None], 0.0)

    def add_weight_gradients(self, grad: Tensor, rows: Tensor, before: Tensor | None, wanted: Sequence[bool]) -> None:
        """Add the parts of one time chunk to those gradients that are wanted, in the order of the weights."""
        if wanted[0]:
            self._add("ih", self.of_input(grad), rows)
        if wanted[1] and before is not None:
            self._add("hh", self.of_state(grad), before.flatten(0, 1))
        if any(wanted[2:]):
            part = grad.sum((0, 1), dtype=state_dtype(grad.dtype))
            self._sums["bias"] = self._sums["bias"].add_(part) if "bias" in self._sums else part

    def _add(self, name: str, left: Tensor, right: Tensor) -> None:
        found = self._sums.get(name)
        if found is None:
            self._sums[name] = torch.mm(left.t(), right).to(state_dtype(left.dtype))
        elif found.dtype == left.dtype:
            found.addmm_(left.t(), right)
        else:
            found.add_(torch.mm(left.t(), right))

    def weight_gradients(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Those that are wanted, in the types of the weights; None for the others."""
        found: list[Tensor | None] = [None] * len(self.given)
        if wanted[0]:
            found[0] = self._from_slots(self._sums["ih"])
        if wanted[1]:
            found[1] = self._sums["hh"]
        if any(wanted[2:]):
            found[2:] = self.bias_gradients()
        return [
            None if grad is None or not want else grad.to(weight.dtype)
            for weight, grad, want in zip(self.given, found, wanted, strict=True)
        ]

    def _from_slots(self, rows: Tensor) -> Tensor:
        """Invert `_in_slots`."""
        return rows

    @property
    def _bias_sum(self) -> Tensor:
        return self._sums["bias"]


@final
class LSTMLayer(Layer):
    """Slots i, f, g, o."""

    parts, slots, fed = 2, 4, 4

    def __init__(
        self, weights: Sequence[Tensor], first: States, resets: Sequence[Tensor | None], states: States, shared: Shared
    ) -> None:
        super().__init__(weights, first, resets, states, shared)
        self.bias = (weights[2] + weights[3]).to(shared.dtype) if weights[2:] else None

    def _in_slots(self, rows: Tensor) -> Tensor:
        return rows

    def project(self, rows: Tensor, gates: Tensor) -> None:
        project(rows, self.weight_ih, self.bias, gates.flatten(0, 1))

    def forward(self, gates: Tensor, steps: Steps, *, keep: bool) -> None:
        at, how = self.shared, self.shared.precision
        kernels().lstm_forward(
            gates, self.weight_hh, *self.first, at.mask, *self.resets, *self.states, steps, keep=keep, precision=how
        )

    def add_states(self, before: Tensor, gates: Tensor) -> None:
        gates.flatten(0, 1).addmm_(before.flatten(0, 1), self.weight_hh.t())

    def backward(self, gates: Tensor, grad: Tensor, own: Gradients, steps: Steps, *, activated: bool) -> None:
        _, c0 = self.first
        incoming_h, incoming_c = self.incoming
        _, of_reset_c = own.of_resets
        kernels().lstm_backward(
            gates,
            self.weight_hh,
            c0,
            self.shared.mask,
            self.resets[1],
            self.states[1],
            *own.of_states,
            incoming_h,
            incoming_c,
            grad,
            of_reset_c,
            steps,
            activated=activated,
            precision=self.shared.precision,
        )
        before = self._through_weights(grad, own, steps[0])
        self.incoming = incoming_h if before is None else before, incoming_c

    def bias_gradients(self) -> tuple[Tensor, Tensor]:
        return self._bias_sum, self._bias_sum.clone()


@final
class GRULayer(Layer):
    """Slots n, r, z, m; without m where gates are not kept in the forward pass."""

    parts, slots, fed = 1, 3, 3

    def __init__(
        self, weights: Sequence[Tensor], first: States, resets: Sequence[Tensor | None], states: States, shared: Shared
    ) -> None:
        super().__init__(weights, first, resets, states, shared)
        self.bias = self.bias_n = None
        if weights[2:]:
            r_x, z_x, n_x = weights[2].chunk(3)
            r_h, z_h, n_h = weights[3].chunk(3)
            self.bias = torch.cat((n_x, r_x + r_h, z_x + z_h)).to(shared.dtype)
            self.bias_n = n_h.to(shared.dtype).contiguous()

    def _in_slots(self, rows: Tensor) -> Tensor:
        r, z, n = rows.chunk(3)
        return torch.cat((n, r, z))

    def _from_slots(self, rows: Tensor) -> Tensor:
        n, r, z = rows.chunk(3)
        return torch.cat((r, z, n))

    def project(self, rows: Tensor, gates: Tensor) -> None:
        project(rows, self.weight_ih, self.bias, self.of_input(gates))

    def forward(self, gates: Tensor, steps: Steps, *, keep: bool) -> None:
        at, how = self.shared, self.shared.precision
        kernels().gru_forward(
            gates,
            self.weight_hh,
            self.bias_n,
            *self.first,
            at.mask,
            *self.resets,
            *self.states,
            steps,
            keep=keep,
            precision=how,
        )

    def add_states(self, before: Tensor, gates: Tensor) -> None:
        m = gates[..., 3 * self.hidden :]
        if self.bias_n is None:
            m.zero_()
        else:
            m.copy_(self.bias_n.expand_as(m))
        self.of_state(gates).addmm_(before.flatten(0, 1), self.weight_hh.t())

    def backward(self, gates: Tensor, grad: Tensor, own: Gradients, steps: Steps, *, activated: bool) -> None:
        (incoming,), (of_reset,) = self.incoming, own.of_resets
        kernels().gru_backward(
            gates,
            self.weight_hh,
            *self.first,
            self.shared.mask,
            *self.resets,
            *self.states,
            *own.of_states,
            incoming,
            grad,
            of_reset,
            steps,
            activated=activated,
            precision=self.shared.precision,
        )
        before = self._through_weights(grad, own, steps[0])
        if before is not None:
            incoming.add_(before)

    def bias_gradients(self) -> tuple[Tensor, Tensor]:
        n, r, z, m = self._bias_sum.chunk(4)
        return torch.cat((r, z, n)), torch.cat((r, z, m))
