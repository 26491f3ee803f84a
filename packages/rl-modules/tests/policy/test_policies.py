import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    set_composite_lp_aggregate,
)
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.specs import Bounded, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from rl.core.specs import Categorical as CategoricalSpec
from rl.modules import (
    MLP,
    Actor,
    ActorCriticOperator,
    ActorValueOperator,
    AdditiveGaussianModule,
    Categorical,
    DiffusionActor,
    DistributionalQValueModule,
    EGreedyModule,
    ExplorationType,
    IndependentNormal,
    NormalParamExtractor,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QuantileQValueModule,
    QValueActor,
    QValueModule,
    TanhDelta,
    TanhModule,
    TanhNormal,
    ValueOperator,
    set_exploration_type,
)


def td(**leaves):
    return TensorDict(leaves, batch_size=[next(iter(leaves.values())).shape[0]])


def normal_net(width=4):
    return TensorDictModule(
        nn.Sequential(nn.Linear(3, width), NormalParamExtractor()), ["observation"], ["loc", "scale"]
    )


def logits_net(n=3):
    return TensorDictModule(nn.Linear(3, n), ["observation"], ["logits"])


def test_it_is_a_sequence_of_tensordict_and_knows_its_distribution():
    actor = ProbabilisticActor(normal_net(), ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True)
    assert isinstance(actor, ProbabilisticTensorDictSequential)
    data = td(observation=torch.randn(5, 3))
    with set_exploration_type(ExplorationType.RANDOM):
        out = actor(data)
    dist = actor.get_dist(out.select("observation"))
    assert_close(dist.log_prob(out["action"]), out["action_log_prob"], atol=1e-4, rtol=1e-4)
    assert_close(actor.log_prob(out), dist.log_prob(out["action"]))
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert_close(actor(data)["action"], dist.deterministic_sample)


def test_the_head_works_in_tensordicts_own_modules():
    head = ProbabilisticTensorDictModule(
        ["loc", "scale"], ["action"], distribution_class=TanhNormal, return_log_prob=True
    )
    out = ProbabilisticTensorDictSequential(normal_net(), head)(td(observation=torch.randn(4, 3)))
    assert (out["action"].shape, out["action_log_prob"].shape) == ((4, 2), (4,))


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        pytest.param(Bounded(-2.0, 2.0, (2,)), -2.0, 2.0, id="even"),
        pytest.param(Bounded(-2.0, 2.0, (16, 2)), -2.0, 2.0, id="even-with-batch"),
        pytest.param(Bounded(torch.tensor([-1.0, 0.0]), 3.0), [-1.0, 0.0], [3.0, 3.0], id="uneven"),
        pytest.param(Bounded(torch.tensor([[-1.0, 0.0]] * 4), 3.0), [-1.0, 0.0], [3.0, 3.0], id="uneven-with-batch"),
        pytest.param(Bounded(torch.tensor([-1.0, 0.0]), torch.ones(2)), [-1.0, 0.0], [1.0, 1.0], id="one-end-uneven"),
        pytest.param(Composite(action=Bounded(-2.0, 2.0, (2,))), -2.0, 2.0, id="composite"),
    ],
)
def test_bounds_come_from_the_spec(spec, low, high):
    actor = ProbabilisticActor(normal_net(), ["loc", "scale"], spec=spec, distribution_class=TanhNormal)
    dist = actor.get_dist(td(observation=torch.randn(5, 3)))
    assert_close(torch.as_tensor(dist.low), torch.as_tensor(low))
    assert_close(torch.as_tensor(dist.high), torch.as_tensor(high))


def test_bounds_that_are_given_win():
    kwargs = {"low": -0.5, "high": 0.5}
    spec = Bounded(-2.0, 2.0, (2,))
    actor = ProbabilisticActor(
        normal_net(), ["loc", "scale"], spec=spec, distribution_class=TanhNormal, distribution_kwargs=kwargs
    )
    assert actor.get_dist(td(observation=torch.randn(5, 3))).high == 0.5
    assert kwargs == {"low": -0.5, "high": 0.5}


