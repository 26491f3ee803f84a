"""Every function of C that torch can reach refuses what it cannot read."""

import pytest
import torch

from rl.core.errors import ArgumentError, CheckpointError, ShapeError
from rl.native import NativePriorityTree, NativeRecurrence

# rl-modules and rl-replay would check these arguments before C reads them
from rl.native._library import library
from rl.native._recurrent import NativeKernels
from rl.native._rows import NativeRowGather

pytestmark = pytest.mark.skipif(library() is None, reason="the library is not built")

OPS = torch.ops.rl_native
N = 1000
ONES = torch.ones


def freed(tensor, size=0):
    tensor.untyped_storage().resize_(size)
    return tensor


def flags(n, dtype=torch.bool):
    return torch.zeros(n, dtype=dtype)


def coefficients(gammas=None, dim=0):
    return gammas, None, 0.9, 0.9, dim


def tree():
    one = NativePriorityTree(4)
    one.update(torch.arange(4), ONES(4))
    return one


def gae(*, value=None, done=None, terminated=None, gammas=None, dim=0):
    value, done, terminated = (
        default if given is None else given
        for given, default in ((value, ONES(N)), (done, flags(N)), (terminated, flags(N)))
    )
    return OPS.gae(value, ONES(N), ONES(N), done, terminated, *coefficients(gammas, dim))


def lstm(**changed):
    given = {
        "gates": ONES(3, 2, 12), "weight": ONES(12, 3), "h0": ONES(2, 3), "c0": ONES(2, 3), "resets": None,
        "h": ONES(3, 2, 3), "c": ONES(3, 2, 3),
    }  # fmt: skip
    NativeKernels().lstm_forward(*{**given, **changed}.values())


def backward(**changed):
    given = {
        "gates": ONES(3, 2, 12), "weight": ONES(9, 3), "h0": ONES(2, 3), "h": ONES(3, 2, 3), "resets": None,
        "grad_h": ONES(3, 2, 3), "grad_gates": ONES(3, 2, 12), "grad_h0": ONES(2, 3), "grad_reset_h": None,
    }  # fmt: skip
    NativeKernels().gru_backward(*{**given, **changed}.values())


def freed_rows():
    tensor = ONES(4)
    gather = NativeRowGather([tensor])
    freed(tensor)
    return gather.rows(4, torch.zeros(3).long())


