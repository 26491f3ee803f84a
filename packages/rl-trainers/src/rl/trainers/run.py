"""One training run: folder, clock, metrics, evaluations, checkpoints, result."""

from __future__ import annotations

import copy
import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, REWARD, as_tuple, leaf_keys
from rl.trainers import _learners as learners
from rl.trainers._checks import check_batch, has_bad_weight
from rl.trainers._device import (
    check_device,
    load_rng_state,
    rng_state,
    seed_everything,
    seeds_of,
)
from rl.trainers._named import trust_options, unimportable
from rl.trainers._play import drawn_env, record_video
from rl.trainers._preprocessing import pool_statistics_of, statistics_of
from rl.trainers._progress import Episode, EpisodeStats, Every
from rl.trainers._report import plot_learning_curve
from rl.trainers._signals import SavedInterrupt, StopSignals
from rl.trainers._storage import (
    RunFolder,
    check_name,
    check_resume,
    config_yaml,
    first_line,
    package_versions,
    settings_of,
    video_library,
)
from rl.trainers.actions import check_mask
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.callbacks import Callback, CallbackSet, StopAtReturn
from rl.trainers.checkpoint import Checkpoint, Stateful, load_checkpoint, save_checkpoint
from rl.trainers.config import RunConfig, config_of_learner
from rl.trainers.display import DisplayMode, make_display
from rl.trainers.envs import env_options, make_collector, make_env
from rl.trainers.evaluation import Evaluator, TrainedRun
from rl.trainers.loggers import CSVLogger, LoggerSet
from rl.trainers.networks import EPISODE_REWARD, SUCCESS

__all__ = ["Run", "Stateful"]


#: metrics of training episodes
ROLLOUT = ("rollout/return_mean", "rollout/length_mean", "rollout/episodes")

#: steps of each environment without the end of an episode before a note reports it
ENDLESS_STEPS = 10_000


