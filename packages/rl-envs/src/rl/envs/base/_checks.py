"""Checks of the inputs and outputs of an environment against its specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl.core import env_specs
from rl.core.env_specs import describe_entry, entry_fault
from rl.core.errors import ArgumentError, ContractError, SpecError, issue_warning
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.specs import Composite
from rl.envs.base._specs import leaf_keys

if TYPE_CHECKING:
    from rl.core.interfaces import Env


def check_entries(entries: Any, specs: Iterable[Composite], *, owner: str, allowed: Iterable[NestedKey] = ()) -> None:
    """Raise unless `entries` holds exactly the entries of `specs`.

    Args:
        entries: A TensorDict, or tensors by flat key.
        specs: Specs with the batch.
        owner: The method that wrote the entries, for messages.
        allowed: Keys that may be there without a spec.

    Raises:
        SpecError: One line for each entry that is missing, unknown, or not as its spec says.
    """
    wanted = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
    found = leaf_keys(entries)
    faults: list[str] = []
    for key, spec in wanted.items():
        if key not in found:
            close = nearest(key, [other for other in found if other not in wanted])
            hint = f" (did it write {key_str(close)} instead?)" if close is not None else ""
            faults.append(f"  {key_str(key)}: expected {describe_entry(spec)}, got nothing{hint}")
        elif (fault := entry_fault(spec, entries.get(key))) is not None:
            faults.append(f"  {key_str(key)}: {fault}")
    extra = [key for key in found if key not in wanted and key not in {unwrap(k) for k in allowed}]
    faults += [f"  {key_str(key)}: expected nothing, got {describe_entry(entries.get(key))}" for key in extra]
    if faults:
        raise SpecError(
            f"{owner} does not agree with the specs:\n" + "\n".join(faults) + "\nChange what it returns, or the spec;"
            " specs are written for one element and the environment adds its batch"
        )


def check_action(entries: Any, spec: Composite, *, owner: str) -> None:
    """Raise unless every action is there and lies in its spec.

    Raises:
        ContractError: If an action is missing.
        SpecError: If an action has another shape, dtype or device, or lies outside.
    """
    for key in leaf_keys(spec):
        value = entries.get(key, None)
        if value is None:
            found = leaf_keys(entries)
            close = nearest(key, found)
            hint = f" Did you mean {key_str(close)}?" if close is not None else ""
            listed = ", ".join(key_str(k) for k in found) or "none"
            raise ContractError(
                f"{owner}.step reads {key_str(key)}, which nothing wrote (keys: {listed}).{hint} Let the policy"
                f" write it (out_keys), or sample one with env.rand_action(td)"
            )
        fault = entry_fault(spec[key], value)
        if fault is not None:
            raise SpecError(
                f"{owner}.step was given {key_str(key)} that is not in its spec: {fault}. Squash or scale the policy's"
                f" output to the spec, or bring it inside with env.action_spec.project(action)"
            )


def as_batch_size(batch_size: Iterable[int], owner: str) -> torch.Size:
    """Return a batch size from any sequence of integers.

    Raises:
        ArgumentError: If it is none.
    """
    try:
        size = torch.Size(batch_size)
    except TypeError:
        size = None
    if size is None or any(n < 0 for n in size):
        raise ArgumentError(f"{owner}: batch_size must be a sequence such as [] or [8], got {batch_size!r}")
    return size


def check_private(key: NestedKey, owner: str, remedy: str) -> None:
    """Raise a SpecError if a part of a key begins with ``_``: collectors drop such entries as private ones."""
    if any(part.startswith("_") for part in as_tuple(key)):
        raise SpecError(
            f"{owner}: the simulator has an entry {key_str(key)}, and names that begin with '_' are private, so that"
            f" collectors would drop it: {remedy}"
        )


def check_not_done(
    fresh: Any, done_keys: Iterable[NestedKey], masks: Mapping[tuple[str, ...], Tensor] | None, owner: str
) -> None:
    """Raise a SpecError if a new episode is done already."""
    for key in done_keys:
        done = fresh.get(key)
        mask = None if masks is None else masks.get(as_tuple(key)[:-1], masks.get(()))
        if mask is not None:  # that of an outer level has fewer dimensions
            mask = mask.reshape(*mask.shape[:-1], *[1] * (done.ndim - mask.ndim), mask.shape[-1])
        if bool(done.any() if mask is None else (done & mask).any()):
            raise SpecError(f"{owner}._reset returned {key_str(key)} true: an episode cannot begin at its end")


def check_env_specs(env: Env, *, seed: int | None = None, steps: int = 3, **others: Any) -> None:
    """Compare a short random rollout with the specs, entry by entry.

    The environment is reset, and left in the middle of an episode.

    Args:
        env: Any environment of the `rl.core.interfaces.Env` protocol.
        seed: Seed for `set_seed`; not called if None.
        steps: Length of the rollout.
        others: Arguments of `rl.core.env_specs.check_env_specs`.

    Raises:
        SpecError: One line for each entry that differs: key, expected, got.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> check_env_specs(PendulumEnv())
    """
    try:
        env_specs.check_env_specs(env, seed=seed, steps=steps, **others)
    except AssertionError as error:
        raise SpecError(str(error)) from error


def warn_not_restorable(owner: str, why: str = "it has no state to save within an episode") -> None:
    """Warn that an environment does not continue exactly from its state."""
    issue_warning(
        f"{owner} is not restored exactly: {why}. The episode under way is lost: a reset begins another,"
        " which is valid experience, but not the one that an uninterrupted run would have seen"
    )
