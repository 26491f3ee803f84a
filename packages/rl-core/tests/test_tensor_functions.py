"""The lowered form of a module gives the numbers of its TensorDict form."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl.core import compile_with_warmup
from rl.core.errors import ContractError
from rl.core.tensor_functions import TensorFunction, as_distribution_function, as_function, as_tensor_env, chain
from rl.testing import CountingEnv


class Split(nn.Module):
    def forward(self, x):
        loc, raw = x.chunk(2, -1)
        return loc, raw.exp()


def independent_normal(loc, scale):
    return Independent(Normal(loc, scale), 1)


def net(out=4):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, out))


def plain():
    return TensorDictModule(net(), in_keys=["observation"], out_keys=["action"])


def by_keyword():
    return TensorDictModule(
        lambda a, b: a - b, in_keys={"a": "observation", "b": ("next", "observation")}, out_keys=["action"]
    )


def sequence():
    first = TensorDictModule(net(3), in_keys=["observation"], out_keys=[("hidden", "h")])
    second = TensorDictModule(nn.Linear(3, 2), in_keys=[("hidden", "h")], out_keys=["action"])
    return TensorDictSequential(first, second)


def overwriting():
    first = TensorDictModule(net(3), in_keys=["observation"], out_keys=["observation"])
    return TensorDictSequential(first, TensorDictModule(net(2), in_keys=["observation"], out_keys=["action"]))


def normal_actor(return_log_prob=True, cls=independent_normal):
    body = TensorDictModule(nn.Sequential(net(), Split()), in_keys=["observation"], out_keys=["loc", "scale"])
    head = ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"], out_keys=["action"], distribution_class=cls, return_log_prob=return_log_prob
    )
    return ProbabilisticTensorDictSequential(body, head)


def categorical_actor():
    body = TensorDictModule(net(), in_keys=["observation"], out_keys=["logits"])
    head = ProbabilisticTensorDictModule(
        in_keys=["logits"], out_keys=["action"], distribution_class=Categorical, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(body, head)


MAKERS = [
    plain,
    by_keyword,
    sequence,
    overwriting,
    normal_actor,
    lambda: normal_actor(return_log_prob=False),
    categorical_actor,
]
IDS = ["plain", "by-keyword", "sequence", "overwriting", "normal", "normal-without-log-prob", "categorical"]


@pytest.mark.parametrize("batch", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "how", [InteractionType.RANDOM, InteractionType.DETERMINISTIC], ids=["random", "deterministic"]
)
@pytest.mark.parametrize("make", MAKERS, ids=IDS)
def test_same_numbers(make, how, batch):
    torch.manual_seed(0)
    module = make()
    lowered = as_function(module)
    assert lowered is not None
    td = TensorDict(
        {"observation": torch.randn(*batch, 3), "next": {"observation": torch.randn(*batch, 3)}}, batch_size=batch
    )
    with set_interaction_type(how):
        torch.manual_seed(1)
        got = lowered(*[td[key] for key in lowered.in_keys])
        torch.manual_seed(1)
        want = module(td.clone())
    assert list(lowered.in_keys) == list(module.in_keys)
    assert set(lowered.out_keys) == set(module.out_keys)
    for key, value in zip(lowered.out_keys, got, strict=True):
        torch.testing.assert_close(value, want[key], rtol=0, atol=0)


def test_gradients_flow():
    module = normal_actor()
    lowered = as_function(module)
    sum(value.sum() for value in lowered(torch.randn(4, 3))).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_distribution_is_that_of_the_actor():
    actor = normal_actor()
    lowered = as_distribution_function(actor)
    x = torch.randn(4, 3)
    want = actor.get_dist(TensorDict(observation=x, batch_size=[4]))
    assert lowered.in_keys == ["observation"]
    torch.testing.assert_close(lowered(x).mean, want.mean)
    torch.testing.assert_close(lowered(x).entropy(), want.entropy())


class Overridden(TensorDictModule):
    def forward(self, tensordict):
        return super().forward(tensordict)


def hooked():
    module = plain()
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda td: td, id="function"),
        pytest.param(Overridden(nn.Identity(), in_keys=["a"], out_keys=["b"]), id="overridden-forward"),
        pytest.param(hooked(), id="hooked"),
        pytest.param(TensorDictSequential(plain(), hooked()), id="hooked-inside"),
        pytest.param(plain().select_out_keys(), id="selected-out-keys"),
        pytest.param(TensorDictModule(nn.Identity(), in_keys=["a"], out_keys=["b"], inplace=False), id="not-in-place"),
    ],
)
def test_what_cannot_be_lowered_gives_none(module):
    assert as_function(module) is None


def test_the_generic_sample_count_is_left_to_the_slow_path():
    head = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal, num_samples=2)
    assert as_function(head) is None


def test_a_class_offers_its_own_form():
    class Mine(nn.Module):
        in_keys, out_keys = ("a",), ("b",)

        def lowered(self):
            return TensorFunction(lambda a: (a + 1,), ["a"], ["b"])

    assert as_function(Mine())(torch.zeros(1))[0].item() == 1


def test_a_wrong_number_of_outputs_is_named():
    module = TensorDictModule(nn.Identity(), in_keys=["a"], out_keys=["b", "c"])
    with pytest.raises(ContractError, match="Identity returned 1 outputs for the 2 out_keys"):
        as_function(module)(torch.zeros(1))


def test_chain_refuses_a_result_that_no_module_writes():
    assert chain([TensorFunction(lambda a: (a,), ["a"], ["b"])], out_keys=["c"]) is None


def test_an_environment_offers_its_leaf_form():
    env = CountingEnv()
    assert as_tensor_env(env) is env
    assert as_tensor_env(object()) is None


class Doubling(TensorDictModule):
    """A class that offers its own form."""

    def lowered(self):
        return TensorFunction(lambda a: (self.module(a),), ["a"], ["b"])


def doubling(change):
    module = Doubling(nn.Linear(1, 1), in_keys=["a"], out_keys=["b"])
    changed = change(module)
    return module if changed is None else changed


def own_forward(module):
    module.forward = lambda td: td


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(own_forward, id="own-forward"),
        pytest.param(lambda module: module.compile(backend="eager"), id="compiled-in-place"),
        pytest.param(lambda module: torch.compile(module, backend="eager"), id="compiled"),
        pytest.param(lambda module: compile_with_warmup(module, backend="eager"), id="compiled-later"),
        pytest.param(lambda module: module.register_full_backward_pre_hook(lambda *_: None) and None, id="hooked"),
    ],
)
def test_what_changes_a_call_is_never_skipped(change):
    assert as_function(doubling(lambda _: None)) is not None
    assert as_function(doubling(change)) is None


def test_a_wrapper_that_passes_attributes_on_has_no_leaf_form():
    class Wrapper:
        def __init__(self, env):
            self.env = env

        def __getattr__(self, name):
            return getattr(self.env, name)

    assert as_tensor_env(Wrapper(CountingEnv())) is None
