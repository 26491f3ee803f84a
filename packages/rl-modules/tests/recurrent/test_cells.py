"""`LSTM`, `GRU` and their cells against those of torch."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl.core import ArgumentError, ShapeError
from rl.modules import GRU, LSTM, GRUCell, LSTMCell
from rl.modules.tensordict_module import rnn

LAYERS = pytest.mark.parametrize(("ours", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)], ids=["lstm", "gru"])
CELLS = pytest.mark.parametrize(("ours", "theirs"), [(LSTMCell, nn.LSTMCell), (GRUCell, nn.GRUCell)])


def test_the_path_that_users_know_has_the_same_objects():
    assert (rnn.LSTM, rnn.GRU, rnn.LSTMCell, rnn.GRUCell) == (LSTM, GRU, LSTMCell, GRUCell)


@LAYERS
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 3}], ids=str)
def test_layers_give_what_torch_gives_with_weights_of_either(ours, theirs, options):
    torch.manual_seed(0)
    one, two = ours(3, 4, **options), theirs(3, 4, batch_first=True, **options)
    assert list(one.state_dict()) == list(two.state_dict())
    one.load_state_dict(two.state_dict())
    two.load_state_dict(one.state_dict())
    x, start = torch.randn(2, 5, 3), torch.randn(options.get("num_layers", 1), 2, 4)
    for hx in (None, (start, start / 2) if ours is LSTM else start):
        assert_close(one(x, hx), two(x, hx))
    alone = None if ours is GRU else (start[:, 0], start[:, 1])
    assert_close(one(x[0], alone), two(x[0], alone))


@LAYERS
def test_a_restart_is_a_new_sequence(ours, theirs):
    torch.manual_seed(0)
    layer, x = ours(3, 4, num_layers=2), torch.randn(2, 5, 3)
    is_init = torch.zeros(2, 5, dtype=torch.bool)
    is_init[:, 2] = True
    out, _ = layer(x, is_init=is_init)
    assert_close(out[:, :2], layer(x[:, :2])[0])
    assert_close(out[:, 2:], layer(x[:, 2:])[0])


@LAYERS
def test_layers_are_copied_and_sent_around(ours, theirs):
    layer, x = ours(3, 4, num_layers=2), torch.randn(2, 5, 3)
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(copy(x), layer(x), rtol=0, atol=0)


@LAYERS
@pytest.mark.parametrize(
    ("options", "what"),
    [({"batch_first": False}, "batch_first"), ({"bidirectional": True}, "future"), ({"proj_size": 2}, "proj_size=2")],
    ids=["time-first", "bidirectional", "projection"],
)
def test_layers_refuse_what_cannot_run_step_by_step(ours, theirs, options, what):
    if ours is GRU and "proj_size" in options:
        pytest.skip("torch's has no such argument either")
    with pytest.raises(ArgumentError, match=what):
        ours(3, 4, **options)


@LAYERS
def test_layers_name_the_shape_they_take(ours, theirs):
    with pytest.raises(ShapeError, match=r"takes \[B, T, 3\]"):
        ours(3, 4)(torch.zeros(2, 5, 4))


@CELLS
@pytest.mark.parametrize("bias", [True, False])
def test_cells_give_what_torch_gives_for_any_batch(ours, theirs, bias):
    torch.manual_seed(0)
    one, two = ours(3, 4, bias=bias), theirs(3, 4, bias=bias)
    one.load_state_dict(two.state_dict())
    x, start = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    hx = (start, start / 2) if ours is LSTMCell else start
    flat = (start.flatten(0, 1), start.flatten(0, 1) / 2) if ours is LSTMCell else start.flatten(0, 1)
    got, want = one(x, hx), two(x.flatten(0, 1), flat)
    if ours is GRUCell:
        got, want = (got,), (want,)
    assert_close(tuple(part.flatten(0, 1) for part in got), tuple(want))
    assert_close(one(x[0]), two(x[0]))


@CELLS
def test_a_cell_restarts_from_zero(ours, theirs):
    cell, x, start = ours(3, 4), torch.randn(2, 3), torch.randn(2, 4)
    hx = (start, start) if ours is LSTMCell else start
    is_init = torch.tensor([[True], [False]])
    got, fresh, kept = cell(x, hx, is_init=is_init), cell(x), cell(x, hx)
    if ours is GRUCell:
        got, fresh, kept = (got,), (fresh,), (kept,)
    for part, new, old in zip(got, fresh, kept, strict=True):
        assert_close(part[0], new[0])
        assert_close(part[1], old[1])


@LAYERS
def test_layers_compile_whole(ours, theirs):
    layer, x = ours(3, 4, num_layers=2), torch.randn(2, 5, 3)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x), layer(x))
    torch.compiler.reset()


I25 = torch.zeros(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"is_init": I25[:, :1]}, r"is_init is torch.bool \(2, 1\), expected bool \(2, 5\)"),
        ({"is_init": I25.unsqueeze(-1)}, r"is_init is .*expected bool \(2, 5\)"),
        ({"is_init": I25.int()}, r"is_init is torch.int32"),
        ({"hx": (torch.zeros(3, 2, 4),) * 2}, r"hx is \(3, 2, 4\), .*expected .*\(2, 2, 4\)"),
        ({"hx": (torch.zeros(2, 1, 4),) * 2}, r"hx is \(2, 1, 4\)"),
        ({"hx": (torch.zeros(2, 2, 4),) * 3}, r"expected (a pair|one tensor)"),
        ({"hx": (torch.zeros(2, 2, 4).double(),) * 2}, r"weights are torch.float32.*float64"),
    ],
)
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_layers_refuse_what_would_broadcast_or_be_cut(kind, arguments, what):
    hx = arguments.get("hx")
    if kind is GRU and hx is not None and len(hx) == 2:
        arguments = {"hx": hx[0]}
    with pytest.raises((ShapeError, ArgumentError), match=what):
        kind(3, 4, num_layers=2)(torch.zeros(2, 5, 3), **arguments)


def test_layers_refuse_what_has_no_step_or_another_type():
    with pytest.raises(ShapeError, match="without steps"):
        LSTM(3, 4)(torch.zeros(2, 0, 3))
    with pytest.raises(ArgumentError, match=r"weights are torch.float32"):
        GRU(3, 4)(torch.zeros(2, 5, 3).double())
    with pytest.raises(ShapeError, match=r"a pair \(h, c\)"):
        LSTM(3, 4)(torch.zeros(2, 5, 3), torch.zeros(1, 2, 4))


@pytest.mark.parametrize(
    ("x", "h", "is_init", "what"),
    [
        ((2, 5, 3), (5, 2, 4), None, r"hx is .*5, 2, 4.*expected \(2, 5, 4\)"),
        ((2, 5, 3), (10, 4), None, r"hx is .*expected \(2, 5, 4\)"),
        ((2, 5, 6), (2, 5, 4), None, r"takes \[\*B, 3\], got \(2, 5, 6\)"),
        ((5, 4, 3), (5, 4, 4), (5, 4), r"is_init is torch.bool \(5, 4\), expected bool \(5, 4, 1\)"),
    ],
)
@pytest.mark.parametrize("kind", [LSTMCell, GRUCell])
def test_cells_refuse_what_would_be_read_as_another_batch(kind, x, h, is_init, what):
    state = torch.zeros(h)
    flags = None if is_init is None else torch.zeros(is_init, dtype=torch.bool)
    with pytest.raises(ShapeError, match=what):
        kind(3, 4)(torch.zeros(x), (state, state) if kind is LSTMCell else state, is_init=flags)
