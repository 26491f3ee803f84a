"""The settings that every recipe has. Imports no torch, so that --help is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl.trainers._config.fields import LAYOUTS, REPEATED, check, in_range, one_of, positive
from rl.trainers._config.given import named_env
from rl.trainers._config.named import is_argument

__all__ = ["RunConfig"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings that all recipes share: environment, length of the run, evaluations, checkpoints.

    Args:
        env: what to train on: the name of an installed env component (see `rl plugins --all`), COMPONENT/ID for one
            that takes an id (gym/CartPole-v1), module:Class for an environment class or function of your own, else a
            Gymnasium id, or module:ID for one that a module registers (ale_py:ALE/Pong-v5). Modules are also
            searched in the current folder. In Python also a class, a function, or what gymnasium.make returns;
            arguments of the latter, and of a functools.partial, become env_kwargs.
        env_kwargs: arguments for the environment, as in '{frame_skip: 4}'.
        wrapper: a Gymnasium wrapper for each environment, as module:callable or 'module:callable:{key: value}'; may
            be repeated, the first one is innermost.
        transform: a transform of the environment, as NAME, 'NAME:{key: value}' or module:callable; may be repeated,
            in order.
        normalize_observation: normalize the vectors of floats that the policy reads with their running mean and
            standard deviation, and clip them to [-10, 10]. Evaluations use the statistics of training and do not change
            them; checkpoints contain them.
        normalize_reward: divide the rewards of training by the running standard deviation of their discounted return.
            Metrics and evaluations show the rewards of the environment.
        clip_actions: actions of the policy are normal without bounds, and clipped to those of the environment; else
            they are tanh-normal, within the bounds. For vectors of bounded floats.
        frame_stack: last observations of an episode that the policy sees as one: vectors are joined in their last
            dimension, images in their channels.
        frame_skip: how often each action is repeated; rewards are added up, and the repetitions are one frame in all
            other settings.
        atari: the standard preprocessing of Atari games: no-op starts, 4 frames for each action, the maximum of the
            last two, gray, 84 x 84, 4 of them stacked; in training an episode for each life and the sign of the reward,
            in evaluations whole games and their score.
        gamma: discount of the return, per step.
        observation_layout: how observations with two or more dimensions are read. auto takes uint8 with three
            dimensions as an image, whose channels are the smaller of the first and last dimension, and refuses
            others; channels-first and channels-last take all with three dimensions as images; flat takes all as
            vectors.
        total_frames: environment steps to train for, counted over all parallel environments.
        seed: of networks, environments and exploration.
        device: where networks live and learn, for example cpu or cuda:0.
        num_envs: environments that are stepped together.
        workers: processes that step them, for simulators that need a millisecond a step or more; 0 for this process.
        ray: address of a Ray cluster, auto for the one of this machine, or local to start one; as many actors as
            workers collect then, each with its share of the environments. Needs rl-trainers[ray].
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
        compile: compile the loss with torch.compile after its first call; worth its time in long runs with larger
            networks. Results are those without it up to rounding.
        precision: fp32, or bf16 for losses whose matrix products are of bfloat16 (torch.autocast); weights, optimizers
            and the actions that are collected stay float32. Worth it for large networks on a GPU.
        loggers: loggers that get every row of metrics, as in csv,tensorboard; names of components or module:NAME.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> RunConfig(num_envs=0)
        Traceback (most recent call last):
        ...
        rl.core.errors.SpecError: RunConfig: num_envs must be above 0, got 0
    """

    recipe: ClassVar[str] = ""
    """Name of the recipe, which the config of a recipe sets."""
    multi_agent: ClassVar[bool] = False
    """Whether the environment has groups of agents; `GroupFields` sets it."""
    report_group: ClassVar[str] = ""
    absent: ClassVar[tuple[str, ...]] = ()
    """Settings of base classes that the recipe does not have: they keep their defaults, and --help leaves them out."""
    own_transforms: ClassVar[tuple[str, ...]] = ()
    """Transforms whose entries the policy of the recipe reads, after those of the user."""

    env: str = "CartPole-v1"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    wrapper: tuple[str, ...] = field(default=(), metadata=REPEATED)
    transform: tuple[str, ...] = field(default=(), metadata=REPEATED)
    normalize_observation: bool = False
    normalize_reward: bool = False
    clip_actions: bool = False
    frame_stack: int = 1
    frame_skip: int = 1
    atari: bool = False
    gamma: float = 0.99
    observation_layout: str = "auto"
    total_frames: int = 100_000
    seed: int = 0
    device: str = "cpu"
    num_envs: int = 1
    workers: int = 0
    ray: str = ""
    eval_every: int = 5_000
    eval_episodes: int = 10
    final_eval_episodes: int = 20
    max_episode_steps: int = 0
    observation_indices: tuple[int, ...] = ()
    log_every: int = 1_000
    checkpoint_every: int = 50_000
    threads: int = 1
    compile: bool = False
    precision: str = "fp32"
    loggers: tuple[str, ...] = ("csv", "tensorboard")

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SpecError: if one is out of its range.
        """
        above_zero = (positive, "above 0")
        for name, value in zip(("env", "env_kwargs"), named_env(self.env, self.env_kwargs), strict=True):
            object.__setattr__(self, name, value)
        check(self, {name: self._left_out(name) for name in self.absent})
        check(
            self,
            {
                "env": (
                    lambda env: isinstance(env, str) and bool(env),
                    "the name of an environment; in Python also a class, a function, or what gymnasium.make returns",
                ),
                "env_kwargs": (
                    _is_mapping,
                    "a mapping with names as keys and a space after each colon, as in {frame_skip: 4}",
                ),
                "frame_stack": (positive, "above 0, where 1 stacks nothing"),
                "frame_skip": (positive, "above 0, where 1 repeats nothing"),
                "gamma": in_range(0, 1),
                "observation_layout": one_of(*LAYOUTS),
                "total_frames": above_zero,
                "seed": in_range(0, 2**31 - 1),
                "num_envs": above_zero,
                "workers": (lambda n: 0 <= n <= self.num_envs, f"0 or more, and at most num_envs ({self.num_envs})"),
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
                "precision": one_of("fp32", "bf16"),
            },
        )
        if self.ray:
            check(
                self,
                {
                    "workers": (
                        lambda n: n >= 1 and self.num_envs % n == 0,
                        f"the number of actors, a divisor of num_envs ({self.num_envs}), with ray",
                    ),
                    "normalize_observation": (lambda given: not given, "left out with ray: actors share no statistics"),
                    "normalize_reward": (lambda given: not given, "left out with ray: actors share no statistics"),
                },
            )
        if self.atari:
            check(
                self,
                {
                    "frame_stack": (lambda n: n == 1, "left out with atari, which stacks 4 frames"),
                    "frame_skip": (lambda n: n == 1, "left out with atari, which repeats each action 4 times"),
                    "normalize_observation": (
                        lambda given: not given,
                        "left out with atari, whose images of bytes are divided by 255",
                    ),
                },
            )

    def _left_out(self, name: str) -> tuple[Callable[[Any], bool], str]:
        default = getattr(type(self), name)
        return (lambda value: value == default), f"left out with {self.recipe}, which does not have it"


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(is_argument, value.items()))
