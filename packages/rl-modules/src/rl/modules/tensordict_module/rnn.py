"""Recurrent modules under the path that users of TorchRL know; the same objects as in `rl.modules`."""

from rl.core import recurrent_mode, set_recurrent_mode
from rl.modules.recurrent._layout import get_recurrent_matmul_precision, set_recurrent_matmul_precision
from rl.modules.recurrent.cells import GRU, LSTM, GRUCell, LSTMCell
from rl.modules.recurrent.modules import GRUModule, LSTMModule

__all__ = [
    "GRU",
    "LSTM",
    "GRUCell",
    "GRUModule",
    "LSTMCell",
    "LSTMModule",
    "get_recurrent_matmul_precision",
    "recurrent_mode",
    "set_recurrent_matmul_precision",
    "set_recurrent_mode",
]
