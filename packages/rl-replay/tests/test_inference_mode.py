"""What `torch.inference_mode` made first, others may write later: a warm-up or an evaluation often comes first."""

import pytest
import torch
from tensordict import TensorDict

from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore::rl.core.errors.SlowBackendWarning")
STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]


def _batch(rows=6):
    done = torch.zeros(rows, 1, dtype=torch.bool)
    return TensorDict({"x": torch.arange(float(rows)), ("next", "done"): done}, batch_size=[rows])


def _use(buffer):
    buffer.extend(_batch())
    sample = buffer.sample()
    buffer.update_tensordict_priority(sample.set("td_error", torch.rand(4)))
    buffer.alpha = 0.9 if buffer.alpha != 0.9 else 0.4
    return sample


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_prioritized_buffer_of_inference_mode_goes_on_outside(storage, backend):
    def make():
        kept = storage(100_000 if storage is LazyTensorStorage else 20)  # large enough for the rows to share a block
        return TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=kept, batch_size=4, backend=backend)

    outside, other = make(), make()
    with torch.inference_mode():
        buffer = make()
        for each in (buffer, outside):
            _use(each)
        other.load_state_dict(outside.state_dict())
    for each in (buffer, outside, other):
        sample = _use(each)
        assert len(each) == 12
        assert set(sample["x"].tolist()) <= set(range(6))
        again = make()
        again.load_state_dict(each.state_dict())
        assert _use(again).batch_size == (4,)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    "sampler",
    [RandomSampler, SamplerWithoutReplacement, lambda: SliceSampler(slice_len=2)],
    ids=["random", "passes", "slices"],
)
def test_a_buffer_that_inference_mode_filled_first_goes_on_outside(storage, sampler):
    buffer = TensorDictReplayBuffer(storage=storage(20), sampler=sampler(), batch_size=4)
    with torch.inference_mode():
        buffer.extend(_batch())
        buffer.sample()
    buffer.extend(_batch())
    assert len(buffer) == 12
    assert buffer.sample().batch_size == (4,)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_sampler_of_inference_mode_holds_what_others_may_write(device):
    with torch.inference_mode():
        sampler = PrioritizedSampler(10, alpha=0.6, beta=0.4, backend="torch", device=device)
    assert not any(
        value.is_inference()
        for owner in (sampler, sampler._tree)
        for value in vars(owner).values()
        if isinstance(value, torch.Tensor)
    )
