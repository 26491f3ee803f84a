"""Buffers that draw by priority: what users call, states, and batches on their way."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from rl.core.backends import Backend
from rl.core.errors import (
    ArgumentError,
    BackendError,
    CheckpointError,
    ContractError,
    ShapeError,
    SlowBackendWarning,
)
from rl.replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)

# the choice for a GPU, which this machine need not have
from rl.replay._priority_tree import find_tree

KINDS = [PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer]
both = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def batch(n, start=0, **more):
    return TensorDict({"x": torch.arange(start, start + n), **more}, [n])


def made(kind=TensorDictPrioritizedReplayBuffer, size=100, storage=LazyTensorStorage, **arguments):
    arguments = {"alpha": 1.0, "beta": 1.0, "eps": 0.0, "batch_size": 16, "backend": "torch", **arguments}
    return kind(storage=storage(size), generator=torch.Generator().manual_seed(0), **arguments)


def stored(buffer):
    return buffer.sampler._tree.get(torch.arange(len(buffer)))


def test_the_tutorial_runs():
    """Positional batch size, `return_info`, `info["index"]`."""
    buffer = PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(max_size=10_000))
    buffer.extend(TensorDict(obs=torch.randn(100, 4), batch_size=[100]))
    sample, info = buffer.sample(32, return_info=True)
    assert sample.batch_size == (32,)
    assert info["index"].shape == info["priority_weight"].shape == (32,)
    assert set(sample.keys()) == {"obs"}


def test_the_performance_guide_runs():
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(max_size=1000, device="cpu"), batch_size=256
    )
    buffer.extend(TensorDict(obs=torch.randn(500, 4), td_error=torch.randn(500), batch_size=[500]))
    sample, info = buffer.sample(return_info=True)
    td_errors = (sample["td_error"]).abs()
    buffer.update_priorities(info["index"], td_errors)
    sampler = PrioritizedSampler(max_capacity=100_000, alpha=0.6, beta=0.4, compilable=True)
    assert sampler.compilable


@both
def test_info_and_sample_hold_where_rows_came_from(kind):
    buffer = made(kind)
    assert buffer.extend(batch(50)).tolist() == list(range(50))
    buffer.update_priority(torch.arange(50), torch.arange(50.0))
    sample, info = buffer.sample(return_info=True)
    assert torch.equal(sample["x"], info["index"])
    assert 0 not in sample["x"]
    assert torch.allclose(info["priority_weight"], 1 / sample["x"])
    written = kind is TensorDictPrioritizedReplayBuffer
    assert set(sample.keys()) == ({"x", "index", "priority_weight"} if written else {"x"})
    assert isinstance(buffer, TensorDictReplayBuffer) == written


def test_priorities_come_back_from_a_loss():
    buffer = made()
    buffer.extend(batch(50))
    sample = buffer.sample()
    sample["td_error"] = sample["x"] + 1.0
    buffer.update_tensordict_priority(sample)
    drawn = sample["index"].unique()
    assert stored(buffer)[drawn].tolist() == [i + 1 for i in drawn.tolist()]
    with pytest.raises(ContractError, match="td_error"):
        buffer.update_tensordict_priority(buffer.sample())
    with pytest.raises(ContractError, match="'index'"):
        buffer.update_tensordict_priority(batch(3, td_error=torch.ones(3)))


@pytest.mark.parametrize("key", ["mine", ("nested", "error")], ids=str)
def test_priorities_are_read_from_batches_that_have_them(key):
    buffer = made(priority_key=key)
    data = batch(4)
    data[key] = torch.tensor([1.0, -2.0, 0.5, 3.0])
    buffer.extend(data)
    assert stored(buffer).tolist() == [1, 2, 0.5, 3]
    buffer.add(data[1])
    assert stored(buffer).tolist() == [1, 2, 0.5, 3, 2]
    plain = made(PrioritizedReplayBuffer)
    plain.extend(batch(4, td_error=torch.full((4,), 9.0)))
    assert stored(plain).tolist() == [1, 1, 1, 1]


def test_rows_in_a_list_have_priorities_too():
    buffer = made(storage=ListStorage)
    buffer.extend([TensorDict({"x": torch.tensor(i), "td_error": torch.tensor([i + 1.0])}, []) for i in range(3)])
    assert stored(buffer).tolist() == [1, 2, 3]
    with pytest.raises(ContractError, match="differs in shape between rows"):
        buffer.extend([TensorDict({"td_error": torch.tensor([1.0])}, []), TensorDict({"x": torch.tensor(1)}, [])])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_with_a_bad_priority_is_refused_before_anything_is_written(bad):
    buffer = made()
    buffer.extend(batch(4, td_error=torch.ones(4)))
    with pytest.raises(ArgumentError, match="position 1"):
        buffer.extend(batch(4, 10, td_error=torch.tensor([1.0, bad, 1.0, 1.0])))
    assert (len(buffer), buffer.write_count, buffer.writer.cursor) == (4, 4, 4)


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_a_batch_with_a_priority_whose_power_is_infinite_too(backend):
    buffer = made(alpha=2.0, backend=backend)
    buffer.extend(batch(4, td_error=torch.ones(4)))
    before = buffer.state_dict()["sampler"]
    with pytest.raises(ArgumentError, match=r"alpha=2.0.* 1e\+30 .*infinite in torch.float32.*nothing was written"):
        buffer.extend(batch(3, 10, td_error=torch.tensor([1.0, 1e30, 2.0])))
    assert (len(buffer), buffer.write_count, buffer.writer.cursor) == (4, 4, 4)
    after = buffer.state_dict()["sampler"]
    assert all(torch.equal(torch.as_tensor(after[k]), torch.as_tensor(before[k])) for k in ("raw", "priority"))


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_no_alpha_is_taken_with_which_rows_could_not_be_written(backend, within):
    buffer = made(backend=backend, max_priority_within_buffer=within)
    buffer.extend(batch(4))
    buffer.update_priorities(torch.tensor([1]), torch.tensor([1e30]))
    buffer.update_priorities(torch.tensor([1]), torch.tensor([1.0]))
    if within:
        buffer.alpha = 2.0  # new rows get the largest of the rows that are stored
        other = made(backend=backend, max_priority_within_buffer=within)
        other.load_state_dict(buffer.state_dict())
    else:
        with pytest.raises(ArgumentError, match=r"alpha=2.0.* new rows.*empty"):
            buffer.alpha = 2.0
        assert buffer.alpha == 1
        state = buffer.state_dict()
        state["sampler"]["alpha"] = 2.0
        with pytest.raises(CheckpointError, match="alpha=2"):
            made(backend=backend).load_state_dict(state)
    buffer.extend(batch(5, 10))
    assert (len(buffer), buffer.write_count) == (9, 9)


def test_priorities_of_a_dataset_can_be_given_before_the_first_draw():
    data = batch(100)
    arguments = {"alpha": 1.0, "beta": 0.4, "eps": 0.0, "batch_size": 10, "backend": "torch"}
    buffer = TensorDictPrioritizedReplayBuffer(
        storage=TensorStorage(data), writer=ImmutableDatasetWriter(), **arguments
    )
    buffer.update_priorities(torch.arange(100), torch.eye(100)[7])
    assert buffer.sample()["x"].tolist() == [7] * 10
    plain = ReplayBuffer(storage=TensorStorage(data), sampler=PrioritizedSampler(100, 1.0, 0.4, backend="torch"))
    plain.update_priority(7, 3.0)
    assert plain.sampler._tree.total().item() == pytest.approx(102)


def test_unknown_arguments_are_refused(recwarn):
    with pytest.raises(TypeError, match=r"PrioritizedReplayBuffer.* unexpected keyword argument 'priority_key'"):
        PrioritizedReplayBuffer(alpha=0.6, beta=0.4, priority_key="td_error", backend="torch")
    for kind in KINDS:
        with pytest.raises(TypeError, match=f"{kind.__name__}.* unexpected keyword argument 'epsilon'"):
            kind(alpha=0.6, beta=0.4, epsilon=0.1, backend="torch")
        with pytest.raises(TypeError, match=f"^{kind.__name__}.* missing .*'beta'"):
            kind(alpha=0.6)


def test_entries_that_samples_write_are_refused_in_batches():
    buffer = made()
    for data in (batch(3, priority_weight=torch.ones(3)), [batch(3, priority_weight=torch.ones(3))[0]]):
        with pytest.raises(ContractError, match=r"priority_weight.*exclude\('priority_weight'\)"):
            buffer.extend(data)
    assert len(buffer) == 0


def test_a_sample_without_priorities_is_named_once():
    buffer = made()
    buffer.extend(batch(3))
    with pytest.raises(ContractError, match="has no 'td_error', the"):
        buffer.update_tensordict_priority(buffer.sample())
    with pytest.raises(ContractError, match="from a TensorDict, got NoneType"):
        buffer.update_tensordict_priority(None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_storage_on_a_device_that_is_not_there(kind, recwarn):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(BackendError, match=r"device cuda: (this torch is built without|no) CUDA.*device='cpu'"):
        kind(alpha=0.6, beta=0.4, storage=LazyTensorStorage(100, device="cuda"))
    assert not recwarn.list


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_priorities_are_on_the_device_of_the_storage_also_without_a_plugin_for_it(kind, monkeypatch):
    monkeypatch.setattr("rl.core.backends._warned", set())
    text = "on meta, because no installed plugin offers a faster tree for meta. backend='torch'"
    with pytest.warns(SlowBackendWarning, match=text):  # the meta device is in the place of a GPU
        buffer = kind(alpha=0.6, beta=0.4, storage=LazyTensorStorage(100, device="meta"))
    assert buffer.sampler.device == torch.device("meta")
    kind(alpha=0.6, beta=0.4, storage=LazyTensorStorage(100, device="meta"))  # a second warning would be an error


def test_the_warning_names_the_plugin_of_the_device(monkeypatch):
    monkeypatch.setattr("rl.core.backends._warned", set())
    chosen = (SimpleNamespace(why="plain"), Backend("torch", "rl-replay", ""), None)  # what a GPU without plugin gives
    monkeypatch.setattr("rl.replay._priority_tree.select", lambda *_, **__: chosen)
    with pytest.warns(
        SlowBackendWarning, match=r"on cuda:0, .* tree for cuda: pip install rl-prio-cuda\. backend='torch'"
    ):
        find_tree("Buffer", "auto", 10, torch.device("cuda:0"), torch.float32)


def test_a_refused_batch_changes_no_priority():
    buffer = made()
    buffer.extend(batch(4))
    with pytest.raises(ContractError):
        buffer.extend(TensorDict({"y": torch.ones(2)}, [2]))
    assert stored(buffer).tolist() == [1] * 4


def test_rows_of_several_steps_reduce_theirs():
    buffer = made(reduction="mean", batch_size=6)
    data = TensorDict({"x": torch.zeros(4, 3), "td_error": torch.arange(12.0).view(4, 3)}, [4, 3])
    buffer.extend(data)
    assert stored(buffer).tolist() == [1, 4, 7, 10]
    sample = buffer.sample()
    assert sample["index"].shape == sample["priority_weight"].shape == (6, 3)
    sample["td_error"] = torch.full((6, 3, 1), 2.0)
    buffer.update_tensordict_priority(sample)
    assert set(stored(buffer)[sample["index"][:, 0]].tolist()) == {2}


def test_steps_that_count_as_rows_have_one_each():
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(12, ndim=2), batch_size=5, backend="torch"
    )
    index = buffer.extend(TensorDict({"x": torch.zeros(2, 3), "td_error": torch.arange(1.0, 7).view(2, 3, 1)}, [2, 3]))
    assert stored(buffer)[index].tolist() == [1, 2, 3, 4, 5, 6]
    assert buffer.sample()["index"].shape == (5,)


def test_overwritten_rows_lose_their_priority():
    buffer = made(size=4)
    buffer.extend(batch(4))
    buffer.update_priority(torch.arange(4), torch.tensor([0.0, 0.0, 3.0, 0.0]))
    assert set(buffer.sample()["x"].tolist()) == {2}
    buffer.extend(batch(3, 10))
    assert stored(buffer).tolist() == [3, 3, 3, 0]


def test_emptied_buffers_are_like_new_ones():
    buffer = made(size=6)
    buffer.extend(batch(6))
    buffer.update_priority(torch.arange(6), torch.full((6,), 7.0))
    buffer.empty()
    with pytest.raises(ContractError, match="empty"):
        buffer.sample()
    with pytest.raises(IndexError, match="0 rows"):
        buffer.update_priority(torch.tensor([0]), torch.ones(1))
    buffer.extend(batch(2, 10))
    assert buffer.sampler._tree.get(torch.arange(6)).tolist() == [1, 1, 0, 0, 0, 0]
    assert set(buffer.sample()["x"].tolist()) == {10, 11}


def test_alpha_and_beta_may_be_set():
    buffer = made()
    buffer.extend(batch(3))
    buffer.update_priority(torch.arange(3), torch.tensor([1.0, 2.0, 3.0]))
    buffer.alpha, buffer.beta = 2.0, 0.0
    assert stored(buffer).tolist() == [1, 4, 9]
    assert (buffer.alpha, buffer.beta) == (buffer.sampler.alpha, buffer.sampler.beta) == (2.0, 0.0)
    assert (buffer.sample()["priority_weight"] == 1).all()


def test_all_zero_is_said():
    buffer = made()
    buffer.extend(batch(3))
    buffer.update_priority(torch.arange(3), torch.zeros(3))
    with pytest.raises(ContractError, match="eps above zero"):
        buffer.sample()


# ---------------------------------------------------------------------- batches on their way


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_an_update_reaches_the_draws_after_it(ahead):
    """Batches on their way keep rows and weights of their draw; the next draw knows the new priorities."""
    buffer = made(prefetch=ahead)
    buffer.extend(batch(50))
    buffer.sample()
    buffer.update_priority(torch.arange(50), torch.cat([torch.tensor([5.0]), torch.zeros(49)]))
    for _ in range(ahead):
        sample = buffer.sample()
        assert len(set(sample["x"].tolist())) > 1
        assert (sample["priority_weight"] == 1).all()
    assert set(buffer.sample()["x"].tolist()) == {0}


def test_an_update_for_a_row_that_was_overwritten_meanwhile_is_that_of_the_new_row():
    buffer = made(size=10, prefetch=1)
    buffer.extend(batch(10))
    sample = buffer.sample()
    buffer.extend(batch(10, 100))
    buffer.update_priority(sample["index"], torch.full((16,), 4.0))
    assert (stored(buffer)[sample["index"]] == 4).all()
    assert (buffer[sample["index"]]["x"] >= 100).all()


@both
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage], ids=lambda s: s.__name__)
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_resumed_buffer_goes_on_as_the_first_would(kind, storage, ahead, tmp_path):
    def step(buffer, i):
        sample, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], torch.sin(sample["x"] * (i + 1.0)))
        if i % 3 == 0:
            buffer.extend(batch(7, 1000 * i))
        if i == 4:
            buffer.alpha, buffer.beta = 0.3, 0.9
        return sample["x"], info["index"], info["priority_weight"]

    def new():
        return made(kind, 60, storage, prefetch=ahead, alpha=0.6, beta=0.4, eps=1e-6)

    first, second = new(), new()
    first.extend(batch(40))
    for i in range(10):
        step(first, i)
    first.dumps(tmp_path)
    second.loads(tmp_path)
    assert (second.alpha, second.beta) == (0.3, 0.9)
    for i in range(10, 25):
        for one, two in zip(step(first, i), step(second, i), strict=True):
            assert torch.equal(one, two)
    first.alpha = second.alpha = 0.8
    assert torch.equal(stored(first), stored(second))


def test_a_wrong_number_of_priorities_is_refused():
    buffer = made()
    buffer.extend(batch(5))
    with pytest.raises(ShapeError, match="3 indices"):
        buffer.update_priority(torch.arange(3), torch.ones(2))
