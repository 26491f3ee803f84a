"""Back ends that compute sequences of recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.utils.checkpoint import checkpoint

from rl.core import RecurrentOptions, registry
from rl.core.backends import AUTO, NATIVE, Accelerator, Backend, missing_native, select
from rl.core.interfaces import RecurrentBackend
from rl.modules.recurrent._gru import gru_layer
from rl.modules.recurrent._kernels import TORCH, Kernels, TorchKernels, register
from rl.modules.recurrent._layout import (
    DEFAULTS,
    Cell,
    Layer,
    cell_of,
    check_plain,
    compute_type,
    get_recurrent_matmul_precision,
    layers_of,
    products,
    set_recurrent_matmul_precision,
)
from rl.modules.recurrent._lstm import lstm_layer

__all__ = ["PadBackend", "ScanBackend", "get_recurrent_matmul_precision", "set_recurrent_matmul_precision"]


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


class ScanBackend:
    """A loop over time that takes resets as they come: nothing is split or padded.

    It builds no autograd graph in the loop, computes each weight's gradient as one product, and is a single node for
    the compiler, so that `torch.compile` keeps a whole graph. It differentiates once. ``recompute="full"`` keeps only
    the states and computes all gates again in one product. ``compute_dtype`` holds for states between the steps too;
    ``matmul_precision`` is the least that is allowed, and has no effect on a CPU.

    Args:
        kernels: loops for one layer, from a package that compiles them; those in plain torch if None.

    Example:
        >>> gru = nn.GRU(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> out, (after,) = ScanBackend()(gru, x, (h,), is_init)
        >>> out.shape, after.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 5, 1, 4]))
    """

    name = "scan"

    def __init__(self, kernels: Kernels | None = None) -> None:
        if kernels is not None:
            register(kernels)
        self.kernels = TORCH if kernels is None else kernels.name
        self.why = TorchKernels.why if kernels is None else kernels.why

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
        check_plain(module, "the recurrent back end 'scan'")
        given, compute = inputs.dtype, compute_type(inputs, options)
        dtype = given if compute is None else compute
        layers = layers_of(module, compute)
        x = inputs.to(dtype).transpose(0, 1).contiguous()
        restart = is_init.t().contiguous()
        run = _lstm if cell_of(module) == "lstm" else _gru
        kept: list[States] = []
        for place, layer in enumerate(layers):
            if place and module.dropout and module.training:
                x = dropout(x, module.dropout)
            first = tuple(part[:, place].to(dtype) for part in state)
            resets = reset_state and tuple(part[:, :, place].transpose(0, 1).to(dtype) for part in reset_state)
            after = run(x, layer, first, restart, resets, options, self.kernels)
            kept.append(after)
            x = after[0]
        states = tuple(torch.stack(part, 2).transpose(0, 1) for part in zip(*kept, strict=True))
        return x.transpose(0, 1).to(given), tuple(part.to(given) for part in states)


def _lstm(
    x: Tensor,
    layer: Layer,
    first: States,
    restart: Tensor,
    resets: States | None,
    options: RecurrentOptions,
    kernels: str,
) -> States:
    bias = None if layer.bias_ih is None or layer.bias_hh is None else layer.bias_ih + layer.bias_hh
    reset_h, reset_c = resets or (None, None)
    keep, precision = options.recompute == "none", options.matmul_precision
    weights = layer.weight_ih, layer.weight_hh, bias
    h, c, _ = lstm_layer(x, *weights, *first, restart, reset_h, reset_c, keep, kernels, precision)
    return h, c


def _gru(
    x: Tensor,
    layer: Layer,
    first: States,
    restart: Tensor,
    resets: States | None,
    options: RecurrentOptions,
    kernels: str,
) -> States:
    r, z, n = layer.weight_ih.chunk(3)
    bias = None
    if layer.bias_ih is not None and layer.bias_hh is not None:
        r_x, z_x, n_x = layer.bias_ih.chunk(3)
        r_h, z_h, n_h = layer.bias_hh.chunk(3)
        bias = torch.cat((n_x, r_x + r_h, z_x + z_h, n_h))
    (reset_h,) = resets or (None,)
    keep, precision = options.recompute == "none", options.matmul_precision
    weights = torch.cat((n, r, z)), layer.weight_hh, bias
    h, _ = gru_layer(x, *weights, *first, restart, reset_h, keep, kernels, precision)
    return (h,)


_functorch: Any = torch._C._functorch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
_FEW: Final = 512  # rows times units; for fewer, calls dominate a step, and torch's layers need fewer calls
_NARROW: Final = 192  # units; for more, matrix products dominate a step
_SHORT: Final = 16  # steps; for fewer, `pad` saves nothing without gradients
_LONG: Final = 128  # steps of a single row, whose pieces between resets run in parallel
_WIDE: Final = 2048  # inputs times units; the loop of a GRU first copies weights of this size


@final
class PlainBackend:
    """``scan`` in plain torch; on a CPU ``pad`` where that was measured to be faster.

    ``pad`` is faster for small batches of an LSTM (up to 3x), for long single sequences, and for short sequences of a
    wide GRU without gradients (64 steps, 512 inputs, 512 units). Under `torch.compile` and `torch.func`, ``scan`` is
    always used: it keeps the graph whole, and torch's LSTM has no rule for ``vmap``.

    Example:
        >>> lstm = nn.LSTM(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> PlainBackend()(lstm, x, (h, h), is_init)[0].shape
        torch.Size([2, 5, 4])
    """

    name = "scan"
    kernels = TORCH
    why = (
        f"{TorchKernels.why}; on a CPU, through 'pad': an LSTM of up to {_FEW} rows times units, of at most {_NARROW}"
        f" units, or of one row of at least {_LONG} steps; a GRU without gradients, if inputs times units are at least"
        f" {_WIDE} times rows times steps"
    )

    def __init__(self) -> None:
        self._scan: Final = ScanBackend()
        self._pad: Final = PadBackend()

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
        traced = torch.compiler.is_compiling() or _functorch.peek_interpreter_stack() is not None
        plain = inputs.is_cpu and not traced and _is_quicker_padded(module, *inputs.shape)
        run = self._pad if plain else self._scan
        return run(module, inputs, state, is_init, reset_state, options)


def _is_quicker_padded(module: nn.RNNBase, rows: int, steps: int, inputs: int) -> bool:
    """Whether torch's own layer was measured to be faster than the loop."""
    units, trains = module.hidden_size, torch.is_grad_enabled()
    if not isinstance(module, nn.LSTM):
        return not trains and inputs * units >= _WIDE * rows * steps
    few = rows * units <= _FEW and units <= _NARROW
    enough = trains or steps >= max(_SHORT, rows * units // _SHORT * 2)  # the overhead of `pad` is constant
    return (few and enough) or (rows == 1 and steps >= _LONG)


_HOOK, _KIND = "rl_recurrent_backend", "recurrent_backend"
_OWN: dict[str, type[ScanBackend | PadBackend]] = {"scan": ScanBackend, "pad": PadBackend}
_ACCELERATORS = {
    "triton": Accelerator("rl-recurrent-triton", "pip install rl-recurrent-triton", "cuda"),
    "native": NATIVE,
}

Found = tuple[RecurrentBackend, Backend]


def find_backend(owner: str, cell: Cell, name: str, device: torch.device) -> Found:
    """Select a back end.

    Args:
        owner: the component that needs it, for messages.
        cell: ``"lstm"`` or ``"gru"``.
        name: name of the back end, or ``"auto"`` for the first that answers.
        device: device of weights and data.

    Raises:
        BackendError: if the back end does not answer here, or only plain torch does with ``RL_NATIVE=require``.
    """
    if name in _OWN and not is_offered(name):  # rl-modules is left out by RL_PLUGINS_DISABLE
        return _OWN[name](), Backend(name, "rl-modules", "asked for by name")
    arguments = {"cell": cell, "name": None if name == AUTO else name, "device": device}
    found, backend, _ = select(
        owner,
        _HOOK,
        arguments,
        where=f"{cell} on {device}" if name != AUTO else device.type,
        fallback="rl-modules",
        name=name,
        kind=_KIND,
        accelerators=_ACCELERATORS,
    )
    if name == AUTO and device.type == "cpu" and getattr(found, "kernels", None) == TORCH:
        backend = replace(backend, why=f"{backend.why}; {missing_native(owner, _HOOK)}")
    return found, backend


def is_offered(name: str) -> bool:
    """Whether a plugin lists a back end of that name, which may answer for another device."""
    return any(component.name == name for component in registry.default().components(_KIND))