def test_a_recorded_log_prob_is_that_of_the_rounded_action():
    net = TensorDictModule(lambda x: (x, torch.full_like(x, 0.1)), ["observation"], ["loc", "scale"])
    kwargs = {"distribution_class": TanhNormal, "return_log_prob": True}
    actor = ProbabilisticActor(net, ["loc", "scale"], spec=Bounded(-2.0, 2.0, (2,)), **kwargs)
    data = td(observation=torch.tensor([[0.0, 7.4], [8.0, -30.0]]))
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        values = actor.lowered()(data["observation"])
        lowered = dict(zip(actor.out_keys, values, strict=True))
        recorded = actor(data.copy())
    for out in (recorded, lowered):
        assert_close(out["action_log_prob"], actor.get_dist(data).log_prob(out["action"]), rtol=0, atol=0)


def test_an_action_is_in_its_spec():
    for spec in (
        Bounded(-0.3, 0.1, (2,)),
        Bounded(torch.tensor([100.0, 1e-3]), torch.tensor([101.0, 2e-3])),
        Bounded(torch.tensor([-1.0, 0.0]), torch.ones(2)),
    ):
        actor = ProbabilisticActor(normal_net(), ["loc", "scale"], spec=spec, distribution_class=TanhNormal)
        with set_exploration_type(ExplorationType.RANDOM):
            action = actor(td(observation=100 * torch.randn(1000, 3)))["action"]
        assert spec.is_in(action)
    spec = OneHot(3)
    actor = ProbabilisticActor(logits_net(), ["logits"], spec=spec, distribution_class=OneHotCategorical)
    assert spec.is_in(actor(td(observation=torch.randn(10, 3)))["action"])


CLASHES = [
    pytest.param(logits_net(), ["logits"], OneHotCategorical, CategoricalSpec(3), "one-hot vectors", id="one-hot"),
    pytest.param(logits_net(), ["logits"], Categorical, OneHot(3), "integers", id="categorical"),
    pytest.param(normal_net(), ["loc", "scale"], TanhNormal, OneHot(2), "real vectors", id="tanh"),
    pytest.param(normal_net(), ["loc", "scale"], TanhNormal, Bounded(0.0, torch.inf, (2,)), "finite", id="infinite"),
    pytest.param(normal_net(), ["loc", "scale"], TanhNormal, Composite(act=OneHot(2)), "'action'.*act", id="no-entry"),
]


@pytest.mark.parametrize(("net", "keys", "cls", "spec", "message"), CLASHES)
def test_a_distribution_that_contradicts_the_spec_is_refused(net, keys, cls, spec, message):
    with pytest.raises(SpecError, match=message):
        ProbabilisticActor(net, keys, spec=spec, distribution_class=cls)


@pytest.mark.parametrize(
    ("net", "keys", "cls", "spec", "message"),
    [
        pytest.param(
            logits_net(4), ["logits"], Categorical, CategoricalSpec(3), "'logits' with 4.*needs 3", id="logits"
        ),
        pytest.param(
            normal_net(6), ["loc", "scale"], TanhNormal, Bounded(-1.0, 1.0, (2,)), "'loc' with 3.*needs 2", id="loc"
        ),
    ],
)
def test_a_width_that_can_be_seen_is_checked_at_construction(net, keys, cls, spec, message):
    with pytest.raises(ShapeError, match=message):
        ProbabilisticActor(net, keys, spec=spec, distribution_class=cls)


