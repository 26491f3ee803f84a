"""Losses and returns of groups of agents: against the forms of one agent, permutations, masks, formulas."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Independent, Normal

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.objectives import (
    GAE,
    ClipPPOLoss,
    DDPGLoss,
    DQNLoss,
    IPPOLoss,
    MAPPOLoss,
    MultiAgentGAE,
    QMixerLoss,
    SACLoss,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
)

B, N, OBS, ACT = 6, 3, 4, 2


def normal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def key(name, group):
    return (group, name) if group else name


def actor(group="agents", net=None):
    body = nn.Sequential(net or nn.Linear(OBS, 2 * ACT), NormalParamExtractor())
    loc, scale = key("loc", group), key("scale", group)
    head = ProbabilisticTensorDictModule(
        {"loc": loc, "scale": scale},
        [key("action", group)],
        distribution_class=normal,
        return_log_prob=True,
        log_prob_key=key("action_log_prob", group),
    )
    return ProbabilisticTensorDictSequential(TensorDictModule(body, [key("observation", group)], [loc, scale]), head)


def critic(group="agents", net=None):
    return TensorDictModule(net or nn.Linear(OBS, 1), [key("observation", group)], [key("state_value", group)])


def q_critic(group="agents", net=None):
    both = TensorDictModule(
        lambda x, a: torch.cat([x, a], -1), [key("observation", group), key("action", group)], [key("both", group)]
    )
    value = key("state_action_value", group)
    return TensorDictSequential(both, TensorDictModule(net or nn.Linear(OBS + ACT, 1), [key("both", group)], [value]))


def batch(agents=N, *, size=(B,), policy=None, shared=False):
    """Steps of a group, with done flags at the root."""
    size = torch.Size(size)
    td = TensorDict(agents=TensorDict(observation=torch.randn(*size, agents, OBS)), batch_size=size)
    td["agents", "action"] = torch.randn(*size, agents, ACT)
    if policy is not None:
        td = policy(td).detach()
        td["agents", "action_log_prob"] = td["agents", "action_log_prob"] + 0.1 * torch.randn(*size, agents)
    done = torch.rand(*size, 1) < 0.2
    after = TensorDict(
        agents=TensorDict(observation=torch.randn(*size, agents, OBS), reward=torch.randn(*size, agents, 1)),
        done=done,
        terminated=done & (torch.rand(*size, 1) < 0.5),
        batch_size=size,
    )
    if shared:
        after["reward"] = torch.randn(*size, 1)
    return td.set("next", after)


def single(td):
    """The batch of one agent without the group."""
    flat = TensorDict({name: value.squeeze(len(td.batch_size)) for name, value in td["agents"].items()}, td.batch_size)
    after = {name: value.squeeze(len(td.batch_size)) for name, value in td["next", "agents"].items()}
    after |= {name: td["next", name] for name in ("done", "terminated")}
    return flat.set("next", TensorDict(after, td.batch_size))


def test_gae_of_agents_is_gae_of_each():
    value = critic()
    td = batch(size=(2, 7))
    out = MultiAgentGAE(gamma=0.9, lmbda=0.8, value_network=value)(td.clone())
    for agent in range(N):
        one = td.clone()
        for part in (one["agents"], one["next", "agents"]):
            for name, entry in list(part.items()):
                part[name] = entry[:, :, agent : agent + 1]
        plain = GAE(gamma=0.9, lmbda=0.8, value_network=critic(None, value.module))(single(one))
        for name in ("advantage", "value_target"):
            torch.testing.assert_close(out["agents", name][:, :, agent], plain[name])


def test_gae_repeats_a_shared_reward_and_reads_flags_of_agents():
    value = critic()
    td = batch(size=(2, 7), shared=True)
    each = td.clone()
    each["next", "agents", "reward"] = td["next", "reward"].unsqueeze(-2).expand(2, 7, N, 1)
    for name in ("done", "terminated"):
        each["next", "agents", name] = td["next", name].unsqueeze(-2).expand(2, 7, N, 1)
    shared, own = MultiAgentGAE(value_network=value), MultiAgentGAE(value_network=value)
    shared.set_keys(reward="reward")
    own.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    torch.testing.assert_close(shared(td)["agents", "advantage"], own(each)["agents", "advantage"])


@pytest.mark.parametrize("make", [MAPPOLoss, IPPOLoss])
def test_ppo_of_one_agent_is_that_without_a_group(make):
    policy, value = actor(), critic()
    td = batch(1, size=(4, 5), policy=policy)
    loss = make(policy, value, normalize_advantage_exclude_dims=())
    loss.make_value_estimator(gamma=0.9)
    plain = ClipPPOLoss(actor(None, policy.module[0].module[0]), critic(None, value.module), normalize_advantage=True)
    plain.make_value_estimator("gae", gamma=0.9)
    for name, found in loss(td).items():
        torch.testing.assert_close(found, plain(single(td))[name], msg=name)


def off_policy(make, group, nets):
    names = {"state_action_value": key("state_action_value", group), "reward": key("reward", group)}
    loss = make(actor(group, nets[0]), q_critic(group, nets[1]))
    loss.set_keys(**names)
    return loss


@pytest.mark.parametrize("make", [DDPGLoss, SACLoss])
def test_off_policy_losses_of_one_agent_are_those_without_a_group(make):
    nets = nn.Linear(OBS, 2 * ACT), nn.Linear(OBS + ACT, 1)
    torch.manual_seed(0)
    grouped = off_policy(make, "agents", nets)
    torch.manual_seed(0)
    plain = off_policy(make, None, nets)
    td = batch(1)
    td["priority_weight"] = torch.rand(B)
    alone = single(td).set("priority_weight", td["priority_weight"])
    torch.manual_seed(1)
    expected = plain(alone)
    torch.manual_seed(1)
    for name, found in grouped(td).items():
        torch.testing.assert_close(found, expected[name], msg=name)
    torch.testing.assert_close(td["td_error"], alone["td_error"])


def permuted(td, order):
    td = td.clone()
    for part in (td["agents"], td["next", "agents"]):
        for name, entry in list(part.items()):
            part[name] = entry[:, order]
    return td


def test_permuted_agents_have_the_same_losses_with_shared_parameters():
    policy = actor()
    td = batch(policy=policy)
    for name in ("advantage", "value_target"):
        td["agents", name] = torch.randn(B, N, 1)
    loss = MAPPOLoss(policy, critic())
    for name, found in loss(permuted(td, [2, 0, 1])).items():
        torch.testing.assert_close(found, loss(td)[name], msg=name)


def garbled(td):
    """The batch with NaN, and integers out of range, at agents that do not act."""
    td = td.clone()
    now, later = td["agents", "mask"], td["next", "agents", "mask"]
    for part, observed in ((td["agents"], now), (td["next", "agents"], later)):
        for name, entry in list(part.items()):
            mask = observed if name == "observation" else now
            inside = mask.reshape(*mask.shape, *[1] * (entry.ndim - mask.ndim))
            if name != "mask":
                part[name] = entry.where(inside, torch.nan if entry.is_floating_point() else -7)
    return td


class Central(nn.Module):
    """An output for each agent, of the inputs of all."""

    def __init__(self, width, out=1):
        super().__init__()
        self.net, self.out = nn.Linear(width * N, out * N), out

    def forward(self, x):
        return self.net(x.flatten(-2)).unflatten(-1, (N, self.out))


def q_network():
    return TensorDictModule(nn.Linear(OBS, ACT), [("agents", "observation")], [("agents", "action_value")])


def q_team():
    team = TensorDictModule(lambda values: values.sum(-2), [("agents", "chosen_action_value")], ["chosen_action_value"])
    loss = QMixerLoss(q_network(), team, action_space="categorical")
    loss.set_keys(reward=("agents", "reward"))
    return loss


class SeenTeam(nn.Module):
    """A mixer that reads the observations of all agents."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(OBS * N, N)

    def forward(self, values, seen):
        return (values * self.net(seen.flatten(-2)).unsqueeze(-1)).sum(-2)


