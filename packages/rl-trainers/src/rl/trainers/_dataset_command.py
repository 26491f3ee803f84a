"""Data sets of our own runs, and what a data set holds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl.core import ExplorationType, set_exploration_type
from rl.core.errors import MissingExtraError, RLError
from rl.core.keys import key_str, leaf_keys
from rl.core.mdp import step_mdp
from rl.core.recurrent import states_of
from rl.core.specs import Bounded, Categorical, OneHot, Unbounded
from rl.trainers._device import preserved_rng, seed_everything
from rl.trainers._storage import RunFolder
from rl.trainers.actions import mask_key
from rl.trainers.checkpoint import load_checkpoint
from rl.trainers.config import config_of_learner
from rl.trainers.datasets import ENVIRONMENT
from rl.trainers.evaluation import load_run
from rl.trainers.networks import MASK, observations_of
from rl.trainers.replay import transitions_buffer

_CHUNK = 8


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise MissingExtraError(
            f"data sets of Minari need {error.name}, which is not installed: pip install 'rl-replay[minari]'."
            " Data sets of other libraries are named SOURCE:NAME"
        ) from error
    return minari


def record_dataset(
    run: str | Path,
    name: str,
    *,
    frames: int,
    random: float,
    checkpoint: Any,
    seed: int,
    replay: bool = False,
    trust: Sequence[str] = (),
) -> str:
    """Write a data set of Minari: episodes played with the policy of a run, or what its replay buffer holds.

    Args:
        run: The run folder.
        name: Id of the data set, as in ``pendulum/medium-v0``.
        frames: Steps at least; the last episodes are complete.
        random: Share of random actions, in [0, 1].
        checkpoint: Checkpoint to play, ``best`` or ``last``.
        seed: Seed of environment and actions.
        replay: Whether to write the replay buffer of the last checkpoint, and play nothing.
        trust: Modules that the run may name.

    Returns:
        A line about what was written.

    Raises:
        RLError: If observations or actions are of a kind that is not recorded, the run has no replay buffer of single
            steps, or the data set exists.
        MissingExtraError: If Minari is not installed.
    """
    minari = _minari()
    RunFolder.open(run)
    _check_name(name)
    trained = load_run(run, "last" if replay else checkpoint, trust=trust)
    env: Any = trained.make_env(1 if replay else _CHUNK, seed)
    observation, action, one_hot = _spaces(env, run)
    seen = list(observation.spaces)
    if replay:
        episodes = _read_buffer(run, trained.config, env.action_keys[0], seen, one_hot=one_hot)
    else:
        episodes = _play(env, trained.policy, frames, random, seed, seen, one_hot=one_hot)
    if len(seen) == 1:  # a data set without a dictionary
        observation = observation.spaces[seen[0]]
        episodes = [{**one, "observations": one["observations"][seen[0]]} for one in episodes]
    origin = _origin(env, trained.config.env)
    env.close()
    buffers = [minari.data_collector.EpisodeBuffer(id=number, **one) for number, one in enumerate(episodes)]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="minari")  # author, code and other notes that are left out
            written = minari.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=observation,
                action_space=action,
                algorithm_name=trained.recipe.name,
                description=f"{'replay buffer' if replay else 'episodes'} of a run on {trained.config.env}",
            )
            written.storage.update_metadata(origin)
    except ValueError as error:
        raise RLError(f"the data set {name!r} cannot be written: {error}") from error
    steps = sum(len(one["rewards"]) for one in episodes)
    mean = np.mean([sum(one["rewards"]) for one in episodes])
    return (
        f"{name}: {steps} steps in {len(episodes)} episodes, mean return {mean:.1f}."
        f" Learn from it with --dataset minari:{name}"
    )


def _origin(env: Any, name: str) -> dict[str, str]:
    """Metadata about the environment: its name in the run, and its spec if Gymnasium can create it from one."""
    simulators = getattr(env, "gym_env", None)
    first = simulators[0] if isinstance(simulators, list) else simulators
    try:
        return {ENVIRONMENT: name, "env_spec": first.spec.to_json()}  # pyright: ignore[reportOptionalMemberAccess]
    except (AttributeError, TypeError, ValueError):  # there is none, or an argument that is code
        return {ENVIRONMENT: name}


def _check_name(name: str) -> None:
    """Reject a name before anything is played; Minari leaves a folder behind if it rejects one itself."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(name)
    except (TypeError, ValueError) as error:  # the former for a name without a version
        raise RLError(f"the data set {name!r} cannot be written: {error}. Write it as in pendulum/medium-v0") from error
    if Path(get_dataset_path(name)).exists():
        raise RLError(f"there is a data set {name!r}: take another name or version, or `minari delete {name}`")


def _spaces(env: Any, run: str | Path) -> tuple[Any, Any, bool]:
    """Spaces of Gymnasium for observations and action, and whether actions are one-hot vectors.

    The observations are ``observation``, and the mask of legal actions where the environment writes one.
    """
    import gymnasium

    keys, action_spec = list(observations_of(env)), env.action_spec
    if keys != ["observation"] or len(leaf_keys(env.full_action_spec)) != 1:
        raise RLError(f"rl dataset record takes environments with one observation and one action, not {run}'s")
    if isinstance(action_spec, Bounded):
        low, high = (np.asarray(end[0]) for end in (action_spec.low, action_spec.high))
        action: Any = gymnasium.spaces.Box(low, high, dtype=low.dtype.type)
    elif isinstance(action_spec, Categorical | OneHot):
        action = gymnasium.spaces.Discrete(int(action_spec.n))
    else:
        raise RLError(f"rl dataset record takes bounded floats and single choices, not {type(action_spec).__name__}")
    seen = env.observation_spec["observation"]
    dtype = torch.empty(0, dtype=seen.dtype).numpy().dtype.type
    if not np.issubdtype(dtype, np.floating):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        low, high = -np.inf, np.inf
    spaces: dict[str, Any] = {"observation": gymnasium.spaces.Box(low, high, tuple(seen.shape[1:]), dtype)}
    if mask_key(env) is not None:
        spaces[MASK] = gymnasium.spaces.MultiBinary(env.observation_spec[MASK].shape[-1])
    return gymnasium.spaces.Dict(spaces), action, isinstance(action_spec, OneHot)


