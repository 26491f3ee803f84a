"""Modules around a policy: bounds, one more batch dimension, plans of several actions."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from rl.core import as_function, states_of
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.specs import Bounded, Composite, Unbounded
from rl.modules import Actor, MultiStepActorWrapper, TanhModule, VmapModule
from rl.testing import check_module

LOW, HIGH = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0])


@pytest.mark.parametrize(
    ("kwargs", "low", "high"),
    [
        pytest.param({}, -1.0, 1.0, id="default"),
        pytest.param({"low": -2, "high": 0.5}, -2.0, 0.5, id="numbers"),
        pytest.param({"low": LOW, "high": HIGH}, LOW, HIGH, id="tensors"),
        pytest.param({"spec": Bounded(LOW, HIGH)}, LOW, HIGH, id="spec"),
        pytest.param({"spec": Composite(y=Bounded(LOW, HIGH))}, LOW, HIGH, id="composite"),
        pytest.param({"spec": {"y": Bounded(LOW, HIGH)}}, LOW, HIGH, id="mapping"),
    ],
)
def test_tanh_module(kwargs, low, high):
    x = 3 * torch.randn(5, 2)
    module = TanhModule(["x"], ["y"], **kwargs)
    out = module(TensorDict(x=x, batch_size=[5]))
    assert_close(out["y"], low + (high - low) * (x.tanh() + 1) / 2)
    assert check_module(module, TensorDict(x=x, batch_size=[5])).not_exercised == []


def test_tanh_module_clamps_and_takes_several_entries():
    module = TanhModule(["a", "b"], spec={"a": Bounded(-2.0, 2.0, (1,))}, high=4.0, clamp=True)
    out = module(TensorDict(a=torch.tensor([100.0]), b=torch.tensor([0.0])))
    assert 1.99 < out["a"] < 2
    assert_close(out["b"], torch.tensor([1.5]))  # between -1 and 4
    assert (out["a"] / 2).atanh().isfinite()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TanhModule(["a"], ["b", "c"]), ArgumentError, "one entry for each"),
        (lambda: TanhModule(["a"], spec=Unbounded((2,))), SpecError, "(?s)needs bounds.*low="),
        (lambda: TanhModule(["a"], spec=Bounded(-1.0, torch.inf, (2,))), SpecError, "TanhModule.*finite bounds"),
        (lambda: TanhModule(["a"], low=2.0), ArgumentError, "low <= high"),
        (lambda: TanhModule(["a"], spec=Bounded(-1.0, 1.0, (2,)), low=0.0), ArgumentError, "leave one of them out"),
        (lambda: TanhModule(["a"])(TensorDict(b=torch.zeros(2))), ContractError, "'a'"),
    ],
)
def test_tanh_module_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def of_matrix(x):
    """Of one matrix: its rows in another order."""
    return x.flip(0), x.sum(-1)


@pytest.mark.parametrize("mock", [False, True])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_vmap_module_is_a_loop(dim, mock):
    inner = TensorDictModule(of_matrix, ["x"], ["flipped", "total"])
    module = VmapModule(inner, dim, mock=mock)
    x = torch.randn(4, 5, 3)
    out = module(TensorDict(x=x, batch_size=[4, 5]))
    place = 1 if dim is None else dim
    rows = [of_matrix(one) for one in x.unbind(place)]
    assert_close(out["flipped"], torch.stack([a for a, _ in rows], place))
    plain = as_function(module)
    assert (plain is None) == (dim is None)
    if plain is not None:
        assert_close(plain(x)[0], out["flipped"])


def test_vmap_module_draws_different_numbers_and_trains():
    net = nn.Linear(3, 2)
    module = VmapModule(TensorDictModule(lambda x: net(x) + torch.rand(2), ["x"], ["y"]))
    out = module(TensorDict(x=torch.zeros(4, 3), batch_size=[4]))
    assert len(out["y"][:, 0].unique()) == 4
    out["y"].sum().backward()
    assert_close(net.bias.grad, torch.full((2,), 4.0))


def test_vmap_module_refuses():
    hooked = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
    module = VmapModule(TensorDictModule(nn.Linear(3, 2), ["x"], ["y"]), 1)
    with pytest.raises(ShapeError, match="dimension 1"):
        module(TensorDict(x=torch.zeros(4, 3), batch_size=[4]))
    with pytest.raises(ContractError, match="'x'"):
        module(TensorDict(z=torch.zeros(4, 3), batch_size=[4, 3]))
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ArgumentError, match="no lowered form"):
        VmapModule(hooked)


def planner(n=3):
    """Plans ``100 x + [0, 1, 2]`` for an observation x."""
    net = lambda x: (100 * x).unsqueeze(-2) + torch.arange(float(n)).view(n, 1)
    return TensorDictModule(net, ["observation"], ["action"])


def start(actor, shape):
    td = TensorDict(batch_size=shape)
    for state in states_of(actor):
        td[state.name] = state.start(shape)
    return td


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("interval", [None, 2, 1])
@pytest.mark.parametrize("plain", [False, True], ids=["tensordict", "lowered"])
def test_plans_are_executed_action_by_action(shape, interval, plain):
    actor = MultiStepActorWrapper(planner(), 3, spec=Unbounded((1,)), replan_interval=interval)
    td, period = start(actor, shape), interval or 3
    for t in range(7):
        td["observation"] = torch.full((*shape, 1), float(t))
        if plain:
            call = as_function(actor)
            out = TensorDict(dict(zip(["action"], call(*[td[k] for k in call.in_keys]), strict=False)))
            actor(td)
        else:
            out = actor(td)
        expected = 100.0 * (t // period * period) + t % period
        assert_close(out["action"], torch.full((*shape, 1), expected))
        td = td["next"].clone()


def test_only_elements_without_a_plan_get_a_new_one():
    actor = MultiStepActorWrapper(planner(), 3, spec=Unbounded((1,)))
    td = actor(start(actor, (2,)).set("observation", torch.ones(2, 1)))
    td = td["next"].clone().set("observation", torch.full((2, 1), 5.0))
    td["multi_step", "left"][1] = 0  # as a reset leaves it
    assert_close(actor(td)["action"], torch.tensor([[101.0], [500.0]]))


def test_the_actor_is_called_only_for_a_new_plan():
    calls = []
    net = TensorDictModule(lambda x: (calls.append(1), planner().module(x))[1], ["observation"], ["action"])
    actor = MultiStepActorWrapper(net, 3, spec=Unbounded((1,)))
    td = start(actor, (2,))
    for _ in range(6):
        td = actor(td.set("observation", torch.zeros(2, 1)))["next"].clone()
    assert len(calls) == 2


def test_a_wrapped_policy_conforms():
    actor = Actor(nn.Sequential(nn.Linear(4, 6), nn.Unflatten(-1, (3, 2))))
    wrapper = MultiStepActorWrapper(actor, 3, spec=Composite(action=Unbounded((2,))))
    td = start(wrapper, (5,)).set("observation", torch.randn(5, 4))
    assert check_module(wrapper, td).not_exercised == []
    assert check_module(TensorDictSequential(wrapper, TanhModule("action")), td).not_exercised == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: MultiStepActorWrapper(planner(), 0, spec=Unbounded((1,))), ArgumentError, "n_steps"),
        (
            lambda: MultiStepActorWrapper(planner(), 2, spec=Unbounded(1), replan_interval=3),
            ArgumentError,
            "interval=3",
        ),
        (
            lambda: MultiStepActorWrapper(planner(), 3, spec=Unbounded(1), action_keys=["move"]),
            ContractError,
            "'move'.*action_keys=",
        ),
        (lambda: MultiStepActorWrapper(planner(), 3, spec=None), SpecError, "needs spec="),
    ],
)
def test_multi_step_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_multi_step_names_a_wrong_plan_and_a_missing_one():
    actor = MultiStepActorWrapper(planner(2), 3, spec=Unbounded((1,)))
    with pytest.raises(ShapeError, match=r"\(2, 2, 1\), expected \[2, 3, 1\]"):
        actor(start(actor, (2,)).set("observation", torch.zeros(2, 1)))
    with pytest.raises(ContractError, match="make_tensordict_primer"):
        actor(TensorDict(observation=torch.zeros(2, 1), batch_size=[2]))
