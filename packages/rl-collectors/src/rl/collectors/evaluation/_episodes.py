"""Episodes of a policy, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import perf_counter
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from rl.core import set_recurrent_mode
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, NestedKey, as_tuple
from rl.core.recurrent import keep_modes

__all__ = ["run_episodes"]


def run_episodes(
    env: Env,
    policy: Callable[[TensorDictBase], TensorDictBase],
    *,
    episodes: int,
    max_steps: int | None,
    reward_key: NestedKey,
    exploration_type: InteractionType,
    video_key: NestedKey | None,
) -> dict[str, Any]:
    """Run a policy until every element of the environment has finished its share of the episodes.

    Each element runs the same number of episodes, one after the other: whichever ends first does not count more.

    Args:
        env: the environment; its episodes begin with a reset.
        policy: writes the action.
        episodes: number of episodes, rounded up to a multiple of the environment's elements.
        max_steps: steps after which an episode ends; None for no limit.
        reward_key: of the reward under ``next``; its dimensions after the batch are added up.
        exploration_type: for the policy.
        video_key: root entry whose frames in the first episode of the first element are returned.

    Returns:
        ``returns`` and ``lengths`` ``[episodes]``, ``seconds``, and ``video`` ``[T, ...]``.
    """
    elements = env.batch_size.numel()
    quota = ceil(episodes / elements)
    total, length, count = torch.zeros(elements), torch.zeros(elements, dtype=torch.int64), torch.zeros(elements)
    returns: list[Tensor] = []
    lengths: list[Tensor] = []
    frames: list[Tensor] = []
    start = perf_counter()
    acting = set_interaction_type(exploration_type, thread_local=True)
    with keep_modes(), torch.no_grad(), acting, set_recurrent_mode(False):
        root = env.reset()
        while bool((count < quota).any()):
            if video_key is not None and count.reshape(-1)[0] == 0:
                frames.append(root.get(video_key).reshape(elements, *root.get(video_key).shape[root.ndim :])[0].clone())
            stepped, root = _advance(env, policy(root), length.reshape(env.batch_size), max_steps)
            reward = stepped.get((NEXT, *as_tuple(reward_key)))
            total += reward.reshape(elements, -1).sum(-1).cpu().to(total.dtype)
            length += 1
            ended = stepped.get((NEXT, DONE)).reshape(elements, -1).any(-1).cpu()
            if max_steps is not None:
                ended |= length >= max_steps
            counted = ended & (count < quota)
            returns.append(total[counted])
            lengths.append(length[counted])
            count += counted
            total[ended], length[ended] = 0.0, 0
    found: dict[str, Any] = {"returns": torch.cat(returns), "lengths": torch.cat(lengths)}
    found["seconds"] = perf_counter() - start
    if frames:
        found["video"] = torch.stack(frames)
    return found


def _advance(
    env: Env, acted: TensorDictBase, length: Tensor, max_steps: int | None
) -> tuple[TensorDictBase, TensorDictBase]:
    """Step, and reset what has ended or reached the limit of steps."""
    stepped, root = env.step_and_maybe_reset(acted)
    if max_steps is not None:
        done = stepped.get((NEXT, DONE))
        over = (length + 1 >= max_steps).to(done.device).reshape(*length.shape, *[1] * (done.ndim - length.ndim))
        over = over.expand_as(done) & ~done
        if bool(over.any()):
            root = env.reset(root.set("_reset", over.clone()))
    return stepped, root
