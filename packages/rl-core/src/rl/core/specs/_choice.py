"""`Choice`: one of several specs, or of several Python objects."""

# ruff: noqa: SLF001  specs work on each other's private parts

from __future__ import annotations

import copy
from collections.abc import Sequence
from textwrap import indent
from typing import Any, Self

import torch
from tensordict import NonTensorData, is_non_tensor
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs._base import Fault, Shape, TensorSpec
from rl.core.specs._leaf import NonTensor, equal_objects


class Choice(TensorSpec):
    """Values of one of several specs, or one of several Python objects.

    A draw takes one choice, each with the same probability, for all of its elements. `zero` and `one` are those of the
    first.

    Args:
        choices: Specs of one class, shape, dtype and device, or `tensordict.NonTensorData` of one shape.

    Raises:
        SpecError: If there are none, or they differ in class, shape, dtype or device.

    Example:
        >>> spec = Choice([NonTensorData("left"), NonTensorData("right")])
        >>> spec.rand().data in ("left", "right"), spec.is_in(NonTensorData("up")), spec.cardinality()
        (True, False, 2)
    """

    def __init__(self, choices: Sequence[TensorSpec | NonTensorData]) -> None:
        found: list[TensorSpec] = []
        for one in choices:
            made: Any = one
            if isinstance(one, NonTensorData):
                made = NonTensor(one.batch_size, one.device, example_data=one.data)
            if not isinstance(made, TensorSpec):
                raise SpecError(f"Choice takes specs or NonTensorData, got {type(one).__name__}")
            found.append(made.clone())
        if not found:
            raise SpecError("Choice needs at least one spec or NonTensorData, got none")
        forms = [f"{spec._label} {tuple(spec.shape)} {spec.dtype} {spec.device}" for spec in found]
        if len({*forms}) > 1:
            raise SpecError(f"Choice needs one class, shape, dtype and device, got {', '.join(forms)}")
        self._take(found)

    def _take(self, choices: list[TensorSpec]) -> None:
        self.choices = choices
        self._shape, self._dtype, self._device = choices[0].shape, choices[0].dtype, choices[0].device

    @property
    def num_choices(self) -> int:
        """Number of choices."""
        return len(self.choices)

    @property
    def _free(self) -> int:
        return min(spec._free for spec in self.choices)

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        device = "cpu" if generator is None else generator.device
        number = int(torch.randint(len(self.choices), (), generator=generator, device=device))
        return self.choices[number].rand(shape, generator=generator)

    def zero(self, shape: Shape = ()) -> Any:
        return self.choices[0].zero(shape)

    def one(self, shape: Shape = ()) -> Any:
        return self.choices[0].one(shape)

    def _fault(self, value: Any, lead: torch.Size | None) -> Fault | None:
        fault: Fault | None = None
        for spec in self.choices:
            fault = spec._fault(value, lead)
            if fault is None and isinstance(spec, NonTensor):
                got = value.tolist() if is_non_tensor(value) else value
                if not equal_objects(got, _repeat_value(spec.example_data, value)):
                    fault = Fault((), "one of its choices", repr(got)[:200])
            if fault is None:
                return None
        return fault

    def project(self, value: Any) -> Any:
        if self.is_in(value):
            return value
        near = [spec.project(value) for spec in self.choices]  # raises if shape or dtype are wrong
        if not isinstance(value, Tensor):
            self._cannot(f"cannot project {value!r:.100}: none of its choices is nearer than another")
        return min(near, key=lambda one: (one.double() - value.double()).abs().sum().item())

    def encode(self, value: Any) -> Any:
        return self.choices[0].encode(value)

    def to_numpy(self, value: Any) -> Any:
        return self.choices[0].to_numpy(value)

    def cardinality(self) -> int | float:
        if isinstance(self.choices[0], NonTensor):
            return len(self.choices)
        return sum(spec.cardinality() for spec in self.choices)

    def enumerate(self) -> Any:
        if isinstance(self.choices[0], NonTensor):
            return torch.stack([spec.rand() for spec in self.choices])
        return torch.cat([spec.enumerate() for spec in self.choices])

    def _map(self, function: Any) -> Self:
        new = copy.copy(self)
        new._take([function(spec) for spec in self.choices])
        return new

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        return self._map(lambda spec: spec.to(dest))

    def _gather(self, positions: Tensor, ndim: int) -> Self:
        return self._map(lambda spec: spec._gather(positions, ndim))

    def _same(self, other: Any) -> bool:
        return self.choices == other.choices

    def __repr__(self) -> str:
        rows = ",\n".join(map(repr, self.choices))
        return f"Choice(\n{indent(rows, '    ')})"


def _repeat_value(data: Any, value: Any) -> Any:
    """Repeat `data` in nested lists of the shape of a value."""
    for size in reversed(value.batch_size if is_non_tensor(value) else ()):
        data = [data] * size
    return data
