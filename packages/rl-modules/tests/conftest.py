"""One of each policy class, on an observation of 4 features."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from tensordict.nn import TensorDictSequential as Sequence
from torch import nn

from rl.core.specs import Bounded, OneHot
from rl.core.specs import Categorical as CategoricalSpec
from rl.modules import (
    MLP,
    Actor,
    ActorCriticOperator,
    ActorCriticWrapper,
    ActorValueOperator,
    AdditiveGaussianModule,
    Categorical,
    CategoricalHead,
    DistributionalQValueActor,
    DuelingMlpDQNet,
    EGreedyModule,
    IndependentNormal,
    MaskedCategorical,
    MaskedOneHotCategorical,
    NoisyLinear,
    NormalHead,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticActor,
    QuantileQValueActor,
    QValueActor,
    TanhDelta,
    TanhNormal,
    TruncatedNormal,
    ValueOperator,
)

BOX = Bounded(-2.0, 2.0, (2,))
UNEVEN = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
ONE_HOT = OneHot(3, dtype=torch.int64)
CLASSES = CategoricalSpec(3)


def normal(cls, spec=None, read="observation", width=4, **kwargs):
    net = nn.Sequential(nn.Linear(width, 4), NormalParamExtractor())
    module = TensorDictModule(net, [read], ["loc", "scale"])
    return ProbabilisticActor(module, ["loc", "scale"], spec=spec, distribution_class=cls, **kwargs)


def logits(cls, spec=None, mask=False, **kwargs):
    module = TensorDictModule(MLP(4, 3, [8]), ["observation"], ["logits"])
    keys = {"logits": "logits", "mask": "mask"} if mask else ["logits"]
    return ProbabilisticActor(module, keys, spec=spec, distribution_class=cls, **kwargs)


def from_head(head, cls, keys, **kwargs):
    module = TensorDictModule(nn.Sequential(MLP(4, 8, [8]), head), ["observation"], keys)
    return ProbabilisticActor(module, keys, distribution_class=cls, return_log_prob=True, **kwargs)


def nested_keys():
    module = TensorDictModule(nn.Linear(4, 3), [("agent", "observation")], [("agent", "logits")])
    in_keys = {"logits": ("agent", "logits")}
    return ProbabilisticActor(
        module, in_keys, [("agent", "action")], distribution_class=Categorical, return_log_prob=True
    )


def shared(cls, head):
    trunk = TensorDictModule(nn.Linear(4, 6), ["observation"], ["hidden"])
    policy = normal(TanhNormal, BOX, "hidden", 6, return_log_prob=True)
    if cls is ActorValueOperator:
        return cls(trunk, policy, ValueOperator(nn.Linear(6, 1), ["hidden"]))
    return cls(trunk, policy, ValueOperator(MLP(8, 1, [4]), ["hidden", "action"]))


def theirs():
    net = nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    head = ProbabilisticTensorDictModule(
        ["loc", "scale"], ["action"], distribution_class=TanhNormal, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(TensorDictModule(net, ["observation"], ["loc", "scale"]), head)


def reordered():
    """The head reads its parameters in another order than the network writes them."""
    net = nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    module = TensorDictModule(net, ["observation"], ["loc", "scale"])
    return ProbabilisticActor(module, ["scale", "loc"], distribution_class=IndependentNormal, return_log_prob=True)


def q_with(explore, **kwargs):
    return Sequence(QValueActor(MLP(4, 3, [8]), **kwargs), explore)


STOCHASTIC = {
    "tanh-normal": lambda: normal(TanhNormal, BOX, return_log_prob=True),
    "tanh-normal-unscored": lambda: normal(TanhNormal, BOX),
    "tanh-normal-uneven": lambda: normal(TanhNormal, UNEVEN, return_log_prob=True),
    "tanh-normal-no-spec": lambda: normal(TanhNormal, distribution_kwargs={"tanh_loc": True}, return_log_prob=True),
    "truncated-normal": lambda: normal(TruncatedNormal, UNEVEN, return_log_prob=True),
    "tanh-delta": lambda: ProbabilisticActor(
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["param"]), ["param"], spec=BOX, distribution_class=TanhDelta
    ),
    "normal": lambda: normal(IndependentNormal, BOX, return_log_prob=True),
    "torch-normal": lambda: normal(torch.distributions.Normal),
    "one-hot": lambda: logits(OneHotCategorical, ONE_HOT, return_log_prob=True),
    "one-hot-unscored": lambda: logits(OneHotCategorical, ONE_HOT),
    "one-hot-bool": lambda: logits(OneHotCategorical, OneHot(3), return_log_prob=True),
    "categorical": lambda: logits(Categorical, CLASSES, return_log_prob=True),
    "masked": lambda: logits(MaskedCategorical, CLASSES, mask=True, return_log_prob=True),
    "masked-one-hot": lambda: logits(MaskedOneHotCategorical, ONE_HOT, mask=True, return_log_prob=True),
    "categorical-head": lambda: from_head(CategoricalHead(8, 3), Categorical, ["logits"], spec=CLASSES),
    "normal-head": lambda: from_head(NormalHead(8, 2), TanhNormal, ["loc", "scale"], spec=BOX),
    "normal-head-of-state": lambda: from_head(NormalHead(8, 2, state_dependent=True), TanhNormal, ["loc", "scale"]),
    "delta": lambda: ProbabilisticActor(TensorDictModule(nn.Linear(4, 2), ["observation"], ["param"]), ["param"]),
    "random-by-default": lambda: normal(TanhNormal, BOX, default_interaction_type="random", return_log_prob=True),
    "nested-keys": nested_keys,
    "reordered": reordered,
    "shared-policy": lambda: shared(ActorValueOperator, True).get_policy_operator(),
    "theirs": theirs,
}

POLICIES = STOCHASTIC | {
    "actor": lambda: Actor(nn.Linear(4, 2), spec=BOX),
    "value": lambda: ValueOperator(MLP(4, 1, [8])),
    "q-one-hot": lambda: QValueActor(MLP(4, 3, [8]), spec=ONE_HOT),
    "q-categorical": lambda: QValueActor(MLP(4, 3, [8]), spec=CLASSES),
    "q-masked": lambda: QValueActor(MLP(4, 3, [8]), spec=CLASSES, action_mask_key="mask"),
    "c51": lambda: DistributionalQValueActor(MLP(4, (5, 3), [8]), spec=ONE_HOT, support=torch.linspace(-1, 1, 5)),
    "c51-masked": lambda: DistributionalQValueActor(
        DuelingMlpDQNet((5, 3), (5, 1), {"in_features": 4, "num_cells": [8]}, {"in_features": 8, "num_cells": [8]}),
        spec=CLASSES,
        support=torch.linspace(-1, 1, 5),
        action_mask_key="mask",
    ),
    "quantiles": lambda: QuantileQValueActor(MLP(4, (3, 7), [8], layer_class=NoisyLinear), spec=CLASSES),
    "q-egreedy-one-hot": lambda: q_with(EGreedyModule(ONE_HOT, 0.5, 0.5), spec=ONE_HOT),
    "q-egreedy-categorical": lambda: q_with(EGreedyModule(CLASSES, 0.5, 0.5), spec=CLASSES),
    "q-egreedy-masked": lambda: q_with(EGreedyModule(CLASSES, 0.5, 0.5, action_mask_key="mask"), spec=CLASSES),
    "egreedy-continuous": lambda: Sequence(Actor(nn.Linear(4, 2)), EGreedyModule(BOX, 0.5, 0.5)),
    "gaussian": lambda: Sequence(Actor(nn.Linear(4, 2), spec=BOX), AdditiveGaussianModule(BOX)),
    "actor-value": lambda: shared(ActorValueOperator, True),
    "value-of-shared": lambda: shared(ActorValueOperator, True).get_value_operator(),
    "actor-critic": lambda: shared(ActorCriticOperator, True),
    "actor-critic-wrapper": lambda: ActorCriticWrapper(normal(TanhNormal, BOX), ValueOperator(nn.Linear(4, 1))),
    "explored-stochastic": lambda: Sequence(logits(OneHotCategorical, ONE_HOT), EGreedyModule(ONE_HOT, 0.5, 0.5)),
}


def pytest_generate_tests(metafunc):
    if "make_policy" in metafunc.fixturenames:
        metafunc.parametrize("make_policy", list(POLICIES.values()), ids=list(POLICIES))
    if "make_stochastic" in metafunc.fixturenames:
        metafunc.parametrize("make_stochastic", list(STOCHASTIC.values()), ids=list(STOCHASTIC))


@pytest.fixture
def batch():
    def make(shape):
        observation = torch.randn(*shape, 4)
        mask = torch.rand(*shape, 3) < 0.6
        mask[..., 1] = True
        td = TensorDict(observation=observation, mask=mask, batch_size=shape)
        return td.set(("agent", "observation"), observation)

    return make