class Run:
    """A training run, shared by all recipes. A recipe builds its parts, then loops while `going`.

    Creating a run seeds everything and checks that it can begin; it writes nothing. `training` creates the
    folder or restores the checkpoint.

    Args:
        recipe: The recipe.
        config: Settings.
        out: The run folder, which must not exist; the next free one under ``runs/`` if None.
        resume: The folder of an earlier run, which is continued.
        display: Mode of the display, as of `Algorithm.train`.
        should_stop: Function that is called with the frames so far after each iteration; true ends the run as Ctrl-C
            does.
        callbacks: What is called during the run.

    Raises:
        RLError: If the folder exists already, there is nothing to resume, another process trains in the folder, or
            there is no such device or logger.
        ArgumentError: If there are more threads than processors, or both `out` and `resume` are given.

    Attributes:
        share: Settings of this learner; `config` where it is the only one.
        find_bad: Function that names non-finite data that is learned from, for the error about a loss that is not
            finite.
    """

    find_bad: Callable[[], str] | None = None
    _enough = False  # whether it ends before all frames are done
    _large = ""  # sentence of `check_batch`
    _has_success = False  # whether the environment says which episodes are a success

    def __init__(  # noqa: PLR0915  one for each part of a run
        self,
        recipe: Algorithm,
        config: RunConfig,
        *,
        out: str | Path | None = None,
        resume: str | Path | None = None,
        display: DisplayMode = "auto",
        should_stop: Callable[[int], bool] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if out is not None and resume is not None:
            raise ArgumentError("out and resume exclude each other: a resumed run continues in its own folder")
        _check_machine(config)
        self.recipe, self.config = recipe, config
        self.share = _share_of(config)
        self.seeds = seeds_of(config.seed, learners.rank())
        self.frames = 0
        self.episodes = EpisodeStats(config.num_envs)
        goal = [StopAtReturn(config.stop_at_return)] if math.isfinite(config.stop_at_return) else []
        self._out, self._should_stop, self._callbacks = out, should_stop, CallbackSet([*callbacks, *goal])
        self._display = make_display(display)
        self._loggers = LoggerSet(config.loggers, config.metric_names)
        self._signals = StopSignals()
        self._times: dict[str, float] = {}
        self._seconds = 0.0
        self._cpu_seconds = 0.0
        self._since, self._cpu_since = time.perf_counter(), time.process_time()
        self._best: dict[str, Any] | None = None
        self._changes: list[str] = []
        self._others = learners.OtherLearners()
        self._inexact: list[str] = []  # notes about parts that were not restored exactly
        self._log = Every(config.log_every)
        self._eval = Every(config.eval_every)
        self._checkpoint = Every(config.checkpoint_every)
        self._video = Every(config.video_every or config.total_frames)
        self._saved: dict[str, Any] | None = None
        self._saved_at: int | None = None
        self._latest_metrics: Callable[[], Mapping[str, float]] = dict
        self._logged: set[str] = set()
        self._shown: dict[str, float] = {}
        self._env: Env | None = None
        self.folder: RunFolder | None = None
        if resume is not None:
            self.folder = RunFolder.open(resume)
            with self.folder.locked():
                self._saved = load_checkpoint(self.folder.last)
            self._changes = check_resume(self.folder, recipe, config, self._saved)
        elif out is not None:
            check_name(out)
            if Path(out).exists():
                RunFolder.create(out, recipe, config)  # raises the error about it
        seed_everything(self.seeds.networks)

    @contextmanager
    def training(
        self, *, evaluator: Evaluator, parts: Mapping[str, Stateful], metrics: tuple[str, ...], phases: tuple[str, ...]
    ) -> Generator[Run]:
        """Open folder, loggers, display and signals for the time between the first and the last iteration.

        Args:
            evaluator: Evaluator with the policy that is trained; ``parts["policy"]`` is its state.
            parts: Parts whose state an exact continuation needs, by name.
            metrics: Names of the metrics that `end_iteration` gets; metrics.csv has them with ``train/`` before.
            phases: Names with which `timed` is called, in the order in which they are shown.
        """
        self._evaluator, self._parts = evaluator, parts
        evaluated = ("eval/return_mean", *(["eval/success_rate"] if self._has_success else []))
        self._columns = (*ROLLOUT, *evaluated, *(f"train/{name}" for name in metrics))
        self._times = dict.fromkeys((*phases, "evaluate"), 0.0)
        resumed = self.folder is not None
        folder = self.folder = self.folder or RunFolder.create(self._out, self.recipe, self.config)
        with ExitStack() as stack:
            if not resumed:
                stack.push(self._leave_no_failed_start)
            stack.enter_context(folder.locked())
            others = {"learners": self._others} if learners.count() > 1 else {}
            self._files = Checkpoint(folder.last.parent, {**parts, **others}, keep_last=self.config.keep_checkpoints)
            resume_step = self._restore(self._saved) if self._saved is not None else None
            if others:
                self._hand_out_states()
            stack.push(self._report_checkpoint)
            stack.callback(evaluator.close)
            evaluator.note = self.note
            evaluator.use_backend(self.config.policy_backend)
            settings = settings_of(self.recipe.reference, self.config)
            stack.callback(self._loggers.close)  # also of those that are open when a later one fails
            self._loggers.open(folder.path, resume_step=resume_step, settings=settings)
            self._episodes = CSVLogger(folder.path, resume_step=resume_step, file=folder.episodes.name)
            stack.callback(self._episodes.close)
            folder.add_to_history(self.frames)
            stack.callback(self._display.stop)
            self._display.start(
                f"{self.title}: {folder.path}",
                self.config.total_frames,
                self.frames,
            )
            if self._changes:
                self.note(f"resumed with {', '.join(self._changes)}")
            for line in self._inexact:
                self.note(line)
            stack.enter_context(self._signals)
            if self.config.video_every:
                self._video.due(self.frames)  # of a resumed run: what was before is there
                drawn_env(self._shown_run, self.seeds.evaluation).close()  # raises if it cannot be drawn
            self._since, self._cpu_since = time.perf_counter(), time.process_time()
            stack.callback(self._callbacks.on_end, self)
            self._callbacks.on_start(self)
            yield self

    def _leave_no_failed_start(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error in the first iteration: remove the folder, which this run has created."""
        if kind is not None and self._is_failed_start and self.folder is not None:
            self.folder.remove()

    @property
    def _is_failed_start(self) -> bool:
        """Whether no iteration has ended and nothing is saved."""
        return self.frames == 0 and self._saved_at is None

    def _report_checkpoint(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error: which checkpoint the run can be resumed from.

        Raises:
            SavedInterrupt: In place of a KeyboardInterrupt, if there is one.
        """
        if kind is None or self.folder is None or not self.folder.path.exists() or self._is_failed_start:
            return
        path = self.folder.path
        left = f"no checkpoint was saved yet in {path}"
        if self._saved_at is not None:
            left = f"{self._saved_at} frames are saved; {self._command('to continue: ', self._resuming)}"
        with suppress(OSError):  # the screen may be what failed
            self._display.note(left)
        if issubclass(kind, KeyboardInterrupt) and self._saved_at is not None:
            raise SavedInterrupt

    def note(self, text: str) -> None:
        """Show a line that stays; the same line only once."""
        if text not in self._logged:
            self._logged.add(text)
            self._display.note(text)

    def log_scalar(self, name: str, value: float) -> None:
        """Record a number at the present frames, in all loggers, beside the metrics of the recipe.

        Args:
            name: Name of the metric, as in ``validation/return_mean``; a file ``scalars/NAME.csv`` of `CSVLogger`.
            value: Number to record.
        """
        self._loggers.log_scalar(name, float(value), self.frames)

    @property
    def parts(self) -> Mapping[str, Stateful]:
        """What the checkpoint holds, by name: ``policy``, ``collector``, and the recipe's optimizers and buffers."""
        return MappingProxyType(self._parts)

    def note_origin(self, origin: str, dataset: str) -> None:
        """Say so if a data set was recorded on an environment of another name; the shapes fit then."""
        env = self.config.env.removeprefix("gym/")
        if origin and origin.removeprefix("gym/") not in (env, env.rpartition(":")[2]):  # an id has no module
            self.note(
                f"note: {dataset} was recorded on {origin}, and this run evaluates on {self.config.env}; is that meant?"
                f" Otherwise begin again with --env {origin}"
            )

    def make_env(self, num_envs: int, seed: int | None = None) -> Env:
        """Create the environment of training, or one for evaluations.

        Args:
            num_envs: Batch size.
            seed: Seed of an environment for evaluations, which gives the rewards of the environment, and normalizes
                observations with the statistics of training (`Evaluator.statistics`); None for that of training.
        """
        config, evaluation = self.share, seed is not None
        env = make_env(
            config.env,
            num_envs,
            seed=self.seeds.environment if seed is None else seed,
            device=config.device,
            evaluation=evaluation,
            workers=0 if evaluation or config.ray else config.workers,
            **env_options(config),
        )
        self._has_success = SUCCESS in leaf_keys(env.observation_spec)
        if not evaluation:
            if not config.multi_agent:
                check_mask(self.recipe.name, env)
            self._env = env
        return env

    def make_collector(self, env: Env, policy: Any, **settings: Any) -> Any:
        """Create the collector of training, in this process or in actors of Ray.

        Args:
            env: Environment that `make_env` returned.
            policy: Policy that collects.
            settings: Arguments of `rl.collectors.Collector`.
        """
        return make_collector(self.share, env, policy, self.seeds.environment, **settings)

    def record_episodes(self, batch: TensorDictBase) -> None:
        """Take the episodes that end in a batch ``[num_envs, T]`` into the metrics, and into ``episodes.csv``.

        Reads ``("next", "done")`` and ``("next", "reward")``; where rewards are changed for training, it reads
        ``episode_reward`` instead, at the root and under ``next``.

        Raises:
            RLError: If a reward or an observation that the policy reads is not finite.
        """
        observed = getattr(self._parts["policy"], "in_keys", ())
        rewards = [REWARD] if self._env is None else leaf_keys(self._env.full_reward_spec)
        read = [*observed, *((NEXT, *as_tuple(key)) for key in (*observed, *rewards))]
        self._large = self._large or check_batch(batch, read, self.frames, self.config.env)
        reward, done = batch[NEXT, REWARD], batch[NEXT, DONE]
        if self.config.normalize_reward or self.config.atari:
            reward = batch[NEXT, EPISODE_REWARD].double() - batch[EPISODE_REWARD].double()
        if learners.count() > 1:
            pool_statistics_of(self._env)
            # [learners, 2, num_envs of each, T, 1] to twice [num_envs, T, 1]
            reward, done = learners.gather(torch.stack([reward.double(), done.double()])).transpose(0, 1).flatten(1, 2)
            done = done.bool()
        self._write_episodes(self.episodes.update(reward, done))
        self._callbacks.on_batch(self, batch)

    def _write_episodes(self, episodes: Sequence[Episode]) -> None:
        seconds = self._elapsed()
        for step, episode_return, length in episodes:
            values = {"return": episode_return, "length": length, "seconds": seconds}
            self._episodes.log_scalars(values, self.frames + step * self.config.num_envs)

    def stop(self, why: str = "") -> None:
        """End the run after this iteration as if all frames were done: with the final evaluation.

        Args:
            why: Reason, which is shown.
        """
        if not self._enough and self.frames < self.config.total_frames:
            self.note(f"stopped after {self.frames} frames{': ' * bool(why)}{why}")
        self._enough = True

    @property
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        return min(self.frames / self.config.total_frames, 1.0)

    @property
    def going(self) -> bool:
        """Whether another iteration follows; learners agree on it."""
        stop, self._enough = learners.any_of(self._signals.stop, self._enough)
        return self.frames < self.config.total_frames and not stop and not self._enough

    @contextmanager
    def timed(self, name: str) -> Generator[None]:
        """Count the block's wall time under `name`."""
        begin = time.perf_counter()
        yield
        self._times[name] += time.perf_counter() - begin

    def end_iteration(self, frames: int, values: Callable[[], Mapping[str, float]]) -> None:
        """Count frames; log, evaluate and save where it is time to.

        Args:
            frames: Number of frames that this iteration added.
            values: Function that returns the iteration's metrics; called only when a row is written, so that nothing
                waits for the device before.

        Raises:
            RLError: If a loss or the mean return of an evaluation is not finite.
        """
        self.frames += frames
        self._latest_metrics = values = cache(values)
        if self._callbacks.watching:
            self._callbacks.on_update(self, values())
        if 0 < self.config.stop_after <= self._elapsed():
            self.stop(f"{self.config.stop_after:g} seconds are over")
        (self._enough,) = learners.any_of(self._enough)
        last = (
            self.frames >= self.config.total_frames or self._enough
        )  # an interrupted run does no more than an uninterrupted one
        log, evaluate = self._log.due(self.frames, last=last), self._eval.due(self.frames, last=last)
        if log or evaluate:
            self._write_row(evaluate=evaluate)
        if self.config.video_every and self._video.due(self.frames, last=last):
            self._write_video()
        if not self.episodes.episodes and self.frames >= ENDLESS_STEPS * self.config.num_envs:
            self.note(
                f"note: no episode of {self.config.env!r} has ended in {ENDLESS_STEPS} steps of each environment;"
                " evaluations play complete episodes, so an environment that never ends needs --max-episode-steps"
            )
        if self._checkpoint.due(self.frames):
            self._save_last()
        if self._should_stop is not None and self._should_stop(self.frames):
            self._signals.stop = True

    def finish(self) -> TrainResult:
        """Save, and if all frames are done evaluate the best policy on fresh episodes.

        Call it inside `training`, after the loop.
        """
        assert self.folder is not None
        self._save_last()
        seconds = self._elapsed()
        if self.frames < self.config.total_frames and not self._enough:
            self._display.stop()
            self._display.note(
                f"stopped after {self.frames} frames; everything is saved. "
                + self._command("Continue with:\n  ", self._resuming)
            )
            return TrainResult(self.folder.path, self.frames, seconds, interrupted=True)
        if self._best is None:  # resumed with fewer frames than are done
            self._evaluate()
        best = self._best
        assert best is not None
        last_returns = returns = self._final_returns(statistics_of(self._env))
        if best["frames"] != self.frames:
            self._parts["policy"].load_state_dict(best["policy"])
            returns = self._final_returns(best.get("statistics", []))
        mean, std = float(returns.mean()), float(returns.std(correction=0))
        self.folder.check_present()
        self.folder.write_summary(self._summary(best["frames"], returns, last_returns, seconds))
        if self.folder.metrics.is_file():
            plot_learning_curve(self.folder.metrics, self.folder.curve, self.title)
        self._display.stop()
        self._display.note(
            f"trained {self.frames} frames in {seconds:.1f} s; best policy ({best['frames']} frames): mean return"
            f" {mean:.1f} ± {std:.1f} over {len(returns)} fresh episodes; last policy: {float(last_returns.mean()):.1f}"
            f"\nrun folder: {self.folder.path}"
            + (f"\n{self._command('evaluate it with: ', f'rl eval {self.folder.path}')}" if self._trust else "")
        )
        return TrainResult(self.folder.path, self.frames, seconds, mean, std)

    @property
    def _trust(self) -> str:
        """The options that later commands need for the modules that the user has named."""
        return trust_options(settings_of(self.recipe.reference, self.config))

    @property
    def _resuming(self) -> str:
        assert self.folder is not None
        return f"rl train {self.recipe.reference} --resume {self.folder.path}"

    def _command(self, before: str, command: str) -> str:
        """Return a command of a later process; or why none can do that."""
        lost = unimportable(settings_of(self.recipe.reference, self.config))
        if lost:
            code = ", ".join(lost)
            return f"no command can import {code}: put it into a module, as in my_module:MyClass, and train again"
        return f"{before}{command}{self._trust}"

    @property
    def title(self) -> str:
        """Recipe, environment and seed, for people."""
        return f"{self.recipe.name} on {self.config.env}, seed {self.config.seed}"

    def _final_returns(self, statistics: Sequence[Any]) -> Tensor:
        self._evaluator.statistics = statistics
        return self._evaluator.run(self.config.final_eval_episodes, seed=self.seeds.final_evaluation)

    def _summary(self, best_frames: int, returns: Tensor, last_returns: Tensor, seconds: float) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "env": self.config.env,
            "seed": self.config.seed,
            "frames": self.frames,
            "best/frames": best_frames,
            "best/return_mean": float(returns.mean()),
            "best/return_std": float(returns.std(correction=0)),
            "last/return_mean": float(last_returns.mean()),
            "last/return_std": float(last_returns.std(correction=0)),
            "rollout/episodes": self.episodes.episodes,
            "time/seconds": round(seconds, 3),
            "time/cpu_seconds": round(self._cpu_elapsed(), 3),
            "time/fps": round(self.frames / max(seconds, 1e-9), 1),
            "versions": package_versions(),
        }

    def _elapsed(self) -> float:
        return self._seconds + time.perf_counter() - self._since

    def _cpu_elapsed(self) -> float:
        """CPU seconds of this run's processes, without those of their child processes."""
        return self._cpu_seconds + time.process_time() - self._cpu_since

    def _finite_metrics(self) -> Mapping[str, float]:
        """Return the latest metrics; raises if a loss, a gradient or a weight is not finite."""
        values = learners.mean_values(self._latest_metrics())
        bad = [
            f"{name} became {value}"
            for name, value in values.items()
            if (name.startswith("loss") or name == "gradient_norm") and not math.isfinite(value)
        ]
        if not bad and has_bad_weight(self._parts.values()):  # a gradient was, after a finite loss
            bad = ["the weights became nan or inf"]
        if bad:
            where = "" if self.find_bad is None else self.find_bad()
            if where:
                cause = f": {where}. Remove that row"
            elif self._large:
                cause = f": {self._large}. Scale it down with a transform (--transform), and begin a new run"
            else:
                cause = (
                    "; begin a new run with a lower --learning-rate or --max-grad-norm, or look at the rewards and"
                    f" observations of {self.config.env!r}"
                )
            raise RLError(f"{bad[0]} after {self.frames} frames{cause}")
        return values

    def _write_row(self, *, evaluate: bool) -> None:
        assert self.folder is not None
        self.folder.check_present()
        values = self._finite_metrics()
        row = dict.fromkeys(self._columns, math.nan)
        stats = self.episodes
        row |= dict(zip(ROLLOUT, (stats.return_mean, stats.length_mean, stats.episodes), strict=True))
        row |= {f"train/{name}": value for name, value in values.items()}
        if evaluate:
            self._shown = {"eval/return_mean": self._evaluate()}
            if self._evaluator.successes is not None:
                self._shown["eval/success_rate"] = float(self._evaluator.successes.double().mean())
            row |= self._shown
        self._display.update(self.frames, row | self._shown, self._times)
        seconds = self._elapsed()
        timing = {"time/seconds": seconds, "time/fps": self.frames / max(seconds, 1e-9)}
        times = {f"time/{name}": spent for name, spent in self._times.items()}
        self._loggers.log_scalars({**row, **timing, **times}, self.frames)

    def _evaluate(self) -> float:
        assert self.folder is not None
        self._evaluator.statistics = statistics = statistics_of(self._env)
        with self.timed("evaluate"):
            returns = self._evaluator.run(self.config.eval_episodes, seed=self.seeds.evaluation)
        mean = float(returns.mean())
        if math.isnan(mean):
            raise RLError(
                f"the mean return of an evaluation is {mean} after {self.frames} frames; look at the rewards of"
                f" {self.config.env!r}"
            )
        if self._best is None or mean >= self._best["eval_return_mean"]:  # of equals the later: it has seen more
            policy = copy.deepcopy(self._parts["policy"].state_dict())
            self._best = {
                "policy": policy,
                "frames": self.frames,
                "eval_return_mean": mean,
                "statistics": statistics,
            }
            save_checkpoint(self.folder.best, self._best)
        self._callbacks.on_evaluation(self, mean)
        return mean

    @property
    def _shown_run(self) -> TrainedRun:
        """The run with its present policy."""
        policy = self._evaluator.policy
        return TrainedRun(self.recipe, self.config, policy, self.frames, self.frames, statistics_of(self._env))

    def _write_video(self) -> None:
        """Write an episode of the present policy into the run folder, and give it to trackers."""
        assert self.folder is not None
        path = self.folder.path / "videos" / f"policy-{self.frames}.mp4"
        path.unlink(missing_ok=True)  # of frames that are trained again
        with self.timed("evaluate"):
            record_video(self._shown_run, path, seed=self.seeds.evaluation)
        self._loggers.log_video_file("policy", path, self.frames)

    def _save_last(self) -> None:
        assert self.folder is not None
        self.folder.check_present()
        self._finite_metrics()  # never save a run that cannot be resumed
        with warnings.catch_warnings(record=True) as caught:  # parts that cannot be restored exactly, reported once
            warnings.simplefilter("always")
            self._files.save(self.frames, run=self._own_state())
        for warning in caught:
            self.note(f"note: {warning.message}")
        self._saved_at = self.frames

    def _own_state(self) -> dict[str, Any]:
        return {
            "config": settings_of(self.recipe.reference, self.config),
            "frames": self.frames,
            "seconds": self._elapsed(),
            "cpu_seconds": self._cpu_elapsed(),
            "times": self._times,
            "best": self._best,
            "statistics": statistics_of(self._env),
            "episodes": self.episodes.state_dict(),
            "schedules": [self._log.next, self._eval.next, self._checkpoint.next],
        }

    def _restore(self, saved: Mapping[str, Any]) -> int:
        """Put the saved state into every part; returns the frames at which it was saved.

        Raises:
            CheckpointError: If the checkpoint does not fit.
        """
        assert self.folder is not None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            run = self._files.load(state=saved).values["run"]
        self._inexact = [f"note: {warning.message}" for warning in caught]
        try:
            self.frames, self._seconds, self._times = run["frames"], run["seconds"], dict(run["times"])
            self._cpu_seconds = run.get("cpu_seconds", 0.0)  # rl-trainers 0.3 had none
            self.episodes.load_state_dict(run["episodes"])
            self._log.next, self._eval.next, self._checkpoint.next = run["schedules"]
            if "rng" in run:  # of rl-trainers 0.4
                load_rng_state(run["rng"])
            self._restore_best(run["best"])
        except (RLError, RuntimeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.folder.last} does not fit this run: its part 'run' raised {first_line(error)}; train again into"
                " a new folder"
            ) from error
        write = config_yaml(self.recipe.reference, self.config)
        if self.folder.config.read_text(encoding="utf-8") != write:
            self.folder.update_config(write)
        self._saved, self._saved_at = None, self.frames
        return self.frames

    def _hand_out_states(self) -> None:
        """Send the other learners what they continue from: the common parts, and what each had of its own."""
        common = {name: part.state_dict() for name, part in self._parts.items() if name not in learners.OWN}
        run = {name: one for name, one in self._own_state().items() if name in ("frames", "episodes", "schedules")}
        own = self._others.states or [{"parts": {}} for _ in range(1, learners.count())]
        self._others.states = None
        learners.hand_out_states([None, *({**run, **one, "parts": {**common, **one["parts"]}} for one in own)])

    def _restore_best(self, best: Any) -> None:
        """Make ``best.safetensors`` that of the checkpoint: the file may be from frames that are trained again."""
        assert self.folder is not None
        if isinstance(best, float):  # written by rl-trainers 0.2.1 or older, which kept the return alone
            best = load_checkpoint(self.folder.best) if self.folder.best.is_file() else None
            best = best if best is not None and best["frames"] <= self.frames else None
        self._best = best
        if best is None:
            self.folder.best.unlink(missing_ok=True)
        else:
            save_checkpoint(self.folder.best, best)


