"""An LSTM policy in a collector, 16 environments, against a loop by hand with `nn.LSTMCell`.

Both step the same kind of environment (``cartpole``, or ``recall``, which costs next to nothing), sample actions,
compute their log-probabilities, reset states where episodes end, and stack a batch of 64 steps. They run interleaved;
the figure is the thread's CPU time. The goal is a ratio of at most 1.3.

Run: ``./x bench packages/rl-trainers/benchmarks/recurrent_collector.py [cartpole|recall] [batches] [native]``; with
``native`` the policy of the collector is computed by rl-native.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from memory import RecallEnv  # beside this file
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl.collectors import Collector
from rl.envs import GymEnv
from rl.modules import Categorical, LSTMModule, ProbabilisticActor

ENVS, STEPS, HIDDEN = 16, 64, 64


def make_env(name: str) -> Any:
    env = (
        RecallEnv([ENVS])
        if name == "recall"
        else GymEnv("CartPole-v1", num_envs=ENVS, categorical_action_encoding=True)
    )
    env.set_seed(0)
    return env


def width(env: Any) -> int:
    return env.observation_spec["observation"].shape[-1]


def with_collector(name: str, backend: str | None) -> Callable[[], object]:
    env = make_env(name)
    memory = LSTMModule(width(env), HIDDEN, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(HIDDEN, 2), ["features"], ["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(memory, head), in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
    )
    return Collector(env, actor, frames_per_batch=ENVS * STEPS, policy_backend=backend).collect


class ByHand:
    """The loop that one would write, and no more."""

    def __init__(self, name: str) -> None:
        env = make_env(name)
        self.env = env.lowered()
        self.cell, self.head = nn.LSTMCell(width(env), HIDDEN), nn.Linear(HIDDEN, 2)
        self.root = self.env.reset_leaves()
        self.h = self.c = torch.zeros(ENVS, HIDDEN)
        self.begins = torch.ones(ENVS, 1, dtype=torch.bool)

    @torch.no_grad()
    def __call__(self) -> dict[str, Tensor]:
        kept: dict[str, list[Tensor]] = {}
        for _ in range(STEPS):
            observation = self.root["observation"]
            h, c = self.cell(observation, (self.h, self.c))
            logits = self.head(h)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            outcome = self.env.step_leaves({**self.root, "action": action})
            done = outcome["done"]
            for name, value in (
                ("observation", observation),
                ("is_init", self.begins),
                ("h", self.h),
                ("c", self.c),
                ("logits", logits),
                ("action", action),
                ("log_prob", policy.log_prob(action)),
                ("features", h),
                ("next_h", h),
                ("next_c", c),
                ("next_observation", outcome["observation"]),
                ("reward", outcome["reward"]),
                ("done", done),
                ("terminated", outcome["terminated"]),
                *((key, value) for key, value in outcome.items() if key in {"truncated", "bit", "step"}),
            ):
                kept.setdefault(name, []).append(value)
            self.root, self.begins = outcome, done
            if done.any():
                self.root = self.env.reset_leaves(outcome, done)
                h, c = h.masked_fill(done, 0.0), c.masked_fill(done, 0.0)
            self.h, self.c = h, c
        return {name: torch.stack(column, 1) for name, column in kept.items()}


def main(env: str = "cartpole", batches: str = "30", backend: str | None = None) -> dict[str, float]:
    torch.set_num_threads(1)
    sides: dict[str, Callable[[], object]] = {"collector": with_collector(env, backend), "by_hand": ByHand(env)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    wall: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(int(batches) + 3):
        for name, collect in sides.items():
            begin, began = time.thread_time(), time.perf_counter()
            collect()
            if turn >= 3:
                seconds[name].append(time.thread_time() - begin)
                wall[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(seconds["collector"], seconds["by_hand"], strict=True)]
    out = {f"{name}_us_per_step": round(statistics.median(each) / STEPS * 1e6, 1) for name, each in seconds.items()}
    out |= {f"{name}_wall_us_per_step": round(statistics.median(each) / STEPS * 1e6, 1) for name, each in wall.items()}
    out["cpu_ratio"] = round(statistics.median(ratios), 3)
    print(json.dumps(out))
    return out


if __name__ == "__main__":
    main(*sys.argv[1:])
