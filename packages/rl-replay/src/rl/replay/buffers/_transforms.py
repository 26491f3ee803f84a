"""Transforms of a buffer, in both directions: of samples, and of written batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tensordict import TensorDictBase

from rl.core.errors import CheckpointError, ContractError

__all__ = ["Transforms"]


class _Stage(NamedTuple):
    transform: Any
    invert: bool

    @property
    def name(self) -> str:
        return getattr(self.transform, "__name__", type(self.transform).__name__)

    @property
    def inverse(self) -> Callable[[Any], Any] | None:
        """The method ``inv``; None if the transform has none, or its `has_inverse` is false."""
        found = getattr(self.transform, "inv", None)
        return found if found is not None and getattr(self.transform, "has_inverse", _yes)() else None

    @property
    def read(self) -> Callable[[Any], Any] | None:
        """Maps samples."""
        return self.inverse if self.invert else self.transform

    @property
    def write(self) -> Callable[[Any], Any] | None:
        """Maps batches that are written."""
        return self.transform if self.invert else self.inverse


def _yes() -> bool:
    return True


class Transforms:
    """Chain of transforms, see `rl.core.interfaces.Transform`; the first is nearest to the storage.

    Args:
        owner: the buffer, for messages.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._stages: list[_Stage] = []

    def __len__(self) -> int:
        return len(self._stages)

    def __repr__(self) -> str:
        return ", ".join(repr(stage.transform) for stage in self._stages)

    def append(self, transform: Any, *, invert: bool) -> None:
        """Append a transform; `invert` exchanges its two directions."""
        self._stages.append(_Stage(transform, invert))

    def read(self, data: Any) -> Any:
        """The transformed sample."""
        for stage in self._stages:
            if (read := stage.read) is not None:
                data = read(data)
        return data

    @property
    def writes(self) -> bool:
        """Whether rows are transformed before they are written."""
        return bool(self._stages) and any(stage.write is not None for stage in self._stages)

    def write(self, data: Any) -> Any | None:
        """The rows to write, from the last transform to the first; None if there are none.

        Raises:
            ContractError: if `data` is a list of rows.
        """
        if isinstance(data, list):
            names = ", ".join(stage.name for stage in self._stages if stage.write is not None)
            raise ContractError(
                f"{self._owner}: {names} transforms written batches, and got a list of rows: write one TensorDict,"
                " torch.stack(rows)"
            )
        if isinstance(data, TensorDictBase):
            data = data.copy()  # a function may set entries
        for stage in reversed(self._stages):
            if (write := stage.write) is not None:
                data = write(data)
                if data is None or (isinstance(data, TensorDictBase) and 0 in data.batch_size):
                    return None
        return data

    def empty(self) -> None:
        """Discard the rows that transforms hold back."""
        for stage in self._stages:
            if (empty := getattr(stage.transform, "empty", None)) is not None:
                empty()

    def state_dict(self) -> list[Any]:
        """Pairs of the name and the state of each transform that has both directions and a state."""
        return [[stage.name, stage.transform.state_dict()] for stage in self._stateful()]

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: if it is of other transforms.
        """
        own, stages = [stage.name for stage in self._stateful()], list(self._stateful())
        if not isinstance(state, list) or [name for name, _ in state] != own:
            raise CheckpointError(
                f"{self._owner}: its transforms with a state are {own}, the state has other ones: append the same ones"
            )
        for stage, (_, part) in zip(stages, state, strict=True):
            stage.transform.load_state_dict(part)

    def _stateful(self) -> Iterator[_Stage]:
        for stage in self._stages:
            if all(hasattr(stage.transform, name) for name in ("inv", "state_dict", "load_state_dict")):
                yield stage
