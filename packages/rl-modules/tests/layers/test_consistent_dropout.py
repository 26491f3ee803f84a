import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl.core import as_function
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.modules import ConsistentDropout, ConsistentDropoutModule
from rl.testing import check_module


def test_the_mask_keeps_the_mean_and_is_returned():
    torch.manual_seed(0)
    drop = ConsistentDropout(0.2)
    x = torch.ones(200, 500)
    out, mask = drop(x)
    assert_close(out.mean(), torch.tensor(1.0), atol=0.01, rtol=0)
    assert_close((mask == 0).float().mean(), torch.tensor(0.2), atol=0.01, rtol=0)
    assert_close(drop(3 * x, mask)[0], 3 * mask)
    assert drop.eval()(x) is x


def batch(mask):
    return TensorDict(hidden=torch.randn(3, 4), mask=mask, batch_size=[3])


def test_a_mask_is_drawn_where_there_is_none_and_kept_elsewhere():
    torch.manual_seed(0)
    drop = ConsistentDropoutModule(["hidden", "mask"], "dropped")
    assert check_module(drop, batch(-torch.ones(3, 4))).not_exercised == []
    kept = torch.tensor([[0.0, 2.0, 2.0, 0.0]]).repeat(3, 1)
    kept[1] = -1
    data = batch(kept)
    out = drop(data.clone())
    assert_close(out["mask"][[0, 2]], kept[[0, 2]])
    assert set(out["mask"][1].tolist()) <= {0.0, 2.0}
    assert_close(out["dropped"], data["hidden"] * out["mask"])
    again = drop(out.clone())  # an update finds the mask of the action
    assert_close(again["dropped"], out["dropped"])
    assert_close(drop.eval()(out.clone())["dropped"], data["hidden"])
    assert as_function(drop).out_keys == ["dropped", "mask"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ConsistentDropout(1.0), ArgumentError, "p must be .*, got 1.0"),
        (lambda: ConsistentDropoutModule(["a", "b", "c"]), ArgumentError, "an input and a mask"),
        (lambda: ConsistentDropoutModule(["a", "m"], ["a", "n"]), ArgumentError, "the same mask"),
        (lambda: ConsistentDropoutModule("hidden").make_tensordict_primer(), ArgumentError, "input_shape="),
        (
            lambda: ConsistentDropoutModule("hidden")(TensorDict(hidden=torch.zeros(3))),
            ContractError,
            "dropout_mask.*make_tensordict_primer",
        ),
        (
            lambda: ConsistentDropoutModule(["hidden", "mask"])(batch(torch.ones(3, 1))),
            ShapeError,
            r"\(3, 1\), the input \(3, 4\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
