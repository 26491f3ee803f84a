"""What all losses have in common: keyword calls, one compiled graph, batches of one element, windows, names."""

import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical

from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import as_tuple
from rl.objectives import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DiscreteIQLLoss,
    DiscreteSACLoss,
    DistributionalDQNLoss,
    DQNLoss,
    HardUpdate,
    ImpalaLoss,
    KLPENPPOLoss,
    LossModule,
    PPOLoss,
    QRDQNLoss,
    ReinforceLoss,
    RNDLoss,
    SoftUpdate,
    TD0Estimator,
    TD1Estimator,
    TDLambdaEstimator,
    VTrace,
    compile_with_warmup,
)


def actor():
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    return ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(4, 3), ["observation"], ["logits"]), head)


def critic():
    return TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])


def q(*shape):
    outputs = torch.Size(shape).numel()
    net = nn.Sequential(nn.Linear(4, outputs), nn.Unflatten(-1, shape))
    return TensorDictModule(net, ["observation"], ["action_value"])


LOSSES = {
    "PPOLoss": lambda: PPOLoss(actor(), critic()),
    "ClipPPOLoss": lambda: ClipPPOLoss(actor(), critic(), clip_value=0.2),
    "KLPENPPOLoss": lambda: KLPENPPOLoss(actor(), critic()).eval(),
    "A2CLoss": lambda: A2CLoss(actor(), critic()),
    "ReinforceLoss": lambda: ReinforceLoss(actor(), critic()),
    "ImpalaLoss": lambda: ImpalaLoss(actor(), critic()),
    "DQNLoss": lambda: DQNLoss(q(3), double_dqn=True),
    "DistributionalDQNLoss": lambda: DistributionalDQNLoss(q(5, 3), support=torch.linspace(-2, 2, 5), double_dqn=True),
    "QRDQNLoss": lambda: QRDQNLoss(q(3, 5), double_dqn=True),
    "RNDLoss": lambda: RNDLoss(nn.Linear(4, 2), nn.Linear(4, 2)),
}
every = pytest.mark.parametrize("name", LOSSES)


def make(name, size=(2, 6)):
    torch.manual_seed(0)
    loss = LOSSES[name]()
    batch = actor()(TensorDict(observation=torch.randn(*size, 4), batch_size=size)).detach()
    batch.update({key: torch.randn(*size, 1) for key in ("advantage", "value_target", "state_value")})
    flag = torch.zeros(*size, 1, dtype=torch.bool)
    after = {"observation": torch.randn(*size, 4), "reward": torch.randn(*size, 1), "done": flag, "terminated": flag}
    return loss, batch.set("next", after)


def gradients(loss, out):
    losses = [value for key, value in out.items() if key.startswith("loss")]
    return torch.autograd.grad(sum(losses), list(loss.parameters()))


