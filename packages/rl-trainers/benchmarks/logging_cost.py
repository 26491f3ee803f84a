"""Share of a PPO run on CartPole-v1 that its loggers take: CPU time of all local ones against none.

Run: ``./x bench packages/rl-trainers/benchmarks/logging_cost.py [repetitions] [frames]``. The goal is at most 0.01.

Two figures: the time inside of the loggers, measured in the runs that have them, with ``episodes.csv``; and the
difference of whole runs, interleaved, which has the threads of loggers, and on a shared machine more noise than that.
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

from rl.trainers import PPOConfig, train_ppo
from rl.trainers.loggers import CSVLogger, LoggerSet, TensorBoardLogger

LOGGERS = ("csv", "tensorboard")
#: none of them calls another one
METHODS = ((LoggerSet, "open"), (LoggerSet, "close"), (CSVLogger, "log_scalars"), (TensorBoardLogger, "log_scalars"))


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


def main(repetitions: int = 5, frames: int = 50_000) -> dict[str, float]:
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {"all": [], "none": []}
    inside: list[float] = []
    for seed in range(-1, repetitions):  # the first one imports
        for name, loggers in (("all", LOGGERS), ("none", ())):
            spent: list[float] = []
            kept = {(kind, method): getattr(kind, method) for kind, method in METHODS}
            if name == "all":
                for (kind, method), call in kept.items():
                    setattr(kind, method, measured(call, spent))
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
                    inside.append(sum(spent) / whole)
                print(f"{name:<5} seed {seed}: CPU {whole:.2f} s, in loggers {sum(spent):.3f} s", flush=True)
    ratios = [a / b - 1 for a, b in zip(times["all"], times["none"], strict=True)]
    out = {"share_in_loggers": statistics.median(inside), "difference_of_runs": statistics.median(ratios)}
    print(json.dumps({name: round(value, 4) for name, value in out.items()}))
    return out


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
