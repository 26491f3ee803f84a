"""Back end of ``auto`` without compiled loops."""

from __future__ import annotations

from typing import Any, Final, final

import torch
from torch import Tensor, nn

from rl.core import RecurrentOptions
from rl.modules.recurrent._weights import DEFAULTS
from rl.modules.recurrent.backends._pad import PadBackend
from rl.modules.recurrent.backends._scan import ScanBackend
from rl.modules.recurrent.ops._kernels import TORCH, TorchKernels

__all__ = ["PlainBackend"]

States = tuple[Tensor, ...]
_functorch: Any = torch._C._functorch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
_FEW: Final = 512  # rows times units; for fewer, calls dominate a step, and torch's layers need fewer calls
_NARROW: Final = 192  # units; for more, matrix products dominate a step
_SHORT: Final = 16  # steps; for fewer, `pad` saves nothing without gradients
_LONG: Final = 128  # steps of a single row, whose pieces between resets run in parallel
_WIDE: Final = 2048  # inputs times units; the loop of a GRU first copies weights of this size


@final
class PlainBackend:
    """``scan`` in plain torch; on a CPU ``pad`` where that was measured to be faster.

    ``pad`` is faster for small batches of an LSTM (up to 3x), for long single sequences, and for short sequences of a
    wide GRU without gradients (64 steps, 512 inputs, 512 units). Under `torch.compile` and `torch.func`, ``scan`` is
    always used: it keeps the graph whole, and torch's LSTM has no rule for ``vmap``.

    Example:
        >>> lstm = nn.LSTM(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> PlainBackend()(lstm, x, (h, h), is_init)[0].shape
        torch.Size([2, 5, 4])
    """

    name = "scan"
    kernels = TORCH
    why = (
        f"{TorchKernels.why}; on a CPU, through 'pad': an LSTM of up to {_FEW} rows times units, of at most {_NARROW}"
        f" units, or of one row of at least {_LONG} steps; a GRU without gradients, if inputs times units are at least"
        f" {_WIDE} times rows times steps"
    )

    def __init__(self) -> None:
        self._scan: Final = ScanBackend()
        self._pad: Final = PadBackend()

    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: States,
        is_init: Tensor,
        reset_state: States | None = None,
        options: RecurrentOptions = DEFAULTS,
    ) -> tuple[Tensor, States]:
        """See `rl.core.interfaces.RecurrentBackend`."""
        traced = torch.compiler.is_compiling() or _functorch.peek_interpreter_stack() is not None
        plain = inputs.is_cpu and not traced and _is_quicker_padded(module, *inputs.shape)
        run = self._pad if plain else self._scan
        return run(module, inputs, state, is_init, reset_state, options)


def _is_quicker_padded(module: nn.RNNBase, rows: int, steps: int, inputs: int) -> bool:
    """Whether torch's own layer was measured to be faster than the loop."""
    units, trains = module.hidden_size, torch.is_grad_enabled()
    if not isinstance(module, nn.LSTM):
        return not trains and inputs * units >= _WIDE * rows * steps
    few = rows * units <= _FEW and units <= _NARROW
    enough = trains or steps >= max(_SHORT, rows * units // _SHORT * 2)  # the overhead of `pad` is constant
    return (few and enough) or (rows == 1 and steps >= _LONG)