@pytest.mark.parametrize("plain", [False, True], ids=["tensordict", "lowered"])
@pytest.mark.parametrize("kind", ["logits", "loc"])
def test_a_width_that_cannot_be_seen_is_checked_at_the_first_call(plain, kind):
    if kind == "logits":
        net = TensorDictModule(lambda x: x, ["observation"], ["logits"])
        actor = ProbabilisticActor(net, ["logits"], spec=CategoricalSpec(2), distribution_class=Categorical)
    else:
        net = TensorDictModule(lambda x: (x, x.exp()), ["observation"], ["loc", "scale"])
        actor = ProbabilisticActor(net, ["loc", "scale"], spec=Unbounded((2,)), distribution_class=IndependentNormal)
    call = actor.lowered() if plain else lambda x: actor(td(observation=x))
    with pytest.raises(ShapeError, match="spec"):
        call(torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param(["loc"], r"missing: \['scale'\]", id="one-parameter-too-few"),
        pytest.param(["loc", "std"], r"unknown: \['std'\]", id="unknown-parameter"),
        pytest.param({"loc": "mean", "scale": "std"}, r"'mean'.*writes.*'loc'", id="keys-that-are-not-written"),
    ],
)
def test_parameters_that_do_not_fit_are_named(keys, message):
    with pytest.raises(ContractError, match=message):
        ProbabilisticActor(normal_net(), keys, distribution_class=TanhNormal)


def test_a_network_without_keys_is_named():
    with pytest.raises(ArgumentError, match=r"TensorDictModule\(module"):
        ProbabilisticActor(nn.Linear(3, 4), ["loc", "scale"], distribution_class=TanhNormal)


def test_a_spec_in_place_of_a_distribution_is_named():
    with pytest.raises(ArgumentError, match="is a spec"):
        ProbabilisticActor(logits_net(), ["logits"], distribution_class=CategoricalSpec)


def test_an_absent_parameter_is_named_at_the_first_call():
    net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["loc"])
    actor = ProbabilisticActor(net, ["loc", "scale"], distribution_class=TanhNormal)
    with pytest.raises(ContractError, match=r"'scale'.*TanhNormal"):
        actor(td(observation=torch.zeros(2, 3)))


def test_contract_of_an_actor():
    spec = OneHot(3, dtype=torch.int64)
    actor = ProbabilisticActor(
        logits_net(), ["logits"], spec=spec, distribution_class=OneHotCategorical, return_log_prob=True
    )
    reads, writes = actor.contract.reads, {key.name: key for key in actor.contract.writes}
    assert [key.name for key in reads] == ["observation"]
    assert "in_keys" in reads[0].remedy
    assert (writes["action"].shape, writes["action"].dtype) == ((3,), torch.int64)
    assert writes["action_log_prob"].shape == ()


def test_contract_leaves_the_batch_of_a_spec_out():
    assert QValueModule(spec=CategoricalSpec(3, (16,))).contract.writes[0].shape == ()
    assert QValueModule(spec=OneHot(3, (16, 3))).contract.writes[0].shape == (3,)


@pytest.mark.parametrize(
    ("keys", "out"),
    [
        pytest.param(None, ["state_value"], id="state"),
        pytest.param(["observation", "action"], ["state_action_value"], id="state-and-action"),
        pytest.param([("agents", "observation"), ("agents", "action")], ["state_action_value"], id="nested"),
    ],
)
def test_out_key_of_a_value_operator(keys, out):
    critic = ValueOperator(MLP(None, 1), keys)
    assert critic.out_keys == out
    assert critic.contract.writes[0].shape == (1,)


def test_a_critic_of_several_outputs_is_refused():
    with pytest.raises(ShapeError, match=r"2 entries.*needs 1"):
        ValueOperator(nn.Linear(3, 2))
    ValueOperator(nn.Linear(3, 2), out_keys=["action_value"])


def test_actor_checks_its_spec():
    assert Actor(nn.Linear(3, 2), spec=Bounded(-1.0, 1.0, (2,))).contract.writes[0].shape == (2,)
    with pytest.raises(ShapeError, match="'action' with 3"):
        Actor(nn.Linear(3, 3), spec=Bounded(-1.0, 1.0, (2,)))


VALUES = torch.tensor([[1.0, 5.0, 3.0], [4.0, 0.0, 2.0]])