class Follower(Run):
    """The run in a learner besides the first one: it collects and learns, and neither writes nor evaluates."""

    @contextmanager
    def training(
        self, *, evaluator: Evaluator, parts: Mapping[str, Stateful], metrics: tuple[str, ...], phases: tuple[str, ...]
    ) -> Generator[Run]:
        """Take over the state of the first learner, and heed signals; `metrics` and `evaluator` are not used."""
        del evaluator, metrics
        self._parts, self._times = parts, dict.fromkeys(phases, 0.0)
        with self._signals:
            state = learners.hand_out_states([])
            self.frames = state["frames"]
            self.episodes.load_state_dict(state["episodes"])
            self._log.next, self._eval.next, self._checkpoint.next = state["schedules"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is not restored exactly, which the first learner notes
                for name, part in state["parts"].items():
                    parts[name].load_state_dict(part)
            if "rng" in state:
                load_rng_state(state["rng"])
            yield self

    def _write_episodes(self, episodes: Sequence[Episode]) -> None:
        del episodes

    def _write_row(self, *, evaluate: bool) -> None:
        del evaluate
        self._finite_metrics()

    def _save_last(self) -> None:
        self._finite_metrics()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = {name: part.state_dict() for name, part in self._parts.items() if name in learners.OWN}
        learners.collect_states({"parts": own, "rng": rng_state()})

    def finish(self) -> TrainResult:
        """Save."""
        self._save_last()
        return TrainResult(Path(), self.frames, self._elapsed())


def new_run(recipe: Algorithm, config: RunConfig, **options: Any) -> Run:
    """Return the run of this learner; the arguments are those of `Run`."""
    kind = Run if learners.rank() == 0 else Follower
    return kind(recipe, config, **options)


def _share_of(config: RunConfig) -> RunConfig:
    """Return the settings of this learner."""
    if config.learners == 1:
        return config
    return replace(config_of_learner(config), device=learners.local_device(config.device))


def _check_machine(config: RunConfig) -> None:
    """Raise unless this machine has what the settings need.

    Raises:
        BackendError: If it does not have the device.
        ArgumentError: If it has fewer processors than threads.
        MissingExtraError: If the library that writes videos is not installed.
    """
    check_device(config.device)
    processors = os.cpu_count() or 1
    if config.threads > processors:
        raise ArgumentError(
            f"threads={config.threads}, but this machine has {processors} processors; set threads to at most that"
        )
    if config.video_every:
        video_library()
