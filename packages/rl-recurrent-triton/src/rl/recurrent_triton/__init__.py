"""LSTM and GRU with resets inside sequences, in Triton kernels for CUDA devices."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.recurrent_triton.__about__ import __version__
    from rl.recurrent_triton._backend import TritonBackend
    from rl.recurrent_triton._device import why_not

__all__ = ["TritonBackend", "__version__", "why_not"]

__getattr__, __dir__ = lazy_exports(__name__)
