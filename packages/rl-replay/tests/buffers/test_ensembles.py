"""Ensembles of buffers, and offline to online: which rows a batch has, states, priorities."""

from contextlib import nullcontext

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError
from rl.replay import (
    HERReplayBuffer,
    ImmutableDatasetWriter,
    LazyTensorStorage,
    LinearScheduler,
    ListStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    StorageEnsemble,
    TensorDictReplayBuffer,
    TensorStorage,
    WriterEnsemble,
    prefill_replay_buffer,
)


def rows(start, stop):
    x = torch.arange(start, stop)
    return TensorDict({"x": x, ("next", "done"): (x % 5 == 4).unsqueeze(-1)}, batch_size=[len(x)])


def member(start, count=20, storage=LazyTensorStorage, kind=TensorDictReplayBuffer, **options):
    buffer = kind(storage=storage(30), **options)
    buffer.extend(rows(start, start + count))
    return buffer


def ensemble(*members, seed=0, **options):
    return ReplayBufferEnsemble(*members, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
def test_rows_come_from_members_by_probability(storage, kind):
    both = ensemble(member(0, storage=storage, kind=kind), member(100, 7, storage=storage, kind=kind), p=[1, 3])
    sample, info = both.sample(4000, return_info=True)
    second = sample["x"] >= 100
    assert abs(second.float().mean() - 0.75) < 0.03
    assert torch.equal(info["buffer_ids"], second.long())
    assert torch.equal(info["index"], torch.where(second, sample["x"] - 100 + 30, sample["x"]))
    assert set(sample["x"].tolist()) == {*range(20), *range(100, 107)}
    assert torch.equal(
        both.storage.get(info["index"])["x"] if storage is LazyTensorStorage else sample["x"], sample["x"]
    )
    if kind is TensorDictReplayBuffer:
        assert torch.equal(sample["index"], info["index"])
        assert torch.equal(sample["buffer_ids"], info["buffer_ids"])
    assert len(both) == 27


def test_equal_parts_of_all_and_of_some():
    members = [member(100 * i) for i in range(3)]
    assert (ensemble(*members, sample_from_all=True).sample(12)["x"] // 100).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    some = ensemble(*members, num_buffer_sampled=2, p=[0.0, 1, 1])
    counts = torch.stack([(some.sample(8)["x"] // 100).bincount(minlength=3) for _ in range(100)])
    assert set(map(tuple, counts.tolist())) == {(0, 8, 0), (0, 4, 4), (0, 0, 8)}
    for options in ({"sample_from_all": True}, {"num_buffer_sampled": 2}):
        with pytest.raises(ArgumentError, match=r"not a multiple of \d: \d members give equally many rows\. Use \d, "):
            ensemble(*members, **options).sample(7)


def test_members_keep_their_samplers_transforms_and_goals():
    def named(number):
        return lambda td: td.set("from", torch.full(td.batch_size, number))

    slices = member(0, sampler=SliceSampler(slice_len=3), transform=named(1))
    ranked = member(100, sampler=PrioritizedSampler(30, 1.0, 1.0, eps=0.0, backend="torch"), transform=named(2))
    mixed = ensemble(
        slices, ranked, sample_from_all=True, transform=lambda td: td.set("all", td["x"]), collate_fn=select_and_join
    )
    sample = mixed.sample(12)
    assert (sample["x"][:6].view(2, 3).diff() == 1).all()
    assert sample["from"].tolist() == [1] * 6 + [2] * 6
    assert torch.equal(sample["all"], sample["x"])
    mixed.update_tensordict_priority(sample.set("td_error", (sample["x"] == sample["x"][-1]).float()))
    assert mixed[1].sampler.state_dict() is not None
    mixed.update_priority(torch.arange(30, 50), (torch.arange(20) == 7).float())
    assert set(mixed.sample(12)["x"][6:].tolist()) == {107}


def select_and_join(parts):
    return torch.cat([part.select("x", "index", "from") for part in parts])


def test_members_that_differ_are_refused_with_a_remedy():
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    other.extend(TensorDict(y=torch.zeros(3), batch_size=[3]))
    with pytest.raises(ContractError, match=r"some have 'x', 'y', \('next', 'done'\)\. .*common entries"):
        ensemble(member(0), other, sample_from_all=True).sample(4)
    mixed = OfflineToOnlineReplayBuffer(member(0, sampler=SliceSampler(slice_len=2)), online_capacity=9, batch_size=8)
    mixed.extend(rows(0, 5))
    with pytest.raises(ContractError, match=r"only some have .*is_init") as caught:
        mixed.sample()
    assert len(str(caught.value)) < 400
    mixed[0].append_transform(lambda data: data.select("x", "index"))
    mixed[1].append_transform(lambda data: data.select("x", "index"))
    assert mixed.sample().batch_size == (8,)
    empty = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    with pytest.raises(ContractError, match="member 1 is empty"):
        ensemble(member(0), empty, sample_from_all=True).sample(4)
    assert ensemble(member(0), empty, p=[1, 0]).sample(4).batch_size == (4,)


def test_an_ensemble_of_parts_and_writes_to_members():
    storages = StorageEnsemble(LazyTensorStorage(10), LazyTensorStorage(5))
    samplers = SamplerEnsemble(SamplerWithoutReplacement(shuffle=False), RandomSampler(), sample_from_all=True)
    both = ReplayBufferEnsemble(
        storages=storages, samplers=samplers, writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter())
    )
    both[0].extend(rows(0, 10))
    assert both[-1].extend(rows(100, 107)[:5]).tolist() == [0, 1, 2, 3, 4]
    assert both.sample(4)["x"][:2].tolist() == [0, 1]
    assert both.sample(4)["x"][:2].tolist() == [2, 3]
    with pytest.raises(ContractError, match="read only"):
        both.extend(rows(0, 1))
    with pytest.raises(ContractError, match="member"):
        both[0:1] = rows(0, 1)
    with pytest.raises(IndexError, match="members 0 to 1"):
        both[2]
    plain = ReplayBuffer(storage=storages, sampler=SamplerEnsemble(RandomSampler(), RandomSampler()), batch_size=20)
    sample, info = plain.sample(return_info=True)
    assert torch.equal(sample["x"] >= 100, info["buffer_ids"] == 1)
    assert storages.get(torch.tensor([12, 3, 10]))["x"].tolist() == [102, 3, 100]
    assert storages.get(11)["x"] == 101
    for index in (-1, 15, 12 + 30):
        with pytest.raises(IndexError):
            storages.get(index)
    sliced = SamplerEnsemble(SliceSampler(slice_len=2), RandomSampler())
    with pytest.raises(ContractError, match="ReplayBufferEnsemble"):
        sliced.sample(storages, 4)
    both.empty()
    assert len(both) == 0


def test_prefetched_batches_are_those_of_a_buffer_without_prefetch():
    one = ensemble(member(0), member(100), batch_size=8)
    two = ensemble(member(0), member(100), batch_size=8, prefetch=2)
    for _ in range(5):
        assert (one.sample() == two.sample()).all()
    two[0].extend(rows(50, 70))  # does not change batches that were sampled before
    assert (one.sample() == two.sample()).all()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_states_continue_exactly(tmp_path, prefetch):
    def make(seed):
        made = ensemble(
            member(0, sampler=PrioritizedSampler(30, 1.0, 1.0, backend="torch")),
            member(100, sampler=SamplerWithoutReplacement(), generator=torch.Generator().manual_seed(seed)),
            seed=seed,
            batch_size=6,
            prefetch=prefetch,
            collate_fn=lambda parts: torch.cat([part.select("x", "index") for part in parts]),
        )
        made.sample()
        return made

    one, two, three = make(0), make(1), make(2)
    one[0].extend(rows(40, 60))
    one[0].update_priority(torch.arange(30), torch.arange(30.0))
    one.dumps(tmp_path)
    two.load_state_dict(one.state_dict())
    three.loads(tmp_path)
    for _ in range(6):
        first = one.sample()
        assert (first == two.sample()).all()
        assert (first == three.sample()).all()
    state = one.state_dict()
    state["members"][1]["storage"]["len"] = 99
    before = two.state_dict()
    with pytest.raises(CheckpointError):
        two.load_state_dict(state)
    assert torch.equal(two[0][:]["x"], before["members"][0]["storage"]["cells"][0][1])
    with pytest.raises(CheckpointError, match="members"):
        ensemble(member(0), collate_fn=lambda parts: parts[0], batch_size=6).load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"p": [0.5]}, "one probability for each"),
        ({"p": [0.5, -1]}, "at least 0"),
        ({"p": [0.5, 0.5], "sample_from_all": True}, "leave out"),
        ({"num_buffer_sampled": 0}, "num_buffer_sampled"),
        ({"storages": StorageEnsemble(ListStorage(1))}, "not both"),
    ],
)
def test_arguments_are_checked(options, text):
    with pytest.raises(ArgumentError, match=text):
        ReplayBufferEnsemble(member(0), member(1), **options)


