import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.specs import Categorical as CategoricalSpec
from rl.core.specs import MultiCategorical, OneHot
from rl.modules import (
    MLP,
    DistributionalQValueActor,
    DistributionalQValueModule,
    QuantileQValueActor,
    QuantileQValueModule,
    QValueModule,
)

SUPPORT = torch.linspace(-10, -1, 5)
KINDS = pytest.mark.parametrize("kind", ["atoms", "quantiles"])
SPACES = pytest.mark.parametrize("space", ["one-hot", "categorical"])


def values_of(kind, *batch, n=3):
    """Values of a module, and the expected return of each action by a loop."""
    if kind == "quantiles":
        values = torch.randn(*batch, n, 7)
        return values, torch.stack([values[..., a, :].sum(-1) / 7 for a in range(n)], -1)
    values = torch.randn(*batch, 5, n).log_softmax(-2)
    expected = [sum(values[..., i, a].exp() * SUPPORT[i] for i in range(5)) for a in range(n)]
    return values, torch.stack(expected, -1)


def module_of(kind, space, **kwargs):
    if kind == "quantiles":
        return QuantileQValueModule(space, **kwargs)
    return DistributionalQValueModule(space, SUPPORT, **kwargs)


@KINDS
@SPACES
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_the_choice_is_that_of_the_expected_returns(kind, space, batch, masked):
    torch.manual_seed(0)
    values, expected = values_of(kind, *batch)
    mask = torch.rand(*batch, 3) < 0.5
    mask[..., 1] = True
    data = TensorDict(action_value=values, mask=mask, batch_size=batch)
    key = "mask" if masked else None
    out = module_of(kind, space, action_mask_key=key)(data.clone())
    plain = QValueModule(space, action_mask_key=key)(data.clone().set("action_value", expected))
    assert torch.equal(out["action"], plain["action"])
    assert_close(out["chosen_action_value"], plain["chosen_action_value"])
    assert_close(out["action_value"], values, rtol=0, atol=0)


@KINDS
def test_several_choices_are_made_one_by_one(kind):
    torch.manual_seed(0)
    values, expected = values_of(kind, 4, n=5)
    spec = MultiCategorical([2, 3])
    out = module_of(kind, None, spec=spec)(TensorDict(action_value=values, batch_size=[4]))
    assert_close(out["action"], torch.stack([expected[:, :2].argmax(-1), expected[:, 2:].argmax(-1)], -1))


def test_an_actor_normalizes_over_atoms_unless_its_network_does():
    torch.manual_seed(0)
    net = MLP(4, (5, 3), [8])
    x = torch.randn(6, 4)
    out = DistributionalQValueActor(net, spec=OneHot(3), support=SUPPORT)(TensorDict(observation=x, batch_size=[6]))
    assert_close(out["action_value"], net(x).log_softmax(-2))
    normalized = TensorDictModule(lambda x: net(x).log_softmax(-2), ["observation"], ["action_value"])
    actor = DistributionalQValueActor(normalized, spec=OneHot(3), support=SUPPORT, make_log_softmax=False)
    other = actor(TensorDict(observation=x, batch_size=[6]))
    assert_close(other["action_value"], out["action_value"])
    assert torch.equal(other["action"], out["action"])
    assert len(list(actor.modules())) > 0
    assert "1.support" in {name.removeprefix("module.") for name in actor.state_dict()}


def test_values_under_another_key():
    net = TensorDictModule(nn.Linear(4, 14), ["x"], ["raw"])
    shaped = TensorDictModule(nn.Unflatten(-1, (2, 7)), ["raw"], ["quantiles"])
    from tensordict.nn import TensorDictSequential

    actor = QuantileQValueActor(
        TensorDictSequential(net, shaped), spec=CategoricalSpec(2), action_value_key="quantiles"
    )
    out = actor(TensorDict(x=torch.randn(5, 4), batch_size=[5]))
    assert_close(out["action"], out["quantiles"].mean(-1).argmax(-1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(
            lambda: DistributionalQValueModule("one-hot"), ArgumentError, "support as a vector.*None", id="none"
        ),
        pytest.param(
            lambda: DistributionalQValueModule("one-hot", torch.zeros(2, 2)), ArgumentError, r"\[2, 2\]", id="matrix"
        ),
        pytest.param(
            lambda: DistributionalQValueModule("one-hot", torch.arange(5)), ArgumentError, "int64", id="integers"
        ),
        pytest.param(
            lambda: module_of("atoms", "one-hot")(TensorDict(action_value=torch.zeros(4, 3))),
            ShapeError,
            r"5 atoms.*\(4, 3\)",
            id="atoms",
        ),
        pytest.param(
            lambda: module_of("quantiles", "one-hot")(TensorDict(action_value=torch.zeros(4))),
            ShapeError,
            r"\[\*B, n, quantiles\]",
            id="quantiles",
        ),
        pytest.param(
            lambda: module_of("quantiles", None, spec=OneHot(2))(TensorDict(action_value=torch.zeros(3, 7))),
            ShapeError,
            "QuantileQValueModule got 3 values.*2 actions",
            id="number-of-actions",
        ),
        pytest.param(
            lambda: module_of("atoms", "one-hot")(TensorDict(logits=torch.zeros(5, 3))),
            ContractError,
            "'action_value'",
            id="absent",
        ),
        pytest.param(
            lambda: DistributionalQValueActor(MLP(4, (5, 2)), spec=OneHot(3), support=SUPPORT),
            ShapeError,
            "DistributionalQValueActor.*2 entries.*needs 3",
            id="width",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
