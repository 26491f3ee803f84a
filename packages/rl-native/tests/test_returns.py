"""Whole returns in C against float64 loops over plain numbers."""

from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ShapeError, SpecError
from rl.native._library import ISAS, use_isa
from rl.native._recurrence import NativeRecurrence

recurrence = NativeRecurrence()


FLAGS = ("done", "terminated")
NUMBERS = ("reward", "value", "next", "log_pi", "log_mu")


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


def vtrace_from_logs_loop(b, rho_bar, c_bar):
    ratio = [exp(pi - mu) for pi, mu in zip(b["log_pi"], b["log_mu"], strict=True)]
    return vtrace_loop(b | {"ratio": ratio}, rho_bar, c_bar)


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


def from_logs(b, gamma=0.9, lmbda=0.8, dim=1, **more):
    given_ = (b[name] for name in ("log_pi", "log_mu", "value", "next", "reward", "done", "terminated"))
    return recurrence.vtrace_from_log_probs(gamma, lmbda, *given_, dim, **more)


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
        *from_logs(b, g, lam, dim, rho_bar=1.1, c_bar=0.8),
    ]
    expected = [*by_lane(gae_loop, batch, 2), *by_lane(td_loop, batch, 1), *by_lane(vtrace_loop, batch, 2, 1.1, 0.8)]
    expected += [*by_lane(vtrace_loop, batch, 2, 1.1, 1.1), *by_lane(vtrace_from_logs_loop, batch, 2, 1.1, 0.8)]
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
def test_more_steps_than_a_piece(dtype):
    batch = make(17, 1030, 1, 0)
    if dtype == torch.float32:
        batch = {name: x.float().double() if x.is_floating_point() else x for name, x in batch.items()}
    check(batch, 0.97, 0.9, LAYOUTS["dense"], moved=False, dtype=dtype)


def test_more_lanes_than_a_block():
    batch = make(2, 5, 600, 0)
    check(batch, 0.97, 0.9, LAYOUTS["dense"], moved=False, dtype=torch.float64)


def test_without_a_next_value_nothing_is_bootstrapped():
    done = torch.tensor([[[False], [True], [False], [False]]])
    reward = torch.tensor([[[1.0], [2], [3], [4]]])
    assert recurrence.td_lambda(0.5, 1.0, None, reward, done, None, -2).flatten().tolist() == [2.0, 2.0, 5.0, 4.0]


def test_the_value_behind_a_termination_is_never_looked_at():
    b = make(9, 40, 1, 3)
    following = b["next"].masked_fill(b["terminated"], torch.nan)
    flags = (b["reward"], b["done"], b["terminated"], -2)
    found = [
        *recurrence.gae(0.9, 0.8, b["value"], following, *flags),
        recurrence.td_lambda(0.9, 0.8, following, *flags),
        *recurrence.vtrace(0.9, 0.8, b["ratio"], b["value"], following, *flags),
        *from_logs(b | {"next": following}),
    ]
    assert all(x.isfinite().all() for x in found)


def test_terminated_defaults_to_done_and_a_scalar_tensor_counts_as_a_number():
    b = make(2, 8, 1, 0)
    ours = recurrence.gae(torch.tensor(0.9), torch.tensor(0.8), b["value"], b["next"], b["reward"], b["done"], None, -2)
    number = float(torch.tensor(0.9).double()), float(torch.tensor(0.8).double())
    torch.testing.assert_close(
        ours, recurrence.gae(*number, b["value"], b["next"], b["reward"], b["done"], b["done"], -2)
    )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_results_are_written_where_they_shall_be(layout):
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
    out = layout(torch.zeros(5, 9, 2, dtype=torch.float64)), layout(torch.zeros(5, 9, 2, dtype=torch.float64))
    assert from_logs(b, out=out)[1] is out[1]
    torch.testing.assert_close(out, from_logs(b))


def test_outputs_that_share_memory_are_refused():
    b = make(2, 3, 1, 0)
    args = (0.9, 0.8, b["value"], b["next"], b["reward"], b["done"], b["terminated"], 1)
    one = torch.empty_like(b["reward"])
    with pytest.raises(SpecError, match="overlaps"):
        recurrence.gae(*args, out=(one, one))
    with pytest.raises(SpecError, match="overlaps"):
        recurrence.gae(*args, out=(one, b["value"]))
    with pytest.raises(SpecError, match="1 tensor"):
        recurrence.gae(*args, out=(one,))
    for name in ("log_pi", "log_mu"):
        before = b[name].clone()
        with pytest.raises(SpecError, match="overlaps"):
            from_logs(b, out=(one, b[name]))
        assert torch.equal(b[name], before)
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
def test_what_it_does_not_serve_it_leaves_to_others(change):
    b = make(2, 3, 1, 0) | change
    flags = (b["reward"], b["done"], b["terminated"], 1)
    assert recurrence.gae(b["gamma"], 0.9, b["value"], b["next"], *flags) is None
    assert recurrence.vtrace(b["gamma"], 0.9, b["ratio"], b["value"], b["next"], *flags) is None
    assert from_logs(b, b["gamma"]) is None
    if "value" not in change:
        assert recurrence.td_lambda(b["gamma"], 0.9, b["next"], *flags) is None


