"""Base class of distributions: cheap construction, sample and log-probability in one call."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch import distributions as torch_distributions

from rl.core.errors import ShapeError, SpecError

__all__ = ["LeanDistribution", "check_bounds", "loc_and_scale", "split_shape", "sum_event"]


class LeanDistribution(torch_distributions.Distribution):
    """A `torch.distributions.Distribution` that does nothing at construction that it was not asked for.

    A policy builds one per call, so arguments are checked only with ``validate_args=True``.

    Attributes:
        has_entropy: whether `entropy` has a closed form. Where it is False, ``entropy()`` raises
            `NotImplementedError`; estimate it as ``-log_prob`` of a sample.
    """

    has_entropy: ClassVar[bool] = True
    _validate_args = False

    def _set_shapes(self, batch_shape: Size, event_shape: Size, *, validate_args: bool) -> None:
        self._batch_shape = batch_shape
        self._event_shape = event_shape
        if validate_args:
            super().__init__(batch_shape, event_shape, validate_args=True)

    @property
    def deterministic_sample(self) -> Tensor:
        """The value that stands for the distribution when nothing shall be random."""
        return self.mode

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw without gradient, ``[*sample_shape, *batch_shape, *event_shape]``."""
        with torch.no_grad():
            return self.rsample(sample_shape)

    def sample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Sample, and the log-probability of the sample, which keeps its gradient."""
        value = self.sample(sample_shape)
        return value, self.log_prob(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)})"


def loc_and_scale(owner: str, loc: Tensor | float, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Location and scale as tensors of one shape; a number takes the dtype and device of the other.

    Raises:
        SpecError: if one is neither a tensor nor a number.
    """
    if isinstance(loc, Tensor) and isinstance(scale, Tensor):
        if loc.shape == scale.shape:
            return loc, scale
        expanded = torch.broadcast_tensors(loc, scale)
        return expanded[0], expanded[1]
    form = loc if isinstance(loc, Tensor) else scale if isinstance(scale, Tensor) else torch.zeros(())
    try:
        tensors = [torch.as_tensor(one, dtype=form.dtype, device=form.device) for one in (loc, scale)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(
            f"{owner} needs loc and scale as tensors or numbers, got {loc!r:.50} and {scale!r:.50}"
        ) from error
    return loc_and_scale(owner, tensors[0], tensors[1])


def sum_event(value: Tensor, event_dims: int) -> Tensor:
    """Sum over the last `event_dims` dimensions."""
    if event_dims == 1:
        return value.sum(-1)
    return value if event_dims == 0 else value.flatten(-event_dims).sum(-1)


def split_shape(shape: Size, event_dims: int) -> tuple[Size, Size]:
    """Batch shape and event shape of parameters.

    Raises:
        ShapeError: if there are fewer dimensions than `event_dims`.
    """
    cut = len(shape) - event_dims
    if cut < 0:
        raise ShapeError(f"event_dims={event_dims} of parameters with shape {tuple(shape)}: too few dimensions")
    return shape[:cut], shape[cut:]


def check_bounds(owner: str, low: float | Tensor, high: float | Tensor, *, validate_args: bool) -> None:
    """Refuse bounds that are infinite or out of order; tensors are only looked at with `validate_args`.

    Raises:
        SpecError: if so.
    """
    if not validate_args and (isinstance(low, Tensor) or isinstance(high, Tensor)):
        return
    fits: bool | Tensor = (low <= high) & (low > -math.inf) & (high < math.inf)
    if not (fits.all() if isinstance(fits, Tensor) else fits):
        raise SpecError(f"{owner} needs finite low <= high, got low={low}, high={high}")