@pytest.mark.parametrize(
    ("space", "action"),
    [
        pytest.param("one-hot", torch.tensor([[0, 1, 0], [1, 0, 0]]), id="one-hot"),
        pytest.param("one_hot", torch.tensor([[0, 1, 0], [1, 0, 0]]), id="one_hot"),
        pytest.param("categorical", torch.tensor([1, 0]), id="categorical"),
        pytest.param(OneHot(3), torch.tensor([[0, 1, 0], [1, 0, 0]]), id="spec"),
    ],
)
def test_q_value_module_takes_the_best(space, action):
    out = QValueModule(space)(td(action_value=VALUES))
    assert_close(out["action"], action)
    assert_close(out["chosen_action_value"], torch.tensor([[5.0], [4.0]]))
    assert_close(out["action_value"], VALUES)


@pytest.mark.parametrize(
    ("space", "action"),
    [("mult_one_hot", [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]), ("multi-categorical", [[1, 0], [0, 2]])],
)
def test_q_value_module_of_several_choices(space, action):
    values = torch.tensor([[1.0, 2.0, 9.0, 3.0, 4.0], [7.0, 6.0, 0.0, 1.0, 5.0]])
    out = QValueModule(space, group_sizes=[2, 3])(td(action_value=values))
    assert_close(out["action"], torch.tensor(action))
    assert_close(out["chosen_action_value"], torch.tensor([[11.0], [12.0]]))


@pytest.mark.parametrize("spec", [MultiOneHot([2, 3]), MultiCategorical([2, 3])], ids=["one-hot", "categorical"])
def test_a_spec_of_several_choices_says_how_many(spec):
    out = QValueActor(nn.Linear(3, 5), spec=spec)(td(observation=torch.randn(7, 3)))
    assert spec.is_in(out["action"])
    with pytest.raises(ShapeError, match=r"4 entries.*needs 5"):
        QValueActor(nn.Linear(3, 4), spec=spec)
    with pytest.raises(SpecError, match="flatten the action"):
        QValueActor(nn.Linear(3, 4), spec=MultiCategorical([[2, 3], [4, 5]]))


@pytest.mark.parametrize("n", [np.int64(2), torch.tensor(2)], ids=["numpy", "tensor"])
def test_widths_that_are_integers_of_other_libraries(n):
    for spec in (OneHot(2), OneHot(n), CategoricalSpec(n)):
        actor = QValueActor(nn.Linear(3, n), spec=spec)
        assert spec.is_in(actor(td(observation=torch.randn(1, 3)))["action"])
    with pytest.raises(ShapeError, match=r"2 entries.*needs 3"):
        QValueActor(nn.Linear(3, n), spec=OneHot(3))
    out = QValueModule("multi-one-hot", group_sizes=[n, n])(td(action_value=torch.zeros(5, 4)))
    assert out["action"].shape == (5, 4)
    assert ValueOperator(nn.Linear(3, n - 1)).contract.writes[0].shape == (1,)


def test_q_value_actor_never_takes_a_forbidden_action():
    actor = QValueActor(nn.Identity(), spec=CategoricalSpec(3), action_mask_key="mask")
    mask = torch.tensor([[True, False, True], [False, True, False]])
    out = actor(td(observation=VALUES, mask=mask))
    assert_close(out["action"], torch.tensor([2, 1]))
    assert_close(out["chosen_action_value"], torch.tensor([[3.0], [0.0]]))
    assert (out["action_value"][~mask] < -1e38).all()
    with pytest.raises(ArgumentError, match="allows no action"):
        actor(td(observation=VALUES, mask=torch.zeros(2, 3, dtype=torch.bool)))


