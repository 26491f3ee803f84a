"""Choices among classes: `Categorical` and `OneHot`; and `Binary`."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import SpecError
from rl.core.specs._base import Device, Shape
from rl.core.specs._boxes import CategoricalBox
from rl.core.specs._classes import (
    best_classes,
    check_mask,
    choose_classes,
    draw_codes,
    mask_text,
    nearest_codes,
    require_choice,
    require_room,
)
from rl.core.specs._leaf import LeafSpec, all_values, as_tensor, one_hot_arguments
from rl.core.specs._shape import as_size

__all__ = ["Binary", "Categorical", "ClassSpec", "OneHot"]


class ClassSpec(LeafSpec):
    """A spec whose values choose one of `n` classes.

    Args:
        n: number of classes.
        shape: shape of a value.
        device: where values live; the CPU if None.
        dtype: their dtype.
        mask: bool, true where a class is allowed; all are if None.
    """

    _parameters = ("mask",)
    domain = "discrete"

    def __init__(self, n: int, shape: Shape, device: Device, dtype: torch.dtype, mask: Any) -> None:
        super().__init__(shape, device, dtype)
        self.n = n
        self.mask: Tensor | None = None
        self.update_mask(mask)

    @property
    def space(self) -> CategoricalBox:
        """The classes."""
        return CategoricalBox(self.n)

    @property
    def _mask_shape(self) -> torch.Size:
        return torch.Size((*self._shape, self.n))

    def update_mask(self, mask: Any) -> None:
        checked = check_mask(self, mask, self._mask_shape)
        require_choice(self, checked)
        self.mask = checked

    def _options(self) -> list[list[int]]:
        """For each choice, the classes that are allowed."""
        if self.mask is None:
            return [list(range(self.n))] * prod(self._mask_shape[:-1])
        return [row.nonzero().flatten().tolist() for row in self.mask.reshape(-1, self.n)]

    def cardinality(self) -> int:
        """How many values the spec has: the product of the allowed classes over all choices in it."""
        if self.mask is None:
            return self.n ** prod(self._mask_shape[:-1])
        return prod(self.mask.sum(-1).flatten().tolist())

    def _allowed(self, codes: Tensor) -> bool:
        if self.mask is None:
            return True
        mask = self.mask.to(codes.device).expand(*codes.shape, self.n)
        return bool(mask.gather(-1, codes.unsqueeze(-1)).all())

    def _same(self, other: Any) -> bool:
        return self.n == other.n and super()._same(other)

    def _domain_text(self) -> str:
        allowed = "" if self.mask is None else f" that the mask {mask_text(self.mask)}allows"
        return f"classes from 0 to {self.n - 1}{allowed}"


class Categorical(ClassSpec):
    """Integers from 0 to ``n - 1``, one for each element.

    Args:
        n: number of classes, at least 1.
        shape: shape of a value; there is no dimension for the classes.
        device: where values live; the CPU if None.
        dtype: an integer dtype, or bool for two classes.
        mask: bool ``[*shape, n]``, true where a class is allowed; all are if None.

    Raises:
        SpecError: if `n` is below 1, or the mask does not fit or forbids everything.

    Example:
        >>> spec = Categorical(3, mask=torch.tensor([True, False, True]))
        >>> spec.enumerate()
        tensor([0, 2])
        >>> spec.to_one_hot(torch.tensor(2))
        tensor([False, False,  True])
    """

    def __init__(
        self,
        n: int,
        shape: Shape = (),
        device: Device = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
    ) -> None:
        super().__init__(as_integer(n, "Categorical", "n", least=1), shape, device, dtype, mask)
        require_room(self, self.n, dtype)

    def _cast(self, dtype: torch.dtype) -> None:
        require_room(self, self.n, dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        codes = draw_codes(self.n, self.mask, shape, self._device, generator)
        return codes if self._dtype is torch.int64 else codes.to(self._dtype)

    def _contains(self, value: Tensor) -> bool:
        codes = value.long()
        inside = (codes >= 0) & (codes < self.n)
        if self._dtype.is_floating_point:
            inside &= codes == value
        return bool(inside.all()) and self._allowed(codes)

    def _nearest(self, value: Tensor) -> Tensor:
        if self._dtype.is_floating_point:
            value = value.nan_to_num(0.0).clamp(0, self.n - 1).round()
        return nearest_codes(value.long(), self.n, self.mask).to(self._dtype)

    def enumerate(self) -> Tensor:
        return all_values(self, self._options()).to(self._dtype)

    def index(self, index: Tensor, tensor: Tensor) -> Tensor:
        return choose_classes(self, self.n, index.long(), tensor)

    def to_categorical(self, value: Tensor) -> Tensor:
        return value

    def to_one_hot(self, value: Tensor) -> Tensor:
        self.assert_is_in(value)
        return torch.nn.functional.one_hot(value.long(), self.n).bool()

    def to_categorical_spec(self) -> Categorical:
        return self.clone()

    def to_one_hot_spec(self) -> OneHot:
        return OneHot(self.n, self._mask_shape, self._device, mask=self.mask)


@one_hot_arguments
class OneHot(ClassSpec):
    """Vectors with one 1 among zeros: the last dimension are the classes.

    Numpy and Python values are the numbers of the classes (`encode`, `to_numpy`), as simulators take them.

    Args:
        n: number of classes, at least 1.
        shape: shape of a value, ends with `n`; ``(n,)`` if None.
        device: where values live; the CPU if None.
        dtype: any.
        mask: bool ``[*shape]``, true where a class is allowed; all are if None.

    Raises:
        SpecError: if `n` is below 1, the shape does not end with it, or the mask does not fit or forbids everything.

    Example:
        >>> spec = OneHot(3, dtype=torch.int64)
        >>> spec.encode(1), spec.to_numpy(torch.tensor([0, 0, 1])).item()
        (tensor([0, 1, 0]), 2)
    """

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.bool,
        mask: Any = None,
    ) -> None:
        n = as_integer(n, "OneHot", "n", least=1)
        size = torch.Size((n,)) if shape is None else as_size(shape)
        if not size or size[-1] != n:
            raise SpecError(f"OneHot: the shape must end with the number of classes {n}, got {tuple(size)}")
        super().__init__(n, size, device, dtype, mask)

    @property
    def _free(self) -> int:
        return len(self._shape) - 1

    @property
    def _mask_shape(self) -> torch.Size:
        return self._shape

    def _one_hot(self, codes: Tensor) -> Tensor:
        out = torch.zeros(*codes.shape, self.n, dtype=self._dtype, device=codes.device)
        return out.scatter_(-1, codes.unsqueeze(-1), 1)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self._one_hot(draw_codes(self.n, self.mask, shape[:-1], self._device, generator))

    def _contains(self, value: Tensor) -> bool:
        one = value == 1
        ones = one.sum(-1)
        if not bool(((ones == 1) & ((value == 0).sum(-1) == self.n - 1)).all()):
            return False
        return self.mask is None or not bool((one & ~self.mask.to(value.device)).any())

    def _nearest(self, value: Tensor) -> Tensor:
        return self._one_hot(best_classes(value, self.mask))

    def encode(self, value: Any) -> Tensor:
        """Class numbers as one-hot vectors.

        A tensor that ends with the shape of this spec is a value; any other one holds class numbers, ``[*B]``.
        """
        if isinstance(value, Tensor) and value.shape[-len(self._shape) :] == self._shape:
            return super().encode(value)
        if isinstance(value, int) and len(self._shape) == 1 and 0 <= value < self.n:  # what most simulators give
            out = torch.zeros(self._shape, dtype=self._dtype, device=self._device)
            out[int(value)] = 1  # a bool would be taken as a mask
            return out
        codes = self._check_encoded(as_tensor(value, torch.int64, self._device), self._shape[:-1])
        if not bool(((codes >= 0) & (codes < self.n)).all()):
            raise SpecError(f"OneHot cannot encode: expected classes from 0 to {self.n - 1}, got {codes.tolist()}")
        return self._one_hot(codes)

    def to_numpy(self, value: Tensor) -> Any:
        return value.detach().long().argmax(-1).cpu().numpy()[()]

    def enumerate(self) -> Tensor:
        codes = all_values(self, self._options())
        return self._one_hot(codes).reshape(-1, *self._shape)

    def index(self, index: Tensor, tensor: Tensor) -> Tensor:
        return choose_classes(self, self.n, index.long().argmax(-1), tensor)

    def to_categorical(self, value: Tensor) -> Tensor:
        self.assert_is_in(value)
        return value.long().argmax(-1)

    def to_one_hot(self, value: Tensor) -> Tensor:
        return value

    def to_one_hot_spec(self) -> OneHot:
        return self.clone()

    def to_categorical_spec(self) -> Categorical:
        return Categorical(self.n, self._shape[:-1], self._device, mask=self.mask)


class Binary(LeafSpec):
    """Zeros and ones, element by element.

    Args:
        n: size of the last dimension; any if None.
        shape: shape of a value; ``(n,)`` if None, ``()`` if `n` is None too.
        device: where values live; the CPU if None.
        dtype: any.

    Raises:
        SpecError: if the shape does not end with `n`.

    Example:
        >>> Binary(2, dtype=torch.bool).enumerate().shape
        torch.Size([4, 2])
    """

    domain = "discrete"

    def __init__(
        self,
        n: int | None = None,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        n = None if n is None else as_integer(n, "Binary", "n", least=0)
        if shape is None:
            shape = () if n is None else (n,)
        size = as_size(shape)
        if n is not None and (not size or size[-1] != n):
            raise SpecError(f"Binary: the shape must end with n={n}, got {tuple(size)}")
        super().__init__(size, device, dtype)

    @property
    def n(self) -> int | None:
        """Size of the last dimension; None if there is none."""
        return self._shape[-1] if self._shape else None

    @property
    def space(self) -> CategoricalBox:
        """Two classes."""
        return CategoricalBox(2)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return torch.randint(2, shape, dtype=self._dtype, device=self._device, generator=generator)

    def _contains(self, value: Tensor) -> bool:
        return self._dtype is torch.bool or bool(((value == 0) | (value == 1)).all())

    def _nearest(self, value: Tensor) -> Tensor:
        if self._dtype.is_floating_point:
            return (value >= 0.5).to(self._dtype)
        return value.clamp(0, 1)

    def _domain_text(self) -> str:
        return "zeros and ones"

    def cardinality(self) -> int:
        return 2 ** self.numel()

    def enumerate(self) -> Tensor:
        return all_values(self, [[0, 1]] * self.numel()).to(self._dtype)
