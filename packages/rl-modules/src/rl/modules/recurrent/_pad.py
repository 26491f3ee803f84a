"""Back end ``pad``: sequences cut at resets, padded, and passed through the LSTM and GRU of torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.utils.checkpoint import checkpoint

from rl.core import RecurrentOptions
from rl.modules.recurrent._layout import (
    DEFAULTS,
    Layer,
    States,
    cell_of,
    check_plain,
    compute_type,
    layers_of,
    products,
)

_outside: Any = torch.compiler.disable(
    reason="recurrent_backend='pad' splits by data: use 'scan' or 'auto' in compiled functions"
)
_torch_rnn: Any = torch._VF  # noqa: SLF001  nn.LSTM and nn.GRU without the modules


class PadBackend:
    """Cuts rows into segments at resets, pads these to one length, and runs torch's own LSTM or GRU on them.

    Outputs equal those of `torch.nn.LSTM` and `torch.nn.GRU` up to rounding: the order in which a matrix product sums
    depends on the processor and on the shape of the batch. Torch reports the cell state of an LSTM after the last
    step only; it is computed for the others from the outputs, with one more product.
    Under `torch.compile` it runs outside of the graph. ``matmul_precision`` is the least that is allowed, and has no
    effect on a CPU.

    Example:
        >>> lstm = nn.LSTM(3, 4, batch_first=True)
        >>> x, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool)
        >>> state = torch.zeros(2, 1, 4), torch.zeros(2, 1, 4)
        >>> out, (h, c) = PadBackend()(lstm, x, state, is_init)
        >>> torch.allclose(out, lstm(x)[0])
        True
    """

    name = "pad"
    why = "torch's own LSTM and GRU"

    @_outside
    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: States,
        is_init: Tensor,
        reset_state: States | None = None,
        options: RecurrentOptions = DEFAULTS,
    ) -> tuple[Tensor, States]:
        """See `rl.core.interfaces.RecurrentBackend`."""
        check_plain(module, "the recurrent back end 'pad'")
        compute = compute_type(inputs, options)
        with products(inputs.device, options.matmul_precision):
            run = partial(_run, module, is_init, compute)
            if options.recompute == "full":
                return checkpoint(run, inputs, state, reset_state, use_reentrant=False)
            return run(inputs, state, reset_state)


@dataclass(frozen=True)
class _Segments:
    """N segments between resets, of at most L steps; segment s begins at step `start[s]` of row `row[s]`."""

    row: Tensor  # [N]
    start: Tensor  # [N]
    index: Tensor  # [N, L], index of each step in the flattened [B * T]; any index at padding
    inverse: Tensor  # [B * T], index of each step in the flattened [N * L]

    def split(self, steps: Tensor) -> Tensor:
        """Return ``[B, T, ...]`` as ``[N, L, ...]``."""
        return steps.flatten(0, 1)[self.index]

    def join(self, segments: Tensor, batch: int) -> Tensor:
        """Return ``[N, L, ...]`` as ``[B, T, ...]``."""
        return segments.flatten(0, 1)[self.inverse].unflatten(0, (batch, -1))


def _run(
    module: nn.RNNBase,
    is_init: Tensor,
    compute: torch.dtype | None,
    inputs: Tensor,
    state: States,
    reset_state: States | None,
) -> tuple[Tensor, States]:
    given, dtype = inputs.dtype, compute or inputs.dtype
    segments = _cut(is_init)
    starts = _starts(state, is_init, reset_state, segments)
    x = inputs.to(dtype)
    after: list[States] = []
    for number, layer in enumerate(layers_of(module, compute)):
        if number and module.dropout and module.training:
            x = dropout(x, module.dropout)
        first = tuple(part[:, number].to(dtype) for part in starts)
        if segments is None:
            h = _layer(module, layer, x, first)
        else:
            h = segments.join(_layer(module, layer, segments.split(x), first), len(is_init))
        after.append((h, _cells(layer, x, h, first[0], first[1], segments)) if cell_of(module) == "lstm" else (h,))
        x = h
    states = tuple(torch.stack(part, 2).to(given) for part in zip(*after, strict=True))
    return x.to(given), states


def _cut(is_init: Tensor) -> _Segments | None:
    """Find the segments of ``is_init [B, T]``; None if no row resets after its first step."""
    batch, time = is_init.shape
    starts = is_init.clone()
    starts[:, 0] = True
    row, start = starts.nonzero(as_tuple=True)
    if len(row) == batch:
        return None
    first = row * time + start  # index of the first step of each segment in [B * T]
    length = torch.diff(first, append=first.new_tensor([batch * time]))
    offsets = torch.arange(int(length.max()), device=first.device)
    index = first.unsqueeze(1) + offsets
    inverse = (offsets < length.unsqueeze(1)).flatten().nonzero().squeeze(1)  # all but padding, in order of time
    return _Segments(row, start, index.clamp_(max=batch * time - 1), inverse)


def _starts(state: States, is_init: Tensor, reset_state: States | None, segments: _Segments | None) -> States:
    """Return the state before each segment, ``[N, layers, H]`` each: the stored one where it begins with a reset."""
    if segments is None:
        restart = is_init[:, 0, None, None]
        resets = reset_state and tuple(part[:, 0] for part in reset_state)
    else:
        restart = is_init[segments.row, segments.start, None, None]
        resets = reset_state and tuple(part[segments.row, segments.start] for part in reset_state)
        state = tuple(part[segments.row] for part in state)
    if resets is None:
        return tuple(part.masked_fill(restart, 0.0) for part in state)
    return tuple(torch.where(restart, new, part) for new, part in zip(resets, state, strict=True))


def _layer(module: nn.RNNBase, layer: Layer, x: Tensor, first: States) -> Tensor:
    """Run torch's own layer on segments ``[N, L, I]``; returns the outputs ``[N, L, H]``."""
    biases = () if layer.bias_ih is None or layer.bias_hh is None else (layer.bias_ih, layer.bias_hh)
    weights = [layer.weight_ih, layer.weight_hh, *biases]
    rest = (weights, bool(biases), 1, 0.0, module.training, False, True)
    before = [part.unsqueeze(0) for part in first]
    if cell_of(module) == "lstm":
        return _torch_rnn.lstm(x, before, *rest)[0]
    return _torch_rnn.gru(x, before[0], *rest)[0]


