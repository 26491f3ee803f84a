"""Memory, `extend` of 64 rows and `sample` of 256 of each storage, relative to `LazyTensorStorage`.

A row has four frames of 84 x 84 bytes at the root and under `next`, and seven small entries. A frame is a background
with a texture, over which squares move. Blocks of calls run interleaved in one process, one thread; the table shows
medians of the CPU time of the thread, and the bytes of the tensors in the state of the storage for one row.

    python benchmarks/storages.py [--rows 1024] [--blocks 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from rl.replay import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, ListStorage, TensorDictReplayBuffer


def frames(count: int) -> torch.Tensor:
    """A film ``[count, 84, 84]``."""
    film = (torch.rand(84, 84).square() * 3).byte().mul(40).expand(count, 84, 84).clone()
    for square in range(8):
        for step in range(count):
            top, left = (7 * square + step) % 76, (11 * square + 3 * step) % 76
            film[step, top : top + 8, left : left + 8] = 30 * square
    return film


def transitions(count: int) -> TensorDict:
    """`count` consecutive steps."""
    pixels = frames(count + 4).unfold(0, 4, 1).contiguous()
    done = torch.zeros(count, 1, dtype=torch.bool)
    after = {"reward": torch.randn(count, 1), "done": done, "terminated": done, "truncated": done}
    return TensorDict(
        {
            "pixels": pixels[:-1],
            "action": torch.randint(6, (count,)),
            "log_prob": torch.randn(count),
            "value": torch.randn(count, 1),
            "next": {"pixels": pixels[1:], **after},
        },
        batch_size=[count],
    )


def held(state: Any) -> int:
    """Bytes of the tensors in a state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.itemsize
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return sum(map(held, parts))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = options.rows
    makers: dict[str, Callable[[], Any]] = {
        "LazyTensorStorage": lambda: LazyTensorStorage(size),
        "LazyTensorStorage(compact=True)": lambda: LazyTensorStorage(size, compact=True),
        "LazyMemmapStorage": lambda: LazyMemmapStorage(size),
        "CompressedListStorage": lambda: CompressedListStorage(size),
        "ListStorage": lambda: ListStorage(size),
    }
    parts = transitions(size).split(64)
    buffers: dict[str, TensorDictReplayBuffer] = {}
    memory: dict[str, float] = {}
    for name, make in makers.items():
        buffers[name] = TensorDictReplayBuffer(storage=make(), batch_size=256)
        for part in parts:
            buffers[name].extend(part)
        memory[name] = held(buffers[name].storage.state_dict()) / size
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    for block in range(options.blocks):
        for name, buffer in buffers.items():
            marks = [time.thread_time()]
            for part in (parts[(2 * block) % len(parts)], parts[(2 * block + 1) % len(parts)]):
                buffer.extend(part)
            marks.append(time.thread_time())
            for _ in range(2):
                buffer.sample()
            marks.append(time.thread_time())
            times[name].append(((marks[1] - marks[0]) / 2, (marks[2] - marks[1]) / 2))
    found = {name: [statistics.median(column) for column in zip(*took, strict=True)] for name, took in times.items()}
    base = found["LazyTensorStorage"]
    print(f"torch {torch.__version__}, {size} rows; memory of a row, extend 64, sample 256")
    for name, (extend, sample) in found.items():
        print(
            f"{name:32s} {memory[name] / 1024:7.1f} KiB {extend * 1e3:8.2f} ms {extend / base[0]:6.2f} x"
            f" {sample * 1e3:8.2f} ms {sample / base[1]:6.2f} x"
        )


if __name__ == "__main__":
    main()
