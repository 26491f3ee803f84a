"""PPOLoss and ClipPPOLoss."""

import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from tensordict.nn.distributions import OneHotCategorical
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn.functional import smooth_l1_loss

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.objectives import GAE, A2CLoss, ClipPPOLoss, PPOLoss, ReinforceLoss, ValueEstimators
from rl.objectives.functional import clipped_surrogate, surrogate
from rl.testing import check_loss


class DiagonalNormal(Independent):
    def __init__(self, loc, scale):
        super().__init__(Normal(loc, scale), 1)


class SquashedNormal(TransformedDistribution):
    """Has no formula for its entropy."""

    def __init__(self, loc, scale):
        super().__init__(DiagonalNormal(loc, scale), TanhTransform(cache_size=1))

    @property
    def deterministic_sample(self):
        return self.base_dist.base_dist.loc.tanh()


class Gaussian(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.loc, self.log_scale = nn.Linear(3, actions), nn.Parameter(torch.zeros(actions))

    def forward(self, x):
        loc = self.loc(x)
        return loc, self.log_scale.exp().expand_as(loc)


def make_actor(kind, return_log_prob=True):
    if kind in ("categorical", "one-hot"):
        cls = Categorical if kind == "categorical" else OneHotCategorical
        body, params = TensorDictModule(nn.Linear(3, 4), ["observation"], ["logits"]), ["logits"]
    else:
        cls = {"normal": DiagonalNormal, "squashed": SquashedNormal, "factorised": Normal}[kind]
        body, params = TensorDictModule(Gaussian(2), ["observation"], ["loc", "scale"]), ["loc", "scale"]
    head = ProbabilisticTensorDictModule(params, ["action"], distribution_class=cls, return_log_prob=return_log_prob)
    return ProbabilisticTensorDictSequential(body, head)


def make_critic():
    return TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])


def make_batch(actor, *size, seed=1):
    torch.manual_seed(seed)
    batch = actor(TensorDict(observation=torch.randn(*size, 3), batch_size=size)).detach()
    batch = batch.select("observation", "action", "action_log_prob")
    batch["action_log_prob"] = batch["action_log_prob"] + 0.3 * torch.randn_like(batch["action_log_prob"])
    batch["advantage"], batch["value_target"] = torch.randn(*size, 1), torch.randn(*size, 1)
    return batch


@pytest.fixture(params=["categorical", "one-hot", "normal"])
def actor(request):
    torch.manual_seed(0)
    return make_actor(request.param)


@pytest.fixture
def critic():
    torch.manual_seed(0)
    return make_critic()


@pytest.fixture(params=[PPOLoss, ClipPPOLoss])
def loss_class(request):
    return request.param


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        pytest.param(1.5, 1.0, -1.2, id="gain-beyond-the-clip-is-cut"),
        pytest.param(0.5, 1.0, -0.5, id="loss-beyond-the-clip-is-not"),
        pytest.param(0.5, -1.0, 0.8, id="negative-advantage-is-cut-below"),
        pytest.param(1.5, -1.0, 1.5, id="negative-advantage-is-not-cut-above"),
        pytest.param(1.0, 3.0, -3.0, id="on-policy-is-the-policy-gradient"),
    ],
)
def test_surrogate_by_hand(ratio, advantage, expected):
    actual = clipped_surrogate(torch.tensor([ratio]).log(), torch.tensor([advantage]), 0.2)
    torch.testing.assert_close(actual, torch.tensor([expected]))


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("log_ratio", [100.0, float("inf"), -100.0])
def test_ratios_that_overflow_have_finite_gradients(log_ratio, advantage):
    x = torch.tensor([log_ratio], requires_grad=True)
    for loss in (clipped_surrogate(x, torch.tensor([advantage]), 0.2), surrogate(x, torch.tensor([advantage]))):
        assert loss.isfinite()
        assert torch.autograd.grad(loss, x)[0].isfinite()
    if log_ratio > 0 < advantage:
        assert clipped_surrogate(x, torch.tensor([advantage]), 0.2).item() == pytest.approx(-1.2 * advantage)


