"""Data sets of our own runs, and what a data set holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl.core import ExplorationType, set_exploration_type
from rl.core.errors import MissingExtraError, RLError
from rl.core.keys import key_str, leaf_keys
from rl.core.mdp import step_mdp
from rl.core.specs import Bounded, Categorical, OneHot
from rl.trainers._evaluate.loading import load_run
from rl.trainers._rng import preserved_rng, seed_everything

__all__ = ["described_dataset", "record_dataset"]

_CHUNK = 8


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise MissingExtraError(
            f"data sets need {error.name}, which is not installed: pip install 'rl-replay[minari]'"
        ) from error
    return minari


def record_dataset(run: str | Path, name: str, *, frames: int, random: float, checkpoint: Any, seed: int) -> str:
    """Play episodes with the policy of a run, and write them as a data set of Minari.

    Args:
        run: the run folder.
        name: id of the data set, as in ``pendulum/medium-v0``.
        frames: steps at least; the last episodes are complete.
        random: share of random actions, in [0, 1].
        checkpoint: ``best`` or ``last``.
        seed: of environment and actions.

    Returns:
        A line about what was written.

    Raises:
        RLError: if observations or actions are of a kind that is not recorded, or the data set exists.
        MissingExtraError: if Minari is not installed.
    """
    import gymnasium

    minari = _minari()
    trained = load_run(run, checkpoint)
    env: Any = trained.make_env(_CHUNK, seed)
    keys, action_spec = leaf_keys(env.observation_spec), env.action_spec
    if "observation" not in keys or len(leaf_keys(env.full_action_spec)) != 1:
        raise RLError(f"rl dataset record takes environments with one observation and one action, not {run}'s")
    if isinstance(action_spec, Bounded):
        low, high = (np.asarray(end[0]) for end in (action_spec.low, action_spec.high))
        space: Any = gymnasium.spaces.Box(low, high, dtype=low.dtype.type)
    elif isinstance(action_spec, Categorical | OneHot):
        space = gymnasium.spaces.Discrete(int(action_spec.n))
    else:
        raise RLError(f"rl dataset record takes bounded floats and single choices, not {type(action_spec).__name__}")
    episodes, returns = _play(env, trained.policy, frames, random, seed, one_hot=isinstance(action_spec, OneHot))
    buffers = [minari.data_collector.EpisodeBuffer(id=number, **one) for number, one in enumerate(episodes)]
    shape = np.asarray(episodes[0]["observations"]).shape[1:]
    seen = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.asarray(episodes[0]["observations"]).dtype.type)
    try:
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=seen, action_space=space, algorithm_name=trained.recipe.name
        )
    except ValueError as error:
        raise RLError(f"the data set {name!r} cannot be written: {error}") from error
    steps = sum(len(one["rewards"]) for one in episodes)
    return (
        f"{name}: {steps} steps in {len(episodes)} episodes, mean return {np.mean(returns):.1f}."
        f" Learn from it with --dataset minari:{name}"
    )


def _play(
    env: Any, policy: Any, frames: int, random: float, seed: int, *, one_hot: bool
) -> tuple[list[dict[str, Any]], list[float]]:
    """Whole episodes, and their returns."""
    done: list[dict[str, Any]] = []
    open_: list[dict[str, list[Any]]] = []
    steps = 0
    with preserved_rng(), torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        seed_everything(seed)
        td = env.reset()
        open_ = [_begun(row) for row in td["observation"]]
        while steps < frames:
            td = policy(td)
            if random:
                other = env.full_action_spec.rand()
                chance = torch.rand(_CHUNK) < random
                for key in env.action_keys:
                    mask = chance.reshape(-1, *[1] * (td[key].ndim - 1))
                    td[key] = torch.where(mask, other[key], td[key])
            td = env.step(td)
            action, after = td[env.action_keys[0]], td["next"]
            if one_hot:
                action = action.argmax(-1)
            for number, episode in enumerate(open_):
                episode["actions"].append(action[number].cpu().numpy())
                episode["observations"].append(after["observation"][number].cpu().numpy())
                episode["rewards"].append(float(after["reward"][number]))
                episode["terminations"].append(bool(after["terminated"][number]))
                episode["truncations"].append(bool(after["truncated"][number]))
            over = after["done"].flatten()
            following = step_mdp(td)
            if bool(over.any()):
                following = env.reset(following.set("_reset", after["done"].clone()))
                for number in over.nonzero().flatten().tolist():
                    done.append(_closed(open_[number]))
                    steps += len(done[-1]["rewards"])
                    open_[number] = _begun(following["observation"][number])
            td = following
    env.close()
    return done, [sum(one["rewards"]) for one in done]


def _begun(observation: torch.Tensor) -> dict[str, list[Any]]:
    first: dict[str, list[Any]] = {name: [] for name in ("actions", "rewards", "terminations", "truncations")}
    return {"observations": [observation.cpu().numpy()], **first}


def _closed(episode: dict[str, list[Any]]) -> dict[str, Any]:
    return {**episode, "observations": np.stack(episode["observations"]), "actions": np.stack(episode["actions"])}


def described_dataset(name: str) -> str:
    """What a data set holds, as text.

    Args:
        name: ``SOURCE:NAME``; a name without a source is Minari's.

    Raises:
        RLError: if there is no such data set.
    """
    from rl.replay.datasets import load_dataset

    data = load_dataset(name if ":" in name else f"minari:{name}").data
    lines = [f"{len(data)} steps"]
    if "episode" in data.keys():
        starts = torch.cat([torch.tensor([0]), 1 + (data["episode"].diff() != 0).nonzero().flatten()])
        totals = torch.zeros(len(starts)).index_add(
            0, torch.bucketize(torch.arange(len(data)), starts, right=True) - 1, data["next", "reward"].flatten()
        )
        lines[0] += f" in {len(starts)} episodes"
        lines.append(f"returns: mean {totals.mean():.1f}, from {totals.min():.1f} to {totals.max():.1f}")
    lines += [f"  {key_str(key)}: {data[key].dtype} {list(data[key].shape[1:])}" for key in leaf_keys(data)]
    return "\n".join(lines) + "\n"