def q_seen():
    keys = [("agents", "chosen_action_value"), ("agents", "observation")]
    loss = QMixerLoss(q_network(), TensorDictModule(SeenTeam(), keys, ["chosen_action_value"]))
    loss.set_keys(reward=("agents", "reward"))
    return loss


def q_agents():
    loss = DQNLoss(q_network())
    loss.set_keys(**{name: ("agents", name) for name in ("action_value", "action", "reward", "chosen_action_value")})
    return loss


def masked_batch(policy, size=(B,)):
    td = batch(size=size, policy=policy)
    mask = torch.rand(*size, N) < 0.6
    mask[0], mask[1] = True, False
    td["agents", "mask"], td["next", "agents", "mask"] = mask, torch.rand(*size, N) < 0.6
    td["next", "terminated"] = td["next", "done"].clone()
    return td


@pytest.mark.parametrize("name", ["mappo", "ddpg", "sac", "dqn", "qmix", "qmix of observations"])
def test_agents_that_do_not_act_change_nothing(name):
    policy = actor()
    nets = nn.Linear(OBS, 2 * ACT), Central(OBS + ACT)
    loss = {
        "mappo": lambda: MAPPOLoss(policy, critic(net=Central(OBS))),
        "ddpg": lambda: off_policy(DDPGLoss, "agents", nets),
        "sac": lambda: off_policy(SACLoss, "agents", nets),
        "dqn": q_agents,
        "qmix": q_team,
        "qmix of observations": q_seen,
    }[name]()
    td = masked_batch(policy)
    for entry in ("advantage", "value_target"):
        td["agents", entry] = torch.randn(B, N, 1)
    if name not in ("mappo", "ddpg", "sac"):
        td["agents", "action"] = torch.randint(ACT, (B, N))
    outs, grads = [], []
    for data in (td.clone(), garbled(td)):
        torch.manual_seed(0)
        loss.zero_grad()
        out = loss(data)
        sum(v for k, v in out.items() if k.startswith("loss")).backward()
        outs.append(out)
        grads.append({key: p.grad.clone() for key, p in loss.named_parameters() if p.grad is not None})
        assert all(value.isfinite().all() for value in [*out.values(), *grads[-1].values()])
    torch.testing.assert_close(dict(outs[0].items()), dict(outs[1].items()))
    torch.testing.assert_close(*grads)


def test_a_centralized_critic_reads_no_action_of_an_agent_that_does_not_act():
    """It reads zeros in the critic's loss, in the target and in the actor's loss."""
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            seen.append(x[..., OBS:].detach())
            return super().forward(x)

    net = nn.Sequential(nn.Linear(OBS, ACT), nn.Sigmoid())
    policy = TensorDictModule(net, [("agents", "observation")], [("agents", "action")])
    loss = DDPGLoss(policy, q_critic(net=Watching(OBS + ACT, 1)))
    loss.set_keys(**{name: ("agents", name) for name in ("action", "state_action_value", "reward")})
    td = masked_batch(None)
    loss(td)
    now, later = td["agents", "mask"], td["next", "agents", "mask"]
    acts = [(action != 0).any(-1) for action in seen]
    assert len(acts) == 3
    assert sum(one.equal(now) for one in acts) == 2  # actions of the batch and of the actor
    assert sum(one.equal(later) for one in acts) == 1  # actions of the target