def test_members_are_checked():
    one = member(0)
    with pytest.raises(ArgumentError, match="different"):
        ReplayBufferEnsemble(one, one)
    with pytest.raises(ArgumentError, match="without prefetch"):
        ReplayBufferEnsemble(one, member(0, batch_size=3, prefetch=2))
    with pytest.raises(ArgumentError, match="pass buffers"):
        ReplayBufferEnsemble()


def test_a_member_with_hindsight():
    place = torch.arange(10).unsqueeze(-1)
    goals = {"achieved_goal": place, "desired_goal": place * 0}
    outcome = {"reward": torch.zeros(10, 1), "done": place == 9}
    data = TensorDict({**goals, "next": {**goals, **outcome}}, batch_size=[10])
    members = [
        HERReplayBuffer(lambda a, d: (a == d).float(), storage=LazyTensorStorage(10), strategy=name)
        for name in ("final", "future")
    ]
    for one in members:
        one.extend(data)
    both = ensemble(*members, sample_from_all=True)
    sample = both.sample(200)
    chosen = sample["goal_index"] >= 0
    assert 100 < chosen.sum() < 200
    assert set(sample["desired_goal"][:100][chosen[:100]].flatten().tolist()) == {9}


def dataset(count=40):
    return TensorDictReplayBuffer(storage=TensorStorage(rows(0, count)), writer=ImmutableDatasetWriter())


