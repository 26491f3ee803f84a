"""A loss that uses our distributions and the lowered form of modules compile without a break."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.testing import assert_close

from rl.core import as_function
from rl.core.specs import Bounded, OneHot, Unbounded
from rl.modules import (
    MLP,
    Actor,
    Categorical,
    ConsistentDropoutModule,
    DistributionalQValueActor,
    IndependentNormal,
    MaskedOneHotCategorical,
    MultiStepActorWrapper,
    NoisyLinear,
    OneHotCategorical,
    Ordinal,
    OrnsteinUhlenbeckProcessModule,
    TanhModule,
    TanhNormal,
    TruncatedNormal,
    VmapModule,
)

MASK = torch.tensor([True, True, False])
CASES = {
    "tanh": (lambda a, b: TanhNormal(a, b.exp(), -2.0, 2.0), torch.tensor([0.3, -0.2, 1.0])),
    "truncated": (lambda a, b: TruncatedNormal(a, b.exp(), low=-2.0, high=2.0), torch.tensor([0.3, -0.2, 1.0])),
    "ordinal": (lambda a, b: Ordinal(a), torch.tensor([1, 0])),
    "normal": (lambda a, b: IndependentNormal(a, b.exp()), torch.tensor([0.3, -0.2, 1.0])),
    "categorical": (lambda a, b: Categorical(logits=a), torch.tensor([1, 0])),
    "one-hot": (lambda a, b: OneHotCategorical(logits=a), torch.tensor([[1, 0, 0], [0, 1, 0]])),
    "masked": (lambda a, b: MaskedOneHotCategorical(logits=a, mask=MASK), torch.tensor([[1, 0, 0], [0, 1, 0]])),
}


@pytest.mark.parametrize(("make", "value"), list(CASES.values()), ids=list(CASES))
def test_score_and_entropy_compile_whole(make, value):
    def loss(a, b):
        dist = make(a, b)
        total = dist.log_prob(value).sum()
        return total + dist.entropy().sum() if dist.has_entropy else total

    a, b = torch.randn(2, 3), torch.randn(2, 3)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert_close(compiled(a, b), loss(a, b))
    torch.compiler.reset()


def dropout():
    module = ConsistentDropoutModule(["h", "mask"])
    return module, (torch.ones(5, 3), torch.ones(5, 3))


def process():
    module = OrnsteinUhlenbeckProcessModule(Bounded(-1.0, 1.0, (2,)), sigma=0.0)
    return module, (torch.zeros(5, 2), *(state.start((5,)) for state in module.states))


def plans():
    module = MultiStepActorWrapper(
        Actor(nn.Sequential(nn.Linear(3, 4), nn.Unflatten(-1, (2, 2)))), 2, spec=Unbounded(2)
    )
    return module, (torch.randn(5, 3), *(state.start((5,)) for state in module.states))


def atoms():
    support, spec = torch.linspace(-1, 1, 5), OneHot(2, dtype=torch.int64)
    module = DistributionalQValueActor(MLP(3, (5, 2), layer_class=NoisyLinear), spec=spec, support=support)
    return module, (torch.randn(4, 3),)


MODULES = [
    pytest.param(dropout, id="dropout"),
    pytest.param(process, id="ornstein-uhlenbeck"),
    pytest.param(plans, id="plans"),
    pytest.param(atoms, id="c51"),
    pytest.param(lambda: (TanhModule("x", low=-2.0), (torch.randn(4, 3),)), id="tanh"),
    pytest.param(
        lambda: (VmapModule(TensorDictModule(nn.Linear(3, 2), ["x"], ["y"]), 0), (torch.randn(4, 3),)), id="vmap"
    ),
]


@pytest.mark.parametrize("make", MODULES)
def test_lowered_modules_compile_whole(make):
    module, inputs = make()
    call = as_function(module)
    compiled = torch.compile(call.fn, fullgraph=True, backend="eager")
    for found, expected in zip(compiled(*inputs), call(*inputs), strict=True):
        assert_close(found, expected)
    torch.compiler.reset()
