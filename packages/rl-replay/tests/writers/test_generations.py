"""Indices of rows that were overwritten, and conditional updates, against a list of what was written."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError, SpecError
from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)


def rows(start, stop, **more):
    x = torch.arange(start, stop)
    return TensorDict({"x": x, "h": torch.zeros(len(x), 2), "v": torch.zeros(len(x), 1).long(), **more}, [len(x)])


def make(storage=None, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(8) if storage is None else storage,
        writer=RoundRobinWriter(track_generations=True),
        batch_size=5,
        **options,
    )


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_a_row_has_its_generation_until_it_is_overwritten(storage):
    buffer, content = make(storage(8)), {}
    taken = []  # row, generation, x
    for start in range(0, 60, 3):
        index = buffer.extend(rows(start, start + 3))
        content |= dict(zip(index.tolist(), range(start, start + 3), strict=True))
        sample, info = buffer.sample(return_info=True)
        assert sample["index_generation"].equal(info["index_generation"])
        taken += zip(*(sample[key].tolist() for key in ("index", "index_generation", "x")), strict=True)
        row, generation, x = torch.tensor(taken).T
        same = buffer.writer.generations_of(row) == generation
        assert same.tolist() == [content[int(r)] == int(y) for r, y in zip(row, x, strict=True)]
    assert buffer.writer.generations_of(torch.tensor([[0, 7], [8, -1]])).tolist()[1] == [-1, -1]


def test_replaced_and_removed_rows_are_others():
    buffer = make()
    index = buffer.extend(rows(0, 5))
    before = buffer.writer.generations_of(index)
    assert before.tolist() == [0] * 5
    buffer[1:3] = rows(7, 9)
    assert (buffer.writer.generations_of(index) == before).tolist() == [True, False, False, True, True]
    buffer.empty()
    assert not (buffer.writer.generations_of(index) == before).any()
    buffer.extend(rows(0, 8))
    assert not (buffer.writer.generations_of(index) == before).any()
    storage = LazyTensorStorage(8)
    storage.set(torch.arange(3), rows(0, 3))
    assert make(storage).writer.generations_of(torch.arange(4)).tolist() == [0, 0, 0, -1]


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_updates_reach_the_rows_that_are_still_there(storage):
    buffer = make(storage(8))
    buffer.extend(rows(0, 8))
    sample = buffer[:]
    index = torch.tensor([6, 0, 3, 1])
    generation = buffer.writer.generations_of(index)
    buffer.extend(rows(10, 12))  # overwrites 0 and 1
    result = buffer.update_if_present(
        index=index, generation=generation, patch={"h": torch.arange(8.0).view(4, 2), "x": -index}
    )
    assert result.updated.tolist() == [True, False, True, False]
    assert (result.updated_count, result.stale_count, result.version_rejected) == (2, 2, None)
    assert buffer[:]["x"].tolist() == [10, 11, 2, -3, 4, 5, -6, 7]
    assert buffer[:]["h"][[3, 6]].tolist() == [[4, 5], [0, 1]]
    assert buffer[:]["h"][[0, 1]].eq(0).all()
    assert buffer.writer.generations_of(index[[0, 2]]).equal(generation[[0, 2]])  # may be updated again
    td = TensorDict({"h": torch.ones(4, 2)}, [4])
    assert buffer.update_if_present(index=index, generation=generation, patch=td).updated_count == 2
    assert sample["x"].tolist() == list(range(8))


def test_older_versions_lose():
    buffer = make()
    buffer.extend(rows(0, 4).set("v", torch.tensor([[5], [5], [5], [7]])))
    index = torch.arange(4)

    def update(version, **options):
        return buffer.update_if_present(
            index=index,
            generation=torch.tensor([0, 0, 9, 0]),
            patch={"x": torch.full((4,), version)},
            version_key="v",
            version=version,
            **options,
        )

    assert update(4).version_rejected.tolist() == [True, True, False, True]
    assert update(5, require_newer=True).version_rejected_count == 3
    result = update(6)
    assert result.updated.tolist() == [True, True, False, False]
    assert (result.updated_count, result.stale_count, result.version_rejected_count) == (2, 1, 1)
    assert buffer[:]["x"].tolist() == [6, 6, 2, 3]
    assert buffer[:]["v"].flatten().tolist() == [6, 6, 5, 7]


def test_of_a_repeated_row_the_highest_version_or_the_last_counts():
    buffer = make()
    buffer.extend(rows(0, 4))
    index = torch.tensor([2, 1, 2, 2, 1])
    patch = {"x": torch.arange(10, 15)}
    result = buffer.update_if_present(index=index, generation=torch.zeros(5), patch=patch)
    assert result.updated.all()
    assert buffer[:]["x"].tolist() == [0, 14, 13, 3]
    result = buffer.update_if_present(
        index=index, generation=torch.zeros(5), patch=patch, version_key="v", version=torch.tensor([3, 2, 3, 1, 2])
    )
    assert result.updated.tolist() == [False, False, True, False, True]
    assert result.version_rejected.tolist() == [True, True, False, True, False]
    assert buffer[:]["x"].tolist() == [0, 14, 12, 3]
    assert buffer[:]["v"].flatten().tolist() == [0, 2, 3, 0]


def test_updates_keep_priorities_passes_and_trajectories():
    by_priority = make(sampler=PrioritizedSampler(8, 1.0, 1.0, 0.0, backend="torch"))
    passes = make(sampler=SamplerWithoutReplacement())
    for buffer in (by_priority, passes):
        buffer.extend(rows(0, 8))
    by_priority.update_priority(torch.arange(8), (torch.arange(8) == 2).float())
    first = passes.sample()["x"]
    for buffer in (by_priority, passes):
        buffer.update_if_present(index=torch.arange(8), generation=torch.zeros(8), patch={"h": torch.ones(8, 2)})
    assert set(by_priority.sample()["x"].tolist()) == {2}
    assert sorted([*first.tolist(), *passes.sample()["x"].tolist()]) == list(range(8))
    slices = make(sampler=SliceSampler(slice_len=2))
    slices.extend(rows(0, 8, next=TensorDict({"done": torch.arange(8) % 4 == 3}, [8])))
    slices.sample(6)
    table = slices.sampler.table_of(slices.storage)
    version = table.version
    slices.update_if_present(index=torch.arange(8), generation=torch.zeros(8), patch={"h": torch.ones(8, 2)})
    sample = slices.sample(600)
    assert table.version == version  # not read again
    assert set(sample["x"][::2].tolist()) == {0, 1, 2, 4, 5, 6}
    slices.update_if_present(
        index=torch.tensor([1]), generation=torch.zeros(1), patch={("next", "done"): torch.tensor([True])}
    )
    assert set(slices.sample(600)["x"][::2].tolist()) == {0, 2, 4, 5, 6}


def test_states_have_generations():
    one, two = make(), make()
    for start in range(0, 20, 5):
        one.extend(rows(start, start + 5))
    two.load_state_dict(one.state_dict())
    assert two.writer.generations_of(torch.arange(8)).equal(one.writer.generations_of(torch.arange(8)))
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=5)
    plain.extend(rows(0, 5))
    with pytest.raises(CheckpointError, match="lacks generations"):
        two.load_state_dict(plain.state_dict())
    state = one.state_dict()
    state["writer"]["generations"] = state["writer"]["generations"][:4]
    with pytest.raises(CheckpointError, match="generations of 4 rows, for a storage of 8"):
        two.load_state_dict(state)


def test_what_cannot_be_updated():
    buffer = make()
    update = {"index": torch.arange(2), "generation": torch.zeros(2)}
    assert buffer.update_if_present(**update, patch={"h": torch.zeros(2, 2)}).stale_count == 2  # of an empty buffer
    buffer.extend(rows(0, 4))
    for error, text, arguments in (
        (ContractError, "no tensor 'k' to update", {"patch": {"k": torch.zeros(2)}}),
        (
            SpecError,
            r"'h' is torch.float32 \[2\] in a row, got torch.float64",
            {"patch": {"h": torch.zeros(2, 2).double()}},
        ),
        (
            ShapeError,
            r"'h' is torch.float32 \[2\] in a row, got torch.float32 \[3\]",
            {"patch": {"h": torch.zeros(2, 3)}},
        ),
        (ShapeError, r"'h' has shape \[3, 2\] for 2 indices", {"patch": {"h": torch.zeros(3, 2)}}),
        (ArgumentError, "patch is a mapping", {"patch": {}}),
        (ArgumentError, "both version_key and version", {"patch": {"x": torch.zeros(2).long()}, "version": 1}),
        (ArgumentError, "'v' is the version", {"patch": {"v": torch.zeros(2, 1)}, "version": 1, "version_key": "v"}),
        (ShapeError, "the version 'h' has shape", {"patch": {"x": update["index"]}, "version": 1, "version_key": "h"}),
        (
            IndexError,
            r"index 8 is outside \[0, 8\)",
            {"patch": {"h": torch.zeros(2, 2)}, "index": torch.tensor([0, 8])},
        ),
        (
            IndexError,
            r"index -1 is outside \[0, 8\)",
            {"patch": {"x": update["index"]}, "index": torch.tensor([-1, 0])},
        ),
        (ShapeError, "2 indices and 1 generations", {"patch": {"x": update["index"]}, "generation": torch.zeros(1)}),
    ):
        with pytest.raises(error, match=text):
            buffer.update_if_present(**{**update, **arguments})
    assert (buffer[:] == rows(0, 4)).all()
    with pytest.raises(
        ContractError, match=r"construct the buffer with writer=RoundRobinWriter\(track_generations=True"
    ):
        ReplayBuffer().update_if_present(**update, patch={"h": torch.zeros(2)})
    with pytest.raises(ContractError, match="writes are not counted"):
        RoundRobinWriter().generations_of(3)
    with pytest.raises(ContractError, match="writes 'index_generation' into its samples"):
        buffer.extend(rows(0, 1, index_generation=torch.zeros(1)))


def test_rows_of_several_environments_are_updated():
    buffer = make(LazyTensorStorage(12, ndim=2), sampler=SliceSampler(slice_len=2, end_key="end"))
    batch = rows(0, 6, end=torch.zeros(6, dtype=torch.bool)).reshape(2, 3)
    for _ in range(2):
        buffer.extend(batch)
    sample = buffer.sample(40)
    buffer.extend(batch)  # overwrites the first six rows
    patch = {"h": sample["x"].unsqueeze(1).expand(40, 2).float() + 1}
    result = buffer.update_if_present(index=sample["index"], generation=sample["index_generation"], patch=patch)
    assert result.updated.equal(sample["index"] >= 6)
    kept = buffer[sample["index"][result.updated]]
    assert kept["h"].equal(kept["x"].unsqueeze(1).expand(-1, 2).float() + 1)
    assert not buffer[:6]["h"].any()
    assert (buffer.sample(40)["x"].view(20, 2).diff() % 3 == 1).all()
