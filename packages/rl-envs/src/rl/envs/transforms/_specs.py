"""`Specs`: the specs of an environment, as a transform reads and changes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, ContractError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.specs import Composite
from rl.envs.base._specs import leaf_keys


@dataclass
class Specs:
    """Specs of one element of an environment, with the transforms in front of this one applied; all may be written.

    Args:
        observation: Entries that a reset writes at the root and a step under ``next``.
        action: Entries that a step reads.
        reward: Entries that a step writes under ``next`` only.
        done: Flags.
        state: Entries that a step reads besides the action.
        batch_size: Batch of the environment.
        device: Device of the environment.
    """

    observation: Composite
    action: Composite
    reward: Composite
    done: Composite
    state: Composite
    batch_size: torch.Size
    device: torch.device | None

    def written(self, key: NestedKey, owner: object) -> list[Composite]:
        """Return the output specs that contain `key`.

        Raises:
            SpecError: If there is none; the message names `owner`.
        """
        return _having(key, (self.observation, self.reward, self.done), owner, "does not write")

    def read(self, key: NestedKey, owner: object) -> list[Composite]:
        """Return the input specs that contain `key`.

        Raises:
            SpecError: If there is none; the message names `owner`.
        """
        return _having(key, (self.action, self.state), owner, "does not read")

    def done_levels(self) -> list[tuple[str, ...]]:
        """Where episodes end: the prefix of each ``done``, or only the root's if it has one."""
        levels = [as_tuple(key)[:-1] for key in leaf_keys(self.done) if as_tuple(key)[-1] == "done"]
        return [()] if () in levels else levels

    def add(self, role: str, key: NestedKey, spec: object, owner: object) -> None:
        """Add an entry that did not exist.

        Raises:
            SpecError: If the environment has it.
        """
        for name in ("observation", "reward", "done"):
            if getattr(self, name).get(key, None) is not None:
                raise SpecError(
                    f"{owner!r} writes {key_str(key)}, which exists already: give it another key, or use it once only"
                )
        getattr(self, role)[unwrap(key)] = spec


def _having(key: NestedKey, specs: Iterable[Composite], owner: object, verb: str) -> list[Composite]:
    found = [spec for spec in specs if spec.get(key, None) is not None]
    if not found and as_tuple(key)[0] == "next":
        raise SpecError(
            f"{owner!r} has the key {key_str(key)}; in an environment write {key_str(unwrap(as_tuple(key)[1:]))}, as a"
            " transform gets what a step wrote by itself. Keys below 'next' are for batches and replay buffers"
        )
    if not found:
        keys = [one for spec in specs for one in leaf_keys(spec)]
        close = nearest(key, keys)
        hint = f"; did you mean {key_str(close)}?" if close is not None else ""
        raise SpecError(f"{owner!r} has the key {key_str(key)}, which the environment {verb}: it has {keys}{hint}")
    return found


def from_root(root: Any, key: NestedKey, owner: object) -> Tensor:
    """Return the root entry that the last reset or step wrote.

    Raises:
        ContractError: If it is missing.
    """
    value = root.get(key, None)
    if value is None:
        raise ContractError(
            f"{type(owner).__name__} reads {key_str(key)} at the root, which is missing: step from the"
            " result of env.reset() or env.step_mdp()"
        )
    return value


def as_values(value: Any, owner: str, name: str, *, infinite: bool = False) -> Tensor:
    """Return an argument that is a number or a tensor of numbers.

    Args:
        value: Value of the argument.
        owner: Component that the message names.
        name: Argument that the message names.
        infinite: Whether infinite numbers are accepted, as limits are.

    Raises:
        ArgumentError: If it has no numbers, or NaN or infinite ones.
    """
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        found = torch.tensor(float("nan"))
    if found.dtype is torch.bool or bool((found.isnan() if infinite else ~found.isfinite()).any()):
        raise ArgumentError(f"{owner}: {name} must be of {'' if infinite else 'finite '}numbers, got {value!r:.100}")
    return found
