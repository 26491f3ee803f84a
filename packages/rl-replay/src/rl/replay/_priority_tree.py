"""Priority tree in plain torch."""

from __future__ import annotations

from math import nextafter
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rl.core.backends import AUTO, NATIVE, Accelerator, Backend, missing_native, select, warn_slow
from rl.core.errors import ArgumentError, BackendError
from rl.core.interfaces import PriorityTree
from rl.replay._priorities import checked_total, checked_update, uniform, write_in_order, zeros
from rl.replay._untraced import untraced

_ONE_LEVEL = 65_536
"""Up to this capacity one cumulative sum over all priorities is as fast as two levels."""

_SORTED = 512  # from this many random numbers sorting them costs less than the cache misses of an unsorted search
_CHUNK = 4096  # random numbers whose blocks fit into the cache of a core


@final
class PrefixTree:
    """Priorities and the cumulative sum over their blocks; a `rl.core.interfaces.PriorityTree` for every device.

    `update` writes priorities and marks their blocks as changed. The next call that needs sums recomputes those of the
    changed blocks from the priorities, so that rounding errors do not accumulate. `sample` finds the block of a random
    number by binary search, and then the priority in the block. Sums are float64, since float32 does not resolve 10^6
    priorities.

    Args:
        capacity: Number of priorities, at least 1.
        device: Device of the priorities.
        dtype: Dtype of the priorities.
        block: Number of priorities in a block; if None, 1 up to 65,536 priorities, above that about the square root of
            capacity / 256.

    Example:
        >>> tree = PrefixTree(4)
        >>> tree.update(torch.tensor([1, 3]), torch.tensor([1.0, 3.0]))
        >>> tree.total(), sorted(set(tree.sample(100)[0].tolist()))
        (tensor(4., dtype=torch.float64), [1, 3])
    """

    name = "torch"

    def __init__(
        self,
        capacity: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        block: int | None = None,
    ) -> None:
        self.capacity: Final = capacity
        self.device: Final = torch.device(device)
        self.dtype: Final = dtype
        if block is None:
            block = 1 if capacity <= _ONE_LEVEL else 1 << (capacity // 256).bit_length() // 2
        blocks = -(-capacity // block)
        self.why: Final = f"cumulative sum over {blocks} blocks of {block} priorities, in plain torch"
        self._block: Final = block
        self._leaves = zeros((blocks, block), dtype, device)
        self._sums = zeros(blocks, torch.float64, device)
        self._below = zeros(blocks, torch.float64, device)  # the largest number below the sum of each block
        self._ends = zeros(blocks + 1, torch.float64, device)  # cumulative sum of the blocks, from 0 to the total
        self._mins = torch.full((blocks,), torch.inf, dtype=dtype, device=device)  # smallest priority above zero
        self._changed = torch.zeros(blocks, dtype=torch.bool, device=device)
        self._stale = False

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]`` at ``[n]``; of a repeated index the last one counts.

        Raises:
            IndexError: If an index is outside ``[0, capacity)``.
            ValueError: If a priority is negative, infinite or NaN, or the shapes differ.
        """
        if is_dynamo_compiling():
            untraced(self.update)(index, priority)
            return
        index, priority = checked_update(self, index, priority)
        if not index.numel():
            return
        write_in_order(self._leaves.view(-1), index, priority)
        if self._block > 1:
            self._changed.index_fill_(0, index // self._block, value=True)
        self._stale = True

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Sample indices ``[n]`` in proportion to priority; returns them and their priorities ``[n]``.

        Raises:
            ValueError: If the total is zero or infinite.
        """
        if is_dynamo_compiling():
            return untraced(self.sample)(n, generator=generator, stratified=stratified)
        self._add_up()
        total = checked_total(self._ends[-1].item())
        mark = uniform(n, self.device, generator, stratified=stratified)
        mark.mul_(nextafter(total, 0))  # below the total, so that there is a larger sum
        if n < _SORTED:
            index = self._search(mark)
        else:
            mark, order = mark.sort()
            index = torch.empty_like(order).index_copy_(0, order, self._search(mark))
        return index, self._leaves.view(-1).index_select(0, index)

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]``."""
        return self._leaves.view(-1)[: self.capacity][index]

    def total(self) -> Tensor:
        """Sum of all priorities, float64 scalar."""
        if is_dynamo_compiling():
            return untraced(self.total)()
        self._add_up()
        return self._ends[-1].clone()

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        if is_dynamo_compiling():
            return untraced(self.min)()
        if self._block == 1:
            return _least_above_zero(self._leaves.view(1, -1))[0]
        self._add_up()
        return self._mins.amin()

    def max(self) -> Tensor:
        """Largest priority; zero if there is none."""
        return self._leaves.amax()

    def _add_up(self) -> None:
        """Recompute the sums that changed since the last call."""
        if not self._stale:
            return
        if self._block == 1:
            sums = self._leaves.view(-1)
        else:
            sums, changed = self._sums, _nonzero(self._changed)
            leaves = self._leaves.index_select(0, changed)
            new = _running(leaves)[:, -1]
            sums.index_copy_(0, changed, new)
            self._below.index_copy_(0, changed, torch.nextafter(new, new.new_zeros(())))
            self._mins.index_copy_(0, changed, _least_above_zero(leaves))
            self._changed.zero_()
        _running(sums, out=self._ends[1:])
        self._stale = False

    def _search(self, mark: Tensor) -> Tensor:
        """Return the first priority at which the cumulative sum exceeds each mark; it is above zero."""
        block = torch.searchsorted(self._ends[1:], mark, right=True)
        if self._block == 1:
            return block
        # Rounding could lift the rest of a mark to the sum of its block.
        rest = torch.minimum(mark - self._ends.index_select(0, block), self._below.index_select(0, block))
        inside = [
            torch.searchsorted(_running(self._leaves.index_select(0, some)), left.unsqueeze(1), right=True)
            for some, left in zip(block.split(_CHUNK), rest.split(_CHUNK), strict=True)
        ]
        return torch.cat(inside).squeeze_(1).add_(block, alpha=self._block)


def _nonzero(mask: Tensor) -> Tensor:
    """Return indices of the true elements ``[n]`` of a mask; on a CPU by NumPy, which is faster if few are true."""
    return torch.from_numpy(mask.numpy().nonzero()[0]) if mask.is_cpu else mask.nonzero().squeeze(1)


def _running(values: Tensor, out: Tensor | None = None) -> Tensor:
    """Cumulative sum along the last dimension, float64; a zero repeats the sum before it exactly."""
    running = torch.cumsum(values, -1, dtype=torch.float64, out=out)
    if values.is_cpu:
        return running  # sums in order
    # A parallel sum may be rounded differently at a zero, and even decrease.
    increasing = running.masked_fill_(values == 0, 0).cummax(-1).values
    return increasing if out is None else out.copy_(increasing)


def _least_above_zero(leaves: Tensor) -> Tensor:
    """Of each row; infinity if there is none."""
    least = leaves.amin(-1)
    if least.is_cpu and bool(least.all()):
        return least
    return leaves.masked_fill(leaves == 0, torch.inf).amin(-1)


_HOOK = "rl_priority_tree"
_TORCH = "torch"
_INSTALL_NATIVE = 'pip install "rl-replay[native]"'
_ACCELERATORS = {
    "native": Accelerator(NATIVE.distribution, _INSTALL_NATIVE, "cpu"),
    "cuda": Accelerator("rl-prio-cuda", "pip install rl-prio-cuda", "cuda"),
}


def check_device(owner: str, device: torch.device | str, *, backend: str = AUTO) -> torch.device:
    """Check that this machine has `device`, and return it.

    Args:
        owner: Component that messages name.
        device: Device or its name.
        backend: Back end that needs the device, if that is the reason.

    Raises:
        ArgumentError: If it is not a device.
        BackendError: If torch is built without it, or it is absent; with the remedy.

    Example:
        >>> check_device("Sampler", "cpu")
        device(type='cpu')
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"{owner}: device must be a device such as 'cpu' or 'cuda:0', got {device!r}") from error
    if place.type in ("cpu", "meta"):
        return place
    reason = _missing_device(place)
    if reason and backend in _ACCELERATORS:
        raise BackendError(
            f"{owner}: backend {backend!r} needs a {place} device, and `{_ACCELERATORS[backend].install}`: {reason};"
            " backend='auto' selects an installed one"
        )
    if reason:
        raise BackendError(f"{owner}: device {place}: {reason}; storage and sampler take device='cpu'")
    return place


