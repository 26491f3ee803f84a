"""A sampler followed by a sample unit, as one sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Sampler, Storage
from rl.core.state import reading
from rl.replay._state import Apply, Fields, prepare_load
from rl.replay.sample_units._base import SampleUnit
from rl.replay.sample_units._transition import Transition

__all__ = ["with_unit"]


def with_unit(owner: str, sampler: Sampler, unit: Any) -> Sampler:
    """`sampler` whose indices are expanded by `unit`.

    Raises:
        ContractError: if `unit` is not a sample unit, or `sampler` selects sequences itself.
    """
    if unit is None or isinstance(unit, Transition):
        return sampler
    if not isinstance(unit, SampleUnit):
        raise ContractError(f"{owner}: sample_unit is Transition(), Sequence(length=...) or another one, got {unit!r}")
    if hasattr(sampler, "postprocess"):
        raise ContractError(
            f"{owner}: a {type(sampler).__name__} selects sequences itself; use sample_unit= with a sampler of single"
            " rows, RandomSampler() or PrioritizedSampler(...), or leave it out"
        )
    return _UnitSampler(owner, sampler, unit)


class _UnitSampler:
    """Sampler of anchors, and the unit that expands them."""

    def __init__(self, owner: str, sampler: Sampler, unit: SampleUnit) -> None:
        self._owner: Final = owner
        self._sampler: Final = sampler
        self._unit: Final = unit
        if all(hasattr(part, "prepare_load") or not hasattr(part, "state_dict") for part in (sampler, unit)):
            self.prepare_load: Final = self._prepare_load

    @property
    def ran_out(self) -> bool:
        return self._sampler.ran_out

    def attach(self, storage: Storage) -> None:
        self._call("attach", storage)

    def admit(self, data: Any) -> None:
        self._call("admit", data)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        index, info = self._sampler.sample(storage, batch_size, generator=generator)
        return self._unit.expand(index, info, storage)

    def extended(self, index: Tensor, data: Any) -> None:
        self._call("extended", index, data)

    def replaced(self, index: Tensor, data: Any) -> None:
        for part in (self._sampler, self._unit):
            follow = getattr(part, "replaced", getattr(part, "extended", None))
            if follow is not None:
                follow(index, data)

    def patched(self, keys: list[Any]) -> None:
        self._call("patched", keys)

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        self._sampler.update_priority(index, priority)

    def restart(self) -> None:
        self._sampler.restart()

    def empty(self) -> None:
        self._call("empty")

    def state_dict(self) -> dict[str, Any]:
        state = getattr(self._unit, "state_dict", dict)
        return {"sampler": self._sampler.state_dict(), "unit": state(), "sample_unit": repr(self._unit)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._prepare_load(state, None, None)()

    def _prepare_load(self, state: Any, rows: int | None, max_size: int | None) -> Apply:
        with reading(self._owner):
            fields = Fields(self._owner, state, ("sampler", "unit", "sample_unit"))
            fields.match(sample_unit=repr(self._unit))
            loads = [prepare_load(self._sampler, fields["sampler"], rows, max_size)]
            if hasattr(self._unit, "state_dict"):
                loads.append(prepare_load(self._unit, fields["unit"], rows, max_size))

        def apply() -> None:
            for load in loads:
                load()

        return apply

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a method of both parts, if they have it."""
        for part in (self._sampler, self._unit):
            if (method := getattr(part, name, None)) is not None:
                method(*arguments)
