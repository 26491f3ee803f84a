"""Selection of the Triton back end for a device, with a warning if it cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.core.backends import report_missing
from rl.core.errors import BackendError
from rl.recurrent_triton._device.support import interpreted, why_not

if TYPE_CHECKING:
    import torch

    from rl.recurrent_triton._backend import TritonBackend

__all__ = ["backend_for"]


def backend_for(device: torch.device, *, by_name: bool) -> TritonBackend | None:
    """The back end if its kernels run on `device`; else None, with a warning for a CUDA device.

    There is no warning if torch sees no GPU, for a CPU, and with ``RL_NATIVE=off``.

    Args:
        device: device of weights and data.
        by_name: whether the caller named this back end.

    Raises:
        BackendError: if named, and unusable on a CUDA device, or on a CPU under Triton's interpreter.
        RLError: if ``RL_NATIVE`` is ``require``.
    """
    import torch

    reason = why_not(device)
    if not reason:
        from rl.recurrent_triton._backend import TritonBackend

        return TritonBackend()
    if by_name and (device.type == "cuda" or interpreted()):
        raise BackendError(f"the recurrent back end 'triton': {reason}")
    if device.type == "cuda" and torch.cuda.is_available():
        report_missing(reason, "Another back end is used instead, which is much slower")
    return None
