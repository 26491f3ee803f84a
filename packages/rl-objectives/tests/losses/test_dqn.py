"""DQNLoss and the updates of its target network."""

from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.core import specs
from rl.core.errors import ArgumentError, ContractError, ShapeError, UnsupportedError
from rl.objectives import DQNLoss, HardUpdate, SoftUpdate, ValueEstimators
from rl.objectives.value.functional import td_lambda_return_estimate
from rl.testing import check_loss


class Table(nn.Module):
    """Action values of a few states, by hand; a state is a one-hot row."""

    def __init__(self, *rows):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(rows))

    def forward(self, state):
        return state @ self.values


def table(*rows):
    return TensorDictModule(Table(*rows), in_keys=["observation"], out_keys=["action_value"])


@pytest.fixture
def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    return TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])


def make_batch(*size, actions=3, one_hot=False):
    g = torch.Generator().manual_seed(0)
    action = torch.randint(actions, size, generator=g)
    done = torch.rand(*size, 1, generator=g) < 0.3
    return TensorDict(
        {
            "observation": torch.randn(*size, 4, generator=g),
            "action": nn.functional.one_hot(action, actions) if one_hot else action,
            "next": {
                "observation": torch.randn(*size, 4, generator=g),
                "reward": torch.randn(*size, 1, generator=g),
                "done": done,
                "terminated": done & (torch.rand(*size, 1, generator=g) < 0.5),
            },
        },
        batch_size=size,
    )


def transition(action, reward, terminated=False, done=None):
    """From state 0 to state 1."""
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    flags = {"terminated": torch.tensor([[terminated]]), "done": torch.tensor([[terminated if done is None else done]])}
    after = {"observation": second, "reward": torch.tensor([[reward]]), **flags}
    return TensorDict({"observation": first, "action": torch.tensor([action]), "next": after}, batch_size=[1])


@pytest.mark.parametrize(
    ("double", "ended", "error"),
    [
        pytest.param(False, {}, 1 + 0.5 * 8 - 2, id="the-targets-best-action"),
        pytest.param(True, {}, 1 + 0.5 * 6 - 2, id="double-takes-the-trained-networks-choice"),
        pytest.param(False, {"terminated": True}, 1 - 2, id="terminated-has-no-future"),
        pytest.param(False, {"done": True}, 1 + 0.5 * 8 - 2, id="truncated-has-one"),
    ],
)
def test_values_by_hand(double, ended, error):
    loss = DQNLoss(table([1.0, 2.0], [5.0, 3.0]), double_dqn=double, gamma=0.5)
    with torch.no_grad():
        loss.target_value_network.module.values.copy_(torch.tensor([[0.0, 0.0], [6.0, 8.0]]))
    batch = transition(1, 1.0, **ended)
    out = loss(batch)
    assert out["loss"].item() == pytest.approx(error**2)
    assert batch["td_error"].tolist() == [pytest.approx(abs(error))]
    assert out["td_error"].item() == pytest.approx(abs(error))
    assert out["pred_value"].item() == 2
    assert out["target_value"].item() == pytest.approx(error + 2)


@pytest.mark.parametrize(("kind", "expected"), [("l2", 9.0), ("l1", 3.0), ("smooth_l1", 2.5)])
def test_distances_by_hand(kind, expected):
    loss = DQNLoss(table([1.0, 2.0], [5.0, 8.0]), loss_function=kind, gamma=0.5)
    assert loss(transition(1, 1.0))["loss"].item() == pytest.approx(expected)


def test_the_gradient_is_that_of_the_chosen_value_alone():
    loss = DQNLoss(table([1.0, 2.0], [5.0, 8.0]), gamma=0.5)
    loss(transition(1, 1.0))["loss"].backward()
    assert loss.value_network.module.values.grad.tolist() == [[0.0, -6.0], [0.0, 0.0]]


def test_without_delay_the_network_is_its_own_target():
    loss = DQNLoss(table([1.0, 2.0], [5.0, 8.0]), delay_value=False, gamma=0.5)
    assert loss.target_value_network is None
    assert loss(transition(1, 1.0))["loss"].item() == pytest.approx(9.0)
    assert [name for name, _ in loss.named_parameters()] == ["value_network.module.values"]


@pytest.mark.parametrize("size", [(32,), (4, 5)], ids=str)
def test_one_hot_and_integer_actions_agree(network, size):
    loss = DQNLoss(network)
    outs = [loss(make_batch(*size, one_hot=one_hot)) for one_hot in (False, True)]
    torch.testing.assert_close(*outs)
    as_bool = make_batch(*size, one_hot=True)
    as_bool["action"] = as_bool["action"].bool()
    torch.testing.assert_close(loss(as_bool), outs[0])


SPACES = {
    "one_hot": True,
    "one-hot": True,
    "categorical": False,
    "spec-one-hot": True,
    "spec-categorical": False,
    "composite": False,
}


