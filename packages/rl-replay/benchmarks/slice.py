"""Drawing 32 slices of 64 steps from rings of several sizes, against a scan for end flags and against TorchRL.

The implementations run interleaved in one process, so that they meet the same machine. Medians of wall time and of the
thread's CPU time, one thread. The naive side looks for the ends in all stored flags at each draw; "uniform rows" is
the same buffer with a `RandomSampler`: what gathering as many rows costs. TorchRL takes part where it is installed, as
it comes and with `cache_values=True`, which serves data that does not change. Episodes of 10 steps are drawn whole.

    python benchmarks/slice.py [--rows 10000 100000 1000000 10000000] [--calls 200] [--alone]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from tensordict import TensorDict

from rl.replay import LazyTensorStorage, RandomSampler, SliceSampler, TensorDictReplayBuffer

SLICES, STEPS = 32, 64
BUDGET = 3.0  # seconds of one side in one case
Sides = dict[str, Callable[[], object]]


def rows_of(count: int, episode: int) -> TensorDict:
    done = (torch.arange(count) % episode == episode - 1).unsqueeze(-1)
    return TensorDict(
        observation=torch.arange(count, dtype=torch.float32).unsqueeze(-1),
        next=TensorDict(done=done, terminated=done.clone(), truncated=torch.zeros_like(done), batch_size=[count]),
        batch_size=[count],
    )


class Naive:
    """Slice sampling in bare torch that searches the ends of trajectories at each call."""

    def __init__(self, data: TensorDict) -> None:
        self.leaves = {key: data[key].clone() for key in data.keys(include_nested=True, leaves_only=True)}
        self.done = self.leaves["next", "done"]

    def sample(self) -> dict[object, torch.Tensor]:
        ends = self.done.squeeze(-1).nonzero().squeeze(-1)
        starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
        lengths = ends - starts + 1
        steps = min(STEPS, int(lengths.max()))
        starts, lengths = starts[lengths >= steps], lengths[lengths >= steps]
        which = torch.randint(len(starts), (SLICES,))
        begin = starts[which] + (torch.rand(SLICES, dtype=torch.float64) * (lengths[which] - steps + 1)).long()
        index = (begin.unsqueeze(1) + torch.arange(steps)).flatten()
        batch = {key: leaf.index_select(0, index) for key, leaf in self.leaves.items()}
        for key in ("done", "truncated"):
            batch["next", key].view(SLICES, steps)[:, -1] = True
        return batch


def own(data: TensorDict, sampler: object) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), sampler=sampler, batch_size=SLICES * STEPS)
    buffer.extend(data)
    return buffer


def peer(data: TensorDict, **options: object) -> object:
    from torchrl.data import LazyTensorStorage as PeerStorage
    from torchrl.data import SliceSampler as PeerSampler
    from torchrl.data import TensorDictReplayBuffer as PeerBuffer

    buffer = PeerBuffer(
        storage=PeerStorage(len(data)),
        sampler=PeerSampler(num_slices=SLICES, end_key=("next", "done"), **options),
        batch_size=SLICES * STEPS,
    )
    buffer.extend(data)
    return buffer


def interleave(sides: Sides, calls: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU time in microseconds; a slow side is called less often."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    spent = dict.fromkeys(sides, 0.0)
    for call in sides.values():
        for _ in range(3):
            call()
    for _ in range(calls):
        for name, call in sides.items():
            if spent[name] > BUDGET and len(times[name]) >= 5:
                continue
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            call()
            took = (time.perf_counter_ns() - wall) / 1e3, (time.thread_time_ns() - cpu) / 1e3
            times[name].append(took)
            spent[name] += took[0] / 1e6
    return {name: (statistics.median(w for w, _ in t), statistics.median(c for _, c in t)) for name, t in times.items()}


def report(title: str, medians: dict[str, tuple[float, float]]) -> None:
    ours = medians["rl-replay"][1]
    print(title)
    for name, (wall, cpu) in medians.items():
        print(f"  {name:16s} {wall:11.1f} us wall {cpu:11.1f} us CPU   {cpu / ours:9.2f} x")


def case(rows: int, episode: int, calls: int, *, alone: bool) -> None:
    data, new, strict = rows_of(rows, episode), rows_of(256, episode), episode >= STEPS
    mine = own(data, SliceSampler(num_slices=SLICES, strict_length=strict))
    fixed: Sides = {"rl-replay": mine.sample, "uniform rows": own(data, RandomSampler()).sample}
    title = f"{rows} rows, {rows // episode} trajectories of {episode} steps"
    if alone:
        report(f"{title}: sample", interleave(fixed, calls))
        return
    fixed["naive scan"] = Naive(data).sample
    drawn: Sides = {"rl-replay": lambda: mine.sampler.sample(mine.storage, SLICES * STEPS)}
    growing = own(data, SliceSampler(num_slices=SLICES, strict_length=strict))
    changing: Sides = {"rl-replay": lambda: (growing.extend(new), growing.sample())}
    if find_spec("torchrl") is not None:
        theirs, cached = peer(data, strict_length=strict), peer(data, strict_length=strict, cache_values=True)
        peers = peer(data, strict_length=strict)
        fixed |= {"torchrl": theirs.sample, "torchrl, cached": cached.sample}
        drawn["torchrl"] = lambda: theirs.sampler.sample(theirs.storage, SLICES * STEPS)
        changing["torchrl"] = lambda: (peers.extend(new), peers.sample())
    report(f"{title}: sample", interleave(fixed, calls))
    report(f"{title}: the sampler alone, indices and flags", interleave(drawn, calls))
    report(f"{title}: growing, extend by 256 rows and sample", interleave(changing, calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--alone", action="store_true", help="no side that goes through all rows, and empties caches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {SLICES} slices of {STEPS} steps, up to {options.calls} calls of each side")
    for rows in options.rows:
        for episode in (10, 100, 1000):
            case(rows, episode, options.calls, alone=options.alone)


if __name__ == "__main__":
    main()
