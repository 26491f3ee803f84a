"""Kernels of one recurrent layer, forward and backward: the protocol, and the implementation in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rl.core.errors import BackendError

# ruff: noqa: PLR0913, PLR0917  one argument for each buffer


TORCH = "torch"


@dataclass(frozen=True)
class Resets:
    """Steps at which the state is replaced by a given one.

    Args:
        mask: bool ``[T, B]``.
        at: int64 ``[n]``, places in the flattened `mask`, ascending.
        rows: int64 ``[n]``, the row of the batch of each.
        starts: ``T + 1`` numbers; ``starts[t]:starts[t + 1]`` of the others belong to step t.
        h: ``[n, H]``, the states given.
        c: ``[n, H]``, for an LSTM.
    """

    mask: Tensor
    at: Tensor
    rows: Tensor
    starts: list[int]
    h: Tensor
    c: Tensor | None

    def before(self, t: int, state: Tensor, given: Tensor) -> Tensor:
        """`state` ``[B, H]`` with the rows that restart at step `t` replaced by those of `given`."""
        here = slice(self.starts[t], self.starts[t + 1])
        return state if here.start == here.stop else state.index_copy(0, self.rows[here], given[here])

    def cut(self, t: int, grad: Tensor, grad_given: Tensor | None) -> None:
        """Move the gradient of the rows that restart at step `t` from `grad` to `grad_given`."""
        here = slice(self.starts[t], self.starts[t + 1])
        if here.start == here.stop:
            return
        rows = self.rows[here]
        if grad_given is not None:
            grad_given[here] = grad[rows]
        grad.index_fill_(0, rows, 0.0)


def find_resets(mask: Tensor, reset_h: Tensor | None, reset_c: Tensor | None, like: Tensor) -> Resets | None:
    """Where `mask` is true, and the states ``[T, B, H]`` given there, zero if None; None if it is nowhere true.

    Args:
        mask: bool ``[T, B]``.
        reset_h: with any strides.
        reset_c: the same.
        like: of the width and type of the states; ``[B, H]``.
    """
    at = mask.flatten().nonzero().squeeze(1)
    if not len(at):
        return None
    time, batch = mask.shape
    ends = torch.arange(time + 1, device=at.device) * batch
    starts: list[int] = torch.searchsorted(at, ends).tolist()
    rows = at % batch
    steps = at // batch

    def given(states: Tensor | None) -> Tensor:
        return like.new_zeros(len(at), like.shape[-1]) if states is None else states[steps, rows]

    return Resets(mask, at, rows, starts, given(reset_h), given(reset_c))


class Kernels(Protocol):
    """Loops over time of one layer. Tensors are contiguous, of one type, and written in full by the callee.

    Sizes: T steps, B rows, H hidden. `resets` is None if there are none.
    """

    name: str
    why: str

    def serves(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether dtype and device are supported; otherwise the kernels in torch run."""
        ...

    def lstm_forward(
        self, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, resets: Resets | None, h: Tensor, c: Tensor
    ) -> None:
        """Write the states after each step to `h` and `c` ``[T, B, H]``, activated gates over `gates`.

        Args:
            gates: ``[T, B, 4H]``, slots i, f, g, o, from inputs and biases.
            weight: ``[4H, H]``, recurrent.
            h0: ``[B, H]``.
            c0: ``[B, H]``.
            resets: see `Resets`.
            h: written.
            c: written.
        """
        ...

    def lstm_backward(
        self,
        gates: Tensor,
        weight: Tensor,
        c0: Tensor,
        c: Tensor,
        resets: Resets | None,
        grad_h: Tensor,
        grad_c: Tensor | None,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_c0: Tensor,
        grad_reset_h: Tensor | None,
        grad_reset_c: Tensor | None,
    ) -> None:
        """Write the gradients before the activations to `grad_gates`, and those of all states that were given."""
        ...

    def gru_forward(self, gates: Tensor, weight: Tensor, h0: Tensor, resets: Resets | None, h: Tensor) -> None:
        """Write the states after each step to `h` ``[T, B, H]``.

        Args:
            gates: ``[T, B, 4H]``, slots n, r, z, m; n, r, z from inputs and biases, m the bias of the recurrent part of
                n. Afterwards n, r, z activated and m the whole recurrent part of n.
            weight: ``[3H, H]``, recurrent, for r, z, m.
            h0: ``[B, H]``.
            resets: see `Resets`.
            h: written.
        """
        ...

    def gru_backward(
        self,
        gates: Tensor,
        weight: Tensor,
        h0: Tensor,
        h: Tensor,
        resets: Resets | None,
        grad_h: Tensor,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_reset_h: Tensor | None,
    ) -> None:
        """Write the gradients of the slots before the activations to `grad_gates`, and those of the given states."""
        ...


def states_before(first: Tensor, after: Tensor, resets: Resets | None, given: Tensor | None) -> Tensor:
    """The states ``[T, B, H]`` before each step, from those after each."""
    before = torch.cat((first.unsqueeze(0), after[:-1]))
    if resets is not None and given is not None:
        before.flatten(0, 1).index_copy_(0, resets.at, given)
    return before


