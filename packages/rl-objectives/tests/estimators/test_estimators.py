"""Value estimators on TensorDicts."""

import pickle
from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.objectives.estimators import estimator_class
from rl.objectives.value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, ValueEstimators
from rl.objectives.value.functional import (
    generalized_advantage_estimate,
    td0_return_estimate,
    td1_return_estimate,
    td_lambda_return_estimate,
    vec_td_lambda_return_estimate,
)
from rl.testing import check_estimator


class Counting(nn.Module):
    """A linear critic that remembers how many states it saw, and in how many calls."""

    def __init__(self):
        super().__init__()
        self.net, self.states, self.calls = nn.Linear(3, 1), 0, 0

    def forward(self, x):
        self.states += x[..., 0].numel()
        self.calls += 1
        return self.net(x)


@pytest.fixture
def critic():
    torch.manual_seed(0)
    return TensorDictModule(Counting(), in_keys=["observation"], out_keys=["state_value"])


def rollout(*size, names=None, seed=0, ends=0.3):
    """A batch as a collector gives it: what a step reached is what the next one starts from, unless it ended."""
    g = torch.Generator().manual_seed(seed)
    time = names.index("time") if names else len(size) - 1
    root = torch.randn(*size, 3, generator=g)
    done = torch.rand(*size, 1, generator=g) < ends
    terminated = done & (torch.rand(*size, 1, generator=g) < 0.5)
    fresh = torch.randn(*size, 3, generator=g)
    following = torch.where(done, fresh, root.roll(-1, time))
    following.select(time, -1).copy_(fresh.select(time, -1))
    return TensorDict(
        {
            "observation": root,
            "next": {
                "observation": following,
                "reward": torch.randn(*size, 1, generator=g),
                "done": done,
                "terminated": terminated,
            },
        },
        batch_size=size,
        names=names,
    )


def arguments(batch, critic, *, value=True):
    after = batch["next"]
    out = {"next_state_value": critic.module.net(after["observation"]).detach()}
    if value:
        out["state_value"] = critic.module.net(batch["observation"]).detach()
    return out | {name: after[name] for name in ("reward", "done", "terminated")}