def of_group(make, value, **options):
    """An estimator with the keys of the group."""
    estimate = make(value_network=value, **options)
    estimate.set_keys(**{name: ("agents", str(GAE.default_keys[name])) for name in ("value", *MultiAgentGAE._grouped)})
    return estimate


def continued(td):
    """The batch as it was collected: next entries are those of the following step."""
    for name in ("observation", "mask"):
        td["next", "agents", name][:, :-1] = td["agents", name][:, 1:]
    return td


@pytest.mark.parametrize("options", [{}, {"average_gae": True}, {"shifted": True}])
@pytest.mark.parametrize("make", [MultiAgentGAE, GAE])
def test_agents_that_do_not_act_change_no_advantage(make, options):
    td = continued(masked_batch(None, (4, 6)))
    estimate = of_group(make, critic(net=Central(OBS)), **options)
    clean, other = estimate(td.clone()), estimate(garbled(td))
    assert other["agents", "advantage"].isfinite().all()
    for name in ("advantage", "value_target", "state_value"):
        torch.testing.assert_close(clean["agents", name], other["agents", name])


@pytest.mark.parametrize("kind", ["td0", "td1", "td-lambda", "gae", "multi-agent-gae"])
def test_agents_that_do_not_act_change_no_loss_that_estimates(kind):
    policy = actor()
    td = continued(masked_batch(policy, (4, 6)))
    loss = MAPPOLoss(policy, critic(net=Central(OBS)))
    loss.make_value_estimator(kind)
    clean, other = loss(td.clone()), loss(garbled(td))
    for name, found in other.items():
        assert found.isfinite(), name
        torch.testing.assert_close(found, clean[name], msg=name)


def test_estimators_of_agents_agree_where_some_do_not_act():
    """TD(lambda) is GAE, TD(1) is GAE with lambda 1, and where all act TD(0) is GAE with lambda 0."""
    td, value = continued(masked_batch(None, (4, 6))), critic(net=Central(OBS))
    gae, lmbda = of_group(GAE, value, lmbda=0.8), of_group(TDLambdaEstimator, value, lmbda=0.8)
    for name in ("advantage", "value_target"):
        expected = of_group(MultiAgentGAE, value, lmbda=0.8)(td.clone())["agents", name]
        for estimate in (gae, lmbda):
            torch.testing.assert_close(estimate(td.clone())["agents", name], expected)
        expected = of_group(MultiAgentGAE, value, lmbda=1.0)(td.clone())["agents", name]
        torch.testing.assert_close(of_group(TD1Estimator, value)(td.clone())["agents", name], expected)
    for part in (td["agents"], td["next", "agents"]):
        part["mask"] = torch.ones(4, 6, N, dtype=torch.bool)
    expected = of_group(MultiAgentGAE, value, lmbda=0.0)(td.clone())["agents", "advantage"]
    torch.testing.assert_close(of_group(TD0Estimator, value)(td.clone())["agents", "advantage"], expected)


def test_an_agent_that_leaves_has_no_next_value_in_td0():
    td, value = masked_batch(None), critic(net=Central(OBS))
    seen = td["next", "agents", "observation"]
    following = value.module(seen.where(td["next", "agents", "mask"].unsqueeze(-1), 0)).detach()
    td["next", "done"][:], td["next", "terminated"][:] = False, False
    expected = td["next", "agents", "reward"] + 0.9 * following * td["next", "agents", "mask"].unsqueeze(-1)
    found = of_group(TD0Estimator, value, gamma=0.9)(td)["agents", "value_target"]
    torch.testing.assert_close(found[td["agents", "mask"]], expected[td["agents", "mask"]])


def test_gae_passes_over_steps_in_which_an_agent_does_not_act():
    gamma, lmbda = 0.9, 0.8
    value = critic()
    td = batch(size=(1, 7))
    td["next", "done"][:], td["next", "terminated"][:] = False, False
    td["next", "agents", "observation"][:, :-1] = td["agents", "observation"][:, 1:]
    mask = torch.tensor([True, False, True, False, False, True, False]).reshape(1, 7, 1).expand(1, 7, N)
    after = torch.cat([mask[:, 1:], torch.ones(1, 1, N, dtype=torch.bool)], 1)
    td["agents", "mask"], td["next", "agents", "mask"] = mask, after
    out = MultiAgentGAE(gamma=gamma, lmbda=lmbda, value_network=value)(td.clone())
    seen = torch.cat([td["agents", "observation"][0], td["next", "agents", "observation"][:, -1]])
    values, reward = value.module(seen).squeeze(-1).detach(), td["next", "agents", "reward"][0, ..., 0]
    acts = [0, 2, 5, 7]  # the last is after the batch
    expected, following = torch.zeros(N), {}
    for start, end in reversed(list(pairwise(acts))):
        discount = gamma ** (end - start)
        delta = reward[start] + discount * values[end] - values[start]
        expected = delta + (gamma * lmbda) ** (end - start) * expected
        following[start] = expected
    for step, advantage in following.items():
        torch.testing.assert_close(out["agents", "advantage"][0, step, :, 0], advantage)


