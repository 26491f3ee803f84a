"""Arguments that share memory raise before anything is written, compiled or not."""

import pytest
import torch

from rl.core.errors import ArgumentError
from rl.native import NativePriorityTree

_ops = torch.ops.rl_native


ROWS, N = 400, 4


def _place(tree, start, size, dtype):
    """A view of bytes of the tree."""
    return tree.buffer[start : start + size * dtype.itemsize].view(dtype)


def _leaves(tree):
    return _place(tree, tree.buffer.numel() - 512 * tree.dtype.itemsize, ROWS, tree.dtype)


def _errors(tree, **given):
    call = {"index": torch.arange(N), "error": torch.full((N,), 9.0, dtype=tree.dtype), "raw": None, "largest": None}
    call |= given
    tree.update_from_errors(call.pop("index"), call.pop("error"), 0.1, 0.6, **call)


def _operator(tree, **given):
    call = {"index": torch.arange(N), "error": torch.full((N,), 9.0, dtype=tree.dtype), "raw": None, "largest": None}
    call |= given
    beside = call["raw"], call["largest"]
    _ops.tree_set_errors(tree.buffer, call["index"], call["error"], 0.1, 0.6, *beside, tree.capacity)


PAIRS = {
    "raw, index": lambda t, raw: {"raw": raw, "index": raw.view(torch.int64)[:N]},
    "raw, last index": lambda t, raw: {"raw": raw, "index": raw.view(torch.int64)[-1:], "error": raw.new_ones(1)},
    "raw, error": lambda t, raw: {"raw": raw, "error": raw[1 : N + 1]},
    "raw, one error": lambda t, raw: {"raw": raw, "error": raw[5]},
    "raw, all errors": lambda t, raw: {"raw": raw, "error": raw, "index": torch.arange(ROWS)},
    "largest, error": lambda t, raw: {"largest": raw[2], "error": raw[:N]},
    "largest, one error": lambda t, raw: {"largest": raw[2], "error": raw[2]},
    "largest, index": lambda t, raw: {"largest": raw[N - 1], "index": raw.view(torch.int64)[:N]},
    "largest, raw": lambda t, raw: {"largest": raw[-1], "raw": raw},
    "raw, tree": lambda t, raw: {"raw": _leaves(t)},
    "largest, total": lambda t, raw: {"largest": _place(t, 24, 1, t.dtype)[0]},
    "index, leaves": lambda t, raw: {"index": _leaves(t).view(torch.int64)[:N]},
    "index, head": lambda t, raw: {"index": _place(t, 8, 2, torch.int64), "error": raw.new_ones(2)},
    "error, leaves": lambda t, raw: {"error": _leaves(t)[:N]},
    "one error, last leaf": lambda t, raw: {"error": _leaves(t)[-1]},
}


def _made(dtype):
    tree, raw = NativePriorityTree(ROWS, dtype=dtype), torch.zeros(ROWS, dtype=dtype)
    tree.update(torch.arange(ROWS), torch.full((ROWS,), 0.0, dtype=dtype))
    return tree, raw


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("call", [_errors, _operator])
@pytest.mark.parametrize("pair", PAIRS)
def test_arguments_that_share_memory_raise(pair, call, dtype):
    tree, raw = _made(dtype)
    before = tree.buffer.clone()
    with pytest.raises(ArgumentError, match=r"share memory.*clone.*nothing was written"):
        call(tree, **PAIRS[pair](tree, raw))
    assert torch.equal(tree.buffer, before)
    assert not raw.any()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("pair", PAIRS)
def test_compiled_calls_raise_too(pair, backend):
    tree, raw = _made(torch.float64)
    before = tree.buffer.clone()
    torch.compiler.reset()
    compiled = torch.compile(lambda t, r: _errors(t, **PAIRS[pair](t, r)), fullgraph=True, backend=backend)
    with pytest.raises((RuntimeError, ArgumentError), match=r"share memory.*clone"):  # wrapped, while it is traced
        compiled(tree, raw)
    assert torch.equal(tree.buffer, before)
    assert not raw.any()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graph_that_was_compiled_for_others_refuses_it_or_reads_before_it_writes(backend):
    (tree, raw), (plain, beside) = _made(torch.float64), _made(torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(_errors, fullgraph=True, backend=backend)
    error = torch.tensor([1.0, -2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    compiled(tree, raw=raw, error=error, index=torch.arange(5))
    _errors(plain, raw=beside, error=error, index=torch.arange(5))
    index = torch.tensor([1, 2, 3, 4, 0])
    if backend == "eager":
        with pytest.raises(ArgumentError, match=r"share memory.*clone"):
            compiled(tree, raw=raw, error=raw[:5], index=index)
    else:  # the compiler gives the operator copies
        compiled(tree, raw=raw, error=raw[:5], index=index)
        _errors(plain, raw=beside, error=beside[:5].clone(), index=index)
    assert torch.equal(tree.buffer, plain.buffer)
    assert torch.equal(raw, beside)


@pytest.mark.parametrize("call", [NativePriorityTree.update, lambda t, i, p: _ops.tree_set(t.buffer, i, p)])
def test_priorities_and_indices_inside_of_the_tree_are_refused(call):
    tree, _ = _made(torch.float64)
    before = tree.buffer.clone()
    for index, value in (
        (torch.arange(N), _leaves(tree)[1 : N + 1]),
        (torch.arange(N), _leaves(tree)[-1]),
        (_leaves(tree).view(torch.int64)[:N], torch.ones(N, dtype=torch.float64)),
    ):
        with pytest.raises(ArgumentError, match=r"the (indices|values) and the tree share memory"):
            call(tree, index, value)
    assert torch.equal(tree.buffer, before)


def test_copied_empty_or_adjacent_arguments_are_accepted():
    tree, _ = _made(torch.float32)
    room = torch.ones(2 + ROWS + N)
    raw, largest, error = room[1 : ROWS + 1], room[0], room[ROWS + 1 : ROWS + 1 + N]
    index = torch.arange(N)
    tree.update_from_errors(index, error, 0.0, 1.0, raw=raw, largest=largest)  # neighbours
    tree.update_from_errors(index, room[: 2 * N : 2] * 1, 0.0, 1.0, raw=raw)
    tree.update_from_errors(index, raw[: 2 * N : 2], 0.0, 1.0, raw=raw)  # copied, because C reads dense ones
    tree.update_from_errors(index, raw[0].expand(N), 0.0, 1.0, raw=raw)
    tree.update_from_errors(index[:0], raw[:0], 0.0, 1.0, raw=raw)
    tree.update_from_errors(torch.tensor([1, 2]), index.view(torch.float32)[:2], 0.5, 1.0)  # read twice, not written
    wide, beside = NativePriorityTree(ROWS, dtype=torch.float64), torch.ones(ROWS, dtype=torch.float64)
    wide.update_from_errors(index, beside[:N].float(), 0.0, 1.0, raw=beside)
    assert tree.get(torch.tensor([0, 3])).tolist() == [1, 1]