@pytest.mark.parametrize("size", [(5,), (4, 5), (2, 3, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("shifted", [False, True], ids=["two-rows", "shifted"])
def test_gae_equals_the_formula(critic, size, shifted):
    batch = rollout(*size)
    out = GAE(gamma=0.9, lmbda=0.8, value_network=critic, shifted=shifted)(batch)
    advantage, target = generalized_advantage_estimate(0.9, 0.8, **arguments(batch, critic))
    assert out is batch
    torch.testing.assert_close(out["advantage"], advantage)
    torch.testing.assert_close(out["value_target"], target)
    torch.testing.assert_close(out["state_value"], critic.module.net(batch["observation"]).detach())


@pytest.mark.parametrize(
    ("estimator", "returns"),
    [
        (TD0Estimator(gamma=0.9), lambda **k: td0_return_estimate(0.9, **k)),
        (TD1Estimator(gamma=0.9), lambda **k: td1_return_estimate(0.9, **k)),
        (TDLambdaEstimator(gamma=0.9, lmbda=0.8), lambda **k: td_lambda_return_estimate(0.9, 0.8, **k)),
    ],
    ids=["td0", "td1", "td-lambda"],
)
def test_td_estimators_equal_the_formulas(critic, estimator, returns):
    batch = rollout(4, 6)
    estimator = type(estimator)(
        value_network=critic, **{n: getattr(estimator, n) for n in ("gamma", "lmbda") if hasattr(estimator, n)}
    )
    out = estimator(batch)
    expected = returns(**arguments(batch, critic, value=False))
    torch.testing.assert_close(out["value_target"], expected)
    torch.testing.assert_close(out["advantage"], expected - out["state_value"])


@pytest.mark.parametrize(("shifted", "states"), [(False, 2 * 4 * 8), (True, 4 * 9)], ids=["two-rows", "shifted"])
def test_one_forward_pass_values_both_states(critic, shifted, states):
    GAE(value_network=critic, shifted=shifted)(rollout(4, 8, ends=0.0))
    assert (critic.module.calls, critic.module.states) == (1, states)


def test_time_may_come_first(critic):
    batch = rollout(6, 4, names=["time", None])
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    expected = gae(batch.transpose(0, 1).contiguous())["advantage"]
    torch.testing.assert_close(gae(batch)["advantage"], expected.transpose(0, 1))
    batch.names = None
    torch.testing.assert_close(
        GAE(gamma=0.9, lmbda=0.8, value_network=critic, time_dim=0)(batch)["advantage"], expected.transpose(0, 1)
    )


def test_given_values_are_used(critic):
    batch = rollout(3, 5)
    batch["state_value"], batch["next", "state_value"] = torch.randn(3, 5, 1), torch.randn(3, 5, 1)
    gae = GAE()
    assert gae.in_keys[:2] == ["state_value", ("next", "state_value")]
    expected, _ = generalized_advantage_estimate(
        0.99,
        0.95,
        batch["state_value"],
        batch["next", "state_value"],
        *(batch["next", name] for name in ("reward", "done", "terminated")),
    )
    torch.testing.assert_close(gae(batch)["advantage"], expected)


def test_average_gae_scales_the_advantage_alone(critic):
    batch = rollout(8, 16)
    plain = GAE(value_network=critic)(batch.clone())
    out = GAE(value_network=critic, average_gae=True)(batch)
    assert abs(out["advantage"].mean().item()) < 1e-6
    assert abs(out["advantage"].std(correction=0).item() - 1) < 1e-5
    torch.testing.assert_close(out["value_target"], plain["value_target"])


def test_average_gae_of_one_step_is_finite(critic):
    assert GAE(value_network=critic, average_gae=True)(rollout(1, 1))["advantage"].item() == 0


def test_gradients_flow_only_when_asked_for(critic):
    assert not GAE(value_network=critic)(rollout(2, 3))["value_target"].requires_grad
    out = GAE(value_network=critic, differentiable=True)(rollout(2, 3, ends=0.0))
    out["value_target"].sum().backward()
    assert critic.module.net.weight.grad.norm() > 0


def test_keys_may_have_other_names():
    batch = rollout(2, 5)
    value = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["v"])
    gae = GAE()
    gae.set_keys(value="v", reward=("agents", "reward"), advantage=("agents", "advantage"), value_target="goal")
    batch["v"], batch["next", "v"] = value(batch.clone())["v"].detach(), value(batch["next"].clone())["v"].detach()
    batch["next", "agents", "reward"] = batch["next"].pop("reward")
    out = gae(batch)
    assert gae.out_keys == [("agents", "advantage"), "goal"]
    assert out["agents", "advantage"].shape == out["goal"].shape == (2, 5, 1)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"rewards": "r"}, r"GAE has no key 'rewards'; .*did you mean 'reward'\?"),
        ({"reward": ("next", "r")}, "GAE adds 'next' itself: pass reward='r'"),
    ],
    ids=["unknown", "next"],
)
def test_wrong_keys_are_refused_and_change_nothing(critic, names, text):
    gae = GAE(value_network=critic)
    before = gae.in_keys
    with pytest.raises(ContractError, match=text):
        gae.set_keys(**names)
    assert gae.in_keys == before


@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator])
def test_coefficients_of_one_element_are_numbers(critic, kind):
    expected = kind(gamma=0.9, lmbda=0.5, value_network=critic)(rollout(3, 4))
    found = kind(gamma=torch.tensor([0.9]), lmbda=torch.tensor([[0.5]]), value_network=critic)(rollout(3, 4))
    torch.testing.assert_close(found["advantage"], expected["advantage"])
    after = found["next"]
    one, other = (
        vec_td_lambda_return_estimate(gamma, 0.5, after["reward"], after["reward"], after["done"])
        for gamma in (torch.tensor([0.9]), 0.9)
    )
    torch.testing.assert_close(one, other)
    assert GAE().tensor_keys.value_target == "value_target"


@pytest.mark.parametrize("estimator", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator])
def test_estimators_conform(critic, estimator):
    report = check_estimator(estimator(value_network=critic), rollout(3, 6))
    assert report.not_exercised == []


def test_a_missing_key_is_named_before_anything_is_written(critic):
    batch = rollout(3, 4)
    del batch["next", "reward"]
    with pytest.raises(ContractError, match=r"^GAE reads \('next', 'reward'\), which nothing in this batch wrote"):
        GAE(value_network=critic)(batch)
    assert "advantage" not in batch


