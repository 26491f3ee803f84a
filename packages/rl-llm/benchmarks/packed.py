"""DAPO loss, forward and backward, of packed rollouts against padded ones: time and largest memory.

Lengths are evenly spaced in 32..512, in random order. CPU time, interleaved in one process; the largest memory is that
of a process of its own.
"""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import sys
import time

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl.llm import DAPOLoss, Rollout, Segment, TinyTransformer, TokenScorer, packed, padded

ROWS, SHORTEST, LONGEST, VOCABULARY = 32, 32, 512, 1000


def inputs() -> tuple[DAPOLoss, list[Rollout], Tensor]:
    torch.manual_seed(0)
    sizes = torch.linspace(SHORTEST, LONGEST, ROWS).long()[torch.randperm(ROWS)].tolist()
    rollouts = [
        Rollout.of(
            [
                Segment.given([1] * 8, role="user"),
                Segment.sampled(
                    torch.randint(VOCABULARY, (size - 8,)), [-math.log(VOCABULARY)] * (size - 8), version=0
                ),
            ]
        )
        for size in sizes
    ]
    model = TinyTransformer(VOCABULARY, width=128, depth=4, heads=4, max_length=LONGEST)
    nn.init.zeros_(model.head.weight)  # the log-probabilities of the rollouts are those of this policy
    return DAPOLoss(TokenScorer(model)), rollouts, torch.randn(ROWS, 1)


def views(rollouts: list[Rollout], advantage: Tensor) -> dict[str, TensorDict]:
    return {
        "padded": padded(rollouts, advantage=advantage),
        "packed": packed(rollouts, row_tokens=LONGEST, advantage=advantage),
    }


def run(loss: DAPOLoss, batch: TensorDict) -> float:
    loss.zero_grad()
    value = loss(batch)["loss_objective"]
    value.backward()
    return float(value.detach())


def memory(name: str) -> float:
    """Largest resident memory of a process that does it once, above that of one that only builds it, MiB."""
    found = []
    for what in ("none", name):
        out = subprocess.run([sys.executable, __file__, what], check=True, capture_output=True, text=True)
        found.append(float(out.stdout.split()[-1]))
    return found[1] - found[0]


def main() -> None:
    loss, rollouts, advantage = inputs()
    batches = views(rollouts, advantage)
    peaks = {name: memory(name) for name in batches}
    values = [run(loss, batch) for batch in batches.values()]
    assert abs(values[0] - values[1]) < 1e-5, values
    times: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(5):
        for name, batch in batches.items():
            start = time.process_time()
            run(loss, batch)
            times[name].append(time.process_time() - start)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, batch in batches.items():
        rows, columns = batch["tokens", "full"].shape
        print(f"{name} {rows:3} x {columns} {medians[name] * 1e3:8.0f} ms {peaks[name]:8.0f} MiB")
    time_ratio, memory_ratio = (figure["packed"] / figure["padded"] for figure in (medians, peaks))
    print(f"ratio: time {time_ratio:.2f}, memory {memory_ratio:.2f}; {torch.get_num_threads()} threads")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        the_loss, the_rollouts, the_advantage = inputs()
        the_views = views(the_rollouts, the_advantage)
        if sys.argv[1] in the_views:
            run(the_loss, the_views[sys.argv[1]])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    else:
        main()
