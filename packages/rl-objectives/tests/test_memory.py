"""Losses and estimators on networks that carry state from step to step, against a loop by hand."""

from itertools import product

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import nn

from rl.core import ContractError, State, recurrent_mode
from rl.core.errors import ArgumentError, ShapeError
from rl.objectives import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    ImpalaLoss,
    MultiAgentGAE,
    PPOLoss,
    QRDQNLoss,
    TD0Estimator,
    VTrace,
)
from rl.objectives.functional import project_distribution
from rl.objectives.value.functional import generalized_advantage_estimate

H = ("recurrent_state", "h")
OF_CRITIC = ("critic_state", "h")
WIDTH, ACTIONS = 3, 2


class Memory(TensorDictModuleBase):
    """``h' = tanh(W x + U h)``, with an output of its own; sequences by a loop."""

    def __init__(self, key=H, out_key="features"):
        super().__init__()
        self.w, self.u = nn.Linear(2, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.in_keys, self.out_keys = ["observation", key, "is_init"], [out_key, ("next", *key)]
        self.states = (State(key, (1, WIDTH), owner="Memory"),)

    def cell(self, x, h):
        return torch.tanh(self.w(x) + self.u(h.squeeze(-2))).unsqueeze(-2)

    def forward(self, td):
        x, h, first = [td[key] for key in self.in_keys]
        if not recurrent_mode():
            after = self.cell(x, h.masked_fill(first.unsqueeze(-1), 0))
        else:
            steps, state = [], h[..., 0, :, :]
            for t in range(x.shape[-2]):
                state = torch.where(first[..., t, :].unsqueeze(-1), h[..., t, :, :], state)
                state = self.cell(x[..., t, :], state)
                steps.append(state)
            after = torch.stack(steps, -3)
        td.set(self.out_keys[0], after.squeeze(-2) * 1)
        return td.set(self.out_keys[1], after)


def value_net(key=H, name="features"):
    return TensorDictSequential(Memory(key, name), TensorDictModule(nn.Linear(WIDTH, 1), [name], ["state_value"]))


def stateless_value_net():
    return TensorDictModule(nn.Linear(2, 1), ["observation"], ["state_value"])


def actor_net(key=H):
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(
        Memory(key), TensorDictModule(nn.Linear(WIDTH, ACTIONS), ["features"], ["logits"]), head
    )


def q_net():
    return TensorDictSequential(Memory(), TensorDictModule(nn.Linear(WIDTH, ACTIONS), ["features"], ["action_value"]))


def batch(rows=(3,), steps=7, memory=None, seed=0):
    """Collected by hand: episodes of random lengths, states as `memory` leaves them, rows that go on in mid-episode."""
    torch.manual_seed(seed)
    memory = memory or Memory()
    size = (*rows, steps)
    done = torch.rand(*size, 1) < 0.3
    obs, nxt = torch.randn(*size, 2), torch.randn(*size, 2)
    first = torch.zeros(*size, 1, dtype=torch.bool)
    first[..., 1:, :] = done[..., :-1, :]
    first[..., 0, :] = torch.rand(*rows, 1) < 0.5
    h = torch.randn(*rows, 1, WIDTH)
    before, after = [], []
    with torch.no_grad():
        for t in range(steps):
            h = h.masked_fill(first[..., t, :].unsqueeze(-1), 0)
            before.append(h)
            h = memory.cell(obs[..., t, :], h)
            after.append(h)
            obs[..., t + 1 :, :][..., :1, :] = torch.where(
                done[..., t : t + 1, :], obs[..., t + 1 : t + 2, :], nxt[..., t : t + 1, :]
            )
    terminated = done & (torch.rand(*size, 1) < 0.5)
    outcome = TensorDict(
        {"observation": nxt, "reward": torch.randn(*size, 1), "done": done, "terminated": terminated,
         H: torch.stack(after, -3), OF_CRITIC: torch.stack(after, -3)}, batch_size=size)  # fmt: skip
    return TensorDict(
        {"observation": obs, "is_init": first, H: torch.stack(before, -3), OF_CRITIC: torch.stack(before, -3),
         "next": outcome,
         "action": torch.randint(ACTIONS, size), "action_log_prob": torch.randn(size) / 10 - 0.7}, batch_size=size
    )  # fmt: skip


def outputs_by_hand(memory, head, td):
    """Output at each step and at each outcome, with gradient, one row and one step after the other."""
    here, there = torch.empty(0), torch.empty(0)
    flat = td.reshape(-1, td.shape[-1])
    rows_here, rows_there = [], []
    for row in flat:
        state, one, two = row[H][0], [], []
        for step in row:
            if step["is_init"]:
                state = step[H]
            state = memory.cell(step["observation"], state)
            one.append(head(state.squeeze(-2)))
            two.append(head(memory.cell(step["next", "observation"], state).squeeze(-2)))
        rows_here.append(torch.stack(one))
        rows_there.append(torch.stack(two))
    here, there = torch.stack(rows_here), torch.stack(rows_there)
    return here.reshape(*td.shape, -1), there.reshape(*td.shape, -1)


@pytest.mark.parametrize("rows", [(), (1,), (4,), (2, 2)])
def test_gae_values_outcomes_one_step_after_the_sequence(rows):
    net = value_net()
    td = batch(rows, memory=net[0])
    value, following = outputs_by_hand(net[0], net[1].module, td)
    out = GAE(gamma=0.9, lmbda=0.8, value_network=net)(td.clone())
    advantage, target = generalized_advantage_estimate(
        0.9, 0.8, value, following, *[td["next", key] for key in ("reward", "done", "terminated")]
    )
    torch.testing.assert_close(out["state_value"], value.detach())
    torch.testing.assert_close(out["advantage"], advantage.detach())
    torch.testing.assert_close(out["value_target"], target.detach())
    assert torch.equal(out[H], td[H])


def test_values_of_inner_steps_are_those_of_the_outcome_before():
    net = value_net()
    td = batch(memory=net[0])
    value, following = outputs_by_hand(net[0], net[1].module, td)
    goes_on = ~td["is_init"][:, 1:]
    torch.testing.assert_close(value[:, 1:][goes_on], following[:, :-1][goes_on])


def test_td0_needs_sequences_too():
    net = value_net()
    td = batch(memory=net[0])
    _, following = outputs_by_hand(net[0], net[1].module, td)
    out = TD0Estimator(gamma=0.9, value_network=net)(td.clone())
    target = td["next", "reward"] + 0.9 * following * ~td["next", "terminated"]
    torch.testing.assert_close(out["value_target"], target.detach())


@pytest.mark.parametrize("loss_class", [PPOLoss, ClipPPOLoss])
def test_ppo_runs_both_networks_on_sequences(loss_class):
    actor, critic = actor_net(), value_net(OF_CRITIC)
    td = batch(memory=actor[0])
    td["advantage"], td["value_target"] = torch.randn(*td.shape, 1), torch.randn(*td.shape, 1)
    loss = loss_class(actor, critic, entropy_coeff=0.0)
    out = loss(td)
    critic[0].load_state_dict(actor[0].state_dict())
    logits, _ = outputs_by_hand(actor[0], actor[1].module, td)
    log_prob = torch.distributions.Categorical(logits=logits).log_prob(td["action"])
    ratio, advantage = (log_prob - td["action_log_prob"]).exp(), td["advantage"].squeeze(-1)
    surrogate = ratio * advantage
    if loss_class is ClipPPOLoss:
        surrogate = torch.minimum(surrogate, ratio.clamp(0.8, 1.2) * advantage)
    torch.testing.assert_close(out["loss_objective"], -surrogate.mean())
    wanted = torch.autograd.grad(-surrogate.mean(), [*actor.parameters()])
    for got, want in zip(torch.autograd.grad(out["loss_objective"], [*actor.parameters()]), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_ppo_estimates_by_itself():
    actor, critic = actor_net(), value_net(OF_CRITIC)
    td = batch(memory=actor[0])
    td.names = [None, "time"]
    assert PPOLoss(actor, critic)(td)["loss_objective"].isfinite()
    assert PPOLoss(actor, critic).in_keys[:4] == ["observation", H, "is_init", OF_CRITIC]


def test_vtrace_runs_the_actor_on_sequences():
    actor, critic = actor_net(), value_net(OF_CRITIC)
    td = batch(memory=actor[0])
    out = VTrace(actor_network=actor, value_network=critic)(td.clone())
    assert out["advantage"].shape == (*td.shape, 1)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_values_outcomes_with_the_states_of_each_network(double):
    net = q_net()
    td = batch(memory=net[0])
    loss = DQNLoss(net, double_dqn=double, action_space="categorical", gamma=0.9)
    with torch.no_grad():
        for parameter in loss.target_value_network.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    target_net = loss.target_value_network
    value, online = outputs_by_hand(net[0], net[1].module, td)
    _, following = outputs_by_hand(target_net[0], target_net[1].module, td)
    best = online.argmax(-1, keepdim=True) if double else following.argmax(-1, keepdim=True)
    target = td["next", "reward"] + 0.9 * following.gather(-1, best) * ~td["next", "terminated"]
    error = value.gather(-1, td["action"].unsqueeze(-1)) - target.detach()
    out = loss(td)
    torch.testing.assert_close(out["loss"], error.square().mean())
    torch.testing.assert_close(td["td_error"], error.abs().squeeze(-1).detach())
    wanted = torch.autograd.grad(error.square().mean(), [*net.parameters()])
    for got, want in zip(torch.autograd.grad(out["loss"], [*net.parameters()]), wanted, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("double", [False, True])
def test_one_quantile_is_the_value_of_dqn(double):
    net = q_net()
    split = TensorDictModule(nn.Unflatten(-1, (ACTIONS, 1)), ["flat"], ["action_value"])
    quantiles = TensorDictSequential(net[0], TensorDictModule(net[1].module, ["features"], ["flat"]), split)
    options = {"double_dqn": double, "action_space": "categorical", "reduction": "none"}
    dqn, loss = DQNLoss(net, **options), QRDQNLoss(quantiles, kappa=1e6, **options)
    moved = [torch.randn_like(parameter) / 3 for parameter in dqn.target_value_network.parameters()]
    with torch.no_grad():
        for one in (dqn, loss):
            for parameter, step in zip(one.target_value_network.parameters(), moved, strict=True):
                parameter.add_(step)
    td = batch(memory=net[0])
    torch.testing.assert_close(loss(td)["loss"], dqn(td)["loss"] / 4)  # half of half of the square


def test_c51_values_outcomes_with_the_states_of_its_target():
    support = torch.linspace(-2, 2, 5)
    head = nn.Sequential(nn.Linear(WIDTH, 5 * ACTIONS), nn.Unflatten(-1, (5, ACTIONS)))
    net = TensorDictSequential(Memory(), TensorDictModule(head, ["features"], ["action_value"]))
    loss = DistributionalDQNLoss(net, support=support, action_space="categorical", gamma=0.9)
    with torch.no_grad():
        for parameter in loss.target_value_network.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    td, target_net = batch(memory=net[0]), loss.target_value_network
    logits, _ = outputs_by_hand(net[0], head[0], td)
    _, following = outputs_by_hand(target_net[0], target_net[1].module[0], td)
    log_p, p = logits.unflatten(-1, (5, ACTIONS)).log_softmax(-2), following.unflatten(-1, (5, ACTIONS)).softmax(-2)
    expected = []
    for i in product(*map(range, td.shape)):
        best = (p[i].T @ support).argmax()
        after = td["next"][i]
        atoms = after["reward"] + 0.9 * support * ~after["terminated"]
        m = project_distribution(p[i][:, best].unsqueeze(0), atoms.unsqueeze(0), support)[0]
        expected.append(-(m * log_p[i][:, td["action"][i]]).sum())
    torch.testing.assert_close(loss(td)["loss"], torch.stack(expected).mean())


def test_impala_is_a2c_with_v_trace_on_sequences():
    actor, critic = actor_net(), value_net(OF_CRITIC)
    td = batch(memory=actor[0])
    a2c = A2CLoss(actor, critic, critic_coeff=0.5, loss_critic_type="l2")
    a2c.make_value_estimator("vtrace")
    torch.testing.assert_close(ImpalaLoss(actor, critic)(td), a2c(td))


def losses(memory):
    actor, critic = actor_net(), value_net(OF_CRITIC)
    actor[0].load_state_dict(memory.state_dict())
    return {
        "gae": GAE(value_network=critic),
        "ppo": ClipPPOLoss(actor, critic),
        "vtrace": VTrace(actor_network=actor, value_network=stateless_value_net()),
        "dqn": DQNLoss(q_net(), action_space="categorical"),
    }


@pytest.fixture(params=["gae", "ppo", "dqn", "vtrace"])
def reader(request):
    return losses(Memory())[request.param]


def ready(**kwargs):
    td = batch(**kwargs)
    td["advantage"] = td["value_target"] = torch.zeros(*td.shape, 1)
    return td


def test_a_dropped_state_is_named(reader):
    with pytest.raises(ContractError, match=r"_state', 'h'.*It is a recurrent state.*select, exclude"):
        reader(ready().exclude(H, OF_CRITIC))


def test_a_dropped_mark_is_named(reader):
    with pytest.raises(ContractError, match=r"is_init.*Collector writes it.*InitTracker"):
        reader(ready().exclude("is_init"))


def test_a_mark_that_is_never_true_is_refused(reader):
    td = ready()
    td["is_init"].zero_()
    with pytest.raises(ContractError, match="leak into the next episode"):
        reader(td)


def test_shuffled_steps_are_refused(reader):
    td = ready(rows=(), steps=40)
    shuffled = td[torch.randperm(40)]
    shuffled["next", "done"].zero_()
    shuffled["next", "terminated"].zero_()
    shuffled["is_init"].zero_()
    with pytest.raises(ContractError, match="shuffled"):
        reader(shuffled)


def test_a_shift_is_refused():
    with pytest.raises(ArgumentError, match=r"shifted=True.*Memory"):
        GAE(value_network=value_net(), shifted=True)


def test_time_has_to_come_last():
    net = value_net()
    td = batch(memory=net[0]).transpose(0, 1)
    with pytest.raises(ShapeError, match="transpose"):
        GAE(value_network=net, time_dim=0)(td)


def test_a_network_that_drops_its_state_is_refused():
    class Dropping(Memory):
        def __init__(self):
            super().__init__()
            self.out_keys = self.out_keys[:1]

    net = TensorDictSequential(Dropping(), TensorDictModule(nn.Linear(WIDTH, 1), ["features"], ["state_value"]))
    with pytest.raises(ContractError, match=r"has the recurrent state.*does not write"):
        GAE(value_network=net)


@pytest.mark.parametrize("make", [ClipPPOLoss, lambda actor, critic: VTrace(actor_network=actor, value_network=critic)])
def test_two_modules_with_one_state_key_are_refused(make):
    with pytest.raises(ContractError, match=r"Memory of TensorDictSequential carries .*recurrent_state.*critic_h"):
        make(actor_net(), value_net())
    actor, critic = actor_net(), value_net()
    critic[0] = actor[0]
    make(actor, TensorDictSequential(actor[0], critic[1]))  # one module in both
    shared = value_net()
    shared[0].w, shared[0].u = actor[0].w, actor[0].u  # or one set of weights
    make(actor, shared)


def test_the_flag_that_ends_episodes_may_have_another_name():
    loss = ClipPPOLoss(actor_net(), value_net(OF_CRITIC))
    loss.set_keys(done="over")
    td = ready(rows=(), steps=9)
    td["next"].rename_key_("done", "over")
    loss(td)
    td["is_init"].zero_()
    with pytest.raises(ContractError, match="an episode ends"):
        loss(td)


@pytest.mark.parametrize("which", ["ppo", "dqn"])
def test_compiled_losses_refuse_leaks_too(which):
    td = ready(steps=3)
    compiled = torch.compile(losses(Memory())[which], backend="eager", fullgraph=True)
    compiled(td.clone())
    td["is_init"].zero_()
    with pytest.raises(RuntimeError, match="an episode ends at a step of this batch"):
        compiled(td)


def test_agents_that_end_before_their_episode_leave_the_states_as_they_are():
    memory, last = Memory(), nn.Linear(WIDTH, 2)
    split = TensorDictModule(lambda x: last(x).unsqueeze(-1), ["features"], [("agents", "state_value")])
    td = batch(memory=memory)
    over = td["next", "done"].unsqueeze(-2).repeat(1, 1, 2, 1)
    over[0, 1, 0], over[1, 3] = True, torch.tensor([[True], [False]])
    td["next", "agents"] = TensorDict(done=over, terminated=over.clone(), reward=torch.randn(over.shape))
    estimate = MultiAgentGAE(gamma=0.9, lmbda=0.8, value_network=TensorDictSequential(memory, split))
    estimate.set_keys(done=("agents", "done"), terminated=("agents", "terminated"))
    with torch.no_grad():
        value = last(td["next", *H].squeeze(-2)).unsqueeze(-1)
        following = last(memory.cell(td["next", "observation"], td["next", *H]).squeeze(-2)).unsqueeze(-1)
    outcome = td["next", "agents", "reward"], over, over
    expected, _ = generalized_advantage_estimate(0.9, 0.8, value, following, *outcome, time_dim=1)
    torch.testing.assert_close(estimate(td)["agents", "advantage"], expected)