@every
def test_one_graph(name):
    torch.compiler.reset()
    loss, batch = make(name)
    expected = loss(batch)
    found = torch.compile(loss, fullgraph=True, backend="eager")(batch)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(loss, found), gradients(loss, loss(batch)))
    warm = compile_with_warmup(loss, warmup=1, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(warm(batch), expected)


def test_all_losses_compile_in_one_process():
    torch.compiler.reset()
    for name in LOSSES:  # more than graphs of one code object are allowed
        loss, batch = make(name)
        torch.compile(loss, fullgraph=True, backend="eager")(batch)


@every
def test_tensors_by_keyword(name):
    loss, batch = make(name)
    expected = loss(batch.clone())
    tensors = {"_".join(as_tuple(key)): batch[key] for key in loss.in_keys}
    found = loss(**tensors)
    assert len(found) == len(loss.out_keys)
    torch.testing.assert_close(dict(zip(loss.out_keys, found, strict=True)), dict(expected.items()))
    torch.testing.assert_close(loss(tensordict=batch.clone()), expected)
    with pytest.raises(ArgumentError, match=f"{name} reads no 'rewards'; it reads "):
        loss(**tensors, rewards=torch.ones(2, 6, 1))
    with pytest.raises(ArgumentError, match=f"{name} got a batch and"):
        loss(batch, **tensors)
    with pytest.raises(ArgumentError, match=f"{name} got no batch"):
        loss()
    first, *others = tensors
    if others:
        with pytest.raises(ContractError, match=f"{name} reads"):
            loss(**{first: tensors[first]})


def test_optional_entries_by_keyword_and_a_single_output():
    loss, batch = make("DQNLoss", (7,))
    tensors = {"_".join(as_tuple(key)): batch[key] for key in loss.in_keys}
    weight = torch.rand(7)
    batch["priority_weight"] = weight
    torch.testing.assert_close(loss(**tensors, priority_weight=weight), tuple(loss(batch).values()))

    class Single(LossModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(1, 1)
            self.derive_early()

        def _derive(self):
            return Contract((Key("x", (1,)),), (Key("loss", (), batched=False),))

        def forward(self, tensordict):
            return TensorDict(loss=self.net(self.read(tensordict)[0]["x"]).mean())

    assert Single()(x=torch.ones(3, 1)).shape == ()


class OfTheClass(LossModule):
    in_keys, out_keys = ["x", ("next", "y")], ["loss", "size"]

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, tensordict):
        error = self.net(tensordict["x"]) - tensordict["next", "y"]
        return TensorDict(loss=error.square().mean(), size=torch.tensor(float(len(error))))


class OfTheLoss(LossModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.in_keys, self.out_keys = OfTheClass.in_keys, OfTheClass.out_keys

    forward = OfTheClass.forward


class AsProperties(OfTheClass):
    in_keys = property(lambda self: [*OfTheClass.in_keys])
    out_keys = property(lambda self: [*OfTheClass.out_keys])


@pytest.mark.parametrize("kind", [OfTheClass, OfTheLoss, AsProperties])
def test_a_loss_may_be_a_forward_and_its_keys(kind):
    loss = kind()
    x, y = torch.randn(2, 3, 1)
    batch = TensorDict(x=x, next=TensorDict(y=y), batch_size=[3])
    expected = (loss.net(x) - y).square().mean()
    torch.testing.assert_close(loss(batch)["loss"], expected)
    found, size = loss(x=x, next_y=y)
    torch.testing.assert_close(found, expected)
    assert size == 3
    assert loss.in_keys == loss.contract.in_keys == ["x", ("next", "y")]
    assert loss.out_keys == loss.contract.out_keys == ["loss", "size"]
    with pytest.raises(ArgumentError, match="reads no 'z'; it reads x, next_y"):
        loss(z=x)
    loss.set_keys(done="over")
    found.backward()
    assert all(one.grad is not None for one in loss.parameters())


@pytest.mark.parametrize("kind", [OfTheClass, OfTheLoss, AsProperties])
def test_outputs_of_a_loss_with_keys_of_its_own_may_be_selected(kind):
    loss, x, y = kind(), *torch.randn(2, 3, 1)
    whole = loss(x=x, next_y=y)
    loss.select_out_keys("size")
    assert loss(x=x, next_y=y) == whole[1] == 3
    assert list(loss(TensorDict(x=x, next=TensorDict(y=y), batch_size=[3])).keys()) == ["size"]
    torch.testing.assert_close(loss.reset_out_keys()(x=x, next_y=y), whole)


def test_outputs_may_be_selected():
    loss, batch = make("DQNLoss", (7,))
    tensors = {"_".join(as_tuple(key)): batch[key] for key in loss.in_keys}
    whole, known = loss(batch), loss.out_keys
    with pytest.raises(ValueError, match="DQNLoss returns no 'loss_value'; it returns 'loss', 'td_error'"):
        loss.select_out_keys("loss", "loss_value")
    assert loss.out_keys == known
    assert loss.select_out_keys("loss") is loss
    assert list(loss(batch).keys()) == loss.out_keys == ["loss"]
    torch.testing.assert_close(loss(**tensors), whole["loss"])
    assert loss.reset_out_keys().out_keys == known
    torch.testing.assert_close(loss(batch), whole)


def test_reset_networks_have_other_parameters_and_targets_that_equal_them():
    loss = soft_actor_critic()
    before = [one.clone() for one in loss.actor_network.parameters()]
    for one in (*loss.actor_network.parameters(), *loss.qvalue_network.parameters()):
        one.data.fill_(9.0)
    loss.reset_parameters_recursive()
    for old, one in zip(before, loss.actor_network.parameters(), strict=True):
        assert not torch.isclose(old, one).all()
        assert one.abs().max() < 1
    members = loss.qvalue_network.members
    assert not torch.isclose(members[0].module.weight, members[1].module.weight).any()
    for one, other in zip(loss.qvalue_network.parameters(), loss.target_qvalue_network.parameters(), strict=True):
        torch.testing.assert_close(one.detach(), other)


class Offset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.full((4,), 9.0))

    def forward(self, x):
        return x + self.offset


def test_networks_that_cannot_be_reset_are_named():
    network = TensorDictModule(nn.Sequential(Offset(), nn.Linear(4, 3)), ["observation"], ["action_value"])
    loss = DQNLoss(network, action_space="categorical", delay_value=True)
    with pytest.warns(
        UserWarning, match=r"left the parameters of value_network.module.0 \(Offset\) as they are"
    ) as caught:
        loss.reset_parameters_recursive()
    assert "target" not in str(caught[0].message)
    assert (network.module[0].offset == 9).all()


def test_keys_of_our_losses_follow_from_their_networks():
    loss, _ = make("DQNLoss")
    with pytest.raises(AttributeError, match="in_keys of DQNLoss follow from its networks and keys: use set_keys"):
        loss.in_keys = ["x"]


@every
def test_batches_of_one_element_and_zero_advantages(name):
    loss, batch = make(name, (1, 1))
    batch["advantage"].zero_()
    out = loss(batch)
    assert all(value.isfinite() for key, value in out.items() if key.startswith("loss"))
    assert all(grad.isfinite().all() for grad in gradients(loss, out))


BY_ROW = [  # losses of which a row needs no others
    "PPOLoss",
    "ClipPPOLoss",
    "KLPENPPOLoss",
    "A2CLoss",
    "ReinforceLoss",
    "DQNLoss",
    "DistributionalDQNLoss",
    "QRDQNLoss",
    "RNDLoss",
]
MASKS = ("learning_mask", "validity_mask")


def windows(name, masks=MASKS):
    """Windows of 2 burn-in rows, 3 learning rows and a bootstrap row; the first and the last one repeat rows."""
    loss, batch = make(name, (4, 6))
    step = torch.arange(6).expand(4, 6)
    marks = {"learning_mask": (step >= 2) & (step < 5), "validity_mask": torch.ones(4, 6, dtype=torch.bool)}
    marks["validity_mask"][0, :2] = False
    marks["validity_mask"][3, 4:] = False
    for key in masks:
        batch[key] = marks[key]
    counted = torch.stack([marks[key] for key in masks]).all(0)
    return loss, batch, counted


@pytest.mark.parametrize("masks", [MASKS, MASKS[:1], MASKS[1:]])
@pytest.mark.parametrize("name", BY_ROW)
def test_only_rows_that_count_are_learned_from(name, masks):
    loss, batch, counted = windows(name, masks)
    expected = loss(batch[counted].exclude(*masks))
    found = loss(batch.clone())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(loss, found), gradients(loss, loss(batch[counted].exclude(*masks))))
    if "validity_mask" in masks:
        for key in ("observation", ("next", "observation"), ("next", "reward"), "advantage", "value_target"):
            batch[key][~batch["validity_mask"]] = torch.nan
        torch.testing.assert_close(loss(batch), expected)


