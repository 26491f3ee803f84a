"""A2CLoss and ReinforceLoss against a loop by hand, and policies with several actions."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl.core.errors import ArgumentError, ShapeError
from rl.objectives import GAE, A2CLoss, ClipPPOLoss, KLPENPPOLoss, PPOLoss, ReinforceLoss, SoftUpdate
from rl.testing import check_loss

HEADS = ["move", ("arm", "force")]


def networks():
    torch.manual_seed(0)
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    actor = ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"]), head)
    return actor, TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])


def batch_of(*size):
    g = torch.Generator().manual_seed(1)
    batch = TensorDict(observation=torch.randn(*size, 3, generator=g), batch_size=size)
    batch["action"] = torch.randint(2, size, generator=g)
    batch["advantage"], batch["value_target"] = (torch.randn(*size, 1, generator=g) for _ in range(2))
    return batch


def by_hand(actor, critic, batch):
    """Means of the three losses, one step after the other."""
    objective, value, entropy = [], [], []
    for step in batch:
        logits = actor[0].module(step["observation"])
        p = logits.exp() / logits.exp().sum()
        objective.append(-p[step["action"]].log() * step["advantage"][0])
        entropy.append(-(p * p.log()).sum())
        value.append((critic.module(step["observation"]) - step["value_target"])[0] ** 2)
    return [torch.stack(one).mean() for one in (objective, value, entropy)]


@pytest.mark.parametrize("kind", [A2CLoss, ReinforceLoss])
def test_losses_and_gradients_equal_a_loop_by_hand(kind):
    actor, critic = networks()
    batch = batch_of(12)
    objective, value, entropy = by_hand(actor, critic, batch)
    if kind is A2CLoss:
        loss = A2CLoss(actor, critic, entropy_coeff=0.3, critic_coeff=0.5, loss_critic_type="l2")
        expected = {"loss_objective": objective, "loss_critic": 0.5 * value, "loss_entropy": -0.3 * entropy}
        torch.testing.assert_close(loss(batch)["entropy"], entropy.detach())
    else:
        loss = ReinforceLoss(actor, critic, loss_critic_type="l2")
        expected = {"loss_actor": objective, "loss_value": value}
    out = loss(batch)
    for name, one in expected.items():
        torch.testing.assert_close(out[name], one)
    weights = list(loss.parameters())
    ours = torch.autograd.grad(sum(out[name] for name in expected), weights)
    torch.testing.assert_close(ours, torch.autograd.grad(sum(expected.values()), weights))


@pytest.mark.parametrize("kind", [A2CLoss, ReinforceLoss])
def test_they_conform_and_compile_and_ignore_padding(kind):
    loss, batch = kind(*networks()), batch_of(4, 3)
    check_loss(loss, batch)
    expected = torch.compile(loss, fullgraph=True, backend="eager")(batch[:, :2])
    batch["collector", "mask"] = torch.arange(3).expand(4, 3) < 2
    batch["observation"][:, 2], batch["action"][:, 2] = torch.nan, 7
    torch.testing.assert_close(loss(batch), expected)


def test_reinforce_estimates_with_its_target():
    actor, critic = networks()
    loss = ReinforceLoss(actor, critic, delay_value=True)
    batch = batch_of(2, 5).exclude("advantage", "value_target")
    flag = torch.zeros(2, 5, 1, dtype=torch.bool)
    batch["next"] = {"observation": torch.randn(2, 5, 3), "reward": torch.ones(2, 5, 1), "done": flag}
    estimator = loss.make_value_estimator("td1", gamma=0.9)
    assert estimator.value_network is loss.target_critic_network
    before = loss(batch)["loss_value"]
    with torch.no_grad():
        critic.module.bias.add_(3)
    SoftUpdate(loss, tau=1.0).step()
    assert loss(batch)["loss_value"] != before
    by_gae = A2CLoss(actor, critic)(GAE(value_network=critic)(batch.clone()))
    torch.testing.assert_close(A2CLoss(actor, critic)(batch.refine_names(None, "time")), by_gae)


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 6)

    def forward(self, x):
        y = self.net(x)
        return y[..., :2], y[..., 2:4], y[..., 4:].exp()


def composite_actor(force=lambda loc, scale: Independent(Normal(loc, scale), 1)):
    torch.manual_seed(0)
    params = [("params", "move", "logits"), ("params", "arm", "force", "loc"), ("params", "arm", "force", "scale")]
    head = ProbabilisticTensorDictModule(
        ["params"],
        HEADS,
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"move": Categorical, ("arm", "force"): force}},
        return_log_prob=True,
    )
    return ProbabilisticTensorDictSequential(TensorDictModule(Split(), ["observation"], params), head)


def composite_batch(actor):
    batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach().exclude("params")
    return batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})


@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss, A2CLoss])
def test_several_actions_are_scored_as_a_whole(kind):
    actor, critic = composite_actor(), networks()[1]
    batch = composite_batch(actor)
    logits, loc, scale = actor[0].module(batch["observation"])
    parts = [Categorical(logits=logits), Independent(Normal(loc, scale), 1)]
    log_prob = sum(dist.log_prob(batch[key]) for dist, key in zip(parts, HEADS, strict=True))
    loss = kind(actor, critic, entropy_coeff={"move": 0.5, ("arm", "force"): 0.1})
    out = loss(batch)
    expected = log_prob if kind is A2CLoss else torch.ones(8)  # the ratio of an actor that did not change
    torch.testing.assert_close(out["loss_objective"], -(expected * batch["advantage"].squeeze(-1)).mean())
    bonus = 0.5 * parts[0].entropy() + 0.1 * parts[1].entropy()
    torch.testing.assert_close(out["loss_entropy"], -bonus.mean())
    torch.testing.assert_close(out["entropy"], sum(dist.entropy() for dist in parts).mean().detach())
    assert set(HEADS) <= set(loss.in_keys)
    (gradient,) = torch.autograd.grad(out["loss_objective"], actor[0].module.net.weight, retain_graph=True)
    (expected,) = torch.autograd.grad(-(log_prob * batch["advantage"].squeeze(-1)).mean(), actor[0].module.net.weight)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", [PPOLoss, A2CLoss, partial(KLPENPPOLoss, beta=0.0)])
def test_a_composite_distribution_may_be_a_partial_of_one_part_in_padded_batches(kind, named):
    torch.manual_seed(0)
    make = partial(CompositeDistribution, distribution_map={"move": Categorical}, name_map={"move": ("action", "move")})
    head = ProbabilisticTensorDictModule(
        ["params"], [("action", "move")], distribution_class=make, return_log_prob=True
    )
    body = TensorDictModule(nn.Linear(3, 2), ["observation"], [("params", "move", "logits")])
    actor, critic = ProbabilisticTensorDictSequential(body, head), networks()[1]
    batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
    batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
    log_prob = Categorical(logits=body.module(batch["observation"].clone())).log_prob(batch["action", "move"])
    ratio = log_prob if kind is A2CLoss else (log_prob - batch["action", "move_log_prob"]).exp()
    expected = -(ratio * batch["advantage"].squeeze(-1))[:5].mean()
    batch["collector", "mask"] = torch.arange(8) < 5
    batch["observation"][5:] = batch["params", "move", "logits"][5:] = torch.nan
    loss = kind(actor, critic)
    if named:
        loss.set_keys(action=("action", "move"), sample_log_prob=("action", "move_log_prob"))
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)
    (gradient,) = torch.autograd.grad(loss(batch)["loss_objective"], body.module.weight)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, body.module.weight)[0])


def test_reinforce_scores_several_actions_as_a_whole():
    actor, critic = composite_actor(), networks()[1]
    batch = composite_batch(actor)
    log_prob = batch["move_log_prob"] + batch["arm", "force_log_prob"]
    found = ReinforceLoss(actor, critic)(batch)["loss_actor"]
    torch.testing.assert_close(found, -(log_prob * batch["advantage"].squeeze(-1)).mean())
    found.backward()
    assert actor[0].module.net.weight.grad.abs().sum() > 0


def test_weights_and_shapes_of_several_actions_have_to_fit():
    actor, critic = composite_actor(), networks()[1]
    with pytest.raises(ArgumentError, match=r"entropies of the policy are 'move_entropy', \('arm', 'force_entropy'\)"):
        A2CLoss(actor, critic, entropy_coeff={"move": 0.5})(composite_batch(actor))
    by_dimension = composite_actor(force=Normal)
    with pytest.raises(ShapeError, match=r"torch\.distributions\.Independent"):
        A2CLoss(by_dimension, critic)(composite_batch(by_dimension))
