"""Functions of C that take tensors as they are, and what takes their place where there are none."""

import copy
import ctypes
import gc
import pickle
import resource
import sys
import threading
from pathlib import Path

import pytest
import torch

from rl.core.errors import ShapeError
from rl.native import NativePriorityTree, _calls
from rl.native._recurrence import NativeRecurrence

NAMES = ("returns", "new_returns", "tree_set", "tree_set_errors", "tree_new_sample")
SIZES = pytest.mark.parametrize(
    "steps", [1, 7, 2_000, 5_000], ids="{} steps".format
)  # beside other threads from 16,384 on


@pytest.fixture
def without(monkeypatch):
    """As if PyTorch offered no table of DLPack functions."""
    monkeypatch.setattr(_calls, "_found", dict)


def batch(steps):
    g = torch.Generator().manual_seed(0)
    value, following, reward, ratio = torch.randn(4, 5, steps, 1, generator=g).unbind()
    done = torch.rand(5, steps, 1, generator=g) < 0.1
    return {"ratio": ratio.exp(), "values": (value, following, reward, done, done & (reward > 0))}


def returns(steps):
    recurrence, b = NativeRecurrence(), batch(steps)
    value, following, reward, done, terminated = b["values"]
    return (
        *recurrence.gae(0.9, 0.8, *b["values"], 1),
        recurrence.td_lambda(0.9, 0.8, following, reward, done, terminated, 1),
        *recurrence.vtrace(0.9, 0.8, b["ratio"], *b["values"], 1),
        recurrence(value, b["ratio"], 1),
    )


def draws():
    tree, g = NativePriorityTree(10_000), torch.Generator().manual_seed(0)
    raw, largest = torch.zeros(10_000), torch.ones(())
    for n in (2, 5_000):
        index = torch.randint(0, 10_000, (n,), generator=g)
        tree.update(index, torch.rand(n, generator=g))
        tree.update_from_errors(
            index.flip(0), torch.randn(n, generator=g), 1e-6, 0.6, raw=raw, largest=largest, rows=None
        )
    drawn = [*tree.sample(64, generator=g), *tree.sample_weighted(5_000, 0.4, generator=g, stratified=True)]
    return tree.buffer, raw, largest, *drawn


def test_this_pytorch_offers_what_the_functions_need():
    assert all(type(_calls.function(name, None)).__name__ == "builtin_function_or_method" for name in NAMES)
    assert not _calls.why_slower()


@SIZES
def test_returns_are_the_same_without_them(request, steps):
    expected = returns(steps)
    request.getfixturevalue("without")
    assert NativeRecurrence()._run(0) is False
    assert NativeRecurrence()._new(0) is None
    torch.testing.assert_close(returns(steps), expected, rtol=0, atol=0)


def test_trees_are_the_same_without_them(request):
    expected = draws()
    request.getfixturevalue("without")
    assert NativePriorityTree(3)._set(0) == -1
    torch.testing.assert_close(draws(), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "table", [None, "no capsule", torch._C._to_dlpack(torch.ones(1))], ids=["none", "text", "other"]
)
def test_a_table_of_another_kind_is_not_called(monkeypatch, table):
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", table)
    assert _calls._found.__wrapped__() == {}


def test_what_others_declared_of_python_stays():
    before = ctypes.pythonapi.PyCapsule_GetPointer.argtypes
    _calls._found.__wrapped__()
    assert ctypes.pythonapi.PyCapsule_GetPointer.argtypes is before


def test_what_is_missing_is_told(without):
    assert "DLPack" in NativeRecurrence().why
    assert "DLPack" in NativePriorityTree(3).why


def test_copies_work():
    first, *_ = returns(7)
    for made in (copy.deepcopy(NativeRecurrence()), pickle.loads(pickle.dumps(NativeRecurrence()))):
        torch.testing.assert_close(made.gae(0.9, 0.8, *batch(7)["values"], 1)[0], first, rtol=0, atol=0)