@pytest.mark.parametrize("masks", [MASKS, MASKS[:1], MASKS[1:]])
def test_elements_of_other_rows_are_zero(masks):
    loss, batch, counted = windows("DQNLoss", masks)
    loss.reduction = "none"
    found = loss(batch)["loss"]
    assert not found[~counted].any()
    assert found[counted].all()


def test_impala_corrects_returns_over_the_whole_window_and_learns_from_its_learning_part():
    loss, batch, counted = windows("ImpalaLoss")
    loss.reduction = "none"
    found = loss(batch.clone())["loss_objective"]
    # Rows before and after are part of the return: without them the figures differ.
    alone = loss(batch[1:3].exclude(*MASKS))["loss_objective"]
    torch.testing.assert_close(found[1:3][:, 2:5], alone[:, 2:5])
    assert not found[~counted].any()


def estimators():
    values = critic()
    return [
        GAE(value_network=values),
        TD0Estimator(value_network=values),
        TD1Estimator(value_network=values),
        TDLambdaEstimator(value_network=values),
        VTrace(value_network=values, actor_network=actor()),
    ]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("place", range(5))
def test_returns_cross_neither_into_repeated_rows_nor_into_another_window(place, flat):
    _, batch, _ = windows("PPOLoss")
    batch["index"] = torch.arange(24).view(4, 6) * torch.tensor([[1], [2], [1], [1]])[:, :1]
    batch["index"] = batch["index"].where(batch["validity_mask"], 9)
    batch["sequence_id"] = torch.arange(4).unsqueeze(-1).expand(4, 6)
    batch["index"][1] = torch.arange(100, 106)
    batch["is_init"] = torch.zeros(4, 6, 1, dtype=torch.bool)
    batch["is_init"][:, 0] = batch["is_init"][0, 1:3] = batch["is_init"][3, 4:] = True
    estimator = estimators()[place]
    rows = [batch[0, 2:], batch[1], batch[2], batch[3, :4]]
    expected = []
    for row in rows:
        alone = row.exclude(*MASKS, "index", "is_init", "sequence_id").clone()
        alone["next", "done"][-1] = True  # truncated, the value of the last state counts
        expected.append(estimator(alone)["advantage"])
    batch["next", "reward"][~batch["validity_mask"]] = torch.nan
    found = estimator(batch.flatten() if flat else batch)["advantage"].view(4, 6, 1)
    found = [found[0, 2:], found[1], found[2], found[3, :4]]
    torch.testing.assert_close(found, expected)


