"""Recurrent cells and layers on tensors."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.modules.recurrent.cells._cells import GRU, LSTM, GRUCell, LSTMCell

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell"]

__getattr__, __dir__ = lazy_exports(__name__)
