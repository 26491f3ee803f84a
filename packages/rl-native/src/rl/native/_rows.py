"""Row gather in C: copies of sampled rows of all tensors of a storage in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from typing import Any, final

import torch
from torch import Tensor

from rl.core.errors import ArgumentError
from rl.native._library import require, why
from rl.native._tracing import is_traced

_empty = torch.empty
_INT64 = torch.int64
_DISPATCH = getattr(Tensor, "__torch_dispatch__", None)
_HEAD = 5  # fields of ``rl_gather_job``
_NOT_ALONG_ONE = {torch.uint16, torch.uint32, torch.uint64}  # index_select supports these for matrices only
_LARGE, _THREADS = 2**20, 3
"""Bytes of a sample above which this many threads of torch are faster."""


@cache
def _entry() -> Callable[[bytes], int]:
    from ctypes import c_char_p, c_int64

    function = require().rl_gather
    function.argtypes, function.restype = [c_char_p], c_int64
    return function


def _is_plain(tensor: Tensor) -> bool:
    """Return whether the tensor is an ordinary one whose rows are contiguous."""
    return (
        getattr(type(tensor), "__torch_dispatch__", None) is _DISPATCH  # others, such as fakes, may have no memory
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dim() > 0
        and tensor[:1].is_contiguous()
        and not (tensor.requires_grad or tensor.is_neg() or tensor.is_conj() or tensor.is_quantized)
    )


def _check_tensor(index: Any) -> None:
    if not isinstance(index, Tensor):
        raise ArgumentError(f"NativeRowGather: indices are a tensor, got {type(index).__name__}")


def _select(tensor: Tensor, index: Tensor) -> Tensor:
    if tensor.dim() == 1 and tensor.dtype in _NOT_ALONG_ONE:
        return tensor.unsqueeze(1).index_select(0, index).squeeze(1)
    return tensor.index_select(0, index)


@final
class NativeRowGather:
    """Row gather of tensors ``[capacity, ...]`` on the CPU, in one call of C.

    Selected by the hook `rl_row_gather`. Traced calls, indices that are not contiguous int64, tensors that `takes`
    rejects, and large samples with more than two threads of torch use `index_select`.

    Args:
        tensors: Tensors of one length, with contiguous rows of any stride.

    Raises:
        RLError: If there is no compiled library.
        ArgumentError: If one of them is no tensor, or has no dimension.

    Example:
        >>> gather = NativeRowGather([torch.arange(4), torch.eye(4)])
        >>> numbers, rows = gather.rows(4, torch.tensor([2, 0]))
        >>> numbers, rows
        (tensor([2, 0]), tensor([[0., 0., 1., 0.],
                [1., 0., 0., 0.]]))
        >>> gather.runs(4, torch.tensor([1, 2]), 2)[0]
        tensor([1, 2, 2, 3])
    """

    name = "native"

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        require()
        wrong = next((one for one in tensors if not isinstance(one, Tensor) or not one.dim()), self)  # pyright: ignore[reportUnnecessaryIsInstance] - C trusts what this checks
        if wrong is not self:
            found = f"one of shape {list(wrong.shape)}" if isinstance(wrong, Tensor) else f"a {type(wrong).__name__}"
            raise ArgumentError(f"NativeRowGather takes tensors [capacity, ...], got {found}")
        self._tensors = tuple(tensors)
        self._in_c = all(map(_is_plain, tensors))
        self._capacity = min((len(tensor) for tensor in tensors), default=0)
        self._kinds = [(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors]
        self._sizes = [
            (tensor.shape[1:].numel() * tensor.element_size(), tensor.stride(0) * tensor.element_size())
            for tensor in tensors
        ]
        self._row = sum(size for size, _ in self._sizes)
        self._pack = Struct(f"={_HEAD + 4 * len(self._tensors)}q").pack

    @staticmethod
    def takes(tensors: Sequence[Tensor]) -> bool:
        """Return whether this class supports the tensors.

        Example:
            >>> NativeRowGather.takes([torch.zeros(3), torch.zeros(4, 2)[::2]])
            True
            >>> NativeRowGather.takes([torch.zeros(3, 2).t()])  # the rows are not contiguous
            False
        """
        return bool(tensors) and all(map(_is_plain, tensors))

    @property
    def why(self) -> str:
        """The instruction set in use, for ``rl doctor``."""
        return why()

    def __reduce__(self) -> tuple[type[NativeRowGather], tuple[Any]]:
        return NativeRowGather, (self._tensors,)

    def __repr__(self) -> str:
        return f"NativeRowGather({len(self._tensors)} tensors, {self._row} bytes a row)"

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        """Return copies ``[n, ...]`` of the rows `index` ``[n]`` of each tensor.

        Raises:
            IndexError: If an index is outside ``[0, written)``; nothing is copied then.
            ArgumentError: If `index` is no tensor, or the storage of a tensor was freed.
        """
        _check_tensor(index)
        large = index.numel() * self._row > _LARGE
        if not self._in_c or self._needs_torch(index) or (large and torch.get_num_threads() >= _THREADS):
            return [_select(tensor[:written], index) for tensor in self._tensors]
        return self._copy(index, min(written, self._capacity), 1)

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        """Return copies ``[n * steps, ...]`` of the runs of `steps` rows that start at `begin` ``[n]``.

        Raises:
            IndexError: If a run is outside of the first `written` rows; nothing is copied then.
            ArgumentError: If `begin` is no tensor, or the storage of a tensor was freed.
        """
        _check_tensor(begin)
        if not self._in_c or self._needs_torch(begin):
            index = (begin.unsqueeze(1) + torch.arange(steps, device=begin.device)).reshape(-1)
            return [_select(tensor[:written], index) for tensor in self._tensors]
        return self._copy(begin, min(written, self._capacity) - steps + 1, steps)

    @staticmethod
    def _needs_torch(index: Tensor) -> bool:
        return (
            is_traced()
            or type(index) is not Tensor
            or index.dtype is not _INT64
            or not (index.is_cpu and index.dim() == 1 and index.is_contiguous())
        )

    def _is_freed(self, index: Tensor) -> bool:
        """Return whether a tensor with elements has no memory."""
        return any(tensor.numel() and not tensor.data_ptr() for tensor in (index, *self._tensors))

    def _copy(self, index: Tensor, limit: int, steps: int) -> list[Tensor]:
        count = index.numel()
        number = count * steps
        copies = [_empty((number, *shape), dtype=dtype, device="cpu") for shape, dtype in self._kinds]
        job: list[int] = [len(copies), count, steps, limit, index.data_ptr()]
        # Memory can move between calls: a tensor that becomes shared gets a new address.
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        if not (job[-1] and all(addresses)) and self._is_freed(index):
            raise ArgumentError("NativeRowGather: a tensor has no memory, because its storage was freed")
        for sizes, address, copy in zip(self._sizes, addresses, copies, strict=True):
            job += (*sizes, address, copy.data_ptr())
        wrong = _entry()(self._pack(*job))
        if wrong >= 0:
            run = f"; a run has {steps} rows" if steps > 1 else ""
            raise IndexError(f"index {int(index[wrong])} is outside [0, {max(limit, 0)}){run}")
        return copies