def test_averages_are_over_rows_that_count():
    _, batch, counted = windows("PPOLoss")
    found = GAE(value_network=critic(), average_gae=True)(batch)["advantage"][counted]
    torch.testing.assert_close(found.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(correction=0), torch.tensor(1.0))


@pytest.mark.parametrize("key", MASKS)
def test_entries_of_that_name_that_are_no_masks_are_refused(key):
    loss, batch, _ = windows("DQNLoss")
    batch[key] = torch.ones(4, 6)
    with pytest.raises(ShapeError, match=f"DQNLoss: '{key}' is torch.float32"):
        loss(batch)


def observed(name, key, size=(2, 6)):
    """A loss of networks that read ``observation`` and `key`, and a batch in which both are observations."""
    torch.manual_seed(0)

    def reading(module):
        for part in module.modules():
            if "observation" in (getattr(part, "in_keys", None) or ()) and len(part.out_keys) == 1:
                part.in_keys = ["observation", key]
                part.module = Both(part.module)
        return module

    class Both(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x, y):
            return self.net(x + y)

    nets = {"q": lambda: reading(q(3)), "c51": lambda: reading(q(5, 3)), "qr": lambda: reading(q(3, 5))}
    loss = {
        "DQNLoss": lambda: DQNLoss(nets["q"]()),
        "DistributionalDQNLoss": lambda: DistributionalDQNLoss(nets["c51"](), support=torch.linspace(-2, 2, 5)),
        "QRDQNLoss": lambda: QRDQNLoss(nets["qr"]()),
    }[name]()
    _, batch = make("PPOLoss", size)
    found = torch.rand(*size, 1) if key != "steps_to_next_obs" else torch.randint(5, (*size, 1)).float()
    batch.update({key: found, "next": {key: found + 1}})
    return loss, batch


@pytest.mark.parametrize("key", ["gamma", "steps_to_next_obs", "priority_weight", *MASKS, "sequence_id"])
@pytest.mark.parametrize("name", ["DQNLoss", "DistributionalDQNLoss", "QRDQNLoss"])
def test_an_observation_of_the_name_of_an_optional_entry_is_an_observation(name, key):
    loss, batch = observed(name, key)
    other, same = observed(name, "wind")
    same["wind"], same["next", "wind"] = batch[key], batch["next", key]
    torch.testing.assert_close(loss(batch), other(same))


@pytest.mark.parametrize("key", ["gamma", "steps_to_next_obs"])
@pytest.mark.parametrize("place", range(4))
def test_an_observation_is_no_discount_of_an_estimator(place, key):
    _, batch = make("PPOLoss")
    estimator = estimators()[place]
    expected = estimator(batch.clone())["advantage"]
    batch.update({key: torch.rand(2, 6, 1), "next": {key: torch.rand(2, 6, 1)}})
    torch.testing.assert_close(estimator(batch)["advantage"], expected)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.full((2, 6, 1), 9.8), "from 9.8 to 9.8"),
        (torch.tensor(float("nan")).expand(2, 6, 1), "from nan to nan"),
        (torch.ones(2, 6, 1, dtype=torch.int64), "of torch.int64"),
        (torch.ones(2, 6, 1, dtype=torch.bool), "of torch.bool"),
    ],
)
def test_what_can_be_no_discount_is_refused(value, found):
    loss, batch = make("DQNLoss")
    with pytest.raises(ContractError, match=rf"'gamma' is {found}, and would be the discount of each row"):
        loss(batch.set("gamma", value))


@pytest.mark.parametrize("key", ["advantage", "value_target"])
def test_an_observed_advantage_is_refused_by_name(key):
    loss, batch = make("PPOLoss")
    batch["next", key] = torch.randn(2, 6, 1)
    for module in (loss, GAE(value_network=critic())):
        with pytest.raises(
            ContractError, match=rf"the batch has \('next', '{key}'\), so that '{key}' is an observation"
        ):
            module(batch)


