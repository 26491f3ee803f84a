"""Advantages of groups against plain loops."""

import math
import statistics

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.testing import check_contract
from rl.llm import MCAdvantage
from rl.llm.advantages import group_advantage

BASELINES, SCALES = ("group", "leave_one_out", "batch", None), ("group", "batch", None)


def batch_of(reward, group=None):
    td = TensorDict({"next": {"reward": reward}}, batch_size=[len(reward)])
    return td if group is None else td.set("group", group.unsqueeze(-1))


def plain(reward, group, baseline, scale, eps):
    out = []
    for i, (r, g) in enumerate(zip(reward, group, strict=True)):
        if math.isnan(r):
            out.append(0.0)
            continue
        everyone = [x for x in reward if not math.isnan(x)]
        mates = [x for x, h in zip(reward, group, strict=True) if h == g and not math.isnan(x)]
        others = [
            x for j, (x, h) in enumerate(zip(reward, group, strict=True)) if h == g and j != i and not math.isnan(x)
        ]
        if baseline == "leave_one_out":
            value = r - statistics.fmean(others) if others else 0.0
        else:
            value = r - {"group": statistics.fmean(mates), "batch": statistics.fmean(everyone), None: 0.0}[baseline]
        if scale is not None:
            values = {"group": mates, "batch": everyone}[scale]
            value /= (statistics.stdev(values) if len(values) > 1 else 0.0) + eps
        out.append(value)
    return out


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("unscored", [(), (2,), (0, 1, 7)])
def test_values_are_those_of_plain_loops(baseline, scale, unscored):
    torch.manual_seed(0)
    reward, group = torch.randn(9, dtype=torch.float64), torch.tensor([5, 1, 5, 1, 1, 8, 5, 8, 5])
    reward[list(unscored)] = float("nan")
    found = group_advantage(reward, group, baseline=baseline, scale=scale, eps=1e-3)
    expected = plain(reward.tolist(), group.tolist(), baseline, scale, 1e-3)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
def test_advantages_of_a_group_add_up_to_0(baseline):
    reward = torch.randn(12, 1)
    advantage = MCAdvantage(4, baseline=baseline)(batch_of(reward))["advantage"]
    torch.testing.assert_close(advantage.view(3, 4).sum(-1), torch.zeros(3), atol=1e-5, rtol=0)


def test_leave_one_out_is_the_group_mean_times_a_factor():
    reward = torch.randn(8, 1)
    one = MCAdvantage(4, baseline="leave_one_out", scale=None)(batch_of(reward))["advantage"]
    two = MCAdvantage(4, scale=None)(batch_of(reward))["advantage"]
    torch.testing.assert_close(one, two * 4 / 3)


def test_a_single_response_to_a_prompt_is_refused():
    """verl's mean of 0 and deviation of 1 made the raw reward its advantage."""
    group = torch.tensor([0, 0, 7])
    for options in ({}, {"scale": None}, {"baseline": "leave_one_out", "scale": None}):
        with pytest.raises(ShapeError, match="prompt 7 has a single response"):
            MCAdvantage(None, prompt_key="group", **options)(batch_of(torch.randn(3, 1), group))
    MCAdvantage(None, prompt_key="group", baseline="batch", scale="batch")(batch_of(torch.randn(3, 1), group))


def test_equal_rewards_have_no_advantage():
    advantage = MCAdvantage(4)(batch_of(torch.full((4, 1), 1e6)))["advantage"]
    assert advantage.eq(0).all()


def test_rows_of_a_prompt_may_be_anywhere():
    reward, group = torch.randn(8, 1), torch.arange(8) // 4
    order = torch.randperm(8)
    expected = MCAdvantage(4)(batch_of(reward))["advantage"]
    found = MCAdvantage(None, prompt_key="group")(batch_of(reward[order], group[order]))["advantage"]
    torch.testing.assert_close(found, expected[order])


def test_contract_and_refusals():
    check_contract(MCAdvantage(None, prompt_key="group"), batch_of(torch.randn(6, 2), torch.arange(6) // 3))
    for options in ({"grpo_size": None}, {"grpo_size": 2, "prompt_key": "group"}, {"grpo_size": 1}):
        with pytest.raises(ArgumentError):
            MCAdvantage(**options)
    with pytest.raises(ArgumentError, match="baseline must be"):
        MCAdvantage(2, baseline="median")
    with pytest.raises(ShapeError, match="groups of 4 rows, got 6 rows"):
        MCAdvantage(4)(batch_of(torch.randn(6, 1)))
    with pytest.raises(ShapeError, match="3 reward_weights for 1 rewards"):
        MCAdvantage(2, reward_weights=(1, 2, 3))(batch_of(torch.randn(6, 1)))
    with pytest.raises(ShapeError, match="must be"):
        MCAdvantage(2)(batch_of(torch.randn(6)))
    with pytest.raises(ContractError, match="Score the responses before"):
        MCAdvantage(2)(TensorDict(batch_size=[2]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_rewards_may_be_integers(dtype):
    reward = torch.tensor([[1], [0], [0], [1]])
    found, expected = (
        MCAdvantage(2)(TensorDict({"next": {"reward": reward.to(kind)}}, batch_size=[4]))
        for kind in (dtype, torch.float32)
    )
    assert torch.equal(found["advantage"], expected["advantage"])