def test_a_player_learns_from_the_reward_of_the_turn_of_another_but_not_after_its_end():
    """Two players take turns; the second is out after step 2, the first ends in the turn that it does not have."""
    flag = torch.zeros(1, 5, 2, 1, dtype=torch.bool)
    mask = torch.tensor([[True, False], [False, True], [True, False], [False, False], [False, False]]).unsqueeze(0)
    over = flag.clone()
    over[:, 2:, 1], over[:, 4:, 0] = True, True
    td = TensorDict(agents=TensorDict(mask=mask, observation=torch.randn(1, 5, 2, OBS)), batch_size=[1, 5])
    td["agents", "done"] = torch.cat([flag[:, :1], over[:, :-1]], 1)
    after = TensorDict(mask=torch.cat([mask[:, 1:], mask[:, -1:]], 1), observation=torch.randn(1, 5, 2, OBS))
    after["observation"][:, :-1] = td["agents", "observation"][:, 1:]
    after["done"], after["terminated"] = over, over.clone()
    after["reward"] = torch.zeros(1, 5, 2, 1)
    after["reward"][0, :, 0, 0] = torch.tensor([0.0, 0.0, 0.0, 0.0, -1.0])
    after["reward"][0, :, 1, 0] = torch.tensor([0.0, 0.0, 2.0, torch.nan, torch.nan])
    td["next"] = TensorDict(agents=after, batch_size=[1, 5])
    estimate = MultiAgentGAE(gamma=0.5, lmbda=1.0, value_network=critic())
    estimate.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    target = estimate(td)["agents", "value_target"]
    assert target.isfinite().all()
    torch.testing.assert_close(target[0, [0, 2], 0, 0], torch.tensor([-(0.5**4), -(0.5**2)]))
    torch.testing.assert_close(target[0, 1, 1, 0], torch.tensor(1.0))


@pytest.mark.parametrize("flags", ["root", "agents"])
def test_the_observation_at_a_truncation_counts(flags):
    """An environment that cuts the episode has no agent that acts next; the next value is that of the last state."""
    td = batch()
    done = torch.rand(B, 1) < 0.5
    done[0], done[1] = True, False
    over = done & (torch.rand(B, 1) < 0.3)
    over[0] = False
    td["next", "done"], td["next", "terminated"] = done, over
    keys = {}
    if flags == "agents":
        td["next", "agents", "done"] = done.unsqueeze(1).expand(B, N, 1).clone()
        td["next", "agents", "terminated"] = over.unsqueeze(1).expand(B, N, 1).clone()
        keys = {"done": ("agents", "done"), "terminated": ("agents", "terminated")}
    for make in (q_seen, lambda: MultiAgentGAE(value_network=critic(net=Central(OBS)))):
        part, plain = make(), td.clone()
        part.set_keys(**keys)
        plain["agents", "action"] = torch.randint(ACT, (B, N))
        masked = plain.clone()
        masked["agents", "mask"] = torch.ones(B, N, dtype=torch.bool)
        masked["next", "agents", "mask"] = ~done.expand(B, N)
        if isinstance(part, MultiAgentGAE):
            found, expected = (part(one.unsqueeze(1))["agents", "value_target"] for one in (masked, plain))
        else:
            found, expected = (part(one)["loss"] for one in (masked, plain))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("norm", [None, "norm"])
def test_a_batch_without_an_agent_that_acts_has_losses_of_0(norm):
    policy = actor()
    td = batch(policy=policy)
    for name in ("advantage", "value_target"):
        td["agents", name] = torch.randn(B, N, 1)
    td["agents", "mask"] = td["next", "agents", "mask"] = torch.zeros(B, N, dtype=torch.bool)
    norm = norm and Norm()
    loss = MAPPOLoss(policy, critic(), value_norm=norm)
    out = loss(garbled(td))
    assert all(out[name] == 0 for name in set(out.keys()) - {"explained_variance"})
    sum(v for k, v in out.items() if k.startswith("loss")).backward()
    assert all(parameter.grad.eq(0).all() for parameter in loss.parameters() if parameter.grad is not None)
    assert norm is None or norm.updates == 0


def test_a_team_in_which_no_agent_acts_has_the_value_0():
    td = batch()
    td["agents", "action"] = torch.randint(ACT, (B, N))
    td["agents", "mask"] = td["next", "agents", "mask"] = torch.zeros(B, N, dtype=torch.bool)
    td["next", "terminated"] = td["next", "done"].clone()
    for loss in (q_team(), q_agents()):
        out = loss(garbled(td))
        assert all(value == 0 for value in out.values())


class Legal(torch.distributions.Categorical):
    """A categorical distribution over the actions that a mask allows; there is one."""

    def __init__(self, logits, mask):
        assert mask.dtype is torch.bool
        assert mask.any(-1).all()
        super().__init__(logits=logits.masked_fill(~mask, -1e9))


def legal_values(values, mask):
    assert mask.dtype is torch.bool
    assert mask.any(-1).all()
    return values.masked_fill(~mask, -1e9)


@pytest.mark.parametrize("acting", ["some", "none", "none next"])
def test_masks_of_actions_stay_masks_beside_those_of_agents(acting):
    td = masked_batch(None)
    for part in (td["agents"], td["next", "agents"]):
        part["action_mask"] = torch.tensor([True, False]).expand(B, N, ACT).clone()
        part["action_mask"][~part["mask"]] = False  # idle agents have no legal action
    td["agents", "action"] = torch.zeros(B, N, dtype=torch.int64)
    td["agents", "action_log_prob"] = torch.zeros(B, N)
    for name in ("advantage", "value_target"):
        td["agents", name] = torch.randn(B, N, 1)
    if acting != "some":
        td["next", "agents", "mask"][:] = td["next", "agents", "action_mask"][:] = False
    if acting == "none":
        td["agents", "mask"][:] = td["agents", "action_mask"][:] = False
    seen, logits, legal = (("agents", name) for name in ("observation", "logits", "action_mask"))
    head = ProbabilisticTensorDictModule(
        {"logits": logits, "mask": legal},
        [("agents", "action")],
        distribution_class=Legal,
        return_log_prob=True,
        log_prob_key=("agents", "action_log_prob"),
    )
    policy = ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(OBS, ACT), [seen], [logits]), head)
    out = MAPPOLoss(policy, critic())(td.clone())
    torch.testing.assert_close(out["entropy"], torch.tensor(0.0))  # one action is legal
    torch.testing.assert_close(out["kl_approx"], torch.tensor(0.0))
    value = ("agents", "action_value")
    net = TensorDictSequential(
        TensorDictModule(nn.Linear(OBS, ACT), [seen], [value]), TensorDictModule(legal_values, [value, legal], [value])
    )
    team = TensorDictModule(lambda values: values.sum(-2), [("agents", "chosen_action_value")], ["chosen_action_value"])
    loss = QMixerLoss(net, team, action_space="categorical")
    loss.set_keys(reward=("agents", "reward"))
    assert loss(td)["loss"].isfinite()


