"""Choices among classes: `Categorical` and `OneHot`; and `Binary`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, SpecError
from rl.core.specs._base import Device, Shape, as_size
from rl.core.specs._continuous import CategoricalBox
from rl.core.specs._leaf import (
    LeafSpec,
    all_values,
    as_tensor,
    best_classes,
    check_mask,
    choose_classes,
    draw_codes,
    mask_text,
    nearest_codes,
    require_choice,
    require_room,
)


class ClassSpec(LeafSpec):
    """A spec whose values choose one of `n` classes.

    Args:
        n: Number of classes.
        shape: Shape of a value.
        device: Device of the values; the CPU if None.
        dtype: Dtype of the values.
        mask: Bool, true where a class is allowed; all are if None.
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
        n: Number of classes, at least 1.
        shape: Shape of a value; there is no dimension for the classes.
        device: Device of the values; the CPU if None.
        dtype: Integer dtype, or bool for two classes.
        mask: Bool ``[*shape, n]``, true where a class is allowed; all are if None.

    Raises:
        ArgumentError: If `n` is no integer, or below 1.
        SpecError: If the mask does not fit or forbids everything.

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


@foreign_arguments()
class OneHot(ClassSpec):
    """Vectors with one 1 among zeros: the last dimension are the classes.

    Numpy and Python values are the numbers of the classes (`encode`, `to_numpy`), as simulators take them.

    Args:
        n: Number of classes, at least 1.
        shape: Shape of a value, ends with `n`; ``(n,)`` if None.
        device: Device of the values; the CPU if None.
        dtype: Any dtype.
        mask: Bool ``[*shape]``, true where a class is allowed; all are if None.

    Raises:
        ArgumentError: If `n` is no integer, or below 1.
        SpecError: If the shape does not end with `n`, or the mask does not fit or forbids everything.

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
        # Fast path: a Python integer, as most simulators return it.
        if isinstance(value, int) and len(self._shape) == 1 and 0 <= value < self.n:
            out = torch.zeros(self._shape, dtype=self._dtype, device=self._device)
            out[int(value)] = 1  # int(): a bool would index as a mask
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
        n: Size of the last dimension; any if None.
        shape: Shape of a value; ``(n,)`` if None, ``()`` if `n` is None too.
        device: Device of the values; the CPU if None.
        dtype: Any dtype.

    Raises:
        ArgumentError: If `n` is no integer, or below 0.
        SpecError: If the shape does not end with `n`.

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


class MultiSpec(LeafSpec):
    """A spec whose values choose once for each number in `nvec`; internally, codes ``[*B, len(nvec)]``.

    Args:
        nvec: Numbers of classes.
        own: Trailing dimensions of a value that encode it.
        shape: Shape of a value, ends with `own`.
        device: Device of the values; the CPU if None.
        dtype: Dtype of the values.
        mask: Bool ``[*shape without own, sum(nvec)]``, the classes of all choices one after the other.
    """

    _parameters = ("mask",)
    domain = "discrete"

    def __init__(
        self, nvec: Tensor, own: torch.Size, shape: torch.Size, device: Device, dtype: torch.dtype, mask: Any
    ) -> None:
        name = type(self).__name__
        super().__init__(shape, device, dtype)
        if not nvec.numel() or bool((nvec < 1).any()):
            raise ArgumentError(f"{name} needs at least one class in each choice, got nvec={nvec.tolist()}")
        if self._shape[len(self._shape) - len(own) :] != own:
            raise SpecError(f"{name}: the shape must end with {tuple(own)}, got {tuple(self._shape)}")
        self.nvec = nvec.to(self._device)
        self._sizes: list[int] = nvec.flatten().tolist()
        self._own = own
        self.mask: Tensor | None = None
        self.update_mask(mask)

    @abstractmethod
    def _decode(self, value: Tensor) -> Tensor:
        """Codes, int64 ``[*B, len(nvec)]``, of values in the spec."""

    @abstractmethod
    def _represent(self, codes: Tensor) -> Tensor:
        """Values of codes."""

    @property
    def space(self) -> tuple[CategoricalBox, ...]:
        """The classes of each choice."""
        return tuple(CategoricalBox(n) for n in self._sizes)

    @property
    def _free(self) -> int:
        return len(self._shape) - len(self._own)

    def _codes_shape(self, shape: torch.Size) -> torch.Size:
        return torch.Size((*shape[: len(shape) - len(self._own)], len(self._sizes)))

    def _masks(self) -> list[Tensor | None]:
        """Return the mask of each choice."""
        if self.mask is None:
            return [None] * len(self._sizes)
        return list(self.mask.split(self._sizes, -1))

    def update_mask(self, mask: Any) -> None:
        checked = check_mask(self, mask, torch.Size((*self._shape[: self._free], sum(self._sizes))))
        for part in [] if checked is None else checked.split(self._sizes, -1):
            require_choice(self, part)
        self.mask = checked

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        codes_shape = self._codes_shape(shape)
        if self.mask is None:
            raw = torch.randint(2**62, codes_shape, device=self._device, generator=generator)
            return self._represent(raw % self.nvec.flatten())
        parts = [
            draw_codes(n, mask, codes_shape[:-1], self._device, generator)
            for n, mask in zip(self._sizes, self._masks(), strict=True)
        ]
        return self._represent(torch.stack(parts, -1))

    def _codes_allowed(self, codes: Tensor) -> bool:
        if not bool(((codes >= 0) & (codes < self.nvec.flatten().to(codes.device))).all()):
            return False
        if self.mask is None:
            return True
        mask = self.mask.to(codes.device).expand(*codes.shape[:-1], -1)
        return bool(mask.gather(-1, codes + self._offsets(codes.device)).all())

    def _offsets(self, device: torch.device) -> Tensor:
        """Return the first class of each choice among all classes."""
        sizes = self.nvec.flatten().to(device)
        return sizes.cumsum(0) - sizes

    def _nearest_codes(self, codes: Tensor) -> Tensor:
        parts = [
            nearest_codes(code, n, mask)
            for code, n, mask in zip(codes.unbind(-1), self._sizes, self._masks(), strict=True)
        ]
        return torch.stack(parts, -1)

    def _options(self) -> list[list[int]]:
        lead = self._shape[: self._free]
        if self.mask is None:
            return [list(range(n)) for n in self._sizes] * prod(lead)
        rows = self.mask.reshape(prod(lead), -1)
        return [part.nonzero().flatten().tolist() for row in rows for part in row.split(self._sizes)]

    def cardinality(self) -> int:
        return prod(len(option) for option in self._options())

    def enumerate(self) -> Tensor:
        codes = all_values(self, self._options()).reshape(-1, *self._codes_shape(self._shape))
        return self._represent(codes)

    def index(self, index: Tensor, tensor: Tensor) -> Tensor:
        codes = self._decode(index)
        wanted = (*codes.shape[:-1], sum(self._sizes))
        if tensor.shape != wanted:
            raise SpecError(
                f"{self._label}.index needs a number for each class, shape {wanted}, got {tuple(tensor.shape)}"
            )
        return tensor.gather(-1, codes + self._offsets(codes.device))

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        new = super().to(dest)
        new.nvec = self.nvec.to(new.device)
        return new

    def _same(self, other: Any) -> bool:
        return torch.equal(self.nvec, other.nvec) and super()._same(other)

    def _domain_text(self) -> str:
        allowed = "" if self.mask is None else f" that the mask {mask_text(self.mask)}allows"
        return f"classes below {self._sizes}{allowed}"


def _as_nvec(nvec: Any) -> Tensor:
    array = nvec.cpu().numpy() if isinstance(nvec, Tensor) else np.asarray(nvec)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"the numbers of classes must be integers, got nvec={nvec!r}")
    return torch.from_numpy(array.astype(np.int64))


@foreign_arguments()
class MultiCategorical(MultiSpec):
    """Integers, each from 0 to its own ``nvec - 1``.

    Args:
        nvec: Numbers of classes, of any shape.
        shape: Shape of a value, ends with that of `nvec`; that if None.
        device: Device of the values; the CPU if None.
        dtype: Integer dtype.
        mask: Bool ``[*B, sum(nvec)]``, the classes of all choices one after the other; all are allowed if None.

    Raises:
        ArgumentError: If `nvec` has other values than positive integers.
        SpecError: If the shape or the mask do not fit.

    Example:
        >>> spec = MultiCategorical([2, 3])
        >>> spec.cardinality(), spec.to_one_hot(torch.tensor([1, 2])).int()
        (6, tensor([0, 1, 0, 0, 1], dtype=torch.int32))
    """

    def __init__(
        self,
        nvec: Any,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
    ) -> None:
        sizes = _as_nvec(nvec)
        size = sizes.shape if shape is None else as_size(shape)
        super().__init__(sizes, sizes.shape, size, device, dtype, mask)
        self._cast(dtype)

    def _cast(self, dtype: torch.dtype) -> None:
        require_room(self, max(self._sizes), dtype)

    def _decode(self, value: Tensor) -> Tensor:
        return value.reshape(self._codes_shape(value.shape)).long()

    def _represent(self, codes: Tensor) -> Tensor:
        return codes.reshape(codes.shape[:-1] + self._own).to(self._dtype)

    def _contains(self, value: Tensor) -> bool:
        codes = self._decode(value)
        if self._dtype.is_floating_point and not bool((codes.reshape(value.shape) == value).all()):
            return False
        return self._codes_allowed(codes)

    def _nearest(self, value: Tensor) -> Tensor:
        if self._dtype.is_floating_point:
            value = value.nan_to_num(0.0).clamp(0, max(self._sizes)).round()
        return self._represent(self._nearest_codes(self._decode(value)))

    def to_categorical(self, value: Tensor) -> Tensor:
        return value

    def to_one_hot(self, value: Tensor) -> Tensor:
        self.assert_is_in(value)
        codes = self._decode(value) + self._offsets(value.device)
        out = torch.zeros(*codes.shape[:-1], sum(self._sizes), dtype=torch.bool, device=value.device)
        return out.scatter_(-1, codes, value=True)

    def to_categorical_spec(self) -> MultiCategorical:
        return self.clone()

    def to_one_hot_spec(self) -> MultiOneHot:
        shape = (*self._shape[: self._free], sum(self._sizes))
        return MultiOneHot(self._sizes, shape, self._device, mask=self.mask)


@foreign_arguments()
class MultiOneHot(MultiSpec):
    """Several one-hot vectors, one after the other in the last dimension.

    Numpy and Python values are the numbers of the classes (`encode`, `to_numpy`), as simulators take them.

    Args:
        nvec: Numbers of classes.
        shape: Shape of a value, ends with ``sum(nvec)``; ``(sum(nvec),)`` if None.
        device: Device of the values; the CPU if None.
        dtype: Any dtype.
        mask: Bool ``[*shape]``, true where a class is allowed; all are if None.

    Raises:
        ArgumentError: If `nvec` has other values than positive integers.
        SpecError: If the shape or the mask do not fit.

    Example:
        >>> spec = MultiOneHot([2, 3], dtype=torch.int64)
        >>> spec.encode([1, 2])
        tensor([0, 1, 0, 0, 1])
    """

    def __init__(
        self,
        nvec: Iterable[int],
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.bool,
        mask: Any = None,
    ) -> None:
        sizes = _as_nvec(nvec).flatten()
        own = torch.Size((int(sizes.sum()),))
        super().__init__(sizes, own, own if shape is None else as_size(shape), device, dtype, mask)

    def _decode(self, value: Tensor) -> Tensor:
        return torch.stack([part.long().argmax(-1) for part in value.split(self._sizes, -1)], -1)

    def _represent(self, codes: Tensor) -> Tensor:
        out = torch.zeros(*codes.shape[:-1], sum(self._sizes), dtype=self._dtype, device=codes.device)
        return out.scatter_(-1, codes + self._offsets(codes.device), 1)

    def _contains(self, value: Tensor) -> bool:
        codes = self._decode(value)
        return bool((self._represent(codes) == value).all()) and self._codes_allowed(codes)

    def _nearest(self, value: Tensor) -> Tensor:
        parts = [
            best_classes(part, mask) for part, mask in zip(value.split(self._sizes, -1), self._masks(), strict=True)
        ]
        return self._represent(torch.stack(parts, -1))

    def encode(self, value: Any) -> Tensor:
        """Convert classes to one-hot vectors; a tensor that ends with the shape of this spec is a value of it."""
        if isinstance(value, Tensor) and value.shape[-len(self._shape) :] == self._shape:
            return super().encode(value)
        codes = as_tensor(value, torch.int64, self._device)
        codes = self._check_encoded(codes, self._codes_shape(self._shape))
        if not bool(((codes >= 0) & (codes < self.nvec)).all()):
            raise SpecError(f"MultiOneHot cannot encode: expected classes below {self._sizes}, got {codes.tolist()}")
        return self._represent(codes)

    def to_numpy(self, value: Tensor) -> Any:
        return self._decode(value.detach()).cpu().numpy()

    def to_one_hot(self, value: Tensor) -> Tensor:
        return value

    def to_categorical(self, value: Tensor) -> Tensor:
        self.assert_is_in(value)
        return self._decode(value)

    def to_one_hot_spec(self) -> MultiOneHot:
        return self.clone()

    def to_categorical_spec(self) -> MultiCategorical:
        shape = self._codes_shape(self._shape)
        return MultiCategorical(self._sizes, shape, self._device, mask=self.mask)
