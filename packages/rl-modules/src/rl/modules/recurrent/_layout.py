"""Conversion of a batch of sequences of any shape to rows ``[B, T]``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from rl.core import RecurrentOptions
from rl.core.arguments import one_of
from rl.core.errors import BackendError, ShapeError


@dataclass(frozen=True)
class Rows:
    """Mapping between the steps of a batch and rows.

    Args:
        batch: Shape of the batch, whose last dimension is time.
        count: Number of rows.
        place: Step of the flat batch in each element of the rows, int64 ``[rows, T]``; None for a view.
        back: Element of the flattened rows that has each step of the flat batch, int64 ``[N]``.
    """

    batch: tuple[int, ...]
    count: int
    place: Tensor | None = None
    back: Tensor | None = None

    def split(self, steps: Tensor) -> Tensor:
        """``[*B, T, ...]`` to ``[rows, T, ...]``."""
        if self.place is not None:
            return steps[self.place]
        return steps.reshape(self.count, -1, *steps.shape[len(self.batch) :])

    def join(self, rows: Tensor) -> Tensor:
        """Return ``[rows, T, ...]`` as ``[*B, T, ...]``, without padding."""
        if self.back is not None:
            return rows.flatten(0, 1)[self.back]
        return rows.reshape(*self.batch, *rows.shape[2:])


def rows_of(is_init: Tensor, owner: str) -> Rows:
    """Rows of a batch ``[*B, T]``; a flat one ``[N]`` is cut where ``is_init`` is true.

    Pieces of one length become one row each, without a copy. Others are concatenated into rows as
    long as the longest, so that at most half of the computation is padding.

    Args:
        is_init: First steps of trajectories, bool ``[*B, T, 1]``.
        owner: Component that messages name.

    Raises:
        ShapeError: if there is no step.
    """
    batch = tuple(is_init.shape[:-1])
    if not batch or is_init.numel() == 0:
        raise ShapeError(
            f"{owner} is in sequence mode, where the last batch dimension is time, and got the batch {batch}: give it a"
            " batch [*B, T] with steps in it, or run single steps with set_recurrent_mode(False)"
        )
    if len(batch) > 1:
        return Rows(batch, is_init.numel() // batch[-1])
    count, place, back = _cut(is_init)
    return Rows(batch, count, place, back)


def _cut_here(is_init: Tensor) -> tuple[int, Tensor | None, Tensor | None]:
    flat = is_init.flatten()
    total = len(flat)
    starts: list[int] = [0, *(start for start in flat.nonzero().flatten().tolist() if start)]
    ends = [*starts[1:], total]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    rows = [0]
    for start, end in zip(starts, ends, strict=True):
        if end - rows[-1] > longest:
            rows.append(start)
    if rows == list(range(0, total, longest)) and total == len(rows) * longest:
        return len(rows), None, None
    first = torch.tensor([*rows, total], device=flat.device)
    offsets = torch.arange(longest, device=flat.device)
    place = first[:-1].unsqueeze(1) + offsets
    back = (offsets < first.diff().unsqueeze(1)).flatten().nonzero().squeeze(1)
    return len(rows), place.clamp_(max=total - 1), back


_cut: Any = torch.compiler.disable(
    _cut_here, reason="a flat batch [N] is cut by data: give compiled functions a batch [B, T]"
)


Concrete = Literal["ieee", "tf32", "tf32x3"]
Precision = Literal["auto", "ieee", "tf32", "tf32x3", "fast", "high-prec"]

_MEANING: dict[str, Concrete | None] = {
    "auto": None,
    "ieee": "ieee",
    "tf32": "tf32",
    "tf32x3": "tf32x3",
    "fast": "tf32",
    "high-prec": "tf32x3",
}


class _Current:
    mode: Precision = "auto"


_current = _Current()


def concrete(mode: Precision | None) -> Concrete | None:
    """Return the precision of a mode, or of the global mode if it is None; None leaves it to torch.

    Raises:
        ArgumentError: if there is no such mode.
    """
    mode = _current.mode if mode is None else mode
    if mode not in _MEANING:
        one_of(mode, "recurrent modules", "recurrent_matmul_precision", _MEANING)
    return _MEANING[mode]


def set_recurrent_matmul_precision(mode: Precision) -> None:
    """Set the least precision of matrix products in sequences, for recurrent modules that do not name one.

    A device or a back end without such products computes exact ones instead; a CPU always does.

    Args:
        mode: Precision: ``"auto"`` leaves it to torch (`torch.set_float32_matmul_precision`); ``"ieee"`` is exact;
            ``"tf32"``, or ``"fast"``, allows rounded factors on tensor cores; ``"tf32x3"``, or ``"high-prec"``, three
            such products for one, which lose a bit or two.

    Raises:
        ArgumentError: if there is no such mode.

    Example:
        >>> set_recurrent_matmul_precision("tf32")
        >>> get_recurrent_matmul_precision()
        'tf32'
        >>> set_recurrent_matmul_precision("auto")
    """
    if mode not in _MEANING:
        one_of(mode, "set_recurrent_matmul_precision", "mode", _MEANING)
    _current.mode = mode


@contextmanager
def products(device: torch.device, precision: str | None) -> Generator[None]:
    """Disable `torch.autocast`, so that states keep their dtype, and set the precision of matrix products on CUDA.

    Args:
        device: Device of the layers.
        precision: Precision: ``"tf32"``; exact products for other names; None leaves the setting of torch.
    """
    cuda = precision is not None and device.type == "cuda"
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.rnn] if cuda else []
    before = [setting.fp32_precision for setting in settings]
    autocast = torch.is_autocast_enabled(device.type)
    with torch.autocast(device.type, enabled=False) if autocast else nullcontext():
        try:
            for setting in settings:
                setting.fp32_precision = "tf32" if precision == "tf32" else "ieee"
            yield
        finally:
            for setting, old in zip(settings, before, strict=True):
                setting.fp32_precision = old


def get_recurrent_matmul_precision() -> Precision:
    """Return the mode that `set_recurrent_matmul_precision` set last; initially ``"auto"``."""
    return _current.mode


Cell = Literal["lstm", "gru"]
States = tuple[Tensor, ...]
"""h, or h and c."""
DEFAULTS = RecurrentOptions()


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, as `torch.nn.LSTM` and `GRU` lay them out; biases are None without."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None


def cell_of(module: nn.RNNBase) -> Cell:
    """``"lstm"`` or ``"gru"``, by the module's ``mode``.

    Raises:
        BackendError: if it is neither.
    """
    found = {"LSTM": "lstm", "GRU": "gru"}.get(getattr(module, "mode", ""))
    if found is None:
        raise BackendError(f"expected a recurrent module with the mode 'LSTM' or 'GRU', got {type(module).__name__}")
    return cast("Cell", found)


def check_plain(module: nn.RNNBase, owner: str) -> None:
    """Check that the back ends of this package support the module.

    Raises:
        BackendError: for both directions, a projection, or another module than an LSTM or a GRU.
    """
    cell_of(module)
    if module.bidirectional:
        raise BackendError(f"{owner} computes one direction, and the module has bidirectional=True: leave it out")
    if module.proj_size:
        raise BackendError(f"{owner} has no projections, and the module has proj_size={module.proj_size}: leave it out")


def compute_type(inputs: Tensor, options: RecurrentOptions) -> torch.dtype | None:
    """Return the dtype to compute in; None for that of weights and inputs.

    Under autocast the dtype of the inputs.
    """
    if options.compute_dtype is None and torch.is_autocast_enabled(inputs.device.type):
        return inputs.dtype
    return options.compute_dtype


def layers_of(module: nn.RNNBase, dtype: torch.dtype | None = None) -> list[Layer]:
    """Weights of each layer, converted to `dtype` if it is given.

    They are read as attributes, so that parametrized and replaced parameters work.
    """

    def weight(name: str) -> Tensor:
        found: Tensor = getattr(module, name)
        return found if dtype is None else found.to(dtype)

    return [
        Layer(
            weight(f"weight_ih_l{layer}"),
            weight(f"weight_hh_l{layer}"),
            weight(f"bias_ih_l{layer}") if module.bias else None,
            weight(f"bias_hh_l{layer}") if module.bias else None,
        )
        for layer in range(module.num_layers)
    ]
