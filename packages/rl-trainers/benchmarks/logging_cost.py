"""Share of a PPO run on CartPole-v1 that its loggers take: CPU time of all local ones against none.

Run: ``./x bench packages/rl-trainers/benchmarks/logging_cost.py [repetitions] [frames] [loggers]``, the last one as in
``csv,tensorboard,mlflow``. The goal is at most 0.01 for the default, ``csv,tensorboard``.

Figures: the time inside of the loggers, measured in the runs that have them, with ``episodes.csv``, and without what
opens them, such as a new database, once a run; and the difference of whole runs, interleaved, which has the threads of
loggers, and on a shared machine more noise than that. The learning curve, which a run with a ``metrics.csv`` draws in
about 0.1 seconds at its end, is no logging: none is drawn here.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

import rl.trainers.run
from rl.core.registry import load
from rl.trainers import PPOConfig, train_ppo
from rl.trainers.loggers import LoggerSet


def measured(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Let a function add its CPU time to a list."""

    @wraps(call)
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            seconds.append(time.thread_time() - begin)

    return timed


def main(
    repetitions: int = 5, frames: int = 50_000, names: tuple[str, ...] = ("csv", "tensorboard")
) -> dict[str, float]:
    torch.set_num_threads(1)
    rl.trainers.run.plot_learning_curve = lambda *_: None
    times: dict[str, list[float]] = {"all": [], "none": []}
    shares: dict[str, list[float]] = {"inside": [], "opened": []}
    #: none of them calls another one
    methods = ((LoggerSet, "close"), *((load("logger", name), "log_scalars") for name in names))
    for seed in range(-1, repetitions):  # the first one imports
        sides: list[tuple[str, tuple[str, ...]]] = [("all", names), ("none", ())]
        for name, loggers in sides if seed % 2 else reversed(sides):
            opening: list[float] = []
            spent: list[float] = []
            kept = {(kind, method): getattr(kind, method) for kind, method in (*methods, (LoggerSet, "open"))}
            if name == "all":
                for (kind, method), call in kept.items():
                    setattr(kind, method, measured(call, opening if method == "open" else spent))
            config = PPOConfig(total_frames=frames, seed=max(seed, 0), loggers=loggers)
            with tempfile.TemporaryDirectory() as folder:
                begin = time.process_time()
                train_ppo(config, out=Path(folder) / "run", display="none")
                whole = time.process_time() - begin
            for (kind, method), call in kept.items():
                setattr(kind, method, call)
            if seed >= 0:
                times[name].append(whole)
                if name == "all":
                    shares["inside"].append((sum(opening) + sum(spent)) / whole)
                    shares["opened"].append(sum(spent) / whole)
                print(
                    f"{name:<5} seed {seed}: CPU {whole:.2f} s, in loggers {sum(spent):.3f} s,"
                    f" to open them {sum(opening):.3f} s",
                    flush=True,
                )
    ratios = [a / b - 1 for a, b in zip(times["all"], times["none"], strict=True)]
    out = {
        "share_in_loggers": statistics.median(shares["inside"]),
        "share_once_open": statistics.median(shares["opened"]),
        "difference_of_runs": statistics.median(ratios),
    }
    print(json.dumps({name: round(value, 4) for name, value in out.items()}))
    return out


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *(tuple(names.split(",")) for names in sys.argv[3:4]))
