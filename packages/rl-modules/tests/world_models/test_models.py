"""World models of parts, and ensembles of dynamics."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ShapeError, UnsupportedError
from rl.modules import EnsembleDynamics, WorldModel, WorldModelWrapper


class Add(nn.Module):
    def forward(self, latent, action):
        return latent + action


def parts():
    encoder = TensorDictModule(nn.Linear(3, 2), ["observation"], ["latent"])
    dynamics = TensorDictModule(Add(), ["latent", "action"], [("next", "latent")])
    reward = TensorDictModule(nn.Linear(2, 1), [("next", "latent")], [("next", "reward")])
    return encoder, dynamics, reward


def test_a_world_model_encodes_steps_and_decodes():
    encoder, dynamics, reward = parts()
    decoder = TensorDictModule(nn.Linear(2, 3), ["latent"], ["reconstructed_observation"])
    model = WorldModel(encoder, dynamics, reward, decoder=decoder)
    td = TensorDict(observation=torch.randn(4, 3), action=torch.randn(4, 2), batch_size=[4])
    whole = model(td.clone())
    steps = model.step(model.encode(td.clone()))
    torch.testing.assert_close(whole, steps)
    torch.testing.assert_close(whole["next", "latent"], encoder.module(td["observation"]) + td["action"])
    decoded = model.decode(whole.select("latent"))["reconstructed_observation"]
    torch.testing.assert_close(decoded, whole["reconstructed_observation"])
    assert set(model.in_keys) == {"observation", "action"}
    with pytest.raises(UnsupportedError, match="pass decoder="):
        WorldModel(*parts()).decode(td)


def test_a_wrapper_runs_the_transition_before_the_reward():
    transition = TensorDictModule(nn.Linear(3, 3), ["state"], ["state"])
    reward = TensorDictModule(nn.Linear(3, 1), ["state"], ["reward"])
    model = WorldModelWrapper(transition, reward)
    x = torch.randn(4, 3)
    found = model(TensorDict(state=x, batch_size=[4]))
    torch.testing.assert_close(found["reward"], reward.module(transition.module(x)))
    assert model.get_transition_model_operator() is transition
    assert model.get_reward_operator() is reward


def data(count, seed=0):
    torch.manual_seed(seed)
    x, a = torch.randn(count, 2), torch.rand(count, 1) * 2 - 1
    noise = 0.05 * torch.randn(count, 2)
    after = TensorDict(
        observation=x + torch.cat((a, -x[:, :1]), -1) + noise, reward=x.sum(-1, keepdim=True), batch_size=[count]
    )
    return TensorDict(observation=x, action=a, next=after, batch_size=[count])


def test_the_likelihood_is_that_of_normal_distributions_up_to_a_constant():
    model, td = EnsembleDynamics(2, 1, num_members=3, num_elites=2, num_cells=[8]), data(5)
    mean, log_var = model.predict(td)
    assert mean.shape == log_var.shape == (3, 5, 3)
    target = torch.cat((td["next", "observation"] - td["observation"], td["next", "reward"]), -1)
    normal = torch.distributions.Normal(mean, (0.5 * log_var).exp())
    constant = -0.5 * torch.log(torch.tensor(2 * torch.pi))
    expected = 2 * (normal.log_prob(target) - constant).mean(-1).mean(0)
    penalty = 0.01 * (model.max_log_var - model.min_log_var).sum()
    torch.testing.assert_close(model.log_likelihood(td), expected - penalty)
    with pytest.raises(ShapeError, match="reward"):
        model.log_likelihood(td.set(("next", "reward"), torch.zeros(5)))


def test_variances_stay_between_learned_bounds():
    model = EnsembleDynamics(2, 1, num_members=2, num_elites=1, num_cells=[4])
    for sign in (-1, 1):
        model.net[-1].bias.data.fill_(sign * 1e4)
        log_var = model.predict(data(5))[1]
        assert ((log_var >= -10 - 1e-4) & (log_var <= 0.5 + 1e-4)).all()


def test_an_ensemble_learns_dynamics_and_its_noise_and_disagrees_elsewhere():
    model, train, test = (
        EnsembleDynamics(2, 1, num_members=3, num_elites=2, num_cells=[32, 32]),
        data(512),
        data(200, 1),
    )
    model.fit_inputs(train)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(400):
        optimizer.zero_grad()
        (-model.log_likelihood(train).mean()).backward()
        optimizer.step()
    errors = model.set_elites(test)
    assert errors.max() < 0.05
    assert model.elites.tolist() == errors.argsort()[:2].tolist()
    found = model(test.exclude("next"))
    assert (found["next", "observation"] - test["next", "observation"]).abs().mean() < 0.15
    assert (found["next", "reward"] - test["next", "reward"]).abs().mean() < 0.15
    std = (0.5 * model.predict(test)[1][..., :2]).exp().median()
    assert 0.02 < std < 0.15
    far = TensorDict(observation=torch.full((1, 2), 20.0), action=torch.zeros(1, 1), batch_size=[1])
    assert model.predict(far)[0].std(0).mean() > 5 * model.predict(test)[0].std(0).mean()


def test_predictions_come_from_elites_alone():
    model = EnsembleDynamics(1, 1, num_members=4, num_elites=2, num_cells=[])
    model.net[-1].weight.data.zero_()
    model.net[-1].bias.data = torch.tensor([[[k, k, -99.0, -99.0]] for k in (1.0, 2.0, 3.0, 4.0)])
    model.min_log_var.data.fill_(-30.0)
    model.elites.copy_(torch.tensor([1, 3]))
    td = TensorDict(observation=torch.zeros(3, 200, 1), action=torch.zeros(3, 200, 1), batch_size=[3, 200])
    reward = model.step(td)["next", "reward"].round().flatten().tolist()
    assert set(reward) == {2.0, 4.0}
    assert 200 < reward.count(2.0) < 400
    with pytest.raises(ArgumentError, match="fewer elites"):
        EnsembleDynamics(1, 1, num_members=2, num_elites=3)