def _read_buffer(
    run: str | Path, config: Any, action_key: Any, seen: Sequence[str], *, one_hot: bool
) -> list[dict[str, Any]]:
    """Episodes in the replay buffer of the last checkpoint, oldest first. The ones at its ends may be parts."""
    state = load_checkpoint(RunFolder(run).last)
    if "buffer" not in state or getattr(config, "n_steps", 1) > 1 or getattr(config, "policy", "mlp") != "mlp":
        raise RLError(
            f"{run} keeps no replay buffer of single steps; --replay takes runs of recipes such as sac, td3 and dqn,"
            " with n_steps=1 and policy=mlp"
        )
    config = config_of_learner(config)  # the buffer of the first one
    buffer = transitions_buffer(config)
    buffer.load_state_dict(state["buffer"])
    rows = buffer[:]
    if len(rows) == config.buffer_size:
        rows = rows[torch.arange(len(rows)).roll(-state["buffer"]["writer"]["cursor"])]
        rows = rows[len(rows) % config.frames_per_batch :]  # the oldest batch was overwritten in part
    each = config.frames_per_batch // config.num_envs
    rows = rows.reshape(-1, config.num_envs, each).transpose(0, 1).reshape(-1)
    if one_hot:
        rows[action_key] = rows[action_key].argmax(-1)
    ends = rows["next", "done"].flatten().clone()
    ends[len(ends) // config.num_envs - 1 :: len(ends) // config.num_envs] = True  # of an environment's steps
    episodes, start = [], 0
    for stop in (ends.nonzero().flatten() + 1).tolist():
        part, start = rows[start:stop].cpu(), stop
        terminated = part["next", "terminated"].flatten().numpy()
        truncated = np.zeros_like(terminated)
        truncated[-1] = not terminated[-1]
        episodes.append(
            {
                "observations": {name: _array(torch.cat([part[name], part["next", name][-1:]])) for name in seen},
                "actions": part[action_key].numpy(),
                "rewards": part["next", "reward"].flatten().tolist(),
                "terminations": terminated.tolist(),
                "truncations": truncated.tolist(),
            }
        )
    return episodes


def _play(
    env: Any, policy: Any, frames: int, random: float, seed: int, seen: Sequence[str], *, one_hot: bool
) -> list[dict[str, Any]]:
    """Complete episodes."""
    states = states_of(policy)
    if states:
        from rl.envs import InitTracker, TensorDictPrimer, TransformedEnv

        first: dict[Any, Any] = {state.name: Unbounded(state.shape, dtype=state.dtype) for state in states}
        env = TransformedEnv(TransformedEnv(env, InitTracker()), TensorDictPrimer(first))
    done: list[dict[str, Any]] = []
    open_: list[dict[str, list[Any]]] = []
    steps = 0
    with preserved_rng(), torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        seed_everything(seed)
        td = env.reset()
        open_ = [_begun(row, seen) for row in td]
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
                episode["observations"].append({name: _array(after[name][number]) for name in seen})
                episode["rewards"].append(float(after["reward"][number]))
                episode["terminations"].append(bool(after["terminated"][number]))
                episode["truncations"].append(bool(after["truncated"][number]))
            over = after["done"].flatten()
            following = step_mdp(td)
            if bool(over.any()):
                following = env.reset(following.set("_reset", after["done"].clone()))
                for number in over.nonzero().flatten().tolist():
                    done.append(_stack_episode(open_[number], seen))
                    steps += len(done[-1]["rewards"])
                    open_[number] = _begun(following[number], seen)
            td = following
    return done


def _array(seen: torch.Tensor) -> np.ndarray[Any, Any]:
    """Convert an observation, or a mask as integers, to what a space of Gymnasium contains."""
    return (seen.to(torch.int8) if seen.dtype is torch.bool else seen).cpu().numpy()


def _begun(row: Any, seen: Sequence[str]) -> dict[str, list[Any]]:
    first: dict[str, list[Any]] = {name: [] for name in ("actions", "rewards", "terminations", "truncations")}
    return {"observations": [{name: _array(row[name]) for name in seen}], **first}


def _stack_episode(episode: dict[str, list[Any]], seen: Sequence[str]) -> dict[str, Any]:
    observations = {name: np.stack([one[name] for one in episode["observations"]]) for name in seen}
    return {**episode, "observations": observations, "actions": np.stack(episode["actions"])}


def describe_dataset(name: str) -> str:
    """Describe what a data set contains, as text.

    Args:
        name: Name as ``SOURCE:NAME``; a name without a source is Minari's.

    Raises:
        RLError: If there is no such data set.
        MissingExtraError: If the library that reads it is not installed.
    """
    from rl.replay.datasets import load_dataset

    if ":" not in name:
        _minari()
        name = f"minari:{name}"
    data = load_dataset(name).data
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
