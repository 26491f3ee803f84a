"""Losses against the values that Stable-Baselines3 and sb3-contrib log for the same batch, parameters and noise.

`LOGGED` holds their values, from version 2.9.2 of both; where these are installed, the values are computed again. Left
out are two options whose formulas differ: `normalize_advantage` divides by the standard deviation with n - 1 there and
with n here; `clip_range_vf` takes the clipped error there and the larger one of both errors here.
"""

import math
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from rl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    CrossQLoss,
    DDPGLoss,
    DQNLoss,
    QRDQNLoss,
    SACLoss,
    TD3Loss,
    TQCLoss,
)

OBS, ACT, N, QUANTILES, ROWS, GAMMA, ALPHA = 3, 2, 4, 5, 16, 0.9, 0.3

LOGGED = {
    "PPO": {
        "policy_gradient_loss": -0.582319,
        "value_loss": 1.488192,
        "entropy_loss": -2.684381,
        "approx_kl": 0.198047,
        "clip_fraction": 0.625,
    },
    "A2C": {"policy_loss": 1.010285, "value_loss": 1.362722, "entropy_loss": -1.340251},
    "DQN": {"loss": 0.681354},
    "QRDQN": {"loss": 1.613298},
    "SAC": {"critic_loss": 1.808096, "actor_loss": -0.025119, "ent_coef_loss": -3.51505, "ent_coef": 0.3},
    "TD3": {"critic_loss": 3.14384, "actor_loss": 0.28246},
    "DDPG": {"critic_loss": 1.532673, "actor_loss": 0.28246},
    "TQC": {"critic_loss": 0.351463, "actor_loss": -0.259634, "ent_coef_loss": -3.51505, "ent_coef": 0.3},
    "CrossQ": {"critic_loss": 1.94978, "actor_loss": 0.096351, "ent_coef_loss": -3.566489, "ent_coef": 0.3},
}


