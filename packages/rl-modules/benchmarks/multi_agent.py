"""`MultiAgentMLP` with separate parameters, beside one batched matrix product for each layer written by hand.

Run: ``python packages/rl-modules/benchmarks/multi_agent.py [--rounds 21]``. Forward and backward pass on one thread;
rounds are interleaved, and figures are medians. TorchRL takes part where it can be imported.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from torch import Tensor, nn

from rl.modules import MultiAgentMLP

AGENTS, INPUTS, OUTPUTS, HIDDEN = 16, 32, 8, 128
ROWS = (64, 1024)


def by_hand(net: MultiAgentMLP, x: Tensor) -> Tensor:
    """The same network as products of weights ``[agents, in, out]``; inputs are ``[agents, rows, in]``."""
    layers = list(net.net)
    for layer in layers:
        x = torch.tanh(x) if isinstance(layer, nn.Tanh) else torch.baddbmm(layer.bias, x, layer.weight)
    return x


def main(rounds: int) -> None:
    """Print a line for each number of rows."""
    torch.set_num_threads(1)
    net = MultiAgentMLP(INPUTS, OUTPUTS, AGENTS, centralized=False, share_params=False, num_cells=[HIDDEN, HIDDEN])
    others = {}
    try:
        from torchrl.modules import MultiAgentMLP as TheirMLP

        theirs = TheirMLP(INPUTS, OUTPUTS, AGENTS, centralized=False, share_params=False, num_cells=[HIDDEN, HIDDEN])
        others["TorchRL"] = lambda x, _: theirs(x)
    except ImportError:
        pass
    print(f"{AGENTS} agents, {INPUTS} - {HIDDEN} - {HIDDEN} - {OUTPUTS}; microseconds of forward and backward pass")
    for rows in ROWS:
        x = torch.randn(rows, AGENTS, INPUTS)
        first = x.transpose(0, 1).contiguous()
        sides = {"by hand": lambda _, y: by_hand(net, y), "MultiAgentMLP": lambda x, _: net(x), **others}
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(rounds + 3):
            for name, run in sides.items():
                begin = time.perf_counter()
                for _ in range(5):
                    run(x, first).sum().backward()
                if turn >= 3:
                    taken[name].append((time.perf_counter() - begin) / 5e-6)
        base = median(taken["by hand"])
        found = [f"{name} {median(values):8.0f} ({median(values) / base:.2f})" for name, values in taken.items()]
        print(f"{rows:>5} rows: {'; '.join(found)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    main(**vars(parser.parse_args()))
