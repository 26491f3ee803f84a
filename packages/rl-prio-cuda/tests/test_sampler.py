"""rl-replay's sampler on this tree: samples, errors, and no reads of device memory by the host."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl.core.errors import ArgumentError
from rl.prio_cuda import CudaPriorityTree

replay = pytest.importorskip("rl.replay")


class NothingIsRead(TorchDispatchMode):
    """Refuses what makes the host wait for values of a device, wherever the tensors are."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal.default")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::")
        assert not name.startswith(self.READS), f"{name} reads values on the host"
        return function(*args, **(kwargs or {}))


@pytest.fixture
def sampler(device, monkeypatch):
    from rl.core.backends import Backend

    # the sampler gets the tree that was compiled for the host, which no plugin offers
    from rl.replay.samplers import _prioritized

    def find_tree(who, backend, capacity, where, dtype):
        tree = CudaPriorityTree(capacity, dtype=dtype, device=device)
        return tree, Backend("cuda", "rl-prio-cuda", "of this test")

    monkeypatch.setattr(_prioritized, "find_tree", find_tree)
    return replay.PrioritizedSampler(100, alpha=0.6, beta=0.4, eps=1e-6, device=device)


@pytest.fixture
def storage(device):
    rows = replay.LazyTensorStorage(100, device=device)
    rows.set(torch.arange(100), torch.randn(100, 3))
    return rows


def test_sampling_and_updating_read_nothing_on_the_host(sampler, storage, device):
    sampler.extended(torch.arange(100), None)
    sampler.sample(storage, 32)
    errors = torch.randn(32, device=device)
    with NothingIsRead():
        for _ in range(3):
            index, info = sampler.sample(storage, 32)
            sampler.update_priority(index, errors)
    sampler.check()
    assert info["priority_weight"].shape == (32,)


def test_priorities_follow_the_errors(sampler, storage, device):
    sampler.extended(torch.arange(100), None)
    errors = torch.zeros(100, device=device)
    errors[[7, 9]] = torch.tensor([1.0, 3.0], device=device)
    sampler.update_priority(torch.arange(100, device=device), errors)
    state = sampler.state_dict()
    expected = (errors.abs().double().cpu() + 1e-6) ** 0.6
    torch.testing.assert_close(state["priority"].double().cpu(), expected, rtol=1e-6, atol=0)
    assert torch.equal(state["raw"], errors)
    assert state["largest"].item() == 3
    drawn, _ = sampler.sample(storage, 4000)
    share = torch.bincount(drawn.cpu(), minlength=100) / 4000
    torch.testing.assert_close(share.double(), expected / expected.sum(), atol=0.04, rtol=0)


def test_a_refused_error_is_raised_by_check_and_wrote_nothing(sampler, device):
    sampler.extended(torch.arange(100), None)
    before = sampler.state_dict()
    sampler.update_priority(torch.tensor([1, 2], device=device), torch.tensor([5.0, float("nan")], device=device))
    with pytest.raises(ArgumentError, match="position 1"):
        sampler.check()
    after = sampler.state_dict()
    for name in ("raw", "priority", "largest"):
        assert torch.equal(before[name], after[name])


def test_rows_that_are_not_stored_are_refused(sampler, device):
    sampler.extended(torch.arange(40), None)
    sampler.update_priority(torch.tensor([39, 40], device=device), torch.ones(2, device=device))
    with pytest.raises(IndexError, match="40"):
        sampler.check()