def _cells(layer: Layer, x: Tensor, out: Tensor, h: Tensor, c: Tensor, segments: _Segments | None) -> Tensor:
    """Compute the cell state after each step ``[B, T, H]``, which torch does not return.

    The outputs h are known, so that the gates i, f and g of all steps are one product. What remains is the linear
    recurrence ``c' = f * c + i * g``.

    Args:
        layer: Weights of the layer.
        x: Inputs, ``[B, T, I]``.
        out: Outputs of torch, ``[B, T, H]``.
        h: State before each segment, ``[N, H]``.
        c: Cell state before each segment, ``[N, H]``.
        segments: Segments; None if the rows are the segments.
    """
    width, three = h.shape[-1], 3 * h.shape[-1]
    if segments is None:
        before = torch.cat((h.unsqueeze(1), out[:, :-1]), 1)
    else:
        shifted = torch.cat((out.new_zeros(len(out), 1, width), out[:, :-1]), 1)
        before = shifted.index_put((segments.row, segments.start), h)
    bias_ih, bias_hh = (None if bias is None else bias[:three] for bias in (layer.bias_ih, layer.bias_hh))
    gates = linear(x, layer.weight_ih[:three], bias_ih) + linear(before, layer.weight_hh[:three], bias_hh)
    i, f, g = gates.chunk(3, -1)
    added, kept = i.sigmoid() * g.tanh(), f.sigmoid()
    if segments is not None:  # add the initial state of each segment; no state flows in from the segment before
        at = segments.row, segments.start
        added = added.index_put(at, kept[at] * c, accumulate=True)
        kept = kept.index_put(at, kept.new_zeros(()))
        c = torch.zeros_like(out[:, 0])
    cells: list[Tensor] = []
    for new, keep in zip(added.unbind(1), kept.unbind(1), strict=True):
        c = torch.addcmul(new, keep, c)
        cells.append(c)
    return torch.stack(cells, 1)