@pytest.mark.parametrize("shape", [(N, 1), (N - 1,)])
def test_the_mask_of_agents_has_their_shape(shape):
    td = batch(policy=actor())
    td["agents", "action"] = torch.randint(ACT, (B, N))
    for name in ("advantage", "value_target"):
        td["agents", name] = torch.randn(B, N, 1)
    wrong = torch.ones(B, *shape, dtype=torch.bool)
    for part in (MAPPOLoss(actor(), critic()), q_team(), MultiAgentGAE(value_network=critic())):
        with pytest.raises(ShapeError, match=r"'mask'\) is torch.bool .* a flag of each agent: true for those"):
            part(td.clone().set(("agents", "mask"), wrong))
    td["agents", "mask"] = torch.ones(B, N, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"\('next', 'agents', 'mask'\) is .*, expected bool \[6, 3\]"):
        q_team()(td.set(("next", "agents", "mask"), wrong))


def test_normalized_advantages_are_those_of_agents_that_act():
    td = batch(size=(4, 5))
    mask = torch.rand(4, 5, N) < 0.6
    td["agents", "mask"] = mask
    plain, normalized = (MultiAgentGAE(value_network=critic(), average_gae=flag) for flag in (False, True))
    normalized.value_network.load_state_dict(plain.value_network.state_dict())
    raw = plain(td.clone())["agents", "advantage"]
    expected = (raw - raw[mask].mean()) / raw[mask].std(correction=0)
    torch.testing.assert_close(normalized(td)["agents", "advantage"], expected)


def test_the_end_of_the_episode_ends_each_agent():
    td = batch(size=(2, 7))
    td["next", "agents", "done"] = td["next", "agents", "terminated"] = torch.zeros(2, 7, N, 1, dtype=torch.bool)
    td["next", "terminated"] = torch.zeros(2, 7, 1, dtype=torch.bool)
    td["next", "done"][:, 3] = True
    td["collector", "traj_ids"] = (td["next", "done"].cumsum(1) - td["next", "done"].long()).squeeze(-1)
    own, root = MultiAgentGAE(value_network=critic()), MultiAgentGAE(value_network=critic())
    root.value_network.load_state_dict(own.value_network.state_dict())
    own.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    expected = root(td.clone())["agents", "advantage"]
    torch.testing.assert_close(own(td)["agents", "advantage"], expected)


@pytest.mark.parametrize("terminated", [True, False])
def test_an_end_of_the_episode_is_terminal_for_agents_that_are_not_done_if_it_is_at_the_root(terminated):
    """The first agent truncates by itself, which is no terminal state; the others are ended by the root."""
    td = batch()
    td["agents", "action"] = torch.randint(ACT, (B, N))
    td["next", "done"][:], td["next", "terminated"][:] = True, terminated
    over = torch.zeros(B, N, 1, dtype=torch.bool)
    td["next", "agents", "terminated"] = over
    td["next", "agents", "done"] = over.clone()
    td["next", "agents", "done"][:, 0] = True
    keys = {"done": ("agents", "done"), "terminated": ("agents", "terminated")}
    lives = ~over
    lives[:, 1:] = not terminated
    value = critic()
    estimate = MultiAgentGAE(gamma=0.9, value_network=value)
    estimate.set_keys(**keys)
    following = value.module(td["next", "agents", "observation"]).detach()
    expected = td["next", "agents", "reward"] + 0.9 * following * lives
    torch.testing.assert_close(estimate(td.clone().unsqueeze(1))["agents", "value_target"].squeeze(1), expected)
    loss = q_agents()
    loss.set_keys(**keys)
    following = loss.target_value_network.module(td["next", "agents", "observation"]).amax(-1, keepdim=True)
    target = td["next", "agents", "reward"] + 0.99 * following * lives
    torch.testing.assert_close(loss(td)["target_value"], target.mean())


def test_an_agent_that_waits_at_a_truncation_has_the_value_of_the_last_state():
    """The first agent acts in the first step and the second in the second one, which the episode is cut after."""
    td = batch(2, size=(1, 2))
    td["next", "agents", "observation"][:, 0] = td["agents", "observation"][:, 1]
    td["next", "done"], td["next", "terminated"] = torch.tensor([[[False], [True]]]), torch.zeros(1, 2, 1).bool()
    td["agents", "mask"] = torch.eye(2, dtype=torch.bool).unsqueeze(0)
    td["next", "agents", "mask"] = torch.tensor([[[False, True], [False, False]]])
    td["agents", "done"] = torch.zeros(1, 2, 2, 1, dtype=torch.bool)
    td["next", "agents", "done"] = td["next", "done"].unsqueeze(-2).expand(1, 2, 2, 1).clone()
    td["next", "agents", "terminated"] = torch.zeros(1, 2, 2, 1, dtype=torch.bool)
    estimate = MultiAgentGAE(gamma=0.5, lmbda=1.0, value_network=critic())
    estimate.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    last = estimate.value_network.module(td["next", "agents", "observation"][0, 1]).detach()
    reward = td["next", "agents", "reward"][0]
    target = estimate(td)["agents", "value_target"][0]
    torch.testing.assert_close(target[0, 0], reward[0, 0] + 0.5 * reward[1, 0] + 0.25 * last[0])
    torch.testing.assert_close(target[1, 1], reward[1, 1] + 0.5 * last[1])