def soft_actor_critic():
    critic = TensorDictModule(nn.Linear(4, 3), ["observation"], ["action_value"])
    return DiscreteSACLoss(actor(), critic)


DELAYED = {"DiscreteSACLoss": soft_actor_critic, **{name: LOSSES[name] for name in LOSSES if "DQN" in name}}


def warnings_of(loss, calls=25, update=lambda: None):
    """Messages of training calls."""
    _, batch = make("DQNLoss")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            loss(batch)
            update()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", DELAYED)
def test_a_target_network_that_nothing_moves_is_reported_once_at_the_tenth_training_call(name):
    loss = DELAYED[name]()
    with torch.no_grad():
        assert warnings_of(loss) == []
    assert warnings_of(loss.eval()) == []
    loss.train()
    assert warnings_of(loss, 9) == []
    (message,) = warnings_of(loss)
    target = "target_qvalue_network" if name == "DiscreteSACLoss" else "target_value_network"
    assert message.startswith(
        f"{name} was called 10 times in training, and nothing has moved {target}: create SoftUpdate"
    )
    argument = "delay_qvalue=False" if name == "DiscreteSACLoss" else "delay_value=False"
    assert message.endswith(f"optimizer. Without a target network ({argument}) none is needed")


def test_the_halves_of_a_step_are_one_call_and_only_arguments_that_the_loss_has_are_named():
    loss = soft_actor_critic()
    assert warnings_of(lambda batch: (loss.critic_loss(batch), loss.actor_loss(batch)), 9) == []
    assert len(warnings_of(loss.critic_loss, 1)) == 1
    value = TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])
    critic = TensorDictModule(nn.Linear(4, 3), ["observation"], ["action_value"])
    (message,) = warnings_of(DiscreteIQLLoss(actor(), critic, value_network=value))
    assert message.endswith("call its step after each step of the optimizer")


def test_parameters_of_networks_have_the_names_of_torchrl():
    loss = soft_actor_critic()
    for name in ("actor_network", "qvalue_network", "target_qvalue_network"):
        found = list(getattr(loss, f"{name}_params").flatten_keys().values())
        assert [*map(id, found)] == [*map(id, getattr(loss, name).parameters())]
        assert [*map(id, getattr(loss, f"{name}_params").parameters())] == [*map(id, found)]
    alone = DQNLoss(q(3), delay_value=False)
    followed, trained = alone.target_value_network_params, alone.value_network_params
    with torch.no_grad():
        alone.value_network.module[0].weight.add_(1.0)
    torch.testing.assert_close(followed, trained.data)
    assert not any(one.requires_grad for one in followed.values(True, True))
    for name in ("other_network_params", "target_params", "_params", "actor_network_params"):
        with pytest.raises(AttributeError, match=name):
            getattr(alone, name)


@pytest.mark.parametrize("updater", [lambda loss: SoftUpdate(loss, tau=0.1), HardUpdate])
def test_an_updater_of_a_loss_or_of_what_holds_it_silences_the_report(updater):
    alone, inside, other = (DELAYED["DQNLoss"]() for _ in range(3))
    kept = [updater(alone), updater(nn.ModuleList([inside]))]
    assert warnings_of(alone) == warnings_of(inside) == []
    assert len(warnings_of(other)) == 1
    assert len(kept) == 2


def test_targets_moved_by_hand_and_losses_without_targets_are_not_reported():
    loss = DELAYED["DQNLoss"]()

    @torch.no_grad()
    def move():
        for target, trained in zip(
            loss.target_value_network.parameters(), loss.value_network.parameters(), strict=True
        ):
            target.lerp_(trained, 0.1)

    assert warnings_of(loss, update=move) == []
    assert warnings_of(DQNLoss(q(3), delay_value=False)) == []


def test_compiled_and_functional_calls_work_while_targets_are_watched():
    torch.compiler.reset()
    loss, batch = make("DQNLoss")
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    for _ in range(12):
        expected = compiled(batch)  # a warning would be an error
    loss, _ = make("DQNLoss")
    parameters = {name: one.detach().clone() for name, one in loss.state_dict().items()}
    gradient = torch.func.grad(lambda values: torch.func.functional_call(loss, values, (batch,))["loss"])
    for _ in range(5):
        torch.testing.assert_close(torch.func.functional_call(loss, parameters, (batch,)), expected)
        assert gradient(parameters)["value_network.module.0.weight"].any()