@pytest.mark.parametrize("name", SPACES)
def test_action_spaces_by_name_and_by_spec(network, name):
    space = {
        "spec-one-hot": specs.OneHot(3),
        "spec-categorical": specs.Categorical(3),
        "composite": specs.Composite(action=specs.Categorical(3)),
    }.get(name, name)
    loss = DQNLoss(network, action_space=space)
    loss(make_batch(8, one_hot=SPACES[name]))
    with pytest.raises(ShapeError, match=r"action_space='(one-hot|categorical)'"):
        loss(make_batch(8, one_hot=not SPACES[name]))


@pytest.mark.parametrize("space", ["binary", specs.Bounded(-1, 1, shape=(2,))], ids=["name", "spec"])
def test_other_action_spaces_are_refused(network, space):
    with pytest.raises(ArgumentError, match="DQNLoss chooses among n actions"):
        DQNLoss(network, action_space=space)


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("one_hot", [False, True], ids=["categorical", "one-hot"])
def test_the_loss_conforms(network, double, one_hot):
    batch = make_batch(16, one_hot=one_hot)
    batch["priority_weight"] = torch.rand(16)
    loss = DQNLoss(network, double_dqn=double)
    check_loss(loss, batch, frozen=["target_value_network", ("next", "observation"), ("next", "reward")])


def test_keys_are_in_a_fixed_order(network):
    loss = DQNLoss(network)
    assert loss.in_keys == ["observation", "action", ("next", "observation"), ("next", "reward"), ("next", "done")]
    assert list(loss(make_batch(4)).keys()) == loss.out_keys == ["loss", "td_error", "pred_value", "target_value"]


def test_priority_weights_weigh_the_elements(network):
    batch = make_batch(8)
    each = DQNLoss(network, reduction="none")(batch)["loss"]
    batch["priority_weight"] = torch.rand(8)
    torch.testing.assert_close(DQNLoss(network)(batch)["loss"], (each * batch["priority_weight"]).mean())
    batch["priority_weight"] = torch.rand(8, 1)
    with pytest.raises(ShapeError, match=r"weights are \[\*B\]"):
        DQNLoss(network)(batch)


def test_terminated_defaults_to_done(network):
    batch = make_batch(16)
    batch["next", "terminated"] = batch["next", "done"]
    loss = DQNLoss(network)
    expected = loss(batch)
    del batch["next", "terminated"]
    torch.testing.assert_close(loss(batch), expected)


class Greedy(nn.Module):
    """What an actor over action values writes."""

    def forward(self, values):
        chosen, action = values.max(-1, keepdim=True)
        return nn.functional.one_hot(action.squeeze(-1), values.shape[-1]), chosen


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_an_actor_serves_as_well_as_its_network(network, double):
    head = TensorDictModule(Greedy(), ["action_value"], ["action", "chosen_action_value"])
    loss = DQNLoss(TensorDictSequential(network, head), double_dqn=double)
    plain = DQNLoss(network, double_dqn=double)
    for one in (loss, plain):
        with torch.no_grad():
            for parameter in one.target_value_network.parameters():
                parameter.mul_(-1)
    torch.testing.assert_close(loss(make_batch(16)), plain(make_batch(16)))


def test_it_may_become_double_later(network):
    loss, double = DQNLoss(network), DQNLoss(network, double_dqn=True)
    for one in (loss, double):
        with torch.no_grad():
            for parameter in one.target_value_network.parameters():
                parameter.mul_(-1)
    loss.double_dqn = True
    torch.testing.assert_close(loss(make_batch(16)), double(make_batch(16)))


def test_a_plain_network_reads_observations(network):
    torch.testing.assert_close(DQNLoss(network.module)(make_batch(8)), DQNLoss(network)(make_batch(8)))


def test_keys_may_have_other_names(network):
    batch = make_batch(8)
    expected = DQNLoss(network)(batch.clone())
    batch["move"], batch["next", "bonus"] = batch.pop("action"), batch["next"].pop("reward")
    loss = DQNLoss(network)
    loss.set_keys(action="move", reward="bonus", priority="surprise")
    torch.testing.assert_close(loss(batch), expected)
    assert batch["surprise"].shape == (8,)
    with pytest.raises(ContractError, match=r"DQNLoss has no key 'act'; .*did you mean 'action'"):
        loss.set_keys(act="move")


@pytest.mark.parametrize("name", ["gamma", "steps_to_next_obs"])
def test_the_discount_of_a_multi_step_transition_is_that_of_its_steps(network, name):
    batch = make_batch(8)
    steps = torch.full((8, 1), 3)
    batch[name] = steps if name == "steps_to_next_obs" else 0.9**steps
    torch.testing.assert_close(DQNLoss(network, gamma=0.9)(batch), DQNLoss(network, gamma=0.9**3)(batch.exclude(name)))


def test_lambda_returns_are_targets_too(network):
    batch = make_batch(3, 6)
    loss = DQNLoss(network, reduction="none")
    loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.8)
    after = batch["next"]
    best = network.module(after["observation"]).amax(-1, keepdim=True).detach()
    target = td_lambda_return_estimate(0.9, 0.8, best, after["reward"], after["done"], after["terminated"])
    value = network.module(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1))
    torch.testing.assert_close(loss(batch)["loss"], (value - target).square().squeeze(-1))
    sample = make_batch(6)
    sample["index"] = torch.tensor([4, 0, 3, 3, 1, 9])
    sample["next", "done"].zero_()
    with pytest.raises(ContractError, match="'index' jumps"):
        loss(sample)


