"""Arguments of a collector: environment, policy, counts."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import torch

from rl.core import check_pipeline
from rl.core.errors import SpecError
from rl.core.interfaces import Env, missing_env_members
from rl.core.keys import DONE, TRAJ_IDS, TRUNCATED, key_str, leaf_keys

__all__ = [
    "check_collector_key",
    "check_fit",
    "check_flags",
    "count_of",
    "make_env",
    "make_policy",
    "name_of",
    "random_of",
    "rounding",
    "total_of",
]


def make_env(create_env_fn: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Return the environment that was passed, or that the function makes.

    Args:
        create_env_fn: an environment, or a function.
        kwargs: arguments of the function.

    Raises:
        SpecError: if it is not one, or there are arguments and no function.
    """
    env = create_env_fn
    if isinstance(env, type) or (callable(env) and not isinstance(env, Env)):
        env = create_env_fn(**(kwargs or {}))
    elif kwargs:
        raise SpecError(
            f"create_env_kwargs needs a function that makes the environment, got {type(env).__name__}: pass the"
            " function as create_env_fn"
        )
    if lacking := missing_env_members(env):
        raise SpecError(
            f"create_env_fn gave {type(env).__name__}, expected an environment or a function that makes one"
            f" (rl.core.interfaces.Env; it lacks {', '.join(lacking)})"
        )
    return env


def make_policy(policy: Any, factory: Any) -> Any:
    """Return the policy that was passed, or that the function makes.

    Raises:
        SpecError: if both were passed, or it is not callable.
    """
    if factory is not None:
        if policy is not None:
            raise SpecError("a collector takes a policy or a policy_factory, got both")
        policy = factory()
    if isinstance(policy, type):
        raise SpecError(f"policy is the class {policy.__name__}: pass an object, {policy.__name__}(...)")
    if policy is not None and not callable(policy):
        raise SpecError(
            f"policy is {type(policy).__name__}, expected a TensorDict module or a function from TensorDict to"
            " TensorDict; leave it out for random actions"
        )
    return policy


def count_of(name: str, value: Any, least: int, alternative: str = "") -> int:
    """An argument as an integer; booleans and fractions are refused."""
    number = None if isinstance(value, bool) or not hasattr(value, "__index__") else index(value)
    if number is None or number < least:
        raise SpecError(f"{name} must be an integer of at least {least}, {alternative}got {value!r}")
    return number


def total_of(total_frames: Any) -> int:
    """`total_frames` as an integer; -1 for no end."""
    return -1 if total_frames == -1 else count_of("total_frames", total_frames, 1, "or -1 for no end, ")


def random_of(init_random_frames: Any) -> int:
    """`init_random_frames` as an integer; None and -1 are 0."""
    return 0 if init_random_frames in (None, -1) else count_of("init_random_frames", init_random_frames, 0)


def rounding(total_frames: int, batch: int) -> list[str]:
    """Return the message that `total_frames` is rounded up to whole batches of `batch` frames, or no message."""
    whole = -(-total_frames // batch) * batch
    if total_frames < 0 or whole == total_frames:
        return []
    return [
        f"total_frames={total_frames} is no multiple of the {batch} frames of a batch: {whole} frames will be collected"
    ]


def check_fit(env: Env, recurrent: Any, policy: Any, init_random_frames: int) -> None:
    """Check that environment and policy write what the other reads.

    Raises:
        ContractError: if one reads a key that nothing writes.
        SpecError: if random frames would have the log-probability of another action.
    """
    if isinstance(policy, torch.nn.Module) or hasattr(policy, "in_keys"):
        check_pipeline(env, recurrent, policy)
    scores = [key for key in getattr(policy, "out_keys", None) or () if str(key).rstrip("')").endswith("log_prob")]
    if init_random_frames and scores:
        raise SpecError(
            f"init_random_frames={init_random_frames} with a policy that writes {scores[0]!r}: that would be the"
            " log-probability of another action than the one taken; build the actor with return_log_prob=False, or"
            " collect no random frames"
        )


def check_collector_key(env: Env, policy: Any) -> None:
    """Refuse an entry with the name of the group of trajectory ids.

    Raises:
        SpecError: if the environment or the policy writes one.
    """
    name = TRAJ_IDS[0]
    specs = (env.observation_spec, env.full_action_spec, env.full_done_spec)
    writes = [key for spec in specs for key in leaf_keys(spec)]
    owner = name_of(env) if name in writes else name_of(policy)
    if name in (*writes, *(getattr(policy, "out_keys", None) or ())):
        raise SpecError(
            f"{owner} writes an entry {name!r}, which is the group of the collector's {key_str(TRAJ_IDS)}: rename it,"
            " an observation with RenameTransform"
        )


def check_flags(env: Env, *, set_truncated: bool, limit: int | None) -> None:
    """Check that the flags that a setting writes are there, and that flags are bool.

    Raises:
        SpecError: if they are not.
    """
    flags = leaf_keys(env.full_done_spec)
    for wanted, switch in ((set_truncated, "set_truncated=True"), (limit, f"max_frames_per_traj={limit}")):
        if wanted and not {DONE, TRUNCATED} <= {*flags}:
            raise SpecError(
                f"{switch} needs {TRUNCATED!r} at the root of {type(env).__name__}'s done specs, which hold"
                f" {flags}: add it there, or leave the setting out"
            )
    if not flags:
        raise SpecError(f"{type(env).__name__}.full_done_spec is empty: an environment writes at least {DONE!r}")
    for key in flags:
        dtype = env.full_done_spec[key].dtype
        if dtype is not torch.bool:
            raise SpecError(
                f"{type(env).__name__}.full_done_spec has {key_str(key)} as {dtype}, expected torch.bool: write"
                " flags that are true or false"
            )


def name_of(thing: object) -> str:
    """Return the name of a function, or of the class of an object, for messages."""
    return getattr(thing, "__name__", type(thing).__name__)
