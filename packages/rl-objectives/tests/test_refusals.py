"""What is refused, when, and with which error."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.nn import functional as F

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.objectives import (
    GAE,
    A2CLoss,
    ClipPPOLoss,
    DiscreteSACLoss,
    DQNLoss,
    HardUpdate,
    ImpalaLoss,
    OnlineDTLoss,
    PPOLoss,
    REDQLoss,
    ReinforceLoss,
    RNDLoss,
    SoftUpdate,
    TDLambdaEstimator,
)


@pytest.fixture
def actor():
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"]), head)


@pytest.fixture
def critic():
    return TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])


@pytest.fixture
def network():
    return TensorDictModule(nn.Linear(3, 2), ["observation"], ["action_value"])


@pytest.fixture
def sequence(actor):
    """Two rows of five steps in time order, without advantages."""
    batch = actor(TensorDict(observation=torch.randn(2, 5, 3), batch_size=[2, 5])).detach()
    flag = torch.zeros(2, 5, 1, dtype=torch.bool)
    batch["next"] = {"observation": torch.randn(2, 5, 3), "reward": torch.ones(2, 5, 1), "done": flag}
    batch.names = [None, "time"]
    return batch


def test_the_values_clip_is_about_the_values_of_the_batch_where_the_loss_estimates(actor, critic, sequence):
    sequence["state_value"] = torch.full((2, 5, 1), 100.0)
    value = critic(sequence.copy())["state_value"]
    target = GAE(value_network=critic)(sequence.copy())["value_target"]
    near = 100 + (value - 100).clamp(-0.1, 0.1)
    expected = F.smooth_l1_loss(value, target, reduction="none").maximum(
        F.smooth_l1_loss(near, target, reduction="none")
    )
    loss = ClipPPOLoss(actor, critic, clip_value=0.1)
    torch.testing.assert_close(loss(sequence)["loss_critic"], expected.mean())
    loss.make_value_estimator()
    torch.testing.assert_close(loss(sequence)["loss_critic"], expected.mean())
    with pytest.raises(ContractError, match="ClipPPOLoss reads 'state_value'"):
        loss(sequence.exclude("state_value"))


@pytest.mark.parametrize("name", ["entropy_coeff", "critic_coeff"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), "x", None, True, [0.1], torch.ones(2)])
def test_weights_below_zero_are_refused(actor, critic, name, value):
    with pytest.raises(ArgumentError, match=rf"PPOLoss: {name} must be at least 0, got"):
        PPOLoss(actor, critic, **{name: value})


@pytest.mark.parametrize(
    "value",
    [{}, "x", None, True, (0.1,), (0.1, 0.2, 0.3), (1.5, 0.2), (0.2, 0), (0.2, None), [0.2, "x"], 1.5, torch.ones(2)],
)
def test_an_interval_around_one_is_a_number_or_a_pair(actor, critic, value):
    message = "ClipPPOLoss: clip_epsilon must be"
    with pytest.raises(ArgumentError, match=message):
        ClipPPOLoss(actor, critic, clip_epsilon=value)


def test_a_pair_may_be_a_list_as_in_a_config_file(actor, critic):
    assert ClipPPOLoss(actor, critic, clip_epsilon=[0.2, 0.3]).clip_epsilon == (0.2, 0.3)


def test_two_widths_are_no_width_of_the_values_clip(actor, critic):
    with pytest.raises(ArgumentError, match=r"clip_value must be a number for clip_epsilon=\(0.2, 0.3\)"):
        ClipPPOLoss(actor, critic, clip_epsilon=(0.2, 0.3), clip_value=True)


def test_a_values_clip_of_false_is_none(actor, critic):
    assert ClipPPOLoss(actor, critic, clip_value=False).clip_value is None


@pytest.mark.parametrize(
    "make",
    [lambda a, c, n, **x: A2CLoss(a, c, **x), lambda a, c, n, **x: ReinforceLoss(a, c, **x),
     lambda a, c, n, **x: DQNLoss(n, **x)],
    ids=["a2c", "reinforce", "dqn"],
)  # fmt: skip
def test_every_loss_answers_arguments_of_torchrl(actor, critic, network, make):
    make(actor, critic, network, functional=True, device=None, deactivate_vmap=True)
    make(actor, critic, network, functional=False)
    with pytest.raises(
        ArgumentError, match=r"got an unexpected keyword argument scalar_output_mode='sum': use reduction"
    ):
        make(actor, critic, network, scalar_output_mode="sum")


def test_the_device_of_a_loss_and_of_an_estimator_is_that_of_torchrl(critic, network):
    loss = DQNLoss(network, device="meta")
    assert {one.device.type for one in loss.state_dict().values()} == {"meta"}
    assert GAE(value_network=critic, gamma=torch.tensor(0.9), device="meta").gamma.device.type == "meta"


def test_weights_in_torchrls_spelling_are_named_in_ours(actor, critic):
    with pytest.raises(ArgumentError, match=r"entropy_coef=0\.1: use entropy_coeff="):
        A2CLoss(actor, critic, entropy_coef=0.1)


@pytest.mark.parametrize("interval", [0, 2.5, float("nan"), True])
def test_an_interval_is_an_integer_of_at_least_1(network, interval):
    with pytest.raises(ArgumentError, match="value_network_update_interval must be"):
        HardUpdate(DQNLoss(network), value_network_update_interval=interval)


@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator])
@pytest.mark.parametrize("name", ["gamma", "lmbda"])
def test_coefficients_of_each_step_are_in_their_range_too(kind, name):
    with pytest.raises(ArgumentError, match=f"{name} must be at least 0 and at most 1, got 0.5 to 1.5"):
        kind(**{name: torch.tensor([0.5, 1.5])})
    with pytest.raises(ArgumentError, match="must be at least 0 and at most 1"):
        kind(**{name: torch.tensor(torch.nan)})


@pytest.mark.parametrize(
    "make",
    [
        lambda a, c, n: ClipPPOLoss(a, c, clip_epsilon=1.5),
        lambda a, c, n: PPOLoss(a, c, clip_value=-1.0),
        lambda a, c, n: PPOLoss(a, c, clip_value="x"),
        lambda a, c, n: PPOLoss(a, c, entropy_coeff={}),
        lambda a, c, n: PPOLoss(a, c, entropy_coeff={"action": "x"}),
        lambda a, c, n: PPOLoss(a, c, samples_mc_entropy=0),
        lambda a, c, n: GAE(gamma=[0.9]),
        lambda a, c, n: GAE(lmbda=None),
        lambda a, c, n: PPOLoss(a, c, reduction="max"),
        lambda a, c, n: PPOLoss(a, c).make_value_estimator(GAE(), gamma=0.9),
        lambda a, c, n: DQNLoss(n, gamma=2.0),
        lambda a, c, n: DQNLoss(n, loss_function="l3"),
        lambda a, c, n: DQNLoss(n, double_dqn=True, delay_value=False),
        lambda a, c, n: SoftUpdate(DQNLoss(n), tau=2.0),
        lambda a, c, n: SoftUpdate(DQNLoss(n)),
    ],
)
def test_arguments_out_of_range_are_errors_of_ours(actor, critic, network, make):
    with pytest.raises(ArgumentError):
        make(actor, critic, network)


@pytest.mark.parametrize("make", [lambda a, c, n: PPOLoss(a, c), lambda a, c, n: DQNLoss(n), lambda a, c, n: GAE()])
def test_a_name_without_a_key_is_a_value_error_too(actor, critic, network, make):
    module = make(actor, critic, network)
    with pytest.raises(ValueError, match=r"has no key 'rewards'.*did you mean 'reward'") as caught:
        module.set_keys(rewards="r")
    assert isinstance(caught.value, ContractError)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("critic_network", nn.Linear(3, 1), ContractError),
        ("actor_network", nn.Linear(3, 2), ContractError),
        ("clip_value", -1.0, ArgumentError),
    ],
)
def test_what_does_not_fit_is_refused_at_the_next_use(actor, critic, sequence, name, value, error):
    loss = ClipPPOLoss(actor, critic)
    loss.make_value_estimator()
    before, expected = getattr(loss, name), loss(sequence)
    setattr(loss, name, value)
    for _ in range(2):
        with pytest.raises(error):
            loss(sequence)
    setattr(loss, name, before)
    torch.testing.assert_close(loss(sequence), expected)


def test_a_loss_without_target_does_not_become_double(network):
    loss = DQNLoss(network, delay_value=False)
    loss.double_dqn = True
    with pytest.raises(ArgumentError, match="double_dqn=True without delay_value"):
        _ = loss.contract


def test_keys_may_be_set_after_construction_whatever_the_networks_own_are(actor, sequence):
    critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["v"])
    usual = TensorDictModule(critic.module, ["observation"], ["state_value"])
    gae, loss = GAE(value_network=critic), ClipPPOLoss(actor, critic)
    for one in (gae, loss):
        with pytest.raises(
            ContractError, match=r"does not write 'state_value', it writes 'v': .* set_keys\(value='v'\)"
        ):
            one(sequence.copy())
        one.set_keys(value="v")
    expected = GAE(value_network=usual)(sequence.copy())
    torch.testing.assert_close(gae(sequence.copy())["advantage"], expected["advantage"])
    torch.testing.assert_close(loss(sequence), ClipPPOLoss(actor, usual)(sequence))
    q = nn.Linear(3, 2)
    dqn = DQNLoss(TensorDictModule(q, ["observation"], ["q"]))
    dqn.set_keys(action_value="q")
    with torch.no_grad():
        expected = DQNLoss(q)(sequence.copy())["loss"]
    torch.testing.assert_close(dqn(sequence.copy())["loss"], expected)


def test_an_estimator_that_is_refused_does_not_stay(actor, critic):
    loss = ClipPPOLoss(actor, critic)
    estimator = loss.make_value_estimator()
    with pytest.raises(ArgumentError, match=r"gamma must be .* got 2"):
        loss.make_value_estimator(gamma=2.0)
    assert loss.value_estimator is estimator


@pytest.mark.parametrize(
    "make", [lambda x: SoftUpdate(x, tau=0.5), lambda x: HardUpdate(x, value_network_update_interval=1)]
)
@pytest.mark.parametrize("width", [1, 3])
def test_a_target_of_another_shape_is_not_broadcast_to(make, width):
    loss = DQNLoss(TensorDictModule(nn.Linear(3, 4), ["observation"], ["action_value"]))
    update = make(loss)
    before = [p.clone() for p in loss.target_value_network.parameters()]
    loss.value_network = TensorDictModule(nn.Linear(3, width), ["observation"], ["action_value"])
    with pytest.raises(ShapeError, match=r"Update: value_network and target_value_network of DQNLoss differ"):
        update.step()
    for old, new in zip(before, loss.target_value_network.parameters(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize(
    ("make", "name", "dropped", "refused"),
    [
        (A2CLoss, "advantage_norm", None, 3),
        (PPOLoss, "advantage_norm", None, 3),
        (lambda a, c, **x: RNDLoss(nn.Linear(3, 2), nn.Linear(3, 2), **x), "obs_rms", None, 3),
        (lambda a, c, **x: RNDLoss(nn.Linear(3, 2), nn.Linear(3, 2), **x), "update_fraction", 1.0, 0.25),
        (REDQLoss, "gSDE", False, True),
        (lambda a, c, **x: OnlineDTLoss(a, **x), "scalar_output_mode", None, "exclude"),
        *[(kind, "scalar_output_mode", None, "exclude") for kind in (A2CLoss, PPOLoss, ReinforceLoss, ImpalaLoss)],
        (lambda a, c, **x: DQNLoss(nn.Linear(3, 2), **x), "scalar_output_mode", None, "exclude"),
        (lambda a, c, **x: RNDLoss(nn.Linear(3, 2), nn.Linear(3, 2), **x), "scalar_output_mode", None, "exclude"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_an_argument_that_torchrl_alone_has_is_dropped_where_it_changes_nothing(make, name, dropped, refused, actor):
    critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
    if name == "gSDE":
        critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_action_value"])
    make(actor, critic, **{name: dropped})
    with pytest.raises(ArgumentError, match=rf"unexpected keyword argument '?{name}.*: (use|not available yet)"):
        make(actor, critic, **{name: refused})


def test_the_number_of_critics_is_an_integer(actor, network):
    for count, message in (
        (1.5, "must be an integer"),
        (True, "must be an integer"),
        (0, "must be at least 1"),
    ):
        with pytest.raises(ArgumentError, match=f"DiscreteSACLoss: num_qvalue_nets {message}"):
            DiscreteSACLoss(actor, network, num_qvalue_nets=count)
    with pytest.raises(ArgumentError, match="target_entropy_weight must be a finite number, got nan"):
        DiscreteSACLoss(actor, network, target_entropy_weight=float("nan"))