def test_the_end_of_a_batch_is_a_cut_for_agents_that_wait():
    """Two agents alternate; the second to last act is followed by the last state, two steps later."""
    td = batch(2, size=(1, 4))
    turn = torch.eye(2, dtype=torch.bool).repeat(2, 1).unsqueeze(0)
    td["next", "done"], td["next", "terminated"] = torch.zeros(2, 1, 4, 1, dtype=torch.bool)
    td["agents", "mask"], td["next", "agents", "mask"] = turn, ~turn
    td["next", "agents", "observation"][:, :-1] = td["agents", "observation"][:, 1:]
    for name in ("done", "terminated"):
        td["agents", name], td["next", "agents", name] = torch.zeros(2, 1, 4, 2, 1, dtype=torch.bool)
    estimate = MultiAgentGAE(gamma=0.5, lmbda=1.0, value_network=critic())
    estimate.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    last = estimate.value_network.module(td["next", "agents", "observation"][0, 3]).detach()
    reward = td["next", "agents", "reward"][0]
    target = estimate(td.clone())["agents", "value_target"][0]
    torch.testing.assert_close(target[2, 0], reward[2, 0] + 0.5 * reward[3, 0] + 0.25 * last[0])
    torch.testing.assert_close(target[3, 1], reward[3, 1] + 0.5 * last[1])
    td["agents", "done"][:, 3, 1] = td["next", "agents", "done"][:, 2:, 1] = True  # the second has left
    td["next", "agents", "terminated"][:, 2:, 1] = True
    td["agents", "mask"][:, 3, 1] = td["next", "agents", "mask"][:, 2, 1] = False
    target = estimate(td)["agents", "value_target"][0]
    torch.testing.assert_close(target[1, 1], reward[1, 1] + 0.5 * reward[2, 1])


@pytest.mark.parametrize("name", ["ddpg", "sac", "dqn"])
def test_an_agent_that_does_not_act_next_has_the_next_value_0(name):
    nets = nn.Linear(OBS, 2 * ACT), nn.Linear(OBS + ACT, 1)
    makes = {"ddpg": lambda: off_policy(DDPGLoss, "agents", nets), "sac": lambda: off_policy(SACLoss, "agents", nets)}
    loss = makes.get(name, q_agents)()
    td = masked_batch(actor())
    if name == "dqn":
        td["agents", "action"] = torch.randint(ACT, (B, N))
    td["agents", "mask"][:] = True
    td["next", "agents", "mask"][:] = td["next", "done"][:] = td["next", "terminated"][:] = False
    torch.testing.assert_close(loss(td)["target_value"], td["next", "agents", "reward"].mean())


def test_a_team_goes_on_while_an_agent_waits():
    """The first agent acts and leaves; the second waits and acts next."""
    loss = q_team()
    loss.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    td = batch(2).exclude(("next", "done"), ("next", "terminated"))
    td["agents", "action"] = torch.randint(ACT, (B, 2))
    first = torch.tensor([True, False]).expand(B, 2).clone()
    td["agents", "mask"], td["next", "agents", "mask"] = first, ~first
    td["next", "agents", "done"] = td["next", "agents", "terminated"] = first.unsqueeze(-1)
    following = loss.target_value_network.module(td["next", "agents", "observation"])[:, 1].amax(-1)
    target = td["next", "agents", "reward"][:, 0, 0] / 2 + 0.99 * following
    torch.testing.assert_close(loss(td)["target_value"], target.mean())


def test_an_end_of_another_group_does_not_end_this_one():
    td = batch(size=(2, 7)).exclude(("next", "done"), ("next", "terminated"))
    flag = torch.zeros(2, 7, N, 1, dtype=torch.bool)
    td["next", "agents", "done"] = td["next", "agents", "terminated"] = flag
    td["next", "others", "done"] = flag[:, :, :1].clone()
    estimate = MultiAgentGAE(value_network=critic())
    estimate.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    expected = estimate(td.clone())["agents", "advantage"]
    td["next", "others", "done"][:, 3] = True
    td["collector", "traj_ids"] = (torch.arange(7) > 3).long().expand(2, 7)
    torch.testing.assert_close(estimate(td.clone())["agents", "advantage"], expected)
    td["collector", "traj_ids"] = (torch.arange(7) > 4).long().expand(2, 7)
    with pytest.raises(ContractError, match="needs steps in time order"):
        estimate(td)


class Norm(nn.Module):
    """Fixed statistics, that count their updates."""

    def __init__(self):
        super().__init__()
        self.rows = self.updates = 0

    def update(self, value):
        self.updates += 1
        self.rows += value.numel()

    def normalize(self, value):
        return (value - 2) / 3

    def denormalize(self, value):
        return value * 3 + 2


