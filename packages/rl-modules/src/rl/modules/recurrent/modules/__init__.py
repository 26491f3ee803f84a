"""Recurrent modules on TensorDicts."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.modules.recurrent.modules._modules import GRUModule, LSTMModule

__all__ = ["GRUModule", "LSTMModule"]

__getattr__, __dir__ = lazy_exports(__name__)
