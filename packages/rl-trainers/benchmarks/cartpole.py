"""A recipe on CartPole-v1 with its defaults: return of the best checkpoint and training time, by seed.

Run: ``./x bench packages/rl-trainers/benchmarks/cartpole.py ppo|dqn [seeds]``.
The goal is a median return of at least 475 on 20 fresh episodes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time

from rl.trainers import DQNConfig, PPOConfig, train_dqn, train_ppo

RECIPES = {
    "ppo": lambda seed, out: train_ppo(PPOConfig(env="CartPole-v1", seed=seed), out=out, display="none"),
    "dqn": lambda seed, out: train_dqn(DQNConfig(env="CartPole-v1", seed=seed), out=out, display="none"),
}


def main(recipe: str = "ppo", seeds: int = 3) -> dict[str, object]:
    train = RECIPES[recipe]
    rows: list[dict[str, float]] = []
    for seed in range(seeds):
        cpu = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            result = train(seed, f"{folder}/run")
        rows.append(
            {
                "seed": seed,
                "frames": result.train_frames,
                "eval_return_mean": result.eval_return_mean,
                "eval_return_std": result.eval_return_std,
                "train_seconds": round(result.train_seconds, 2),
                "cpu_seconds": round(time.process_time() - cpu, 2),
            }
        )
        print(rows[-1], flush=True)
    out: dict[str, object] = {
        f"median_{name}": statistics.median(row[name] for row in rows) for name in ("eval_return_mean", "train_seconds")
    }
    print(json.dumps(out))
    return out


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
