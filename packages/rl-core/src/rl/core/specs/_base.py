"""`TensorSpec`: base class of specs, and their shape operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, SpecError, SpecIndexError
from rl.core.keys import key_str


def as_size(*shape: Any) -> torch.Size:
    """Convert an integer, several integers, or one sequence to a shape.

    Example:
        >>> as_size(3), as_size(2, 3), as_size((2, 3)), as_size(())
        (torch.Size([3]), torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([]))

    Raises:
        ArgumentError: If it is none of these.
    """
    given = shape[0] if len(shape) == 1 else shape
    if isinstance(given, torch.Size):
        return given
    try:
        if not isinstance(given, tuple | list):
            given = (given,) if hasattr(given, "__index__") and not getattr(given, "shape", ()) else tuple(given)
        return torch.Size([as_integer(size, "shape", "a size") for size in given])
    except (TypeError, ArgumentError) as error:
        raise ArgumentError(f"a shape is an integer or a sequence of integers, got {given!r}") from error


def lead_size(shape: Any) -> torch.Size:
    """Convert as `as_size` does; None has no dimensions.

    Example:
        >>> lead_size(None), lead_size(3)
        (torch.Size([]), torch.Size([3]))
    """
    return torch.Size(()) if shape is None else as_size(shape)


def flat_positions(shape: Iterable[int]) -> Tensor:
    """Return the number of each element in row-major order, int64 of that shape."""
    sizes = tuple(shape)
    return torch.arange(prod(sizes)).reshape(sizes)


def take(parameter: Tensor, positions: Tensor, ndim: int) -> Tensor:
    """Return a copy of elements `positions` of the first `ndim` dimensions, seen as one: ``[*positions, *rest]``."""
    rest = parameter.shape[ndim:]
    shape = positions.shape + rest
    if parameter.numel() == 0 or positions.numel() == 0:
        return parameter.new_zeros(shape)
    if not any(parameter.stride()):  # an expanded scalar stays one
        return parameter.reshape(-1)[0].clone().expand(shape)
    flat = parameter.reshape(prod(parameter.shape[:ndim]), *rest)
    # index_select copies; indexing with a scalar would return a view.
    taken = flat.index_select(0, positions.reshape(-1).to(parameter.device))
    return taken.reshape(shape)


def suffix_length(a: torch.Size, b: torch.Size) -> int:
    """How many trailing dimensions two shapes share."""
    count = 0
    for left, right in zip(reversed(a), reversed(b), strict=False):
        if left != right:
            break
        count += 1
    return count


def resolve_sizes(sizes: torch.Size, total: int) -> torch.Size:
    """`sizes` with a -1 in it replaced by what makes `total` elements.

    Raises:
        SpecError: If there is no such number.
    """
    if -1 not in sizes:
        return sizes
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or known == 0 or total % known:
        raise SpecError(f"cannot arrange {total} elements in {tuple(sizes)}")
    return torch.Size(total // known if size == -1 else size for size in sizes)


def _consumed(entry: Any) -> int:
    """How many dimensions one entry of an index takes up."""
    if entry is None:
        return 0
    if isinstance(entry, Tensor) and entry.dtype is torch.bool:
        return entry.ndim
    return 1


def _entry(entry: Any) -> Any:
    """Convert lists and arrays in an index to tensors."""
    if entry is None or entry is Ellipsis or isinstance(entry, int | slice | Tensor):
        return entry
    return torch.as_tensor(entry)


def complete_index(index: Any, ndim: int) -> tuple[tuple[Any, ...], int]:
    """Return an index without ``...`` and without trailing ``:``, and how many dimensions it takes up.

    Args:
        index: Index between the brackets.
        ndim: Number of dimensions of what is indexed.

    Raises:
        SpecIndexError: If there are more entries than dimensions.
    """
    entries = [_entry(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    dots = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    used = sum(_consumed(entry) for entry in entries if entry is not Ellipsis)
    if len(dots) > 1 or used > ndim:
        raise SpecIndexError(f"index {index!r} does not fit {ndim} dimensions")
    for place in dots:
        entries[place : place + 1] = [slice(None)] * (ndim - used)
    while entries and isinstance(entries[-1], slice) and entries[-1] == slice(None):
        entries.pop()
    return tuple(entries), sum(_consumed(entry) for entry in entries)


def pick(positions: Tensor, entries: tuple[Any, ...]) -> Tensor:
    """``positions[entries]``, also with slices of negative step.

    Args:
        positions: Positions that are indexed.
        entries: Entries of an index, as `complete_index` returns them.
    """
    plain: list[Any] = []
    dim = 0
    for entry in entries:
        if isinstance(entry, slice) and entry.step is not None and entry.step < 0:
            kept = range(*entry.indices(positions.shape[dim]))
            positions = positions.index_select(dim, torch.tensor(kept, dtype=torch.int64))
            plain.append(slice(None))
        else:
            plain.append(entry)
        dim += _consumed(entry)
    return positions[tuple(plain)]


# ruff: noqa: ARG002  what only some specs can do is declared here for all


Shape = int | Iterable[int] | None
Device = torch.device | str | int | None


class Fault(NamedTuple):
    """Why a value is not in a spec: where, what was expected, what came."""

    path: tuple[str, ...]
    expected: str
    got: str


class TensorSpec(ABC):
    """A set of tensors of one shape, dtype and device: draw from it, test for it, project onto it.

    A spec behaves like a tensor without data: ``expand, squeeze, unsqueeze, reshape, flatten, unflatten, unbind,
    clone, to``, indexing and ``torch.stack`` return the spec of what torch would return. Such an operation only
    picks elements: it is done once on the elements' numbers, and each spec takes those elements of its parameters
    (`_gather`). Trailing dimensions that encode one value (the classes of a one-hot vector) stay as they are.

    Every draw and every test allows additional leading dimensions.
    """

    _shape: torch.Size
    _device: Any  # a torch.device, or None; some subclasses rule None out
    _dtype: Any  # a torch.dtype, or None
    _stack: ClassVar[Callable[..., Any]]  # `rl.core.specs._composite.stack`, which sets it
    domain: ClassVar[str | None] | property = None
    _keyed = False  # whether values are TensorDicts with the keys of `keys()`

    @property
    def shape(self) -> torch.Size:
        """Shape of a value; -1 where a `Stacked` spec is ragged."""
        return self._shape

    @property
    def device(self) -> torch.device | None:
        """Where values live; None in a `Composite` that leaves them where they are."""
        return self._device

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of a value; None if it is not a tensor."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    def numel(self) -> int:
        """Return the number of elements of a value."""
        return prod(self._shape)

    # ------------------------------------------------------------------ written by the subclass

    @abstractmethod
    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        """Random values, ``[*shape, *self.shape]``."""

    @abstractmethod
    def zero(self, shape: Shape = ()) -> Any:
        """Zeros of the right form, ``[*shape, *self.shape]``, whether or not they are in the spec."""

    @abstractmethod
    def one(self, shape: Shape = ()) -> Any:
        """Ones of the right form, ``[*shape, *self.shape]``, whether or not they are in the spec."""

    @abstractmethod
    def project(self, value: Any) -> Any:
        """Return the value itself if it is in the spec, else a near one that is.

        Raises:
            SpecError: If shape or dtype are wrong: those cannot be repaired.
        """

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """Convert a value, numpy or Python, to a tensor of this spec, which never shares the value's memory.

        Raises:
            SpecError: If the value does not have this shape. The domain is not checked.
        """

    @abstractmethod
    def to_numpy(self, value: Any) -> Any:
        """Convert a value to what `encode` accepts: arrays, and scalars where the shape is empty."""

    @abstractmethod
    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        """Return the spec on another device or with another dtype."""

    @abstractmethod
    def _gather(self, positions: Tensor, ndim: int) -> Any:
        """Return the spec whose elements are elements `positions` of the first `ndim` dimensions, seen as one."""

    @abstractmethod
    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        """Return why `value` is not in the spec; None if it is.

        Args:
            value: Value of any type.
            lead: Leading dimensions that it must have; any if None.
        """

    @abstractmethod
    def _same(self, other: Any) -> bool:
        """Whether a spec of this class and shape is equal."""

    @property
    def _free(self) -> int:
        """How many leading dimensions the shape algebra may touch."""
        return len(self._shape)

    @property
    def _label(self) -> str:
        """The name that is printed."""
        return type(self).__name__

    # ------------------------------------------------------------------ membership

    def is_in(self, value: Any) -> bool:
        """Whether shape, dtype and domain fit."""
        return self._fault(value, None) is None

    def assert_is_in(self, value: Any) -> None:
        """Raise unless `is_in`.

        Raises:
            SpecError: Names the key, what was expected, and what came.
        """
        fault = self._fault(value, None)
        if fault is not None:
            where = f"entry {key_str(fault.path)} of {self._label}" if fault.path else self._label
            raise SpecError(f"{where} expected {fault.expected}, got {fault.got}")

    # ------------------------------------------------------------------ what only some specs can do

    def _cannot(self, what: str) -> NoReturn:
        raise SpecError(f"{self._label} of shape {tuple(self._shape)} {what}")

    def cardinality(self) -> int | float:
        """How many values the spec has; infinite if it is not discrete."""
        return float("inf")

    def enumerate(self) -> Any:
        """All values, ``[cardinality, *shape]``.

        Raises:
            SpecError: If there are infinitely many, or more than fit in memory.
        """
        self._cannot("cannot be enumerated: it has infinitely many values")

    def index(self, index: Any, tensor: Any) -> Any:
        """Return the entries of `tensor` that a value of this spec chooses.

        Args:
            index: Values of this spec, ``[*B, *shape]``.
            tensor: One number for each class, classes last.

        Raises:
            SpecError: If values of this spec choose nothing.
        """
        self._cannot("does not choose among classes: index() needs a categorical or one-hot spec")

    def to_one_hot(self, value: Any) -> Any:
        """Return the same choice as a one-hot vector.

        Raises:
            SpecError: If values of this spec choose nothing.
        """
        self._cannot("has no one-hot form")

    def to_categorical(self, value: Any) -> Any:
        """Return the same choice as an integer.

        Raises:
            SpecError: If values of this spec choose nothing.
        """
        self._cannot("has no categorical form")

    def to_one_hot_spec(self) -> TensorSpec:
        """Return the spec of what `to_one_hot` returns."""
        self._cannot("has no one-hot form")

    def to_categorical_spec(self) -> TensorSpec:
        """Return the spec of what `to_categorical` returns."""
        self._cannot("has no categorical form")

    def memoize_encode(self, mode: bool = True) -> None:  # noqa: B027, FBT001, FBT002  TorchRL's signature
        """Do nothing: TorchRL's switch of a cache, without which `encode` is fast enough here."""

    def erase_memoize_cache(self) -> None:  # noqa: B027
        """Do nothing: see `memoize_encode`."""

    def update_mask(self, mask: Any) -> None:
        """Allow only some classes from now on, in place.

        Args:
            mask: Bool, true where a class is allowed, classes last; None allows all.

        Raises:
            SpecError: If the spec has no classes, the shape is wrong, or nothing is left.
        """
        self._cannot("takes no mask")

    # ------------------------------------------------------------------ shape algebra

    def _touch(self, ndim: int, operation: Callable[[Tensor], Any], what: str) -> Any:
        """Apply a shape operation that leaves all but the first `ndim` dimensions alone."""
        self._check_free(ndim, what)
        try:
            positions = operation(flat_positions(self._shape[:ndim]))
        except (RuntimeError, IndexError) as error:
            kind = SpecIndexError if isinstance(error, IndexError) else SpecError
            raise kind(f"{what} does not fit {self._label} of shape {tuple(self._shape)}: {error}") from error
        if isinstance(positions, Tensor):
            return self._gather(positions, ndim)
        return tuple(self._gather(part, ndim) for part in positions)

    def _check_free(self, ndim: int, what: str) -> None:
        if ndim > self._free:
            raise SpecError(
                f"{what} would change dimension {self._free} of {self._label} of shape {tuple(self._shape)},"
                f" which belongs to its values: only the first {self._free} dimensions can change"
            )

    def _dim(self, dim: int, extra: int = 0) -> int:
        """Return a dimension counted from the front."""
        ndim = len(self._shape) + extra
        if not -ndim <= dim < ndim:
            raise SpecError(f"{self._label} of shape {tuple(self._shape)} has no dimension {dim}")
        return dim % ndim

    def expand(self, *shape: Any) -> Self:
        """Return the spec repeated along new leading dimensions and along dimensions of size 1; -1 keeps a size."""
        sizes = as_size(*shape)
        offset = len(sizes) - len(self._shape)
        if offset < 0:
            raise SpecError(f"cannot expand {self._label} of shape {tuple(self._shape)} to {tuple(sizes)}")
        target = torch.Size(
            self._shape[i - offset] if size == -1 and i >= offset else size for i, size in enumerate(sizes)
        )
        ndim = len(self._shape) - suffix_length(self._shape, target)
        lead = target[: offset + ndim]
        return self._touch(ndim, lambda i: i.expand(lead), f"expand{tuple(sizes)}")

    def squeeze(self, dim: int | None = None) -> Self:
        """Without dimension `dim` if its size is 1; without all such dimensions if None."""
        if dim is None:
            return self._touch(self._free, lambda i: i.squeeze(), "squeeze()")
        place = self._dim(dim)
        if self._shape[place] != 1:
            return self
        return self._touch(place + 1, lambda i: i.squeeze(place), f"squeeze({dim})")

    def unsqueeze(self, dim: int) -> Self:
        """With a new dimension of size 1 in place `dim`."""
        place = self._dim(dim, extra=1)
        return self._touch(place, lambda i: i.unsqueeze(place), f"unsqueeze({dim})")

    def reshape(self, *shape: Any) -> Self:
        """Return the elements in row-major order in another shape."""
        if -1 in self._shape:
            self._cannot("is ragged and cannot be reshaped")
        sizes = resolve_sizes(as_size(*shape), self.numel())
        if prod(sizes) != self.numel():
            raise SpecError(f"cannot reshape {self._label} of shape {tuple(self._shape)} to {tuple(sizes)}")
        same = suffix_length(self._shape, sizes) if self.numel() else 0
        lead = sizes[: len(sizes) - same]
        return self._touch(len(self._shape) - same, lambda i: i.reshape(lead), f"reshape{tuple(sizes)}")

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Dimensions from `start_dim` to `end_dim`, both included, as one."""
        if not self._shape:
            return self.reshape(1)
        start, end = self._dim(start_dim), self._dim(end_dim)
        if start == end:
            return self
        return self._touch(end + 1, lambda i: i.flatten(start, end), f"flatten({start_dim}, {end_dim})")

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Dimension `dim` as several."""
        place = self._dim(dim)
        return self._touch(place + 1, lambda i: i.unflatten(place, tuple(sizes)), f"unflatten({dim}, {tuple(sizes)})")

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the specs of the slices along `dim`."""
        place = self._dim(dim)
        return self._touch(place + 1, lambda i: i.unbind(place), f"unbind({dim})")

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Return the slices `index` along `dim`."""
        place = self._dim(dim)
        return self._touch(place + 1, lambda i: i.index_select(place, index.cpu()), f"index_select({dim}, {index})")

    def __getitem__(self, index: Any) -> Any:
        entries, ndim = complete_index(index, len(self._shape))
        return self._touch(ndim, lambda i: pick(i, entries), f"index {index!r}") if entries else self.clone()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def repeat_along(self, count: int, dim: int) -> Self:
        """Compute ``torch.stack([spec] * count, dim)``."""
        place = self._dim(dim, extra=1)
        lead = self._shape[:place]
        return self._touch(place, lambda i: i.unsqueeze(-1).expand(*lead, count), f"stack along {dim}")

    def clone(self) -> Self:
        """Return a copy that shares nothing that can be changed."""
        return self._gather(flat_positions(()), 0)

    def cpu(self) -> Self:
        """Return the spec on the CPU."""
        return self.to("cpu")

    # ------------------------------------------------------------------ comparison, torch functions

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return (
            type(self) is type(other)
            and self._shape == other._shape
            and self._dtype == other._dtype
            and self._device == other._device
            and self._same(other)
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a mask can change in place

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """``torch.stack``, and the functions that are methods here."""
        name = getattr(func, "__name__", "")
        if name == "stack":
            return TensorSpec._stack(*args, **(kwargs or {}))
        if name in _TORCH_FUNCTIONS:
            return getattr(args[0], name)(*args[1:], **(kwargs or {}))
        return NotImplemented


_TORCH_FUNCTIONS = frozenset(
    {"flatten", "index_select", "reshape", "squeeze", "unbind", "unflatten", "unsqueeze", "clone"}
)
