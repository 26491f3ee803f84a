"""Policies of rl-modules in C against the same in torch, and collectors that use them."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.collectors import Collector
from rl.core import ExplorationType, set_exploration_type
from rl.core.backends import policy_step
from rl.core.errors import ArgumentError, BackendError, UnsupportedError
from rl.core.specs import Bounded, OneHot
from rl.core.specs import Categorical as Choice
from rl.core.tensor_functions import as_function
from rl.envs import CartPoleEnv, GymEnv, PendulumEnv, SerialEnv
from rl.modules import (
    MLP,
    AdditiveGaussianModule,
    Categorical,
    EGreedyModule,
    GRUModule,
    IndependentNormal,
    LSTMModule,
    MaskedCategorical,
    MaskedOneHotCategorical,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    QValueModule,
    TanhNormal,
)
from rl.native import _library  # whether it was built
from rl.testing import check_policy_step

pytestmark = pytest.mark.skipif(_library.library() is None, reason="the library is not built")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def near(found, wanted, tolerance=1e-6):
    error = (found.double() - wanted.double()).abs()
    return found.dtype == wanted.dtype and bool((error <= tolerance * (1 + wanted.double().abs())).all())


def categorical(kind, mask=False, n=5):
    keys = ["logits", "mask"] if mask else ["logits"]
    net = TensorDictModule(MLP(6, n, num_cells=[32, 17]), ["observation"], ["logits"])
    return ProbabilisticActor(net, keys, distribution_class=kind, return_log_prob=True)


def gaussian(kind, mapping="biased_softplus_1.0", **kwargs):
    net = nn.Sequential(MLP(6, 6, num_cells=[32, 17], activation_class=nn.ReLU), NormalParamExtractor(mapping, 0.1))
    params = TensorDictModule(net, ["observation"], ["loc", "scale"])
    return ProbabilisticActor(
        params, ["loc", "scale"], distribution_class=kind, distribution_kwargs=kwargs, return_log_prob=True
    )


HEADS = {
    "categorical": lambda: categorical(Categorical),
    "one-hot": lambda: categorical(OneHotCategorical),
    "masked": lambda: categorical(MaskedCategorical, mask=True),
    "masked one-hot": lambda: categorical(MaskedOneHotCategorical, mask=True),
    "normal": lambda: gaussian(IndependentNormal),
    "normal, exp": lambda: gaussian(IndependentNormal, "exp"),
    "normal, relu": lambda: gaussian(IndependentNormal, "relu"),
    "tanh-normal": lambda: gaussian(TanhNormal),
    "tanh-normal, bounds": lambda: gaussian(TanhNormal, low=-2.0, high=torch.tensor([1.0, 2.0, 3.0])),
    "q-values": lambda: QValueActor(MLP(6, 5), spec=OneHot(5, dtype=torch.int64)),
    "q-values, masked": lambda: QValueActor(MLP(6, 5), spec=Choice(5), action_mask_key="mask"),
}


def inputs(policy, rows):
    root = {"observation": torch.randn(rows, 6), "mask": torch.rand(rows, 5) < 0.5}
    root["mask"][:, 2] = True
    return [root[key] for key in policy.in_keys]


@pytest.mark.parametrize("rows", [1, 16, 256])
@pytest.mark.parametrize("head", HEADS)
def test_values_without_randomness_equal_those_of_torch(head, rows):
    policy = HEADS[head]()
    step, leaves = policy_step(policy, "native", CPU), inputs(policy, rows)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        found, wanted = step(*leaves), as_function(policy)(*leaves)
    for key, one, other in zip(step.out_keys, found, wanted, strict=True):
        tolerance = 1e-5 if key == "action_log_prob" else 1e-6
        assert one.shape == other.shape, key
        assert near(one, other, tolerance), key


@pytest.mark.parametrize("head", HEADS)
def test_each_head_conforms_to_the_hook(head):
    policy = HEADS[head]()
    check_policy_step(policy_step(policy, "native", CPU), as_function(policy), inputs(policy, 7))


@pytest.mark.parametrize("rows", [1, 16, 256])
@pytest.mark.parametrize("head", [head for head in HEADS if not head.startswith("q")])
def test_the_score_of_a_random_action_is_that_of_torch(head, rows):
    policy = HEADS[head]()
    step, leaves = policy_step(policy, "native", CPU), inputs(policy, rows)
    root = TensorDict(dict(zip(policy.in_keys, leaves, strict=True)), batch_size=[rows])
    with set_exploration_type(ExplorationType.RANDOM):
        found = dict(zip(step.out_keys, step(*leaves), strict=True))
    dist = policy.get_dist(root)
    assert near(found["action_log_prob"], dist.log_prob(found["action"]), 1e-5)
    if "masked" in head:
        chosen = found["action"] if found["action"].ndim == 2 else nn.functional.one_hot(found["action"], 5)
        assert bool((leaves[1] | (chosen == 0)).all())


def test_actions_have_the_probabilities_of_the_distribution():
    policy = HEADS["masked"]()
    step, n = policy_step(policy, "native", CPU), 250
    leaves = [one.expand(n, -1).contiguous() for one in inputs(policy, 1)]
    step.prepare(400)
    with set_exploration_type(ExplorationType.RANDOM):
        rows = torch.cat([dict(zip(step.out_keys, step(*leaves), strict=True))["action"] for _ in range(400)])
    probs = policy.get_dist(TensorDict(dict(zip(policy.in_keys, leaves, strict=True)), batch_size=[n])).probs[0]
    counts, many = torch.bincount(rows, minlength=5), 400 * n
    expected = probs * many
    allowed = probs > 0
    assert int(counts[~allowed].sum()) == 0
    chi = ((counts - expected).square() / expected)[allowed].sum()
    assert float(chi) < 20  # of four degrees of freedom: p = 0.0005


def test_tanh_normal_actions_have_the_distribution():
    policy = gaussian(TanhNormal, low=-2.0, high=torch.tensor([1.0, 2.0, 3.0]))
    step, n = policy_step(policy, "native", CPU), 250
    x = torch.randn(1, 6).expand(n, -1).contiguous()
    step.prepare(200)
    with set_exploration_type(ExplorationType.RANDOM):
        rows = [dict(zip(step.out_keys, step(x), strict=True)) for _ in range(200)]
    half = torch.tensor([1.5, 2.0, 2.5])
    u = (torch.cat([row["action"] for row in rows]) + 2) / half - 1
    z = (u.double().clamp(-1 + 1e-7, 1 - 1e-7).atanh() - rows[0]["loc"][0]) / rows[0]["scale"][0]
    assert float(z.mean(0).abs().max()) < 5 / 50_000**0.5
    assert float((z.std(0) - 1).abs().max()) < 5 / 100_000**0.5  # five standard errors, as above


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_epsilon_greedy_replaces_the_share_of_actions(one_hot, masked):
    spec = OneHot(5, dtype=torch.int64) if one_hot else Choice(5)
    keys = {"action_mask_key": "mask"} if masked else {}
    explore = EGreedyModule(spec, eps_init=0.4, eps_end=0.4, annealing_num_steps=1, **keys)
    values = TensorDictModule(MLP(6, 5), ["observation"], ["action_value"])
    policy = TensorDictSequential(values, QValueModule(spec=spec, **keys), explore)
    step, n = policy_step(policy, "native", CPU), 250
    leaves = [one.expand(n, -1).contiguous() for one in inputs(policy, 1)]
    place = step.out_keys.index("action")
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        best = step(*leaves)[place]
        assert torch.equal(best, as_function(policy)(*leaves)[place])
    step.prepare(200)
    with set_exploration_type(ExplorationType.RANDOM):
        rows = torch.cat([step(*leaves)[place] for _ in range(200)])
    if one_hot:
        assert bool((rows.sum(-1) == 1).all())
        rows, best = rows.argmax(-1), best.argmax(-1)
    allowed = leaves[1][0] if masked else torch.ones(5, dtype=torch.bool)
    expected = torch.where(allowed, 0.4 / int(allowed.sum()), 0.0)
    expected[best[0]] += 0.6
    counts = torch.bincount(rows, minlength=5) / len(rows)
    assert float((counts - expected).abs().max()) < 5 * (0.25 / len(rows)) ** 0.5  # five standard errors
    explore.schedule.value.fill_(0.0)
    assert torch.equal(step(*leaves)[place].view(n, -1), as_function(policy)(*leaves)[place].view(n, -1))


def test_noise_on_an_action_stays_within_the_bounds():
    actor = TensorDictModule(nn.Sequential(MLP(6, 2), nn.Tanh()), ["observation"], ["action"])
    x = torch.randn(256, 6)
    plain = actor(TensorDict(observation=x))["action"]

    def act(high):
        noise = AdditiveGaussianModule(Bounded(-high, high), sigma_init=0.3, sigma_end=0.3, annealing_num_steps=1)
        torch.manual_seed(3)
        with set_exploration_type(ExplorationType.RANDOM):
            return policy_step(TensorDictSequential(actor, noise), "native", CPU)(x)[0]

    high = torch.tensor([1.0, 0.5])
    free, bounded = act(torch.tensor([9.0, 9.0])), act(high)
    z = (free - plain) / 0.3
    assert abs(float(z.mean())) < 5 / z.numel() ** 0.5  # five standard errors
    assert abs(float(z.std()) - 1) < 5 / (2 * z.numel()) ** 0.5
    assert bool((free.abs() > high).any())
    assert torch.equal(bounded, free.clamp(-high, high))


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
def test_recurrent_policies_equal_torch_over_episodes(kind, layers, rows):
    memory = kind(6, 19, num_layers=layers, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(19, 3), ["features"], ["logits"])
    policy = ProbabilisticActor(
        TensorDictSequential(memory, head), ["logits"], distribution_class=Categorical, return_log_prob=True
    )
    step, plain = policy_step(policy, "native", CPU), as_function(policy)
    ours = theirs = [torch.zeros(rows, layers, 19) for _ in memory.states]
    for time in range(12):
        x, begins = torch.randn(rows, 6), torch.rand(rows, 1) < (1.0 if time == 0 else 0.3)
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            found = dict(zip(step.out_keys, step(x, *ours, begins), strict=True))
            wanted = dict(zip(plain.out_keys, plain(x, *theirs, begins), strict=True))
        for key, one in wanted.items():
            assert found[key].shape == one.shape
            assert near(found[key], one, 1e-5 if key == "action_log_prob" else 1e-6), key
        ours = [found["next", *state.name] for state in memory.states]
        theirs = [wanted["next", *state.name] for state in memory.states]


def test_a_mask_that_allows_nothing_raises_the_error_of_torch():
    policy = HEADS["masked"]()
    step, (x, mask) = policy_step(policy, "native", CPU), inputs(policy, 3)
    mask[1] = False
    with pytest.raises(ArgumentError, match="a row that allows no action"):
        step(x, mask)


def actor_of(env):
    torch.manual_seed(1)
    net = TensorDictModule(MLP(4, 2, num_cells=[16]), ["observation"], ["logits"])
    return ProbabilisticActor(
        net, ["logits"], spec=env.action_spec, distribution_class=OneHotCategorical, return_log_prob=True
    )


def collector(frames=96, policy=None, **kwargs):
    env = CartPoleEnv([4])
    env.set_seed(0)
    torch.manual_seed(5)
    return Collector(env, actor_of(env) if policy is None else policy(env), frames_per_batch=frames, **kwargs)


def test_a_collector_with_the_back_end_stores_what_the_policy_computes():
    made = collector(policy_backend="native")
    batch = [made.collect() for _ in range(3)][-1]
    assert "native: compiled C" in made.explain()
    with set_exploration_type(ExplorationType.RANDOM):
        dist = made.policy.get_dist(batch.clone())
    assert near(batch["logits"], made.policy.module[0](batch.clone())["logits"])
    assert near(batch["action_log_prob"], dist.log_prob(batch["action"]), 1e-5)


def test_a_seed_returns_the_same_batches_and_a_state_continues_them():
    first, again = collector(policy_backend="native"), collector(policy_backend="native")
    torch.manual_seed(7)
    one = [first.collect() for _ in range(2)]
    saved, generator = first.state_dict(), torch.get_rng_state()
    one += [first.collect() for _ in range(2)]
    torch.manual_seed(7)
    other = [again.collect() for _ in range(2)]
    assert all(bool((a == b).all()) for a, b in zip(one, other, strict=False))
    resumed = collector(policy_backend="native")
    resumed.load_state_dict(saved)
    torch.set_rng_state(generator)
    assert all(bool((a == resumed.collect()).all()) for a in one[2:])


def test_without_the_setting_batches_are_those_of_torch():
    batch, plain = collector().collect(), as_function(actor_of(CartPoleEnv([4])))
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        logits = plain(batch["observation"][:, 3])[0]
    assert torch.equal(logits, batch["logits"][:, 3])


def test_a_policy_that_c_does_not_know_runs_in_torch_and_explain_says_why():
    def policy(env):
        torch.manual_seed(1)
        net = TensorDictModule(nn.Sequential(nn.Linear(4, 2), nn.Softplus()), ["observation"], ["logits"])
        return ProbabilisticActor(net, ["logits"], distribution_class=OneHotCategorical)

    made, plain = collector(policy=policy, policy_backend="native"), collector(policy=policy)
    assert "torch, as native cannot compute this policy: Softplus is no known layer" in made.explain()
    torch.manual_seed(2)
    found = made.collect()
    torch.manual_seed(2)
    assert bool((found == plain.collect()).all())


def test_a_back_end_that_is_not_installed_is_an_error():
    with pytest.raises(BackendError, match="no installed back end 'fpga' computes policies on cpu"):
        collector(policy_backend="fpga")
    with pytest.raises(ArgumentError, match="need a policy"):
        Collector(CartPoleEnv([2]), frames_per_batch=4, policy_backend="native")
    with pytest.raises(ArgumentError, match="got both"):
        collector(policy_backend="native", compile_policy=True)


@pytest.mark.parametrize("env", ["gym", "serial", "pendulum"])
def test_environments_take_the_actions(env):
    made = {
        "gym": lambda: GymEnv("CartPole-v1", num_envs=3),
        "serial": lambda: SerialEnv(2, CartPoleEnv),
        "pendulum": PendulumEnv,
    }[env]()
    spec = made.action_spec
    if env == "pendulum":
        policy = ProbabilisticActor(
            TensorDictModule(nn.Sequential(MLP(3, 2), NormalParamExtractor()), ["observation"], ["loc", "scale"]),
            ["loc", "scale"],
            spec=spec,
            distribution_class=TanhNormal,
            return_log_prob=True,
        )
    else:
        kind = OneHotCategorical if isinstance(spec, OneHot) else Categorical
        policy = ProbabilisticActor(
            TensorDictModule(MLP(4, 2), ["observation"], ["logits"]), ["logits"], spec=spec, distribution_class=kind
        )
    made = Collector(made, policy, frames_per_batch=60, policy_backend="native", debug=True)
    assert "native: compiled C" in made.explain()
    for _ in range(2):
        made.collect()


def test_agents_with_a_state_each_are_rejected():
    memory = LSTMModule(6, 4, in_key="observation", out_key="action", n_agents=2)
    with pytest.raises(UnsupportedError, match="LSTMModule has agents"):
        policy_step(memory, "native", CPU)
