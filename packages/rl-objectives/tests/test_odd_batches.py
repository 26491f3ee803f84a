"""Batches without rows or steps, and flags that are numbers."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from rl.core.errors import ContractError, ShapeError
from rl.objectives import GAE, ClipPPOLoss, DQNLoss, TD0Estimator, TDLambdaEstimator, VTrace


def sequence(*size, dtype=torch.bool):
    torch.manual_seed(0)
    terminated = torch.rand(*size, 1) < 0.3
    done = terminated | (torch.rand(*size, 1) < 0.3)
    following = {"observation": torch.randn(*size, 3), "reward": torch.randn(*size, 1)}
    following |= {"done": done.to(dtype), "terminated": terminated.to(dtype)}
    return TensorDict(observation=torch.randn(*size, 3), action=torch.randint(2, size), next=following, batch_size=size)


def critic():
    torch.manual_seed(1)
    return TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])


def q_network():
    torch.manual_seed(1)
    return TensorDictModule(nn.Linear(3, 2), ["observation"], ["action_value"])


def actor():
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"]), head)


def test_losses_have_no_mean_over_nothing():
    with pytest.raises(ShapeError, match="DQNLoss got a batch without rows"):
        DQNLoss(q_network())(sequence(0))
    batch = sequence(2, 0).set("action_log_prob", torch.randn(2, 0))
    batch["advantage"], batch["value_target"] = torch.randn(2, 0, 1), torch.randn(2, 0, 1)
    with pytest.raises(ShapeError, match="ClipPPOLoss got a batch without rows"):
        ClipPPOLoss(actor(), critic())(batch)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", [(0,), (2, 0), (0, 3)])
def test_estimates_of_no_steps_are_empty(size, shifted):
    assert GAE(value_network=critic(), shifted=shifted)(sequence(*size))["advantage"].shape == (*size, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator])
def test_flags_may_be_numbers(kind, shifted, dtype):
    # Row 1 is another trajectory wherever an episode ended, as in data with automatic resets.
    expected, batch = sequence(2, 9), sequence(2, 9, dtype=dtype)
    trajectories = expected["next", "done"].squeeze(-1).long().cumsum(1).roll(1, 1)
    trajectories[:, 0] = 0
    for one in (expected, batch):
        one["collector", "traj_ids"] = trajectories
        kind(value_network=critic(), shifted=shifted)(one)
    torch.testing.assert_close(batch["advantage"], expected["advantage"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_flags_of_a_q_loss_may_be_numbers(dtype):
    losses = [DQNLoss(q_network()) for _ in range(2)]
    for loss in losses:
        loss.make_value_estimator("td-lambda", gamma=0.9)
    one, other = (loss(sequence(2, 9, dtype=d)) for loss, d in zip(losses, (torch.bool, dtype), strict=True))
    torch.testing.assert_close(one, other)


ESTIMATORS = {
    "gae": lambda: GAE(value_network=critic()),
    "td0": lambda: TD0Estimator(value_network=critic()),
    "td-lambda": lambda: TDLambdaEstimator(value_network=critic()),
    "vtrace": lambda: VTrace(actor_network=actor(), value_network=critic()),
    "dqn": lambda: DQNLoss(q_network()),
}


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS.keys())
def test_a_step_that_ended_and_is_not_done_is_refused(make, flag):
    batch = actor()(sequence(2, 4)).detach()
    reader = make()
    reader(batch.clone())
    batch["next", "done"].zero_()
    batch["next", "terminated"].zero_()
    batch["next", flag] = torch.zeros(2, 4, 1, dtype=torch.bool)
    batch["next", flag][1, 2] = True
    message = (
        rf"at \[1, 2, 0\] of \[2, 4, 1\] \('next', '{flag}'\) is true and \('next', 'done'\) is false. Write done ="
    )
    with pytest.raises(ContractError, match=message):
        reader(batch.clone())
    batch["collector", "mask"] = torch.tensor([[True] * 4, [True, True, False, False]])
    batch["next", "done"][1, 1] = True
    reader(batch)  # padding may hold anything


def test_compiled_code_completes_done_in_place_of_a_check():
    batch = sequence(2, 4)
    gae = GAE(value_network=critic())
    expected = gae(batch.clone())["advantage"]
    batch["next", "truncated"] = batch["next", "done"] & ~batch["next", "terminated"]
    batch["next", "done"] = torch.zeros(2, 4, 1, dtype=torch.bool)
    found = torch.compile(gae, fullgraph=True, backend="eager")(batch)
    torch.testing.assert_close(found["advantage"], expected)


@pytest.mark.parametrize("group", ["done", "terminated", "truncated"])
@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS.keys())
def test_a_group_may_have_the_name_of_a_flag(make, group):
    batch = actor()(sequence(2, 4)).detach()
    plain, grouped = make(), make()
    expected = plain(batch.clone())
    moved = batch.clone()
    flags = {"over": moved["next"].pop("done"), "ended": moved["next"].pop("terminated")}
    moved["next", group] = TensorDict(flags, batch_size=[2, 4])
    grouped.load_state_dict(plain.state_dict())
    grouped.set_keys(done=(group, "over"), terminated=(group, "ended"))
    found = grouped(moved)
    for key in plain.out_keys:
        torch.testing.assert_close(found[key], expected[key])
    if group != "done":  # which is not read, beside flags at the root
        batch["next", group] = TensorDict(over=torch.ones(2, 4, 1), batch_size=[2, 4])
        plain.set_keys(terminated="none")
        plain(batch)


def test_flags_of_a_team_in_a_group_with_the_name_of_a_flag():
    found = []
    for group in ("team", "done"):
        batch = sequence(2, 4)
        flags = {"over": batch["next"].pop("done"), "ended": batch["next"].pop("terminated")}
        batch["next", group] = TensorDict(flags, batch_size=[2, 4])
        for place in ((), ("next",)):
            agents = {"value": torch.linspace(0, 1, 24).reshape(2, 4, 3, 1), "mask": torch.ones(2, 4, 3).bool()}
            batch[(*place, "agents")] = TensorDict(agents, batch_size=[2, 4, 3])
        batch["next", "agents", "mask"][:, 1:3, 0] = False
        gae = GAE()
        names = {"value": ("agents", "value"), "advantage": ("agents", "advantage"), "value_target": ("agents", "goal")}
        gae.set_keys(done=(group, "over"), terminated=(group, "ended"), **names)
        found.append(gae(batch)["agents", "advantage"])
    torch.testing.assert_close(*found)
