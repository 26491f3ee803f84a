"""The settings that every recipe has. Imports no torch, so that --help is fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl.trainers._config.fields import LAYOUTS, REPEATED, check, in_range, one_of, positive
from rl.trainers._config.named import is_argument

__all__ = ["RunConfig"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What is trained on, for how long, and how often the policy is looked at.

    Args:
        env: what to train on: the name of an installed env component (see `rl plugins --all`), COMPONENT/ID for one
            that takes an id (gym/CartPole-v1), module:Class for an environment class or function of your own, else a
            Gymnasium id, or module:ID for one that a module registers (ale_py:ALE/Pong-v5). Modules are also
            searched in the current folder.
        env_kwargs: arguments for the environment, as in '{frame_skip: 4}'.
        wrapper: a Gymnasium wrapper for each environment, as module:callable or 'module:callable:{key: value}'; may
            be repeated, the first one is innermost.
        transform: a transform of the environment, as NAME, 'NAME:{key: value}' or module:callable; may be repeated,
            in order.
        observation_layout: how observations with two or more dimensions are read. auto takes uint8 with three
            dimensions as an image, whose channels are the smaller of the first and last dimension, and refuses
            others; channels-first and channels-last take all with three dimensions as images; flat takes all as
            vectors.
        total_frames: environment steps to train for, counted over all parallel environments.
        seed: of networks, environments and exploration.
        device: where networks live and learn, for example cpu or cuda:0.
        num_envs: environments that are stepped together, in this process.
        eval_every: frames between two evaluations of the policy on environments of its own; the policy with
            the best mean return becomes the best checkpoint.
        eval_episodes: episodes of each of these evaluations.
        final_eval_episodes: fresh episodes on which the best policy is evaluated at the end; this is the
            result in summary.json.
        max_episode_steps: number of steps after which episodes are truncated; 0 for the environment's own
            limit, if it has one.
        observation_indices: entries of a vector observation that the policy may see, as in [0,2], which hides the
            velocities of CartPole-v1; an empty list for all.
        log_every: frames between two rows of metrics.
        checkpoint_every: frames between two saves of the last checkpoint; it is also saved at the end and on
            Ctrl-C.
        threads: torch threads while training, at most as many as the machine has processors; small networks are
            fastest with 1. 0 leaves torch's setting.
        loggers: logger components that get every row of metrics.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> RunConfig(num_envs=0)
        Traceback (most recent call last):
        ...
        rl.core.errors.SpecError: RunConfig: num_envs must be above 0, got 0
    """

    env: str = "CartPole-v1"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    wrapper: tuple[str, ...] = field(default=(), metadata=REPEATED)
    transform: tuple[str, ...] = field(default=(), metadata=REPEATED)
    observation_layout: str = "auto"
    total_frames: int = 100_000
    seed: int = 0
    device: str = "cpu"
    num_envs: int = 1
    eval_every: int = 5_000
    eval_episodes: int = 10
    final_eval_episodes: int = 20
    max_episode_steps: int = 0
    observation_indices: tuple[int, ...] = ()
    log_every: int = 1_000
    checkpoint_every: int = 50_000
    threads: int = 1
    loggers: tuple[str, ...] = ("csv", "tensorboard")

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SpecError: if one is out of its range.
        """
        above_zero = (positive, "above 0")
        check(
            self,
            {
                "env": (bool, "the name of an environment"),
                "env_kwargs": (
                    _is_mapping,
                    "a mapping with names as keys and a space after each colon, as in {frame_skip: 4}",
                ),
                "observation_layout": one_of(*LAYOUTS),
                "total_frames": above_zero,
                "seed": in_range(0, 2**31 - 1),
                "num_envs": above_zero,
                "eval_every": above_zero,
                "eval_episodes": above_zero,
                "final_eval_episodes": above_zero,
                "max_episode_steps": (lambda n: n >= 0, "0 or more"),
                "observation_indices": (
                    lambda indices: all(i >= 0 for i in indices) and len(set(indices)) == len(indices),
                    "different numbers of 0 or more",
                ),
                "log_every": above_zero,
                "checkpoint_every": above_zero,
                "threads": (lambda n: n >= 0, "0 or more"),
            },
        )


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(is_argument, value.items()))
