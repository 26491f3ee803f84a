"""A recurrence of cells of PyTorch, as a back end of recurrent modules."""

from __future__ import annotations

import torch
from rl.core.errors import BackendError
from rl.core.recurrent import RecurrentOptions
from torch import Tensor, nn

__all__ = ["LoopBackend"]


class LoopBackend:
    """One cell after the other: slow, and easy to change. Selected as ``recurrent_backend="example/loop"``."""

    name = "example/loop"
    why = "asked for by name"

    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: tuple[Tensor, ...],
        is_init: Tensor,
        reset_state: tuple[Tensor, ...] | None = None,
        options: RecurrentOptions = RecurrentOptions(),  # noqa: B008  frozen
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See `rl.core.interfaces.RecurrentBackend`.

        Raises:
            BackendError: If an option asks for something else than the type of the inputs.
        """
        if options != RecurrentOptions(recompute=options.recompute):  # nothing is kept that could be recomputed
            raise BackendError(f"{self.name} computes in the type of its inputs; it was asked for {options}")
        current = [list(part.unbind(1)) for part in state]  # [part][layer], each [B, H]
        outputs, after = [], tuple([] for _ in state)
        for t in range(inputs.shape[1]):
            x, restart = inputs[:, t], is_init[:, t].unsqueeze(-1)
            for layer in range(module.num_layers):
                before = [
                    torch.where(restart, 0 * part[layer] if new is None else new[:, t, layer], part[layer])
                    for part, new in zip(current, reset_state or [None] * len(state), strict=True)
                ]
                for part, value in zip(current, _step(module, layer, x, before), strict=True):
                    part[layer] = value
                x = current[0][layer]
            outputs.append(x)
            for rows, part in zip(after, current, strict=True):
                rows.append(torch.stack(part, 1))
        return torch.stack(outputs, 1), tuple(torch.stack(rows, 1) for rows in after)


def _step(module: nn.RNNBase, layer: int, x: Tensor, before: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the states of a layer after one step."""
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    weights = [getattr(module, f"{name}_l{layer}", None) for name in names]  # biases may be left out
    if module.mode == "LSTM":
        return torch.lstm_cell(x, before, *weights)
    return (torch.gru_cell(x, before[0], *weights),)
