"""Back ends that compute sequences of recurrent layers, and their selection.

`LSTMModule` and `GRUModule` call `find_backend` when they are built or moved; ``module.backend`` reports the result.

| device | installed | back end | loop over time |
|---|---|---|---|
| CPU | rl-native | `ScanBackend` | C: `kernels` are ``NativeKernels`` of ``rl/native/_recurrent.py`` |
| CPU | without | `PlainBackend` | torch's layers (`PadBackend`) at sizes where they are faster; else ``TorchKernels`` |
| CUDA | rl-recurrent-triton | ``TritonBackend`` | Triton: ``rl/recurrent_triton/_kernels/`` |
| others | | `PlainBackend` | ``TorchKernels`` of ``_kernels.py`` |

A forward pass calls ``LSTMModule.forward``, `ScanBackend.__call__`, the operator ``lstm_layer`` of ``_operators.py``,
and ``lstm_forward`` of the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from rl.core import RecurrentOptions, registry
from rl.core.backends import AUTO, NATIVE, Accelerator, Backend, missing_native, select
from rl.core.interfaces import RecurrentBackend
from rl.modules.recurrent._kernels import TORCH, TorchKernels, register
from rl.modules.recurrent._layout import DEFAULTS, Cell, Layer, States, cell_of, check_plain, compute_type, layers_of
from rl.modules.recurrent._operators import gru_layer, lstm_layer
from rl.modules.recurrent._pad import PadBackend

if TYPE_CHECKING:
    from rl.core.interfaces import RecurrentKernels

_HOOK, _KIND = "rl_recurrent_backend", "recurrent_backend"
_ACCELERATORS = {
    "triton": Accelerator("rl-recurrent-triton", "pip install rl-recurrent-triton", "cuda"),
    "native": NATIVE,
}

Found = tuple[RecurrentBackend, Backend]


def find_backend(owner: str, cell: Cell, name: str, device: torch.device) -> Found:
    """Select a back end: the first that a plugin returns for the hook ``rl_recurrent_backend``, or that of a name.

    Args:
        owner: Component that messages name.
        cell: Kind of the layers, ``"lstm"`` or ``"gru"``.
        name: Name of the back end, or ``"auto"`` for the first.
        device: Device of weights and data.

    Raises:
        BackendError: if the back end does not answer here, or only plain torch does with ``RL_NATIVE=require``.
    """
    own = {"scan": ScanBackend, "pad": PadBackend}
    if name in own and not is_offered(name):  # rl-modules is left out by RL_PLUGINS_DISABLE
        return own[name](), Backend(name, "rl-modules", "asked for by name")
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


_functorch: Any = torch._C._functorch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
_FEW: Final = 512  # rows times units; for fewer, calls dominate a step, and torch's layers need fewer calls
_NARROW: Final = 192  # units; for more, matrix products dominate a step
_SHORT: Final = 16  # steps; for fewer, `pad` saves nothing without gradients
_LONG: Final = 128  # steps of a single row, whose segments between resets run in parallel
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


class ScanBackend:
    """A loop over time that takes resets as they come: nothing is split or padded.

    It builds no autograd graph in the loop, computes each weight's gradient as one product, and is a single node for
    the compiler, so that `torch.compile` keeps one graph. It differentiates once. ``recompute="full"`` keeps only
    the states and computes all gates again in one product. ``compute_dtype`` holds for states between the steps too;
    ``matmul_precision`` is the least that is allowed, and has no effect on a CPU.

    Args:
        kernels: Loops over time of one layer, as rl-native has them in C; those in plain torch if None.

    Example:
        >>> gru = nn.GRU(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> out, (after,) = ScanBackend()(gru, x, (h,), is_init)
        >>> out.shape, after.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 5, 1, 4]))
    """

    name = "scan"

    def __init__(self, kernels: RecurrentKernels | None = None) -> None:
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
        x = inputs.to(dtype).transpose(0, 1).contiguous()  # [T, B, I]
        restart = is_init.t().contiguous()
        run = _lstm if cell_of(module) == "lstm" else _gru
        after: list[States] = []  # of each layer, [T, B, H]
        for number, layer in enumerate(layers):
            if number and module.dropout and module.training:
                x = dropout(x, module.dropout)
            first = tuple(part[:, number].to(dtype) for part in state)
            resets = reset_state and tuple(part[:, :, number].transpose(0, 1).to(dtype) for part in reset_state)
            after.append(run(x, layer, first, restart, resets, options, self.kernels))
            x = after[-1][0]
        states = tuple(torch.stack(part, 2).transpose(0, 1) for part in zip(*after, strict=True))
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
    r, z, n = layer.weight_ih.chunk(3)  # torch's order; that of the operator is n, r, z, m
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
