"""Back end ``pad``: the sequences between resets, padded to one length, through torch's own LSTM and GRU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.utils.checkpoint import checkpoint

from rl.core import RecurrentOptions
from rl.modules.recurrent._precision import products
from rl.modules.recurrent._weights import DEFAULTS, Layer, cell_of, check_plain, compute_type, layers_of

__all__ = ["PadBackend"]

States = tuple[Tensor, ...]
_outside: Any = torch.compiler.disable(
    reason="recurrent_backend='pad' splits by data: use 'scan' or 'auto' in compiled functions"
)
_torch_rnn: Any = torch._VF  # noqa: SLF001  nn.LSTM and nn.GRU without the modules


@dataclass(frozen=True)
class _Pieces:
    """Where rows are cut at resets: piece p is `length[p]` steps of row `row[p]`, from step `start[p]` on."""

    row: Tensor
    start: Tensor
    place: Tensor  # [pieces, longest], steps in the flattened [B, T]; any step at padding
    back: Tensor  # [B * T], where each step is in the flattened `place`

    def split(self, steps: Tensor) -> Tensor:
        """``[B, T, ...]`` to ``[pieces, longest, ...]``."""
        return steps.flatten(0, 1)[self.place]

    def join(self, pieces: Tensor, batch: int) -> Tensor:
        """The inverse of `split`."""
        return pieces.flatten(0, 1)[self.back].unflatten(0, (batch, -1))


class PadBackend:
    """Cuts rows at resets, pads the pieces to one length, and runs torch's own LSTM or GRU on them.

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


def _run(
    module: nn.RNNBase,
    is_init: Tensor,
    compute: torch.dtype | None,
    inputs: Tensor,
    state: States,
    reset_state: States | None,
) -> tuple[Tensor, States]:
    given, dtype = inputs.dtype, compute or inputs.dtype
    pieces = _cut(is_init)
    starts = _starts(state, is_init, reset_state, pieces)
    x = inputs.to(dtype)
    kept: list[States] = []
    for place, layer in enumerate(layers_of(module, compute)):
        if place and module.dropout and module.training:
            x = dropout(x, module.dropout)
        first = tuple(part[:, place].to(dtype) for part in starts)
        if pieces is None:
            h = _layer(module, layer, x, first)
        else:
            h = pieces.join(_layer(module, layer, pieces.split(x), first), len(is_init))
        kept.append((h, _cells(layer, x, h, first[0], first[1], pieces)) if cell_of(module) == "lstm" else (h,))
        x = h
    states = tuple(torch.stack(part, 2).to(given) for part in zip(*kept, strict=True))
    return x.to(given), states


def _cut(is_init: Tensor) -> _Pieces | None:
    """None if no row resets after its first step."""
    batch, time = is_init.shape
    starts = is_init.clone()
    starts[:, 0] = True
    row, start = starts.nonzero(as_tuple=True)
    if len(row) == batch:
        return None
    at = row * time + start
    length = torch.diff(at, append=at.new_tensor([batch * time]))
    longest = int(length.max())
    offsets = torch.arange(longest, device=at.device)
    place = at.unsqueeze(1) + offsets
    back = (offsets < length.unsqueeze(1)).flatten().nonzero().squeeze(1)
    return _Pieces(row, start, place.clamp_(max=batch * time - 1), back)


def _starts(state: States, is_init: Tensor, reset_state: States | None, pieces: _Pieces | None) -> States:
    """The state before each piece, ``[pieces, layers, H]`` each."""
    if pieces is None:
        restart = is_init[:, 0, None, None]
        resets = reset_state and tuple(part[:, 0] for part in reset_state)
    else:
        restart = is_init[pieces.row, pieces.start, None, None]
        resets = reset_state and tuple(part[pieces.row, pieces.start] for part in reset_state)
        state = tuple(part[pieces.row] for part in state)
    if resets is None:
        return tuple(part.masked_fill(restart, 0.0) for part in state)
    return tuple(torch.where(restart, new, part) for new, part in zip(resets, state, strict=True))


def _layer(module: nn.RNNBase, layer: Layer, x: Tensor, first: States) -> Tensor:
    """Outputs ``[pieces, longest, H]``."""
    biases = () if layer.bias_ih is None or layer.bias_hh is None else (layer.bias_ih, layer.bias_hh)
    weights = [layer.weight_ih, layer.weight_hh, *biases]
    rest = (weights, bool(biases), 1, 0.0, module.training, False, True)
    before = [part.unsqueeze(0) for part in first]
    if cell_of(module) == "lstm":
        return _torch_rnn.lstm(x, before, *rest)[0]
    return _torch_rnn.gru(x, before[0], *rest)[0]


def _cells(layer: Layer, x: Tensor, out: Tensor, h: Tensor, c: Tensor, pieces: _Pieces | None) -> Tensor:
    """The cell state after each step, which torch does not return: from the gates i, f and g, which depend on h only.

    Args:
        layer: the weights.
        x: ``[B, T, I]``.
        out: ``[B, T, H]``, outputs of torch.
        h: before each piece, ``[pieces, H]``.
        c: the same.
        pieces: the rows themselves if None.
    """
    width, three = h.shape[-1], 3 * h.shape[-1]
    if pieces is None:
        before = torch.cat((h.unsqueeze(1), out[:, :-1]), 1)
    else:
        shifted = torch.cat((out.new_zeros(len(out), 1, width), out[:, :-1]), 1)
        before = shifted.index_put((pieces.row, pieces.start), h)
    bias_ih, bias_hh = (None if bias is None else bias[:three] for bias in (layer.bias_ih, layer.bias_hh))
    gates = linear(x, layer.weight_ih[:three], bias_ih) + linear(before, layer.weight_hh[:three], bias_hh)
    i, f, g = gates.chunk(3, -1)
    added, kept = i.sigmoid() * g.tanh(), f.sigmoid()
    if pieces is not None:  # the initial state of a piece is an addend, and the piece before has no effect
        at = pieces.row, pieces.start
        added = added.index_put(at, kept[at] * c, accumulate=True)
        kept = kept.index_put(at, kept.new_zeros(()))
        c = torch.zeros_like(out[:, 0])
    cells: list[Tensor] = []
    for new, keep in zip(added.unbind(1), kept.unbind(1), strict=True):
        c = torch.addcmul(new, keep, c)
        cells.append(c)
    return torch.stack(cells, 1)
