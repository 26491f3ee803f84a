"""Rows by the age of their policy."""

from itertools import permutations

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import LazyTensorStorage, ListStorage, ReplayBuffer, StalenessAwareSampler, TensorDictReplayBuffer


def rows(versions):
    versions = torch.as_tensor(versions)
    return TensorDict({"x": torch.arange(len(versions)), "policy_version": versions}, versions.shape[:1])


def make(sampler, storage=None, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(40) if storage is None else storage,
        sampler=sampler,
        generator=torch.Generator().manual_seed(0),
        **options,
    )


def test_frequencies_are_the_weights():
    sampler = StalenessAwareSampler()
    buffer = make(sampler)
    buffer.extend(rows(torch.arange(20) // 4))
    sampler.consumer_version = 6
    counts = torch.zeros(20)
    for _ in range(40):
        sample = buffer.sample(500)  # more than there are rows: with replacement
        assert sample["staleness"].equal(6 - sample["policy_version"])
        counts += torch.bincount(sample["x"], minlength=20)
    p = 1 / (7.0 - torch.arange(20) // 4)
    p /= p.sum()
    assert ((counts - 20_000 * p) ** 2 / (20_000 * p)).sum() < 43.8  # 99.9 %, 19 degrees of freedom


@pytest.mark.parametrize("count", [2, 3])
def test_batches_without_replacement_have_the_distribution_of_successive_draws(count):
    weight = torch.tensor([1.0, 2, 3, 30])
    sampler = StalenessAwareSampler(staleness_weight_fn=lambda staleness: weight[staleness])
    buffer = make(sampler)
    buffer.extend(rows([3, 2, 1, 0]))
    sampler.consumer_version = 3
    found = {}
    for _ in range(10_000):
        key = tuple(buffer.sample(count)["x"].tolist())
        found[key] = found.get(key, 0) + 1
    statistic = 0.0
    for key in permutations(range(4), count):
        p, rest = 1.0, 36.0
        for row in key:
            p, rest = p * weight[row].item() / rest, rest - weight[row].item()
        statistic += (found.get(key, 0) - 10_000 * p) ** 2 / (10_000 * p)
    assert statistic < {2: 31.3, 3: 49.7}[count]  # the 99.9 % quantiles with 11 and 23 degrees of freedom


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_old_rows_are_excluded_and_versions_read_again_after_each_write(storage):
    sampler = StalenessAwareSampler(max_staleness=1)
    buffer = make(sampler, storage(6))
    for version in range(5):
        buffer.extend(rows([version, version]))
        sampler.increment_consumer_version()
        assert set(buffer.sample(2)["policy_version"].tolist()) == {version}
    sampler.max_staleness = 2
    assert set(buffer.sample(4)["policy_version"].tolist()) == {3, 4}
    sampler.max_staleness = -1
    assert set(buffer.sample(6)["policy_version"].tolist()) == {2, 3, 4}
    buffer.storage.set(torch.arange(6), rows([9] * 6))  # past the buffer, by a newer policy
    assert buffer.sample(6)["staleness"].tolist() == [0] * 6
    buffer.empty()
    assert sampler.consumer_version == 5


def test_other_entries_shapes_and_weights():
    sampler = StalenessAwareSampler(staleness_weight_fn=lambda s: (s == 2).float(), version_key=("info", "version"))
    buffer = make(sampler)
    data = TensorDict({"x": torch.arange(5), "info": {"version": torch.arange(5.0).view(5, 1)}}, [5])
    buffer.extend(data)
    sampler.consumer_version = 4
    assert buffer.sample(3)["x"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("data", [{"policy_version": torch.arange(6)}, [{"policy_version": torch.tensor(2)}] * 6])
def test_rows_that_are_no_tensordicts(data):
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), sampler=StalenessAwareSampler(), batch_size=3)
    buffer.extend(data)
    assert buffer.sample()["policy_version"].shape == (3,)
    pairs = TensorDict({"policy_version": torch.arange(6).view(3, 2)}, [3, 2])
    buffer = make(StalenessAwareSampler(), LazyTensorStorage(6, ndim=2))
    assert len(buffer.extend(pairs)) == len(buffer.sample(6)) == 6


def test_states():
    one, two = (make(StalenessAwareSampler(max_staleness=3), batch_size=5) for _ in range(2))
    one.extend(rows(torch.arange(20)))
    one.sampler.consumer_version = 19
    one.sample(3)
    two.load_state_dict(one.state_dict())
    assert two.sampler.consumer_version == 19
    for _ in range(5):
        assert (one.sample(4) == two.sample(4)).all()
    with pytest.raises(CheckpointError, match="lacks consumer_version"):
        two.sampler.load_state_dict({})


def test_refusals():
    buffer = make(StalenessAwareSampler(max_staleness=1))
    with pytest.raises(ContractError, match="the buffer is empty"):
        buffer.sample(2)
    buffer.extend(rows([0, 1, 2]))
    buffer.sampler.consumer_version = 9
    with pytest.raises(ContractError, match="staleness is 7 to 9, consumer_version=9 and max_staleness=1"):
        buffer.sample(2)
    bare = make(StalenessAwareSampler())
    for wrong in (rows([0, 1, 2]).exclude("policy_version"), rows([[0, 1], [2, 3]]), rows([0, 1j])):
        with pytest.raises(ContractError, match=r"one version of the policy for each row under 'policy_version', and"):
            bare.extend(wrong)
        with pytest.raises(ContractError, match=r"one version of the policy for each row under 'policy_version', and"):
            bare.extend(list(wrong))
    assert len(bare) == bare.write_count == 0
    storage = LazyTensorStorage(4)
    storage.set(torch.arange(3), TensorDict({"x": torch.arange(3)}, [3]))  # past the buffer
    with pytest.raises(ContractError, match=r"under 'policy_version', and the 3 rows do not have it"):
        make(StalenessAwareSampler(), storage).sample(2)
    for wrong in (lambda s: s.float() - 2, lambda s: 1 / s.float(), lambda s: s.float()[:1]):
        odd = make(StalenessAwareSampler(staleness_weight_fn=wrong))
        odd.extend(rows([0, 0, 0]))
        with pytest.raises(ArgumentError, match="one finite weight of at least 0 for each of 3 rows"):
            odd.sample(2)
    with pytest.raises(ArgumentError, match="max_staleness must be an integer, got"):
        StalenessAwareSampler(max_staleness=1.5)
    with pytest.raises(ContractError, match="no priorities"):
        ReplayBuffer(sampler=StalenessAwareSampler()).update_priority(torch.zeros(1), torch.zeros(1))
