"""Which launch shape and which tiles a recurrence runs with: a small table, by size and device, nothing is tried out.

The shapes, and when `plan` takes them (the first that fits):

- ``resident``: one program has a tile of the batch, all columns and all steps; weights stay in shared memory, states in
  registers. Where the weights fit: H <= 64 for float32, H <= 128 for half types (less where shared memory is small).
- ``group``: H / columns programs share a tile of the batch; each keeps its columns of the weights in shared memory and
  hands its part of the state over after each step. They must all run at once, so what does not fit onto the device at
  once goes in several launches, at most `WAVES`.
- ``loop``: one program has a tile of the batch and all steps, and streams all weights in each step. Where the weights
  are so few that this is faster than a launch, `STREAMED` bytes.
- ``step``: one launch a step, over tiles of the batch and of the columns. All the rest.

Tiles follow what the compiler does with them: with 16 rows, warps lie side by side along the columns and each needs 8;
with as many rows as columns or more, along the rows, and each needs 16. More warps would compute the same again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from rl.core.errors import BackendError

if TYPE_CHECKING:
    import torch

__all__ = ["SHAPES", "Cell", "Device", "Direction", "Launch", "Properties", "Shape", "cdiv", "plan"]

Cell = Literal["lstm", "gru"]
Direction = Literal["forward", "backward"]
Shape = Literal["loop", "resident", "group", "step"]
SHAPES: tuple[Shape, ...] = ("resident", "group", "loop", "step")

WAVES = 4
"""Launches of a group: each costs about as much as all of it would, if the device were larger."""
STREAMED = 5 * 2**18
"""Bytes of weights that a loop streams in each step: about ten microseconds for one processor."""
EXACT = 128
"""Largest hidden size of a group with products in "ieee" or "tf32x3": all of a product is written out in its kernel."""
WIDE = 1024
"""Largest number of gates (slots times hidden size) of a group with tiles of 32 rows: with more its kernel spills."""
_SLOTS = {"lstm": 4, "gru": 3}
_SPARE = 24 * 1024  # bytes of shared memory for what is not weights: gates and gradients on their way between layouts


class Properties(Protocol):
    """What is asked of a device; `torch.cuda.get_device_properties` has it."""

    @property
    def multi_processor_count(self) -> int: ...
    @property
    def shared_memory_per_block_optin(self) -> int: ...


class Device(NamedTuple):
    """A device by its numbers, where there is none to ask."""

    multi_processor_count: int
    shared_memory_per_block_optin: int


@dataclass(frozen=True)
class Launch:
    """A launch shape and its tiles.

    Args:
        shape: "loop", "resident", "group" or "step".
        rows: rows of the batch of a tile.
        columns: of the hidden size of a tile; a power of two, not below it, for "resident".
        depth: terms of a product that are taken at once.
        warps: of a program.
        stages: of the products' pipeline.
        ahead: of a group: how many pieces of a state are read before the first product.
        wave: of a group: how many tiles of the batch run at once; all if 0.
        registers: that a thread may have, if that is said. Unsaid, the assembler may spill for the sake of more
            programs on a processor; said, it may read so much ahead that it spills. Which of the two helps was tried.
    """

    shape: Shape
    rows: int = 16
    columns: int = 32
    depth: int = 32
    warps: int = 4
    stages: int = 1
    ahead: int = 1
    wave: int = 0
    registers: int | None = None


@dataclass(frozen=True)
class _Task:
    """What is asked for.

    Args:
        slots: matrices of H by H.
        batch: rows.
        hidden: H.
        size: bytes of a number of the compute type.
        kept: bytes that a weight takes that stays; "tf32x3" keeps it in two parts.
        precision: of products of float32; "tf32" for half types. The others take more instructions and registers.
        device: where.
    """

    slots: int
    batch: int
    hidden: int
    size: int
    kept: int
    precision: str
    device: Properties

    @property
    def weights(self) -> int:
        """Bytes."""
        return self.slots * self.hidden**2 * self.size

    @property
    def room(self) -> int:
        """Bytes of shared memory for weights that stay."""
        return self.device.shared_memory_per_block_optin - _SPARE


def plan(
    cell: Cell,
    direction: Direction,
    batch: int,
    hidden: int,
    dtype: torch.dtype,
    precision: str,
    device: Properties,
    shape: Shape | None = None,
) -> Launch:
    """The launch for one recurrence.

    Args:
        cell: "lstm" or "gru".
        direction: "forward" or "backward"; both are planned alike for now.
        batch: rows, >= 1.
        hidden: size, >= 1.
        dtype: the compute type.
        precision: "ieee", "tf32" or "tf32x3".
        device: its properties.
        shape: this one; chosen if None.

    Raises:
        BackendError: if the device has no room for the shape that is asked for.

    Example:
        >>> import torch
        >>> h200 = Device(multi_processor_count=132, shared_memory_per_block_optin=232448)
        >>> plan("lstm", "forward", 256, 256, torch.float32, "tf32", h200).shape
        'group'
    """
    del direction
    size, single = dtype.itemsize, dtype.itemsize > 2
    kept = 2 * size if single and precision == "tf32x3" else size
    task = _Task(_SLOTS[cell], batch, hidden, size, kept, precision if single else "tf32", device)
    if shape is None:
        found = _resident(task) or _group(task, WAVES)
        return found or (_loop(task) if task.weights <= STREAMED else _step(task))
    found = {"resident": _resident, "group": _group, "loop": _loop, "step": _step}[shape](task)
    if found is None:
        raise BackendError(
            f"launch shape {shape!r} keeps the weights of a {cell} of hidden size {hidden} in {dtype} in shared memory;"
            f" the device has {device.shared_memory_per_block_optin} bytes of it: take 'step' or 'loop'"
        )
    return found


def cdiv(a: int, b: int) -> int:
    """How many pieces of at most `b` make `a`."""
    return -(-a // b)


def _resident(task: _Task) -> Launch | None:
    columns = max(16, 1 << (task.hidden - 1).bit_length())
    if task.slots * columns**2 * task.kept > task.room or columns * task.size > 256:
        return None
    warps = {16: 1, 32: 4, 64: 4 if task.precision == "tf32" else 8}.get(columns, 8)
    return Launch("resident", columns=columns, depth=columns, warps=warps)


def _group(task: _Task, waves: int | None = None) -> Launch | None:
    if task.precision != "tf32" and task.hidden > EXACT:
        return None
    best: tuple[int, Launch] | None = None
    for rows, columns, warps in ((16, 32, 4), (32, 64, 8)):
        per_wave = task.device.multi_processor_count // cdiv(task.hidden, columns)
        depth = 64
        kept = task.slots * cdiv(task.hidden, depth) * depth * columns * task.kept
        if not per_wave or kept > task.room or (rows == 32 and task.slots * task.hidden > WIDE):
            continue
        needed = cdiv(cdiv(task.batch, rows), per_wave)
        if best is None or needed < best[0]:
            best = needed, Launch("group", rows, columns, depth, warps, ahead=4 if rows == 16 else 2, wave=per_wave)
    return best[1] if best and (waves is None or best[0] <= waves) else None


def _loop(task: _Task) -> Launch:
    many = cdiv(task.batch, 16) > 2 * task.device.multi_processor_count
    return _streamed(task, "loop", 32 if many else 16, 64, 8 if many or task.precision == "ieee" else 4)


def _step(task: _Task) -> Launch:
    for rows, warps in ((32, 8), (16, 8 if task.precision == "ieee" else 4)):
        if cdiv(task.batch, rows) * cdiv(task.hidden, 64) >= task.device.multi_processor_count:
            return _streamed(task, "step", rows, 64, warps)
    return _streamed(task, "step", 16, 32, 4)


def _streamed(task: _Task, shape: Shape, rows: int, columns: int, warps: int) -> Launch:
    depth = 64 if task.size == 2 else 32
    return Launch(shape, rows, columns, depth, warps, stages=3, registers=255)