def test_offline_to_online(tmp_path):
    def make(**options):
        return OfflineToOnlineReplayBuffer(
            dataset(), online_capacity=30, batch_size=10, generator=torch.Generator().manual_seed(0), **options
        )

    buffer = make(offline_fraction=0.7)
    assert (buffer.sample()["x"] < 100).all()
    assert buffer.extend(rows(100, 120)).tolist() == list(range(40, 60))
    assert buffer.add(rows(120, 121)[0]).item() == 60
    sample = buffer.sample()
    assert (sample["x"] >= 100).tolist() == [False] * 7 + [True] * 3
    assert torch.equal(sample["index"][7:], sample["x"][7:] - 60)
    assert (len(buffer), buffer.write_count, len(buffer.offline_buffer), len(buffer.online_buffer)) == (61, 21, 40, 21)
    shares = []
    for step in (0, 5, 10, 20):
        buffer.anneal(step, 10)
        shares.append((buffer.offline_fraction, int((buffer.sample()["x"] < 100).sum())))
    assert shares == [(0.7, 7), (0.35, 4), (0.0, 0), (0.0, 0)]
    schedule = LinearScheduler(buffer, "offline_fraction", final_value=1.0, num_steps=2)
    schedule.step()
    assert buffer.offline_fraction == 0.5
    buffer.dumps(tmp_path)
    again = make()
    again.loads(tmp_path)
    again.offline_fraction = 0.5
    for _ in range(3):
        assert (buffer.sample() == again.sample()).all()
    buffer.empty()
    assert (len(buffer.online_buffer), len(buffer.offline_buffer)) == (0, 40)


def test_offline_to_online_checks_its_arguments():
    for options in ({}, {"online_capacity": 5, "online_storage": ListStorage(5)}):
        with pytest.raises(ArgumentError, match="exactly one"):
            OfflineToOnlineReplayBuffer(dataset(), **options)
    with pytest.raises(ArgumentError, match="offline_fraction"):
        OfflineToOnlineReplayBuffer(dataset(), online_capacity=5, offline_fraction=1.5)
    with pytest.raises(ArgumentError, match="a buffer or an id"):
        OfflineToOnlineReplayBuffer(rows(0, 5), online_capacity=5)
    with pytest.raises(ArgumentError, match="total_steps"):
        OfflineToOnlineReplayBuffer(dataset(), online_capacity=5).anneal(0, 0)
    stored = OfflineToOnlineReplayBuffer(dataset(), online_storage=ListStorage(5))
    stored.extend(rows(100, 105))
    assert stored.sample(4)["x"].shape == (4,)


