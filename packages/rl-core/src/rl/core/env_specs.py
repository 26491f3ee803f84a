"""Entries of an environment compared with its specs, and the specs of a group with each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase, is_leaf_nontensor
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import CheckError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, nearest, unwrap
from rl.core.mdp import FLAGS, done_levels
from rl.core.specs import Composite, Stacked, TensorSpec, Unbounded

__all__ = [
    "check_entries",
    "check_env_specs",
    "check_flags",
    "describe_entry",
    "entry_fault",
    "entry_faults",
    "group_faults",
    "stack_faults",
]


@foreign_arguments()
def check_env_specs(env: Env, *, seed: int | None = None, steps: int = 3) -> None:
    """Compare a reset and a few random steps with the specs, entry by entry.

    Args:
        env: Environment of the protocol, which is left within an episode.
        seed: Seed for `set_seed`, which is not called if None.
        steps: Number of steps.

    Raises:
        CheckError: An `AssertionError` with one line for each entry that differs: key, expected, got.

    Example:
        >>> from rl.testing import CountingEnv
        >>> check_env_specs(CountingEnv())
    """
    owner = type(env).__name__
    if seed is not None:
        env.set_seed(seed)
    td = env.reset()
    check_entries(td, [env.observation_spec, env.full_done_spec], env, f"{owner}.reset")
    check_flags(td, env, f"{owner}.reset")
    for _ in range(steps):
        td.update(env.full_action_spec.rand())
        stepped, td = env.step_and_maybe_reset(td)
        outcome = stepped.get("next")
        check_entries(
            outcome, [env.observation_spec, env.full_reward_spec, env.full_done_spec], env, f"'next' of {owner}.step"
        )
        check_flags(outcome, env, f"'next' of {owner}.step")


def _domain(spec: TensorSpec) -> str:
    if isinstance(spec, Unbounded):
        return ""
    space = getattr(spec, "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if isinstance(low, Tensor) and isinstance(high, Tensor) and not low.is_meta:
        return f" in [{_ends(low)}, {_ends(high)}]"
    n = getattr(space, "n", None)
    legal = "" if getattr(spec, "mask", None) is None else " that its mask allows"
    return f" of {type(spec).__name__}" + (f"({n})" if n is not None else "") + legal


def _ends(bound: Tensor) -> str:
    values = bound.flatten().unique().tolist() or [float("nan")]
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g}..{values[-1]:g}"


def _range(value: Tensor) -> str:
    if not value.numel():
        return ""
    if value.numel() <= 8:
        return f" with values {value.tolist()}"
    return f" with values from {value.min().item():g} to {value.max().item():g}"


def describe_entry(value: Any) -> str:
    """Return dtype and shape of a tensor, those and the domain of a spec, or the type of another value, for messages.

    Example:
        >>> from rl.core.specs import Bounded
        >>> describe_entry(Bounded(-1, 1, shape=(2,)))
        'float32 [2] in [-1, 1]'
    """
    if not isinstance(value, (Tensor, TensorSpec)) or value.dtype is None:
        return type(value).__name__
    domain = _domain(value) if isinstance(value, TensorSpec) else ""
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{domain}"


def entry_fault(spec: TensorSpec, value: Any) -> str | None:
    """Return why a value is not what its spec says: dtype, shape, device or domain; None if it is.

    Args:
        spec: Spec with all dimensions of the value.
        value: Value of any type; one that is no tensor has no fault where the spec has no dtype.

    Example:
        >>> from rl.core.specs import Bounded
        >>> entry_fault(Bounded(-1, 1, shape=(2,)), torch.zeros(3))
        'expected float32 [2] in [-1, 1], got float32 [3]'
    """
    if not isinstance(value, Tensor):
        return f"expected {describe_entry(spec)}, got {describe_entry(value)}" if spec.dtype is not None else None
    if value.shape != spec.shape or value.dtype != spec.dtype:
        return f"expected {describe_entry(spec)}, got {describe_entry(value)}"
    if spec.device is not None and value.device != spec.device:
        return f"expected device {spec.device}, got {value.device}"
    if not spec.is_in(value):
        return f"expected {describe_entry(spec)}, got {describe_entry(value)}{_range(value)}"
    return None


def entry_faults(entries: Any, specs: Iterable[Composite], env: Any) -> dict[NestedKey, str]:
    """Entries that are missing, unknown, or not what their specs say, and the fault of each.

    A value with another shape, dtype or device, outside of the domain, or NaN has a fault. Of a batch of environments
    whose specs differ each one is compared with its own, and its number is in front of the key.

    Args:
        entries: TensorDict, or mapping of keys to tensors, that a reset or a step wrote.
        specs: Specs whose entries must be there.
        env: Environment whose actions and states may be there in addition.

    Example:
        >>> from rl.testing import CountingEnv
        >>> env = CountingEnv()
        >>> entry_faults({"observation": torch.zeros(2)}, [env.observation_spec], env)
        {'observation': 'expected float32 [1], got float32 [2]'}
    """
    specs = list(specs)
    if any(isinstance(spec, Stacked) for spec in specs):
        return {
            (f"environment {number}", *as_tuple(key)): fault
            for number in range(entries.shape[0])
            for key, fault in entry_faults(
                entries[number], [spec[number] for spec in specs], _Part(env, number)
            ).items()
        }
    wanted = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
    found = leaf_keys(entries)
    if isinstance(entries, TensorDictBase):  # text and other objects, too
        keys: Any = entries.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
        found = [unwrap(key) for key in keys]
    state = getattr(env, "full_state_spec", None)
    known = {*wanted, *leaf_keys(env.full_action_spec), *(() if state is None else leaf_keys(state))}
    faults: dict[NestedKey, str] = {}
    for key, spec in wanted.items():
        value = entries.get(key, None)
        fault = entry_fault(spec, value) if key in found else f"expected {describe_entry(spec)}, got nothing"
        if key not in found and (close := nearest(key, [other for other in found if other not in wanted])) is not None:
            fault = f"{fault} (is {key_str(close)} it?)"
        if fault is None and isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
            fault = f"expected numbers, got NaN at {tuple(value.isnan().nonzero()[0].tolist())}"
        if fault is not None:
            faults[key] = fault
    extra = [key for key in found if key not in known and as_tuple(key)[0] != "next"]
    return faults | {key: f"expected nothing, got {describe_entry(entries.get(key))}" for key in extra}


class _Part:
    """Specs of one environment of a batch."""

    def __init__(self, env: Any, number: int) -> None:
        state = getattr(env, "full_state_spec", None)
        self.full_action_spec, self.full_done_spec = env.full_action_spec[number], env.full_done_spec[number]
        self.full_state_spec = None if state is None else state[number]


def check_entries(entries: Any, specs: Iterable[Composite], env: Any, owner: str) -> None:
    """Raise unless entries are what the specs say, with one line for each that is not.

    Args:
        entries: TensorDict, or mapping of keys to tensors, that a reset or a step wrote.
        specs: Specs whose entries must be there.
        env: Environment whose actions and states may be there in addition.
        owner: Method that the message names.

    Raises:
        CheckError: If `entry_faults` finds any.
    """
    faults = entry_faults(entries, specs, env)
    if faults:
        raise CheckError("\n".join(f"{key_str(key)}: {fault}" for key, fault in faults.items()) + f" ({owner})")


def check_flags(entries: Any, env: Any, owner: str) -> None:
    """Raise unless ``done = terminated | truncated`` at every level.

    Args:
        entries: TensorDict with the done flags.
        env: Environment whose done spec lists the flags.
        owner: Method that the message names.

    Raises:
        CheckError: If the spec of a level has no ``done`` or no ``terminated``, or the flags contradict each other.
    """
    if isinstance(env.full_done_spec, Stacked):
        for number in range(entries.shape[0]):
            check_flags(entries[number], _Part(env, number), f"{owner} of environment {number}")
        return
    keys = leaf_keys(env.full_done_spec)
    for level in done_levels(keys):
        done, terminated, truncated = (unwrap((*level, flag)) for flag in FLAGS)
        for key in (done, terminated):
            if key not in keys:
                raise CheckError(f"the done spec has no {key_str(key)} (keys: {keys}) ({owner})")
        cut = entries.get(truncated, None)
        either = entries.get(terminated) if cut is None else entries.get(terminated) | cut
        if not torch.equal(entries.get(done), either):
            raise CheckError(f"{key_str(done)} is not the union of terminated and truncated ({owner})")


def group_faults(env: Env) -> dict[NestedKey, str]:
    """Entries of groups whose specs have another number of agents than the reward of the group, and the fault of each.

    The reward ``(group, "reward")`` ``[*B, n, 1]`` determines the number of agents: ``done``, ``terminated`` and
    ``truncated`` of the group must be ``[*B, n, 1]``, or ``[*B, 1]`` for all of its agents, a bool ``mask``
    ``[*B, n]``, and ``action``, ``action_mask`` and ``observation`` ``[*B, n, ...]``. A group with a reward of another
    number of dimensions, such as ``[*B, 1]``, is not compared.

    Args:
        env: Environment of the `rl.core.interfaces.Env` protocol; neither reset nor stepped.

    Example:
        >>> from rl.testing import CountingEnv
        >>> group_faults(CountingEnv())
        {}
    """
    faults: dict[NestedKey, str] = {}
    for reward in leaf_keys(env.full_reward_spec):
        *group, name = as_tuple(reward)
        shape = env.full_reward_spec[reward].shape
        if not group or name != "reward" or len(shape) != len(env.batch_size) + 2 or shape[-1] != 1:
            continue
        agents = shape[:-1]
        wanted = [(env.full_done_spec, flag, shape) for flag in FLAGS]
        wanted += [(env.observation_spec, name, agents) for name in ("mask", "action_mask", "observation")]
        wanted += [(env.full_action_spec, "action", agents)]
        for spec, entry, expected in wanted:
            key = unwrap((*group, entry))
            rest = ", ..." if entry in ("action", "action_mask", "observation") else ""
            leaf = spec[key] if key in leaf_keys(spec) else None
            if leaf is None or (entry == "mask" and leaf.dtype != torch.bool):
                continue
            if entry in FLAGS and leaf.shape == (*env.batch_size, 1):
                continue
            if (leaf.shape[: len(agents)] if rest else leaf.shape) != expected:
                faults[key] = (
                    f"the spec has shape {list(leaf.shape)}, expected [{', '.join(map(str, expected))}{rest}], as"
                    f" {key_str(reward)} is {list(shape)}; change one of the two specs"
                )
    return faults


def stack_faults(env: Any) -> dict[NestedKey, str]:
    """Entries of a batch of different environments that no tensor can hold, and how those of two environments differ.

    Args:
        env: Environment whose specs are stacks where those of its environments differ.

    Example:
        >>> from rl.testing import CountingEnv
        >>> stack_faults(CountingEnv())
        {}
    """
    faults: dict[NestedKey, str] = {}
    names = ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec", "full_state_spec")
    for stacked in (getattr(env, name, None) for name in names):
        parts: list[Any] = stacked.specs if isinstance(stacked, Stacked) else []
        for key in dict.fromkeys(key for part in parts for key in leaf_keys(part)):
            texts = [_form(part.get(key, None)) for part in parts]
            other = next((number for number, text in enumerate(texts) if text != texts[0]), None)
            if other is not None:
                faults[key] = f"environment 0 has {texts[0]}, environment {other} has {texts[other]}"
    return faults


def _form(spec: TensorSpec | None) -> str:
    """Return dtype and shape of a spec, for messages."""
    if spec is None or spec.dtype is None:
        return "nothing" if spec is None else type(spec).__name__
    return f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"