def independent(actor, critic, batch, clip, normalize=False, value_clip=None):
    """The same losses in another way of writing: where instead of min, exp of differences, one element at a time."""
    dist = actor.get_dist(batch.select("observation"))
    ratio = torch.exp(dist.log_prob(batch["action"])) / torch.exp(batch["action_log_prob"])
    advantage = batch["advantage"][..., 0]
    if normalize:
        centred = advantage - advantage.mean()
        advantage = centred / centred.square().mean().sqrt()
    objective = ratio * advantage
    if clip is not None:
        cut = torch.where(ratio > 1 + clip, 1 + clip, torch.where(ratio < 1 - clip, 1 - clip, ratio))
        objective = torch.where(cut * advantage < objective, cut * advantage, objective)
    value, target = critic.module(batch["observation"]), batch["value_target"]
    value_loss = smooth_l1_loss(value, target, reduction="none")
    if value_clip is not None:
        old = batch["state_value"]
        near = torch.minimum(torch.maximum(value, old - value_clip), old + value_clip)
        value_loss = torch.maximum(value_loss, smooth_l1_loss(near, target, reduction="none"))
    return {
        "loss_objective": -objective.mean(),
        "loss_critic": 0.5 * value_loss.mean(),
        "loss_entropy": -0.02 * dist.entropy().mean(),
        "ratio": ratio,
    }


@pytest.mark.parametrize("size", [(32,), (4, 8), (1,)], ids=str)
@pytest.mark.parametrize("clip", [None, 0.2], ids=["plain", "clipped"])
@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalized"])
def test_values_and_gradients_equal_an_independent_implementation(actor, critic, size, clip, normalize):
    if normalize and size == (1,):
        return  # nothing to normalize by
    batch = make_batch(actor, *size)
    common = {"entropy_coeff": 0.02, "critic_coeff": 0.5, "normalize_advantage": normalize}
    loss = PPOLoss(actor, critic, **common) if clip is None else ClipPPOLoss(actor, critic, clip_epsilon=clip, **common)
    out, expected = loss(batch), independent(actor, critic, batch, clip, normalize)
    names = [name for name in loss.out_keys if name.startswith("loss_")]
    for name in names:
        torch.testing.assert_close(out[name], expected[name])
    parameters = list(loss.parameters())
    ours = torch.autograd.grad(sum(out[name] for name in names), parameters)
    theirs = torch.autograd.grad(sum(expected[name] for name in names), parameters)
    torch.testing.assert_close(ours, theirs)


def test_diagnostics_equal_their_definitions(critic):
    actor = make_actor("normal")
    batch = make_batch(actor, 64)
    out = ClipPPOLoss(actor, critic, clip_epsilon=0.2)(batch)
    ratio = independent(actor, critic, batch, 0.2)["ratio"].detach()
    value, target = critic.module(batch["observation"]).detach(), batch["value_target"]
    expected = {
        "clip_fraction": ((ratio > 1.2) | (ratio < 0.8)).float().mean(),
        "kl_approx": (ratio - 1 - ratio.log()).mean(),
        "ESS": ratio.sum() ** 2 / ratio.square().sum() / 64,
        "explained_variance": 1 - (target - value).var() / target.var(),
        "entropy": actor.get_dist(batch.copy()).entropy().mean().detach(),
    }
    for name, one in expected.items():
        torch.testing.assert_close(out[name], one, rtol=1e-4, atol=1e-5)


def test_the_critic_gains_nothing_beyond_clip_value(actor, critic):
    batch = make_batch(actor, 16)
    batch["state_value"] = torch.randn(16, 1)
    loss = ClipPPOLoss(actor, critic, critic_coeff=0.5, clip_value=0.1)
    assert loss.in_keys[3] == "state_value"
    expected = independent(actor, critic, batch, 0.2, value_clip=0.1)["loss_critic"]
    torch.testing.assert_close(loss(batch)["loss_critic"], expected)


