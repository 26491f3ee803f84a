"""Whole returns in C against float64 loops over plain numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ArgumentError, ShapeError
from rl.native import NativeRecurrence

# each instruction set is compared with a loop; the package chooses the widest
from rl.native._library import ISAS, use_isa

recurrence = NativeRecurrence()


FLAGS = ("done", "terminated")
NUMBERS = ("reward", "value", "next")


def gae_loop(b):
    x, out = 0.0, []
    for t in reversed(range(len(b["reward"]))):
        delta = b["reward"][t] + (0.0 if b["terminated"][t] else b["gamma"][t] * b["next"][t]) - b["value"][t]
        x = delta + (0.0 if b["done"][t] else b["gamma"][t] * b["lmbda"][t] * x)
        out.append((x, x + b["value"][t]))
    return out[::-1]


def td_loop(b):
    x, out = 0.0, []
    steps = len(b["reward"])
    for t in reversed(range(steps)):
        bootstrap = 0.0 if b["terminated"][t] else b["next"][t]
        lam = 0.0 if b["done"][t] or t == steps - 1 else b["lmbda"][t]
        x = b["reward"][t] + b["gamma"][t] * ((1 - lam) * bootstrap + lam * x)
        out.append((x,))
    return out[::-1]


def vtrace_loop(b, rho_bar, c_bar):
    x, out = 0.0, []  # the target less the value
    for t in reversed(range(len(b["reward"]))):
        rho, c = min(rho_bar, b["ratio"][t]), b["lmbda"][t] * min(c_bar, b["ratio"][t])
        beyond = 0.0 if b["done"][t] else x
        delta = rho * (b["reward"][t] + (0.0 if b["terminated"][t] else b["gamma"][t] * b["next"][t]) - b["value"][t])
        advantage = delta + rho * b["gamma"][t] * beyond
        x = delta + b["gamma"][t] * c * beyond
        out.append((advantage, x + b["value"][t]))
    return out[::-1]


def make(rows, steps, features, seed, *, ends=0.3, dtype=torch.float64, gamma=0.97, lmbda=0.9):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, steps, features)
    batch = {name: torch.randn(shape, generator=g, dtype=dtype) for name in NUMBERS}
    batch["ratio"] = torch.rand(shape, generator=g, dtype=dtype) * 2
    batch["done"] = torch.rand(shape, generator=g) < ends
    batch["terminated"] = torch.rand(shape, generator=g) < ends
    for name, value in (("gamma", gamma), ("lmbda", lmbda)):
        by_step = torch.rand(shape, generator=g, dtype=dtype)
        batch[name] = by_step if value is None else torch.full_like(by_step, value)
    return batch


def by_lane(function, batch, count, *arguments):
    shape = batch["reward"].shape
    outs = [torch.empty(shape, dtype=torch.float64) for _ in range(count)]
    for b in range(shape[0]):
        for f in range(shape[2]):
            lane = {name: x[b, :, f].tolist() for name, x in batch.items()}
            for t, found in enumerate(function(lane, *arguments)):
                for out, x in zip(outs, found, strict=True):
                    out[b, t, f] = x
    return outs


LAYOUTS = {
    "dense": lambda x: x,
    "time first in memory": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "features first in memory": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every other one": lambda x: x.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
    "backwards": lambda x: x.repeat_interleave(2, 2)[..., ::2],
}


def vtrace(b, gamma=0.9, lmbda=0.8, dim=1, **more):
    given_ = (b[name] for name in ("ratio", "value", "next", "reward", "done", "terminated"))
    return recurrence.vtrace(gamma, lmbda, *given_, dim, **more)


def check(batch, gamma, lmbda, layout, moved, dtype):
    given_ = {name: layout(x.to(dtype) if x.is_floating_point() else x) for name, x in batch.items()}
    dim = -2
    if moved:
        given_, dim = {name: x.transpose(0, 1) for name, x in given_.items()}, 0
    b = given_
    g, lam = b["gamma"] if gamma is None else gamma, b["lmbda"] if lmbda is None else lmbda
    flags = (b["reward"], b["done"], b["terminated"], dim)
    found = [
        *recurrence.gae(g, lam, b["value"], b["next"], *flags),
        recurrence.td_lambda(g, lam, b["next"], *flags),
        *recurrence.vtrace(g, lam, b["ratio"], b["value"], b["next"], *flags, rho_bar=1.1, c_bar=0.8),
        *recurrence.vtrace(g, lam, b["ratio"], b["value"], b["next"], *flags, rho_bar=1.1, c_bar=1.1),
    ]
    expected = [*by_lane(gae_loop, batch, 2), *by_lane(td_loop, batch, 1), *by_lane(vtrace_loop, batch, 2, 1.1, 0.8)]
    expected += by_lane(vtrace_loop, batch, 2, 1.1, 1.1)
    bound = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close((ours.transpose(0, 1) if moved else ours).double(), theirs, **bound)


coefficient = st.sampled_from([None, 0.0, 0.9, 1.0])


@settings(max_examples=120, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 7, 8, 9, 20]),
    steps=st.sampled_from([1, 2, 3, 17, 128, 129]),
    features=st.integers(1, 2),
    seed=st.integers(0, 2**20),
    ends=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    gamma=coefficient,
    lmbda=coefficient,
    layout=st.sampled_from(list(LAYOUTS)),
    moved=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    isa=st.sampled_from(ISAS),
)
def test_returns_equal_the_loop(rows, steps, features, seed, ends, gamma, lmbda, layout, moved, dtype, isa):
    use_isa(isa)
    try:
        batch = make(rows, steps, features, seed, ends=ends, gamma=gamma, lmbda=lmbda)
        if dtype == torch.float32:
            batch = {name: x.float().double() if x.is_floating_point() else x for name, x in batch.items()}
        check(batch, gamma, lmbda, LAYOUTS[layout], moved, dtype)
    finally:
        use_isa(None)


@pytest.fixture(params=ISAS)
def isa(request):
    yield use_isa(request.param)
    use_isa(None)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_more_steps_than_a_chunk(dtype):
    batch = make(17, 1030, 1, 0)
    if dtype == torch.float32:
        batch = {name: x.float().double() if x.is_floating_point() else x for name, x in batch.items()}
    check(batch, 0.97, 0.9, LAYOUTS["dense"], moved=False, dtype=dtype)


def test_more_rows_than_a_block():
    batch = make(2, 5, 600, 0)
    check(batch, 0.97, 0.9, LAYOUTS["dense"], moved=False, dtype=torch.float64)


def test_without_a_next_value_nothing_is_bootstrapped():
    done = torch.tensor([[[False], [True], [False], [False]]])
    reward = torch.tensor([[[1.0], [2], [3], [4]]])
    assert recurrence.td_lambda(0.5, 1.0, None, reward, done, None, -2).flatten().tolist() == [2.0, 2.0, 5.0, 4.0]


def test_the_value_after_a_termination_is_never_read():
    b = make(9, 40, 1, 3)
    following = b["next"].masked_fill(b["terminated"], torch.nan)
    flags = (b["reward"], b["done"], b["terminated"], -2)
    found = [
        *recurrence.gae(0.9, 0.8, b["value"], following, *flags),
        recurrence.td_lambda(0.9, 0.8, following, *flags),
        *recurrence.vtrace(0.9, 0.8, b["ratio"], b["value"], following, *flags),
    ]
    assert all(x.isfinite().all() for x in found)


def test_terminated_defaults_to_done_and_a_scalar_tensor_is_a_number():
    b = make(2, 8, 1, 0)
    ours = recurrence.gae(torch.tensor(0.9), torch.tensor(0.8), b["value"], b["next"], b["reward"], b["done"], None, -2)
    number = float(torch.tensor(0.9).double()), float(torch.tensor(0.8).double())
    torch.testing.assert_close(
        ours, recurrence.gae(*number, b["value"], b["next"], b["reward"], b["done"], b["done"], -2)
    )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_results_are_written_into_out(layout):
    b = make(5, 9, 2, 0)
    out = layout(torch.zeros(5, 9, 2, dtype=torch.float64)), layout(torch.zeros(5, 9, 2, dtype=torch.float64))
    args = (0.9, 0.8, b["value"], b["next"], b["reward"], b["done"], b["terminated"], 1)
    found = recurrence.gae(*args, out=out)
    assert found[0] is out[0]
    assert found[1] is out[1]
    torch.testing.assert_close(out, recurrence.gae(*args))
    alone = layout(torch.zeros(5, 9, 2, dtype=torch.float64))
    args = (0.9, 0.8, b["next"], b["reward"], b["done"], b["terminated"], 1)
    assert recurrence.td_lambda(*args, out=alone) is alone
    torch.testing.assert_close(alone, recurrence.td_lambda(*args))


def test_outputs_that_share_memory_raise():
    b = make(2, 3, 1, 0)
    args = (0.9, 0.8, b["value"], b["next"], b["reward"], b["done"], b["terminated"], 1)
    one = torch.empty_like(b["reward"])
    with pytest.raises(ArgumentError, match="overlaps"):
        recurrence.gae(*args, out=(one, one))
    with pytest.raises(ArgumentError, match="overlaps"):
        recurrence.gae(*args, out=(one, b["value"]))
    with pytest.raises(ArgumentError, match="1 tensor"):
        recurrence.gae(*args, out=(one,))
    kept = one.fill_(7.0).clone()
    assert recurrence.gae(*args[:2], b["value"].float(), *args[3:], out=(one, one.clone())) is None
    assert torch.equal(one, kept)
    with pytest.raises(ShapeError, match="time_dim is 7"):
        recurrence.gae(*args[:-1], 7)


@pytest.mark.parametrize(
    "change",
    [
        {"value": torch.zeros(2, 3)},
        {"value": torch.zeros(2, 3, 1)},
        {"done": torch.zeros(2, 3, 1)},
        {"next": torch.zeros(2, 3, 1, dtype=torch.float64, device="meta")},
        {"reward": torch.zeros(2, 3, 1, dtype=torch.int64)},
        {"gamma": torch.zeros(3, dtype=torch.float64)},
        {"value": torch.zeros(2, 3, 1, dtype=torch.float64, requires_grad=True)},
    ],
    ids=["shape", "type", "flag", "device", "integers", "coefficient", "gradient"],
)
def test_unsupported_arguments_give_none(change):
    b = make(2, 3, 1, 0) | change
    flags = (b["reward"], b["done"], b["terminated"], 1)
    assert recurrence.gae(b["gamma"], 0.9, b["value"], b["next"], *flags) is None
    assert recurrence.vtrace(b["gamma"], 0.9, b["ratio"], b["value"], b["next"], *flags) is None
    if "value" not in change:
        assert recurrence.td_lambda(b["gamma"], 0.9, b["next"], *flags) is None


def test_outputs_may_share_a_storage_with_inputs():
    b = make(2, 8, 1, 0)
    memory = torch.zeros(5, 2, 8, 1, dtype=torch.float64)
    for i, name in enumerate(("reward", "value", "next")):
        memory[2 * i if i < 2 else 4] = b[name]
    ours = (0.9, 0.8, memory[2], memory[4], memory[0], b["done"], b["terminated"], 1)
    found = recurrence.gae(*ours, out=(memory[1], memory[3]))
    torch.testing.assert_close(
        found, recurrence.gae(0.9, 0.8, b["value"], b["next"], b["reward"], b["done"], b["terminated"], 1)
    )


def test_the_negative_bit_of_a_single_element_is_resolved():
    reward = torch.complex(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).conj().imag
    assert reward.is_neg()
    assert reward.is_contiguous()
    zero, flag = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.bool)
    assert recurrence.gae(0.9, 0.8, zero, zero, reward, flag, flag, 1)[0].item() == -1.0
    assert recurrence(reward, zero, 1).item() == -1.0


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("lanes", [1, 9, 40])
def test_a_nan_ratio_stays_nan(lanes):
    b = make(lanes, 40, 1, 5, ends=0.0)
    b["ratio"][:, 30] = torch.nan
    turned = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in b.items()}
    for given_ in (b, turned):
        _, target = vtrace(given_)
        assert target[:, :31].isnan().all()
        assert target[:, 31:].isfinite().all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 1), (40, 1, 1)], ids=str)
def test_an_infinite_ratio_without_clipping(shape):
    one, done = torch.ones(shape), torch.ones(shape, dtype=torch.bool)
    b = {"ratio": torch.inf * one, "value": 0 * one, "next": one, "reward": 0.5 * one, "done": done}
    for ends in (done, ~done):
        if shape[1] > 1:  # what follows is infinite as well, and would be multiplied by zero
            b["ratio"][:, 1:] = 1
        advantage, target = vtrace(b | {"terminated": ends}, rho_bar=torch.inf, c_bar=torch.inf)
        assert (advantage[:, 0] == torch.inf).all()
        assert (target[:, 0] == torch.inf).all()
        assert advantage[:, 1:].isfinite().all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("c_bar", [1.0, 100.0, 1e6])
@pytest.mark.parametrize("lmbda", [1.0, 0.9, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_of_weights_may_overflow_or_underflow(dtype, lmbda, c_bar):
    b = make(3, 70, 1, 8, ends=0.1)
    b["ratio"] = (60 * (torch.rand(3, 70, 1, dtype=torch.float64) - 0.9)).exp()
    b["ratio"][:, ::3] = 1e-35
    b["ratio"][:, 1::9] = 90
    b["done"][:, ::7] = True  # the larger weights do not pile up
    b["gamma"][:] = 0.97
    b["lmbda"][:] = lmbda
    b = {name: x.to(dtype) if x.is_floating_point() else x for name, x in b.items()}
    outcome = (b[name] for name in ("ratio", "value", "next", "reward", "done", "terminated"))
    found = recurrence.vtrace(0.97, lmbda, *outcome, 1, c_bar=c_bar)
    for ours, theirs in zip(found, by_lane(vtrace_loop, b, 2, 1.0, c_bar), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("rho_bar", [1.0, 100.0])
def test_a_small_weight_before_large_ones_is_not_lost(rho_bar):
    one, done = torch.ones(1, 40, 1), torch.zeros(1, 40, 1, dtype=torch.bool)
    ratio, reward = 100 * one, 0 * one
    ratio[0, :2], reward[0, 12], done[0, 12] = 1e-12, 1.0, True
    _, target = recurrence.vtrace(
        1.0, 1.0, ratio, 0 * one, 0 * one, reward, done, done, 1, rho_bar=rho_bar, c_bar=100.0
    )
    torch.testing.assert_close(target[0, 0].item(), rho_bar * 1e-4, rtol=1e-5, atol=0)


@pytest.mark.usefixtures("isa")
def test_products_of_weights_clipped_at_a_negative_threshold_may_overflow():
    one, done = torch.ones(1, 48, 1), torch.zeros(1, 48, 1, dtype=torch.bool)
    reward = 0 * one
    reward[:, 1::3], done[:, 2::3] = 1.0, True
    _, target = recurrence.vtrace(1.0, 1.0, one, 0 * one, 0 * one, reward, done, done, 1, c_bar=-1e30)
    assert target.isfinite().all()
    assert target.flatten()[:3].tolist() == [torch.tensor(-1e30).item(), 1.0, 0.0]


@pytest.mark.usefixtures("isa")
def test_an_infinite_weight_stops_at_an_episode_end():
    one, done = torch.ones(1, 40, 1), torch.zeros(1, 40, 1, dtype=torch.bool)
    ratio = one.clone()
    ratio[0, 5] = torch.inf
    done[0, 6] = True
    _, target = recurrence.vtrace(0.9, 1.0, ratio, 0 * one, one, one, done, done, 1, rho_bar=1.0, c_bar=torch.inf)
    assert (target[0, :6] == torch.inf).all()
    assert target[0, 6:].isfinite().all()


def test_instruction_sets_give_the_same_numbers():
    """Plain C all but the last digits: where rows are scanned it rounds a product and a sum, the others once."""
    for dtype, layout in ((dtype, layout) for dtype in (torch.float32, torch.float64) for layout in LAYOUTS.values()):
        b = {name: layout(x.to(dtype) if x.is_floating_point() else x) for name, x in make(19, 37, 3, 1).items()}
        dense = {name: x[..., :1].contiguous() for name, x in b.items()}
        given_ = [dense[name] for name in ("value", "next", "reward", "done", "terminated")]
        found = []
        for name in ISAS:
            use_isa(name)
            found.append((*vtrace(b), *vtrace(dense, 0.9, 1.0), *recurrence.gae(0.9, 0.8, *given_, 1)))
        use_isa(None)
        plain, *wider = found
        for other in wider:
            torch.testing.assert_close(other, wider[0], rtol=0, atol=0)
        close = 30 * torch.finfo(dtype).eps  # of 37 sums that differ by half a step each, some of them the other way
        torch.testing.assert_close(plain, wider[0], rtol=close, atol=close)


@pytest.mark.parametrize("shape", [(0, 5, 1), (2, 0, 1)], ids=str)
def test_empty_inputs_give_empty_outputs(shape):
    x, flag = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    advantage, target = recurrence.gae(0.9, 0.8, x, x, x, flag, flag, 1)
    assert advantage.shape == target.shape == shape


@pytest.mark.parametrize("gamma", [0.9, torch.tensor(0.9)], ids=["number", "tensor"])
def test_returns_compile_without_graph_breaks(gamma):
    b = {name: x.float() if x.is_floating_point() else x for name, x in make(3, 6, 1, 0).items()}

    def every(b):
        flags = (b["reward"], b["done"], b["terminated"], 1)
        return (
            *recurrence.gae(gamma, 0.8, b["value"], b["next"], *flags),
            recurrence.td_lambda(gamma, 0.8, b["next"], *flags),
            *recurrence.vtrace(gamma, b["lmbda"], b["ratio"], b["value"], b["next"], *flags),
        )

    torch.testing.assert_close(torch.compile(every, fullgraph=True, backend="aot_eager")(b), every(b))


@pytest.mark.parametrize("steps", [False, True], ids=["numbers", "by step"])
def test_the_operators_match_their_schemas(steps):
    b, ops, checks = make(3, 6, 2, 0), torch.ops.rl_native, ["test_schema", "test_faketensor"]
    b = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in b.items()}
    by_step = b["lmbda"] if steps else None
    flags = (b["reward"], b["done"], b["terminated"], by_step, by_step, 0.9, 0.8, 1)
    torch.library.opcheck(ops.gae.default, (b["value"], b["next"], *flags), test_utils=checks)
    for bootstrap in (b["next"], None):
        torch.library.opcheck(ops.td_lambda.default, (bootstrap, *flags), test_utils=checks)
    torch.library.opcheck(ops.vtrace.default, (b["ratio"], b["value"], b["next"], *flags, 1.0, 1.0), test_utils=checks)
