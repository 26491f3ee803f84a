"""Whole returns in C against float64 loops over plain numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ShapeError, SpecError
from rl.native._library import ISAS, use_isa
from rl.native._recurrence import NativeRecurrence

recurrence = NativeRecurrence()


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
    batch = {name: torch.randn(shape, generator=g, dtype=dtype) for name in ("reward", "value", "next")}
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
    ]
    expected = [*by_lane(gae_loop, batch, 2), *by_lane(td_loop, batch, 1), *by_lane(vtrace_loop, batch, 2, 1.1, 0.8)]
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


@pytest.mark.parametrize("isa", ISAS)
def test_a_ratio_that_is_not_a_number_stays_one(isa):
    b = make(9, 40, 1, 5, ends=0.0)
    b["ratio"][:, 30] = torch.nan
    use_isa(isa)
    try:
        _, target = recurrence.vtrace(
            0.9, 0.8, b["ratio"], b["value"], b["next"], b["reward"], b["done"], b["terminated"], 1
        )
    finally:
        use_isa(None)
    assert target[:, :31].isnan().all()
    assert target[:, 31:].isfinite().all()


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
