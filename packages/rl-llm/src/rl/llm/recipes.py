"""Recipes of ``rl train`` for language models, such as ``rl train grpo``. They need rl-trainers."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import yaml

from rl.core.errors import ArgumentError, SpecError
from rl.llm import settings as methods
from rl.llm.settings import LLMSettings
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

_SHARED = {one.name for one in dataclasses.fields(LLMSettings)}


@dataclass(frozen=True, kw_only=True)
class LLMConfig(LLMSettings, RunConfig):
    """Settings of all recipes for language models: those of `LLMSettings`.

    Raises:
        SpecError: If a value is out of its range.
    """

    env: str = "text"
    absent: ClassVar[tuple[str, ...]] = tuple(
        one.name for one in dataclasses.fields(RunConfig) if one.name not in _SHARED
    )
    method: ClassVar[Any] = None

    def __post_init__(self) -> None:
        """Check the values."""
        try:
            LLMSettings.__post_init__(self)
            self.make_method()
        except ArgumentError as error:
            raise SpecError(str(error)) from error
        RunConfig.__post_init__(self)

    def make_method(self) -> Callable[..., Any]:
        """Return the method with its settings."""
        names = [one.name for one in dataclasses.fields(self.method)]
        return self.method(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(LLMConfig, methods.GRPO):
    """Settings of ``rl train grpo``."""

    recipe: ClassVar[str] = "grpo"
    method: ClassVar[Any] = methods.GRPO


@dataclass(frozen=True, kw_only=True)
class SFTConfig(LLMConfig, methods.SFT):
    """Settings of ``rl train sft``."""

    recipe: ClassVar[str] = "sft"
    method: ClassVar[Any] = methods.SFT


@dataclass(frozen=True, kw_only=True)
class ExpertIterationConfig(LLMConfig, methods.ExpertIteration):
    """Settings of ``rl train expert-iteration``."""

    recipe: ClassVar[str] = "expert-iteration"
    method: ClassVar[Any] = methods.ExpertIteration


@dataclass(frozen=True, kw_only=True)
class DPOConfig(LLMConfig, methods.DPO):
    """Settings of ``rl train dpo``."""

    recipe: ClassVar[str] = "dpo"
    method: ClassVar[Any] = methods.DPO


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(LLMConfig, methods.Distillation):
    """Settings of ``rl train distill``."""

    recipe: ClassVar[str] = "distill"
    method: ClassVar[Any] = methods.Distillation


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
    from rl.llm.training import train_llm  # imports torch

    del policy
    folder = Path(resume or out or _next_folder(f"{algorithm.name}-{config.task}-{config.seed}"))
    settings = LLMSettings(**{name: getattr(config, name) for name in _SHARED})
    method = config.make_method()
    report = None if display == "none" else lambda line: sys.stdout.write(f"{line}\n") and sys.stdout.flush()
    options = [one.name for one in dataclasses.fields(config) if one.name not in config.absent]
    described = {"recipe": algorithm.reference, **{name: getattr(config, name) for name in options}}
    with _stop_signal() as stopped:
        result = train_llm(
            settings,
            method,
            out=folder,
            resume=resume is not None,
            report=report,
            should_stop=lambda update: bool(stopped) or (should_stop is not None and should_stop(update)),
            files={"config.yaml": yaml.safe_dump(described, sort_keys=False)},
        )
    if report is not None:
        done = f"stopped; continue with: rl train --resume {folder}" if result.interrupted else f"run folder: {folder}"
        report(done)
    return TrainResult(
        folder=result.folder,
        train_frames=result.updates,
        train_seconds=result.seconds,
        eval_return_mean=result.reward,
        interrupted=result.interrupted,
    )


def _next_folder(name: str) -> Path:
    return next(path for i in count(1) if not (path := Path("runs", f"{name}-{i}")).exists())


@contextmanager
def _stop_signal() -> Generator[list[int]]:
    """Collect Ctrl-C in a list; a second one interrupts at once."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def handle(number: int, _: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _no_policy(config: Any, env: Any) -> Any:
    raise ArgumentError(
        f"{config.recipe}: a language model has no policy for {env!r}. Load it with rl.llm.load_model('RUN/model')"
    )


GRPO = Algorithm(GRPOConfig, loop=_run, policy=_no_policy)
"""Group relative policy optimization."""

SFT = Algorithm(SFTConfig, loop=_run, policy=_no_policy)
"""Supervised fine-tuning."""

EXPERT_ITERATION = Algorithm(ExpertIterationConfig, loop=_run, policy=_no_policy)
"""Supervised training on one's own best answers."""

DPO = Algorithm(DPOConfig, loop=_run, policy=_no_policy)
"""Direct preference optimization."""

DISTILL = Algorithm(DistillationConfig, loop=_run, policy=_no_policy)
"""On-policy distillation."""
