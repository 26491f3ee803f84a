"""Publish the best run of each case of `rl benchmark` in the form of `rl hub`.

    python tools/publish_agents.py runs/results agents
    python tools/publish_agents.py runs/results packages/rl-trainers/src/rl/trainers/agents --small \
        --case ppo-CartPole-v1 --case ppo-Acrobot-v1 --case ppo-Pendulum-v1 --case ppo-MountainCarContinuous-v0

The second command writes those that come with rl-trainers, without learning curves.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from rl.trainers._hub import LocalHub, push_run

KEPT = ("config.yaml", "summary.json", "checkpoints/best.safetensors")
"""What is taken of a run where it should be small."""


def publish(runs: Path, out: Path, cases: list[str], *, small: bool) -> list[str]:
    """Write the runs with the best returns of the cases, of all of them if `cases` is empty, as folders of `out`."""
    names = cases or sorted({path.parents[1].name for path in runs.glob("*/seed-*/summary.json")})
    for name in names:
        best = max((runs / name).glob("seed-*/summary.json"), key=_mean_return).parent
        with tempfile.TemporaryDirectory() as folder:
            for one in KEPT if small else ():
                to = Path(folder) / one
                to.parent.mkdir(exist_ok=True)
                shutil.copyfile(best / one, to)
            push_run(folder if small else best, LocalHub(out / name), name)
    return names


def _mean_return(summary: Path) -> float:
    return json.loads(summary.read_text(encoding="utf-8"))["best/return_mean"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder that `rl benchmark --out` wrote")
    parser.add_argument("out", type=Path, help="folder of the agents")
    parser.add_argument("--case", action="append", default=[], help="a case; all of them without this")
    parser.add_argument("--small", action="store_true", help="leave out learning curves and metrics")
    arguments = parser.parse_args()
    print("\n".join(publish(arguments.runs, arguments.out, arguments.case, small=arguments.small)))
