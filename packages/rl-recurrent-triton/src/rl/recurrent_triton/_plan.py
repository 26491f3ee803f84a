"""Selection of launch shape and tiles, by estimates from sizes and device; nothing is autotuned.

The shapes:

- ``resident``: one program has a tile of the batch, all columns and all steps; weights stay in shared memory, states in
  registers. Taken wherever the weights fit: H <= 64 for float32, H <= 128 for half types (less where shared memory is
  small).
- ``group``: everything else. H / columns programs share a tile of the batch, and they exchange parts of the state after
  each step. It keeps its columns of the weights in shared memory, or reads them again in each step. All must run at
  once, so that a larger batch takes several launches, one after the other.

Among groups the one is taken whose step is shortest by `_microseconds`. Groups that keep nothing serve what shared
memory does not hold, and many rows, where the products count. Kernels that keep weights have all their products written
out, which `WRITTEN` bounds: it is the compiler's time. Products in "ieee" and "tf32x3" take longer than reading their
weights, so those are not kept.

Tiles follow what the compiler does with them: with 16 rows, warps lie side by side along the columns and each needs 8;
with as many rows as columns or more, along the rows, and each needs 16. More warps would compute the same again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from rl.core.errors import BackendError

if TYPE_CHECKING:
    import torch

Cell = Literal["lstm", "gru"]
Direction = Literal["forward", "backward"]
Shape = Literal["resident", "group"]
SHAPES: tuple[Shape, ...] = ("resident", "group")

WRITTEN = {"tf32": 36 * 1024, "half": 64 * 1024, "tf32x3": 0, "ieee": 0}
"""Weights (slots times H times columns of a tile) whose products a kernel of a group may have written out."""
HANDOVER = 2.0
"""Microseconds from the end of one program's step to the begin of the next one's in a group."""
FILL = 1.0
"""Microseconds until the first terms of a product have come from the second-level cache."""
ALONE, SHARED = 100e3, 42e3
"""Bytes a microsecond that a processor reads from the second-level cache: few of them, and when all do."""
RATE = {"tf32": 1e6, "half": 2e6, "tf32x3": 0.33e6, "ieee": 0.25e6}
"""Operations a microsecond of a processor, in small tiles; twice as many with 64 rows, for larger instructions."""
_SLOTS = {"lstm": 4, "gru": 3}
_SPARE = 24 * 1024  # bytes of shared memory for what is not weights: gates and gradients on their way between layouts


class Properties(Protocol):
    """Properties of a device, a part of `torch.cuda.get_device_properties`."""

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
        shape: Shape, "resident" or "group".
        rows: Number of rows of the batch of a tile.
        columns: Columns of the hidden size of a tile; a power of two, not below it, for "resident".
        depth: Number of terms of a product that are added at once.
        warps: Number of warps of a program.
        stages: Number of stages of the products' pipeline.
        ahead: Number of pieces of a state that a group reads before the first product; 0 if its weights do not stay.
        wave: Number of tiles of the batch that a group runs at once; all if 0.
        registers: Number of registers that a thread may have; None sets no limit, and the assembler may spill for the
            sake of more programs on a processor; said, it may read so much ahead that it spills. Which of the two helps
            was tried.
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
    """Problem for which a launch is planned.

    Args:
        direction: Direction, "forward" or "backward".
        slots: Number of matrices of H by H.
        batch: Number of rows.
        hidden: H.
        size: Bytes of a number of the compute dtype.
        kept: Bytes of a weight that stays; "tf32x3" keeps it in two parts.
        kind: Kind of products: the precision of those of float32, or "half".
        device: Device.
    """

    direction: Direction
    slots: int
    batch: int
    hidden: int
    size: int
    kept: int
    kind: str
    device: Properties

    @property
    def state(self) -> int:
        """Bytes of a row that a product reads in each step: states, or gradients of gates."""
        return self.hidden * (max(self.size, 4) if self.direction == "forward" else self.slots * self.size)

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
    """Choose the launch of one recurrence.

    Args:
        cell: Cell, "lstm" or "gru".
        direction: Direction, "forward" or "backward".
        batch: Number of rows, >= 1.
        hidden: Hidden size, >= 1.
        dtype: Compute dtype.
        precision: Precision, "ieee", "tf32" or "tf32x3".
        device: Properties of the device.
        shape: Shape of the launch; chosen if None.

    Raises:
        BackendError: if the device has no room for the requested shape, or for any.

    Example:
        >>> import torch
        >>> h200 = Device(multi_processor_count=132, shared_memory_per_block_optin=232448)
        >>> plan("lstm", "forward", 256, 256, torch.float32, "tf32", h200).shape
        'group'
    """
    size, single = dtype.itemsize, dtype.itemsize > 2
    kept = 2 * size if single and precision == "tf32x3" else size
    kind = precision if single else "half"
    task = _Task(direction, _SLOTS[cell], batch, hidden, size, kept, kind, device)
    found = None if shape == "group" else _resident(task)
    if found is None and shape != "resident":
        found = min(_groups(task), key=lambda one: _microseconds(task, one), default=None)
    if found is None:
        who = "the kernels of rl-recurrent-triton have" if shape is None else f"launch shape {shape!r} has"
        raise BackendError(
            f"{who} no room for a {cell} of hidden size {hidden} in {dtype}: the device has"
            f" {device.multi_processor_count} processors and {device.shared_memory_per_block_optin} bytes of shared"
            ' memory; take recurrent_backend="scan"'
        )
    return found


def cdiv(a: int, b: int) -> int:
    """How many pieces of at most `b` make `a`."""
    return -(-a // b)


def _resident(task: _Task) -> Launch | None:
    columns = max(16, 1 << (task.hidden - 1).bit_length())
    if task.slots * columns**2 * task.kept > task.room or columns * task.size > 256:
        return None
    warps = {16: 1, 32: 4, 64: 4 if task.kind in {"tf32", "half"} else 8}.get(columns, 8)
    # Shared memory admits one program of 128 columns to a processor: it may have the registers.
    registers = 255 if columns == 128 else None
    return Launch("resident", columns=columns, depth=columns, warps=warps, registers=registers)


def _groups(task: _Task) -> list[Launch]:
    """Return groups that fit on the device at once; none if the hidden size has more tiles than it has processors."""
    tiles = [(16, 32), (32, 32), (32, 64)]
    if task.room > (200 if task.hidden % 32 else 120) * 1024:  # the products of older devices spill
        tiles.append((64, 32))
    found = [*_keeping(task), *_streaming(task, *tiles)]
    found = [replace(one, wave=task.device.multi_processor_count // cdiv(task.hidden, one.columns)) for one in found]
    return [one for one in found if one.wave]


def _keeping(task: _Task) -> list[Launch]:
    """Return groups whose weights stay in shared memory."""
    found: list[Launch] = []
    backward = task.direction == "backward"
    depth = 128 if task.hidden >= 256 and backward and task.kind == "tf32" else 64
    # The backward kernel of half types spills a little on some devices above this, and where the last piece is masked.
    most = WRITTEN[task.kind]
    if backward and task.kind == "half":
        most = 0 if task.hidden % depth else min(most, 32 * 1024)
    for rows, columns, warps in ((16, 32, 4), (32, 64, 8)):
        written = task.slots * cdiv(task.hidden, depth) * depth * columns
        if rows == 32 and backward and task.kind != "half":
            continue  # spills
        if written * task.kept <= task.room and written <= most:
            few = rows == 32 or depth * task.size > 256 or task.hidden < 128 or (backward and task.kind == "half")
            ahead = 2 if few else 4
            found.append(Launch("group", rows, columns, depth, warps, ahead=ahead))
    return found


def _streaming(task: _Task, *tiles: tuple[int, int]) -> list[Launch]:
    """Return groups that read weights in each step, in a pipeline of three stages; the first always fits."""
    masked = task.size == 2 and task.hidden % 64 != 0  # which takes registers
    depth = 64 if task.size == 2 and not masked else 32
    found: list[Launch] = []
    for rows, columns in tiles:
        # Others spill: large tiles of exact products, and squares on tensor cores.
        large = rows > 32 or (columns > 32 and (task.kind == "ieee" or task.slots == 4))
        if (large and task.kind in {"ieee", "tf32x3"}) or (rows == columns and task.kind != "ieee"):
            continue
        matrices = task.slots if task.direction == "forward" else 1
        pipeline = 3 * (matrices * columns + rows) * depth * task.size
        if rows > 32 and pipeline > task.room:
            continue
        warps = 8 if rows * columns >= 2048 or task.kind == "ieee" else 4
        registers = None if rows * columns <= 512 and warps == 4 and not masked else 255
        found.append(Launch("group", rows, columns, depth, warps, stages=3, ahead=0, registers=registers))
    return found


def _microseconds(task: _Task, launch: Launch) -> float:
    """Estimate the time of one step of a group, in all of its launches."""
    tiles, across = cdiv(task.batch, launch.rows), cdiv(task.hidden, launch.columns)
    processors = task.device.multi_processor_count
    weights = 0 if launch.ahead else task.slots * task.hidden * launch.columns * task.size
    programs = min(tiles, launch.wave) * across
    rate = min(ALONE, SHARED * processors / min(programs, processors))
    products = 2 * task.slots * task.hidden * launch.rows * launch.columns / RATE[task.kind]
    products /= 2 if launch.rows >= 64 else 1
    tile = FILL + (launch.rows * task.state + weights) / rate + products
    return cdiv(tiles, launch.wave) * (HANDOVER + tile)