def fill(*modules, seed):
    """The same parameters in the same order, on both sides."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in chain.from_iterable(module.parameters() for module in modules):
            one.copy_(torch.rand(one.shape, generator=g) - 0.5)


def rows():
    """Steps, and what an on-policy method adds to them; actions are continuous, `choice` are integers."""
    g = torch.Generator().manual_seed(1)
    return SimpleNamespace(
        observation=torch.randn(ROWS, OBS, generator=g),
        action=torch.rand(ROWS, ACT, generator=g) * 2 - 1,
        choice=torch.randint(N, (ROWS, 1), generator=g),
        after=torch.randn(ROWS, OBS, generator=g),
        reward=torch.randn(ROWS, 1, generator=g),
        ended=torch.rand(ROWS, 1, generator=g) < 0.3,
        value=torch.randn(ROWS, generator=g) * 0.1,
        log_prob=-2 + torch.randn(ROWS, generator=g) * 0.3,
        advantage=torch.randn(ROWS, generator=g),
        returns=torch.randn(ROWS, generator=g),
    )


# ---- here


class BatchNorm(nn.Module):
    """The layer of sb3-contrib before it has warmed up, whose variances are unbiased."""

    def __init__(self, features):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))

    def forward(self, x):
        mean, var = self.mean, self.var
        if self.training:
            var, mean = torch.var_mean(x, 0)
            self.mean.lerp_(mean.detach(), 0.01)
            self.var.lerp_(var.detach(), 0.01)
        return (x - mean) / (var + 1e-3).sqrt() * self.weight + self.bias


def hidden(n_in, activation=nn.ReLU, norm=False):
    found = []
    for before in (n_in, 8):
        found += [*([BatchNorm(before)] if norm else []), nn.Linear(before, 8), activation()]
    return [*found, *([BatchNorm(8)] if norm else [])]


def layers(n_in, n_out, activation=nn.ReLU, norm=False):
    return nn.Sequential(*hidden(n_in, activation, norm), nn.Linear(8, n_out))


class Joined(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.net = layers(OBS + ACT, **options)

    def forward(self, observation, action):
        return self.net(torch.cat([observation, action], -1))


def critics(count=2, n_out=1, norm=False):
    made = [Joined(n_out=n_out, norm=norm) for _ in range(count)]
    return [TensorDictModule(one, ["observation", "action"], ["state_action_value"]) for one in made]


class Gaussian(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.body = nn.Sequential(*hidden(OBS, norm=norm))
        self.loc, self.log_scale = nn.Linear(8, ACT), nn.Linear(8, ACT)

    def forward(self, observation):
        features = self.body(observation)
        return self.loc(features), self.log_scale(features).clamp(-20, 2).exp()


def squashed(loc, scale):
    return TransformedDistribution(Independent(Normal(loc, scale), 1), TanhTransform(cache_size=1))


def actor(network, keys, distribution):
    head = ProbabilisticTensorDictModule(keys, ["action"], distribution_class=distribution, return_log_prob=True)
    return ProbabilisticTensorDictSequential(TensorDictModule(network, ["observation"], keys), head)


def replayed(choice=False):
    x = rows()
    after = {"observation": x.after, "reward": x.reward, "done": x.ended, "terminated": x.ended}
    action = x.choice.squeeze(-1) if choice else x.action
    return TensorDict({"observation": x.observation, "action": action, "next": after}, batch_size=[ROWS])


def on_policy(kind):
    x = rows()
    value = layers(OBS, 1, nn.Tanh)
    critic = TensorDictModule(value, ["observation"], ["state_value"])
    batch = {
        "observation": x.observation,
        "advantage": x.advantage.unsqueeze(-1),
        "value_target": x.returns.unsqueeze(-1),
    }
    if kind == "ppo":

        class WithScale(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.log_scale = layers(OBS, ACT, nn.Tanh), nn.Parameter(torch.zeros(ACT))

            def forward(self, observation):
                loc = self.net(observation)
                return loc, self.log_scale.exp().expand_as(loc)

        network = WithScale()
        fill(network.net, value, nn.ParameterList([network.log_scale]), seed=2)
        policy = actor(network, ["loc", "scale"], lambda loc, scale: Independent(Normal(loc, scale), 1))
        loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, loss_critic_type="l2", entropy_coeff=1.0)
        batch |= {"action": x.action, "action_log_prob": x.log_prob}
    else:
        network = layers(OBS, N, nn.Tanh)
        fill(network, value, seed=2)
        policy = actor(network, ["logits"], Categorical)
        loss = A2CLoss(policy, critic, loss_critic_type="l2", entropy_coeff=1.0)
        batch |= {"action": x.choice.squeeze(-1), "action_log_prob": x.log_prob}
    out = loss(TensorDict(batch, batch_size=[ROWS]))
    names = {"value_loss": "loss_critic", "entropy_loss": "loss_entropy"}
    if kind == "ppo":
        names |= {"policy_gradient_loss": "loss_objective", "approx_kl": "kl_approx", "clip_fraction": "clip_fraction"}
    else:
        names["policy_loss"] = "loss_objective"
    return {theirs: out[name].item() for theirs, name in names.items()}


def q_learning(kind):
    if kind == "dqn":
        loss = DQNLoss(layers(OBS, N), gamma=GAMMA, loss_function="smooth_l1", double_dqn=False)
    else:

        class Quantiles(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = layers(OBS, QUANTILES * N)

            def forward(self, observation):
                return self.net(observation).unflatten(-1, (QUANTILES, N)).mT

        loss = QRDQNLoss(Quantiles(), gamma=GAMMA)
    fill(loss.value_network, seed=2)
    fill(loss.target_value_network, seed=3)
    return {"loss": loss(replayed(choice=True))["loss"].item()}


def off_policy(kind):
    if kind in ("td3", "ddpg"):
        network = nn.Sequential(layers(OBS, ACT), nn.Tanh())
        policy = TensorDictModule(network, ["observation"], ["action"])
        if kind == "ddpg":
            loss = DDPGLoss(policy, *critics(1), gamma=GAMMA)
        else:
            loss = TD3Loss(policy, critics(), bounds=(-1.0, 1.0), loss_function="l2", gamma=GAMMA)
        fill(loss.target_actor_network, seed=4)
    else:
        policy = actor(Gaussian(norm=kind == "crossq"), ["loc", "scale"], squashed)
        options = {"gamma": GAMMA, "alpha_init": ALPHA}
        if kind == "tqc":
            loss = TQCLoss(policy, critics(n_out=QUANTILES), **options)
        elif kind == "sac":
            loss = SACLoss(policy, critics(), loss_function="l2", **options)
        else:
            loss = CrossQLoss(policy, critics(norm=True), loss_function="l2", **options)
    fill(loss.actor_network, seed=2)
    fill(loss._critics(), seed=3)
    if kind != "crossq":
        fill(loss._critics(target=True), seed=5)
    torch.manual_seed(7)
    batch = replayed()
    if kind in ("sac", "tqc"):  # there the actor's actions are sampled first
        out = {**loss.actor_loss(batch), **loss.critic_loss(batch)}
    elif kind == "crossq":  # there the actor's own statistics are those of the current states
        policy.eval()
        out = dict(loss.critic_loss(batch))
        policy.train()
        out |= dict(loss.actor_loss(batch))
    else:
        out = loss(batch)
    fit = out["loss_value" if kind == "ddpg" else "loss_qvalue"]
    half = 0.5 if kind in ("sac", "crossq") else 1.0  # there the mean squared error is halved
    found = {"critic_loss": half * fit.item(), "actor_loss": out["loss_actor"].item()}
    if kind not in ("td3", "ddpg"):
        found |= {"ent_coef_loss": out["loss_alpha"].item(), "ent_coef": out["alpha"].item()}
    return found


CASES = {
    "PPO": (on_policy, "ppo"),
    "A2C": (on_policy, "a2c"),
    "DQN": (q_learning, "dqn"),
    "QRDQN": (q_learning, "qr-dqn"),
    "SAC": (off_policy, "sac"),
    "TD3": (off_policy, "td3"),
    "DDPG": (off_policy, "ddpg"),
    "TQC": (off_policy, "tqc"),
    "CrossQ": (off_policy, "crossq"),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_stable_baselines3(name):
    compute, kind = CASES[name]
    assert compute(kind) == pytest.approx(LOGGED[name], abs=1e-5, rel=1e-5)


# ---- there


def model(name, library):
    import gymnasium
    import numpy as np

    class Spaces(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9, 9, (OBS,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACT,), np.float32)

    if name in ("A2C", "DQN", "QRDQN"):
        Spaces.action_space = gymnasium.spaces.Discrete(N)
    options = {
        "PPO": {"n_epochs": 1, "normalize_advantage": False, "ent_coef": 1.0},
        "A2C": {"ent_coef": 1.0},
        "SAC": {"ent_coef": f"auto_{ALPHA}"},
        "TD3": {"policy_delay": 1},
        "TQC": {"ent_coef": f"auto_{ALPHA}"},
        "CrossQ": {"ent_coef": f"auto_{ALPHA}", "policy_delay": 1},
    }
    width = {"policy_kwargs": {"net_arch": [8, 8]}}
    if name in ("TQC", "QRDQN"):
        width["policy_kwargs"]["n_quantiles"] = QUANTILES
    make = getattr(library, name)
    return make("MlpPolicy", Spaces(), learning_rate=0.0, gamma=GAMMA, device="cpu", **width, **options.get(name, {}))


def logged(name, library):
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.type_aliases import ReplayBufferSamples, RolloutBufferSamples

    made, x = model(name, library), rows()
    made.set_logger(configure(format_strings=[]))
    if name in ("PPO", "A2C"):
        body, policy = made.policy.mlp_extractor, made.policy
        scale = [nn.ParameterList([policy.log_std])] if name == "PPO" else []
        fill(body.policy_net, policy.action_net, body.value_net, policy.value_net, *scale, seed=2)
        action = x.action if name == "PPO" else x.choice.float()
        sampled = RolloutBufferSamples(x.observation, action, x.value, x.log_prob, x.advantage, x.returns)
        made.rollout_buffer = SimpleNamespace(
            get=lambda batch_size: [sampled], values=x.value.numpy(), returns=x.returns.numpy()
        )
        made.train()
    else:
        integers = name in ("DQN", "QRDQN")
        action = x.choice if integers else x.action
        sampled = ReplayBufferSamples(x.observation, action, x.after, x.ended.float(), x.reward)
        made.replay_buffer = SimpleNamespace(sample=lambda *_, **__: sampled)
        if integers:
            prefix = "q_net" if name == "DQN" else "quantile_net"
            fill(getattr(made, prefix), seed=2)
            fill(getattr(made, f"{prefix}_target"), seed=3)
        else:
            if name in ("SAC", "TQC", "CrossQ"):
                made.actor.action_dist.epsilon = 0.0  # 1e-6 there, added in the logarithm of the Jacobian
            fill(made.actor, seed=2)
            fill(made.critic, seed=3)
            for part, seed in (("actor_target", 4), ("critic_target", 5)):
                if getattr(made, part, None) is not None:
                    fill(getattr(made, part), seed=seed)
        torch.manual_seed(7)
        made.train(gradient_steps=1, batch_size=ROWS)
    values = {key.removeprefix("train/"): float(value) for key, value in made.logger.name_to_value.items()}
    return {key: values[key] for key in LOGGED[name]} if name in LOGGED else values


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_installed_library(name):
    library = pytest.importorskip("stable_baselines3")
    if not hasattr(library, name):
        library = pytest.importorskip("sb3_contrib")
    found = logged(name, library)
    assert all(math.isfinite(value) for value in found.values())
    assert found == pytest.approx(LOGGED[name], abs=1e-5, rel=1e-5)