@pytest.mark.parametrize(("kind", "by_hand"), [("l2", 9.0), ("l1", 3.0), ("smooth_l1", 2.5)])
def test_the_critics_distance_by_hand(kind, by_hand):
    actor, critic = make_actor("categorical"), make_critic()
    batch = make_batch(actor, 1)
    batch["value_target"] = critic.module(batch["observation"]).detach() + 3
    out = ClipPPOLoss(actor, critic, loss_critic_type=kind)(batch)
    torch.testing.assert_close(out["loss_critic"].item(), by_hand)


def test_reductions(actor, critic):
    batch = make_batch(actor, 8)
    outs = {r: ClipPPOLoss(actor, critic, reduction=r)(batch) for r in ("mean", "sum", "none")}
    assert outs["none"]["loss_objective"].shape == (8,)
    torch.testing.assert_close(outs["sum"]["loss_objective"], outs["none"]["loss_objective"].sum())
    torch.testing.assert_close(outs["mean"]["loss_objective"], outs["none"]["loss_objective"].mean())


def test_the_loss_conforms(actor, critic, loss_class):
    check_loss(loss_class(actor, critic), make_batch(actor, 16), frozen=["advantage", "value_target"])


def test_the_loss_conforms_with_all_that_it_may_read(critic):
    actor = make_actor("normal")
    batch = make_batch(actor, 16)
    batch["state_value"] = torch.randn(16, 1)
    loss = ClipPPOLoss(actor, critic, clip_value=0.5, normalize_advantage=True)
    check_loss(loss, batch, frozen=["advantage", "value_target", "state_value", "action_log_prob"])


def test_keys_are_in_a_fixed_order(critic):
    loss = ClipPPOLoss(make_actor("normal"), critic)
    assert loss.in_keys == ["observation", "action", "action_log_prob", "advantage", "value_target"]
    assert loss.out_keys[:3] == ["loss_objective", "loss_critic", "loss_entropy"]
    assert loss.out_keys[3:] == ["entropy", "kl_approx", "ESS", "explained_variance", "clip_fraction"]
    assert list(loss(make_batch(loss.actor_network, 4)).keys()) == loss.out_keys


def test_the_loss_holds_the_networks_themselves(actor, critic):
    loss = ClipPPOLoss(actor, critic)
    assert {id(p) for p in loss.parameters()} == {id(p) for net in (actor, critic) for p in net.parameters()}


def test_an_entropy_without_formula_is_sampled(critic):
    actor = make_actor("squashed")
    batch = make_batch(actor, 16)
    out = ClipPPOLoss(actor, critic, samples_mc_entropy=4000)(batch)
    dist = actor.get_dist(batch.copy())
    expected = -dist.log_prob(dist.sample((4000,))).mean()
    torch.testing.assert_close(out["entropy"], expected.detach(), rtol=0.05, atol=0.02)
    assert out["loss_entropy"].requires_grad


def test_a_distribution_that_samples_and_scores_estimates_its_own_entropy(monkeypatch, critic):
    def both(self, shape):
        return self.rsample(shape), torch.full(shape + self.batch_shape, 3.0)

    actor = make_actor("squashed")
    batch = make_batch(actor, 16)
    monkeypatch.setattr(SquashedNormal, "rsample_and_log_prob", both, raising=False)
    torch.testing.assert_close(PPOLoss(actor, critic, samples_mc_entropy=2)(batch)["entropy"], torch.tensor(-3.0))


def test_an_actor_that_cannot_be_lowered_gives_the_same(actor, critic):
    class Odd(ProbabilisticTensorDictSequential):
        pass

    class OddCritic(TensorDictModule):
        def forward(self, td):
            return super().forward(td)

    batch = make_batch(actor, 16)
    odd = ClipPPOLoss(Odd(*actor.module), OddCritic(critic.module, ["observation"], ["state_value"]))
    torch.testing.assert_close(odd(batch), ClipPPOLoss(actor, critic)(batch))
    assert "logits" not in batch
    assert "loc" not in batch


