"""What a run costs per frame: collecting, updates, and what learners and actors send; for `docs/howto/scaling.md`.

Times of collecting and updating are CPU seconds of one process with one thread; those of messages are the lower
quartile of wall times between two processes of this machine, over its loopback interface.

    python packages/rl-trainers/benchmarks/learner_costs.py [--ray]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from rl.trainers import Algorithm, Callback, PPOConfig, RunConfig, SACConfig
from rl.trainers import _learners as learners
from rl.trainers.algorithms.ppo import PPO
from rl.trainers.algorithms.sac import SAC
from rl.trainers.config import config_of_learner

#: iterations that are measured, after one that is not
ITERATIONS = 3

QUIET: dict[str, Any] = {
    "total_frames": 10_000_000, "eval_every": 10_000_000, "log_every": 10_000_000, "checkpoint_every": 10_000_000,
    "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",), "num_envs": 64,
}  # fmt: skip

#: runs of all learners together, which have one epoch here: its gradient steps cost the same in each
CASES: dict[str, tuple[Algorithm, RunConfig]] = {
    "ppo HalfCheetah-v5": (
        PPO,
        PPOConfig(
            env="HalfCheetah-v5", num_cells=(256, 256), frames_per_batch=4_096, minibatch_size=2_048, epochs=1, **QUIET
        ),
    ),
    "ppo ALE/Pong-v5": (
        PPO,
        PPOConfig(
            env="ALE/Pong-v5", atari=True, num_cells=(512,), frames_per_batch=1_024, minibatch_size=1_024, epochs=1,
            **QUIET,
        ),
    ),
    "sac HalfCheetah-v5": (
        SAC,
        SACConfig(
            env="HalfCheetah-v5", frames_per_batch=64, batch_size=4_096, learning_starts=4_096, utd_ratio=1 / 16,
            **QUIET,
        ),
    ),
}  # fmt: skip


class Costs(Callback):
    """CPU seconds of the phases of each iteration, and bytes."""

    def __init__(self) -> None:
        self.collect: list[float] = []
        self.update: list[float] = []
        self.last = 0.0
        self.frames = self.bytes = self.parameters = self.steps = 0

    def on_start(self, run: Any) -> None:
        self.last = time.process_time()
        part = run.parts.get("learner", run.parts.get("optimizer"))
        optimizers = getattr(part, "optimizers", [part])
        self.parameters = sum(p.numel() for one in optimizers for group in one.param_groups for p in group["params"])
        self.policy = sum(p.numel() for p in run.parts["policy"].parameters())
        for one in optimizers[:1]:
            one.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.steps += 1

    def on_batch(self, run: Any, batch: Any) -> None:  # noqa: ARG002
        self.collect.append(time.process_time() - self.last)
        self.last = time.process_time()
        self.frames, self.bytes = batch.numel(), batch.bytes() // batch.numel()
        self.steps = 0

    def on_update(self, run: Any, metrics: Any) -> None:
        self.update.append(time.process_time() - self.last)
        if metrics and len(self.update) > ITERATIONS + warm_up(run.config):
            run._signals.stop = True  # noqa: SLF001  without the final evaluation
        self.last = time.process_time()


def warm_up(config: Any) -> int:
    return 1 + getattr(config, "learning_starts", 0) // config.frames_per_batch


def lower_quartile(call: Callable[[], object], count: int = 200) -> float:
    times: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.quantiles(times, n=4)[0]


def seconds_of_messages(sizes: dict[str, int]) -> dict[str, float]:
    """Seconds in which two learners average gradients of as many numbers, and agree on a flag."""

    def measure(_: RunConfig, **__: Any) -> dict[str, float]:
        torch.set_num_threads(1)
        found = {"flag": lower_quartile(lambda: learners.any_of(False))}  # noqa: FBT003
        for name, size in sizes.items():
            weight = torch.zeros(size, requires_grad=True)
            weight.grad = torch.ones(size)
            found[name] = lower_quartile(lambda one=weight: learners.average_gradients([one]))
        return found

    return learners.train(measure, PPOConfig(learners=2), {})


def seconds_in_ray(sizes: dict[str, int]) -> dict[str, float]:
    """Seconds in which an actor of Ray gets as many bytes and returns them."""
    import ray

    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)

    @ray.remote
    class Echo:
        def call(self, value: Any) -> Any:
            return value.copy()

    echo: Any = Echo.remote()
    found: dict[str, float] = {}
    for name, size in sizes.items():
        value = torch.zeros(size, dtype=torch.uint8).numpy()
        found[name] = lower_quartile(lambda one=value: ray.get(echo.call.remote(ray.put(one))), 50)
    ray.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    sizes: dict[str, int] = {}
    batches: dict[str, int] = {}
    for (name, (algorithm, whole)), count in product(CASES.items(), (1, 8, 64)):
        config = config_of_learner(replace(whole, learners=count))
        if name.startswith("sac"):
            config = replace(config, learning_starts=whole.learning_starts // count, utd_ratio=whole.utd_ratio * count)
        costs = Costs()
        with tempfile.TemporaryDirectory() as folder:
            algorithm.train(config, out=Path(folder) / "run", display="none", callbacks=[costs])
        first = warm_up(config)
        collect = statistics.median(costs.collect[first:]) / costs.frames
        update = statistics.median(costs.update[first:]) / costs.steps
        sizes[name], batches[f"{costs.frames} frames of {name}"] = costs.parameters, costs.bytes * costs.frames
        rows = config.batch_size if algorithm is SAC else config.minibatch_size
        print(
            f"{name}, one of {count} learners: {collect * 1e6:.0f} us a frame of {config.num_envs} environments,"
            f" {update * 1e3:.2f} ms a gradient step of {rows} rows; {costs.bytes} bytes a frame,"
            f" policy {4 * costs.policy / 1e3:.0f} kB, gradients {4 * costs.parameters / 1e3:.0f} kB",
            flush=True,
        )
    for name, seconds in seconds_of_messages(sizes).items():
        print(f"two learners, {name}: {seconds * 1e6:.0f} us", flush=True)
    if options.ray:
        for name, seconds in seconds_in_ray(batches).items():
            print(f"actor of Ray, a batch of {name}, {batches[name]} bytes: {seconds * 1e6:.0f} us")


if __name__ == "__main__":
    main()