def test_q_value_actor_takes_networks_and_tensordict_modules():
    net = TensorDictModule(nn.Linear(3, 2), ["pixels"], ["q"])
    actor = QValueActor(net, spec=OneHot(2), action_value_key="q")
    assert actor.in_keys == ["pixels"]
    assert set(actor.out_keys) == {"action", "q", "chosen_action_value"}
    assert actor(td(pixels=torch.zeros(4, 3)))["action"].dtype is torch.bool


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(lambda: QValueActor(nn.Linear(3, 2)), ArgumentError, "neither", id="no-space"),
        pytest.param(lambda: QValueActor(nn.Linear(3, 2), action_space="onehot"), ArgumentError, "'onehot'", id="typo"),
        pytest.param(
            lambda: QValueActor(nn.Linear(3, 2), spec=Unbounded(2)), ArgumentError, "not discrete", id="continuous"
        ),
        pytest.param(
            lambda: QValueActor(nn.Linear(3, 2), spec=OneHot(3)), ShapeError, "2 entries.*needs 3", id="width"
        ),
        pytest.param(
            lambda: QValueActor(logits_net(), spec=OneHot(3)), ContractError, "'action_value'.*logits", id="key"
        ),
        pytest.param(
            lambda: QValueActor(logits_net(), ["x"], spec=OneHot(3), action_value_key="logits"),
            ArgumentError,
            "leave in_keys",
            id="in-keys",
        ),
        pytest.param(
            lambda: QValueActor(nn.Linear(3, 2), spec=OneHot(2), action_space="categorical"),
            ArgumentError,
            "leave one",
            id="two-spaces",
        ),
        pytest.param(lambda: QValueModule("mult-one-hot"), ArgumentError, "group_sizes", id="no-sizes"),
        pytest.param(
            lambda: QValueModule("one-hot")(td(logits=VALUES)), ContractError, "'action_value'", id="no-values"
        ),
        pytest.param(
            lambda: QValueModule(spec=OneHot(2))(td(action_value=VALUES)),
            ShapeError,
            "3 values.*2 actions",
            id="width-late",
        ),
        pytest.param(
            lambda: ActorCriticOperator(
                logits_net(), Actor(nn.Linear(3, 2), ["logits"]), ValueOperator(nn.Linear(3, 1), ["logits"])
            ),
            ContractError,
            "ActorValueOperator",
            id="critic-without-action",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_views_of_a_shared_trunk_share_parameters_and_keep_the_distribution():
    trunk = TensorDictModule(nn.Linear(3, 4), ["observation"], ["hidden"])
    net = TensorDictModule(nn.Sequential(nn.Linear(4, 4), NormalParamExtractor()), ["hidden"], ["loc", "scale"])
    spec = Bounded(-1.0, 1.0, (2,))
    policy = ProbabilisticActor(net, ["loc", "scale"], spec=spec, distribution_class=TanhNormal)
    both = ActorValueOperator(trunk, policy, ValueOperator(nn.Linear(4, 1), ["hidden"]))
    assert both.spec["action"] is spec
    view = both.get_policy_operator()
    assert isinstance(view, ProbabilisticActor)
    assert isinstance(view.get_dist(td(observation=torch.zeros(2, 3))), TanhNormal)
    assert {id(p) for p in view.parameters()} < {id(p) for p in both.parameters()}
    assert set(both.get_value_operator().out_keys) == {"hidden", "state_value"}
    assert both.get_policy_head() is policy
    assert both.get_value_head().out_keys == ["state_value"]


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc, self.logits = nn.Linear(3, 2), nn.Linear(3, 4)

    def forward(self, x):
        loc = self.loc(x)
        return loc, torch.full_like(loc, 3.0), self.logits(x)


MOVE = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 5.0]))
TWO = Composite(action=Composite(move=MOVE, kind=OneHot(4, dtype=torch.int64)))


