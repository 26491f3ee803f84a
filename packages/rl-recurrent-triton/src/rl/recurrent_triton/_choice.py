"""Whether the kernels answer for a device, never without a word."""

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
    """The back end, if its kernels run on `device`. None, with a warning, if something is missing on a CUDA device.

    Without a word where torch sees no GPU, for a CPU, and with ``RL_NATIVE=off``.

    Args:
        device: where weights and data live.
        by_name: whether it was asked for.

    Raises:
        BackendError: if it was asked for, for a CUDA device, or for a CPU where Triton interprets.
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
        report_missing(reason, "Another back end answers, much slower")
    return None
