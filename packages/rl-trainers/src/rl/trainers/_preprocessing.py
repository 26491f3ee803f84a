"""Transforms that the settings of a run add to an environment, and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.core.errors import ArgumentError, SpecError
from rl.core.keys import REWARD, NestedKey, key_str, leaf_keys
from rl.envs import (
    CatFrames,
    ClipTransform,
    Compose,
    RewardNorm,
    RewardSum,
    SignTransform,
    TransformedEnv,
    VecNorm,
)
from rl.trainers import _learners as learners
from rl.trainers._checks import reject_clash
from rl.trainers.networks import EPISODE_REWARD, bookkeeping_names, described, observations_of, readings_of

#: limit of normalized observations; Engstrom et al., "Implementation matters in deep policy gradients", 2020, section 2
LIMIT = 10.0


def normalized_observations(env: Any, layout: str) -> TransformedEnv:
    """Normalize all vectors of floats that a policy reads by running statistics, and clip them.

    Raises:
        SpecError: If there is none.
    """
    spec = env.observation_spec
    readings = readings_of(env, layout)
    keys = [key for key, how in readings.items() if how == "vector" and spec[key].dtype.is_floating_point]
    if not keys:
        raise SpecError(
            f"normalize_observation (--normalize-observation) is for vectors of floats; {type(env).__name__} has"
            f" {_list_readings(env, readings)}: leave it out"
        )
    return TransformedEnv(env, Compose(VecNorm(keys, decay=1.0), ClipTransform(keys, low=-LIMIT, high=LIMIT)))


def stacked_frames(env: Any, count: int, layout: str) -> TransformedEnv:
    """Stack the last `count` observations of an episode, for all vectors and images.

    Raises:
        SpecError: If there is none, or the stack would be read in another way than one observation.
    """
    readings = readings_of(env, layout)
    batch = len(env.batch_size)
    transforms: list[CatFrames] = []
    for key, how in readings.items():
        if how != "index" and len(env.observation_spec[key].shape) > batch:
            transforms.append(CatFrames(count, -3 if how == "channels-first" else -1, [key]))
    if not transforms:
        raise SpecError(
            f"frame_stack={count} (--frame-stack) is for vectors and images; {type(env).__name__} has"
            f" {_list_readings(env, readings)}: leave it out"
        )
    stacked = TransformedEnv(env, Compose(*transforms))
    for key, how in readings.items():
        if not _is_read_as(stacked, key, how, layout):
            raise SpecError(
                f"frame_stack={count} (--frame-stack) makes {key_str(key)} {described(stacked.observation_spec[key])},"
                f" which observation_layout={layout!r} does not read as {how}: set --observation-layout {how}"
            )
    return stacked


def _is_read_as(env: Any, key: NestedKey, how: str, layout: str) -> bool:
    try:
        return readings_of(env, layout)[key] == how
    except SpecError:
        return False


def training_rewards(env: Any, *, sign: bool, normalize: bool, gamma: float) -> TransformedEnv:
    """Add rewards to learn from, and ``episode_reward``, the sum of the environment's own rewards.

    Args:
        env: The environment.
        sign: Whether to replace rewards by their sign.
        normalize: Whether to divide rewards by the running standard deviation of the return.
        gamma: Discount of that return.

    Raises:
        SpecError: If an observation is called ``episode_reward``.
    """
    chain = Compose()
    if EPISODE_REWARD in bookkeeping_names(env):
        reject_clash("atari (--atari)" if sign else "normalize_reward (--normalize-reward)", [EPISODE_REWARD])
    if env.observation_spec.get(EPISODE_REWARD, None) is None:
        chain.append(RewardSum([REWARD], [EPISODE_REWARD]))
    if sign:
        chain.append(SignTransform([REWARD]))
    if normalize:
        chain.append(RewardNorm(gamma=gamma))
    return TransformedEnv(env, chain)


def check_no_reward_statistics(transform: Any, env: Any, text: str) -> None:
    """Raise if a transform would normalize the rewards of evaluations, too.

    Raises:
        ArgumentError: If so.
    """
    rewards = set(leaf_keys(env.full_reward_spec))
    if isinstance(transform, RewardNorm) or (isinstance(transform, VecNorm) and rewards & set(transform.out_keys)):
        raise ArgumentError(
            f"the transform {text!r} would also normalize the rewards of evaluations; use --normalize-reward true for"
            " rewards, and in_keys of a VecNorm for observations"
        )


def statistics_of(env: Any) -> list[Any]:
    """State of each `VecNorm` of an environment, in order."""
    return [one.state_dict() for one in _normalizers(env, VecNorm)]


def set_statistics(env: Any, statistics: Sequence[Any]) -> None:
    """Give the `VecNorm` of an environment the statistics of another one, and stop their updates.

    Raises:
        ValueError: If there are more or fewer of them.
    """
    for one, state in zip(_normalizers(env, VecNorm), statistics, strict=True):
        one.load_state_dict(state)
        one.freeze()


def pool_statistics_of(env: Any) -> None:
    """Make the running statistics of an environment those of the environments of all learners."""
    for one in _normalizers(env, VecNorm, RewardNorm):
        state = one.state_dict()
        for entry in state["stats"]:
            stats = entry[1] if isinstance(entry, list) else entry  # a VecNorm has keys before them
            stats.update(learners.pool_statistics(stats))
        one.load_state_dict(state)


def _normalizers(env: Any, *kinds: type) -> list[Any]:
    if not isinstance(env, TransformedEnv):
        return []
    chain = env.transform if isinstance(env.transform, Compose) else [env.transform]
    return [one for one in chain if isinstance(one, kinds)]


def _list_readings(env: Any, readings: dict[NestedKey, str]) -> str:
    first = (0,) * len(env.batch_size)
    specs = {key: spec[first] if first else spec for key, spec in observations_of(env).items()}
    return ", ".join(f"{key_str(key)}, {described(specs[key])} read as {how}" for key, how in readings.items())
