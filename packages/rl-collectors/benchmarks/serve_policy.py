"""Requests per CPU second of an `InferenceServer`, with and without batches, beside calls of the policy for one row.

Claim: for two layers of 2048 units, whose weights take longer to read than to multiply, 16 threads get 1.5 times the
replies of single calls in one loop; for small networks a copy in each process is faster. CPU time of all processes,
all sides interleaved: single calls in a loop, the server with batches of one request, and with batches of up to 16,
for clients that are threads, and for clients in processes.

    python packages/rl-collectors/benchmarks/serve_policy.py [--repeats 5] [--requests 50]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import InferenceServer

CLIENTS, OBSERVATION = 16, 32


def network(width: int) -> TensorDictModule:
    """A policy with two hidden layers."""
    layers = [nn.Linear(OBSERVATION, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)]
    return TensorDictModule(nn.Sequential(*layers), in_keys=["observation"], out_keys=["action"])


def ask(policy: Callable[[Any], Any], count: int) -> None:
    """Call a policy, or a client, for one row after the other."""
    row = TensorDict({"observation": torch.ones(OBSERVATION)})
    with torch.no_grad():
        for _ in range(count):
            policy(row.copy())


def work(client: Any, pipe: Any) -> None:
    """Ask in a process, as often as the parent says."""
    torch.set_num_threads(1)
    while (count := pipe.recv()) is not None:
        start = time.process_time()
        ask(client, count)
        pipe.send(time.process_time() - start)


class Processes:
    """Processes with a client each."""

    def __init__(self, client: Any) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes: list[Any] = []
        for _ in range(CLIENTS):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(client, theirs), daemon=True).start()
            self.pipes.append(ours)

    def ask(self, count: int) -> float:
        """Let all ask, and return their CPU time."""
        for pipe in self.pipes:
            pipe.send(count)
        return sum(pipe.recv() for pipe in self.pipes)

    def close(self) -> None:
        """End them."""
        for pipe in self.pipes:
            pipe.send(None)


def in_threads(pool: ThreadPoolExecutor, client: Any, count: int) -> float:
    """Ask in threads of this process."""
    for future in [pool.submit(ask, client, count) for _ in range(CLIENTS)]:
        future.result()
    return 0.0


def alone(policy: Any, count: int) -> float:
    """Call the policy for as many rows as all clients."""
    ask(policy, CLIENTS * count)
    return 0.0


def rate(call: Callable[[int], float], count: int) -> float:
    """Return replies per CPU second of all clients; a call returns the CPU time of other processes."""
    start = time.process_time()
    others = call(count)
    return CLIENTS * count / (time.process_time() - start + others)


def main() -> None:
    """Print medians of replies per CPU second, and ratios to single calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| hidden units | clients | single calls | served one by one | served in batches (mean size) |")
    print("|---|---|---|---|---|")
    for width in (64, 2048):
        policy = network(width)
        with ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as pool:
            servers = [stack.enter_context(InferenceServer(policy, max_batch_size=most)) for most in (1, CLIENTS)]
            groups = [Processes(server.client()) for server in servers]
            for group in groups:
                stack.callback(group.close)
            kinds: dict[str, list[Callable[[int], float]]] = {
                "threads": [partial(in_threads, pool, server.client()) for server in servers],
                "processes": [group.ask for group in groups],
            }
            for kind, served in kinds.items():
                calls = [partial(alone, policy), *served]
                before = servers[1].stats()
                rows = [[rate(call, given.requests) for call in calls] for _ in range(given.repeats + 1)][1:]
                after = servers[1].stats()
                size = (after["requests"] - before["requests"]) / (after["batches"] - before["batches"])
                single, *others = (statistics.median(column) for column in zip(*rows, strict=True))
                ratios = [statistics.median(row[index] / row[0] for row in rows) for index in (1, 2)]
                cells = [f"{value:,.0f} ({ratio:.2f})" for value, ratio in zip(others, ratios, strict=True)]
                print(f"| 2 x {width} | {kind} | {single:,.0f} | {' | '.join(cells)} [{size:.1f}] |", flush=True)


if __name__ == "__main__":
    main()
