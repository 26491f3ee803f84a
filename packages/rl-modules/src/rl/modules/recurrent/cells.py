"""Recurrent cells and layers on tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, ShapeError
from rl.modules.recurrent._layout import Cell
from rl.modules.recurrent.backends import find_backend

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell"]


# ruff: noqa: A002  arguments are named as in torch.nn


Pair = tuple[Tensor, Tensor]


@foreign_arguments()
class LSTM(nn.RNNBase):
    """`torch.nn.LSTM`, batch first, with resets of the state inside a sequence.

    State dictionaries of both are exchangeable. It runs the recurrent back end ``scan`` and compiles into one graph;
    the compiler does not support `torch.nn.LSTM`.

    Args:
        input_size: Width of the input.
        hidden_size: Width of the state.
        num_layers: Number of layers.
        bias: Whether the layers have biases.
        batch_first: True; time is the second dimension.
        dropout: Probability of dropping a feature between layers, in training.
        bidirectional: False; a policy cannot read the future.
        proj_size: Width of a projection: 0.
        device: Device of the weights.
        dtype: Dtype of the weights.

    Raises:
        ArgumentError: if `batch_first` is false, or `bidirectional` or `proj_size` is set.

    Example:
        >>> lstm = LSTM(3, 4)
        >>> out, (h, c) = lstm(torch.zeros(2, 5, 3))
        >>> out.shape, h.shape
        (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,  # noqa: FBT001, FBT002
        batch_first: bool = True,  # noqa: FBT001, FBT002
        dropout: float = 0.0,
        bidirectional: bool = False,  # noqa: FBT001, FBT002
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_forward("LSTM", batch_first=batch_first, bidirectional=bidirectional, proj_size=proj_size)
        sizes = _integers("LSTM", input_size, hidden_size, num_layers)
        super().__init__("LSTM", *sizes, bias, batch_first, dropout, device=device, dtype=dtype)
        self._scan = _Scan("lstm")

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Tensor, hx: Pair | None = None, *, is_init: Tensor | None = None
    ) -> tuple[Tensor, Pair]:
        """Compute the outputs of the last layer, and the states of all layers after the last step.

        Args:
            input: Inputs, ``[B, T, input_size]`` or ``[T, input_size]``.
            hx: States before the first step, ``[layers, B, hidden]`` or ``[layers, hidden]`` each; zero if None.
            is_init: Steps before which the state is reset to zero, bool ``[B, T]`` or ``[T]``.

        Raises:
            ShapeError: if an argument has another shape.
            ArgumentError: if dtypes differ.
        """
        out, (h, c) = self._scan(self, input, hx, is_init)
        return out, (h, c)


@foreign_arguments()
class GRU(nn.RNNBase):
    """`torch.nn.GRU`, batch first, with resets of the state inside a sequence.

    See `LSTM`; there is one state, and no projection.

    Example:
        >>> gru = GRU(3, 4, num_layers=2)
        >>> out, h = gru(torch.zeros(2, 5, 3))
        >>> out.shape, h.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,  # noqa: FBT001, FBT002
        batch_first: bool = True,  # noqa: FBT001, FBT002
        dropout: float = 0.0,
        bidirectional: bool = False,  # noqa: FBT001, FBT002
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_forward("GRU", batch_first=batch_first, bidirectional=bidirectional)
        sizes = _integers("GRU", input_size, hidden_size, num_layers)
        super().__init__("GRU", *sizes, bias, batch_first, dropout, device=device, dtype=dtype)
        self._scan = _Scan("gru")

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input: Tensor, hx: Tensor | None = None, *, is_init: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `LSTM.forward`; the state is one tensor."""
        out, (h,) = self._scan(self, input, hx, is_init)
        return out, h


def check_forward(owner: str, *, batch_first: bool, bidirectional: bool, proj_size: int = 0) -> None:
    """Check that the layer can run step by step.

    Raises:
        ArgumentError: if an argument has an unsupported value.
    """
    if not batch_first:
        raise ArgumentError(f"{owner} takes batches first, [B, T, input_size]: leave batch_first=True")
    if bidirectional:
        raise ArgumentError(f"{owner} cannot be bidirectional: when a policy acts, the future is unknown")
    if proj_size:
        raise ArgumentError(f"{owner} has no projection (proj_size={proj_size}): add a linear layer after it")


def _integers(owner: str, input_size: int, hidden_size: int, num_layers: int) -> tuple[int, int, int]:
    return (
        as_integer(input_size, owner, "input_size", least=1),
        as_integer(hidden_size, owner, "hidden_size", least=1),
        as_integer(num_layers, owner, "num_layers", least=1),
    )


class _Scan:
    """Back end of an `LSTM` or a `GRU`, without the weights; a class, since modules are pickled."""

    def __init__(self, cell: Cell) -> None:
        self._cell: Cell = cell
        self._found = find_backend({"lstm": "LSTM", "gru": "GRU"}[cell], cell, "scan", torch.device("cpu"))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Scan, (self._cell,)

    def __call__(
        self, module: nn.RNNBase, x: Tensor, hx: tuple[Tensor, ...] | Tensor | None, is_init: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        alone = x.dim() == 2
        if x.dim() not in (2, 3) or x.shape[-1] != module.input_size:
            raise ShapeError(
                f"{type(module).__name__} takes [B, T, {module.input_size}] or [T, {module.input_size}], got"
                f" {tuple(x.shape)}"
            )
        parts = 2 if self._cell == "lstm" else 1
        if hx is None:
            size = (module.num_layers, module.hidden_size) if alone else (module.num_layers, len(x), module.hidden_size)
            hx = (x.new_zeros(size),) * parts
        hx = (hx,) if isinstance(hx, Tensor) else hx
        if alone:
            x, hx = x.unsqueeze(0), tuple(part.unsqueeze(1) for part in hx)
            is_init = None if is_init is None else is_init.unsqueeze(0)
        flags = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device) if is_init is None else is_init
        _check_sequence(module, x, hx, flags, parts)
        states = tuple(part.transpose(0, 1) for part in hx)
        out, after = self._found(module, x, states, flags)
        last = tuple(part[:, -1].transpose(0, 1) for part in after)
        return (out[0], tuple(part[:, 0] for part in last)) if alone else (out, last)