def test_an_estimator_of_state_values_is_refused(network):
    with pytest.raises(UnsupportedError, match="DQNLoss cannot use GAE"):
        DQNLoss(network).make_value_estimator(ValueEstimators.GAE)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda b: b.exclude("action"), ContractError, "DQNLoss reads 'action'"),
        (lambda b: b.set("action", b["action"].unsqueeze(-1)), ShapeError, r"actions of shape \(8, 1\)"),
        pytest.param(  # elsewhere indices are not read
            lambda b: b.set("action", b["action"] - 9),
            ShapeError,
            r"actions from -9 to -\d for \d action values",
            marks=pytest.mark.cpu,
        ),
        (lambda b: b.set(("next", "reward"), b["next", "reward"][:, 0]), ShapeError, "would broadcast"),
    ],
    ids=["missing", "action", "index", "reward"],
)
def test_wrong_batches_are_refused_before_anything_is_written(network, change, error, text):
    batch = change(make_batch(8))
    with pytest.raises(error, match=text):
        DQNLoss(network)(batch)
    assert "td_error" not in batch


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"loss_function": "l3"}, "DQNLoss: loss_function must be .* got 'l3'"),
        ({"gamma": 2.0}, "gamma must be .* got 2.0"),
        ({"double_dqn": True, "delay_value": False}, "double_dqn=True without delay_value"),
    ],
    ids=["loss", "gamma", "double"],
)
def test_arguments_outside_their_range_are_refused(network, arguments, text):
    with pytest.raises(ArgumentError, match=text):
        DQNLoss(network, **arguments)


def test_the_loss_compiles_whole(network):
    loss = DQNLoss(network, double_dqn=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    batch = make_batch(8)
    torch.testing.assert_close(compiled(batch), loss(make_batch(8)))
    assert batch["td_error"].shape == (8,)


# --- target networks ---


def test_the_target_is_saved_but_not_trained(network):
    loss = DQNLoss(network)
    trained = [name for name, _ in loss.named_parameters()]
    assert len(trained) == 4
    assert all(name.startswith("value_network.") for name in trained)
    assert len(loss.state_dict()) == 8
    assert not any(p.requires_grad for p in loss.target_value_network.parameters())
    names = [name for name, _ in nn.ModuleDict({"a": loss}).named_parameters()]
    assert len(names) == 8  # only the loss itself leaves them out
    assert [name for name, _ in loss.named_parameters("x")] == [f"x.{name}" for name in trained]


def perturbed(network):
    net = TensorDictModule(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), ["observation"], ["action_value"]
    )
    loss = DQNLoss(net)
    before = deepcopy(loss.target_value_network.state_dict())
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(1)
    return loss, before


@pytest.mark.parametrize("argument", [{"tau": 0.25}, {"eps": 0.75}], ids=["tau", "eps"])
def test_a_soft_update_moves_by_its_share(network, argument):
    loss, before = perturbed(network)
    SoftUpdate(loss, **argument).step()
    for name, tensor in loss.target_value_network.state_dict().items():
        moved = before[name] + (0.25 if tensor.is_floating_point() else 1)
        torch.testing.assert_close(tensor, moved)
    assert not any(p.requires_grad for p in loss.target_value_network.parameters())


def test_a_hard_update_copies_when_the_interval_is_full(network):
    loss, before = perturbed(network)
    updater = HardUpdate(loss, value_network_update_interval=3)
    for _ in range(2):
        updater.step()
    torch.testing.assert_close(loss.target_value_network.state_dict(), before)
    again = HardUpdate(loss, value_network_update_interval=3)
    again.load_state_dict(updater.state_dict())
    again.step()
    torch.testing.assert_close(loss.target_value_network.state_dict(), loss.value_network.state_dict())


@pytest.mark.parametrize("make", [lambda x: SoftUpdate(x, tau=0.1), HardUpdate], ids=["soft", "hard"])
def test_an_update_without_target_is_refused(network, make):
    with pytest.raises(ArgumentError, match=r"found no target network in DQNLoss: .*delay_value=True"):
        make(DQNLoss(network, delay_value=False))


def test_networks_without_shapes_are_refused():
    lazy = TensorDictModule(nn.LazyLinear(3), ["observation"], ["action_value"])
    with pytest.raises(ArgumentError, match="DQNLoss got a network whose parameters have no shape yet"):
        DQNLoss(lazy)
    pair = nn.ModuleDict({"net": nn.LazyLinear(3), "target_net": nn.LazyLinear(3)})
    with pytest.raises(ArgumentError, match="SoftUpdate got a network whose parameters have no shape yet"):
        SoftUpdate(pair, tau=0.1)


@pytest.mark.parametrize("arguments", [{}, {"eps": 0.1, "tau": 0.9}, {"tau": 2.0}], ids=["none", "both", "range"])
def test_one_share_is_needed(network, arguments):
    with pytest.raises(ArgumentError, match="SoftUpdate"):
        SoftUpdate(DQNLoss(network), **arguments)
