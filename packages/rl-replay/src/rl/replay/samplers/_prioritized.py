"""Prioritized sampler: Schaul et al. 2016, "Prioritized Experience Replay"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, final

import torch
from torch import Tensor

from rl.core.arguments import as_integer, constructor_setting, one_of
from rl.core.backends import Backend
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import PriorityTree, Storage
from rl.core.keys import PRIORITY_WEIGHT
from rl.replay._arguments import check_rows
from rl.replay._priorities import (
    as_index,
    as_priority,
    check_exponent,
    check_finite,
    check_overflow,
    check_reduction,
    flat_priority,
    large_zeros,
    powers,
    write_in_order,
)
from rl.replay._priority_tree import check_device, find_tree
from rl.replay._state import Fields
from rl.replay.samplers._base import SamplerBase

_FIXED = ("eps", "reduction", "max_priority_within_buffer")  # arguments that are compared with a state

_disabled: list[Callable[..., Any]] = []  # `_draw` with `torch.compiler.disable`


@final
class PrioritizedSampler(SamplerBase):
    """Prioritized sampler with replacement.

    Row i has the probability ``P(i) = p_i / sum(p)`` with ``p_i = (|raw_i| + eps) ** alpha``, eq. 1 of Schaul et al.
    2016. The info of a sample has ``priority_weight``
    ``(p_i / p_min) ** -beta``: their importance weights (section 3.4) over the largest that a row of the buffer can
    have. A raw priority of zero with ``eps=0`` is never sampled and is left out of ``p_min``.

    New rows get the largest raw priority of all updates, at least 1.0, so that each is likely to be sampled soon.

    Args:
        max_capacity: Largest number of rows; `max_size` of the storage.
        alpha: Exponent of the priorities; 0 is uniform. May be set later: powers are recomputed from raw priorities.
        beta: Exponent of the importance weights; 1 corrects the bias fully. May be set later.
        eps: Number that is added to the absolute raw priority.
        dtype: Dtype of priorities and weights, `torch.float32` or `torch.float64`.
        reduction: Reduction of several raw priorities of one row to one: ``"max"``, ``"min"``, ``"mean"``,
            ``"median"``.
        max_priority_within_buffer: Whether new rows get the largest raw priority of the stored rows (1.0 if none is
            above zero), which takes a pass over them.
        backend: Name of the priority tree: ``"native"`` (package rl-native), ``"cuda"``, ``"torch"``, that of another
            plugin; ``"auto"`` selects the first that is available.
        device: Device of the priorities; if None the CPU, for ``backend="cuda"`` the current CUDA device.
        compilable: Whether to allow `sample` in a compiled function. The torch tree reads values and is one graph
            break; a tree of registered operations has none, unless a `generator` is given. `update_priority` can be
            compiled with such a tree; with the torch tree, call it outside of the compiled function.
        stratified: Whether to sample one row from each of n equal parts of the total: same probabilities, less
            variance.

    Raises:
        ArgumentError: If an argument is out of its range.
        BackendError: If the named back end is not installed.

    Example:
        >>> from rl.replay.storages import TensorStorage
        >>> sampler = PrioritizedSampler(3, alpha=1.0, beta=1.0, eps=0.0, backend="torch")
        >>> sampler.extended(torch.arange(3), None)
        >>> sampler.update_priority(torch.arange(3), torch.tensor([0.0, 1.0, 4.0]))
        >>> index, info = sampler.sample(TensorStorage(torch.arange(3)), 100)
        >>> sorted(set(zip(index.tolist(), info["priority_weight"].tolist())))
        [(1, 1.0), (2, 0.25)]
    """

    def __init__(  # noqa: PLR0913  the arguments that users know, and where it computes
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,  # noqa: FBT001, FBT002  the order of arguments that users know
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        compilable: bool = False,
        stratified: bool = False,
    ) -> None:
        owner = type(self).__name__
        capacity = as_integer(max_capacity, owner, "max_capacity", 1)
        one_of(dtype, owner, "dtype", (torch.float32, torch.float64))
        check_reduction(owner, reduction)
        self._capacity: Final = capacity
        self._eps: Final = check_exponent(owner, "eps", eps)
        self._dtype: Final = dtype
        self.reduction: Final = reduction
        self.max_priority_within_buffer: Final = max_priority_within_buffer
        self.stratified: Final = stratified
        self.compilable: Final = compilable
        self._alpha = check_exponent(owner, "alpha", alpha)
        self._beta = check_exponent(owner, "beta", beta)
        check_overflow(owner, torch.ones(1, device="cpu"), self.eps, self._alpha, dtype, of_new_rows=True)
        by_name = device is None and backend == "cuda"
        where = check_device(owner, "cuda", backend=backend) if by_name else check_device(owner, device or "cpu")
        with torch.inference_mode(mode=False):  # else nothing could be written outside of that mode
            tree, self._backend = find_tree(owner, backend, capacity, where, dtype)
            self._raw, self._rows = large_zeros(capacity, dtype, where), 0  # rows with a priority, always the first
            self._largest = torch.ones((), dtype=dtype, device=where)
        self._tree: Final[PriorityTree] = tree
        self._one_break = compilable and self._backend.name == "torch"
        if self._one_break and not _disabled:
            _disabled.append(torch.compiler.disable(_draw))  # here, because it imports the compiler
        self._sample_weighted = getattr(tree, "sample_weighted", None)
        self._update_from_errors = getattr(tree, "update_from_errors", None)
        self._check: Callable[[], None] | None = getattr(tree, "check", None)
        self._device = self._raw.device

    max_capacity: int = constructor_setting("_capacity")
    """Largest number of rows."""
    eps: Final[float] = constructor_setting("_eps")
    """Number that is added to the absolute raw priority."""
    dtype: Final[torch.dtype] = constructor_setting("_dtype")
    """Dtype of priorities and weights."""

    @property
    def backend(self) -> Backend:
        """The selected priority tree and the reason."""
        return self._backend

    @property
    def device(self) -> torch.device:
        """Device of the priorities."""
        return self._tree.device

    @property
    def alpha(self) -> float:
        """Exponent of the priorities. Setting it recomputes all powers from raw priorities, in one pass."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        value = check_exponent(type(self).__name__, "alpha", value)
        if value != self._alpha:
            self.check()
            self._check_new_rows(value, self._largest)
            rows = torch.arange(self._rows, device=self._raw.device)
            self._write_tree(rows, self._raw[: self._rows], value)
            self._alpha = value

    @property
    def beta(self) -> float:
        """Exponent of the importance weights."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = check_exponent(type(self).__name__, "beta", value)

    def attach(self, storage: Storage) -> None:
        """Give the stored rows, such as a dataset, the priority of new rows; called by the buffer."""
        if len(storage) > self._rows:
            self._catch_up(len(storage))

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices ``[batch_size]`` int64, with ``priority_weight`` ``[batch_size]`` in (0, 1].

        Rows that were written past the buffer are new rows.

        Raises:
            ArgumentError: If `batch_size` is below 1.
            ContractError: If the storage is empty, has fewer rows than before or more than `max_capacity`, or all
                priorities are zero.
        """
        rows = len(storage)
        if rows != self._rows or batch_size < 1 or not rows:
            self._catch_up(check_rows("PrioritizedSampler", storage, batch_size))
        try:
            if self._sample_weighted is not None:
                index, weight = self._sample_weighted(
                    batch_size, self._beta, generator=generator, stratified=self.stratified
                )
            else:
                draw = _disabled[0] if self._one_break and _disabled else _draw
                index, priority = draw(self._tree, batch_size, generator, stratified=self.stratified)
                weight = (priority / self._tree.min()).pow_(-self._beta)
        except ValueError as error:
            raise ContractError(
                f"PrioritizedSampler: {error}; give rows a priority above zero, or the sampler eps above zero"
            ) from error
        return index, {PRIORITY_WEIGHT: weight}

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Give the rows that were just written the priority of new rows.

        Args:
            index: Indices int64 ``[n]``, on the CPU; one on another device makes the host wait.
            data: Unused.
        """
        rows = max(self._rows, int(index.max()) + 1) if self._rows < self._capacity else self._rows
        if rows > self._capacity:
            self._raise_capacity(rows)
        index = as_index("PrioritizedSampler", index, self._raw.device)
        if self.max_priority_within_buffer:
            self._raw.index_fill_(0, index, 0)  # of overwritten rows
        self._write(index, self._of_new_rows().expand(len(index)).contiguous(), rows)
        self._rows = rows

    def check_priority(self, priority: Any, rows: int) -> Tensor:
        """Validate raw priorities ``[rows, ...]`` and reduce them to ``[rows]``; writes nothing.

        Raises:
            ShapeError: If there is not one row of priorities for each row.
            ArgumentError: If one, or its power, is infinite or NaN.
        """
        priority = as_priority("PrioritizedSampler", priority, rows, self.reduction, self._raw)
        check_finite("PrioritizedSampler", priority)
        check_overflow("PrioritizedSampler", priority, self._eps, self._alpha, self._dtype)
        return priority

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set raw priorities, usually TD errors; of a repeated index the last one is kept.

        Args:
            index: Indices int64 ``[n]`` or ``[*B]``, or an int.
            priority: ``[n, ...]`` or ``[*B, ...]``, or one number for all. Its absolute value is used; trailing
                dimensions are reduced.

        Raises:
            IndexError: If an index is not that of a stored row.
            ArgumentError: If an index is not an integer, or a priority or its power is infinite or NaN.
            ShapeError: If there is not one row of priorities for each index. In each case nothing is written.
        """
        if not self._is_converted(index, priority):
            priority = flat_priority(index, priority)
            index = as_index("PrioritizedSampler", index, self._raw.device)
            priority = as_priority("PrioritizedSampler", priority, len(index), self.reduction, self._raw)
            if not len(index):
                return
        self._write(index, priority, self._rows, self._largest)

    def exclude(self, index: Tensor) -> None:
        """Do not sample the rows `index` ``[n]`` until `include` or a write of them, or of their priority.

        Their raw priorities are kept. Setting `alpha` includes all rows again.

        Raises:
            IndexError: If an index is outside of `max_capacity`; nothing is changed then.
        """
        if len(index):
            self._tree.update(index.to(self._device), self._raw.new_zeros(len(index)))

    def include(self, index: Tensor) -> None:
        """Sample the rows `index` ``[n]`` by their raw priorities again.

        Raises:
            IndexError: If an index is outside of `max_capacity`; nothing is changed then.
        """
        if len(index):
            index = index.to(self._device)
            self._write_tree(index, self._raw.index_select(0, index), self._alpha)

    def update_priorities(self, index: Any, priority: Any) -> None:
        """Alias of `update_priority`."""
        self.update_priority(index, priority)

    def check(self) -> None:
        """Wait for the device, and raise for an invalid update since the last check.

        On an accelerator `update_priority` does not wait: an invalid update writes nothing and is reported here, by
        `state_dict` and when `alpha` is set. On a CPU every call raises at once, and this does nothing.

        Raises:
            IndexError: If an index was outside of the rows that are stored.
            ArgumentError: If a priority was infinite or NaN, or all were zero at a sample.
        """
        if self._check is not None:
            self._check()

    def empty(self) -> None:
        """Remove all priorities; new rows get 1.0."""
        self._truncate(0)
        self._largest.fill_(1)

    def state_dict(self) -> dict[str, Any]:
        """Raw priorities, their powers, and exponents.

        A sampler with another back end loads the same priorities, but only the same back end samples the same rows.
        """
        self.check()
        rows = torch.arange(self._rows, device=self._raw.device)
        return {
            "alpha": self._alpha,
            "beta": self._beta,
            **{name: getattr(self, name) for name in _FIXED},
            "raw": self._raw[: self._rows].clone(),
            "priority": self._tree.get(rows).clone(),
            "largest": self._largest.clone(),
        }

    def adopt(self, twin: Any) -> None:
        """Continue as `twin`, with the tree of this sampler, to which compiled code refers."""
        raw, largest = self._raw, self._largest
        super().adopt(twin)
        loaded, self._raw = self._raw, raw
        self._largest, powers = largest.copy_(self._largest), vars(self).pop("_powers")
        self._tree.update(torch.arange(len(loaded), device=self._device), powers.to(self._device))
        self._truncate(len(loaded))
        self._raw[: len(loaded)] = loaded

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields = Fields(type(self).__name__, state, ("alpha", "beta", *_FIXED, "raw", "priority", "largest"))
        fields.match(**{name: getattr(self, name) for name in _FIXED})
        self._alpha, self._beta = (check_exponent(fields.owner, name, fields[name]) for name in ("alpha", "beta"))
        self._raw, self._powers = (fields.tensor(name, self._dtype, 1) for name in ("raw", "priority"))
        self._largest = fields.tensor("largest", self._dtype, 0)
        limit = self._capacity if max_size is None else min(self._capacity, max_size)
        if not len(self._raw) == len(self._powers) <= (limit if rows is None else rows):
            fields.fail(
                f"it has {len(self._raw)} raw priorities and {len(self._powers)} in the tree, for {limit} rows at most"
                f" (max_capacity={self._capacity}) and a storage with {rows}"
            )
        valid = self._raw.isfinite().all() and (self._powers.isfinite() & (self._powers >= 0)).all()
        if not (valid and 0 <= self._largest < torch.inf):
            fields.fail("a value of raw, priority or largest is negative, infinite or NaN")
        self._check_new_rows(self._alpha, self._largest)

    def __repr__(self) -> str:
        return (
            f"PrioritizedSampler(max_capacity={self._capacity}, alpha={self.alpha}, beta={self.beta}, "
            f"backend={self._backend.name})"
        )

    def _is_converted(self, index: Any, priority: Any) -> bool:
        """Return whether both need no conversion before `_write`, the common case."""
        return (
            type(index) is Tensor
            and type(priority) is Tensor
            and index.dim() == priority.dim() == 1
            and index.numel() == priority.numel() > 0
            and index.dtype is torch.int64
            and priority.dtype is self._dtype
            and not priority.requires_grad
            and index.device == self._device == priority.device
        )

    def _write(self, index: Tensor, raw: Tensor, rows: int, largest: Tensor | None = None) -> None:
        """Write raw priorities at indices below `rows` into the tree and into `_raw`; nothing if one is invalid.

        A tree with `update_from_errors` does all in one call, without reading values on the host.
        """
        if self._update_from_errors is not None:
            try:
                self._update_from_errors(index, raw, self._eps, self._alpha, raw=self._raw, largest=largest, rows=rows)
            except (IndexError, ValueError) as error:
                self._raise_update(raw, self._alpha, error)
            return
        if rows < self._capacity and (largest is not None) and int(index.max()) >= rows:
            self._raise_update(raw, self._alpha, IndexError(f"index {int(index.max())} is outside [0, {rows})"))
        self._write_tree(index, raw, self._alpha)  # first, because it validates before it writes
        write_in_order(self._raw, index, raw)
        if largest is not None:
            torch.maximum(largest, torch.linalg.vector_norm(raw, torch.inf), out=largest)

    def _write_tree(self, index: Tensor, raw: Tensor, alpha: float) -> None:
        try:
            if self._update_from_errors is not None:
                self._update_from_errors(index, raw, self._eps, alpha)
            else:
                self._tree.update(index, powers("PrioritizedSampler", raw, self._eps, alpha))
        except (IndexError, ValueError) as error:
            self._raise_update(raw, alpha, error)

    def _raise_update(self, raw: Tensor, alpha: float, error: Exception) -> NoReturn:
        """Raise the error of a tree with the names of the sampler."""
        if isinstance(error, IndexError):
            reason = str(error).removesuffix("; nothing was written")
            raise IndexError(
                f"PrioritizedSampler: {reason}: not one of the {self._rows} rows that are stored; nothing was written"
            ) from error
        check_finite("PrioritizedSampler", raw)
        raise ArgumentError(f"PrioritizedSampler: with alpha={alpha}, {error}") from error

    def _check_new_rows(self, alpha: float, largest: Tensor) -> None:
        """Check that the priority of new rows is finite with `alpha`, before rows are written."""
        largest = torch.ones_like(largest) if self.max_priority_within_buffer else largest
        check_overflow("PrioritizedSampler", largest.view(1), self._eps, alpha, self._dtype, of_new_rows=True)

    def _of_new_rows(self) -> Tensor:
        if not self.max_priority_within_buffer:
            return self._largest
        inside = torch.linalg.vector_norm(self._raw[: self._rows], torch.inf) if self._rows else self._raw.new_zeros(())
        return torch.where(inside > 0, inside, torch.ones_like(inside))

    def _catch_up(self, rows: int) -> None:
        """Give stored rows without a priority that of new rows."""
        if rows > self._capacity:
            self._raise_capacity(rows)
        if rows < self._rows:
            raise ContractError(
                f"PrioritizedSampler: has priorities of {self._rows} rows, and the storage has {rows} rows; empty or "
                "load the buffer, not only its storage"
            )
        if rows > self._rows:
            self.extended(torch.arange(self._rows, rows, device="cpu"), None)

    def _raise_capacity(self, rows: int) -> None:
        raise ContractError(
            f"PrioritizedSampler: sized for max_capacity={self._capacity} rows, and the storage has {rows}; give it "
            "the max_size of the storage"
        )

    def _truncate(self, rows: int) -> None:
        gone = torch.arange(rows, max(self._rows, rows), device=self._raw.device)
        if len(gone):
            self._tree.update(gone, torch.zeros(len(gone), dtype=self._dtype, device=self._raw.device))
            self._raw[rows : self._rows] = 0
        self._rows = rows


def _draw(tree: PriorityTree, n: int, generator: torch.Generator | None, *, stratified: bool) -> tuple[Tensor, Tensor]:
    return tree.sample(n, generator=generator, stratified=stratified)