@pytest.mark.parametrize("need", [{"slice_len": 4}, {"num_slices": 3}, {}])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.35, 0.5, 0.8, 1.0])
def test_the_part_of_the_data_set_is_the_nearest_one_of_whole_slices(need, fraction):
    sampler = SliceSampler(truncated_key=None, init_key=None, **need) if need else RandomSampler()
    offline = TensorDictReplayBuffer(storage=TensorStorage(rows(0, 40)), sampler=sampler)
    buffer = OfflineToOnlineReplayBuffer(offline, online_capacity=9, offline_fraction=fraction)
    buffer.extend(rows(100, 109))
    (unit,) = need.values() or (1,)
    for size in range(1, 13):
        old = int((buffer.sample(size)["x"] < 100).sum())
        assert old % unit == 0
        assert abs(old - fraction * size) == min(abs(part - fraction * size) for part in range(0, size + 1, unit))
    buffer.empty()
    with pytest.raises(ArgumentError, match="not a multiple") if need else nullcontext():
        buffer.sample(13)  # all of the data set


def test_prefill():
    target = TensorDictReplayBuffer(storage=LazyTensorStorage(50))
    assert prefill_replay_buffer(target, dataset(), n_samples=25, chunk_size=10) is target
    assert target[:]["x"].tolist() == list(range(25))
    target.extend(rows(100, 103))
    assert len(prefill_replay_buffer(target, dataset(7))) == 35
    with pytest.raises(ArgumentError, match="n_samples"):
        prefill_replay_buffer(target, dataset(), n_samples=0)


@pytest.mark.parametrize("capacity", [60, 33])
@pytest.mark.parametrize("source", [TensorStorage, ListStorage])
def test_prefill_of_a_storage_of_environments_and_steps(capacity, source):
    data = TensorDictReplayBuffer(storage=source(rows(0, 25)) if source is TensorStorage else source(25))
    if source is ListStorage:
        data.extend(rows(0, 25))
    storage, sampler = LazyTensorStorage(capacity, ndim=2), SliceSampler(slice_len=3, strict_length=True)
    target = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=600)
    prefill_replay_buffer(target, data, chunk_size=10)
    assert target[:]["x"].tolist() == list(range(25))
    assert {*target.sample()["x"].view(-1, 3)[:, 0].tolist()} == {x for x in range(23) if x % 5 < 3}  # over all chunks
    target.extend(torch.stack([rows(100, 108), rows(200, 208)]))  # of two environments
    x = target.sample()["x"].view(-1, 3)
    assert (x.diff() == 1).all()
    assert {*(x[:, 0] // 100).tolist()} == {0, 1, 2}
    plain = ReplayBuffer(storage=LazyTensorStorage(9, ndim=2))
    prefill_replay_buffer(plain, ReplayBuffer(storage=TensorStorage(torch.arange(8).view(4, 2))))
    assert plain[:].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("need", [{"slice_len": 2}, {"num_slices": 2}])
def test_members_with_slice_samplers_give_whole_slices(need):
    both = ensemble(*(member(start, sampler=SliceSampler(**need)) for start in (0, 100)), p=[1, 3], batch_size=8)
    counts = torch.stack([both.sample(return_info=True)[1]["buffer_ids"].bincount(minlength=2) for _ in range(300)])
    assert (counts % 2 == 0).all()
    assert set(counts[:, 0].tolist()) >= {0, 2, 4}
    assert abs(counts[:, 1].float().mean() / 8 - 0.75) < 0.04
    with pytest.raises(ArgumentError, match=r"batch_size=9 is not a multiple of 2: slice samplers .*Use 8"):
        both.sample(9)


def test_members_with_other_slices_are_refused_unless_parts_are_equal():
    members = [member(0, sampler=SliceSampler(slice_len=2)), member(100, sampler=SliceSampler(slice_len=3))]
    with pytest.raises(ArgumentError, match=r"multiples of 2 and 3 rows.*same slice_len.*sample_from_all=True"):
        ensemble(*members)
    equal = ensemble(*members, sample_from_all=True)
    assert (equal.sample(12)["x"] >= 100).sum() == 6
    with pytest.raises(ArgumentError, match=r"multiple of 12: 2 members .* multiples of 6 rows\. Use 12"):
        equal.sample(16)
