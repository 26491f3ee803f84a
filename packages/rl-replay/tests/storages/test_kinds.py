"""Rows that are not TensorDicts in tensor storages: tensorclasses, dicts and other PyTrees."""

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict, tensorclass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from rl.core.errors import CheckpointError, ContractError, RLError, ShapeError
from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorStorage,
)


class Point(NamedTuple):
    x: torch.Tensor
    y: Any


@tensorclass
class Inner:
    z: torch.Tensor


@tensorclass
class Step:
    a: torch.Tensor
    inner: Inner
    label: str


def numbers(n, start=0):
    return torch.arange(start, start + n)


def rows(n, start=0):
    x = numbers(n, start)
    return x, x.double().unsqueeze(-1).expand(n, 3) + 0.5, (x % 2).bool()


def a_tensorclass(n, start=0):
    x, y, _ = rows(n, start)
    return Step(a=x, inner=Inner(z=y, batch_size=[n]), label="left", batch_size=[n])


def a_dict(n, start=0):
    x, y, z = rows(n, start)
    return {"next": {"obs": y, "done": z}, "obs": x, 30: x + 1}


def a_tuple(n, start=0):
    x, y, z = rows(n, start)
    return x, [y, ()], {"flag": z, "td": TensorDict(x=x, inner=TensorDict(y=y, batch_size=[n]), batch_size=[n])}


def a_named_tuple(n, start=0):
    x, y, z = rows(n, start)
    return Point(x, {"y": Point(y, (z,))})


def a_registered_node(n, start=0):
    x, y, z = rows(n, start)
    return OrderedDict(last=x, first=(y, z))


def a_tuple_of_tensorclasses(n, start=0):
    return a_tensorclass(n, start), numbers(n, start)


MAKERS = [a_tensorclass, a_dict, a_tuple, a_named_tuple, a_registered_node, a_tuple_of_tensorclasses]
PLAIN = [a_dict, a_tuple]
NAMED = [make for make in MAKERS if make not in PLAIN]
every_kind = pytest.mark.parametrize("make", MAKERS)