def test_networks_may_share_a_trunk():
    trunk = TensorDictModule(nn.Linear(3, 3), ["observation"], ["features"])
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    actor = ProbabilisticTensorDictSequential(trunk, TensorDictModule(nn.Linear(3, 4), ["features"], ["logits"]), head)
    critic = TensorDictSequential(trunk, TensorDictModule(nn.Linear(3, 1), ["features"], ["state_value"]))
    loss = ClipPPOLoss(actor, critic)
    assert len(list(loss.parameters())) == 6
    check_loss(loss, make_batch(actor, 8))


def test_keys_may_have_other_names(critic):
    actor = make_actor("categorical")
    batch = make_batch(actor, 8)
    expected = ClipPPOLoss(actor, critic)(batch)
    for name in ("action_log_prob", "advantage", "value_target"):
        batch["agents", name] = batch.pop(name)
    loss = ClipPPOLoss(actor, critic)
    loss.set_keys(
        sample_log_prob=("agents", "action_log_prob"),
        advantage=("agents", "advantage"),
        value_target=("agents", "value_target"),
    )
    torch.testing.assert_close(loss(batch), expected)
    check_loss(loss, batch)


def test_names_follow_the_actor(critic):
    body = TensorDictModule(nn.Linear(3, 4), ["observation"], ["logits"])
    head = ProbabilisticTensorDictModule(["logits"], [("agents", "action")], distribution_class=Categorical)
    loss = ClipPPOLoss(ProbabilisticTensorDictSequential(body, head), critic)
    assert loss.in_keys[1:3] == [("agents", "action"), ("agents", "action_log_prob")]


def test_a_missing_log_probability_says_what_to_do(loss_class, critic):
    actor = make_actor("categorical")
    batch = make_batch(actor, 4).exclude("action_log_prob")
    text = (
        rf"^{loss_class.__name__} reads 'action_log_prob', which nothing in this batch wrote \(keys: .*action.*\)\..*"
        r"Build the actor with return_log_prob=True, or name the key with loss.set_keys\(sample_log_prob=\.\.\.\)"
    )
    with pytest.raises(ContractError, match=text):
        loss_class(actor, critic)(batch)


def test_a_missing_advantage_says_what_to_do(critic):
    actor = make_actor("categorical")
    with pytest.raises(ContractError, match=r"reads 'advantage'.*GAE\(value_network=critic\)\(batch\)"):
        ClipPPOLoss(actor, critic)(make_batch(actor, 4).exclude("advantage"))


def add_outcome(batch):
    after = {
        "observation": torch.randn(*batch.shape, 3),
        "reward": torch.randn(*batch.shape, 1),
        "done": torch.rand(*batch.shape, 1) < 0.2,
        "terminated": torch.zeros(*batch.shape, 1, dtype=torch.bool),
    }
    return batch.exclude("advantage", "value_target").update({"next": after})


def test_an_absent_advantage_is_estimated_on_sequences(critic):
    actor = make_actor("categorical")
    batch = add_outcome(make_batch(actor, 3, 6)).refine_names(None, "time")
    before = batch.clone()
    loss = ClipPPOLoss(actor, critic)
    expected = loss(GAE(value_network=critic)(batch.clone()))
    torch.testing.assert_close(loss(batch), expected)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))


def test_an_estimator_may_be_chosen(critic):
    actor = make_actor("categorical")
    batch = add_outcome(make_batch(actor, 3, 6))
    loss = ClipPPOLoss(actor, critic)
    made = loss.make_value_estimator(ValueEstimators.TD0, gamma=0.5)
    assert loss.value_estimator is made
    assert ("next", "reward") in loss.in_keys
    assert "advantage" not in loss.in_keys
    torch.testing.assert_close(loss(batch), loss(made(batch.clone())))
    assert len(loss.state_dict()) == len(list(loss.parameters()))
    check_loss(loss, batch)


