"""What ``auto`` computes an LSTM with where no package compiles the loop."""

from __future__ import annotations

from typing import Any, Final, final

import torch
from torch import Tensor, nn

from rl.core import RecurrentOptions
from rl.modules.recurrent._kernels import TORCH, TorchKernels
from rl.modules.recurrent._pad import PadBackend
from rl.modules.recurrent._scan import ScanBackend
from rl.modules.recurrent._weights import DEFAULTS

__all__ = ["PlainBackend"]

States = tuple[Tensor, ...]
_functorch: Any = torch._C._functorch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
_FEW: Final = 512  # rows times units; a step of the loop then costs its calls, of which torch's own layers need fewer
_NARROW: Final = 192  # units; with more, the products of a step cost more than its calls


@final
class PlainBackend:
    """``scan`` in plain torch; on a CPU, small batches of an LSTM go through ``pad``, up to three times as fast there.

    Torch's own GRU is slower than the loop, but for one wide row without gradients: it is never taken. A compiled
    function has ``scan`` only, which keeps the whole graph, and so has a transform of `torch.func`: torch's own LSTM
    lacks a rule for ``vmap``.

    Example:
        >>> lstm = nn.LSTM(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> PlainBackend()(lstm, x, (h, h), is_init)[0].shape
        torch.Size([2, 5, 4])
    """

    name = "scan"
    kernels = TORCH
    why = f"{TorchKernels.why}; on a CPU, up to {_FEW} rows times units of at most {_NARROW} units through 'pad'"

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
        units = module.hidden_size
        few = inputs.is_cpu and inputs.shape[0] * units <= _FEW and units <= _NARROW
        traced = torch.compiler.is_compiling() or _functorch.peek_interpreter_stack() is not None
        plain = few and isinstance(module, nn.LSTM) and not traced
        run = self._pad if plain else self._scan
        return run(module, inputs, state, is_init, reset_state, options)
