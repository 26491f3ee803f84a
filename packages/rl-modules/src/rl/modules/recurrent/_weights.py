"""Weights of a recurrent layer by layer index, in the dtype of computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from rl.core import RecurrentOptions
from rl.core.errors import BackendError

__all__ = ["DEFAULTS", "Layer", "cell_of", "check_plain", "compute_type", "layers_of"]

Cell = Literal["lstm", "gru"]
DEFAULTS = RecurrentOptions()


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, as `torch.nn.LSTM` and `GRU` lay them out; biases are None without."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None


def cell_of(module: nn.RNNBase) -> Cell:
    """``"lstm"`` or ``"gru"``, by the module's ``mode``.

    Raises:
        BackendError: if it is neither.
    """
    found = {"LSTM": "lstm", "GRU": "gru"}.get(getattr(module, "mode", ""))
    if found is None:
        raise BackendError(f"expected a recurrent module with the mode 'LSTM' or 'GRU', got {type(module).__name__}")
    return cast("Cell", found)


def check_plain(module: nn.RNNBase, owner: str) -> None:
    """Check that the back ends of this package support the module.

    Raises:
        BackendError: for both directions, a projection, or another module than an LSTM or a GRU.
    """
    cell_of(module)
    if module.bidirectional:
        raise BackendError(f"{owner} computes one direction, and the module has bidirectional=True: leave it out")
    if module.proj_size:
        raise BackendError(f"{owner} has no projections, and the module has proj_size={module.proj_size}: leave it out")


def compute_type(inputs: Tensor, options: RecurrentOptions) -> torch.dtype | None:
    """The dtype to compute in; None for that of weights and inputs.

    Under autocast the dtype of the inputs.
    """
    if options.compute_dtype is None and torch.is_autocast_enabled(inputs.device.type):
        return inputs.dtype
    return options.compute_dtype


def layers_of(module: nn.RNNBase, dtype: torch.dtype | None = None) -> list[Layer]:
    """Weights of each layer, converted to `dtype` if it is given.

    They are read as attributes, so that parametrized and replaced parameters work.
    """

    def weight(name: str) -> Tensor:
        found: Tensor = getattr(module, name)
        return found if dtype is None else found.to(dtype)

    return [
        Layer(
            weight(f"weight_ih_l{layer}"),
            weight(f"weight_hh_l{layer}"),
            weight(f"bias_ih_l{layer}") if module.bias else None,
            weight(f"bias_hh_l{layer}") if module.bias else None,
        )
        for layer in range(module.num_layers)
    ]
