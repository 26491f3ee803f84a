"""`Compose`: a chain of transforms."""

# ruff: noqa: SLF001  # a chain calls the hooks of its transforms, which users do not call

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import indent
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError, SpecError
from rl.envs.transforms._base import Parent, Reset, Step, Transform
from rl.envs.transforms._function import as_transform
from rl.envs.transforms._specs import Specs

__all__ = ["Compose"]


class Compose(Transform):
    """Chain of transforms; the first is nearest to the environment.

    Chains within a chain are flattened.

    Args:
        transforms: transforms, or functions from TensorDict to TensorDict.

    Example:
        >>> from rl.envs import InitTracker, StepCounter
        >>> chain = Compose(StepCounter(max_steps=10))
        >>> chain.append(InitTracker())
        Compose(
            StepCounter(out_keys=['step_count']),
            InitTracker(out_keys=['is_init']))
    """

    def __init__(self, *transforms: Transform | Callable[[TensorDictBase], TensorDictBase]) -> None:
        super().__init__()
        self.transforms: list[Transform] = []
        for one in transforms:
            self.insert(len(self.transforms), one)

    def append(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Append a transform; the specs of the environment are derived again."""
        return self.insert(len(self.transforms), transform)

    def insert(self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Insert a transform before `index`; the specs of the environment are derived again.

        Raises:
            SpecError: if there is no such place.
        """
        if not -len(self.transforms) <= index <= len(self.transforms):
            raise SpecError(
                f"cannot insert a transform at {index}: there are {len(self.transforms)}; 0 is nearest to the"
                " environment, and append(transform) adds the last one"
            )
        made = as_transform(transform)
        parts = made.transforms if isinstance(made, Compose) else [made]
        for part in parts:
            if self._parent is not None:
                part.set_parent(self._parent)
        before = list(self.transforms)
        self.transforms[index:index] = parts
        self._set_keys()
        self._refresh_or_restore(before)
        return self

    def pop(self, index: int = -1) -> Transform:
        """Remove a transform and return it; the specs of the environment are derived again.

        Raises:
            SpecError: if there is none at `index`, or a later one needs what it writes; the chain stays as it is.
        """
        if not -len(self.transforms) <= index < len(self.transforms):
            raise SpecError(f"cannot remove the transform at {index}: there are {len(self.transforms)}")
        before = list(self.transforms)
        one = self.transforms.pop(index)
        self._set_keys()
        self._refresh_or_restore(before)
        one.set_parent(None)
        return one

    def _refresh_or_restore(self, before: list[Transform]) -> None:
        """Derive the specs again; where that fails, with the transforms of before."""
        if self._parent is None:
            return
        try:
            self._parent.refresh()
        except Exception:
            added = [one for one in self.transforms if one not in before]
            self.transforms = before
            self._set_keys()
            for one in added:
                one.set_parent(None)
            self._parent.refresh()
            raise

    def _set_keys(self) -> None:
        for name in ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv"):
            setattr(self, name, [key for one in self.transforms for key in getattr(one, name)])

    def set_parent(self, parent: Parent | None) -> None:
        super().set_parent(parent)
        for one in self.transforms:
            one.set_parent(parent)

    def clone(self) -> Compose:
        return type(self)(*[one.clone() for one in self.transforms])

    def to(self, device: torch.device | str | int) -> Compose:
        for one in self.transforms:
            one.to(device)
        return self

    def is_leafwise(self) -> bool:
        return all(one.is_leafwise() for one in self.transforms)

    def has_inverse(self) -> bool:
        return any(one.has_inverse() for one in self.transforms)

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        for one in self.transforms:
            reset, step = one._wrap(reset, step)
        return reset, step

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        for one in self.transforms:
            tensordict = one.forward(tensordict)
        return tensordict

    def _call(self, entries: Any) -> Any:
        for one in self.transforms:
            entries = one._call(entries)
        return entries

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        for one in self.transforms:
            root = one._reset(root, mask)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for one in self.transforms:
            outcome = one._step(root, outcome)
        return outcome

    def _inv(self, root: Any) -> Any:
        for one in reversed(self.transforms):
            root = one._inv(root)
        return root

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        for one in reversed(self.transforms):
            tensordict = one.inv(tensordict)
        return tensordict

    def transform_specs(self, specs: Specs) -> None:
        for one in self.transforms:
            one.transform_specs(specs)
        self._set_keys()  # some choose keys by the specs

    def set_seed(self, seed: int) -> None:
        for number, one in enumerate(self.transforms):
            one.set_seed(seed + number)

    def state_dict(self) -> dict[str, Any]:
        return {"transforms": [one.state_dict() for one in self.transforms]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states = state.get("transforms", [])
        if len(states) != len(self.transforms):
            raise CheckpointError(
                f"Compose has {len(self.transforms)} transforms, the state has {len(states)}: build the same ones"
            )
        for one, part in zip(self.transforms, states, strict=True):
            one.load_state_dict(part)

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __getitem__(self, index: int | slice) -> Transform:
        if isinstance(index, slice):
            return type(self)(*[one.clone() for one in self.transforms[index]])
        return self.transforms[index]

    def __repr__(self) -> str:
        return "Compose(\n" + ",\n".join(indent(repr(one), "    ") for one in self.transforms) + ")"
