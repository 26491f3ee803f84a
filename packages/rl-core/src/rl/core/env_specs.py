"""Entries of an environment compared with its specs, and the specs of a group with each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import CheckError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, nearest, unwrap
from rl.core.mdp import FLAGS, done_levels
from rl.core.specs import Composite

__all__ = ["check_entries", "check_env_specs", "check_flags", "group_faults"]


@foreign_arguments(
    needless={
        "return_contiguous": ("needless: results are compared as they come", ...),
        "check_dtype": ("needless: dtypes always have to agree", True),
        "tensordict": ("not available yet: use a reset without arguments", None),
        "break_when_any_done": ("needless: what is done is reset", ...),
    }
)
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


def _described(value: Any) -> str:
    if isinstance(value, Tensor) or hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def check_entries(entries: Any, specs: Iterable[Composite], env: Any, owner: str) -> None:
    """Raise unless entries are what the specs say, with one line for each that is not.

    Args:
        entries: TensorDict, or mapping of keys to tensors, that a reset or a step wrote.
        specs: Specs whose entries must be there.
        env: Environment whose actions and states may be there in addition.
        owner: Method that the message names.

    Raises:
        CheckError: If an entry is missing, unknown, has another shape or dtype, lies outside of its spec, or is NaN.
    """
    wanted = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
    found = leaf_keys(entries)  # tensors only: text and other objects are added below
    found += [key for key, spec in wanted.items() if spec.dtype is None and entries.get(key, None) is not None]
    lines = [line for key, spec in wanted.items() if (line := _line(key, spec, entries, found, wanted))]
    known = {*wanted, *leaf_keys(env.full_action_spec)}
    state = getattr(env, "full_state_spec", None)
    known |= set() if state is None else set(leaf_keys(state))
    extra = [key for key in found if key not in known and as_tuple(key)[0] != "next"]
    lines += [f"{key_str(key)}: expected nothing, got {_described(entries.get(key))}" for key in extra]
    if lines:
        raise CheckError("\n".join(lines) + f" ({owner})")


def _line(key: NestedKey, spec: Any, entries: Any, found: list[NestedKey], wanted: dict[NestedKey, Any]) -> str:
    if key not in found:
        close = nearest(key, [other for other in found if other not in wanted])
        hint = f" (is {key_str(close)} it?)" if close is not None else ""
        return f"{key_str(key)}: expected {_described(spec)}, got nothing{hint}"
    value = entries.get(key)
    if not isinstance(value, Tensor):
        return ""
    fault = spec._fault(value, torch.Size(()))  # noqa: SLF001  of rl-core itself
    if fault is not None:
        return f"{key_str(key)}: expected {fault.expected}, got {fault.got}"
    if value.is_floating_point() and bool(value.isnan().any()):
        return f"{key_str(key)}: expected numbers, got NaN at {tuple(value.isnan().nonzero()[0].tolist())}"
    return ""


def check_flags(entries: Any, env: Any, owner: str) -> None:
    """Raise unless ``done = terminated | truncated`` at every level.

    Args:
        entries: TensorDict with the done flags.
        env: Environment whose done spec lists the flags.
        owner: Method that the message names.

    Raises:
        CheckError: If the spec of a level has no ``done`` or no ``terminated``, or the flags contradict each other.
    """
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

    The reward ``(group, "reward")`` ``[*B, n, 1]`` gives the number of agents: ``done``, ``terminated`` and
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
