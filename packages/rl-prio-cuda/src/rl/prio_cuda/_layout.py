"""Buffer layout of the CUDA tree, the same as in rl-native.

A head of 128 bytes, the levels of nodes from the root down, then the leaves in blocks of 16. A node holds the sums
(float64), smallest and largest priorities of its 8 children.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

from rl.core.errors import CheckpointError, SpecError

__all__ = ["ERROR_WORDS", "HEAD", "MAGIC", "Layout", "layout", "read_head"]

MAGIC = b"rltree1\0"
HEAD = 128
ERROR_WORDS = 3
"""int64 words at the start of every workspace: code, place in the batch, bits of the offending float64."""

_BLOCK, _FAN = 16, 8
_MOST = 2**46
_NEAR = 2**20  # bytes of a tree that a processor's cache holds
_HEAD = struct.Struct("<8sqq3d")  # magic, capacity, bits of a leaf, total, min, max


@dataclass(frozen=True)
class Layout:
    """A tree's layout, in bytes from the start of its buffer.

    Args:
        capacity: number of leaves.
        bits: of a leaf, 32 or 64.
        at: of each level, lowest first; the last one is the root.
        children: blocks or nodes below each level.
        leaves: where the leaves begin.
        size: of the whole buffer.
    """

    capacity: int
    bits: int
    at: tuple[int, ...]
    children: tuple[int, ...]
    leaves: int
    size: int

    def reach(self, n: int) -> int:
        """Children that a level has at most if a batch of `n` makes all of them again, as in ``rl_whole``."""
        return 2 * n if self.size <= _NEAR else n

    @property
    def padded(self) -> int:
        """Number of leaves for which there is room."""
        return (self.size - self.leaves) // (self.bits // 8)


@cache
def layout(capacity: int, bits: int) -> Layout:
    """The layout of a tree.

    Raises:
        SpecError: if there cannot be such a tree.

    Example:
        >>> layout(1000, 32).size
        5376
    """
    if bits not in (32, 64):
        raise SpecError(f"priority tree: the dtype has {bits} bits; it is torch.float32 or torch.float64")
    if not 1 <= capacity <= _MOST:
        raise SpecError(f"priority tree: the capacity is {capacity}; it is at least 1 and at most 2^46")
    children: list[int] = []
    below = -(-capacity // _BLOCK)
    while not children or below > 1:
        children.append(below)
        below = -(-below // _FAN)
    size, at = HEAD, [0] * len(children)
    for level in reversed(range(len(children))):
        at[level] = size
        size += -(-children[level] // _FAN) * (128 if bits == 32 else 192)
    leaves = size
    size += -(-children[0] // _FAN) * _FAN * _BLOCK * (bits // 8)
    return Layout(capacity, bits, tuple(at), tuple(children), leaves, size)


def read_head(head: bytes, size: int) -> tuple[int, int]:
    """Capacity and bits of a leaf of the tree in a buffer.

    Args:
        head: the first bytes of the buffer.
        size: bytes of the whole buffer.

    Raises:
        CheckpointError: if it holds no tree.
    """
    if len(head) >= _HEAD.size:
        magic, capacity, bits, *_ = _HEAD.unpack_from(head)
        if magic == MAGIC and bits in (32, 64) and 1 <= capacity <= _MOST and layout(capacity, bits).size == size:
            return capacity, bits
    raise CheckpointError(f"priority tree: these {size} bytes hold no priority tree")
