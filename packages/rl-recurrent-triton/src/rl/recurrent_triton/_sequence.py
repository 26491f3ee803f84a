"""Shared by both cells: time pieces, and dtype and precision of matrix products."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["kernels", "on_device", "pieces", "project", "rows_of", "state_dtype"]

_ROWS = 4096
"""Rows of a product below which pieces of time gain nothing: products would be too small for the device."""

_PIECES = 4
"""At most; the work buffer of gates is then as large as the states of an LSTM are, in two."""


@cache
def kernels() -> Any:
    """The module that launches the kernels; Triton is imported with it, at first use."""
    from rl.recurrent_triton import _launch

    return _launch


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of states and sums, where products and gates are of `dtype`."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def pieces(batch: int, time: int, *, whole: bool) -> list[tuple[int, int]]:
    """Where time is cut, so that a work buffer holds the gates of one piece only.

    Args:
        batch: rows.
        time: steps.
        whole: in one piece.

    Example:
        >>> pieces(256, 100, whole=False), pieces(8, 100, whole=False)
        ([(0, 25), (25, 50), (50, 75), (75, 100)], [(0, 100)])
    """
    shortest = time if whole else max(-(-time // _PIECES), -(-_ROWS // batch))
    count = -(-time // min(shortest, time))
    length = -(-time // count)
    return [(start, min(start + length, time)) for start in range(0, time, length)]


@contextmanager
def on_device(device: torch.device, precision: str | None) -> Generator[str]:
    """Launch on `device`, with matrix products in `precision`, whatever autocast says.

    Gives the precision for the kernels. Products outside of them are exact where it is ``"tf32x3"``.

    Args:
        device: of all tensors.
        precision: ``"ieee"``, ``"tf32"``, ``"tf32x3"``; as torch's own recurrent layers if None.
    """
    with ExitStack() as entered:
        if torch.is_autocast_enabled(device.type):
            entered.enter_context(torch.autocast(device.type, enabled=False))
        if device.type != "cuda":
            yield precision or "ieee"
            return
        if device.index != torch.cuda.current_device():
            entered.enter_context(torch.cuda.device(device))
        yield entered.enter_context(_products(precision))


@contextmanager
def _products(precision: str | None) -> Generator[str]:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    of_layers: str = getattr(torch.backends.cudnn.rnn, "fp32_precision", "none")  # torch's stubs do not know it
    found = precision or ("tf32" if "tf32" in {before, of_layers} else "ieee")
    settings.fp32_precision = "tf32" if found == "tf32" else "ieee"
    try:
        yield found
    finally:
        settings.fp32_precision = "none"  # it follows `torch.backends.fp32_precision` again, if that was what it did
        if settings.fp32_precision != before:
            settings.fp32_precision = before


def rows_of(sequence: Tensor, steps: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """These steps of ``[B, T, N]`` as rows of a matrix, in the type of the products."""
    return sequence[:, slice(*steps)].to(dtype).reshape(-1, sequence.shape[-1])


def project(rows: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """``rows @ weight^T + bias`` into `out`."""
    if bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)
