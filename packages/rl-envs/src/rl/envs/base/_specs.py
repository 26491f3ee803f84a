"""The five specs of an environment: authored without its batch, handed out with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import Categorical, Composite, TensorSpec, Unbounded

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FLAGS", "ROLES", "EnvSpecs", "leaf_keys", "with_flags"]

FLAGS = ("done", "terminated", "truncated")
"""The three flags of a done group; the first two always exist."""

ROLES: dict[str, str] = {
    "observation": "observation",
    "action": "action",
    "reward": "reward",
    "done": "done",
    "state": "state",
}
"""Each role of a spec, and the key that a bare leaf gets in it."""


def leaf_keys(spec: Composite) -> list[NestedKey]:
    """The keys of all leaves, nested ones as tuples, outer ones first."""
    keys: Iterable[NestedKey] = spec.keys(include_nested=True, leaves_only=True)
    return sorted((unwrap(key) for key in keys), key=lambda key: len(as_tuple(key)))


def flag_spec(shape: torch.Size, device: torch.device | None) -> TensorSpec:
    """One done flag: true or false, in each place of `shape`."""
    return Categorical(2, shape=shape, dtype=torch.bool, device=device)


def with_flags(spec: Composite) -> Composite:
    """`spec` with ``done`` and ``terminated`` wherever one of the three flags is, in the customary order.

    Raises:
        SpecError: if a flag is not bool, or the flags of one group differ in shape.
    """
    groups: dict[tuple[str, ...], dict[str, TensorSpec]] = {}
    for key in leaf_keys(spec):
        *prefix, name = as_tuple(key)
        if name not in FLAGS:
            raise SpecError(f"done_spec has the entry {key!r}; a done spec holds {', '.join(FLAGS)} only")
        groups.setdefault(tuple(prefix), {})[name] = spec[key]
    out = Composite({}, shape=spec.shape, device=spec.device)
    for prefix, found in groups.items():
        first = next(iter(found.values()))
        for name, one in found.items():
            if one.dtype != torch.bool or one.shape != first.shape:
                raise SpecError(
                    f"done_spec entry {unwrap((*prefix, name))!r} is {one.dtype} {tuple(one.shape)}; the flags of"
                    f" one group are bool and of one shape, here {tuple(first.shape)}"
                )
        for name in FLAGS:
            if name in found or name != "truncated":
                out[unwrap((*prefix, name))] = found.get(name, first).clone()
    return out


class EnvSpecs:
    """Specs by role, each as a `Composite`, without and with the batch.

    Args:
        owner: name of the environment, for messages.
        batch_size: what is put in front of every leaf.
        device: where the specs live; as authored if None.
    """

    def __init__(self, owner: str, batch_size: torch.Size, device: torch.device | None) -> None:
        self.owner, self.batch_size, self.device = owner, batch_size, device
        self._authored: dict[str, Composite] = {"state": Composite({}, device=device)}
        self._batched: dict[str, Composite] = {}
        self.assign("reward", Unbounded(shape=(1,), device=device))
        self.assign("done", Composite(done=flag_spec(torch.Size([1]), device)))

    def assign(self, role: str, spec: TensorSpec | None) -> None:
        """Set the spec of a role; a bare leaf gets the role's own key.

        Raises:
            SpecError: if it is no spec, or a composite that has a batch of its own.
        """
        if spec is None:
            spec = Composite({}, device=self.device)
        if not isinstance(spec, TensorSpec):
            raise SpecError(f"{self.owner}.{role}_spec must be a spec, got {type(spec).__name__}")
        if not isinstance(spec, Composite):
            spec = Composite({ROLES[role]: spec}, device=spec.device)
        if spec.shape:
            raise SpecError(
                f"{self.owner}.{role}_spec has the batch {tuple(spec.shape)}; specs are written for one element:"
                f" the environment adds its batch {tuple(self.batch_size)} by itself"
            )
        if self.device is not None:
            spec = spec.to(self.device)
        self._authored[role] = (with_flags(spec) if role == "done" else spec.clone()).lock_()
        self._batched.pop(role, None)

    def has(self, role: str) -> bool:
        """Whether the role was assigned."""
        return role in self._authored

    def unbatched(self, role: str) -> Composite:
        """The spec of one element.

        Raises:
            SpecError: if it was never assigned.
        """
        if role not in self._authored:
            raise SpecError(f"{self.owner} has no {role}_spec: assign self.{role}_spec in its __init__")
        return self._authored[role]

    def batched(self, role: str) -> Composite:
        """The spec with the batch in front."""
        if role not in self._batched:
            spec = self.unbatched(role)
            self._batched[role] = spec.expand(*self.batch_size).lock_() if self.batch_size else spec
        return self._batched[role]

    def keys(self, role: str) -> list[NestedKey]:
        """The keys of a role's leaves."""
        return leaf_keys(self.unbatched(role))
