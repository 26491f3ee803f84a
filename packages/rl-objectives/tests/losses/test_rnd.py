"""RNDLoss and the scale of intrinsic rewards against loops by hand."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ShapeError
from rl.objectives import RNDLoss
from rl.objectives.functional import scale_by_returns
from rl.testing import check_loss


def make_loss(**options):
    torch.manual_seed(0)
    predictor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
    return RNDLoss(predictor, nn.Linear(3, 4), **options)


def make_batch(*size):
    g = torch.Generator().manual_seed(1)
    return TensorDict({"next": {"observation": torch.randn(*size, 3, generator=g)}}, batch_size=size)


def test_the_loss_is_the_mean_of_the_intrinsic_rewards():
    loss, batch = make_loss(), make_batch(4, 5)
    expected = []
    for step in batch.reshape(-1):
        x = step["next", "observation"]
        pairs = zip(loss.predictor_network.module(x).tolist(), loss.target_network.module(x).tolist(), strict=True)
        expected.append(sum((a - b) ** 2 for a, b in pairs) / 4)
    reward = loss.intrinsic_reward(batch)
    torch.testing.assert_close(reward, torch.tensor(expected).reshape(4, 5, 1))
    assert not reward.requires_grad
    out = loss(batch)
    torch.testing.assert_close(out["loss_predictor"].detach(), reward.mean())
    torch.testing.assert_close(out["intrinsic_reward"], reward.mean())
    torch.testing.assert_close(make_loss(reduction="none")(batch)["loss_predictor"].unsqueeze(-1).detach(), reward)


@pytest.mark.parametrize("size", [(6,), (1,), (2, 3)], ids=str)
def test_the_loss_conforms(size):
    check_loss(make_loss(), make_batch(*size), frozen=["target_network"])


def test_the_target_is_saved_but_not_trained():
    loss = make_loss()
    assert all(name.startswith("predictor_network.") for name, _ in loss.named_parameters())
    assert any(name.startswith("target_network.") for name in loss.state_dict())


def test_states_that_were_seen_are_less_novel():
    loss, batch = make_loss(), make_batch(64)
    new = TensorDict({"next": {"observation": 5 + torch.randn(64, 3)}}, batch_size=[64])
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        loss(batch)["loss_predictor"].backward()
        optimizer.step()
    assert 10 * loss.intrinsic_reward(batch).mean() < loss.intrinsic_reward(new).mean()


def test_padding_is_masked_out_and_keys_may_have_other_names():
    batch = make_batch(4, 3)
    expected = make_loss()(batch[:, :2])
    batch["collector", "mask"] = torch.arange(3).expand(4, 3) < 2
    batch["next", "observation"][:, 2] = torch.nan
    torch.testing.assert_close(make_loss()(batch), expected)
    loss = make_loss()
    one, two = (
        TensorDictModule(net.module, ["pixels"], ["z"]) for net in (loss.predictor_network, loss.target_network)
    )
    loss = RNDLoss(one, two)
    loss.set_keys(features="z")
    batch["next", "pixels"] = batch["next"].pop("observation")
    assert loss.in_keys == [("next", "pixels")]
    torch.testing.assert_close(loss(batch), expected)


def test_other_networks_are_refused():
    net = nn.Linear(3, 4)
    with pytest.raises(ArgumentError, match="share parameters: the target is fixed"):
        RNDLoss(net, net)
    with pytest.raises(ShapeError, match="expected one shape"):
        RNDLoss(nn.Linear(3, 1), nn.Linear(3, 4))(make_batch(2))


def test_rewards_are_scaled_by_the_deviation_of_their_running_sums():
    g = torch.Generator().manual_seed(0)
    rewards, sums, carried, scale = torch.rand(3, 12, 1, generator=g, dtype=torch.float64), [], [0.0] * 3, None
    for start in (0, 5, 6):
        part = rewards[:, start : {0: 5, 5: 6, 6: 12}[start]]
        for t in range(part.shape[1]):
            for row in range(3):
                carried[row] = 0.9 * carried[row] + part[row, t].item()
                sums.append(carried[row])
        mean = sum(sums) / len(sums)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in sums) / len(sums))
        found, scale = scale_by_returns(part, scale, gamma=0.9)
        torch.testing.assert_close(found, part / deviation)
    torch.testing.assert_close(scale.returns.flatten(), torch.tensor(carried, dtype=torch.float64))
    moved, _ = scale_by_returns(rewards.movedim(1, 0), gamma=0.9, time_dim=0)
    torch.testing.assert_close(moved.movedim(0, 1), scale_by_returns(rewards, gamma=0.9)[0])


def test_constant_rewards_stay_finite_and_other_streams_are_refused():
    scaled, scale = scale_by_returns(torch.zeros(2, 3, 1))
    assert not scaled.any()
    with pytest.raises(ShapeError, match="pass batches of the same streams"):
        scale_by_returns(torch.zeros(3, 3, 1), scale)
