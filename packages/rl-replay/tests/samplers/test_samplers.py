"""What samplers draw."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ArgumentError, ContractError
from rl.replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorStorage,
)


def test_uniform_draws_pass_a_chi_square_test():
    rows, draws = 50, 100_000
    storage, generator = TensorStorage(torch.arange(rows)), torch.Generator().manual_seed(0)
    index, _ = RandomSampler().sample(storage, draws, generator=generator)
    expected = draws / rows
    statistic = float(((index.bincount(minlength=rows) - expected) ** 2 / expected).sum())
    # 49 degrees of freedom: the 0.1 % and the 99.9 % quantile.
    assert 23.98 < statistic < 85.35


def test_uniform_draws_are_independent_within_a_batch():
    rows, generator = 10, torch.Generator().manual_seed(0)
    index, _ = RandomSampler().sample(TensorStorage(torch.arange(rows)), 100_000, generator=generator)
    pairs = (index[::2] * rows + index[1::2]).bincount(minlength=rows * rows)
    expected = 50_000 / (rows * rows)
    statistic = float(((pairs - expected) ** 2 / expected).sum())
    assert 60 < statistic < 149  # 99 degrees of freedom, 0.1 % and 99.9 %


@pytest.mark.parametrize("seed", [0, 1])
def test_orders_of_passes_are_uniform(seed):
    storage, sampler = TensorStorage(torch.arange(3)), SamplerWithoutReplacement()
    generator = torch.Generator().manual_seed(seed)
    counts: dict[tuple, int] = {}
    for _ in range(6000):
        order = tuple(sampler.sample(storage, 3, generator=generator)[0].tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 20.5  # 5 degrees of freedom, 99.9 %


@given(rows=st.integers(1, 40), batch=st.integers(1, 50), drop=st.booleans(), prefetch=st.sampled_from([0, 3]))
@settings(max_examples=60, deadline=None)
def test_an_iteration_is_one_pass_and_draws_each_row_once(rows, batch, drop, prefetch):
    buffer = ReplayBuffer(
        storage=TensorStorage(torch.arange(rows)),
        sampler=SamplerWithoutReplacement(drop_last=drop),
        batch_size=batch,
        prefetch=prefetch,
    )
    if drop and batch > rows:
        with pytest.raises(ArgumentError, match="drop_last"):
            next(iter(buffer))
        return
    for _ in range(2):
        batches = list(buffer)
        drawn = torch.cat(batches).tolist()
        assert len(set(drawn)) == len(drawn)
        assert len(drawn) == (rows // batch * batch if drop else rows)
        assert all(len(b) == batch for b in batches[:-1])


def test_an_iteration_begins_a_new_pass():
    buffer = ReplayBuffer(storage=TensorStorage(torch.arange(6)), sampler=SamplerWithoutReplacement(), batch_size=2)
    buffer.sample()
    assert sorted(torch.cat(list(buffer)).tolist()) == list(range(6))
    for _ in buffer:
        break
    assert sorted(torch.cat(list(buffer)).tolist()) == list(range(6))


def test_written_rows_begin_a_new_pass():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=SamplerWithoutReplacement(), batch_size=2)
    buffer.extend(torch.arange(4))
    first = buffer.sample()
    buffer.extend(torch.arange(10, 14))
    assert sorted(torch.cat([buffer.sample(), buffer.sample()]).tolist()) == [10, 11, 12, 13]
    assert first.max() < 4


def test_without_shuffle_the_order_is_that_of_the_storage():
    buffer = ReplayBuffer(
        storage=TensorStorage(torch.arange(5)), sampler=SamplerWithoutReplacement(shuffle=False), batch_size=2
    )
    assert [b.tolist() for b in buffer] == [[0, 1], [2, 3], [4]]


def test_a_random_sampler_iterates_without_end():
    buffer = ReplayBuffer(storage=TensorStorage(torch.arange(5)), batch_size=2)
    assert sum(len(b) for b, _ in zip(buffer, range(100), strict=False)) == 200


def test_a_generator_makes_draws_repeatable_and_leaves_the_global_one_alone():
    def draws(seed):
        buffer = ReplayBuffer(
            storage=TensorStorage(torch.arange(100)), batch_size=5, generator=torch.Generator().manual_seed(seed)
        )
        return torch.stack([buffer.sample() for _ in range(5)])

    before = torch.get_rng_state()
    assert torch.equal(draws(3), draws(3))
    assert not torch.equal(draws(3), draws(4))
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_generator_the_global_seed_counts():
    buffer = ReplayBuffer(storage=TensorStorage(torch.arange(100)), batch_size=5)
    torch.manual_seed(0)
    first = buffer.sample()
    torch.manual_seed(0)
    assert torch.equal(first, buffer.sample())


def test_a_batch_size_that_grows_in_a_pass_with_drop_last_begins_a_new_one():
    storage, sampler = TensorStorage(torch.arange(5)), SamplerWithoutReplacement(drop_last=True, shuffle=False)
    assert sampler.sample(storage, 2)[0].tolist() == [0, 1]
    assert sampler.sample(storage, 4)[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("sampler", [RandomSampler(), SamplerWithoutReplacement()], ids=lambda s: type(s).__name__)
def test_samplers_without_priorities_refuse_them(sampler):
    buffer = ReplayBuffer(storage=TensorStorage(torch.arange(5)), sampler=sampler)
    with pytest.raises(ContractError, match="no priorities"):
        buffer.update_priority(torch.tensor([0]), torch.tensor([1.0]))
