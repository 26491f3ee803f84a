"""Losses of Dreamer on small models, against the equations in plain loops."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnsupportedError
from rl.objectives import (
    DreamerActorLoss,
    DreamerModelLoss,
    DreamerV3ActorLoss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    DreamerValueLoss,
    SoftUpdate,
    TD0Estimator,
    TDLambdaEstimator,
    WorldModelLoss,
)


def normal(loc):
    return Independent(Normal(loc, 1.0), 1)


def head(net, keys, out, kind=normal, name="loc"):
    body = TensorDictModule(net, keys, [f"{out if isinstance(out, str) else out[-1]}_{name}"])
    last = ProbabilisticTensorDictModule({name: body.out_keys[0]}, [out], distribution_class=kind)
    return ProbabilisticTensorDictSequential(body, last)


class Cat(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.net = nn.Linear(width, out)

    def forward(self, *inputs):
        return self.net(torch.cat(inputs, -1))


def bernoulli(logits):
    return Bernoulli(logits=logits, validate_args=False)


class Chain:
    """States 0, 1, 2 in a row; each step moves on with reward 1, and the last one stays without reward."""

    def step(self, td):
        state = (td["state"] + 1).clamp_max(2)
        reward = (td["state"] < 2).to(state.dtype)
        return td.set("next", TensorDict(state=state, belief=td["belief"], reward=reward, batch_size=td.batch_size))


class ValueOf(nn.Module):
    """The value of the states of `Chain`: 1 + gamma, 1, 0."""

    def __init__(self, gamma):
        super().__init__()
        self.table = nn.Parameter(torch.tensor([1 + gamma, 1.0, 0.0]))

    def forward(self, state):
        return self.table[state.long().clamp(0, 2)]


def categorical_actor():
    return head(Cat(1, 3), ["state"], "action", Categorical, "logits")


def chain_states():
    return TensorDict(state=torch.tensor([[0.0], [1.0], [2.0]]), belief=torch.zeros(3, 1), batch_size=[3])


@pytest.mark.parametrize("lmbda", [0.0, 0.95, 1.0])
def test_the_imagined_return_is_the_known_value_of_a_chain(lmbda):
    critic = head(ValueOf(0.9), ["state"], "state_value")
    loss = DreamerV3ActorLoss(categorical_actor(), critic, Chain(), imagination_horizon=6, gamma=0.9, lmbda=lmbda)
    losses, data = loss(chain_states())
    torch.testing.assert_close(data["lambda_target"][:, 0, 0], torch.tensor([1.9, 1.0, 0.0]))
    torch.testing.assert_close(data["discount_weight"][0, :, 0], 0.9 ** torch.arange(6))
    assert losses["return_scale"] == 1
    plain = TensorDictModule(ValueOf(0.9), ["state"], ["state_value"])
    first = DreamerActorLoss(
        TensorDictModule(Cat(1, 1), ["state"], ["action"]),
        plain,
        Chain(),
        imagination_horizon=6,
        lmbda=lmbda,
        gamma=0.9,
    )
    torch.testing.assert_close(first(chain_states()).data["lambda_target"][:, 0, 0], torch.tensor([1.9, 1.0, 0.0]))


def test_an_exact_critic_leaves_only_the_entropy_to_the_actor():
    critic = head(ValueOf(0.9), ["state"], "state_value")
    loss = DreamerV3ActorLoss(categorical_actor(), critic, Chain(), imagination_horizon=4, gamma=0.9, entropy_bonus=0.5)
    losses, data = loss(chain_states())
    entropy = loss.actor_model.get_dist(data).entropy()
    torch.testing.assert_close(losses["loss_actor"], -0.5 * (data["discount_weight"][..., 0] * entropy).mean())


def test_the_actor_loss_is_the_equation():
    torch.manual_seed(0)
    critic = head(Cat(1, 1), ["state"], "state_value")
    going = head(Cat(1, 1), ["state"], "continuation", bernoulli, "logits")
    loss = DreamerV3ActorLoss(
        categorical_actor(),
        critic,
        Chain(),
        continuation_model=going,
        imagination_horizon=5,
        return_normalization_rate=0.5,
    )
    losses, data = loss(chain_states())
    states = torch.cat([data["state"], data["next", "state"][:, -1:]], 1)
    value, live = critic.get_dist(TensorDict(state=states)).mean, going.get_dist(TensorDict(state=states)).mean
    target, following = [], value[:, -1]
    for t in reversed(range(5)):
        step = 0.05 * value[:, t + 1] + 0.95 * following
        following = data["next", "reward"][:, t] + live[:, t + 1] * step
        target.insert(0, following)
    target = torch.stack(target, 1)
    torch.testing.assert_close(data["lambda_target"], target)
    weight = torch.stack([live[:, : t + 1].prod(1) for t in range(5)], 1)
    torch.testing.assert_close(data["discount_weight"], weight.detach())
    span = 0.5 * (torch.quantile(target, 0.95) - torch.quantile(target, 0.05))
    scale = span.clamp_min(1)
    dist = loss.actor_model.get_dist(data)
    gradient = dist.log_prob(data["action"]) * ((target - value[:, :-1]) / scale)[..., 0].detach()
    torch.testing.assert_close(losses["loss_actor"], -(weight[..., 0] * (gradient + 3e-4 * dist.entropy())).mean())


def test_only_the_actor_is_trained_by_its_loss():
    critic, going = head(Cat(1, 1), ["state"], "state_value"), head(Cat(1, 1), ["state"], "c", bernoulli, "logits")
    loss = DreamerV3ActorLoss(categorical_actor(), critic, Chain(), continuation_model=going)
    assert len(list(loss.parameters())) == 2
    loss(chain_states()).losses["loss_actor"].backward()
    assert all(one.grad is not None for one in loss.parameters())
    assert all(one.grad is None for one in (*critic.parameters(), *going.parameters()))
    before = loss.return_scale.percentiles.clone()
    loss.eval()(chain_states())
    torch.testing.assert_close(loss.return_scale.percentiles, before)


def test_gradients_of_the_first_dreamer_pass_through_the_model_and_into_the_actor_alone():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 1)

        def step(self, td):
            state = self.net(torch.cat((td["state"], td["action"]), -1))
            return td.set("next", TensorDict(state=state, belief=td["belief"], reward=-state.square()))

    model = Model()
    actor, critic = (TensorDictModule(Cat(1, 1), ["state"], [key]) for key in ("action", "state_value"))
    loss = DreamerActorLoss(actor, critic, model, imagination_horizon=2)
    losses, data = loss(TensorDict(state=torch.ones(3, 1), belief=torch.zeros(3, 1), batch_size=[3]))
    losses["loss_actor"].backward()
    assert all(one.grad is not None for one in loss.parameters())
    assert all(one.grad is None and one.requires_grad for one in (*model.parameters(), *critic.parameters()))
    value = critic(TensorDict(state=data["next", "state"]))["state_value"]
    reward = data["next", "reward"]
    last = reward[:, 1] + 0.99 * value[:, 1]
    first = reward[:, 0] + 0.99 * (0.05 * value[:, 0] + 0.95 * last)
    torch.testing.assert_close(losses["loss_actor"], -(first + 0.99 * last).mean())
    loss.make_value_estimator("td-lambda", gamma=0.5, lmbda=0.1)
    assert (float(loss.gamma), float(loss.lmbda)) == (0.5, pytest.approx(0.1))
    loss.make_value_estimator(TDLambdaEstimator(gamma=0.7, value_network=None))
    with pytest.raises(UnsupportedError, match="use TDLambda"):
        loss.make_value_estimator(TD0Estimator(value_network=None))


def test_the_first_critic_loss_is_the_equation():
    torch.manual_seed(0)
    loss = DreamerValueLoss(TensorDictModule(Cat(2, 1), ["state"], ["state_value"]), gamma=0.5)
    batch = TensorDict(state=torch.randn(4, 3, 2), lambda_target=torch.randn(4, 3, 1), batch_size=[4, 3])
    error = (loss.value_model(batch.copy())["state_value"] - batch["lambda_target"]).square()[..., 0]
    torch.testing.assert_close(loss(batch).losses["loss_value"], (error * torch.tensor([1, 0.5, 0.25])).sum(1).mean())


def v3_model():
    torch.manual_seed(0)

    class World(nn.Module):
        def __init__(self):
            super().__init__()
            self.post, self.prior = nn.Linear(2, 12), nn.Linear(2, 12)

        def forward(self, x):
            post, prior = self.post(x).unflatten(-1, (3, 4)), self.prior(x).unflatten(-1, (3, 4))
            return post, prior, post.flatten(-2), x

    names = ["posterior_logits", "prior_logits", "state", "belief"]
    world = TensorDictModule(World(), ["x"], [("next", name) for name in names])
    inputs = [("next", "state"), ("next", "belief")]
    return DreamerV3ModelLoss(
        world,
        head(Cat(14, 5), inputs, ("next", "observation")),
        head(Cat(14, 1), inputs, ("next", "reward")),
        head(Cat(14, 1), inputs, "continuation", bernoulli, "logits"),
    )


def v3_batch(size=(4, 5)):
    done = torch.rand(*size, 1) < 0.4
    after = {"observation": torch.randn(*size, 5), "reward": torch.randn(*size, 1)}
    after |= {"done": done, "terminated": done & (torch.rand(*size, 1) < 0.5)}
    return TensorDict({"x": torch.randn(*size, 2), "next": TensorDict(after, batch_size=size)}, batch_size=size)


def test_the_model_loss_has_the_terms_of_the_paper_with_its_weights():
    loss, batch = v3_model(), v3_batch()
    losses, states = loss(batch)
    td = loss.world_model(batch.copy())
    post, prior = (0.99 * td["next", f"{name}_logits"].softmax(-1) + 0.01 / 4 for name in ("posterior", "prior"))
    kl = (post * (post / prior).log()).sum((-1, -2)).clamp_min(1).mean()
    torch.testing.assert_close(losses["loss_model_dynamic"], kl)
    torch.testing.assert_close(losses["loss_model_representation"], 0.1 * kl)
    reco = loss.decoder[0].get_dist(td.copy()).log_prob(batch["next", "observation"])
    torch.testing.assert_close(losses["loss_model_reco"], -reco.mean())
    reward = loss.reward_model.get_dist(td.copy()).log_prob(batch["next", "reward"])
    torch.testing.assert_close(losses["loss_model_reward"], -reward.mean())
    prob = loss.continue_model.get_dist(td.copy()).probs
    live = (~batch["next", "terminated"]).float() * (1 - 1 / 333)
    torch.testing.assert_close(
        losses["loss_model_continue"], -(live * prob.log() + (1 - live) * (1 - prob).log()).mean()
    )
    torch.testing.assert_close(states["state"], td["next", "state"])
    assert states["state"].requires_grad
    torch.testing.assert_close(states["next", "reward"], batch["next", "reward"])
    assert sorted(losses.keys()) == sorted(loss.out_keys)


def test_padding_is_masked_out_of_the_model_loss():
    loss, batch = v3_model(), v3_batch()
    expected = loss(batch[:, :3]).losses
    batch["collector", "mask"] = torch.arange(5).expand(4, 5) < 3
    torch.testing.assert_close(loss(batch).losses, expected)


def test_keywords_and_selected_outputs_as_with_other_losses():
    loss, batch = v3_model(), v3_batch()
    losses, _ = loss(batch)
    tensors = {"_".join(key) if isinstance(key, tuple) else key: batch[key] for key in loss.in_keys}
    assert len(loss(**tensors)) == len(loss.out_keys)
    loss.select_out_keys("loss_model_reco")
    assert list(loss(batch).losses.keys()) == ["loss_model_reco"]
    torch.testing.assert_close(loss(**tensors), losses["loss_model_reco"])
    with pytest.raises(ContractError, match="DreamerV3ModelLoss reads"):
        loss(batch.exclude("x"))


def test_every_default_is_that_of_the_paper():
    model = v3_model()
    assert (model.lambda_dynamic, model.lambda_representation, model.free_nats, model.unimix) == (1.0, 0.1, 1.0, 0.01)
    assert (model.lambda_reco, model.lambda_reward, model.lambda_continue) == (1.0, 1.0, 1.0)
    assert model.continue_target_scale == 1 - 1 / 333
    critic = head(Cat(1, 1), ["state"], "state_value")
    actor = DreamerV3ActorLoss(categorical_actor(), critic, Chain())
    assert (actor.imagination_horizon, actor.entropy_bonus, actor.gamma, actor.lmbda) == (15, 3e-4, 1 - 1 / 333, 0.95)
    scale = actor.return_scale
    assert (scale.rate, scale.low, scale.high, scale.least) == (0.01, 0.05, 0.95, 1.0)
    value = DreamerV3ValueLoss(critic)
    assert (value.slow_critic_regularization, value.replay_weight, value.gamma, value.lmbda) == (
        1,
        0.3,
        1 - 1 / 333,
        0.95,
    )


def test_the_critic_loss_is_the_equation_and_follows_a_slow_copy():
    torch.manual_seed(0)
    critic = head(Cat(2, 1), ["state"], "state_value")
    loss = DreamerV3ValueLoss(critic)
    critic.module[0].module.net.weight.data += 1.0
    batch = TensorDict(state=torch.randn(4, 3, 2), batch_size=[4, 3])
    batch.update({"lambda_target": torch.randn(4, 3, 1), "discount_weight": torch.rand(4, 3, 1)})
    dist = critic.get_dist(batch.copy())
    slow = loss.target_value_model.get_dist(batch.copy()).mean
    expected = -dist.log_prob(batch["lambda_target"]) - dist.log_prob(slow)
    losses, _ = loss(batch)
    torch.testing.assert_close(losses["loss_value"], (batch["discount_weight"][..., 0] * expected).mean())
    SoftUpdate(loss, tau=1.0).step()
    torch.testing.assert_close(loss.target_value_model.get_dist(batch.copy()).mean, dist.mean)
    assert len(list(loss.parameters())) == 2


def test_pitfall_4_the_replayed_return_bootstraps_at_a_truncation_and_its_row_is_left_out():
    torch.manual_seed(0)
    critic = head(Cat(2, 1), ["state"], "state_value")
    loss = DreamerV3ValueLoss(critic, gamma=0.9, slow_critic_regularization=0.0, replay_weight=1.0)
    state = torch.randn(1, 4, 2, requires_grad=True)
    done = torch.tensor([False, False, True, False]).view(1, 4, 1)
    after = {"reward": torch.tensor([9.0, 1.0, 2.0, 3.0]).view(1, 4, 1), "done": done}
    boot = torch.tensor([9.0, 10.0, 20.0, 30.0]).view(1, 4, 1)
    for terminated, first in ((False, 2 + 0.9 * 20), (True, 2.0)):
        after["terminated"] = done & terminated
        batch = TensorDict({"state": state, "bootstrap": boot, "next": TensorDict(after, batch_size=[1, 4])}, [1, 4])
        target = [1 + 0.9 * (0.05 * 10 + 0.95 * first), first, 0.0]
        score = critic.get_dist(batch.copy()).log_prob(torch.tensor([*target, 0.0]).view(1, 4, 1))
        found = loss.replay_value_loss(batch)["loss_replay_value"]
        torch.testing.assert_close(found, -(score[0, 0] + score[0, 1]) / 3)
    grad = torch.autograd.grad(found, state)[0]
    assert grad[0, 0].any()
    assert not grad[0, 2].any()
    with pytest.raises(ContractError, match="bootstrap"):
        loss.replay_value_loss(batch.exclude("bootstrap"))
    with pytest.raises(ShapeError, match="successor"):
        loss.replay_value_loss(batch[:, :1])


def v1_model_loss(**options):
    torch.manual_seed(0)
    names = ["prior_mean", "prior_std", "posterior_mean", "posterior_std", "reco_pixels", "reward"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 24)

        def forward(self, x):
            parts = self.net(x).split([3, 3, 3, 3, 11, 1], -1)
            image = torch.cat((parts[4], parts[5]), -1).unflatten(-1, (3, 2, 2))
            return parts[0], parts[1].exp(), parts[2], parts[3].exp(), image, parts[5]

    return DreamerModelLoss(TensorDictModule(Model(), ["x"], [("next", name) for name in names]), **options)


@pytest.mark.parametrize("options", [{}, {"delayed_clamp": True}, {"global_average": True, "free_nats": 0.1}])
def test_the_first_model_loss_is_the_equation(options):
    loss = v1_model_loss(lambda_kl=2.0, lambda_reco=3.0, lambda_reward=4.0, **options)
    after = TensorDict(pixels=torch.rand(4, 5, 3, 2, 2), reward=torch.randn(4, 5, 1), batch_size=[4, 5])
    batch = TensorDict(x=torch.randn(4, 5, 2), next=after, batch_size=[4, 5])
    losses, data = loss(batch)
    td = loss.world_model(batch.copy())["next"]
    post, prior = (Normal(td[f"{name}_mean"], td[f"{name}_std"]) for name in ("posterior", "prior"))
    kl = torch.distributions.kl_divergence(post, prior)
    kl = kl.mean(-1) if options.get("global_average") else kl.sum(-1)
    free = options.get("free_nats", 3.0)
    kl = kl.mean().clamp_min(free) if options.get("delayed_clamp") else kl.clamp_min(free).mean()
    reco = (td["reco_pixels"] - batch["next", "pixels"]).square().flatten(2)
    reco = reco.mean() if options.get("global_average") else reco.sum(-1).mean()
    torch.testing.assert_close(losses["loss_model_kl"], 2 * kl)
    torch.testing.assert_close(losses["loss_model_reco"], 3 * reco)
    torch.testing.assert_close(losses["loss_model_reward"], 4 * (td["reward"] - after["reward"]).square().mean())
    torch.testing.assert_close(data["next", "true_reward"], after["reward"])
    assert not data["next", "reward"].requires_grad


def test_parts_of_a_world_model_are_learned_by_their_distance():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 8)

        def forward(self, x):
            return self.net(x).split([1, 1, 3, 3], -1)

        def log_likelihood(self, td):
            return -td["observation"].square().sum(-1)

    keys = [("next", "reward"), ("next", "done"), "reconstructed_observation", "predicted_latent"]
    model = TensorDictModule(Parts(), ["observation"], keys)
    model.log_likelihood = model.module.log_likelihood
    after = TensorDict(reward=torch.randn(4, 1), done=torch.rand(4, 1) < 0.5, batch_size=[4])
    batch = TensorDict(observation=torch.randn(4, 3), target_latent=torch.randn(4, 3), next=after, batch_size=[4])
    kinds = ["reward", "done", "reconstruction", "latent", "likelihood"]
    loss = WorldModelLoss(model, losses=kinds, reward_loss="l1", latent_weight=2.0)
    out, td = loss(batch), model(batch.copy())
    torch.testing.assert_close(out["loss_reward"], (td["next", "reward"] - after["reward"]).abs().mean())
    torch.testing.assert_close(out["loss_done"], (td["next", "done"] - after["done"].float()).square().mean())
    error = td["reconstructed_observation"] - batch["observation"]
    torch.testing.assert_close(out["loss_reconstruction"], error.square().mean())
    error = td["predicted_latent"] - batch["target_latent"]
    torch.testing.assert_close(out["loss_latent"], 2 * error.square().mean())
    torch.testing.assert_close(out["loss_likelihood"], batch["observation"].square().sum(-1).mean())
    with pytest.raises(ArgumentError, match="losses must be"):
        WorldModelLoss(model, losses=["rewards"])
    with pytest.raises(ArgumentError, match="no losses"):
        WorldModelLoss(model, losses=[])


@pytest.mark.parametrize("value", [float("nan"), -1.0, "1"])
@pytest.mark.parametrize("name", ["lambda_kl", "lambda_reco", "lambda_reward"])
def test_weights_of_the_first_model_loss_are_numbers(name, value):
    with pytest.raises(ArgumentError, match=f"DreamerModelLoss: {name} must be at least 0, got {value!r}"):
        v1_model_loss(**{name: value})


@pytest.mark.parametrize("kind", ["reward", "done", "reconstruction", "latent", "likelihood"])
def test_weights_of_parts_of_a_world_model_are_numbers(kind):
    with pytest.raises(ArgumentError, match=f"{kind}_weight must be at least 0, got nan"):
        WorldModelLoss(nn.Identity(), **{f"{kind}_weight": float("nan")})
