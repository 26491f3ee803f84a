"""Train GRPO on native tasks with the small model, and print the reward of each evaluation as JSON."""

import argparse
import json
import tempfile
import time

from rl.llm import GRPO, LLMSettings, train_llm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sort")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    for seed in options.seeds:
        settings = LLMSettings(
            task=options.task, updates=options.updates, learning_rate=options.learning_rate, seed=seed, eval_every=20
        )
        with tempfile.TemporaryDirectory() as folder:
            lines, begun = [], time.perf_counter()
            result = train_llm(settings, GRPO(), out=f"{folder}/run", report=lines.append)
            seconds = round(time.perf_counter() - begun, 1)
            curve = [float(line.split("reward ")[1].split()[0]) for line in lines]
        print(json.dumps({"task": options.task, "seed": seed, "reward": result.reward, "s": seconds, "curve": curve}))


if __name__ == "__main__":
    main()
