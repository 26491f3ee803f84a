"""`Compose`: several transforms as one."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import indent
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.core.specs import Composite
from rl.envs.transforms._base import Transform
from rl.envs.transforms._function import as_transform

if TYPE_CHECKING:
    from rl.envs.transforms._transformed_env import TransformedEnv

__all__ = ["Compose", "parts_of"]


class Compose(Transform):
    """Transforms in a row: the first is nearest to the environment.

    Args:
        transforms: transforms, or functions from TensorDict to TensorDict.

    Example:
        >>> from rl.envs import InitTracker, StepCounter
        >>> chain = Compose(StepCounter(max_steps=10))
        >>> chain.append(InitTracker())
        Compose(
            StepCounter(keys=[]),
            InitTracker(keys=[]))
    """

    def __init__(self, *transforms: Transform | Callable[[TensorDictBase], TensorDictBase]) -> None:
        super().__init__()
        self.transforms: list[Transform] = [as_transform(one) for one in transforms]
        self.in_keys = [key for one in self.transforms for key in one.in_keys]
        self.out_keys = [key for one in self.transforms for key in one.out_keys]

    def append(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Add one at the outer end; the specs of the environment follow."""
        return self.insert(len(self.transforms), transform)

    def insert(self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Add one before place `index`; the specs of the environment follow."""
        one = as_transform(transform)
        if self._parent is not None:
            one.set_parent(self._parent)
        self.transforms.insert(index, one)
        self.in_keys = [key for part in self.transforms for key in part.in_keys]
        self.out_keys = [key for part in self.transforms for key in part.out_keys]
        if self._parent is not None:
            self._parent.refresh()
        return self

    def set_parent(self, parent: TransformedEnv | None) -> None:
        super().set_parent(parent)
        for one in self.transforms:
            one.set_parent(parent)

    def clone(self) -> Compose:
        return type(self)(*[one.clone() for one in self.transforms])

    def is_leafwise(self) -> bool:
        return all(one.is_leafwise() for one in self.transforms)

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

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        for one in self.transforms:
            tensordict = one(tensordict)
        return tensordict

    def transform_observation_spec(self, spec: Composite) -> Composite:
        for one in self.transforms:
            spec = one.transform_observation_spec(spec)
        return spec

    def transform_reward_spec(self, spec: Composite) -> Composite:
        for one in self.transforms:
            spec = one.transform_reward_spec(spec)
        return spec

    def transform_done_spec(self, spec: Composite) -> Composite:
        for one in self.transforms:
            spec = one.transform_done_spec(spec)
        return spec

    def transform_action_spec(self, spec: Composite) -> Composite:
        for one in self.transforms:
            spec = one.transform_action_spec(spec)
        return spec

    def transform_state_spec(self, spec: Composite) -> Composite:
        for one in self.transforms:
            spec = one.transform_state_spec(spec)
        return spec

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


def parts_of(transform: Transform) -> list[Transform]:
    """The transforms of which one consists, in their order: those of a `Compose`, or itself."""
    if type(transform) is Compose:  # a subclass may do more than its parts
        return [leaf for one in transform for leaf in parts_of(one)]
    return [transform]