def test_outputs_beside_an_input_in_one_block_of_memory():
    b = make(2, 8, 1, 0)
    memory = torch.zeros(5, 2, 8, 1, dtype=torch.float64)
    for i, name in enumerate(("reward", "value", "next")):
        memory[2 * i if i < 2 else 4] = b[name]
    ours = (0.9, 0.8, memory[2], memory[4], memory[0], b["done"], b["terminated"], 1)
    found = recurrence.gae(*ours, out=(memory[1], memory[3]))
    torch.testing.assert_close(
        found, recurrence.gae(0.9, 0.8, b["value"], b["next"], b["reward"], b["done"], b["terminated"], 1)
    )


def test_a_negative_view_of_one_element_counts_with_its_sign():
    reward = torch.complex(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).conj().imag
    assert reward.is_neg()
    assert reward.is_contiguous()
    zero, flag = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.bool)
    assert recurrence.gae(0.9, 0.8, zero, zero, reward, flag, flag, 1)[0].item() == -1.0
    assert recurrence(reward, zero, 1).item() == -1.0


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("lanes", [1, 9, 40])
@pytest.mark.parametrize("log_mu", [torch.nan, torch.inf])
def test_a_ratio_that_is_not_a_number_stays_one(lanes, log_mu):
    b = make(lanes, 40, 1, 5, ends=0.0)
    b["ratio"][:, 30] = torch.nan
    b["log_pi"][:, 30] = torch.inf
    b["log_mu"][:, 30] = log_mu
    turned = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in b.items()}
    for given_ in (b, turned):
        outcome = (given_[name] for name in ("ratio", "value", "next", "reward", "done", "terminated"))
        for _, target in (recurrence.vtrace(0.9, 0.8, *outcome, 1), from_logs(given_)):
            assert target[:, :31].isnan().all()
            assert target[:, 31:].isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        {"log_pi": torch.zeros(2, 3, 1)},
        {"log_mu": torch.zeros(2, 3, dtype=torch.float64)},
        {"log_mu": torch.zeros(2, 3, 1, dtype=torch.int64)},
        {"log_pi": torch.zeros(2, 3, 1, dtype=torch.float64, requires_grad=True)},
        {"log_mu": torch.zeros(2, 3, 1, dtype=torch.float64, requires_grad=True)},
    ],
    ids=["type", "shape", "integers", "gradient of log_pi", "gradient of log_mu"],
)
def test_log_probabilities_that_it_does_not_serve(change):
    b = make(2, 3, 1, 0) | change
    out = torch.full((2, 3, 1), 7.0, dtype=torch.float64), torch.full((2, 3, 1), 7.0, dtype=torch.float64)
    assert from_logs(b) is None
    assert from_logs(b, out=out) is None
    assert all((x == 7).all() for x in out)
    if any(x.requires_grad for x in b.values()):
        with torch.no_grad():
            torch.testing.assert_close(from_logs(b), from_logs({name: x.detach() for name, x in b.items()}))


EXTREMES = [0.0, -0.0, 1e-30, 1.0, -1.0, 60.0, -60.0, 1e30, -1e30, torch.inf, -torch.inf]
EXTREMES += [88.72, 89.0, -87.3, -88.0, 709.7, 710.0, -708.3, -745.0]  # around the ends of either type


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("across", [False, True], ids=["along time", "across"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ratios_of_any_size(dtype, across):
    most, tiny = torch.finfo(dtype).max, 2 * torch.finfo(dtype).tiny
    pairs = [(pi, mu) for pi in EXTREMES for mu in (0.0, 2.0, torch.inf, -torch.inf) if pi != mu or pi - mu == 0]
    log_pi, log_mu = torch.tensor(pairs, dtype=dtype).T.reshape((2, 1, 1, -1) if across else (2, 1, -1, 1)).unbind()
    one, done = torch.ones_like(log_pi), torch.ones_like(log_pi, dtype=torch.bool)
    b = {"log_pi": log_pi, "log_mu": log_mu, "value": 0 * one, "next": one, "reward": one, "done": done}
    ratio, _ = from_logs(b | {"terminated": done}, rho_bar=most)  # the advantage of a reward of 1 at an end
    expected = (log_pi - log_mu).exp()
    assert expected.isinf().any()
    torch.testing.assert_close(ratio, expected.clamp_max(most), rtol=4 * torch.finfo(dtype).eps, atol=tiny)
    assert ((ratio == most) == (expected == torch.inf)).all()
    assert (ratio[expected == 0] == 0).all()
    assert torch.equal(from_logs(b | {"terminated": done})[0], ratio.clamp_max(1))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 1), (40, 1, 1)], ids=str)