def test_keys_of_the_estimator_follow(critic):
    actor = make_actor("categorical")
    loss = ClipPPOLoss(actor, critic)
    loss.make_value_estimator(gamma=0.9, lmbda=0.5)
    loss.set_keys(reward="bonus")
    assert ("next", "bonus") in loss.in_keys
    assert loss.value_estimator.lmbda == 0.5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda b: b.set("advantage", b["advantage"].squeeze(-1)), r"'advantage' \(8,\); expected \[\*B\], \[\*B\]"),
        (lambda b: b.set("action_log_prob", b["action_log_prob"].unsqueeze(-1)), r"'action_log_prob' \(8, 1\)"),
        (lambda b: b.set("value_target", b["value_target"].squeeze(-1)), r"target \(8,\): they would broadcast"),
    ],
    ids=["advantage", "log-prob", "target"],
)
def test_nothing_broadcasts(critic, change, text):
    actor = make_actor("categorical")
    with pytest.raises(ShapeError, match=text):
        ClipPPOLoss(actor, critic)(change(make_batch(actor, 8)))


def test_a_factorised_distribution_is_refused(critic):
    actor = make_actor("factorised")
    with pytest.raises(ShapeError, match=r"torch\.distributions\.Independent"):
        ClipPPOLoss(actor, critic)(make_batch(actor, 8))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"clip_epsilon": 1.5}, "clip_epsilon must be above 0 and below 1, got 1.5"),
        ({"loss_critic_type": "l3"}, "loss_function must be .* got 'l3'"),
        ({"reduction": "max"}, "reduction must be .* got 'max'"),
        ({"clip_value": True, "clip_epsilon": (0.1, 0.3)}, "clip_value must be a number"),
        ({"clip_epsilon": (0.2, -0.1)}, "clip_epsilon must be above 0, got -0.1"),
        ({"entropy_coeff": {"action": -1.0}}, r"entropy_coeff\['action'\] must be at least 0"),
        ({"samples_mc_entropy": 0}, "samples_mc_entropy must be at least 1"),
    ],
    ids=["clip", "critic", "reduction", "value-clip", "pair", "entropy", "samples"],
)
def test_arguments_outside_their_range_are_refused(critic, arguments, text):
    with pytest.raises(ArgumentError, match=text):
        ClipPPOLoss(make_actor("categorical"), critic, **arguments)


def test_networks_that_say_nothing_are_refused(critic):
    with pytest.raises(ContractError, match="Linear has no in_keys"):
        ClipPPOLoss(nn.Linear(3, 2), critic)
    with pytest.raises(ContractError, match="TensorDictModule has no get_dist"):
        ClipPPOLoss(critic, critic)
    other = TensorDictModule(nn.Linear(3, 1), ["observation"], ["value"])
    with pytest.raises(ContractError, match=r"does not write 'state_value', it writes 'value'"):
        _ = ClipPPOLoss(make_actor("categorical"), other).in_keys


def test_a_network_may_be_exchanged(critic):
    actor, other = make_actor("normal"), make_actor("normal")
    batch = make_batch(actor, 8)
    loss = ClipPPOLoss(actor, critic)
    loss.actor_network = other
    torch.testing.assert_close(loss(batch), ClipPPOLoss(other, critic)(batch))


def test_a_new_critic_reaches_the_estimator(critic):
    loss = ClipPPOLoss(make_actor("normal"), critic)
    estimator = loss.make_value_estimator()
    loss.critic_network = make_critic()
    assert "action" in loss.in_keys  # at its next use
    assert estimator.value_network is loss.critic_network
    batch = add_outcome(make_batch(loss.actor_network, 2, 4))
    expected = GAE(value_network=loss.critic_network)(batch.clone())
    torch.testing.assert_close(estimator(batch.clone())["value_target"], expected["value_target"])


def test_the_values_clip_may_be_set_later(critic):
    actor = make_actor("normal")
    batch = make_batch(actor, 16)
    batch["state_value"] = torch.randn(16, 1)
    loss = ClipPPOLoss(actor, critic)
    loss.clip_value = 0.1
    torch.testing.assert_close(loss(batch), ClipPPOLoss(actor, critic, clip_value=0.1)(batch))
    assert "state_value" in loss.in_keys