def test_no_reference_is_lost_or_kept():
    recurrence, values = NativeRecurrence(), batch(7)["values"]
    tree, index, error = NativePriorityTree(9), torch.arange(9), torch.rand(9)
    watched = (*values, index, error, tree.buffer, torch.Tensor, "requires_grad", None, True, False)

    def often():
        for _ in range(500):
            recurrence.gae(0.9, 0.8, *values, 1)
            assert recurrence.gae(0.9, 0.8, *values[:-1], error, 1) is None
            tree.update(index, error)
            tree.update_from_errors(index, error, 1e-6, 0.6)
            tree.sample_weighted(3, 0.4)

    def change():
        gc.collect()
        before = [sys.getrefcount(x) for x in watched]
        often()
        gc.collect()
        return [abs(sys.getrefcount(x) - y) for x, y in zip(watched, before, strict=True)]

    often()
    rounds = [change() for _ in range(4)]
    # A reference lost in a call is lost 500 times in every round. Python and other threads hold more or fewer
    # references to constants in some rounds.
    assert max(map(min, zip(*rounds, strict=True))) < 100


@pytest.mark.parametrize("number", ["rho_bar", "c_bar"])
def test_a_coefficient_that_is_no_number_is_refused_before_anything_is_written(number):
    b, out = batch(7), (torch.zeros(5, 7, 1), torch.zeros(5, 7, 1))
    with pytest.raises(TypeError):
        NativeRecurrence().vtrace(0.9, 0.8, b["ratio"], *b["values"], 1, out=out, **{number: "one"})
    assert not any(x.any() for x in out)
    returns(7)  # no exception was left behind


@pytest.mark.parametrize("dim", [2**70, -(2**70)])
def test_a_dimension_too_large_for_c_is_none_like_any_other(dim):
    one, done = torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ShapeError, match=f"time_dim is {dim}"):
        NativeRecurrence()(one, one, dim)
    with pytest.raises(ShapeError, match=f"time_dim is {dim}"):
        NativeRecurrence().gae(0.5, 0.5, one, one, one, done, None, dim)


def test_an_output_that_shares_memory_until_it_is_written_is_its_own_then():
    shared = torch.zeros(5, 7, 1)
    out = torch._lazy_clone(shared), torch._lazy_clone(shared)
    found = NativeRecurrence().gae(0.9, 0.8, *batch(7)["values"], 1, out=out)
    torch.testing.assert_close(found, returns(7)[:2], rtol=0, atol=0)
    assert not shared.any()


def test_threads_call_at_once():
    expected, found = returns(5_000), {}

    def call(name):
        found[name] = [returns(5_000) for _ in range(5)]

    threads = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found.values():
        for result in results:
            torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert len(found) == 4


def test_outputs_are_tensors_like_any_other():
    first, second = NativeRecurrence().gae(0.9, 0.8, *batch(7)["values"], 1)
    expected = first.clone(), second.clone()
    again = returns(7)
    assert len({x.untyped_storage().data_ptr() for x in (first, second, *again)}) == 2 + len(again)
    for x, y in zip((first, second), expected, strict=True):
        about = type(x), x.is_contiguous(), x.data_ptr() % 64, x.requires_grad, x.is_inference(), x._version
        assert about == (torch.Tensor, True, 0, False, False, 0)
        gc.collect()
        found = [x, x.view(-1).view_as(x), torch.from_numpy(x.numpy()), copy.deepcopy(x), pickle.loads(pickle.dumps(x))]
        torch.testing.assert_close([*found, x.clone().share_memory_()], [y] * 6, rtol=0, atol=0)
        x.share_memory_()
        assert x.is_shared()
        x.requires_grad_().sum().backward()
        assert torch.equal(x.grad, torch.ones_like(y))
        with torch.no_grad():
            x.mul_(2)
        assert torch.equal(x, 2 * y)
    with torch.inference_mode():
        assert all(x.is_inference() for x in NativeRecurrence().gae(0.9, 0.8, *batch(7)["values"], 1))


def test_a_view_keeps_memory_and_the_last_one_gives_it_back():
    recurrence = NativeRecurrence()
    big = torch.ones(64, 16_384, 1)  # 4 MiB
    done = torch.zeros_like(big, dtype=torch.bool)
    views = [recurrence.gae(0.0, 0.0, big, big, big, done, None, 1)[1][:, -1] for _ in range(3)]
    assert all(bool((view == 1).all()) for view in views)
    del views
    before = resident()
    for _ in range(100):
        recurrence.td_lambda(0.9, 0.8, big, big, done, None, 1)
    assert resident() - before < 100  # MiB; 400 if nothing were given back


def resident():
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