def _check_sequence(module: nn.RNNBase, x: Tensor, hx: tuple[Tensor, ...], is_init: Tensor, parts: int) -> None:
    """Check shapes and dtypes, so that nothing broadcasts.

    Raises:
        ShapeError: if an argument has another shape.
        ArgumentError: if dtypes differ.
    """
    owner, batch = type(module).__name__, tuple(x.shape[:2])
    if not batch[1]:
        raise ShapeError(f"{owner} got {tuple(x.shape)}, a sequence without steps; it takes at least one")
    if is_init.shape != batch or is_init.dtype is not torch.bool:
        raise ShapeError(
            f"{owner}: is_init is {is_init.dtype} {tuple(is_init.shape)}, expected bool {batch}, as the input"
        )
    size = (module.num_layers, batch[0], module.hidden_size)
    if len(hx) != parts or any(part.shape != size for part in hx):
        found = ", ".join(str(tuple(part.shape)) for part in hx)
        what = "a pair (h, c)" if parts == 2 else "one tensor"
        raise ShapeError(f"{owner}: hx is {found}, expected {what} of {size}, [layers, B, hidden]")
    _check_dtypes(owner, module.weight_hh_l0, x, *hx)


def _check_dtypes(owner: str, weight: Any, *found: Tensor) -> None:
    if any(part.dtype is not weight.dtype for part in found):
        said = ", ".join(str(part.dtype) for part in found)
        raise ArgumentError(
            f"{owner}: the weights are {weight.dtype}, input and states {said}: convert the module with .to(dtype=...),"
            " or the data"
        )


def _check_step(cell: nn.LSTMCell | nn.GRUCell, x: Tensor, is_init: Tensor | None, *hx: Tensor) -> None:
    """Check shapes and dtypes of one step.

    Raises:
        ShapeError: if an argument has another shape.
        ArgumentError: if dtypes differ.
    """
    owner, batch = type(cell).__name__, tuple(x.shape[:-1])
    if x.shape[-1:] != (cell.input_size,):
        raise ShapeError(f"{owner} takes [*B, {cell.input_size}], got {tuple(x.shape)}")
    if any(part.shape != (*batch, cell.hidden_size) for part in hx):
        found = ", ".join(str(tuple(part.shape)) for part in hx)
        raise ShapeError(
            f"{owner}: hx is {found}, expected {(*batch, cell.hidden_size)}, as the input has the batch {batch}"
        )
    if is_init is not None and (is_init.shape != (*batch, 1) or is_init.dtype is not torch.bool):
        raise ShapeError(f"{owner}: is_init is {is_init.dtype} {tuple(is_init.shape)}, expected bool {(*batch, 1)}")
    _check_dtypes(owner, cell.weight_hh, x, *hx)


class LSTMCell(nn.LSTMCell):
    """`torch.nn.LSTMCell` for batches of any shape, with resets.

    Example:
        >>> h, c = LSTMCell(3, 4)(torch.zeros(2, 5, 3))
        >>> h.shape
        torch.Size([2, 5, 4])
    """

    def forward(self, input: Tensor, hx: Pair | None = None, *, is_init: Tensor | None = None) -> Pair:
        """States after one step.

        Args:
            input: Inputs, ``[*B, input_size]``.
            hx: States before it, ``[*B, hidden_size]`` each; zero if None.
            is_init: Rows whose states are reset to zero before the step, bool ``[*B, 1]``.

        Raises:
            ShapeError: if an argument has another shape.
            ArgumentError: if dtypes differ.
        """
        batch = input.shape[:-1]
        if hx is None:
            zeros = input.new_zeros(*batch, self.hidden_size)
            hx = zeros, zeros
        _check_step(self, input, is_init, *hx)
        if is_init is not None:
            hx = hx[0].masked_fill(is_init, 0.0), hx[1].masked_fill(is_init, 0.0)
        before = tuple(part.reshape(-1, self.hidden_size) for part in hx)
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        h, c = torch.lstm_cell(input.reshape(-1, self.input_size), before, *weights)
        return h.view(*batch, -1), c.view(*batch, -1)


class GRUCell(nn.GRUCell):
    """`torch.nn.GRUCell` for batches of any shape, with resets.

    Example:
        >>> GRUCell(3, 4)(torch.zeros(2, 5, 3)).shape
        torch.Size([2, 5, 4])
    """

    def forward(self, input: Tensor, hx: Tensor | None = None, *, is_init: Tensor | None = None) -> Tensor:
        """Compute the state after one step; see `LSTMCell.forward`."""
        batch = input.shape[:-1]
        if hx is None:
            hx = input.new_zeros(*batch, self.hidden_size)
        _check_step(self, input, is_init, hx)
        if is_init is not None:
            hx = hx.masked_fill(is_init, 0.0)
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        h = torch.gru_cell(input.reshape(-1, self.input_size), hx.reshape(-1, self.hidden_size), *weights)
        return h.view(*batch, -1)
