"""Back ends that compute sequences of recurrent layers."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.modules.recurrent._precision import get_recurrent_matmul_precision, set_recurrent_matmul_precision
    from rl.modules.recurrent.backends._pad import PadBackend
    from rl.modules.recurrent.backends._scan import ScanBackend

__all__ = ["PadBackend", "ScanBackend", "get_recurrent_matmul_precision", "set_recurrent_matmul_precision"]

__getattr__, __dir__ = lazy_exports(__name__)