class TorchKernels:
    """Kernels in plain torch, without an autograd graph; the backward pass batches over steps what it can."""

    name = TORCH
    why = "loop in plain torch"

    def serves(self, dtype: torch.dtype, device: torch.device) -> bool:
        del dtype, device
        return True

    def lstm_forward(
        self, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, resets: Resets | None, h: Tensor, c: Tensor
    ) -> None:
        width = h.shape[-1]
        across = _across(weight, *h.shape[:2])
        first, middle, last = gates.split((2 * width, width, width), -1)
        i_s, f_s = first.chunk(2, -1)
        slots = (gates, first, middle, last, i_s, f_s, h, c)
        rows = zip(*(slot.unbind(0) for slot in slots), strict=True)
        for t, (gate, i_f, g, o, i, f, h_t, c_t) in enumerate(rows):
            if resets is not None and resets.c is not None:
                h0, c0 = resets.before(t, h0, resets.h), resets.before(t, c0, resets.c)
            gate.addmm_(h0, across)
            i_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c0, out=c_t).addcmul_(i, g)
            torch.tanh(c_t, out=h_t).mul_(o)
            h0, c0 = h_t, c_t

    def lstm_backward(
        self,
        gates: Tensor,
        weight: Tensor,
        c0: Tensor,
        c: Tensor,
        resets: Resets | None,
        grad_h: Tensor,
        grad_c: Tensor | None,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_c0: Tensor,
        grad_reset_h: Tensor | None,
        grad_reset_c: Tensor | None,
    ) -> None:
        i, f, g, o = gates.chunk(4, -1)
        d_i, d_f, d_g, d_o = grad_gates.chunk(4, -1)
        before = states_before(c0, c, resets, resets and resets.c)
        bounded = c.tanh()
        # Per unit of the gradient of c for i, f, g, of h for o; the loop multiplies.
        _sigmoid_backward(g, i, grad_input=d_i)
        _sigmoid_backward(before, f, grad_input=d_f)
        _tanh_backward(i, g, grad_input=d_g)
        _sigmoid_backward(bounded, o, grad_input=d_o)
        to_c = torch.ops.aten.tanh_backward(o, bounded)
        d_ifg, f_s = grad_gates.unflatten(-1, (4, -1))[:, :, :3].unbind(0), f.unbind(0)
        grads, d_os, to_cs, grad_hs = grad_gates.unbind(0), d_o.unbind(0), to_c.unbind(0), grad_h.unbind(0)
        dh, dc = torch.zeros_like(c0), torch.zeros_like(c0)
        for t in range(len(grads) - 1, -1, -1):
            dh += grad_hs[t]
            if grad_c is not None:
                dc += grad_c[t]
            dc.addcmul_(dh, to_cs[t])
            d_ifg[t].mul_(dc.unsqueeze(1))
            d_os[t].mul_(dh)
            torch.mm(grads[t], weight, out=dh)
            dc *= f_s[t]
            if resets is not None:
                resets.cut(t, dh, grad_reset_h)
                resets.cut(t, dc, grad_reset_c)
        grad_h0.copy_(dh)
        grad_c0.copy_(dc)

    def gru_forward(self, gates: Tensor, weight: Tensor, h0: Tensor, resets: Resets | None, h: Tensor) -> None:
        width = h.shape[-1]
        across = _across(weight, *h.shape[:2])
        rest, both = gates[..., width:], gates[..., width : 3 * width]
        n_s, r_s, z_s, m_s = gates.chunk(4, -1)
        rows = zip(*(slot.unbind(0) for slot in (rest, both, n_s, r_s, z_s, m_s, h)), strict=True)
        for t, (rzm, r_z, n, r, z, m, h_t) in enumerate(rows):
            if resets is not None:
                h0 = resets.before(t, h0, resets.h)
            rzm.addmm_(h0, across)
            r_z.sigmoid_()
            n.addcmul_(r, m).tanh_()
            torch.lerp(n, h0, z, out=h_t)
            h0 = h_t

    def gru_backward(
        self,
        gates: Tensor,
        weight: Tensor,
        h0: Tensor,
        h: Tensor,
        resets: Resets | None,
        grad_h: Tensor,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_reset_h: Tensor | None,
    ) -> None:
        n, r, z, m = gates.chunk(4, -1)
        d_n, d_r, d_z, d_m = grad_gates.chunk(4, -1)
        before = states_before(h0, h, resets, resets and resets.h)
        # Per unit of the gradient of h; the loop multiplies.
        _sigmoid_backward(before.sub_(n), z, grad_input=d_z)
        _tanh_backward(1 - z, n, grad_input=d_n)
        _sigmoid_backward(d_n * m, r, grad_input=d_r)
        torch.mul(d_n, r, out=d_m)
        slots, rzm = grad_gates.unflatten(-1, (4, -1)).unbind(0), grad_gates[..., h.shape[-1] :].unbind(0)
        z_s, grad_hs = z.unbind(0), grad_h.unbind(0)
        dh = torch.zeros_like(h0)
        for t in range(len(slots) - 1, -1, -1):
            dh += grad_hs[t]
            slots[t].mul_(dh.unsqueeze(1))
            dh.mul_(z_s[t]).addmm_(rzm[t], weight)
            if resets is not None:
                resets.cut(t, dh, grad_reset_h)
        grad_h0.copy_(dh)


def _across(weight: Tensor, steps: int, rows: int) -> Tensor:
    """`weight` transposed, contiguous for larger products."""
    few = rows == 2 or (rows == 1 and 4 * steps <= weight.shape[1])
    return weight.t() if few else weight.t().contiguous()


_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_known: dict[str, Kernels] = {TORCH: TorchKernels()}


def register(kernels: Kernels) -> None:
    """Register kernels by name; a compiled graph holds only the name."""
    _known[kernels.name] = kernels


def kernels_for(name: str, dtype: torch.dtype, device: torch.device) -> Kernels:
    """The kernels of a name, or those in torch if they do not support dtype and device.

    Raises:
        BackendError: if the name is not registered in this process.
    """
    found = _known.get(name)
    if found is None:
        raise BackendError(
            f"this process has no recurrent kernels {name!r} (known: {', '.join(_known)}): build the recurrent module,"
            " which registers them, before a function compiled with it runs"
        )
    return found if found.serves(dtype, device) else _known[TORCH]
