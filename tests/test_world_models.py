"""Networks and losses of world models together: a chain is predicted, and one batch is overfit."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Bernoulli

from rl.collectors import Collector
from rl.core.specs import Unbounded
from rl.envs import DreamerEnv, PendulumEnv, StepCounter, TransformedEnv, WorldModelEnv
from rl.modules import (
    TDMPC2MLP,
    CEMPlanner,
    DreamerV3Actor,
    DreamerV3Encoder,
    DreamerV3MLP,
    EnsembleDynamics,
    IndependentNormal,
    ProbabilisticActor,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    SquaredError,
    SymLogTwoHotCategorical,
    TanhNormal,
    TDMPC2Actor,
    TDMPC2Planner,
    TwoHotCategorical,
    WorldModel,
    WorldModelWrapper,
    symexp_bins,
)
from rl.objectives import (
    DreamerActorLoss,
    DreamerV3ActorLoss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    LaProp,
    SoftUpdate,
    TDMPC2Loss,
    WorldModelLoss,
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Run on one thread, which is faster for networks of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


STATE, BELIEF, ACTION, SEEN = 8 * 4, 32, 1, 5
NEXT = [("next", "state"), ("next", "belief")]
ROOT = ["state", "belief"]


def squared(loc):
    return SquaredError(loc, symlog=True)


def bernoulli(logits):
    return Bernoulli(logits=logits, validate_args=False)


def head(net, reads, parameter, out, kind):
    name = "loc" if kind is squared else "logits"
    last = ProbabilisticTensorDictModule({name: parameter}, [out], distribution_class=kind)
    return ProbabilisticTensorDictSequential(TensorDictModule(net, reads, [parameter]), last)


class Dreamer:
    """A small DreamerV3 of vectors: networks, losses, and one optimizer for all."""

    def __init__(self):
        torch.manual_seed(0)
        widths = {"hidden_dim": 32, "rnn_hidden_dim": BELIEF, "num_categoricals": 8, "num_classes": 4}
        self.prior = RSSMPriorV3(action_dim=ACTION, num_blocks=4, **widths)
        encoder = DreamerV3Encoder(SEEN, units=32, num_layers=1)
        posterior = RSSMPosteriorV3(**widths, obs_embed_dim=32)
        rollout = RSSMRolloutV3(
            TensorDictModule(self.prior, [*ROOT, "action"], [("next", "prior_logits"), "_", ("next", "belief")]),
            TensorDictModule(
                posterior,
                [("next", "belief"), ("next", "encoded_latents")],
                [("next", "posterior_logits"), ("next", "state")],
            ),
            use_scan=True,
        )
        encode = TensorDictModule(encoder, [("next", "observation")], [("next", "encoded_latents")])
        feature = STATE + BELIEF
        self.decoder_net, reward_net = DreamerV3MLP(feature, SEEN, 1, 32), DreamerV3MLP(feature, 255, 1, 32, 0.0)
        going_net = DreamerV3MLP(feature, 1, 1, 32)
        self.reward_net = reward_net
        reward = head(reward_net, NEXT, "reward_logits", ("next", "reward"), TwoHotCategorical)
        self.model_loss = DreamerV3ModelLoss(
            TensorDictSequential(encode, rollout),
            head(self.decoder_net, NEXT, "observation_loc", ("next", "observation"), squared),
            reward,
            head(going_net, NEXT, "continue_logits", "continuation", bernoulli),
        )
        imagined = WorldModel(
            encode,
            TensorDictModule(self.prior, [*ROOT, "action"], ["_", ("next", "state"), ("next", "belief")]),
            TensorDictModule(lambda s, b: TwoHotCategorical(reward_net(s, b)).mean, NEXT, [("next", "reward")]),
        )
        actor = ProbabilisticActor(
            TensorDictModule(DreamerV3Actor(feature, ACTION, num_cells=32), ROOT, ["loc", "scale"]),
            ["loc", "scale"],
            distribution_class=IndependentNormal,
        )
        critic = head(DreamerV3MLP(feature, 255, 1, 32, 0.0), ROOT, "value_logits", "state_value", TwoHotCategorical)
        self.actor_loss = DreamerV3ActorLoss(
            actor,
            critic,
            imagined,
            continuation_model=head(going_net, ROOT, "continue_logits", "continuation", bernoulli),
            imagination_horizon=5,
        )
        self.value_loss = DreamerV3ValueLoss(critic)
        self.updater = SoftUpdate(self.value_loss, tau=0.02)
        losses = nn.ModuleList([self.model_loss, self.actor_loss, self.value_loss])
        self.parameters = [one for one in losses.parameters() if one.requires_grad]

    def losses(self, batch):
        model, states = self.model_loss(batch)
        actor, imagined = self.actor_loss(states)
        value, _ = self.value_loss(imagined.detach())
        states["bootstrap"] = imagined["lambda_target"][:, 0].reshape(*batch.batch_size, 1)
        replay = self.value_loss.replay_value_loss(states)
        found = {**model, **actor, **value, **replay}
        return {key: loss for key, loss in found.items() if key.startswith("loss")}


def chain(count, steps):
    """Sequences of a chain of five states, which the action moves up or down, as one-hot observations.

    Row `t` has an observation and the action before it; the reward is 1 in the last state.
    """
    place = torch.randint(5, (count,))
    rows = []
    for t in range(steps):
        action = torch.randint(2, (count,)) * 2 - 1
        place = (place + action).clamp(0, 4) if t else place
        rows.append((action, place))
    actions, places = (torch.stack(column, 1) for column in zip(*rows, strict=True))
    flag = torch.zeros(count, steps, 1, dtype=torch.bool)
    after = {"observation": nn.functional.one_hot(places, 5).float(), "reward": (places == 4).float().unsqueeze(-1)}
    size = [count, steps]
    data = {"state": torch.zeros(*size, STATE), "belief": torch.zeros(*size, BELIEF), "is_init": flag.clone()}
    data |= {"action": actions.float().unsqueeze(-1)}
    data["is_init"][:, 0] = True
    after |= {"done": flag, "terminated": flag}
    return TensorDict({**data, "next": TensorDict(after, batch_size=size)}, batch_size=size)


def test_the_prior_of_a_trained_model_predicts_a_chain_without_observations():
    dreamer = Dreamer()
    optimizer = LaProp(dreamer.model_loss.parameters(), lr=2e-3, warmup=20)
    for _ in range(250):
        losses, _ = dreamer.model_loss(chain(16, 12))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    torch.manual_seed(1)
    batch = chain(64, 8)
    with torch.no_grad():
        seen = dreamer.model_loss.world_model(batch[:, :3].copy())
        state, belief = (seen["next", key][:, -1] for key in ROOT)
        right = []
        for t in range(3, 8):  # five steps without an observation
            _, state, belief = dreamer.prior(state, belief, batch["action"][:, t])
            found = dreamer.decoder_net(state, belief).argmax(-1)
            right.append((found == batch["next", "observation"][:, t].argmax(-1)).float().mean())
    assert min(right) > 0.7, right  # of five states
    assert sum(right) / 5 > 0.85, right


def test_all_losses_of_dreamer_reach_all_networks_and_one_batch_is_overfit():
    dreamer, batch = Dreamer(), chain(4, 6)
    first = dreamer.losses(batch)
    assert len(first) == 8
    sum(first.values()).backward()
    assert all(parameter.grad is not None for parameter in dreamer.parameters)
    optimizer = LaProp(dreamer.parameters, lr=3e-3, warmup=20)
    for _ in range(150):
        losses = dreamer.losses(batch)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        dreamer.updater.step()
    assert losses["loss_model_reco"] < 0.1 * first["loss_model_reco"]
    assert losses["loss_model_reward"] < 0.3 * first["loss_model_reward"]
    assert losses["loss_model_dynamic"] < 1.5


def test_pitfall_3_returns_are_made_of_numbers_and_not_of_logits():
    dreamer, place = Dreamer(), 140
    dreamer.reward_net.output.bias.data[place] = 100.0  # all rewards are the number of this bin; all values are 0
    _, states = dreamer.model_loss(chain(2, 3))
    losses, imagined = dreamer.actor_loss(states)
    last = imagined["lambda_target"][:, -1]
    torch.testing.assert_close(last, symexp_bins()[place].expand_as(last))
    assert 1.0 < losses["imagined_return"] / symexp_bins()[place] < 5.0


def test_the_replayed_value_loss_trains_the_world_model():
    dreamer, batch = Dreamer(), chain(4, 6)
    critic = dreamer.value_loss.value_model.module[0].module.output
    nn.init.normal_(critic.weight)
    loss = dreamer.losses(batch)["loss_replay_value"]
    grads = torch.autograd.grad(loss, list(dreamer.prior.rnn.parameters()))
    assert any(grad.abs().sum() > 0 for grad in grads)


def test_networks_losses_and_planner_of_td_mpc2_fit_together():
    torch.manual_seed(0)
    both = ["latent", "action"]
    encoder = TensorDictModule(TDMPC2MLP(3, 16, [16], sim_norm=8), ["observation"], ["latent"])
    dynamics = TensorDictModule(TDMPC2MLP(18, 16, [16], sim_norm=8), both, [("next", "latent")])
    reward = head(TDMPC2MLP(18, 101, [16], zero_last=True), both, "r_logits", "r", SymLogTwoHotCategorical)
    value = head(TDMPC2MLP(18, 101, [16], dropout=0.01, zero_last=True), both, "q_logits", "q", SymLogTwoHotCategorical)
    actor = ProbabilisticActor(
        TensorDictModule(TDMPC2Actor(16, 2, [16]), ["latent"], ["loc", "scale"]),
        ["loc", "scale"],
        distribution_class=TanhNormal,
    )
    loss = TDMPC2Loss(encoder, dynamics, reward, value, actor)
    flag = torch.zeros(8, 3, 1, dtype=torch.bool)
    after = {"observation": torch.randn(8, 3, 3), "reward": torch.randn(8, 3, 1), "terminated": flag}
    batch = TensorDict(observation=torch.randn(8, 3, 3), action=torch.rand(8, 3, 2), batch_size=[8, 3])
    batch["next"] = TensorDict(after, batch_size=[8, 3])
    optimizer, updater = torch.optim.Adam(loss.parameters(), 3e-3), SoftUpdate(loss, tau=0.01)
    first = loss(batch)
    for _ in range(100):
        out = loss(batch)
        optimizer.zero_grad()
        sum(one for key, one in out.items() if key.startswith("loss")).backward()
        optimizer.step()
        updater.step()
    assert out["loss_reward"] < 0.8 * first["loss_reward"]
    planner = TDMPC2Planner(
        encoder, dynamics, reward, loss.qvalue_network, actor, 2, num_candidates=32, num_elites=8, num_policy_plans=4
    )
    found = planner(TensorDict(observation=torch.randn(5, 3), plan=torch.zeros(5, 3, 2), batch_size=[5]))
    assert found["action"].shape == (5, 2)
    assert found["action"].isfinite().all()


@pytest.mark.parametrize("size", [(32,), (4, 8)])
def test_the_likelihood_of_an_ensemble_is_a_loss(size):
    torch.manual_seed(0)
    model = EnsembleDynamics(3, 1, num_members=2, num_elites=1, num_cells=[16])
    loss = WorldModelLoss(model, losses=["likelihood"])
    x, a = torch.randn(*size, 3), torch.randn(*size, 1)
    after = TensorDict(observation=x + a, reward=a, batch_size=size)
    batch = TensorDict(observation=x, action=a, next=after, batch_size=size)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    first = loss(batch)["loss_likelihood"]
    for _ in range(60):
        out = loss(batch)["loss_likelihood"]
        optimizer.zero_grad()
        out.backward()
        optimizer.step()
    assert out < first - 1


def test_a_planner_acts_in_rollouts_and_collectors():
    torch.manual_seed(0)
    planner = CEMPlanner(PendulumEnv(), 4, 2, 16, 4)
    rollout = PendulumEnv().rollout(3, planner)
    torch.testing.assert_close(rollout["plan"][1:], rollout["next", "plan"][:-1])
    primed = TransformedEnv(PendulumEnv(), planner.make_tensordict_primer()).rollout(2, planner)
    assert not primed["plan"][0].any()
    collector = Collector(PendulumEnv(), planner, frames_per_batch=4, total_frames=8)
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    torch.testing.assert_close(batches[1]["plan"][0], batches[0]["next", "plan"][-1])


def dreamer_env(dreamer, **options):
    """The environment of the imagination of a `Dreamer`."""
    step = TensorDictSequential(
        TensorDictModule(dreamer.prior, [*ROOT, "action"], ["_", *NEXT]),
        TensorDictModule(lambda s, b: TwoHotCategorical(dreamer.reward_net(s, b)).mean, NEXT, [("next", "reward")]),
    )
    env = DreamerEnv(step, (STATE,), (BELIEF,), **options)
    env.action_spec = Unbounded(ACTION)
    return env


def zeros(count):
    return TensorDict(state=torch.zeros(count, STATE), belief=torch.zeros(count, BELIEF), batch_size=[count])


def test_imagination_in_dreamer_env_is_a_loop_of_the_same_cells():
    dreamer = Dreamer()
    nn.init.normal_(dreamer.reward_net.output.weight)
    actor = nn.Linear(BELIEF, ACTION)
    torch.manual_seed(3)
    policy = TensorDictModule(actor, ["belief"], ["action"])
    found = dreamer_env(dreamer).rollout(6, policy, tensordict=zeros(20))
    torch.manual_seed(3)  # the states are samples
    state, belief = torch.zeros(20, STATE), torch.zeros(20, BELIEF)
    for step in range(6):
        _, state, belief = dreamer.prior(state, belief, actor(belief))
        torch.testing.assert_close(found["next", "state"][:, step], state)
        reward = TwoHotCategorical(dreamer.reward_net(state, belief)).mean
        torch.testing.assert_close(found["next", "reward"][:, step], reward)


def test_dreamer_env_takes_the_place_of_a_world_model_in_the_losses_of_dreamer_v3():
    dreamer = Dreamer()
    nn.init.normal_(dreamer.reward_net.output.weight)
    actor, critic = dreamer.actor_loss.actor_model, dreamer.value_loss.value_model
    _, states = dreamer.model_loss(chain(3, 4))
    found = []
    model = WorldModel(TensorDictModule(nn.Identity(), [], []), *dreamer_env(dreamer).world_model)
    for env in (model, dreamer_env(dreamer)):
        torch.manual_seed(4)
        losses, imagined = DreamerV3ActorLoss(actor, critic, env, imagination_horizon=5)(states)
        found.append((losses["loss_actor"], imagined["lambda_target"]))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_the_gradient_of_dreamers_actor_passes_through_its_environment_and_leaves_the_model():
    torch.manual_seed(0)
    move = TensorDictModule(lambda s, b, a: (s + a, b), [*ROOT, "action"], ROOT)
    model = WorldModelWrapper(move, TensorDictModule(nn.Linear(1, 1), ["state"], ["reward"]))
    env = DreamerEnv(model, (1,), (1,))
    env.action_spec = Unbounded(1)
    actor, critic = (TensorDictModule(nn.Linear(1, 1), ["state"], [key]) for key in ("action", "state_value"))
    losses, _ = DreamerActorLoss(actor, critic, env, imagination_horizon=3)(
        TensorDict(state=torch.ones(4, 1), belief=torch.ones(4, 1), batch_size=[4])
    )
    losses["loss_actor"].backward()
    assert all(one.grad is not None and one.grad.any() for one in actor.parameters())
    assert all(one.grad is None for one in model.parameters())


def test_a_collector_collects_in_imagination():
    dreamer = Dreamer()
    starts = zeros(5).set("state", torch.full((5, STATE), 0.5))
    env = TransformedEnv(dreamer_env(dreamer, batch_size=[5], start=lambda _: starts), StepCounter(max_steps=4))
    with torch.no_grad():
        collector = Collector(env, frames_per_batch=50, total_frames=50)
        batch = next(iter(collector))
        collector.shutdown()
    assert batch.shape == (5, 10)
    assert batch["next", "truncated"][..., 0].nonzero()[:, 1].tolist() == [3, 7] * 5
    assert (batch["state"][:, [0, 4, 8]] == 0.5).all()


def test_a_planner_plans_in_the_environment_of_an_ensemble():
    torch.manual_seed(0)
    model = EnsembleDynamics(3, 1, num_members=2, num_elites=1, num_cells=[16])
    planner = CEMPlanner(WorldModelEnv(model, PendulumEnv(), batch_size=[]), 4, 2, 16, 4)
    found = planner(TensorDict(observation=torch.randn(6, 3), batch_size=[6]))
    assert found["next", "plan"].shape == (6, 4, 1)
    assert PendulumEnv(batch_size=[6]).action_spec.is_in(found["action"])
