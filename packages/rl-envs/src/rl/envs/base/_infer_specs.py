"""Specs that a reset and a step of an environment show."""

# ruff: noqa: SLF001  # the parts of an environment call its hooks

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Binary, Composite, NonTensor, TensorSpec, Unbounded
from rl.envs.base._specs import FLAGS, leaf_keys

__all__ = ["infer_specs"]

Keys = NestedKey | Sequence[NestedKey] | None


def infer_specs(
    env: Any,
    policy: Callable[[TensorDictBase], TensorDictBase] | None,
    tensordict: TensorDictBase | None,
    action: Keys,
    observation: Keys,
    reward: Keys,
    done: Keys,
) -> dict[str, Composite]:
    """The specs of `EnvBase.auto_specs_` by role, without the batch; ``action`` only if it is not assigned."""
    root = env._reset(tensordict)
    owner, known = env._rl.owner, env._rl.specs.has("action")
    td = _acted(env, policy, root)
    outcome = env._step(td)
    named = {as_tuple(key)[-1] for key in _as_list(reward)}
    written = leaf_keys(outcome)
    flags = _existing(done, outcome, owner) or [key for key in written if as_tuple(key)[-1] in FLAGS]
    rewards = [key for key in written if as_tuple(key)[-1] in named]
    if not rewards:
        raise SpecError(f"{owner}.auto_specs_: a step writes no entry named {sorted(named)}: give reward_key=...")
    seen = _existing(observation, root, owner) or [key for key in leaf_keys(root) if key not in flags]
    found = {"observation": _specs(env, root, seen), "reward": _specs(env, outcome, rewards)}
    if flags:
        found["done"] = _specs(env, outcome, flags)
    if not known:
        found["action"] = _specs(env, td, _existing(action, td, owner))
    return found


def _acted(env: Any, policy: Callable[[TensorDictBase], TensorDictBase] | None, root: TensorDictBase) -> Any:
    """The root with an action."""
    if policy is not None:
        return root.copy().update(policy(root.copy()))
    if not env._rl.specs.has("action"):
        raise SpecError(
            f"{env._rl.owner}.auto_specs_ steps the environment and has no action: give a policy, or assign action_spec"
            " first"
        )
    return env.rand_action(root.copy())


def _as_list(keys: Keys) -> list[NestedKey]:
    return [] if keys is None else [keys] if isinstance(keys, str) else [unwrap(key) for key in keys]


def _existing(keys: Keys, entries: Any, owner: str) -> list[NestedKey]:
    """The keys as a list; all of them must be there."""
    for key in _as_list(keys):
        if entries.get(key, None) is None:
            listed = ", ".join(map(key_str, leaf_keys(entries)))
            raise SpecError(f"{owner}.auto_specs_: {key_str(key)} is not written; there is {listed}")
    return _as_list(keys)


def _specs(env: Any, entries: Any, keys: Sequence[NestedKey]) -> Composite:
    spec = Composite({}, device=env.device)
    for key in keys:
        spec[key] = _spec(entries.get(key), len(env.batch_size))
    return spec


def _spec(value: Any, ndim: int) -> TensorSpec:
    if not isinstance(value, Tensor):
        return NonTensor(())
    shape = value.shape[ndim:]
    if value.dtype == torch.bool and shape:
        return Binary(shape=shape, dtype=torch.bool)
    return Unbounded(shape, dtype=value.dtype)
