"""`rl migrate` over 300 files of 110 lines: at most 60 s. Needs LibCST and the packages whose names the files use.

Run it with `./x bench packages/rl-torchrl/benchmarks/migrate.py`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rl.core.cli import main

FILES = int(sys.argv[1]) if len(sys.argv) > 1 else 300
HEAD = """import torch
from torchrl.collectors import SyncDataCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, StepCounter, TransformedEnv
from torchrl.objectives import SACLoss, SoftUpdate

"""
BODY = '''
def make_env_{n}(name="Pendulum-v1", max_steps=200):
    """Create an environment."""
    env = TransformedEnv(GymEnv(name), Compose(StepCounter(max_steps=max_steps)))
    return env.append_transform(StepCounter())


def train_{n}(actor, qvalue, frames=1_000):
    collector = SyncDataCollector(make_env_{n}, actor, frames_per_batch=100, total_frames=frames, use_buffers=False)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=32)
    loss = SACLoss(actor, qvalue, separate_losses=True)
    updater = SoftUpdate(loss_module=loss, eps=0.99)
    for data in collector:
        buffer.extend(data.reshape(-1))
        losses = loss(buffer.sample())
        sum(value for key, value in losses.items() if key.startswith("loss_")).backward()
        updater.step()
'''


def measure() -> tuple[float, float]:
    """Return the seconds that the command takes, on the clock and of the processor."""
    text = HEAD + "".join(BODY.format(n=n) for n in range(5))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            Path(folder, f"script_{number}.py").write_text(text, encoding="utf-8")
        start, busy = time.perf_counter(), time.process_time()
        main(["migrate", "--write", folder])
        return time.perf_counter() - start, time.process_time() - busy


if __name__ == "__main__":
    sys.stdout = open("/dev/null", "w") if Path("/dev/null").exists() else sys.stdout  # noqa: SIM115  the list of files
    seconds, busy = measure()
    sys.stderr.write(f"{FILES} files in {seconds:.1f} s, {busy:.1f} s of the processor\n")
