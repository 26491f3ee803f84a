"""One step of a policy in C, from its program (`rl.core.policy_program`), for the hook ``rl_policy_step``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import addressof, c_int32, c_int64, c_void_p, create_string_buffer
from functools import cache
from struct import Struct
from typing import Any, final

import torch
from tensordict.nn import InteractionType
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor

from rl.core import recurrent_mode
from rl.core.errors import UnsupportedError
from rl.core.interfaces import LoweredModule
from rl.core.keys import NestedKey
from rl.core.policy_program import Operation, PolicyProgram, Register
from rl.native._library import require, why

MOST_ROWS = 256
"""Number of rows from which on the matrix products of torch are faster."""

_OPERATION = Struct("=19q3d")
_HEADER = 5  # numbers of a job before its slots
_ACTIVATIONS = ("tanh", "relu", "sigmoid", "silu", "elu", "leaky_relu", "gelu", "gelu_tanh")
_KINDS = {
    name: kind
    for kind, name in enumerate(
        (
            *("linear", *_ACTIVATIONS, "layer_norm", "lstm", "gru", "split", "scale", "own_scale", "bound"),
            *("categorical", "normal", "tanh_normal", "best", "epsilon_greedy", "noise"),
        )
    )
}
_MAPPINGS = ("softplus", "exp", "relu")
_HEADS = ("categorical", "normal", "tanh_normal")
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_RANDOM, _DETERMINISTIC = InteractionType.RANDOM, InteractionType.DETERMINISTIC


@cache
def _function() -> Callable[..., int]:
    run = require().rl_policy_run
    run.argtypes, run.restype = [c_void_p], c_int32
    return run


class _Memory:
    """Slots of the table of addresses: what is in each, and for how many numbers of a row.

    Args:
        program: The program.
    """

    def __init__(self, program: PolicyProgram) -> None:
        self.tensors: list[Callable[[], Tensor | None]] = []
        self.kept: list[Tensor] = []
        self.scratch: list[int] = []  # numbers of a row
        self.noise: list[int] = []
        self.inputs = list(program.inputs.values())
        self.outputs: list[Register] = []
        for register in program.outputs.values():
            if register not in self.outputs and register not in self.inputs:
                self.outputs.append(register)
        self._temporary: dict[Register, tuple[str, int]] = {}
        self._readers: dict[Register, int] = {}
        for operation in program.operations:
            for register in operation.reads:
                if register is not None:
                    self._readers[register] = self._readers.get(register, 0) + 1

    def of(self, register: Register | None) -> tuple[str, int] | None:
        """Return the slot of a register."""
        if register is None:
            return None
        for kind, registers in (("input", self.inputs), ("output", self.outputs)):
            if register in registers:
                return kind, registers.index(register)
        if register not in self._temporary:
            words = 2 if register.dtype is torch.int64 else 1
            self._temporary[register] = self.room(words * max(register.width or 0, 1))
        return self._temporary[register]

    def merge(self, source: Register, target: Register) -> None:
        """Let `target` overwrite `source`, if nothing else reads that."""
        if self._readers[source] == 1 and source in self._temporary and target not in self.outputs:
            self._temporary[target] = self._temporary[source]

    def room(self, width: int) -> tuple[str, int]:
        """Return a slot of memory for `width` numbers of four bytes a row."""
        self.scratch.append(width)
        return "scratch", len(self.scratch) - 1

    def tensor(self, read: Callable[[], Tensor | None]) -> tuple[str, int] | None:
        """Return the slot of a parameter; None if there is none."""
        if read() is None:
            return None
        self.tensors.append(read)
        return "tensor", len(self.tensors) - 1

    def constant(self, tensor: Tensor) -> tuple[str, int]:
        """Return the slot of a vector that does not change."""
        self.kept.append(tensor)
        return "kept", len(self.kept) - 1

    def starts(self) -> dict[str, int]:
        """Return the first slot of each kind; those that change at each step are adjacent."""
        kinds = {
            "tensor": self.tensors,
            "input": self.inputs,
            "output": self.outputs,
            "noise": self.noise,
            "scratch": self.scratch,
            "kept": self.kept,
        }
        found, size = {}, 0
        for kind, things in kinds.items():
            found[kind] = size
            size += len(things)
        return {**found, "end": size}

    def random(self, width: int) -> tuple[str, int]:
        """Return the slot of `width` uniform numbers a row."""
        self.noise.append(width)
        return "noise", len(self.noise) - 1


_Line = dict[str, Any]


def _lines(operation: Operation, memory: _Memory) -> list[_Line]:
    """Return the operations in C of one operation."""
    name, settings = operation.name, operation.settings
    if name in ("lstm", "gru"):
        return _recurrent(operation, memory)
    first = operation.reads[0] if operation.reads else None
    last = operation.writes[0]
    reads = [memory.of(register) for register in operation.reads]
    if name in _ACTIVATIONS and first is not None and last is not None:
        memory.merge(first, last)
    line: _Line = {
        "kind": _KINDS[name],
        "in": reads,
        "out": [memory.of(register) for register in operation.writes],
        "size": [(first or last or Register()).width],
        "value": [settings.get("value", settings.get("eps", 0.0))],
        "mode": int(settings.get("one_hot", settings.get("one_sigma", False))),
    }
    if name != "tanh_normal":
        line["par"] = [memory.tensor(tensor) for tensor in operation.tensors]
    if name in _COMPLETE:
        _COMPLETE[name](line, operation, memory)
    return [line]


def _linear(line: _Line, operation: Operation, _: _Memory) -> None:
    line["size"].append((operation.writes[0] or Register()).width)


def _split(line: _Line, operation: Operation, _: _Memory) -> None:
    line["size"] = [(operation.writes[0] or Register()).width]


def _scale(line: _Line, operation: Operation, _: _Memory) -> None:
    settings = operation.settings
    mapping = settings.get("mapping", "exp")
    line["mode"] = _MAPPINGS.index(mapping)
    low, high = settings.get("low", -math.inf), settings.get("high", math.inf)
    line["value"] = [
        settings.get("shift", 0.0),
        *((low, high) if mapping == "exp" else (settings.get("plus", 0.0), low)),
    ]


def _categorical(line: _Line, _: Operation, memory: _Memory) -> None:
    line["out"].append(memory.room(2 * line["size"][0]))
    line["noise"] = memory.random(1)


def _normal(line: _Line, operation: Operation, memory: _Memory) -> None:
    columns = line["size"][0]
    line["out"].append(memory.room(2 * columns))
    line["noise"] = memory.random(columns)
    line["value"] = [-columns * _HALF_LOG_TWO_PI]
    if operation.name == "normal":
        return
    low, high = (end() for end in operation.tensors)
    half = (high - low) / 2 if low is not None and high is not None else torch.zeros(1)
    if low is None or high is None or bool((half <= 0).any()):
        raise UnsupportedError("TanhNormal has a dimension that is constant")
    line["value"] = [-columns * (_HALF_LOG_TWO_PI + 2 * math.log(2)) - float(half.double().log().sum())]
    plain = bool((low == -1).all() and (high == 1).all())
    line["par"] = [] if plain else [memory.constant(one) for one in (half, (high + low) / 2, low, high)]


def _epsilon_greedy(line: _Line, operation: Operation, memory: _Memory) -> None:
    line["size"], line["noise"] = [operation.settings["n"]], memory.random(2)


def _noise(line: _Line, _: Operation, memory: _Memory) -> None:
    line["noise"] = memory.random(line["size"][0])


_COMPLETE: dict[str, Callable[[_Line, Operation, _Memory], None]] = {
    "linear": _linear,
    "split": _split,
    "scale": _scale,
    "own_scale": _scale,
    "categorical": _categorical,
    "normal": _normal,
    "tanh_normal": _normal,
    "epsilon_greedy": _epsilon_greedy,
    "noise": _noise,
}
"""What an operation has besides registers, parameters and its width."""


def _recurrent(operation: Operation, memory: _Memory) -> list[_Line]:
    """Return one operation for each layer."""
    units, layers = operation.settings["units"], operation.settings["layers"]
    x, *states, begins = operation.reads
    y, *after = operation.writes
    scratch = memory.room(8 * units)
    source, width, lines = memory.of(x), (x or Register()).width, []
    for layer in range(layers):
        target = memory.of(y) if layer == layers - 1 else memory.room(units)
        old, new = [memory.of(state) for state in states], [memory.of(state) for state in after]
        padded = old if len(old) == 2 else [*old, None]
        written = new if len(new) == 2 else [*new, None]
        lines.append(
            {
                "kind": _KINDS[operation.name],
                "in": [source, *padded, memory.of(begins)],
                "par": [memory.tensor(one) for one in operation.tensors[4 * layer : 4 * layer + 4]],
                "out": [*written, target, scratch],
                "size": [width, units, layers, layer],
            }
        )
        source, width = target, units
    return lines


@final
class NativePolicy:
    """A policy in C, for batches of up to 256 rows of float32 on the CPU.

    Values are those of PyTorch to 1e-6, log-probabilities to 1e-5, and the same bits with every instruction set. The
    parameters are read where they are; their addresses are looked up at each block of steps. Random numbers are uniform
    ones of torch's generator: those of a step are drawn at that step, or those of several in one block after `prepare`.
    Inputs of other forms, calls that need a gradient and other interaction types than RANDOM and DETERMINISTIC go to
    `plain`.

    Args:
        program: The policy.
        plain: Its lowered form.

    Raises:
        UnsupportedError: If a parameter is not contiguous float32 on the CPU.
    """

    name = "native"

    def __init__(self, program: PolicyProgram, plain: LoweredModule) -> None:
        self.why = why()
        self.in_keys: list[NestedKey] = list(plain.in_keys)
        self.out_keys: list[NestedKey] = list(plain.out_keys)
        if self.in_keys != [*program.inputs] or {*self.out_keys} != {*program.outputs}:
            raise UnsupportedError("the policy reads or writes other keys than its program")
        self._plain = getattr(plain, "fn", plain)
        memory = _Memory(program)
        lines = [line for operation in program.operations for line in _lines(operation, memory)]
        heads = [one.settings["how"] for one in program.operations if one.name in _HEADS]
        if len(heads) > 1:
            raise UnsupportedError("the policy has several heads")
        names = {one.name for one in program.operations}
        self._default = heads[0] if heads else _DETERMINISTIC
        self._draws, self._explores = bool(heads), not names.isdisjoint({"epsilon_greedy", "noise"})
        self._recurrent = not names.isdisjoint({"lstm", "gru"})
        self._inputs, self._outputs, self._noise = memory.inputs, memory.outputs, memory.noise
        self._scratch, self._kept, self._tensors = memory.scratch, memory.kept, memory.tensors
        self._starts = memory.starts()
        self._code = create_string_buffer(b"".join(self._pack(line) for line in lines))
        self._slots = (c_int64 * (_HEADER + self._starts["end"]))(addressof(self._code), len(lines))
        self._job, self._run, self._modes = addressof(self._slots), _function(), (False, False)
        self._write("kept", [tensor.data_ptr() for tensor in self._kept])
        # of each out key the number of the output, or of the input that is passed on
        self._returned = [
            (True, self._inputs.index(one)) if one in self._inputs else (False, self._outputs.index(one))
            for one in (program.outputs[key] for key in self.out_keys)
        ]
        self._passes = any(given for given, _ in self._returned)
        self._dtypes = [register.dtype for register in self._inputs]
        self._shapes: list[torch.Size] = []  # of the inputs, for the present batch
        self._step = self._end = 0  # of the block of outputs and random numbers
        self._ahead, self._noisy = 1, False
        self._forms = [_form(read()) for read in self._tensors]
        if any(form is None for form in self._forms):
            raise UnsupportedError("a parameter is not contiguous float32 on the CPU")
        self._alive: list[Tensor] = []  # the memory that the addresses are of

    def _write(self, kind: str, addresses: Sequence[int]) -> None:
        begin = _HEADER + self._starts[kind]
        self._slots[begin : begin + len(addresses)] = addresses

    def _pack(self, line: _Line) -> bytes:
        def slots(name: str) -> list[int]:
            found = [-1 if one is None else self._starts[one[0]] + one[1] for one in line.get(name, [])]
            return [*found, -1, -1, -1, -1][:4]

        sizes = [*(one or 0 for one in line.get("size", [])), 0, 0, 0, 0][:4]
        noise = line.get("noise")
        place = -1 if noise is None else self._starts[noise[0]] + noise[1]
        values = [*line.get("value", []), 0.0, 0.0, 0.0][:3]
        return _OPERATION.pack(
            line["kind"], line.get("mode", 0), *slots("in"), *slots("par"), *slots("out"), *sizes, place, *values
        )

    def prepare(self, steps: int) -> None:
        """Draw the random numbers of the next `steps` steps at once, when the first of them is taken.

        What is left of an earlier block is dropped. The numbers are the same however many steps a block has.
        """
        self._step = self._end = 0
        self._ahead = steps

    def __call__(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        how = interaction_type()
        head = how or self._default
        if (
            torch.is_grad_enabled()
            or (head is not _RANDOM and head is not _DETERMINISTIC)
            or (self._recurrent and recurrent_mode())
            or not self._fits(leaves)
        ):
            return self._plain(*leaves)
        random, exploring = head is _RANDOM, how is None or how is _RANDOM
        if (random, exploring) != self._modes:
            self._modes = self._slots[3], self._slots[4] = random, exploring
        noisy = (random and self._draws) or (exploring and self._explores)
        if (self._step == self._end or (noisy and not self._noisy)) and not self._begin_block(noisy=noisy):
            return self._plain(*leaves)
        step = self._step
        self._step = step + 1
        dense = [leaf.contiguous() for leaf in leaves]
        self._slots[self._moving] = [
            *[leaf.data_ptr() for leaf in dense],
            *[base + step * stride for base, stride in self._bases],
        ]
        if self._run(self._job):
            return self._plain(*leaves)  # says what is wrong
        found = self._views[step]
        return tuple([leaves[i] if given else found[i] for given, i in self._returned]) if self._passes else found

    def _fits(self, leaves: Sequence[Tensor]) -> bool:
        """Whether inputs are of the form that C reads."""
        if [leaf.shape for leaf in leaves] != self._shapes and not self._arrange(leaves):
            return False
        for leaf, dtype in zip(leaves, self._dtypes, strict=True):
            if leaf.dtype is not dtype or not leaf.is_cpu or leaf.is_neg():
                return False
        return True

    def _arrange(self, leaves: Sequence[Tensor]) -> bool:
        """Set the batch; false if the inputs have none in common."""
        rows = [_row(register) for register in self._inputs]
        batch = leaves[0].shape[: leaves[0].ndim - len(rows[0])]
        shapes = [torch.Size((*batch, *row)) for row in rows]
        if [leaf.shape for leaf in leaves] != shapes or not 0 < batch.numel() <= MOST_ROWS:
            return False
        self._shapes, self._batch, self._rows = shapes, batch, batch.numel()
        self._work = [torch.empty(self._rows * width) for width in self._scratch]
        self._slots[2] = self._rows
        self._write("scratch", [tensor.data_ptr() for tensor in self._work])
        self.prepare(self._ahead)
        return True

    def _begin_block(self, *, noisy: bool) -> bool:
        """Look parameters up, allocate the outputs of a block of steps and draw its random numbers.

        Returns:
            Whether the parameters have the form that they had at first.
        """
        tensors = [read() for read in self._tensors]
        if [_form(tensor) for tensor in tensors] != self._forms:
            return False
        self._alive = [tensor.detach() for tensor in tensors if tensor is not None]
        self._write("tensor", [tensor.data_ptr() for tensor in self._alive])
        steps = self._end - self._step or self._ahead
        self._step, self._end, self._ahead, self._noisy = 0, steps, 1, noisy
        blocks = [
            torch.empty((steps, *self._batch, *_row(register)), dtype=register.dtype) for register in self._outputs
        ]
        self._bases = [(block.data_ptr(), block.stride(0) * block.element_size()) for block in blocks]
        columns = [block.unbind(0) for block in blocks]
        order = [i for _, i in self._returned] if not self._passes else range(len(columns))
        self._views = list(zip(*[columns[i] for i in order], strict=True)) or [()] * steps
        total = sum(self._noise) * self._rows
        uniform = self._uniform = torch.rand(steps, total) if noisy else None
        offset = 0
        for width in self._noise:
            self._bases.append((0, 0) if uniform is None else (uniform.data_ptr() + 4 * offset, 4 * total))
            offset += width * self._rows
        begin = _HEADER + self._starts["input"]
        self._moving = slice(begin, begin + len(self._inputs) + len(self._bases))
        return True


def _row(register: Register) -> tuple[int, ...]:
    """Return the shape of a row."""
    return register.shape if register.shape is not None else (register.width,) if register.width else ()


def _form(tensor: Tensor | None) -> torch.Size | None:
    """Return the shape of a parameter; None if C cannot read it."""
    if tensor is None or tensor.dtype is not torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
        return None
    return tensor.shape
