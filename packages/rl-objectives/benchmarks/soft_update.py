"""`SoftUpdate.step` costs at most 1.3 times one fused pass over the same tensors.

The fused pass is `torch._foreach_lerp_` of the targets' parameters towards the trained ones. Networks with 10 million
parameters, and the small ones of SAC, where the calls in Python weigh most. Medians of CPU time of the thread, in
microseconds, interleaved on one thread; ratios of CPU time, of wall time in brackets.

    python benchmarks/soft_update.py [--rounds 31]
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import torch
from peers import interleave, ratio, row, table
from torch import nn

from rl.objectives import DQNLoss, SoftUpdate

TAU, GOAL = 0.005, 1.3
SHAPES = {"10 M parameters": (256, 3072, 3072, 4), "2 x 256": (23, 256, 256, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels: Any = torch
    table(["network", "parameters", "fused pass", "SoftUpdate", "ratio"])
    for name, widths in SHAPES.items():
        loss = DQNLoss(nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(widths)]))
        updater = SoftUpdate(loss, tau=TAU)
        assert loss.target_value_network is not None
        targets = list(loss.target_value_network.parameters())
        sources = [one.detach() for one in loss.value_network.parameters()]

        @torch.no_grad()
        def fused(targets: Any = targets, sources: Any = sources) -> None:
            kernels._foreach_lerp_(targets, sources, TAU)

        found = interleave({"fused": fused, "ours": updater.step}, arguments.rounds, 0.05)
        count = sum(one.numel() for one in targets)
        cells = [name, f"{count:,}", *(f"{found[side][0]:,.1f}" for side in ("fused", "ours"))]
        print(row([*cells, ratio(found, "ours", "fused")]))
    print(f"\ngoal: {GOAL}")


if __name__ == "__main__":
    main()