def test_a_normalized_critic_learns_normalized_targets():
    policy, value, norm = actor(), critic(), Norm()
    td = batch(size=(2, 5), policy=policy)
    loss = MAPPOLoss(policy, value, value_norm=norm, loss_critic_type="l2")
    loss.make_value_estimator()
    wide = critic(None, None)
    wide = TensorDictSequential(
        value, TensorDictModule(norm.denormalize, [("agents", "state_value")], [("agents", "state_value")])
    )
    expected = MultiAgentGAE(value_network=wide)
    expected.set_keys(
        value=("agents", "state_value"),
        reward=("agents", "reward"),
        advantage=("agents", "advantage"),
        value_target=("agents", "value_target"),
    )
    target = expected(td.clone())["agents", "value_target"]
    out = loss(td)
    raw = value(td.clone())["agents", "state_value"]
    torch.testing.assert_close(out["loss_critic"], (raw - norm.normalize(target)).square().mean())
    assert norm.rows == 2 * 5 * N
    loss.eval()(td)
    assert norm.rows == 2 * 5 * N
    with pytest.raises(ArgumentError, match="it has update, normalize and denormalize"):
        MAPPOLoss(policy, value, value_norm=nn.Identity())


class Team(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(N))

    def forward(self, values, state):
        return (values[..., 0] * self.weight).sum(-1, keepdim=True) + state.sum(-1, keepdim=True)


@pytest.mark.parametrize("double", [False, True])
def test_qmix_is_its_formula(double):
    net = TensorDictModule(nn.Linear(OBS, ACT), [("agents", "observation")], [("agents", "action_value")])
    mixer = TensorDictModule(Team(), [("agents", "chosen_action_value"), "state"], ["chosen_action_value"])
    loss = QMixerLoss(net, mixer, double_dqn=double, gamma=0.9)
    for part in (loss.target_value_network, loss.target_mixer_network):
        for parameter in part.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    td = batch(shared=True)
    td["agents", "action"] = torch.randint(ACT, (B, N))
    td["state"], td["next", "state"] = torch.randn(B, 5), torch.randn(B, 5)
    q = net.module(td["agents", "observation"])
    chosen = q.gather(-1, td["agents", "action"].unsqueeze(-1))
    predicted = mixer.module(chosen, td["state"])
    following = loss.target_value_network.module(td["next", "agents", "observation"])
    choice = net.module(td["next", "agents", "observation"]) if double else following
    best = following.gather(-1, choice.argmax(-1, keepdim=True))
    team = loss.target_mixer_network.module(best, td["next", "state"])
    target = td["next", "reward"] + 0.9 * team * ~td["next", "terminated"]
    out = loss(td)
    torch.testing.assert_close(out["loss"], (predicted - target).square().mean())
    torch.testing.assert_close(td["td_error"], (predicted - target).detach().abs().squeeze(-1))
    out["loss"].backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())
    deepcopy(loss)(td)


def test_independent_q_learning_is_dqn_of_each_agent():
    net = nn.Linear(OBS, ACT)
    names = ("action_value", "action", "reward", "chosen_action_value")
    loss = DQNLoss(TensorDictModule(net, [("agents", "observation")], [("agents", "action_value")]))
    loss.set_keys(**{name: ("agents", name) for name in names})
    td = batch()
    td["agents", "action"] = torch.randint(ACT, (B, N))
    plain = DQNLoss(TensorDictModule(net, ["observation"], ["action_value"]))
    total = 0
    for agent in range(N):
        one = td.clone()
        for part in (one["agents"], one["next", "agents"]):
            for name, entry in list(part.items()):
                part[name] = entry[:, agent : agent + 1]
        total = total + plain(single(one))["loss"] / N
    torch.testing.assert_close(loss(td)["loss"], total)
    assert td["td_error"].shape == (B,)


def test_a_team_of_one_agent_is_dqn():
    loss = q_team()
    td = batch(1)
    td["agents", "action"] = torch.randint(ACT, (B, 1))
    plain = DQNLoss(TensorDictModule(loss.value_network.module, ["observation"], ["action_value"]))
    alone = single(td)
    for name, found in loss(td).items():
        torch.testing.assert_close(found, plain(alone)[name], msg=name)
    torch.testing.assert_close(td["td_error"], alone["td_error"])


def test_the_last_agent_to_end_ends_the_team():
    loss = q_team()
    loss.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    td = batch().exclude(("next", "done"), ("next", "terminated"))
    td["agents", "action"] = torch.randint(ACT, (B, N))
    over = torch.rand(B, N, 1) < 0.5
    over[0], over[1] = True, False
    td["next", "agents", "done"], td["next", "agents", "terminated"] = over, over.clone()
    following = loss.target_value_network.module(td["next", "agents", "observation"]).amax(-1, keepdim=True)
    target = td["next", "agents", "reward"].mean(-2) + 0.99 * (following * ~over).sum(-2)
    torch.testing.assert_close(loss(td)["target_value"], target.mean())


@pytest.mark.parametrize(
    ("make", "after"),
    [
        pytest.param(lambda: MAPPOLoss(actor(), critic()), False, id="mappo"),
        pytest.param(lambda: MultiAgentGAE(value_network=critic()), True, id="gae"),
        pytest.param(
            lambda: off_policy(DDPGLoss, "agents", (nn.Linear(OBS, 2 * ACT), nn.Linear(OBS + ACT, 1))), True, id="ddpg"
        ),
        pytest.param(q_team, True, id="qmix"),
    ],
)
def test_masks_that_are_read_are_in_the_contract(make, after):
    reads = {one.name: one for one in make().contract.reads}
    assert reads["agents", "mask"].optional
    assert (("next", "agents", "mask") in reads) == after


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        ("categorical", torch.rand(B, N), "got torch.float32 actions .* integers"),
        (None, torch.rand(B, N), "got torch.float32 actions .* integers"),
        (None, torch.rand(B, N, ACT), "got torch.float32 actions .*action_space='one-hot'"),
        pytest.param(  # elsewhere indices are not read
            "categorical",
            torch.full((B, N), 9),
            "got actions from 9 to 9 .* 2 action values",
            marks=pytest.mark.cpu,
        ),
    ],
)
def test_actions_that_are_no_choices_are_refused(space, action, message):
    team = TensorDictModule(lambda values: values.sum(-2), [("agents", "chosen_action_value")], ["chosen_action_value"])
    loss = QMixerLoss(q_network(), team, action_space=space)
    td = batch(shared=True).set(("agents", "action"), action)
    with pytest.raises(ShapeError, match=message):
        loss(td)
    assert "td_error" not in td