SEED, INT32 = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int32)
REFUSED = {
    "shorter weights": (ShapeError, lambda: OPS.linear_recurrence(ONES(N), ONES(1), 0, False)),
    "shorter weights, forward": (ShapeError, lambda: OPS.linear_recurrence(ONES(N), ONES(1), 0, True)),
    "weights of another dtype": (ArgumentError, lambda: OPS.linear_recurrence(ONES(N), ONES(N).double(), 0, False)),
    "integers": (ArgumentError, lambda: OPS.linear_recurrence(ONES(5).long(), ONES(5).long(), 0, False)),
    "a dimension too many": (ShapeError, lambda: OPS.linear_recurrence(ONES(5), ONES(5), 1, False)),
    "a negative one": (ShapeError, lambda: OPS.linear_recurrence(ONES(5), ONES(5), -2, True)),
    "no dimension": (ShapeError, lambda: OPS.linear_recurrence(ONES(()), ONES(()), 0, False)),
    "freed weights": (ArgumentError, lambda: OPS.linear_recurrence(ONES(9), freed(ONES(9)), 0, False)),
    "cut weights": (ArgumentError, lambda: OPS.linear_recurrence(ONES(N), freed(ONES(N), 64), 0, False)),
    "gae, shorter value": (ShapeError, lambda: gae(value=ONES(1))),
    "gae, shorter flags": (ShapeError, lambda: gae(done=flags(1))),
    "gae, float flags": (ArgumentError, lambda: gae(terminated=flags(N, torch.float32))),
    "gae, shorter gammas": (ShapeError, lambda: gae(gammas=ONES(1))),
    "gae, a dimension too many": (ShapeError, lambda: gae(dim=3)),
    "td_lambda, shorter flags": (
        ShapeError,
        lambda: OPS.td_lambda(None, ONES(N), flags(1), flags(1), *coefficients()),
    ),
    "vtrace, shorter ratio": (
        ShapeError,
        lambda: OPS.vtrace(ONES(1), ONES(N), ONES(N), ONES(N), flags(N), flags(N), *coefficients(), 1.0, 1.0),
    ),
    "a buffer without a tree": (
        CheckpointError,
        lambda: OPS.tree_rebuild(torch.zeros(4096, dtype=torch.uint8), torch.float32),
    ),
    "a freed buffer": (
        ArgumentError,
        lambda: OPS.tree_get(freed(tree().buffer.clone()), torch.zeros(1).long(), torch.float32),
    ),
    "a buffer of floats": (ArgumentError, lambda: OPS.tree_set(tree().buffer.view(torch.float32), SEED[None], ONES(1))),
    "a strided buffer": (ArgumentError, lambda: OPS.tree_set(tree().buffer.repeat(2)[::2], SEED[None], ONES(1))),
    "an index outside": (IndexError, lambda: OPS.tree_set(tree().buffer, SEED[None] - 1, ONES(1))),
    "an int32 index": (ArgumentError, lambda: OPS.tree_get(tree().buffer, INT32[None], torch.float32)),
    "a freed index": (ArgumentError, lambda: OPS.tree_get(tree().buffer, freed(torch.zeros(4).long()), torch.float32)),
    "a seed of nothing": (
        ArgumentError,
        lambda: OPS.tree_sample(tree().buffer, 2, SEED[None][:0], None, False, None, torch.float32),
    ),
    "a seed of 4 bytes": (
        ArgumentError,
        lambda: OPS.tree_sample(tree().buffer, 2, INT32, None, False, None, torch.float32),
    ),
    "a negative beta": (
        ArgumentError,
        lambda: OPS.tree_sample(tree().buffer, 2, SEED, None, False, -1.0, torch.float32),
    ),
    "raw of nothing": (
        ArgumentError,
        lambda: OPS.tree_set_errors(tree().buffer, SEED[None], ONES(1), 0.0, 1.0, freed(ONES(4)), None, None),
    ),
    "lstm without h0": (ArgumentError, lambda: lstm(h0=None)),
    "lstm without h": (ArgumentError, lambda: lstm(h=None)),
    "lstm without gates": (ArgumentError, lambda: lstm(gates=None)),
    "lstm, freed weight": (ArgumentError, lambda: lstm(weight=freed(ONES(12, 3)))),
    "gru without grad_h": (ArgumentError, lambda: backward(grad_h=None)),
    "gru, freed grad_gates": (ArgumentError, lambda: backward(grad_gates=freed(ONES(3, 2, 12)))),
    "rows of nothing": (ArgumentError, lambda: NativeRowGather([None])),
    "rows of a number": (ArgumentError, lambda: NativeRowGather([ONES(())])),
    "rows without an index": (ArgumentError, lambda: NativeRowGather([ONES(4)]).rows(4, None)),
    "runs without an index": (ArgumentError, lambda: NativeRowGather([ONES(4)]).runs(4, None, 2)),
    "rows of a freed index": (ArgumentError, lambda: NativeRowGather([ONES(4)]).rows(4, freed(torch.zeros(3).long()))),
    "rows of a freed tensor": (ArgumentError, freed_rows),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name):
    NativeRecurrence()
    kind, call = REFUSED[name]
    with pytest.raises(kind):
        call()


def test_negative_dimensions_count_from_the_end():
    d, c = torch.rand(3, 5, 2), torch.rand(3, 5, 2)
    for forward in (False, True):
        torch.testing.assert_close(OPS.linear_recurrence(d, c, -2, forward), OPS.linear_recurrence(d, c, 1, forward))
    done = torch.rand(3, 5, 2) < 0.3
    for dim in (-2, 1):
        found = OPS.gae(d, c, d, done, done, None, None, 0.9, 0.9, dim)
    torch.testing.assert_close(OPS.gae(d, c, d, done, done, None, None, 0.9, 0.9, -2), found)
