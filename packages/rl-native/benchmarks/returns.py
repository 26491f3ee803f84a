"""Returns in C, against plain PyTorch, a loop over time, and what moving the memory costs.

All sides alternate in one process on one thread; medians of CPU time of the thread, in microseconds. `stream` reads and
writes as many bytes as GAE does, 22 for each element: two copies, a sum, and two copies of flags, into outputs that are
used again. It is what no implementation can do without. `C, out=` uses its outputs again too; for large batches the
others also pay for memory that is new.

    python benchmarks/returns.py [--rounds 11]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rl.native._recurrence import NativeRecurrence

SHAPES = ((8, 128), (64, 1024), (4096, 128))
GAMMA, LMBDA = 0.99, 0.95


def scan(d: Tensor, c: Tensor) -> Tensor:
    """Log-step scan along dimension 1."""
    reach = 1
    while reach < d.shape[1]:
        head = torch.addcmul(d[:, :-reach], c[:, :-reach], d[:, reach:])
        d = torch.cat((head, d[:, -reach:]), 1)
        c = torch.cat((c[:, :-reach] * c[:, reach:], c[:, -reach:]), 1)
        reach *= 2
    return d


def loop(d: Tensor, c: Tensor) -> Tensor:
    """One step of time after the other."""
    rows, following = [], torch.zeros_like(d[:, 0])
    for d_t, c_t in zip(reversed(d.unbind(1)), reversed(c.unbind(1)), strict=True):
        following = torch.addcmul(d_t, c_t, following)
        rows.append(following)
    return torch.stack(rows[::-1], 1)


def gae(form: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    value, following, reward, done, terminated = batch
    delta = reward + GAMMA * following.masked_fill(terminated, 0) - value
    advantage = form(delta, torch.full_like(delta, GAMMA * LMBDA).masked_fill_(done, 0))
    return advantage, advantage + value


def sides_of(rows: int, steps: int) -> dict[str, Callable[[], object]]:
    native = NativeRecurrence()
    value, following, reward = (torch.randn(rows, steps, 1) for _ in range(3))
    done = torch.rand(rows, steps, 1) < 0.02
    terminated = done & (torch.rand(rows, steps, 1) < 0.5)
    batch = (value, following, reward, done, terminated)
    turned = tuple(x.transpose(0, 1).contiguous() for x in batch)
    ratio = torch.rand_like(reward) * 2
    out = torch.empty_like(value), torch.empty_like(value)
    turned_out = torch.empty_like(turned[0]), torch.empty_like(turned[0])
    flags = torch.empty_like(done)

    def stream() -> None:
        torch.add(value, following, out=out[0])
        out[1].copy_(reward)
        torch.logical_or(done, terminated, out=flags)

    return {
        "C": lambda: native.gae(GAMMA, LMBDA, *batch, 1),
        "C, out=": lambda: native.gae(GAMMA, LMBDA, *batch, 1, out=out),
        "C, time first": lambda: native.gae(GAMMA, LMBDA, *turned, 0, out=turned_out),
        "C, TD(lambda)": lambda: native.td_lambda(GAMMA, LMBDA, *batch[1:], 1, out=out[0]),
        "C, V-trace": lambda: native.vtrace(GAMMA, 1.0, ratio, *batch, 1, out=out),
        "stream": stream,
        "torch scan": lambda: gae(scan, batch),
        "torch loop": lambda: gae(loop, batch),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(NativeRecurrence())
    header = ""
    for shape in SHAPES:
        sides = sides_of(*shape)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, run in sides.items():
                repeat = 1 if name.startswith("torch") else max(2, 400_000 // (shape[0] * shape[1]))
                start = time.thread_time()
                for _ in range(repeat):
                    run()
                times[name].append((time.thread_time() - start) / repeat * 1e6)
        median = {name: statistics.median(x) for name, x in times.items()}
        if not header:
            header = f"{'[B, T]':>12}" + "".join(f"{name:>15}" for name in median)
            print(header)
        print(f"{f'[{shape[0]}, {shape[1]}]':>12}" + "".join(f"{x:15.1f}" for x in median.values()))


if __name__ == "__main__":
    main()
