"""How exact the matrix products of recurrent modules are to be, for all that do not say it themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from rl.core.errors import SpecError

__all__ = [
    "Concrete",
    "Precision",
    "as_told",
    "concrete",
    "get_recurrent_matmul_precision",
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


def as_told(device: torch.device) -> AbstractContextManager[torch.autocast | None]:
    """Disable `torch.autocast`: recurrent layers compute in their own dtype, so that states keep it between steps."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def get_recurrent_matmul_precision() -> Precision:
    """The mode last set by `set_recurrent_matmul_precision`; initially ``"auto"``."""
    return _current.mode
