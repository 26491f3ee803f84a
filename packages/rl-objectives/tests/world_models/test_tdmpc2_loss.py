"""TD-MPC2's loss against the equations in a plain loop."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Bernoulli, Independent, Normal

from rl.core.errors import ArgumentError, UnsupportedError
from rl.objectives import SoftUpdate, TDMPC2Loss


class Cat(nn.Module):
    def __init__(self, width, out, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, out), nn.Dropout(dropout))

    def forward(self, *inputs):
        return self.net(torch.cat(inputs, -1))


def normal(loc):
    return Independent(Normal(loc, 0.5), 1)


def bernoulli(logits):
    return Bernoulli(logits=logits, validate_args=False)


def head(net, keys, out, kind=normal, name="loc"):
    body = TensorDictModule(net, keys, [f"{out}_{name}"])
    last = ProbabilisticTensorDictModule({name: body.out_keys[0]}, [out], distribution_class=kind)
    return ProbabilisticTensorDictSequential(body, last)


def make(dropout=0.0, terminated=True, **options):
    torch.manual_seed(0)
    both = ["latent", "action"]
    return TDMPC2Loss(
        TensorDictModule(Cat(5, 4), ["observation"], ["latent"]),
        TensorDictModule(Cat(6, 4), both, [("next", "latent")]),
        head(Cat(6, 1), both, "reward_prediction"),
        head(Cat(6, 1, dropout), both, "state_action_value"),
        head(Cat(4, 2), ["latent"], "action"),
        terminated_model=head(Cat(4, 1), ["latent"], "end", bernoulli, "logits") if terminated else None,
        **options,
    )


def batch(size=(6, 3), ends=True):
    torch.manual_seed(1)
    done = (torch.rand(*size, 1) < 0.4) & ends
    after = {"observation": torch.randn(*size, 5), "reward": torch.randn(*size, 1), "terminated": done}
    after = TensorDict(after, batch_size=size)
    return TensorDict(observation=torch.randn(*size, 5), action=torch.randn(*size, 2), next=after, batch_size=size)


def dist(module, **entries):
    return module.get_dist(TensorDict(entries))


def test_pitfall_7_each_term_is_the_equation_with_the_termination_of_each_step():
    loss, data = make(num_qvalue_nets=2, gamma=0.9, entropy_bonus=0.1), batch()
    torch.manual_seed(2)
    out = loss(data)
    torch.manual_seed(2)
    encode = lambda x: loss.encoder(TensorDict(observation=x))["latent"]
    after = encode(data["next", "observation"])
    action_after = dist(loss.actor_network, latent=after).rsample()
    values = [dist(one, latent=after, action=action_after).mean for one in loss.target_qvalue_network]
    live = (~data["next", "terminated"]).float()
    target = data["next", "reward"] + 0.9 * live * torch.minimum(*values)
    state, states, sums = encode(data["observation"][:, 0]), [], torch.zeros(3)
    for t in range(3):
        states.append(state)
        action = data["action"][:, t]
        reward = dist(loss.reward_model, latent=state, action=action)
        sums[1] -= 0.5**t * reward.log_prob(data["next", "reward"][:, t]).mean()
        for one in loss.qvalue_network:
            sums[2] -= 0.5**t * dist(one, latent=state, action=action).log_prob(target[:, t]).mean() / 2
        state = loss.dynamics(TensorDict(latent=state, action=action))["next", "latent"]
        sums[0] += 0.5**t * (state - after[:, t]).square().mean()
    torch.testing.assert_close(out["loss_consistency"], 20 * sums[0] / 3)
    torch.testing.assert_close(out["loss_reward"], 0.1 * sums[1] / 3)
    torch.testing.assert_close(out["loss_value"], 0.1 * sums[2] / 3)
    states = torch.stack([*states, state], 1).detach()
    end = dist(loss.terminated_model, latent=states[:, 1:]).log_prob(1 - live)
    torch.testing.assert_close(out["loss_terminated"], -end.mean())
    torch.randperm(2)  # of the target critics
    policy = dist(loss.actor_network, latent=states)
    action = policy.rsample()
    torch.randperm(2)
    value = torch.stack([dist(one, latent=states, action=action).mean for one in loss.qvalue_network]).mean(0)
    objective = value[..., 0] / out["value_scale"] - 0.1 * 2 * policy.log_prob(action)
    assert out["value_scale"] >= 1
    expected = sum(0.5**t * objective[:, t].mean() for t in range(4)) / 4
    torch.testing.assert_close(out["entropy"], -policy.log_prob(action).mean())
    torch.testing.assert_close(out["loss_actor"], -expected)
    assert sorted(out.keys()) == sorted(loss.out_keys)


def test_the_policy_loss_reaches_the_policy_alone_and_the_others_all_but_the_policy():
    loss, data = make(), batch()
    out = loss(data)
    named = dict(loss.named_parameters())
    grads = torch.autograd.grad(out["loss_actor"], list(named.values()), allow_unused=True, retain_graph=True)
    reached = {name.split(".")[0] for name, grad in zip(named, grads, strict=True) if grad is not None}
    assert reached == {"actor_network"}
    rest = sum(value for key, value in out.items() if key.startswith("loss") and key != "loss_actor")
    grads = torch.autograd.grad(rest, list(named.values()), allow_unused=True)
    reached = {name.split(".")[0] for name, grad in zip(named, grads, strict=True) if grad is not None}
    assert reached == {"encoder", "dynamics", "reward_model", "qvalue_network", "terminated_model"}
    assert all(parameter.requires_grad for parameter in named.values())


def test_critics_differ_target_critics_follow_and_have_no_dropout():
    loss = make(dropout=0.5)
    weights = [one.module[0].module.net[0].weight for one in loss.qvalue_network]
    assert len(weights) == 5
    assert not torch.isclose(weights[0], weights[1]).any()
    loss.train()
    assert loss.qvalue_network.training
    assert not loss.target_qvalue_network.training
    weights[0].data.add_(1.0)
    SoftUpdate(loss, tau=0.01).step()
    found = loss.target_qvalue_network[0].module[0].module.net[0].weight
    torch.testing.assert_close(found, weights[0].detach() - 0.99)


def test_padding_reaches_no_term():
    loss, data = make(num_qvalue_nets=2).eval(), batch((4, 4))
    data["collector", "mask"] = torch.arange(4).expand(4, 4) < 2
    torch.manual_seed(0)
    first = loss(data)
    data["observation"][:, 2:], data["action"][:, 2:], data["next", "reward"][:, 2:] = 7.0, 7.0, 7.0
    torch.manual_seed(0)
    second = loss(data)
    for key in ("loss_consistency", "loss_reward", "loss_value", "loss_terminated"):
        torch.testing.assert_close(first[key], second[key])


def test_an_end_without_a_model_of_ends_is_refused():
    loss = make(terminated=False)
    assert "loss_terminated" not in loss(batch(ends=False)).keys()
    with pytest.raises(UnsupportedError, match="pass terminated_model"):
        loss(batch())
    with pytest.raises(ArgumentError, match="num_qvalue_nets"):
        make(num_qvalue_nets=1)


def test_every_default_is_that_of_the_paper():
    loss = make()
    assert (loss.consistency_weight, loss.reward_weight, loss.value_weight, loss.terminated_weight) == (20, 0.1, 0.1, 1)
    assert (loss.rho, loss.entropy_bonus, loss.scale_rate, len(loss.qvalue_network)) == (0.5, 1e-4, 0.01, 5)


def test_one_batch_can_be_overfit():
    loss, data = make(num_qvalue_nets=2), batch(ends=False)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    first, updater = loss(data), SoftUpdate(loss, tau=0.01)
    for _ in range(300):
        updater.step()
        out = loss(data)
        optimizer.zero_grad()
        sum(value for key, value in out.items() if key.startswith("loss")).backward()
        optimizer.step()
    assert out["loss_consistency"] < 0.6 * first["loss_consistency"]
    assert out["loss_reward"] < first["loss_reward"]


@pytest.mark.parametrize(
    "name", ["consistency_weight", "reward_weight", "value_weight", "terminated_weight", "entropy_bonus"]
)
def test_weights_are_numbers(name):
    with pytest.raises(ArgumentError, match=f"TDMPC2Loss: {name} must be at least 0, got nan"):
        make(**{name: float("nan")})