def assert_same(found, expected):
    """Same types, structure and bits."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, TensorDict):
        assert found.batch_size == expected.batch_size
        assert list(found.keys()) == list(expected.keys())
        assert (found == expected).all()
    elif isinstance(expected, Step):
        assert type(found.inner) is Inner
        assert found.batch_size == expected.batch_size
        assert torch.equal(found.a, expected.a)
        assert torch.equal(found.inner.z, expected.inner.z)
        assert set(flat(found.label)) == {"left"}
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    else:
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)


def flat(label):
    return [label] if isinstance(label, str) else [part for one in label for part in flat(one)]


def at(data, index):
    """The rows of a batch, or of a ring, by the definition of a PyTree."""
    return tree_map(lambda part: part[index], data, is_leaf=lambda part: hasattr(part, "batch_size"))


@every_kind
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
def test_what_comes_out_is_what_went_in(make, storage, sampler):
    buffer = ReplayBuffer(storage=storage(5), sampler=sampler(), batch_size=4)
    assert buffer.extend(make(3)).tolist() == [0, 1, 2]
    assert_same(buffer[:], make(3))
    buffer.extend(make(4, start=3))  # wraps around
    ring = [5, 6, 2, 3, 4]
    everything = make(7)
    assert_same(buffer[:], at(everything, torch.tensor(ring)))
    assert_same(buffer[1], at(everything, 6))
    assert_same(buffer[[4, 0]], at(everything, torch.tensor([4, 5])))
    batch, info = buffer.sample(return_info=True)
    assert_same(batch, at(everything, torch.tensor(ring)[info["index"]]))
    buffer.extend(batch)  # what came out goes in
    assert int(buffer.add(at(everything, 0))) == 1
    assert_same(buffer[1], at(everything, 0))
    buffer[0] = at(everything, 2)
    assert_same(buffer[0], at(everything, 2))


@every_kind
def test_a_list_is_a_list_of_rows(make):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    everything = make(3)
    buffer.extend([at(everything, row) for row in range(3)])
    assert_same(buffer[:], everything)


@every_kind
def test_an_existing_batch_is_a_storage(make):
    assert_same(ReplayBuffer(storage=TensorStorage(make(4)))[:], make(4))


def test_two_leading_dimensions_count_elements():
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    x = torch.arange(6).view(2, 3)
    index = buffer.extend((x, {"y": x.double().unsqueeze(-1)}))
    assert index.tolist() == [0, 2, 4, 1, 3, 5]
    assert_same(buffer[index], (torch.arange(6), {"y": torch.arange(6).double().unsqueeze(-1)}))
    with pytest.raises(ShapeError, match=r"at least 2 leading dimension\(s\) at 1.y, got the shape \[2\]"):
        buffer.extend((x, {"y": torch.zeros(2)}))
    assert len(buffer) == 6


def test_compact_rows_may_be_dicts():
    def batch(n):
        x = torch.arange(float(n + 1)).unsqueeze(-1)
        return {"x": x[:-1], "next": {"x": x[1:], "done": torch.zeros(n, 1).bool()}}

    storage = LazyTensorStorage(8, compact=True)
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(batch(5))
    assert_same(buffer[:], batch(5))


def test_tensorclasses_in_a_list():
    storage = ListStorage(9)
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    first = a_tensorclass(4)
    buffer.extend(first)
    buffer.add(a_tensorclass(1, start=4)[0])
    buffer.extend(list(a_tensorclass(3, start=5)))
    first.a.zero_()  # rows are copies
    assert isinstance(buffer.sample(), Step)
    assert buffer[:].a.tolist() == list(range(8))
    assert buffer[2].inner.z.tolist() == [2.5] * 3
    assert storage.columns(["a"], torch.tensor([3, 1]))["a"].tolist() == [3, 1]
    with pytest.raises(ContractError, match="was a Step, got a TensorDict"):
        buffer.extend(first.to_tensordict())
    with pytest.raises(CheckpointError, match="Step"):
        buffer.state_dict()


WRONG = {
    "tuple for a dict": (a_dict, a_tuple, "the first batch was a dict, got a tuple"),
    "TensorDict for a dict": (
        a_dict,
        lambda n: TensorDict(obs=numbers(n), batch_size=[n]),
        "a dict, got a TensorDict",
    ),
    "dict for a TensorDict": (
        lambda n: TensorDict(x=numbers(n), batch_size=[n]),
        lambda n: {"x": numbers(n)},
        "was a TensorDict, got a dict",
    ),
    "dict for a tensor": (numbers, a_dict, "was a tensor, got a dict"),
    "tuple for a named tuple": (a_named_tuple, lambda n: tuple(a_named_tuple(n)), "Point, got a tuple"),
    "deeper": (a_tuple, lambda n: (a_tuple(n)[0], tuple(a_tuple(n)[1]), a_tuple(n)[2]), "'1' was a list, got a tuple"),
    "other keys of a class": (
        a_registered_node,
        lambda n: OrderedDict(last=numbers(n), other=rows(n)[1:]),
        "OrderedDict, got a OrderedDict with other keys",
    ),
    "missing key": (a_dict, lambda n: {"obs": numbers(n), 30: numbers(n), "next": {}}, r"misses \('next', 'obs'\)"),
    "number of rows": (a_tuple, lambda n: (numbers(n + 1), *a_tuple(n)[1:]), r"got \[5\] at 0 and \[4\] at 1.0"),
    "dtype": (lambda n: (numbers(n),), lambda n: (numbers(n).float(),), "'0' was int64"),
    "no tensor": (lambda n: {"x": numbers(n)}, lambda n: {"x": "left"}, "expected tensors at x, got str.*ListStorage"),
    "tensor for a dict": (a_dict, numbers, "holds batches of the kind dict, got plain tensors"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_another_structure_is_refused_before_anything_is_written(case, storage):
    first, wrong, text = WRONG[case]
    buffer = ReplayBuffer(storage=storage(9))
    buffer.extend(first(4))
    before = buffer[:]
    with pytest.raises(RLError, match=text):
        buffer.extend(wrong(4))
    assert len(buffer) == 4
    assert_same(buffer[:], before)
    assert buffer.extend(first(4)).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({}, "this dict has no tensors"),
        ((torch.ones(3), 5), "expected tensors at 1, got int"),
        ({"a": None}, "expected tensors at a, got NoneType"),
        ({1: torch.ones(3), "1": torch.ones(3)}, "different strings and integers"),
        ({(1, 2): torch.ones(3)}, "different strings and integers"),
        ((torch.ones(3), torch.ones(())), r"at least 1 leading dimension\(s\) at 1"),
        ((torch.ones(0), torch.ones(0)), "without rows"),
        ([], "without rows"),
        ([{"x": torch.ones(2)}, {"y": torch.ones(2)}], "rows of a list differ"),
        ([(torch.ones(2),), (torch.ones(3),)], "cannot be stacked"),
        ([[torch.ones(2)]], "a row is a list"),
    ],
)
def test_a_first_batch_that_cannot_be_stored_is_refused(batch, text):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    with pytest.raises(RLError, match=text):
        buffer.extend(batch)
    assert len(buffer) == 0
    buffer.extend((torch.ones(3),))


def filled(make, folder=None):
    storage = LazyTensorStorage(5) if folder is None else LazyMemmapStorage(5, scratch_dir=folder)
    buffer = ReplayBuffer(storage=storage, batch_size=2)
    buffer.extend(make(4))
    buffer.extend(make(3, start=4))
    return buffer


@pytest.mark.parametrize("make", PLAIN)
def test_a_state_of_dicts_and_tuples_restores_them(make, tmp_path):
    buffer = filled(make)
    buffer.dumps(tmp_path)
    for load in (lambda new: new.load_state_dict(buffer.state_dict()), lambda new: new.loads(tmp_path)):
        new = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)
        load(new)
        assert_same(new[:], buffer[:])
        assert new.extend(make(1)).tolist() == [2]
        with pytest.raises(RLError):
            new.extend(TensorDict(obs=numbers(1), batch_size=[1]))


@pytest.mark.parametrize("make", NAMED)
def test_a_state_of_classes_needs_one_row_of_them(make, tmp_path):
    buffer = filled(make)
    buffer.dumps(tmp_path)
    new = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)
    with pytest.raises(CheckpointError, match="Write one such row into the buffer"):
        new.loads(tmp_path)
    assert len(new) == 0
    new.extend(make(1))
    new.loads(tmp_path)
    assert_same(new[:], buffer[:])


@pytest.mark.parametrize("make", [a_dict, lambda n, start=0: (numbers(n, start), [rows(n, start)[1]])])
def test_rows_in_files_are_opened_again_as_what_they_were(make, tmp_path):
    buffer = filled(make, tmp_path)
    buffer.dumps(tmp_path)
    again = ReplayBuffer(storage=LazyMemmapStorage(5, scratch_dir=tmp_path, existsok=True), batch_size=2)
    again.loads(tmp_path)
    assert_same(again[:], buffer[:])
    assert again.extend(make(1)).tolist() == [2]


def test_rows_of_a_class_in_files_are_not_opened_again(tmp_path):
    buffer = filled(a_named_tuple, tmp_path / "rows")
    buffer.dumps(tmp_path / "rows")
    with pytest.raises(CheckpointError, match="Point, which files only name"):
        LazyMemmapStorage(5, scratch_dir=tmp_path / "rows", existsok=True)
    other = ReplayBuffer(storage=LazyMemmapStorage(5, scratch_dir=tmp_path / "other"), batch_size=2)
    other.extend(a_named_tuple(1))
    other.loads(tmp_path / "rows")
    assert_same(other[:], buffer[:])


def test_a_shared_buffer_takes_dicts_and_refuses_classes():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), shared=True)
    with pytest.raises(ContractError, match=r"Point cannot be shared between processes"):
        buffer.extend(a_named_tuple(3))
    buffer.extend(a_dict(3))
    assert_same(buffer[:], a_dict(3))


def test_prefetched_batches_keep_their_structure():
    def make():
        generator = torch.Generator().manual_seed(0)
        return ReplayBuffer(storage=LazyTensorStorage(9), batch_size=3, prefetch=2, generator=generator)

    first, second = make(), make()
    first.extend(a_dict(9))
    first.sample()
    second.load_state_dict(first.state_dict())
    assert_same(second.sample(), first.sample())

    named = make()
    named.extend(a_named_tuple(9))
    named.sample()
    with pytest.raises(CheckpointError, match="a prefetched batch is of the class Point"):
        named.state_dict()


def test_transforms_map_what_comes_out():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(9), batch_size=4, transform=lambda batch: tree_map(lambda part: part + 1, batch)
    )
    buffer.extend((numbers(3), {"x": numbers(3)}))
    found, info = buffer.sample(return_info=True)
    assert_same(found, (info["index"] + 1, {"x": info["index"] + 1}))


def test_gradients_are_not_stored():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    x = torch.ones(2, requires_grad=True)
    buffer.extend({"x": x * 2})
    assert not buffer[:]["x"].requires_grad
    assert tree_flatten(buffer[:])[1] == tree_flatten({"x": x})[1]
    assert len(tree_leaves(buffer[:])) == 1


def test_slices_of_dicts_are_refused():
    buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2), batch_size=4)
    with pytest.raises(ContractError, match="rows of type dict have no entries: store TensorDicts"):
        buffer.extend({"next": {"done": torch.zeros(4, 1).bool()}})