def composite_actor(**kwargs):
    leaves = [("params", "move", "loc"), ("params", "move", "scale"), ("params", "kind", "logits")]
    names = {"move": ("action", "move"), "kind": ("action", "kind")}
    return ProbabilisticActor(
        TensorDictModule(TwoHeads(), ["observation"], leaves),
        ["params"],
        list(names.values()),
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"move": TanhNormal, "kind": OneHotCategorical}, "name_map": names},
        **kwargs,
    )


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_composite_distribution_reads_the_group_of_its_parameters(count):
    actor = composite_actor(spec=TWO, return_log_prob=True)
    assert actor.in_keys == actor.contract.in_keys == ["observation"]
    with set_exploration_type(ExplorationType.RANDOM), set_composite_lp_aggregate(mode=False):
        out = actor(td(observation=torch.randn(count, 3)))
    assert TWO.is_in(out.select("action"))
    if count > 1:
        assert (out["action", "move"][:, 1] > 1).any()  # the bounds of the spec, not those by default
    params = out["params", "move"]
    expected = TanhNormal(params["loc"], params["scale"], MOVE.low, MOVE.high).log_prob(out["action", "move"])
    # The sample may be scored before it is rounded.
    assert_close(out["action", "move_log_prob"], expected, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("names", [["move"], ["move", "turn"]], ids=len)
@pytest.mark.parametrize("places", [None, "action", "agents"])
@pytest.mark.parametrize("score", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_composite_distribution_writes_the_keys_that_the_actor_declares(names, places, score, given):
    names_of_parts = {name: name if places is None else (places, name) for name in names}
    actor = ProbabilisticActor(
        TensorDictModule(lambda x: (x,) * len(names), ["observation"], [("params", name, "param") for name in names]),
        ["params"],
        list(names_of_parts.values()) if given else None,
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": dict.fromkeys(names, TanhDelta),
            **({} if places is None else {"name_map": names_of_parts}),
        },
        return_log_prob=score,
    )
    with set_composite_lp_aggregate(mode=False):
        out = actor(td(observation=torch.randn(4, 2)))
    written = {key for key in out.keys(include_nested=True, leaves_only=True) if key != "observation"}
    assert written == set(actor.out_keys) == {key.name for key in actor.contract.writes}
    assert set(actor.dist_sample_keys) == set(names_of_parts.values())


@pytest.mark.parametrize("kwargs", [None, {"distribution_map": {}}])
def test_a_composite_distribution_without_parts_is_refused(kwargs):
    net = TensorDictModule(nn.Identity(), ["observation"], [("params", "move", "param")])
    with pytest.raises(ArgumentError, match="distribution_map"):
        ProbabilisticActor(net, ["params"], distribution_class=CompositeDistribution, distribution_kwargs=kwargs)


def test_out_keys_that_no_part_of_a_composite_distribution_writes_are_refused():
    net = TensorDictModule(nn.Identity(), ["observation"], [("params", "move", "param")])
    with pytest.raises(ContractError, match=r"CompositeDistribution writes \['move'\].*name_map"):
        ProbabilisticActor(
            net,
            ["params"],
            [("action", "move")],
            distribution_class=CompositeDistribution,
            distribution_kwargs={"distribution_map": {"move": TanhDelta}},
        )


def test_the_bounds_of_a_composite_move_with_the_policy():
    actor = pickle.loads(pickle.dumps(composite_actor(spec=TWO))).double()
    out = actor(td(observation=torch.randn(2, 3, dtype=torch.float64)))
    assert out["action", "move"].dtype is torch.float64


def test_a_group_that_the_module_does_not_write_is_named():
    net = TensorDictModule(TwoHeads(), ["observation"], [("parameters", "a"), ("parameters", "b"), "c"])
    with pytest.raises(ContractError, match=r"'params'.*writes.*'parameters', 'a'"):
        ProbabilisticActor(
            net,
            ["params"],
            distribution_class=CompositeDistribution,
            distribution_kwargs={"distribution_map": {"move": TanhDelta}},
        )


def test_a_distribution_of_ones_own_takes_as_many_numbers_as_it_needs():
    class TwoChoices(torch.distributions.Distribution):
        arg_constraints = {}  # noqa: RUF012 - of torch

        def __init__(self, logits):
            super().__init__(logits.shape[:-1], torch.Size([2]), validate_args=False)
            self.parts = [torch.distributions.Categorical(logits=part) for part in logits.split([2, 3], -1)]

        def sample(self, shape=()):
            return torch.stack([part.sample(shape) for part in self.parts], -1)

        deterministic_sample = property(sample)

    body = TensorDictModule(MLP(4, 5), ["observation"], ["logits"])
    spec = MultiCategorical([2, 3])
    actor = ProbabilisticActor(body, in_keys=["logits"], spec=spec, distribution_class=TwoChoices)
    action = actor(TensorDict(observation=torch.zeros(6, 4), batch_size=[6]))["action"]
    assert action.shape == (6, 2)
    assert spec.is_in(action)


def test_a_critic_of_quantiles_has_several_outputs():
    critic = ValueOperator(MLP(5, 25), in_keys=["observation", "action"])
    td = TensorDict(observation=torch.zeros(4, 3), action=torch.zeros(4, 2), batch_size=[4])
    assert critic(td)["state_action_value"].shape == (4, 25)
    assert critic.contract.writes[0].shape == (25,)
    with pytest.raises(ShapeError, match=r"its spec needs 1"):
        ValueOperator(MLP(3, 25))


@pytest.mark.parametrize("key", ["action", ("agents", "action")], ids=str)
@pytest.mark.parametrize("composite", [False, True])
def test_the_spec_of_a_policy_is_a_composite_by_key(key, composite):
    box, one_hot = Bounded(-1.0, 1.0, (2,)), OneHot(4)
    of_box, of_choice = (Composite({key: leaf}) if composite else leaf for leaf in (box, one_hot))
    head = TensorDictModule(nn.Linear(3, 2), ["observation"], ["param"])
    keys = [key, "action_value", "chosen_action_value"]
    policies = [
        Actor(nn.Linear(3, 2), out_keys=[key], spec=of_box),
        ProbabilisticActor(head, ["param"], [key], spec=of_box),
        QValueModule(spec=of_choice, out_keys=keys),
        EGreedyModule(of_choice, action_key=key),
        AdditiveGaussianModule(of_box, action_key=key),
        OrnsteinUhlenbeckProcessModule(of_box, action_key=key),
        DiffusionActor(2, 3, out_keys=[key], spec=of_box),
        *([QValueActor(nn.Linear(3, 4), spec=of_choice)] if key == "action" else []),
    ]
    for policy in policies:
        assert isinstance(policy.spec, Composite)
        assert policy.spec[key] in (box, one_hot)
    assert Actor(nn.Linear(3, 2)).spec is None


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda **keys: QValueModule("one-hot", **keys), (2, 3)),
        (lambda **keys: DistributionalQValueModule("categorical", torch.linspace(0, 1, 5), **keys), (2, 5, 3)),
        (lambda **keys: QuantileQValueModule("categorical", **keys), (2, 3, 5)),
    ],
    ids=["values", "distribution", "quantiles"],
)
def test_the_choice_of_an_action_takes_tensors_as_networks_do(make, shape):
    choose, values = make(), torch.rand(shape)
    expected = choose(td(action_value=values))
    for found in (choose(values), choose(action_value=values), choose.lowered()(values)):
        assert len(found) == 3
        for one, key in zip(found, ("action", "action_value", "chosen_action_value"), strict=True):
            assert_close(one, expected[key])
    masked = make(action_mask_key=("legal", "mask"))
    mask = torch.tensor([[True, False, False], [False, False, True]])
    for found in (masked(values, mask), masked(action_value=values, legal_mask=mask)):
        action = found[0].argmax(-1) if found[0].ndim > 1 else found[0]
        assert action.tolist() == [0, 2]


def test_tanh_takes_tensors_as_networks_do():
    squash = TanhModule(["a", "b"], low=-2.0, high=2.0)
    found = squash(torch.tensor([100.0]), b=torch.tensor([0.0]))
    assert [one.item() for one in found] == [2.0, 0.0]