def _missing_device(device: torch.device) -> str:
    if device.type == "cuda":
        if torch.version.cuda is None and torch.version.hip is None:
            return "this torch is built without CUDA"
        count = torch.cuda.device_count()
        if not count or not torch.cuda.is_available():
            return "no CUDA device is available"
        if (device.index or 0) >= count:
            return f"the last CUDA device is cuda:{count - 1}"
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, ImportError) as error:  # the type depends on the device
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        return f"torch cannot use it ({reason or type(error).__name__})"
    return ""


def find_tree(
    owner: str, backend: str, capacity: int, device: torch.device, dtype: torch.dtype
) -> tuple[PriorityTree, Backend]:
    """Create a priority tree, and return it with the reason for its selection.

    Args:
        owner: Component that messages name.
        backend: Name of the back end, or ``"auto"`` for the first that is available.
        capacity: Number of priorities.
        device: Device of the priorities.
        dtype: Dtype of the priorities.

    Raises:
        BackendError: If the named back end is absent; with the command that installs it.
    """
    if backend == _TORCH:
        tree = PrefixTree(capacity, device, dtype)
        return tree, Backend(_TORCH, "rl-replay", f"asked for by name ({tree.why})")
    arguments: dict[str, Any] = {"capacity": capacity, "device": device, "dtype": dtype}
    tree, found, _ = select(
        owner,
        _HOOK,
        arguments,
        where=f"{device} and {dtype}",
        fallback="rl-replay",
        name=backend,
        accelerators=_ACCELERATORS,
    )
    if backend != AUTO or found.distribution != "rl-replay":
        return tree, found
    if device.type != "cpu":
        reason = f"no installed plugin offers a faster tree for {device.type}"
        install = next((f": {known.install}" for known in _ACCELERATORS.values() if known.device == device.type), "")
        warn_slow(
            f"{owner} samples with plain torch on {device}, because {reason}{install}. backend='torch' selects it"
            " without this warning"
        )
    else:
        reason = missing_native(owner, _HOOK, install=_INSTALL_NATIVE)
        if reason != "RL_NATIVE=off":
            warn_slow(
                f"{owner} samples with plain torch, about ten times slower, because {reason}. backend='torch' selects"
                " it without this warning"
            )
    return tree, Backend(found.name, found.distribution, f"{reason} ({tree.why})")