def test_shapes_that_would_broadcast_are_refused(critic):
    batch = rollout(3, 4)
    batch["next", "reward"] = batch["next", "reward"].squeeze(-1)
    with pytest.raises(ShapeError, match="would broadcast"):
        GAE(value_network=critic)(batch)
    assert "advantage" not in batch


def shuffled():
    batch = rollout(64)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    batch["index"] = torch.arange(64)
    return batch[order]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (shuffled, "'index' jumps along dimension 0 without a done in between"),
        (lambda: rollout(4, 5).refine_names(None, "agents"), "the last dimension of the batch .* is 'agents'"),
        (lambda: rollout(4, 5)[0, 0], "a batch without dimensions"),
    ],
    ids=["replay-sample", "named-otherwise", "no-dimension"],
)
def test_a_batch_out_of_time_order_is_refused(critic, make, text):
    batch = make()
    with pytest.raises((ContractError, ShapeError), match=text):
        GAE(value_network=critic)(batch)
    assert "advantage" not in batch.keys()


def test_trajectories_that_change_without_an_end_are_refused(critic):
    batch = rollout(6, ends=0.0)
    batch["collector", "traj_ids"] = torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(ContractError, match=r"\('collector', 'traj_ids'\) jumps"):
        GAE(value_network=critic)(batch)
    batch["next", "done"][2] = True
    GAE(value_network=critic)(batch)


def test_slices_that_end_in_done_are_in_order(critic):
    batch = rollout(6, ends=0.0)
    batch["index"] = torch.tensor([7, 8, 9, 2, 3, 4])
    batch["next", "done"][2] = True
    GAE(value_network=critic)(batch)


@pytest.mark.parametrize("index", [[8, 9, 0, 1], [3, 3, 3, 3]], ids=["ring-wraps", "row-of-sequences"])
def test_indices_that_follow_each_other_are_in_order(critic, index):
    batch = rollout(4, ends=0.0)
    batch["index"] = torch.tensor(index)
    GAE(value_network=critic)(batch)


def test_a_time_dimension_that_contradicts_the_names_is_refused(critic):
    with pytest.raises(ArgumentError, match=r"dimension 1 of the batch .* is the one named 'time'"):
        GAE(value_network=critic, time_dim=0)(rollout(4, 5, names=[None, "time"]))


def test_td0_takes_steps_in_any_order(critic):
    assert TD0Estimator(value_network=critic)(shuffled())["advantage"].shape == (64, 1)