def test_options_under_their_other_spelling(critic):
    actor = make_actor("normal")
    batch = make_batch(actor, 16)
    batch["state_value"] = torch.randn(16, 1)
    pairs = [
        ({"reduction": None}, {"reduction": "mean"}),
        ({"clip_value": True, "clip_epsilon": 0.1}, {"clip_value": 0.1, "clip_epsilon": 0.1}),
        ({"entropy_bonus": False}, {"entropy_coeff": 0}),
        ({"clip_epsilon": (0.2, 0.2)}, {"clip_epsilon": 0.2}),
    ]
    for one, other in pairs:
        torch.testing.assert_close(ClipPPOLoss(actor, critic, **one)(batch), ClipPPOLoss(actor, critic, **other)(batch))
    assert ClipPPOLoss(actor, critic).tensor_keys.sample_log_prob == "action_log_prob"


def test_a_clip_may_reach_further_above_than_below():
    ratio, gain = torch.tensor([0.5, 1.3, 2.0]), torch.ones(3)
    found = clipped_surrogate(ratio.log(), torch.tensor([-1.0, 1.0, 1.0]), (0.2, 0.5))
    torch.testing.assert_close(found, torch.tensor([0.8, -1.3, -1.5]) * gain)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_targets_that_are_no_floats_are_refused(critic, dtype):
    actor = make_actor("categorical")
    batch = make_batch(actor, 4)
    batch["value_target"] = batch["value_target"].to(dtype)
    with pytest.raises(ArgumentError, match="pass target"):
        PPOLoss(actor, critic)(batch)


def test_a_loss_survives_a_pickle_with_its_estimator(critic):
    loss = ClipPPOLoss(make_actor("normal"), critic)
    loss.make_value_estimator(lmbda=0.5)
    again = pickle.loads(pickle.dumps(loss))
    assert again.value_estimator.lmbda == 0.5
    assert again.value_estimator.value_network is again.critic_network


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_the_loss_compiles_whole(kind, critic):
    actor = make_actor(kind)
    batch = make_batch(actor, 8)
    loss = ClipPPOLoss(actor, critic)
    expected = loss(batch)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    out = compiled(batch)
    torch.testing.assert_close(out, expected)
    out["loss_objective"].backward()


@pytest.mark.parametrize("kind", [PPOLoss, A2CLoss, ReinforceLoss])
@pytest.mark.parametrize("clip_value", [None, 0.2])
def test_separate_losses_keep_the_critics_gradient_out_of_a_shared_trunk(kind, clip_value):
    trunk = TensorDictModule(nn.Linear(3, 5), ["observation"], ["hidden"])
    body = TensorDictSequential(trunk, TensorDictModule(nn.Linear(5, 4), ["hidden"], ["logits"]))
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    actor = ProbabilisticTensorDictSequential(*body.module, head)
    critic = TensorDictSequential(trunk, TensorDictModule(nn.Linear(5, 1), ["hidden"], ["state_value"]))
    batch = make_batch(actor, 8)
    batch["state_value"] = torch.randn(8, 1)
    joined, separate = (
        kind(actor, critic, separate_losses=value, clip_value=clip_value, reduction="mean") for value in (False, True)
    )
    name = "loss_value" if kind is ReinforceLoss else "loss_critic"
    torch.testing.assert_close(separate(batch), joined(batch))
    shared, own = [*trunk.parameters()], [*critic[1].parameters()]
    found = torch.autograd.grad(separate(batch)[name], [*shared, *own], allow_unused=True)
    expected = torch.autograd.grad(joined(batch)[name], [*shared, *own])
    assert found[:2] == (None, None)
    torch.testing.assert_close(found[2:], expected[2:])
    assert all(p.requires_grad for p in shared)
    compiled = torch.compile(separate, fullgraph=True, backend="eager")(batch)
    assert torch.autograd.grad(compiled[name], shared, allow_unused=True) == (None, None)
    joined.separate_losses = True  # may be set later
    assert torch.autograd.grad(joined(batch)[name], shared, allow_unused=True) == (None, None)
