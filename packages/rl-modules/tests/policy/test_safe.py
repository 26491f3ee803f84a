"""Modules that project what they write onto a spec."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.testing import assert_close

from rl.core.errors import SpecError
from rl.core.specs import Bounded, Composite, OneHot
from rl.core.tensor_functions import as_function
from rl.modules import (
    IndependentNormal,
    NormalParamExtractor,
    SafeModule,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
    SafeSequential,
    set_exploration_type,
)

BOX = Bounded(-0.1, 0.1, (2,))
SPECS = [BOX, Composite({("agent", "action"): BOX, "other": OneHot(3)})]


def td(count, **more):
    return TensorDict(observation=torch.randn(count, 3), batch_size=[count], **more)


@pytest.mark.parametrize("spec", SPECS, ids=["leaf", "composite"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_outputs_are_projected(spec, count):
    key = ("agent", "action")
    net = nn.Linear(3, 2)
    data = td(count)
    module = SafeModule(net, ["observation"], [key], spec=spec, safe=True)
    for one in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), SafeSequential(module)):
        assert_close(one(data.copy())[key], net(data["observation"]).clamp(-0.1, 0.1))
        assert one.spec[key] == BOX
    assert_close(module(observation=data["observation"]), net(data["observation"]).clamp(-0.1, 0.1))
    assert as_function(module) is None


def test_without_safe_it_is_the_plain_module():
    module = SafeModule(nn.Linear(3, 2), ["observation"], ["action"], spec=BOX)
    data = td(4)
    assert_close(module(data.copy())["action"], module.module(data["observation"]))
    assert isinstance(module, TensorDictModule)
    assert as_function(module) is not None


def test_of_several_outputs_those_with_a_spec_are_projected():
    module = SafeModule(lambda x: (x, x), ["observation"], ["a", "b"], spec=Composite(b=BOX.expand(2)[:1]), safe=True)
    one = torch.tensor([[5.0]])
    assert_close(module(observation=one), (one, torch.tensor([[0.1]])))
    assert_close(module(TensorDict(observation=one))["b"], torch.tensor([[0.1]]))


@pytest.mark.parametrize("sequence", [SafeSequential, SafeProbabilisticTensorDictSequential])
@pytest.mark.parametrize("how", ["random", "deterministic"])
def test_samples_are_projected(how, sequence):
    net = TensorDictModule(nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"])
    head = SafeProbabilisticModule(
        ["loc", "scale"], ["action"], spec=BOX, safe=True, distribution_class=IndependentNormal
    )
    policy = pickle.loads(pickle.dumps(sequence(net, head)))
    with set_exploration_type(how):
        out = policy(td(50))
    assert BOX.is_in(out["action"])
    assert (out["action"].abs() == 0.1).any()
    assert policy.spec.keys() == ["action"]


def test_a_sequence_with_a_distribution_returns_it():
    net = SafeModule(nn.Linear(3, 4), ["observation"], ["both"])
    split = TensorDictModule(NormalParamExtractor(), ["both"], ["loc", "scale"])
    head = SafeProbabilisticModule(["loc", "scale"], ["action"], spec=BOX, distribution_class=IndependentNormal)
    policy = SafeProbabilisticTensorDictSequential(net, split, head)
    data = td(5)
    loc, scale = NormalParamExtractor()(net.module(data["observation"]))
    action = torch.randn(5, 2)
    assert_close(policy.get_dist(data).log_prob(action), IndependentNormal(loc, scale).log_prob(action))
    assert policy.spec["action"] == BOX


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SafeModule(nn.Identity(), ["x"], ["y"], safe=True),
            "SafeModule: safe=True needs a spec of 'y'",
        ),
        (lambda: SafeModule(nn.Identity(), ["x"], ["y"], Composite(z=BOX), safe=True), "needs a spec of 'y'"),
        (
            lambda: SafeProbabilisticModule(["param"], ["action"], BOX, safe=True, return_log_prob=True),
            "safe=True changes samples after they were scored",
        ),
    ],
    ids=["no-spec", "no-entry", "log-prob"],
)
def test_what_cannot_be_projected_is_refused(make, message):
    with pytest.raises(SpecError, match=message):
        make()