@pytest.mark.parametrize("copy", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_has_a_network_of_its_own(critic, copy):
    gae = GAE(value_network=critic)
    other = copy(gae)
    expected = gae(rollout(2, 3))["advantage"]
    torch.testing.assert_close(other(rollout(2, 3))["advantage"], expected)
    nn.init.constant_(other.value_network.module.net.weight, 5.0)
    torch.testing.assert_close(gae(rollout(2, 3))["advantage"], expected)
    assert not torch.allclose(other(rollout(2, 3))["advantage"], expected)


def test_a_network_that_cannot_be_lowered_gives_the_same(critic):
    class Odd(TensorDictModule):
        def forward(self, td):
            return super().forward(td)

    odd = Odd(critic.module, in_keys=["observation"], out_keys=["state_value"])
    for shifted in (False, True):
        torch.testing.assert_close(
            GAE(value_network=odd, shifted=shifted)(rollout(3, 5))["advantage"],
            GAE(value_network=critic)(rollout(3, 5))["advantage"],
        )


WITHOUT_ACTOR = [kind for kind in ValueEstimators if kind is not ValueEstimators.VTrace]


@pytest.mark.parametrize("kind", [*WITHOUT_ACTOR, "gae", "td-lambda"], ids=str)
def test_estimators_by_name(kind):
    assert estimator_class(kind)(gamma=0.5).gamma == 0.5


@pytest.mark.parametrize("kind", WITHOUT_ACTOR, ids=str)
def test_the_key_of_a_log_probability_may_be_named_to_every_estimator(kind):
    estimator = estimator_class(kind)()
    before = estimator.contract
    estimator.set_keys(sample_log_prob="mu")
    assert estimator.tensor_keys.sample_log_prob == "mu"
    assert estimator.contract == before


@pytest.mark.parametrize("name", ["gamma", "lmbda"])
def test_coefficients_outside_their_range_are_refused(name):
    with pytest.raises(ArgumentError, match=f"GAE: {name} must be at least 0 and at most 1, got 1.5"):
        GAE(**{name: 1.5})


def test_a_tensor_as_gamma_is_part_of_the_state():
    assert list(GAE(gamma=torch.tensor(0.9)).state_dict()) == ["gamma"]


def test_gae_compiles():
    torch.manual_seed(0)
    critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
    gae = GAE(value_network=critic)
    expected = gae(rollout(4, 8))["advantage"]
    compiled = torch.compile(gae, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(rollout(4, 8))["advantage"], expected)


@pytest.mark.parametrize("width", [1, 3], ids=["one", "agents"])
@pytest.mark.parametrize(("size", "time"), [((6, 4), 0), ((4, 6), 1), ((2, 6, 3), 1), ((1, 6), 1), ((6,), 0)], ids=str)
def test_shifted_values_are_those_of_all_states(size, time, width):
    torch.manual_seed(0)
    critic = TensorDictModule(nn.Linear(3, width), in_keys=["observation"], out_keys=["state_value"])
    batch = rollout(*size, names=["time" if i == time else None for i in range(len(size))])
    for name in ("reward", "done", "terminated"):
        batch["next", name] = batch["next", name].expand(*size, width).clone()
    plain, shifted = (
        GAE(gamma=0.9, lmbda=0.8, value_network=critic, shifted=on)(batch.clone()) for on in (False, True)
    )
    for name in ("state_value", "advantage", "value_target"):
        torch.testing.assert_close(shifted[name], plain[name])


def test_shifted_values_have_gradients_if_differentiable(critic):
    batch, grads = rollout(3, 6), []
    for shifted in (False, True):
        out = GAE(value_network=critic, shifted=shifted, differentiable=True)(batch.clone())
        grads.append(torch.autograd.grad(out["advantage"].square().sum(), list(critic.parameters())))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("key", ["index", ("collector", "traj_ids"), "is_init"])
def test_flags_of_several_agents_end_a_step_where_one_does(key):
    size = (2, 4)
    done = torch.zeros(*size, 3, dtype=torch.bool)
    after = TensorDict({name: torch.ones(*size, 3) for name in ("reward", "state_value")}, size)
    after.update({"done": done, "terminated": done})
    batch = TensorDict({"state_value": torch.ones(*size, 3), "next": after}, size)
    marks = (
        torch.tensor([[4, 5, 9, 10], [1, 2, 3, 4]]) if key == "index" else torch.tensor([[0, 0, 1, 1], [2, 2, 2, 2]])
    )
    batch[key] = marks.diff(dim=1, prepend=marks[:, :1]).bool() if key == "is_init" else marks
    with pytest.raises(ContractError, match="time order"):
        GAE()(batch.clone())
    done[0, 1, 2] = True
    GAE()(batch)


def test_a_discount_of_the_batch_is_that_of_the_next_value():
    flag = torch.zeros(3, 1, dtype=torch.bool)
    after = TensorDict(reward=torch.ones(3, 1), done=flag, terminated=flag, state_value=torch.full((3, 1), 2.0))
    discount = torch.tensor([[0.5], [0.25], [1.0]])
    batch = TensorDict(state_value=torch.zeros(3, 1), gamma=discount, next=after, batch_size=[3])
    assert TD0Estimator(gamma=0.9)(batch)["value_target"].flatten().tolist() == [2.0, 1.5, 3.0]
    batch["steps_to_next_obs"] = torch.tensor([[2], [4], [0]])  # gamma of the batch comes first
    assert TD0Estimator(gamma=0.9)(batch)["value_target"].flatten().tolist() == [2.0, 1.5, 3.0]
    counted = batch.exclude("gamma")
    for gamma in (0.5, torch.tensor(0.5)):
        assert TD0Estimator(gamma=gamma)(counted)["value_target"].flatten().tolist() == [1.5, 1.125, 3.0]
    for kind in (TD1Estimator, TDLambdaEstimator):
        for refused in (batch, counted):
            with pytest.raises(ContractError, match="multi-step returns already"):
                kind(gamma=0.9)(refused)
    with pytest.raises(ShapeError, match="gamma"):
        TD0Estimator(gamma=0.9)(batch.set("gamma", discount.expand(3, 2)))
