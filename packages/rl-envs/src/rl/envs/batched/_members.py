"""The functions that make the environments of a batch, and what these have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from rl.core.errors import ContractError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Composite, group_sizes
from rl.envs.base._base import EnvBase
from rl.envs.base._checks import describe
from rl.envs.base._specs import leaf_keys

__all__ = ["check_equal", "check_same_keys", "described", "groups_of", "makers_of"]


def makers_of(
    num_workers: int,
    create_env_fn: Callable[..., Env] | Sequence[Callable[..., Env]],
    create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    owner: str,
) -> list[Callable[[], Env]]:
    """Return a function without arguments for each environment.

    Raises:
        SpecError: if the number of functions or of arguments is another.
    """
    if isinstance(create_env_fn, (EnvBase, Env)) and not isinstance(create_env_fn, type):
        raise SpecError(
            f"{owner} takes a function that makes an environment, got a {type(create_env_fn).__name__}: it is"
            f" called once for each worker, for example {owner}(2, lambda: GymEnv('CartPole-v1'))"
        )
    makers: list[Any] = [create_env_fn] * num_workers if callable(create_env_fn) else list(create_env_fn)
    if num_workers < 1 or len(makers) != num_workers:
        raise SpecError(f"{owner}: num_workers is {num_workers}, and there are {len(makers)} functions to call")
    if create_env_kwargs is None:
        return makers
    several = not isinstance(create_env_kwargs, Mapping)
    kwargs: list[Any] = list(create_env_kwargs) if several else [create_env_kwargs] * num_workers
    if len(kwargs) != num_workers:
        raise SpecError(f"{owner}: num_workers is {num_workers}, and create_env_kwargs has {len(kwargs)} entries")
    return [partial(make, **one) for make, one in zip(makers, kwargs, strict=True)]


def described(env: EnvBase) -> dict[str, Any]:
    """Batch size and specs of an environment, as `check_equal` compares them."""
    specs = {
        "observation": env.observation_spec_unbatched,
        "action": env.full_action_spec_unbatched,
        "reward": env.full_reward_spec_unbatched,
        "done": env.done_spec_unbatched,
        "state": env.state_spec_unbatched,
    }
    return {"batch_size": env.batch_size, "specs": specs}


def groups_of(env: EnvBase) -> dict[NestedKey, torch.Size]:
    """Batch sizes of the groups of an environment."""
    reward, action = env.full_reward_spec, env.full_action_spec
    return group_sizes([env.observation_spec, env.full_state_spec, env.full_done_spec, reward, action])


def check_equal(first: Mapping[str, Any], other: Mapping[str, Any], number: int, owner: str) -> None:
    """Raise a SpecError unless environment `number` has the batch size and the specs of environment 0."""
    if other["batch_size"] != first["batch_size"]:
        raise SpecError(
            f"{owner}: environment {number} has batch size {tuple(other['batch_size'])}, environment 0"
            f" {tuple(first['batch_size'])}"
        )
    expected: Composite
    for role, expected in first["specs"].items():
        got: Composite = other["specs"][role]
        if got == expected:
            continue
        keys = {*leaf_keys(expected), *leaf_keys(got)}
        odd = sorted((k for k in keys if expected.get(k, None) != got.get(k, None)), key=str)
        lines = [
            f"  {key_str(key)}: environment 0 has {describe(expected.get(key, None))}, environment {number} has"
            f" {describe(got.get(key, None))}"
            for key in odd
        ]
        raise SpecError(f"{owner}: the {role} specs of environments 0 and {number} differ:\n" + "\n".join(lines))


def check_same_keys(
    first: Iterable[NestedKey], other: Iterable[NestedKey], number: int, method: str, owner: str
) -> None:
    """Raise unless environment `number` wrote the keys that another one wrote.

    Raises:
        ContractError: naming the keys that only one of them wrote.
    """
    wanted, found = set(first), set(other)
    if wanted != found:
        lacking, more = (sorted(map(key_str, keys)) for keys in (wanted - found, found - wanted))
        said = [
            *(["lacks " + ", ".join(lacking)] if lacking else []),
            *(["also has " + ", ".join(more)] if more else []),
        ]
        raise ContractError(
            f"{owner}: what the {method} of environment {number} wrote {' and '.join(said)}, compared with the"
            f" environments before it. Let every {method} write the same entries"
        )
