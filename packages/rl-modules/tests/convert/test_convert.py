"""Networks with the parameter names of Stable-Baselines3 and CleanRL, written out, against those loaded from them."""

from itertools import pairwise

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError
from rl.core.specs import Bounded, OneHot
from rl.modules import OneHotCategorical, set_exploration_type
from rl.modules.convert import LAYOUTS, export_state, load_networks

OBS, ACT = 4, 2
LOW, HIGH = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0])
BOX = Bounded(LOW, HIGH)


def mlp(*widths, activation=nn.ReLU, last=()):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1], *last)


class SB3OnPolicy(nn.Module):
    """`ActorCriticPolicy`."""

    def __init__(self, continuous):
        super().__init__()
        self.mlp_extractor = nn.Module()
        self.mlp_extractor.policy_net = nn.Sequential(nn.Linear(OBS, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        self.mlp_extractor.value_net = nn.Sequential(nn.Linear(OBS, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh())
        self.action_net, self.value_net = nn.Linear(6, ACT), nn.Linear(5, 1)
        if continuous:
            self.log_std = nn.Parameter(torch.tensor([-0.5, 0.3]))

    def outputs(self, x, action):
        latent = self.mlp_extractor.policy_net(x)
        found = {"actor": self.action_net(latent), "critic": self.value_net(self.mlp_extractor.value_net(x))}
        return found | ({"scale": self.log_std.exp().expand(len(x), -1)} if hasattr(self, "log_std") else {})


class SB3Dqn(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_net, self.q_net_target = nn.Module(), nn.Module()
        self.q_net.q_net, self.q_net_target.q_net = mlp(OBS, 8, 6, ACT), mlp(OBS, 8, 6, ACT)

    def outputs(self, x, action):
        return {"actor": self.q_net.q_net(x), "target": self.q_net_target.q_net(x)}


def sb3_critics(count):
    critic = nn.Module()
    for i in range(count):
        setattr(critic, f"qf{i}", mlp(OBS + ACT, 8, 6, 1))
    return critic


class SB3Sac(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Module()
        self.actor.latent_pi = nn.Sequential(nn.Linear(OBS, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        self.actor.mu, self.actor.log_std = nn.Linear(6, ACT), nn.Linear(6, ACT)
        nn.init.normal_(self.actor.log_std.weight, std=10)  # reaches the bounds
        self.critic, self.critic_target = sb3_critics(2), sb3_critics(2)

    def outputs(self, x, action):
        latent = self.actor.latent_pi(x)
        squashed = self.actor.mu(latent).tanh()
        found = {"actor": LOW + 0.5 * (squashed + 1) * (HIGH - LOW)}  # `unscale_action`
        found["scale"] = self.actor.log_std(latent).clamp(-20, 2).exp()
        xa = torch.cat([x, action], 1)
        for name, critic in (("critic", self.critic), ("target_critic", self.critic_target)):
            found |= {f"{name}_{i}": getattr(critic, f"qf{i}")(xa) for i in range(2)}
        return found


class SB3Td3(nn.Module):
    def __init__(self, critics):
        super().__init__()
        self.critics = critics
        self.actor, self.actor_target = nn.Module(), nn.Module()
        for one in (self.actor, self.actor_target):
            one.mu = mlp(OBS, 8, 6, ACT, last=(nn.Tanh(),))
        self.critic, self.critic_target = sb3_critics(critics), sb3_critics(critics)

    def outputs(self, x, action):
        scaled = lambda y: LOW + 0.5 * (y + 1) * (HIGH - LOW)
        found = {"actor": scaled(self.actor.mu(x)), "target_actor": scaled(self.actor_target.mu(x))}
        xa = torch.cat([x, action], 1)
        for name, critic in (("critic", self.critic), ("target_critic", self.critic_target)):
            found |= {f"{name}_{i}": getattr(critic, f"qf{i}")(xa) for i in range(self.critics)}
        return found


class CleanPpo(nn.Module):
    def __init__(self, continuous):
        super().__init__()
        self.critic = mlp(OBS, 64, 64, 1, activation=nn.Tanh)
        if continuous:
            self.actor_mean = mlp(OBS, 64, 64, ACT, activation=nn.Tanh)
            self.actor_logstd = nn.Parameter(torch.tensor([[-0.5, 0.3]]))
        else:
            self.actor = mlp(OBS, 64, 64, ACT, activation=nn.Tanh)

    def outputs(self, x, action):
        found = {"actor": (self.actor_mean if hasattr(self, "actor_mean") else self.actor)(x), "critic": self.critic(x)}
        return found | ({"scale": self.actor_logstd.exp().expand(len(x), -1)} if hasattr(self, "actor_logstd") else {})


class CleanDqn(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = mlp(OBS, 120, 84, ACT)

    def outputs(self, x, action):
        return {"actor": self.network(x)}


def dense(*names, widths):
    return nn.ModuleDict({name: nn.Linear(*width) for name, width in zip(names, widths, strict=True)})


class CleanOffPolicy(nn.Module):
    """The networks of one script, which it saves one by one."""

    def __init__(self, stochastic):
        super().__init__()
        self.stochastic = stochastic
        heads = ("fc_mean", "fc_logstd") if stochastic else ("fc_mu",)
        names = ("actor",) if stochastic else ("actor", "target_actor")
        for name in names:
            actor = dense("fc1", "fc2", *heads, widths=[(OBS, 8), (8, 6), *[(6, ACT)] * len(heads)])
            actor.register_buffer("action_scale", (HIGH - LOW) / 2)
            actor.register_buffer("action_bias", (HIGH + LOW) / 2)
            setattr(self, name, actor)
        for name in ("qf1", "qf2", "qf1_target", "qf2_target"):
            setattr(self, name, dense("fc1", "fc2", "fc3", widths=[(OBS + ACT, 8), (8, 6), (6, 1)]))

    def outputs(self, x, action):
        found = {}
        for name in ("actor",) if self.stochastic else ("actor", "target_actor"):
            net = getattr(self, name)
            latent = net["fc2"](net["fc1"](x).relu()).relu()
            mean = net["fc_mean" if self.stochastic else "fc_mu"](latent)
            found[name] = mean.tanh() * net.action_scale + net.action_bias
            if self.stochastic:
                log_std = net["fc_logstd"](latent).tanh()
                found["scale"] = (-5 + 0.5 * (2 - -5) * (log_std + 1)).exp()
        xa = torch.cat([x, action], 1)
        theirs = {
            "critic_0": "qf1",
            "critic_1": "qf2",
            "target_critic_0": "qf1_target",
            "target_critic_1": "qf2_target",
        }
        for name, attribute in theirs.items():
            net = getattr(self, attribute)
            found[name] = net["fc3"](net["fc2"](net["fc1"](xa).relu()).relu())
        return found


CASES = {
    "sb3/ppo": (lambda: SB3OnPolicy(True), None),
    "sb3/a2c": (lambda: SB3OnPolicy(False), None),
    "sb3/dqn": (SB3Dqn, None),
    "sb3/sac": (SB3Sac, BOX),
    "sb3/td3": (lambda: SB3Td3(2), BOX),
    "sb3/ddpg": (lambda: SB3Td3(1), BOX),
    "cleanrl/ppo": (lambda: CleanPpo(False), None),
    "cleanrl/ppo_continuous_action": (lambda: CleanPpo(True), None),
    "cleanrl/dqn": (CleanDqn, None),
    "cleanrl/sac_continuous_action": (lambda: CleanOffPolicy(True), None),
    "cleanrl/td3_continuous_action": (lambda: CleanOffPolicy(False), None),
}
EVERY = pytest.mark.parametrize("layout", CASES)


def loaded(layout):
    torch.manual_seed(0)
    make, spec = CASES[layout]
    theirs = make()
    return theirs, load_networks(layout, theirs.state_dict(), spec)


def test_every_layout_is_tested():
    assert set(CASES) == set(LAYOUTS)


@EVERY
def test_outputs_are_the_same(layout):
    theirs, networks = loaded(layout)
    x, action = torch.randn(32, OBS), torch.randn(32, ACT)
    expected = theirs.outputs(x, action)
    assert set(networks) == set(expected) - {"scale"}
    for name, network in networks.items():
        with set_exploration_type("deterministic"), torch.no_grad():
            out = network(TensorDict(observation=x, action=action, batch_size=[32]))
        if name in ("actor", "target_actor", "target"):
            keys = [key for key in ("logits", "action_value", "action") if key in network.out_keys]
            found = out[keys[0]]
            if "scale" in expected:
                assert_close(out["scale"], expected["scale"], atol=1e-6, rtol=1e-6)
        else:
            found = out[network.out_keys[0]]
        assert_close(found, expected[name], atol=1e-6, rtol=1e-6)


@EVERY
def test_the_way_back_gives_the_same_state(layout):
    theirs, networks = loaded(layout)
    state = export_state(layout, networks)
    expected = theirs.state_dict()
    assert set(state) == set(expected)
    for name, value in expected.items():
        assert_close(state[name], value, atol=1e-6, rtol=0)
    theirs.load_state_dict(state)


@pytest.mark.parametrize("layout", [name for name in CASES if name.startswith("sb3/")])
def test_policies_of_the_installed_library(layout):
    sb3 = pytest.importorskip("stable_baselines3")
    gymnasium = pytest.importorskip("gymnasium")

    class Spaces(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9, 9, (OBS,))
        action_space = gymnasium.spaces.Box(LOW.numpy(), HIGH.numpy())

    name = layout.removeprefix("sb3/")
    if name in ("a2c", "dqn"):
        Spaces.action_space = gymnasium.spaces.Discrete(ACT)
    torch.manual_seed(0)
    model = getattr(sb3, name.upper())("MlpPolicy", Spaces(), device="cpu")
    policy, x, action = model.policy, torch.randn(32, OBS), torch.rand(32, ACT) * 2 - 1
    with torch.no_grad():
        for parameter in policy.parameters():  # targets begin as copies
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        if name in ("ppo", "a2c"):
            expected = {"actor": policy.get_distribution(x).mode(), "critic": policy.predict_values(x)}
        elif name == "dqn":
            expected = {"actor": policy.q_net(x), "target": policy.q_net_target(x)}
        else:
            expected = {"actor": torch.as_tensor(model.predict(x.numpy(), deterministic=True)[0])}
            for critic in ("critic", "critic_target"):
                ours = "target_critic" if critic == "critic_target" else critic
                expected |= {f"{ours}_{i}": q for i, q in enumerate(getattr(policy, critic)(x, action))}
        written = {"actor": "action_value" if name == "dqn" else "action"}
        written |= {"target": "action_value", "critic": "state_value"}
        networks = load_networks(layout, policy.state_dict(), BOX if name in ("sac", "td3", "ddpg") else None)
        for key, value in expected.items():
            with set_exploration_type("deterministic"):
                out = networks[key](TensorDict(observation=x, action=action, batch_size=[32]))
            assert_close(out[written.get(key, "state_action_value")], value, atol=1e-6, rtol=1e-6)


def test_states_of_several_networks_may_be_nested_and_targets_left_out():
    torch.manual_seed(0)
    theirs = CleanOffPolicy(True)
    state = {name: getattr(theirs, name).state_dict() for name in ("actor", "qf1", "qf2")}
    networks = load_networks("cleanrl/sac_continuous_action", state)
    assert set(networks) == {"actor", "critic_0", "critic_1"}
    x = torch.randn(5, OBS)
    dist = networks["actor"].get_dist(TensorDict(observation=x, batch_size=[5]))
    assert_close(dist.deterministic_sample, theirs.outputs(x, torch.zeros(5, ACT))["actor"])
    assert set(export_state("cleanrl/sac_continuous_action", networks)) == {
        name for name in theirs.state_dict() if "target" not in name
    }


def test_one_hot_actions_by_the_spec():
    networks = load_networks("cleanrl/ppo", CleanPpo(False).state_dict(), OneHot(ACT))
    assert networks["actor"].distribution_class is OneHotCategorical


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_networks("sb3/trpo", {}), "no layout is called 'sb3/trpo'"),
        (lambda: load_networks("sb3/ppo", CleanDqn().state_dict()), "the layout of the algorithm that wrote the file"),
        (
            lambda: load_networks("cleanrl/dqn", {**CleanDqn().state_dict(), "extra": torch.zeros(1)}),
            r"has no \['extra'\]",
        ),
        (lambda: export_state("sb3/ppo", {}), r"\['actor', 'critic'\], got \[\]"),
        (
            lambda: load_networks(
                "cleanrl/dqn", nn.ModuleDict({"network": nn.Sequential(nn.ReLU(), nn.Linear(2, 2))}).state_dict()
            ),
            "network.0, network.2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
