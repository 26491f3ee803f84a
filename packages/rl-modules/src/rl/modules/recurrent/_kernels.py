"""Loops over time of one recurrent layer, forward and backward, in plain torch.

Kernels in other languages implement `rl.core.interfaces.RecurrentKernels`, which describes the methods; those in C are
in rl-native. Sizes: T steps, B rows, H hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rl.core.errors import BackendError

if TYPE_CHECKING:
    from rl.core.interfaces import RecurrentKernels

# ruff: noqa: PLR0913, PLR0917  one argument for each buffer


TORCH = "torch"


@dataclass(frozen=True)
class Resets:
    """The n steps before which the state is replaced by a stored one, in order of time.

    Args:
        at: Positions in the flattened mask ``[T * B]``, int64 ``[n]``, ascending.
        rows: Row of the batch of each reset, int64 ``[n]``.
        starts: Offsets, ``T + 1``; the resets ``starts[t]:starts[t + 1]`` belong to step t.
        h: Stored states, ``[n, H]``.
        c: Stored cell states of an LSTM, ``[n, H]``.
    """

    at: Tensor
    rows: Tensor
    starts: list[int]
    h: Tensor
    c: Tensor | None

    def restart(self, t: int, state: Tensor, stored: Tensor) -> Tensor:
        """Return `state` ``[B, H]`` with the rows that are reset before step `t` replaced by those of `stored`."""
        here = slice(self.starts[t], self.starts[t + 1])
        return state if here.start == here.stop else state.index_copy(0, self.rows[here], stored[here])

    def cut(self, t: int, grad: Tensor, grad_stored: Tensor | None) -> None:
        """Move the gradient of the rows that are reset before step `t` from `grad` to `grad_stored`."""
        here = slice(self.starts[t], self.starts[t + 1])
        if here.start == here.stop:
            return
        rows = self.rows[here]
        if grad_stored is not None:
            grad_stored[here] = grad[rows]
        grad.index_fill_(0, rows, 0.0)


def find_resets(mask: Tensor, reset_h: Tensor | None, reset_c: Tensor | None, like: Tensor) -> Resets | None:
    """Return the resets of a sequence; None if there are none.

    Args:
        mask: Steps before which the state is reset, bool ``[T, B]``.
        reset_h: Stored states ``[T, B, H]`` of any strides, read where `mask` is true; zero if None.
        reset_c: Stored cell states, as `reset_h`.
        like: Tensor ``[B, H]`` of the dtype of the states.
    """
    at = mask.flatten().nonzero().squeeze(1)
    if not len(at):
        return None
    time, batch = mask.shape
    ends = torch.arange(time + 1, device=at.device) * batch
    starts: list[int] = torch.searchsorted(at, ends).tolist()
    rows = at % batch
    steps = at // batch

    def stored(states: Tensor | None) -> Tensor:
        return like.new_zeros(len(at), like.shape[-1]) if states is None else states[steps, rows]

    return Resets(at, rows, starts, stored(reset_h), stored(reset_c))


def states_before(first: Tensor, after: Tensor, resets: Resets | None, stored: Tensor | None) -> Tensor:
    """Return the states ``[T, B, H]`` before each step, from the first ``[B, H]`` and those after each step."""
    before = torch.cat((first.unsqueeze(0), after[:-1]))
    if resets is not None and stored is not None:
        before.flatten(0, 1).index_copy_(0, resets.at, stored)
    return before


class TorchKernels:
    """Loops in plain torch, without an autograd graph; the backward pass computes outside of its loop what it can.

    `rl.core.interfaces.RecurrentKernels` describes the methods and their arguments.
    """

    name = TORCH
    why = "loop in plain torch"

    def serves(self, dtype: torch.dtype, device: torch.device) -> bool:
        del dtype, device
        return True

    def lstm_forward(
        self, gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, resets: Resets | None, h: Tensor, c: Tensor
    ) -> None:
        width = h.shape[-1]
        transposed = _transpose(weight, *h.shape[:2])
        # Views of the gates: all four, i and f together, and each; then of one step each.
        i_f_s, g_s, o_s = gates.split((2 * width, width, width), -1)
        i_s, f_s = i_f_s.chunk(2, -1)
        views = (gates, i_f_s, g_s, o_s, i_s, f_s, h, c)
        steps = zip(*(view.unbind(0) for view in views), strict=True)
        for t, (gate, i_f, g, o, i, f, h_t, c_t) in enumerate(steps):
            if resets is not None and resets.c is not None:
                h0, c0 = resets.restart(t, h0, resets.h), resets.restart(t, c0, resets.c)
            gate.addmm_(h0, transposed)  # W_ih x + b + W_hh h
            i_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c0, out=c_t).addcmul_(i, g)  # c' = f * c + i * g
            torch.tanh(c_t, out=h_t).mul_(o)  # h' = o * tanh(c')
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
        # Derivatives of c' by i, f, g and of h' by o, before the activations, for all steps; the loop multiplies them
        # by the gradients of c' and h': d_i = dc * g * i (1 - i), d_f = dc * c * f (1 - f), d_g = dc * i * (1 - g^2),
        # d_o = dh * tanh(c') * o (1 - o).
        _sigmoid_backward(g, i, grad_input=d_i)
        _sigmoid_backward(before, f, grad_input=d_f)
        _tanh_backward(i, g, grad_input=d_g)
        _sigmoid_backward(bounded, o, grad_input=d_o)
        to_c = torch.ops.aten.tanh_backward(o, bounded)  # derivative of h' by c': o * (1 - tanh(c')^2)
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
            torch.mm(grads[t], weight, out=dh)  # gradient of h, by W_hh
            dc *= f_s[t]  # gradient of c
            if resets is not None:
                resets.cut(t, dh, grad_reset_h)
                resets.cut(t, dc, grad_reset_c)
        grad_h0.copy_(dh)
        grad_c0.copy_(dc)

    def gru_forward(self, gates: Tensor, weight: Tensor, h0: Tensor, resets: Resets | None, h: Tensor) -> None:
        width = h.shape[-1]
        transposed = _transpose(weight, *h.shape[:2])
        # Views of the slots n, r, z, m: r, z, m together, r and z together, and each; then of one step each.
        r_z_m_s, r_z_s = gates[..., width:], gates[..., width : 3 * width]
        n_s, r_s, z_s, m_s = gates.chunk(4, -1)
        steps = zip(*(view.unbind(0) for view in (r_z_m_s, r_z_s, n_s, r_s, z_s, m_s, h)), strict=True)
        for t, (r_z_m, r_z, n, r, z, m, h_t) in enumerate(steps):
            if resets is not None:
                h0 = resets.restart(t, h0, resets.h)
            r_z_m.addmm_(h0, transposed)  # + W_hh h; m is the recurrent part of n
            r_z.sigmoid_()
            n.addcmul_(r, m).tanh_()
            torch.lerp(n, h0, z, out=h_t)  # h' = (1 - z) * n + z * h
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
        # Derivatives of h' by the slots before the activations, for all steps; the loop multiplies them by the gradient
        # of h': d_z = (h - n) * z (1 - z), d_n = (1 - z) (1 - n^2), d_r = d_n * m * r (1 - r), d_m = d_n * r.
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
            dh.mul_(z_s[t]).addmm_(rzm[t], weight)  # gradient of h: by z, and by W_hh
            if resets is not None:
                resets.cut(t, dh, grad_reset_h)
        grad_h0.copy_(dh)


def _transpose(weight: Tensor, steps: int, rows: int) -> Tensor:
    """Return `weight` transposed; as a contiguous copy where the products of all steps are worth it."""
    few = rows == 2 or (rows == 1 and 4 * steps <= weight.shape[1])
    return weight.t() if few else weight.t().contiguous()


_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_known: dict[str, RecurrentKernels] = {TORCH: cast("RecurrentKernels", TorchKernels())}


def register(kernels: RecurrentKernels) -> None:
    """Register kernels by name; a compiled graph holds only the name."""
    _known[kernels.name] = kernels


def kernels_for(name: str, dtype: torch.dtype, device: torch.device) -> RecurrentKernels:
    """Return the kernels of a name, or those in torch if they do not support dtype and device.

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
