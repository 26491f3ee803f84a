"""What only memory can learn: return of the best checkpoint on fresh episodes, by seed.

Tasks: ``cartpole`` (CartPole-v1 without its velocities, 100,000 frames, recipe ``ppo``; the goal is a median of at
least 450 with a recurrent policy, where one without memory stays below 200), ``cartpole-dqn`` (the same with the recipe
``dqn``) and ``recall`` (``ppo``; a bit is shown at the first of 50 steps and asked for at the last, 1 for the right
answer and -1 for the wrong one; without memory 0 on average).

Run: ``./x bench packages/rl-trainers/benchmarks/memory.py cartpole|cartpole-dqn|recall lstm|gru|mlp [seed ...]``.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from torch import Tensor

from rl.core.component import Component
from rl.core.interfaces import Leaves
from rl.core.registry import default
from rl.core.specs import Binary, Categorical, Composite, Unbounded
from rl.envs import LeafEnvBase
from rl.trainers import DQNConfig, PPOConfig, train_dqn, train_ppo

LENGTH = 50
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1",
        "observation_indices": (0, 2),
        "total_frames": 100_000,
        "frames_per_batch": 256,
        "minibatch_size": 256,
        "epochs": 20,
        "gamma": 0.98,
        "lmbda": 0.8,
    },
    "cartpole-dqn": {
        "env": "CartPole-v1",
        "observation_indices": (0, 2),
        "total_frames": 100_000,
        "num_envs": 8,
        "utd_ratio": 0.125,
        "batch_size": 512,
        "num_cells": (64,),
        "gamma": 0.98,
        "anneal_lr": True,
    },
    "recall": {
        "env": "bench/recall",
        "num_envs": 16,
        "total_frames": 100_000,
        "frames_per_batch": 16 * LENGTH,
        "minibatch_size": 8 * LENGTH,
        "sequence_length": LENGTH,
        "recurrent_horizon": LENGTH,
        "gamma": 1.0,
        "entropy_coeff": 0.01,
    },
}


class RecallEnv(LeafEnvBase):
    """Shows 1 or -1 at the first step, says at the last that it is time to answer, and pays for the right action."""

    def __init__(self, batch_size: Any = (), device: Any = None) -> None:
        super().__init__(batch_size=batch_size, device=device)
        self._generator = torch.Generator()
        self.observation_spec = Composite(observation=Unbounded((2,)), bit=Unbounded((1,)), step=Unbounded((1,)))
        self.state_spec = Composite(bit=Unbounded((1,)), step=Unbounded((1,)))
        self.action_spec = Categorical(2)
        self.done_spec = Binary(shape=(1,), dtype=torch.bool)

    def _set_seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # rows that are not asked for are ignored
        bit = torch.randint(2, (*self.batch_size, 1), generator=self._generator).float() * 2 - 1
        step = torch.zeros_like(bit)
        return {**self._frame(bit, step), "observation": torch.cat((bit, step), -1)}

    def _step_leaves(self, root: Leaves) -> Leaves:
        bit, step = root["bit"], root["step"] + 1
        answer = root["action"].unsqueeze(-1) * 2.0 - 1
        outcome = self._frame(bit, step)
        return {**outcome, "reward": torch.where(outcome["done"], answer * bit, 0.0)}

    def _frame(self, bit: Tensor, step: Tensor) -> Leaves:
        asked = (step == LENGTH - 1).float()
        done = step >= LENGTH
        shown = torch.cat((torch.zeros_like(bit), asked), -1)
        return {"observation": shown, "bit": bit, "step": step, "done": done, "terminated": done.clone()}


def main(task: str = "cartpole", policy: str = "lstm", *seeds: str) -> dict[str, object]:
    default().add(Component("env", "bench/recall", f"{__name__}:RecallEnv"))
    rows: list[dict[str, Any]] = []
    for seed in map(int, seeds or "012"):
        settings = {**TASKS[task], "policy": policy, "seed": seed, "loggers": ("csv",)}
        cpu = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/run"
            if task == "cartpole-dqn":
                result = train_dqn(DQNConfig(**settings), out=out, display="none")
            else:
                result = train_ppo(PPOConfig(**settings), out=out, display="none")
        rows.append(
            {
                "task": task,
                "policy": policy,
                "seed": seed,
                "eval_return_mean": result.eval_return_mean,
                "eval_return_std": round(result.eval_return_std, 3),
                "cpu_seconds": round(time.process_time() - cpu, 1),
            }
        )
        print(rows[-1], flush=True)
    found: dict[str, object] = {"median_eval_return_mean": statistics.median(row["eval_return_mean"] for row in rows)}
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
