"""Stable-Baselines3 with the hyperparameters of its RL Zoo, as recipes beside ours: cases of ``docs/results-sb3.yaml``.

What differs from the Zoo is the number of frames, and that it is evaluated as our recipes are, on as many episodes:

    pip install rl_zoo3
    PYTHONPATH=packages/rl-trainers/benchmarks rl benchmark docs/results-sb3.yaml --trust rl_zoo --out runs/results-sb3
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch

from rl.core.errors import RLError
from rl.trainers import Algorithm, RunConfig, TrainResult
from rl.trainers._storage import RunFolder, package_versions  # a page in one's own project has no results to publish


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RunConfig):
    """Settings of PPO: frames and evaluations; all others are those of the Zoo."""

    recipe: ClassVar[str] = "sb3-ppo"


@dataclass(frozen=True, kw_only=True)
class A2CConfig(RunConfig):
    """Settings of A2C."""

    recipe: ClassVar[str] = "sb3-a2c"


@dataclass(frozen=True, kw_only=True)
class DQNConfig(RunConfig):
    """Settings of DQN."""

    recipe: ClassVar[str] = "sb3-dqn"


@dataclass(frozen=True, kw_only=True)
class SACConfig(RunConfig):
    """Settings of SAC."""

    recipe: ClassVar[str] = "sb3-sac"


@dataclass(frozen=True, kw_only=True)
class TD3Config(RunConfig):
    """Settings of TD3."""

    recipe: ClassVar[str] = "sb3-td3"


class Evaluations:
    """Returns of the policy during a training, and its best parameters.

    Args:
        manager: What makes the environments.
        model: The model that learns.
        config: Settings.
        path: CSV file of the returns.
    """

    def __init__(self, manager: Any, model: Any, config: RunConfig, path: Path) -> None:
        self._model, self._config = model, config
        self._env = manager.create_envs(1, eval_env=True, no_log=True)
        self._next = config.eval_every
        self._path, self._began, self._cpu = path, time.perf_counter(), time.process_time()
        self.best: tuple[float, int, Any, Any] = (float("-inf"), 0, None, None)
        self.rows: list[dict[str, float]] = []

    def __call__(self, *_: Any) -> bool:
        """Evaluate the policy if it is time to; training goes on."""
        if self._model.num_timesteps >= self._next:
            self.evaluate()
        return True

    def evaluate(self) -> None:
        """Evaluate the policy, and keep it if it is the best one so far."""
        frames = self._model.num_timesteps
        self._next = frames - frames % self._config.eval_every + self._config.eval_every
        mean, _ = self.play(self._config.eval_episodes)
        if mean > self.best[0]:
            self.best = (mean, frames, deepcopy(self._model.policy.state_dict()), deepcopy(self._statistics()))
        self.rows.append({"frames": frames, **self.times(), "eval/return_mean": mean})
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*self.rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)

    def play(self, episodes: int) -> tuple[float, float]:
        """Return mean and standard deviation of the returns of deterministic actions."""
        from stable_baselines3.common.evaluation import evaluate_policy

        statistics = self._statistics()
        if statistics is not None:
            self._env.obs_rms = statistics
        mean, std = evaluate_policy(self._model, self._env, n_eval_episodes=episodes, deterministic=True)
        return float(mean), float(std)  # pyright: ignore[reportArgumentType]

    def load_best(self) -> None:
        """Put the parameters of the best evaluation into the model."""
        _, _, policy, statistics = self.best
        self._model.policy.load_state_dict(policy)
        if statistics is not None:
            self._model.get_vec_normalize_env().obs_rms = statistics

    def times(self) -> dict[str, float]:
        """Return wall and CPU seconds since the start."""
        wall, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        return {"time/seconds": round(wall, 3), "time/cpu_seconds": round(cpu, 3)}

    def _statistics(self) -> Any:
        env = self._model.get_vec_normalize_env()
        return None if env is None else env.obs_rms


def train(
    algorithm: Algorithm,
    config: RunConfig,
    *,
    policy: Any,
    out: str | Path | None,
    resume: str | Path | None,
    display: str,
    should_stop: Callable[[int], bool] | None = None,
) -> TrainResult:
    """Train with Stable-Baselines3 in a run folder with what tables and plots need.

    Raises:
        RLError: If a run is resumed: it keeps no checkpoints.
    """
    from rl_zoo3.exp_manager import ExperimentManager
    from stable_baselines3.common.callbacks import CallbackList, ConvertCallback

    del policy, display, should_stop
    if resume is not None:
        raise RLError(f"{resume} has no checkpoint: delete the folder, and train again")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as files:
        name = config.recipe.removeprefix("sb3-")
        options: dict[str, Any] = {"n_timesteps": config.total_frames, "eval_freq": -1, "seed": config.seed}
        manager = ExperimentManager(argparse.Namespace(), name, config.env, files, **options, verbose=0, device="cpu")
        found = manager.setup_experiment()
        assert found is not None
        model = found[0]
        folder = RunFolder.create(out, algorithm, config)
        folder.add_to_history(0)
        evaluations = Evaluations(manager, model, config, folder.metrics)
        calls = [*manager.callbacks, ConvertCallback(evaluations)]
        model.learn(manager.n_timesteps, callback=CallbackList(calls))
        if not evaluations.rows or evaluations.rows[-1]["frames"] < model.num_timesteps:
            evaluations.evaluate()
    times = evaluations.times()
    last = evaluations.play(config.final_eval_episodes)
    evaluations.load_best()
    best = evaluations.play(config.final_eval_episodes)
    folder.write_summary(
        {
            "recipe": config.recipe,
            "env": config.env,
            "seed": config.seed,
            "frames": model.num_timesteps,
            "best/frames": evaluations.best[1],
            "best/return_mean": best[0],
            "best/return_std": best[1],
            "last/return_mean": last[0],
            "last/return_std": last[1],
            **times,
            "versions": {**package_versions(), **{one: version(one) for one in ("stable_baselines3", "rl_zoo3")}},
        }
    )
    return TrainResult(folder.path, model.num_timesteps, times["time/seconds"], *best)


def no_policy(config: RunConfig, env: Any) -> Any:
    """Raise: the policies stay in Stable-Baselines3.

    Raises:
        RLError: Always.
    """
    raise RLError(f"{config.recipe}: the policy for {env!r} is not kept; train with rl_zoo3 itself")


PPO, A2C, DQN, SAC, TD3 = (
    Algorithm(one, loop=train, policy=no_policy) for one in (PPOConfig, A2CConfig, DQNConfig, SACConfig, TD3Config)
)
