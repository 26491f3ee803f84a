"""Row gather in C against plain indexing, and its fallbacks to torch."""

import copy
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from rl.core.registry import Registry

# calls of C are counted below the class that rl-replay would be given
from rl.native import _rows as _gather
from rl.native._library import library
from rl.native._rows import NativeRowGather
from rl.plugins import native as plugin
from rl.testing import check_row_gather

pytestmark = pytest.mark.skipif(library() is None, reason="the library is not built")


def counted(monkeypatch):
    """How often C is called from here on."""
    calls, entry = [], _gather._entry()
    monkeypatch.setattr(_gather, "_entry", lambda: lambda job: calls.append(job) or entry(job))
    return calls


def test_it_conforms_to_the_protocol():
    check_row_gather(NativeRowGather)


def test_rows_longer_than_the_prefetched_bytes():
    tensors = [torch.randint(0, 255, (90, size), dtype=torch.uint8) for size in (255, 256, 257, 5000)]
    index = torch.randint(90, (77,))
    for found, tensor in zip(NativeRowGather(tensors).rows(90, index), tensors, strict=True):
        assert torch.equal(found, tensor[index])


def test_other_index_tensors_use_torch(monkeypatch):
    calls, tensor = counted(monkeypatch), torch.arange(20)
    gather = NativeRowGather([tensor])
    assert gather.rows(20, torch.tensor([3, 1]))[0].tolist() == [3, 1]
    assert len(calls) == 1
    assert gather.rows(20, torch.tensor([3, 1], dtype=torch.int32))[0].tolist() == [3, 1]
    assert gather.rows(20, torch.arange(6)[::2])[0].tolist() == [0, 2, 4]
    assert gather.runs(20, torch.arange(6)[::2], 2)[0].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(IndexError):
        gather.rows(2, torch.arange(6)[::2])
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_dtypes_use_torch(dtype):
    tensor = torch.arange(20).to(dtype)
    gather = NativeRowGather([tensor])
    assert gather.rows(20, torch.tensor([3, 1], dtype=torch.int32))[0].tolist() == [3, 1]
    assert gather.runs(20, torch.arange(4)[::2], 2)[0].tolist() == [0, 1, 2, 3]


def test_nothing_outside_the_tensors_is_read_if_written_is_too_large():
    gather = NativeRowGather([torch.arange(20)[:5]])
    with pytest.raises(IndexError, match=r"index 5 is outside \[0, 5\)"):
        gather.rows(20, torch.tensor([5]))
    with pytest.raises(IndexError, match=r"index 4 is outside \[0, 4\)"):
        gather.runs(20, torch.tensor([4]), 2)


def test_invalid_arguments_are_named():
    gather = NativeRowGather([torch.arange(20)])
    with pytest.raises(IndexError, match=r"index 12 is outside \[0, 12\)"):
        gather.rows(12, torch.tensor([3, 12, 90]))
    with pytest.raises(IndexError, match=r"index 9 is outside \[0, 9\); a run has 4 rows"):
        gather.runs(12, torch.tensor([8, 9]), 4)


def test_threads_of_torch_copy_large_samples(monkeypatch):
    calls, before = counted(monkeypatch), torch.get_num_threads()
    gather, index = NativeRowGather([torch.zeros(100, 1000)]), torch.randint(100, (_gather._LARGE // 4000 + 1,))
    try:
        for threads, expected in ((3, 0), (2, 1), (1, 1)):
            torch.set_num_threads(threads)
            calls.clear()
            assert gather.rows(100, index)[0].shape == (len(index), 1000)
            assert len(calls) == expected
    finally:
        torch.set_num_threads(before)


def test_compiled_graphs_see_operators():
    tensor = torch.arange(20.0)
    gather = NativeRowGather([tensor])
    compiled = torch.compile(lambda index: gather.rows(20, index)[0] + 1, fullgraph=True, backend="eager")
    assert compiled(torch.tensor([4, 2])).tolist() == [5, 3]


def test_fakes_stay_fakes():
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = NativeRowGather([torch.zeros(20, 3)]).rows(20, torch.zeros(4, dtype=torch.long))
    assert found[0].shape == (4, 3)


def test_copies_are_on_the_cpu_whatever_the_default_device_is():
    gather, index = NativeRowGather([torch.arange(5)]), torch.tensor([3])
    with torch.device("meta"):
        assert gather.rows(5, index)[0].tolist() == [3]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda gather: pickle.loads(pickle.dumps(gather))])
def test_a_copy_holds_copies_of_the_rows(again):
    tensor = torch.arange(5)
    gather = again(NativeRowGather([tensor]))
    tensor.zero_()
    assert gather.rows(5, torch.tensor([3]))[0].tolist() == [3]


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.zeros(3, 4).t()],
        [torch.zeros(4, 2, 3).transpose(1, 2)],
        [torch.zeros(3, device="meta")],
        [torch.zeros(3), torch.zeros(3, dtype=torch.complex64).conj()],
        [torch.zeros(3, requires_grad=True)],
        [torch.zeros(3).to_sparse()],
        [torch.zeros(())],
        [TwoTensor(torch.zeros(3), torch.ones(3))],  # it has no memory of its own
    ],
)
def test_the_hook_gives_none_for_unsupported_tensors(tensors):
    assert plugin.rl_row_gather(tensors) is None


def test_the_hook_selects_it():
    registry = Registry()
    registry.register(plugin, "native")
    found = registry.answer("rl_row_gather", tensors=[torch.zeros(3)]).value
    assert isinstance(found, NativeRowGather)
    assert "compiled C" in found.why


def test_the_hook_gives_none_without_the_library(monkeypatch):
    monkeypatch.setattr("rl.native._library.library", lambda: None)
    assert plugin.rl_row_gather([torch.zeros(3)]) is None
