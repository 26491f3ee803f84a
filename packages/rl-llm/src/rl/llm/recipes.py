"""Recipes of ``rl train`` for language models, such as ``rl train grpo``. They need rl-trainers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import yaml

from rl.core.errors import ArgumentError
from rl.llm import settings as methods
from rl.llm.settings import LLMSettings, SharedSettings
from rl.trainers import Algorithm, RunConfig, TrainResult

__all__ = [
    "DISTILL",
    "DPO",
    "EXPERT_ITERATION",
    "GRPO",
    "SFT",
    "DPOConfig",
    "DistillationConfig",
    "ExpertIterationConfig",
    "GRPOConfig",
    "LLMConfig",
    "SFTConfig",
]

_SHARED = {one.name for one in dataclasses.fields(SharedSettings)}


@dataclass(frozen=True, kw_only=True)
class LLMConfig(SharedSettings, RunConfig):
    """Settings of all recipes for language models: those of `LLMSettings`.

    Args:
        env: Task: arithmetic, copy, count, countdown, guess or sort, or module:Class of a task of one's own; --task is
            the same option.
        total_frames: Number of optimizer steps on fresh data; --updates is the same option.
    """

    env: str = "sort"
    total_frames: int = 200
    aliases: ClassVar[dict[str, str]] = {"task": "env", "updates": "total_frames"}
    absent: ClassVar[tuple[str, ...]] = tuple(
        one.name for one in dataclasses.fields(RunConfig) if one.name not in {*_SHARED, "env", "total_frames"}
    )
    method: ClassVar[Any] = None

    def __post_init__(self) -> None:
        SharedSettings.__post_init__(self)
        self.make_method()
        RunConfig.__post_init__(self)

    def make_method(self) -> Any:
        """Return the method with its settings."""
        names = [one.name for one in dataclasses.fields(self.method)]
        return self.method(**{name: getattr(self, name) for name in names})

    def make_settings(self) -> LLMSettings:
        """Return the settings that all methods share."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return LLMSettings(task=self.env, updates=self.total_frames, **shared)


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(LLMConfig, methods.GRPO):
    """Settings of ``rl train grpo``."""

    recipe, method = methods.GRPO.recipe, methods.GRPO


@dataclass(frozen=True, kw_only=True)
class SFTConfig(LLMConfig, methods.SFT):
    """Settings of ``rl train sft``."""

    recipe, method = methods.SFT.recipe, methods.SFT


@dataclass(frozen=True, kw_only=True)
class ExpertIterationConfig(LLMConfig, methods.ExpertIteration):
    """Settings of ``rl train expert-iteration``."""

    recipe, method = methods.ExpertIteration.recipe, methods.ExpertIteration


@dataclass(frozen=True, kw_only=True)
class DPOConfig(LLMConfig, methods.DPO):
    """Settings of ``rl train dpo``."""

    recipe, method = methods.DPO.recipe, methods.DPO


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(LLMConfig, methods.Distillation):
    """Settings of ``rl train distill``."""

    recipe, method = methods.Distillation.recipe, methods.Distillation


def _run(
    algorithm: Algorithm,
    config: LLMConfig,
    *,
    policy: Any,
    out: str | Path | None,
    resume: str | Path | None,
    display: str,
    should_stop: Callable[[int], bool] | None = None,
) -> TrainResult:
    """Train as `train_llm` does, in a run folder with ``config.yaml``."""
    from rl.llm import _processes as processes  # imports torch
    from rl.llm.training import train_llm
    from rl.trainers.run import StopSignals  # pyright: ignore[reportPrivateImportUsage]

    del policy
    folder = Path(resume or out or _next_folder(f"{algorithm.name}-{config.env.replace(':', '-')}-{config.seed}"))
    report = None if display == "none" else lambda line: sys.stdout.write(f"{line}\n") and sys.stdout.flush()
    options = [one.name for one in dataclasses.fields(config) if one.name not in config.absent]
    described = {"recipe": algorithm.reference, **{name: getattr(config, name) for name in options}}
    with StopSignals() as signals:
        result = train_llm(
            config.make_settings(),
            config.make_method(),
            out=folder,
            resume=resume is not None,
            report=report,
            should_stop=lambda update: signals.stop or (should_stop is not None and should_stop(update)),
            files={"config.yaml": yaml.safe_dump(described, sort_keys=False)},
        )
    if processes.rank() > 0:  # of the processes of torchrun the first one talks
        report = None
    if report is not None and result.interrupted:
        report(f"stopped; continue with: rl train {algorithm.reference} --resume {folder}")
    elif report is not None:
        report(f"run folder: {folder}\nevaluate it with: rl eval {folder}")
    return TrainResult(
        folder=result.folder,
        train_frames=result.updates,
        train_seconds=result.seconds,
        eval_return_mean=result.reward,
        interrupted=result.interrupted,
    )


def _next_folder(name: str) -> Path:
    return next(path for i in count(1) if not (path := Path("runs", f"{name}-{i}")).exists())


def _evaluate(config: LLMConfig, folder: Path, *, episodes: int, seed: int | None, deterministic: bool) -> Any:
    """Return the rewards of the model of a run on problems of a seed that neither training nor its evaluations had."""
    import torch

    from rl.llm.training import evaluate_run

    seed = -(1 << 32) if seed is None else seed
    temperature = 0.0 if deterministic else config.temperature
    options: dict[str, Any] = {"problems": episodes, "seed": seed, "temperature": temperature}
    rewards = evaluate_run(config.make_settings(), config.make_method(), folder, **options)
    return torch.tensor(rewards, dtype=torch.float64)


def _no_policy(config: Any, env: Any) -> Any:
    raise ArgumentError(
        f"{config.recipe}: a language model has no policy for {env!r}. Load it with rl.llm.load_model('RUN/model')"
    )


def _algorithm(config: type[LLMConfig]) -> Algorithm:
    presets = f"rl.llm:presets/llm.yaml:{config.recipe}"
    return Algorithm(config, loop=_run, policy=_no_policy, evaluate=_evaluate, presets=presets)


#: group relative policy optimization.
GRPO = _algorithm(GRPOConfig)

#: supervised fine-tuning.
SFT = _algorithm(SFTConfig)

#: supervised training on one's own best answers.
EXPERT_ITERATION = _algorithm(ExpertIterationConfig)

#: direct preference optimization.
DPO = _algorithm(DPOConfig)

#: on-policy distillation.
DISTILL = _algorithm(DistillationConfig)
