"""Names under which code written for TorchRL expects what is there."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError
from rl.replay import (
    HERReplayBuffer,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RayReplayBuffer,
    RemoteTensorDictReplayBuffer,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StorageEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def rows(start, stop, **more):
    return TensorDict({"x": torch.arange(start, stop), **more}, batch_size=[stop - start])


def prioritized(**options):
    sampler = PrioritizedSampler(20, 1.0, 1.0, eps=0.0, backend="torch")
    return TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=50, **options)


@pytest.mark.parametrize("key", ["td_error", ("loss", "error")])
def test_a_buffer_with_a_prioritized_sampler_reads_priorities_from_tensordicts(key):
    buffer = prioritized(priority_key=key)
    buffer.extend(rows(0, 4).set(key, torch.tensor([0.0, 1.0, 0.0, 0.0])))
    sample = buffer.sample()
    assert set(sample["x"].tolist()) == {1}
    sample = buffer[:]
    sample["index"], sample[key] = torch.arange(4), torch.tensor([0.0, 0.0, 5.0, 0.0])
    buffer.update_tensordict_priority(sample)
    assert set(buffer.sample()["x"].tolist()) == {2}


def test_it_draws_as_the_buffer_that_makes_its_own_sampler():
    one = prioritized(generator=torch.Generator().manual_seed(0))
    two = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=1.0,
        eps=0.0,
        backend="torch",
        storage=LazyTensorStorage(20),
        batch_size=50,
        generator=torch.Generator().manual_seed(0),
    )
    for buffer in (one, two):
        buffer.extend(rows(0, 10, td_error=torch.arange(10.0)))
        sample = buffer.sample()
        buffer.update_tensordict_priority(sample.set("td_error", sample["x"].float() ** 2))
    assert (one.sample() == two.sample()).all()


def test_priorities_that_are_refused_write_nothing():
    buffer = prioritized()
    with pytest.raises(ArgumentError, match="nothing was written"):
        buffer.extend(rows(0, 2, td_error=torch.tensor([1.0, torch.nan])))
    with pytest.raises(ContractError, match=r"priority_weight.*batch.exclude"):
        buffer.extend(rows(0, 2, priority_weight=torch.ones(2)))
    assert len(buffer) == 0


def test_a_sampler_without_priorities_refuses_updates_and_leaves_the_entry_alone():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    buffer.extend(rows(0, 2, td_error=torch.tensor([1.0, torch.nan]), priority_weight=torch.ones(2)))
    with pytest.raises(ContractError, match="no priorities"):
        buffer.update_tensordict_priority(buffer.sample())


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage, ListStorage], ids=lambda c: c.__name__)
def test_storages_are_indexed_and_iterated(make):
    storage = make(10)
    storage.set([0, 1, 2], rows(0, 3))
    storage.set(range(1, 5), rows(11, 15))

    def numbers(found):
        return [row["x"].item() for row in found]

    assert numbers(storage) == [0, 11, 12, 13, 14]
    for index in ([3, 0], range(3, -1, -3), torch.tensor([3, 0]), torch.tensor([3, 0]).numpy()):
        assert numbers(storage[index]) == numbers(storage.get(index)) == [13, 0]
    assert numbers(storage[1:3]) == [11, 12]
    assert numbers(storage[[True, False, False, False, True]]) == [0, 14]
    assert storage[-1]["x"] == 14
    for index in ([5], range(4, 6), 5):
        with pytest.raises(IndexError):
            storage[index]
    with pytest.raises(IndexError, match="indexed by"):
        storage["x"]


@pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage], ids=lambda c: c.__name__)
def test_rows_of_a_buffer_are_replaced(make):
    buffer = TensorDictReplayBuffer(storage=make(10), sampler=PrioritizedSampler(10, 1.0, 1.0, backend="torch"))
    buffer.extend(rows(0, 5))
    buffer.update_priority(torch.arange(5), torch.zeros(5))
    buffer[1] = rows(21, 22)[0]
    buffer[-2:] = rows(33, 35)
    assert buffer[:]["x"].tolist() == [0, 21, 2, 33, 34]
    assert set(buffer.sample(100)["x"].tolist()) == {21, 33, 34}  # replaced rows have the priority of new ones
    for index, data in ((7, rows(0, 1)[0]), ([0, 9], rows(0, 2)), (slice(0, 2), rows(0, 3))):
        with pytest.raises((IndexError, ValueError)):
            buffer[index] = data
    assert buffer[:]["x"].tolist() == [0, 21, 2, 33, 34]
    assert (buffer.write_count, buffer.writer.cursor) == (5, 5)


def test_save_load_and_info(tmp_path):
    one, two = (TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=3) for _ in range(2))
    one.extend(rows(0, 5))
    one.save(tmp_path)
    two.load(tmp_path)
    assert (two[:] == one[:]).all()
    sample, info = two.sample(include_info=True)
    assert torch.equal(info["index"], sample["index"])


def test_transforms_are_appended():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=3, prefetch=1)
    buffer.extend(rows(3, 4))
    assert buffer.append_transform(lambda td: td.set("x", td["x"] + 1)) is buffer
    buffer.append_transform(lambda td: td.set("x", td["x"] * 10))
    assert buffer.sample()["x"].tolist() == [40] * 3
    with pytest.raises(ContractError, match="append it before the first sample"):
        buffer.append_transform(lambda td: td)
    with pytest.raises(ArgumentError, match="transform is a function"):
        buffer.append_transform("x")


def test_samplers_name_the_class_without_replacement():
    assert isinstance(RandomSampler(replacement=True), RandomSampler)
    SliceSampler(slice_len=2, replacement=True)
    with pytest.raises(ArgumentError, match=rf"use {SamplerWithoutReplacement.__name__}\("):
        RandomSampler(replacement=False)
    with pytest.raises(ArgumentError, match=r"use SliceSamplerWithoutReplacement\("):
        SliceSampler(slice_len=2, replacement=False)


def test_the_writer_has_two_names():
    assert TensorDictRoundRobinWriter is RoundRobinWriter
    assert RemoteTensorDictReplayBuffer is RayReplayBuffer


BUFFERS = {
    "tensor": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(20)),
    "list": lambda: ReplayBuffer(storage=ListStorage(20)),
    "prioritized": prioritized,
    "slices": lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_a_compiled_function_may_write(make):
    torch._dynamo.reset()
    buffer = make()

    @torch.compile(backend="eager")
    def step(x, done):
        data = TensorDict({"x": x * 2, ("next", "done"): done}, batch_size=[4])
        buffer.extend(data)
        buffer.add(data[0])
        return data["x"].sum()

    for start in range(3):
        x = torch.arange(start, start + 4)
        assert step(x, torch.zeros(4, 1, dtype=torch.bool)) == 2 * x.sum()
    assert buffer[:]["x"].tolist() == [0, 2, 4, 6, 0, 2, 4, 6, 8, 2, 4, 6, 8, 10, 4]


@pytest.mark.parametrize("make", [ListStorage, LazyTensorStorage])
def test_a_mask_selects_the_stored_rows_where_it_is_true(make):
    storage = make(10)
    rows = TensorDict(x=torch.arange(10, 16), batch_size=[6])
    storage.set(torch.arange(6), rows if make is LazyTensorStorage else list(rows))
    mask = torch.tensor([True, True, False, False, False, True])
    found = storage[mask]
    assert [int(row["x"]) for row in found] == [10, 11, 15]
    with pytest.raises(IndexError, match="mask"):
        storage[mask[:3]]


def test_a_buffer_of_tensordicts_answers_arguments_of_others():
    assert TensorDictReplayBuffer(storage=LazyTensorStorage(3), compilable=False).batch_size is None
    assert TensorDictReplayBuffer(storage=LazyTensorStorage(3), compilable=True).batch_size is None  # changes nothing
    with pytest.raises(ArgumentError, match="batch_size"):
        TensorDictReplayBuffer(batchsize=3)


SLICES = pytest.mark.parametrize(
    "sampler",
    [SliceSampler, SliceSamplerWithoutReplacement, lambda **given: PrioritizedSliceSampler(20, 1.0, 1.0, **given)],
    ids=["with", "without", "prioritized"],
)


@SLICES
@pytest.mark.parametrize("given", [[("next", "over"), ("next", "cut")], (("next", "cut"), ("next", "over"), "absent")])
def test_any_of_several_end_keys_ends_a_trajectory(sampler, given):
    over, cut = torch.zeros(2, 12, 1, dtype=torch.bool)
    over[3], cut[7] = True, True
    data = TensorDict({"x": torch.arange(12), ("next", "over"): over, ("next", "cut"): cut}, batch_size=[12])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=sampler(slice_len=4, end_keys=given), batch_size=12
    )
    buffer.extend(data)
    for _ in range(5):
        assert {row[0] for row in buffer.sample()["x"].view(-1, 4).tolist()} <= {0, 4, 8}


@SLICES
def test_end_keys_are_keys_of_which_one_is_stored(sampler):
    for wrong in ([], "done", 5, [3], [("next", "done"), None]):
        with pytest.raises(ArgumentError, match=r"end_keys is a (list|string)"):
            sampler(slice_len=4, end_keys=wrong)
    with pytest.raises(ArgumentError, match="in the place of end_key"):
        sampler(slice_len=4, end_keys=["done"], end_key="done")
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler(slice_len=4, end_keys=["over", "cut"]))
    with pytest.raises(ContractError, match="reads 'over' or 'cut', and the rows do not have it"):
        buffer.extend(rows(0, 4, episode=torch.zeros(4)))


@SLICES
@pytest.mark.parametrize("argument", ["compile", "cache_values"])
@pytest.mark.parametrize("value", [True, False, None, {"mode": "default"}])
def test_arguments_that_change_nothing_are_accepted_with_any_value(sampler, argument, value):
    sampler(slice_len=4, **{argument: value})


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (
            lambda **given: ReplayBufferEnsemble(ReplayBuffer(storage=ListStorage(4)), batch_size=2, **given),
            {"storage": ListStorage(4)},
            "storage.*use the arguments of the members",
        ),
        (lambda **given: LazyStackStorage(4, **given), {"stack_dim": 1}, "stack_dim=1: use the first dimension"),
        (
            lambda **given: StorageEnsemble(ListStorage(4), **given),
            {"transforms": [None]},
            "transforms.*use transform=",
        ),
        (
            lambda **given: HERReplayBuffer(lambda one, two: one, storage=ListStorage(4), **given),
            {"goal_key": "goal"},
            "use desired_goal_key=",
        ),
    ],
)
def test_arguments_of_torchrl_are_accepted_or_answered(make, wrong, message):
    accepted = {"transforms": None, "stack_dim": 0, "goal_key": "desired_goal", "storage": None}
    make(**{name: accepted[name] for name in wrong})
    with pytest.raises(ArgumentError, match=message):
        make(**wrong)
