"""Back end ``triton``: LSTM and GRU kernels for CUDA devices, with resets inside sequences."""

from __future__ import annotations

from typing import Literal, NoReturn, cast, final

import torch
from torch import Tensor, nn

from rl.core import RecurrentOptions
from rl.core.backends import report_missing
from rl.core.errors import BackendError
from rl.recurrent_triton._compute import How
from rl.recurrent_triton._device import is_interpreted, said, unfit, why_not
from rl.recurrent_triton._layers import GRULayer, Layer, LSTMLayer
from rl.recurrent_triton._ops import gru, lstm, run
from rl.recurrent_triton._validation import OWNER, check_arguments, check_options, check_plain_tensors

States = tuple[Tensor, ...]
Cell = Literal["lstm", "gru"]

_DEFAULTS = RecurrentOptions()
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LAYERS: dict[Cell, type[Layer]] = {"lstm": LSTMLayer, "gru": GRULayer}
_PLAIN = (Tensor, nn.Parameter)  # others, as those of torch's compiler, know operators only


@final
class TritonBackend:
    """LSTM and GRU in Triton kernels: the state restarts inside a sequence, and nothing is split, padded or waited for.

    All layers of a module are one operator: a compiled function keeps one graph, and a CUDA graph can hold it. It
    differentiates once. Products are of ``compute_dtype``, sums and states of float32. ``recompute="full"`` keeps only
    the states, and computes gates again in time chunks; it takes a third of the memory. ``matmul_precision`` is that
    of all products in float32: ``"ieee"`` is exact and slow, as it takes no tensor cores, ``"tf32x3"`` nearly exact;
    products outside of the recurrence are exact with it. `torch.autocast` has no effect.

    A call raises `ShapeError` or `ArgumentError` for arguments that do not fit the module, before it computes.

    Raises:
        BackendError: if Triton is not installed, or is switched off with ``RL_NATIVE=off``.

    Example:
        >>> from rl.recurrent_triton import TritonBackend, why_not
        >>> gru = nn.GRU(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> if not why_not("cuda"):
        ...     x, h, is_init = x.cuda(), h.cuda(), is_init.cuda()
        ...     out, (after,) = TritonBackend()(gru.cuda(), x, (h,), is_init)
    """

    name = "triton"

    def __init__(self) -> None:
        self.why = said()

    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: States,
        is_init: Tensor,
        reset_state: States | None = None,
        options: RecurrentOptions = _DEFAULTS,
    ) -> tuple[Tensor, States]:
        """See `rl.core.interfaces.RecurrentBackend`."""
        cell = _require_plain(module)
        check_options(options)
        weights = _weights(module)
        check_arguments(cell, inputs, weights, 4 if module.bias else 2, state, is_init, reset_state)
        tensors = (inputs, *state, is_init, *(reset_state or ()))
        _require_one_device(inputs.device, tensors, weights)
        dtype = _require_dtype(options.compute_dtype or inputs.dtype, inputs.device)
        resets = reset_state or (None,) * _LAYERS[cell].parts
        differentiated = _is_differentiated(tensors, weights)
        keep, precision = differentiated and options.recompute == "none", options.matmul_precision
        rest = *state, is_init, *resets
        if torch.compiler.is_compiling() or type(inputs) not in _PLAIN:
            operator = lstm if cell == "lstm" else gru
            *states, _ = operator(inputs, weights, module.bias, *rest, dtype, keep, precision)
        else:
            check_plain_tensors((*tensors, *weights))
            how = How(_LAYERS[cell], module.bias, dtype, keep, precision)
            states = run(how, inputs, weights, rest, differentiated=differentiated)
        after = tuple(part.to(inputs.dtype) for part in states)
        h = after[0]
        last = h.squeeze(0) if len(h) == 1 else h[-1]  # the gradient of a choice is a copy
        # Writing to outputs in place must not change states. With gradients, autograd finds that out and raises.
        last = last if differentiated else last.clone()
        return last, tuple(part.permute(1, 2, 0, 3) for part in after)


def _require_plain(module: nn.RNNBase) -> Cell:
    """Return the cell of a module that the kernels support.

    Raises:
        BackendError: for another one.
    """
    cell = {"LSTM": "lstm", "GRU": "gru"}.get(getattr(module, "mode", ""))
    if cell is None:
        raise BackendError(
            f"{OWNER} expects a recurrent module with the mode 'LSTM' or 'GRU', got {type(module).__name__}"
        )
    if not getattr(module, "batch_first", True):
        _unsupported("takes batches first, [B, T, input_size]", "batch_first=False: create it with batch_first=True")
    if module.bidirectional:
        _unsupported("computes one direction", "bidirectional=True: leave it out")
    if module.proj_size:
        _unsupported("has no projections", f"proj_size={module.proj_size}: leave it out")
    if module.dropout and module.training and module.num_layers > 1:
        _unsupported(
            "computes all layers at once, without dropout between them",
            f"dropout={module.dropout} in training: leave it out, or take the recurrent back end 'scan' or 'pad'",
        )
    return cast("Cell", cell)


def _unsupported(what: str, found: str) -> NoReturn:
    raise BackendError(f"{OWNER} {what}, and the module has {found}")


def _require_one_device(device: torch.device, tensors: tuple[Tensor, ...], weights: list[Tensor]) -> None:
    if any(tensor.device != device for tensor in (*tensors, *weights)):
        found = ", ".join(sorted({str(tensor.device) for tensor in (*tensors, *weights)}))
        raise BackendError(f"{OWNER} computes on one device, and weights and data are on {found}: move them with .to()")
    if not torch.compiler.is_compiling():  # it reads what is not of this call; a compiled function was run before
        reason = unfit(device)
        if reason:
            raise BackendError(f"{OWNER}: {reason}")


def _require_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    if dtype in _DTYPES or (dtype is torch.float64 and device.type == "cpu"):  # Triton's interpreter
        return dtype
    raise BackendError(
        f"{OWNER} computes in {', '.join(map(str, _DTYPES))}, not in {dtype}: set compute_dtype"
        " (recurrent_compute_dtype of a module), or take the recurrent back end 'scan'"
    )


def _is_differentiated(tensors: tuple[Tensor, ...], weights: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tensors, *weights))


def _weights(module: nn.RNNBase) -> list[Tensor]:
    """By layer, in torch's order; what stands under these names counts, also where it was exchanged."""
    names = ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ())]
    return [getattr(module, f"{name}_l{layer}") for layer in range(module.num_layers) for name in names]


def backend_for(device: torch.device, *, by_name: bool) -> TritonBackend | None:
    """Return the back end if its kernels run on `device`; else None, with a warning for a CUDA device.

    There is no warning if torch sees no GPU, for a CPU, and with ``RL_NATIVE=off``.

    Args:
        device: Device of weights and data.
        by_name: Whether the caller named this back end.

    Raises:
        BackendError: if named, and unusable on a CUDA device, or on a CPU under Triton's interpreter.
        RLError: if ``RL_NATIVE`` is ``require``.
    """
    import torch

    reason = why_not(device)
    if not reason:
        return TritonBackend()
    if by_name and (device.type == "cuda" or is_interpreted()):
        raise BackendError(f"the recurrent back end 'triton': {reason}")
    if device.type == "cuda" and torch.cuda.is_available():
        report_missing(reason, "Another back end is used instead, which is much slower")
    return None
