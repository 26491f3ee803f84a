"""Rollout of a policy in an environment, on TensorDicts."""

# ruff: noqa: SLF001  # the parts of an environment share its rules, which users do not see

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from rl.core import set_recurrent_mode
from rl.core.errors import ContractError, RLError, SpecError
from rl.core.keys import as_tuple, key_str, unwrap
from rl.envs.base._checks import check_entries
from rl.envs.base._specs import leaf_keys

__all__ = ["rollout"]


def rollout(
    env: Any,
    start: TensorDictBase,
    max_steps: int,
    policy: Callable[[TensorDictBase], TensorDictBase] | None,
    callback: Callable[[Any, TensorDictBase], Any] | None,
    *,
    stop: str,
    contiguous: bool,
    set_truncated: bool,
) -> TensorDictBase:
    """Run the steps of `EnvBase.rollout`, after the first reset.

    Args:
        env: the environment.
        start: the root entries of the first step; left as they are.
        max_steps: at least 1.
        policy: None for random actions.
        callback: called after each step.
        stop: when an episode ends: ``any`` stops, ``all`` stops when all have, ``never`` resets.
        contiguous: stack into tensors.
        set_truncated: mark the last step.

    Returns:
        ``[*B, T]``, the last dimension named ``time``.
    """
    steps: list[TensorDictBase] = []
    td = start.copy()
    for count in range(1, max_steps + 1):
        td = _act(env, policy, td)
        if stop == "never" and count < max_steps:
            td, following = env.step_and_maybe_reset(td)
        else:
            td, following = env.step(td), None
        td.pop("_step", None)
        steps.append(td)
        if callback is not None:
            callback(env, td)
        if count == max_steps:
            break
        if following is None:
            over = _over(env, td)
            if (over.numel() and bool(over.all())) or (stop == "any" and bool(over.any())):
                break
            following = env.step_mdp(td)
            if stop == "all" and bool(over.any()):
                following.set("_step", ~over)
        td = following
    if set_truncated:
        steps[-1] = _truncate(env, steps[-1])
    return _stack(env, steps, contiguous=contiguous)


def _act(env: Any, policy: Any, td: TensorDictBase) -> TensorDictBase:
    if policy is None:
        return env.rand_action(td)
    with set_recurrent_mode(False):  # whatever holds outside: this is a single step
        out = policy(td)
    if out is td:
        return td
    if not isinstance(out, TensorDictBase):
        raise SpecError(
            f"the policy {type(policy).__name__} returned {type(out).__name__}, expected a TensorDict: wrap a plain"
            " network as TensorDictModule(network, in_keys=['observation'], out_keys=['action'])"
        )
    return td.update(out)  # a policy may return its own entries alone


def _over(env: Any, td: TensorDictBase) -> Tensor:
    """Which elements are done, ``[*B]``: with several done groups, those of which every part is."""
    ndim = len(env.batch_size)
    flags = [td.get(("next", *as_tuple(key))).flatten(ndim).all(-1) for key in env._rl.flags.done_keys]
    return flags[0] if len(flags) == 1 else torch.stack(flags).all(0)


def _truncate(env: Any, td: TensorDictBase) -> TensorDictBase:
    outcome = td.get("next").copy()
    keys = [key for key in env.done_keys if as_tuple(key)[-1] == "truncated"]
    if not keys:
        raise RLError(
            f"rollout(set_truncated=True): {type(env).__name__} has no 'truncated' flag (done keys: {env.done_keys});"
            " add one to its done_spec, or append StepCounter(max_steps=...)"
        )
    for key in keys:
        over = torch.ones_like(outcome.get(key))
        outcome.set(key, over)
        outcome.set(unwrap((*as_tuple(key)[:-1], "done")), over.clone())
    return td.copy().set("next", outcome)


def _stack(env: Any, steps: list[TensorDictBase], *, contiguous: bool) -> TensorDictBase:
    dim = len(env.batch_size)
    if contiguous:
        first = set(leaf_keys(steps[0]))
        for number, step in enumerate(steps[1:], 1):
            keys = set(leaf_keys(step))
            if keys != first:
                odd = ", ".join(key_str(key) for key in sorted(first ^ keys, key=str))
                raise ContractError(
                    f"rollout: step {number} has other entries than step 0 ({odd}); write them"
                    " from the first step on, for example a reset that puts a start value (of a recurrent policy: the"
                    " transform policy.make_tensordict_primer())"
                )
        try:
            out: Any = torch.stack(steps, dim)  # pyright: ignore[reportArgumentType]  # torch knows tensors only
        except Exception:
            for step in steps:
                outcome = step.get("next")
                specs = [env.observation_spec, env.full_reward_spec, env.full_done_spec]
                check_entries(outcome, specs, owner=f"{env._rl.owner}._step", allowed=leaf_keys(outcome))
            raise
    else:
        out = LazyStackedTensorDict.lazy_stack(steps, dim)
    env._rl.flags.check(out.get("next"), env._rl.owner)
    out.names = [*[None] * dim, "time"]
    return out