def test_one_hot_floats_are_actions_if_the_action_space_says_so():
    loss = DQNLoss(TensorDictModule(nn.Linear(OBS, ACT), ["observation"], ["action_value"]), action_space="one-hot")
    td = single(batch(1))
    td["action"] = torch.eye(ACT)[torch.randint(ACT, (B,))]
    expected = loss(td)["loss"]
    torch.testing.assert_close(loss(td.set("action", td["action"].long()))["loss"], expected)


def test_ppo_names_what_does_not_fit():
    policy = actor()
    td = batch(policy=policy)
    with pytest.raises(ContractError, match=r" MultiAgentGAE\(value_network=critic\)\(batch\)"):
        MAPPOLoss(policy, critic())(td)
    for name in ("advantage", "value_target"):
        td["agents", name] = torch.randn(B, N, 1)
    other = td.clone().set(("agents", "action"), torch.randn(B, N - 1, ACT))
    with pytest.raises(ShapeError, match=r"'action'\) of shape \(6, 2, 2\), .* distributions of \(6, 3\) actions"):
        MAPPOLoss(policy, critic())(other)
    shared = td.clone().set(("agents", "advantage"), torch.randn(B, 1, 1))
    with pytest.raises(ShapeError, match=r"'advantage'\) \(6, 1, 1\); expected .* and \[\*B, n_agents, 1\]"):
        MAPPOLoss(policy, critic())(shared)
    for dims in ((-9,), (3,)):
        loss = MAPPOLoss(policy, critic(), normalize_advantage_exclude_dims=dims)
        with pytest.raises(ArgumentError, match=r"normalize_advantage_exclude_dims=.* \(6, 3, 1\).* from -3 to 2"):
            loss(td)
    with pytest.raises(ArgumentError, match="normalize_advantage_exclude_dims must be an integer"):
        MAPPOLoss(policy, critic(), normalize_advantage_exclude_dims=("agents",))


@pytest.mark.parametrize("name", ["mappo", "dqn", "qmix"])
def test_windows_of_a_replay_buffer_count_in_their_learning_part(name):
    policy = actor()
    loss = {"mappo": lambda: MAPPOLoss(policy, critic()), "dqn": q_agents, "qmix": q_team}[name]()
    td = masked_batch(policy)
    for entry in ("advantage", "value_target"):
        td["agents", entry] = torch.randn(B, N, 1)
    if name != "mappo":
        td["agents", "action"] = torch.randint(ACT, (B, N))
    learning = torch.arange(B) % 3 > 0
    masked = td.clone().set(("collector", "mask"), learning)
    torch.testing.assert_close(loss(td.set("learning_mask", learning)), loss(masked))


def team_batch(policy=None, size=(2, 7)):
    """A batch whose reward and flags are those of the team, and the same with those of each agent."""
    td = batch(size=size, policy=policy, shared=True)
    td["next", "agents"].del_("reward")
    each = td.clone()
    for name in ("reward", "done", "terminated"):
        each["next", "agents", name] = td["next", name].unsqueeze(-2).expand(*size, N, 1).clone()
    return td, each


FLAGS = {"done": ("agents", "done"), "terminated": ("agents", "terminated")}


@pytest.mark.parametrize("flags", [{}, FLAGS], ids=["flags of the root", "flags of the group"])
@pytest.mark.parametrize("kind", [MultiAgentGAE, GAE, TD0Estimator, TDLambdaEstimator])
def test_estimators_of_a_group_take_the_reward_and_the_flags_of_the_team(kind, flags):
    td, each = team_batch()
    estimator = of_group(kind, critic())
    estimator.set_keys(**flags)
    found, expected = estimator(td)["agents", "advantage"], estimator(each)["agents", "advantage"]
    torch.testing.assert_close(found, expected)
    with pytest.raises(ContractError, match=r"\('next', 'agents', 'reward'\)"):
        estimator(td.exclude(("next", "reward")))


@pytest.mark.parametrize("flags", [{}, FLAGS], ids=["flags of the root", "flags of the group"])
@pytest.mark.parametrize("name", ["mappo", "ippo", "ddpg", "sac", "dqn", "qmix"])
def test_losses_of_a_group_take_the_reward_and_the_flags_of_the_team(name, flags):
    policy = actor()
    nets = nn.Linear(OBS, 2 * ACT), nn.Linear(OBS + ACT, 1)
    loss = {
        "mappo": lambda: MAPPOLoss(policy, critic()),
        "ippo": lambda: IPPOLoss(policy, critic()),
        "ddpg": lambda: off_policy(DDPGLoss, "agents", nets),
        "sac": lambda: off_policy(SACLoss, "agents", nets),
        "dqn": q_agents,
        "qmix": q_team,
    }[name]()
    loss.set_keys(**flags)
    td, each = team_batch(policy)
    if name in ("mappo", "ippo"):
        loss.make_value_estimator(gamma=0.9)
    if name in ("dqn", "qmix"):
        td["agents", "action"] = each["agents", "action"] = torch.randint(ACT, (2, 7, N))
    outs = []
    for data in (td, each):
        torch.manual_seed(0)
        outs.append(dict(loss(data).items()))
    torch.testing.assert_close(*outs)
