"""Returns as users call them, against TorchRL; and the plain PyTorch recurrence against loops over time.

All implementations run interleaved in one process on one thread; medians of CPU time of the thread in microseconds,
ratios of it, and of wall time in brackets. `torch loop` and `numpy loop` are plain loops over time.

    python benchmarks/gae.py [--rounds 11]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from peers import Sides, interleave, ratio, row, table, torchrl_values
from torch import Tensor

from rl.objectives.functional._recurrence import recurrence_backend, scan_recurrence, torch_recurrence
from rl.objectives.value import functional

SHAPES = ((8, 128), (64, 1024), (4096, 128))
MORE = ((8, 128), (16, 5), (64, 32), (4096, 16), (1, 2048), (64, 1024), (1024, 128), (4096, 128), (8, 16384))
GAMMA, LMBDA = 0.99, 0.95


def draw(rows: int, steps: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """Values, rewards and flags ``[B, T, 1]``; and log-probabilities."""
    states, reward = torch.randn(rows, steps + 1, 1), torch.randn(rows, steps, 1)
    done = torch.rand(rows, steps, 1) < 0.02
    terminated = done & (torch.rand(rows, steps, 1) < 0.5)
    log_pi, log_mu = (0.1 * torch.randn(rows, steps, 1) for _ in range(2))
    return (states[:, :-1].contiguous(), states[:, 1:].contiguous(), reward, done, terminated), (log_pi, log_mu)


def forms(module: Any, name: str, args: tuple[Tensor, ...], log_probs: tuple[Tensor, Tensor]) -> dict[str, Sides]:
    """The three estimators of a library, each as `vec` and `loop`; for V-trace there is one function."""
    return {
        "GAE": {
            f"{name} vec": lambda: module.vec_generalized_advantage_estimate(GAMMA, LMBDA, *args),
            f"{name} loop": lambda: module.generalized_advantage_estimate(GAMMA, LMBDA, *args),
        },
        "TD(lambda)": {
            f"{name} vec": lambda: module.vec_td_lambda_return_estimate(GAMMA, LMBDA, *args[1:]),
            f"{name} loop": lambda: module.td_lambda_return_estimate(GAMMA, LMBDA, *args[1:]),
        },
        "V-trace": {
            f"{name} {'loop' if name == 'TorchRL' else 'vec'}": lambda: module.vtrace_advantage_estimate(
                GAMMA, *log_probs, *args
            )
        },
    }


def estimates(rounds: int) -> None:
    theirs = torchrl_values()
    columns = ("rl vec", "rl loop", "TorchRL vec", "TorchRL loop")
    table(["", "[B, T]", *columns, "TorchRL vec / rl vec", "TorchRL loop / rl vec"])
    for rows, steps in SHAPES:
        batch = draw(rows, steps)
        peers = {} if theirs is None else forms(theirs.functional, "TorchRL", *batch)
        for what, sides in forms(functional, "rl", *batch).items():
            found = interleave(sides | peers.get(what, {}), rounds)
            cells = [f"{found[name][0]:,.0f}" if name in found else "-" for name in columns]
            cells += [ratio(found, peer, "rl vec") for peer in columns[2:]]
            print(row([what, f"[{rows}, {steps}]", *cells]), flush=True)


def numpy_loop(d: np.ndarray[Any, Any], c: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The recurrence, one step of time after the other."""
    out, following = np.empty_like(d), np.zeros_like(d[:, 0])
    for t in range(d.shape[1] - 1, -1, -1):
        following = out[:, t] = d[:, t] + c[:, t] * following
    return out


def torch_loop(d: Tensor, c: Tensor) -> Tensor:
    """The same in PyTorch, with time first in memory and a result that is made beforehand."""
    adds, weights = d.movedim(1, 0).contiguous(), c.movedim(1, 0).contiguous()
    out = torch.empty_like(adds)
    rows, add, weight = out.unbind(0), adds.unbind(0), weights.unbind(0)
    rows[-1].copy_(add[-1])
    for t in range(len(rows) - 2, -1, -1):
        torch.addcmul(add[t], weight[t], rows[t + 1], out=rows[t])
    return out.movedim(0, 1)


def plain_forms(rounds: int) -> None:
    columns = ("rl", "scan", "torch loop", "numpy loop")
    table(["[B, T]", *columns, *(f"{name} / rl" for name in columns[1:])])
    for rows, steps in MORE:
        (_, _, d, done, _), _ = draw(rows, steps)
        c = torch.full_like(d, 0.94).masked_fill(done, 0)
        arrays = d.numpy(), c.numpy()
        found = interleave(
            {
                "rl": lambda d=d, c=c: torch_recurrence(d, c, 1),
                "scan": lambda d=d, c=c: scan_recurrence(d, c, 1),
                "torch loop": lambda d=d, c=c: torch_loop(d, c),
                "numpy loop": lambda d=arrays[0], c=arrays[1]: numpy_loop(d, c),
            },
            rounds,
        )
        cells = [f"{found[name][0]:,.0f}" for name in columns]
        print(row([f"[{rows}, {steps}]", *cells, *(ratio(found, name, "rl") for name in columns[1:])]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, back end {recurrence_backend(torch.device('cpu'), torch.float32)!r}")
    estimates(rounds)
    plain_forms(rounds)
    print("\ngoals: TorchRL's vec at least 100 times, its loop 10 times; no loop more than 2 times faster")


if __name__ == "__main__":
    main()
