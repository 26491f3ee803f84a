"""`torch.set_default_device` says where a program computes; a buffer on the CPU stays there.

Tensors on the device meta cannot be read: one that was made there by mistake raises.
"""

import pytest
import torch
from tensordict import TensorDict

from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    LinearScheduler,
    ListStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore::rl.core.errors.SlowBackendWarning")
STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]
SAMPLERS = {
    "random": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "in order": lambda: SamplerWithoutReplacement(shuffle=False),
    "slices": lambda: SliceSampler(slice_len=2),
    "padded": lambda: SliceSampler(slice_len=2, pad_output=True, strict_length=False),
    "passes of slices": lambda: SliceSamplerWithoutReplacement(slice_len=2),
}


@pytest.fixture
def batch():
    """Made before the default device is another one."""
    done = torch.zeros(6, 1, dtype=torch.bool)
    done[2] = True
    return TensorDict({"x": torch.arange(6.0), ("next", "done"): done}, batch_size=[6])


def _use(buffer, batch, folder):
    for _ in range(3):  # around the ring
        buffer.extend(batch)
    buffer.add(batch[0])
    for rows in (buffer[1], buffer[[1, 2]], buffer[:], buffer[2:4], buffer.sample(), buffer.sample()):
        assert rows["x"].device.type == "cpu"
    buffer.load_state_dict(buffer.state_dict())
    buffer.dumps(folder)
    buffer.loads(folder)
    assert set(buffer.sample()["x"].flatten().tolist()) <= set(range(6))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_buffer_on_the_cpu_stays_there(storage, sampler, batch, tmp_path):
    with torch.device("meta"):
        buffer = TensorDictReplayBuffer(storage=storage(16), sampler=sampler(), batch_size=4)
        _use(buffer, batch, tmp_path)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("rows", [16, 100_000])
def test_so_does_one_with_priorities(storage, backend, rows, batch, tmp_path):
    error = torch.rand(4)
    with torch.device("meta"):
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=storage(rows), batch_size=4, backend=backend, stratified=rows > 16
        )
        _use(buffer, batch, tmp_path)
        buffer.update_tensordict_priority(buffer.sample().set("td_error", error))
        buffer.update_priority([0, 1], [2.0, 3.0])
        buffer.update_priority(2, 1.5)
        LinearScheduler(buffer, "alpha", final_value=1.0, num_steps=1).step()
        assert buffer.sample()["priority_weight"].device.type == "cpu"
        buffer.empty()
        assert float(buffer.sampler._tree.total()) == 0