def test_an_infinite_ratio_that_nothing_bounds(shape):
    one, done = torch.ones(shape), torch.ones(shape, dtype=torch.bool)
    b = {"log_pi": 2000 * one, "log_mu": one, "value": 0 * one, "next": one, "reward": 0.5 * one, "done": done}
    for ends in (done, ~done):
        if shape[1] > 1:  # what follows is infinite as well, and would be multiplied by zero
            b["log_pi"][:, 1:] = 0
        advantage, target = from_logs(b | {"terminated": ends}, rho_bar=torch.inf, c_bar=torch.inf)
        assert (advantage[:, 0] == torch.inf).all()
        assert (target[:, 0] == torch.inf).all()
        assert advantage[:, 1:].isfinite().all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("c_bar", [1.0, 100.0, 1e6])
@pytest.mark.parametrize("lmbda", [1.0, 0.9, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_whose_products_leave_the_type(dtype, lmbda, c_bar):
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
def test_the_product_of_weights_cut_at_a_negative_threshold_may_leave_the_type():
    one, done = torch.ones(1, 48, 1), torch.zeros(1, 48, 1, dtype=torch.bool)
    reward = 0 * one
    reward[:, 1::3], done[:, 2::3] = 1.0, True
    _, target = recurrence.vtrace(1.0, 1.0, one, 0 * one, 0 * one, reward, done, done, 1, c_bar=-1e30)
    assert target.isfinite().all()
    assert target.flatten()[:3].tolist() == [torch.tensor(-1e30).item(), 1.0, 0.0]


@pytest.mark.usefixtures("isa")
def test_what_follows_an_end_is_not_reached_by_an_infinite_weight():
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
            found.append((*from_logs(b), *from_logs(dense, 0.9, 1.0), *recurrence.gae(0.9, 0.8, *given_, 1)))
        use_isa(None)
        plain, *wider = found
        for other in wider:
            torch.testing.assert_close(other, wider[0], rtol=0, atol=0)
        close = 30 * torch.finfo(dtype).eps  # of 37 sums that differ by half a step each, some of them the other way
        torch.testing.assert_close(plain, wider[0], rtol=close, atol=close)


def test_traced_calls_from_log_probabilities_are_left_to_others():
    b = make(3, 6, 1, 0)
    found = []
    torch.vmap(lambda x: found.append(from_logs(dict.fromkeys(NUMBERS, x) | {name: b[name] for name in FLAGS})) or x)(
        b["reward"].expand(2, 3, 6, 1)
    )
    compiled = torch.compile(lambda b: b["reward"] * (from_logs(b) is None), fullgraph=True, backend="eager")
    assert torch.equal(compiled(b), b["reward"])
    assert found == [None]


@pytest.mark.parametrize("shape", [(0, 5, 1), (2, 0, 1)], ids=str)
def test_nothing_gives_nothing(shape):
    x, flag = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    advantage, target = recurrence.gae(0.9, 0.8, x, x, x, flag, flag, 1)
    assert advantage.shape == target.shape == shape


@pytest.mark.parametrize("gamma", [0.9, torch.tensor(0.9)], ids=["number", "tensor"])
def test_returns_compile_whole(gamma):
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
def test_the_operators_are_as_they_declare(steps):
    b, ops, checks = make(3, 6, 2, 0), torch.ops.rl_native, ["test_schema", "test_faketensor"]
    b = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in b.items()}
    by_step = b["lmbda"] if steps else None
    flags = (b["reward"], b["done"], b["terminated"], by_step, by_step, 0.9, 0.8, 1)
    torch.library.opcheck(ops.gae.default, (b["value"], b["next"], *flags), test_utils=checks)
    for bootstrap in (b["next"], None):
        torch.library.opcheck(ops.td_lambda.default, (bootstrap, *flags), test_utils=checks)
    torch.library.opcheck(ops.vtrace.default, (b["ratio"], b["value"], b["next"], *flags, 1.0, 1.0), test_utils=checks)


def test_denormal_numbers_count_as_zero_in_rows_alone():
    """The processor is told so while rows are scanned; afterwards it is as before."""
    tiny, done = torch.full((4, 40, 1), 1e-40), torch.zeros(4, 40, 1, dtype=torch.bool)
    assert (tiny * 0.5 > 0).all()
    recurrence.gae(0.9, 0.8, tiny, tiny, tiny, done, done, 1)
    recurrence.vtrace_from_log_probs(0.9, 1.0, tiny, tiny, tiny, tiny, tiny, done, done, 1)
    assert (tiny * 0.5 > 0).all()
