"""The plain form of every policy gives the numbers of its TensorDict form, draw for draw."""

import pickle

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.testing import assert_close

from rl.core.specs import Bounded, OneHot
from rl.core.tensor_functions import as_distribution_function, as_function
from rl.modules import (
    EGreedyModule,
    ExplorationType,
    ProbabilisticActor,
    QValueModule,
    TanhNormal,
    set_exploration_type,
)

SHAPES = pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
MODES = pytest.mark.parametrize(
    "mode",
    [None, ExplorationType.RANDOM, ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN],
    ids=str,
)


@SHAPES
@MODES
def test_lowered_policy_equals_the_policy(make_policy, batch, shape, mode):
    policy, td = make_policy(), batch(shape)
    plain = as_function(policy)
    assert plain is not None
    with set_exploration_type(mode):
        torch.manual_seed(1)
        try:
            expected = policy(td.clone())
        except (NotImplementedError, RuntimeError) as error:
            assert mode is ExplorationType.MEAN  # numbers of actions have none
            with pytest.raises(type(error)):
                plain(*[td[key] for key in plain.in_keys])
            return
        after = torch.get_rng_state()
        torch.manual_seed(1)
        actual = plain(*[td[key] for key in plain.in_keys])
        assert_close(torch.get_rng_state(), after)
    assert sorted(map(str, plain.out_keys)) == sorted(map(str, policy.out_keys))
    for key, value in zip(plain.out_keys, actual, strict=True):
        assert value.dtype is expected[key].dtype
        assert_close(value, expected[key], rtol=0, atol=0)


@SHAPES
def test_lowered_distribution_equals_get_dist(make_stochastic, batch, shape):
    policy, td = make_stochastic(), batch(shape)
    plain, dist = as_distribution_function(policy), policy.get_dist(td.clone())
    other = plain(*[td[key] for key in plain.in_keys])
    assert type(other) is type(dist)
    assert (other.batch_shape, other.event_shape) == (dist.batch_shape, dist.event_shape)
    value = dist.sample()
    assert_close(other.log_prob(value), dist.log_prob(value), rtol=0, atol=0)


def test_the_gradient_is_the_same(make_stochastic, batch):
    policy, td = make_stochastic(), batch((5,))
    scores = []
    for run in (
        policy.get_dist,
        lambda td: as_distribution_function(policy)(*[td[k] for k in as_distribution_function(policy).in_keys]),
    ):
        torch.manual_seed(0)
        dist = run(td.clone())
        policy.zero_grad()
        value = dist.sample()
        log_prob = dist.log_prob(value)
        if log_prob.requires_grad:
            log_prob.sum().backward()
        scores.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert_close(scores[0], scores[1], rtol=0, atol=0)


def test_a_policy_survives_the_way_to_a_worker(make_policy, batch):
    policy, td = make_policy(), batch((3,))
    copy = pickle.loads(pickle.dumps(policy))
    torch.manual_seed(0)
    expected = policy(td.clone())
    torch.manual_seed(0)
    assert (copy(td.clone()) == expected).all()


def test_contract_says_what_is_read_and_written(make_policy, batch):
    policy = make_policy()
    td = batch((2,)).select(*policy.in_keys)
    contract = getattr(policy, "contract", None)
    if contract is not None:
        assert set(contract.in_keys) == set(policy.in_keys)
        assert contract.out_keys == policy.out_keys
        assert all(key.remedy or key.name == "mask" for key in contract.reads)
    out = policy(td)
    assert set(policy.out_keys) <= set(out.keys(include_nested=True, leaves_only=True))


class Louder(ProbabilisticActor):
    def forward(self, tensordict):
        return super().forward(tensordict).set("action", torch.zeros(1))


class Noisier(ProbabilisticActor):
    def get_dist_params(self, tensordict, tensordict_out=None, **kwargs):
        params = super().get_dist_params(tensordict, tensordict_out, **kwargs)
        return params.set("scale", params["scale"] * 2)


class Shifted(QValueModule):
    def forward(self, tensordict):
        return super().forward(tensordict).set("action", torch.zeros(1))


class Shy(EGreedyModule):
    def forward(self, tensordict):
        return tensordict


def probabilistic(cls=ProbabilisticActor):
    net = TensorDictModule(lambda x: (x, x.exp()), ["observation"], ["loc", "scale"])
    return cls(net, ["loc", "scale"], distribution_class=TanhNormal)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda spec: probabilistic(Louder), id="actor"),
        pytest.param(lambda spec: probabilistic(Noisier), id="actor-parameters"),
        pytest.param(lambda spec: Shifted("one-hot"), id="q-value"),
        pytest.param(Shy, id="egreedy"),
    ],
)
def test_a_subclass_with_its_own_forward_has_no_plain_form(module):
    assert as_function(module(OneHot(2))) is None


def test_a_subclass_with_its_own_parameters_has_no_plain_distribution():
    assert as_distribution_function(probabilistic()) is not None
    assert as_distribution_function(probabilistic(Noisier)) is None


@pytest.mark.parametrize("part", ["whole", "body", "head"])
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_a_hooked_policy_has_no_plain_form(part, kind):
    actor = probabilistic()
    assert as_function(actor) is not None
    place = {"whole": actor, "body": actor.module[0], "head": actor.module[1]}[part]
    getattr(place, kind)(lambda *_: None)
    assert as_function(actor) is None
    assert as_distribution_function(actor) is None or part == "whole"


def test_hooks_on_the_network_itself_are_honoured():
    net = nn.Linear(3, 3)
    actor = ProbabilisticActor(TensorDictModule(net, ["observation"], ["param"]), ["param"])
    net.register_forward_hook(lambda *_: torch.ones(2, 3))
    (param, action) = as_function(actor)(torch.zeros(2, 3))
    assert_close(action, torch.ones(2, 3))
    assert_close(param, action)


def test_fewer_selected_keys_have_no_plain_form():
    actor = probabilistic()
    actor.select_out_keys("action")
    assert as_function(actor) is None


def test_a_moved_policy_moves_its_bounds():
    spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
    net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["loc"])
    scaled = ProbabilisticActor(
        net, ["loc"], spec=spec, distribution_class=TanhNormal, distribution_kwargs={"scale": torch.ones(2)}
    )
    plain = as_function(scaled)
    scaled.double()
    assert plain(torch.zeros(4, 3, dtype=torch.float64))[1].dtype is torch.float64
    assert scaled.head.distribution_kwargs["low"].dtype is torch.float64
