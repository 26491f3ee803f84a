"""Precision of the matrix products of recurrent modules."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

from rl.core.errors import SpecError

__all__ = [
    "Concrete",
    "Precision",
    "concrete",
    "get_recurrent_matmul_precision",
    "products",
    "set_recurrent_matmul_precision",
]

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
    """The precision of a mode, or of the global mode if it is None; None leaves it to torch.

    Raises:
        SpecError: if there is no such mode.
    """
    mode = _current.mode if mode is None else mode
    if mode not in _MEANING:
        raise SpecError(f"recurrent_matmul_precision is one of {', '.join(_MEANING)}, got {mode!r}")
    return _MEANING[mode]


def set_recurrent_matmul_precision(mode: Precision) -> None:
    """Set the least precision of matrix products in sequences, for recurrent modules that do not name one.

    A device or a back end without such products computes exact ones instead; a CPU always does.

    Args:
        mode: ``"auto"`` leaves it to torch (`torch.set_float32_matmul_precision`); ``"ieee"`` is exact; ``"tf32"``, or
            ``"fast"``, allows rounded factors on tensor cores; ``"tf32x3"``, or ``"high-prec"``, three such products
            for one, which lose a bit or two.

    Raises:
        SpecError: if there is no such mode.

    Example:
        >>> set_recurrent_matmul_precision("tf32")
        >>> get_recurrent_matmul_precision()
        'tf32'
        >>> set_recurrent_matmul_precision("auto")
    """
    if mode not in _MEANING:
        raise SpecError(f"set_recurrent_matmul_precision takes one of {', '.join(_MEANING)}, got {mode!r}")
    _current.mode = mode


@contextmanager
def products(device: torch.device, precision: str | None) -> Generator[None]:
    """Disable `torch.autocast`, so that states keep their dtype, and set the precision of matrix products on CUDA.

    Args:
        device: device of the layers.
        precision: ``"tf32"``; exact products for other names; None leaves the setting of torch.
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
    """The mode last set by `set_recurrent_matmul_precision`; initially ``"auto"``."""
    return _current.mode
