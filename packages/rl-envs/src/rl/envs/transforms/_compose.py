"""`Compose`: several transforms as one."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import indent
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase
from torch import Tensor
from torch.compiler import is_compiling

from rl.core.errors import CheckpointError
from rl.core.provenance import through
from rl.core.specs import Composite
from rl.envs.transforms._base import Transform
from rl.envs.transforms._function import FunctionTransform, as_transform

if TYPE_CHECKING:
    from rl.envs.transforms._transformed_env import TransformedEnv

__all__ = ["Compose", "named_parts"]


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
        self._noted = False

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
        self._noted = False
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
        if self._noted or is_compiling():
            for one in self.transforms:
                tensordict = one(tensordict)
            return tensordict
        self._settle()
        return through(self, _named(type(self).__name__, _leaves(self)), tensordict)

    def _settle(self) -> None:
        """Note nothing any more, nor do those inside, whose parts are noted as those of this one."""
        self._noted = True
        for one in self.transforms:
            if type(one) is Compose:
                one._settle()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noted": False}  # nothing is known of a copy yet

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


def named_parts(owner: str, transform: Transform) -> list[tuple[str, Transform]]:
    """The transforms of which one consists, in their order, and what messages call each.

    Args:
        owner: what they belong to, for their names.
        transform: a `Compose`, whose parts may be some again, or anything else.
    """
    return _named(owner, _flat(transform))


def _named(owner: str, parts: list[Transform]) -> list[tuple[str, Transform]]:
    if len(parts) == 1:
        return [(f"the transform of {owner}, {_called(parts[0])},", parts[0])]
    return [(f"transform {place} of {owner}, {_called(one)},", one) for place, one in enumerate(parts)]


def _flat(transform: Transform) -> list[Transform]:
    if type(transform) is Compose:  # a subclass may do more than its parts
        return _leaves(transform)
    return [transform]


def _leaves(chain: Compose) -> list[Transform]:
    return [leaf for one in chain for leaf in _flat(one)]


def _called(transform: Transform) -> str:
    return repr(transform) if isinstance(transform, FunctionTransform) else type(transform).__name__
