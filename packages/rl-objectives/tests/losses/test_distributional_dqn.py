"""DistributionalDQNLoss against a float64 loop written from algorithm 1 of the paper."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnsupportedError
from rl.objectives import DistributionalDQNLoss, SoftUpdate
from rl.objectives.functional import categorical_divergence, project_distribution
from rl.testing import check_loss

ATOMS, ACTIONS = 7, 3
SUPPORT = torch.linspace(-2, 4, ATOMS)


class Table(nn.Module):
    """Logits of a few states; a state is a one-hot row."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, state):
        return torch.einsum("...s,san->...an", state, self.logits).log_softmax(-2)


def network(seed=0, outputs=ATOMS * ACTIONS):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, outputs), nn.Unflatten(-1, (-1, ACTIONS)), nn.LogSoftmax(-2))
    return TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])


def make_loss(**options):
    loss = DistributionalDQNLoss(network(), support=SUPPORT, gamma=0.9, **options)
    with torch.no_grad():
        for parameter in () if loss.target_value_network is None else loss.target_value_network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return loss


def make_batch(*size, one_hot=False):
    g = torch.Generator().manual_seed(0)
    action = torch.randint(ACTIONS, size, generator=g)
    done = torch.rand(*size, 1, generator=g) < 0.4
    return TensorDict(
        {
            "observation": torch.randn(*size, 4, generator=g),
            "action": nn.functional.one_hot(action, ACTIONS) if one_hot else action,
            "next": {
                "observation": torch.randn(*size, 4, generator=g),
                "reward": 2 * torch.randn(*size, 1, generator=g),
                "done": done,
                "terminated": done & (torch.rand(*size, 1, generator=g) < 0.5),
            },
        },
        batch_size=size,
    )


def projected(probability, atoms, support):
    """Algorithm 1, atom by atom, in Python numbers."""
    n = len(support)
    delta = (support[-1] - support[0]) / (n - 1)
    m = [0.0] * n
    for p, z in zip(probability, atoms, strict=True):
        b = (min(max(z, support[0]), support[-1]) - support[0]) / delta
        low, up = math.floor(b), math.ceil(b)
        if low == up:
            m[low] += p
        else:
            m[low] += p * (up - b)
            m[up] += p * (b - low)
    return m


def by_hand(loss, batch, *, double, discounts=None):
    """Cross-entropy and divergence of each transition."""
    z = SUPPORT.double().tolist()
    found = []
    for i, step in enumerate(batch):
        log_p = loss.value_network.module.double()(step["observation"].double()[None])[0, :, step["action"]].tolist()
        online, target = (
            net.module.double()(step["next", "observation"].double()[None])[0].exp()
            for net in (loss.value_network, loss.target_value_network or loss.value_network)
        )
        means = [
            sum(p * x for p, x in zip(column, z, strict=True)) for column in (online if double else target).T.tolist()
        ]
        best = max(range(ACTIONS), key=means.__getitem__)
        gamma = 0.9 if discounts is None else discounts[i]
        future = 0.0 if step["next", "terminated"] else gamma
        atoms = [step["next", "reward"].item() + future * x for x in z]
        m = projected(target[:, best].tolist(), atoms, z)
        cross = -sum(a * b for a, b in zip(m, log_p, strict=True))
        found.append((cross, cross + sum(a * math.log(a) for a in m if a > 0)))
    return torch.tensor(found).unbind(-1)


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_the_loss_is_algorithm_1(double):
    loss, batch = make_loss(double_dqn=double, reduction="none"), make_batch(40)
    elements = loss(batch)["loss"].detach()
    cross, divergence = by_hand(loss, batch, double=double)
    torch.testing.assert_close(elements, cross)
    torch.testing.assert_close(batch["td_error"], divergence, atol=1e-5, rtol=1e-5)


def test_values_by_hand():
    # State 0: uniform over atoms 0, 1, 2. State 1: action 0 is surely worth 0, action 1 surely 2.
    logits = torch.zeros(2, 3, 2)
    logits[1, 0, 0] = logits[1, 2, 1] = 80.0
    net = TensorDictModule(Table(logits), ["observation"], ["action_value"])
    loss = DistributionalDQNLoss(net, support=torch.tensor([0.0, 1.0, 2.0]), gamma=0.5)
    after = {"observation": torch.tensor([[0.0, 1.0]]), "reward": torch.tensor([[0.25]])}
    flags = {"done": torch.tensor([[False]]), "terminated": torch.tensor([[False]])}
    batch = TensorDict(
        {"observation": torch.tensor([[1.0, 0.0]]), "action": torch.tensor([1]), "next": {**after, **flags}}, [1]
    )
    out = loss(batch)
    # 0.25 + 0.5 * 2 = 1.25: three quarters at 1, one quarter at 2; the entropy of that is the difference to log 3.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert out["loss"].item() == pytest.approx(math.log(3))
    assert batch["td_error"].tolist() == [pytest.approx(math.log(3) - entropy)]
    assert out["pred_value"].item() == pytest.approx(1)
    assert out["target_value"].item() == pytest.approx(1.25)
    out["loss"].backward()
    gradient = net.module.logits.grad
    torch.testing.assert_close(gradient[0, :, 1], torch.tensor([1 / 3, 1 / 3 - 0.75, 1 / 3 - 0.25]))
    assert not gradient[1].any()
    assert not gradient[0, :, 0].any()


@pytest.mark.parametrize("name", ["gamma", "steps_to_next_obs"])
def test_the_discount_of_a_multi_step_transition_is_that_of_its_steps(name):
    loss, batch = make_loss(reduction="none"), make_batch(16)
    steps = torch.arange(16).remainder(4).add(1).unsqueeze(-1)
    batch[name] = steps if name == "steps_to_next_obs" else 0.9**steps
    found = loss(batch)["loss"].detach()
    expected, _ = by_hand(loss, batch, double=False, discounts=(0.9**steps).flatten().tolist())
    torch.testing.assert_close(found, expected)


def test_projection_keeps_mass_and_mean_inside_the_support():
    g = torch.Generator().manual_seed(0)
    probability = torch.rand(50, 5, generator=g, dtype=torch.float64).softmax(-1)
    atoms = 6 * torch.rand(50, 5, generator=g, dtype=torch.float64) - 2
    support = SUPPORT.double()
    found = project_distribution(probability, atoms, support)
    expected = [projected(p, z, support.tolist()) for p, z in zip(probability.tolist(), atoms.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(found @ support, (probability * atoms).sum(-1))


def test_projection_of_atoms_on_atoms_and_beyond_the_ends():
    uniform = torch.full((1, ATOMS), 1 / ATOMS)
    torch.testing.assert_close(project_distribution(uniform, SUPPORT.unsqueeze(0), SUPPORT), uniform)
    far = project_distribution(uniform, torch.tensor([[-1e30] * 3 + [1e30] * 4]), SUPPORT)
    torch.testing.assert_close(far[0, [0, -1]], torch.tensor([3 / 7, 4 / 7]))
    assert project_distribution(uniform, torch.full_like(uniform, torch.nan), SUPPORT).isnan().any()


def test_a_perfect_prediction_has_no_divergence():
    p = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    cross, divergence = categorical_divergence(torch.tensor([[0.2, 0.3, 0.5], [1.0, 1e-38, 1e-38]]).log(), p)
    torch.testing.assert_close(divergence, torch.zeros(2), atol=1e-6, rtol=0)
    assert (divergence >= 0).all()
    assert cross[1] == 0


def test_logits_of_80_stay_finite():
    loss = make_loss()
    with torch.no_grad():
        loss.value_network.module[0].weight.mul_(200)
    out = loss(make_batch(32))
    out["loss"].backward()
    assert out["loss"].isfinite()
    assert all(p.grad.isfinite().all() for p in loss.parameters())


@pytest.mark.parametrize("size", [(12,), (1,), (3, 4)], ids=str)
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_the_loss_conforms(size, double):
    batch = make_batch(*size, one_hot=True)
    batch["priority_weight"] = torch.rand(size)
    frozen = ["target_value_network", ("next", "observation"), ("next", "reward")]
    check_loss(make_loss(double_dqn=double), batch, frozen=frozen)


def test_one_hot_and_integer_actions_logits_and_probabilities_agree():
    loss = make_loss()
    expected = loss(make_batch(8))
    torch.testing.assert_close(loss(make_batch(8, one_hot=True)), expected)
    for net in (loss.value_network, loss.target_value_network):
        net.module[2] = nn.Identity()
    torch.testing.assert_close(loss(make_batch(8)), expected)


def test_weights_and_padding():
    each, batch = make_loss(reduction="none")(make_batch(4, 3))["loss"], make_batch(4, 3)
    batch["priority_weight"] = torch.rand(4, 3)
    torch.testing.assert_close(make_loss()(batch)["loss"], (each * batch["priority_weight"]).mean())
    batch["collector", "mask"] = torch.arange(3).expand(4, 3) < 2
    batch["observation"][:, 2], batch["next", "reward"][:, 2], batch["action"][:, 2] = torch.nan, torch.nan, 99
    expected = (each * batch["priority_weight"])[:, :2].mean()
    torch.testing.assert_close(make_loss()(batch)["loss"], expected)
    batch = make_batch(8)
    batch["priority_weight"] = torch.rand(8, 1)
    with pytest.raises(ShapeError, match=r"weights are \[\*B\]"):
        make_loss()(batch)
    assert "td_error" not in batch


class Greedy(nn.Module):
    """What a distributional actor writes; `worst` prefers the smallest mean."""

    def __init__(self, worst):
        super().__init__()
        self.register_buffer("support", SUPPORT.clone())
        self.sign = -1 if worst else 1

    def forward(self, log_prob):
        means = torch.einsum("...an,a->...n", log_prob.exp(), self.support)
        return nn.functional.one_hot((self.sign * means).argmax(-1), ACTIONS)


@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_the_support_and_the_best_action_are_those_of_an_actor(double):
    def actor(worst):
        return TensorDictSequential(network(), TensorDictModule(Greedy(worst), ["action_value"], ["action"]))

    loss, batch = DistributionalDQNLoss(actor(False), gamma=0.9, double_dqn=double), make_batch(32)
    torch.testing.assert_close(loss.support, SUPPORT)
    plain = DistributionalDQNLoss(network(), support=SUPPORT, gamma=0.9, double_dqn=double)
    torch.testing.assert_close(loss(batch), plain(batch))
    masked = DistributionalDQNLoss(actor(True), gamma=0.9, double_dqn=double)
    assert masked(batch)["target_value"] < loss(batch)["target_value"]


def test_without_delay_the_network_is_its_own_target():
    loss, batch = make_loss(delay_value=False, reduction="none"), make_batch(16)
    elements = loss(batch)["loss"].detach()
    torch.testing.assert_close(elements, by_hand(loss, batch, double=False)[0])


def test_updates_move_the_target():
    loss = make_loss()
    SoftUpdate(loss, tau=1.0).step()
    torch.testing.assert_close(loss.target_value_network.state_dict(), loss.value_network.state_dict())


def test_it_learns_the_distribution_of_a_coin():
    logits = torch.zeros(1, 3, 1)
    loss = DistributionalDQNLoss(
        TensorDictModule(Table(logits), ["observation"], ["action_value"]), support=torch.tensor([0.0, 1.0, 2.0])
    )
    ends = torch.ones(2, 1, dtype=torch.bool)
    reward = torch.tensor([[0.0], [2.0]])
    after = {"observation": torch.ones(2, 1), "reward": reward, "done": ends, "terminated": ends}
    batch = TensorDict({"observation": torch.ones(2, 1), "action": torch.zeros(2, dtype=torch.int64), "next": after}, 2)
    optimizer, target = torch.optim.Adam(loss.parameters(), lr=0.1), SoftUpdate(loss, tau=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(batch)["loss"].backward()
        optimizer.step()
        target.step()
    p = loss.value_network.module.logits.detach().softmax(1).flatten()
    torch.testing.assert_close(p, torch.tensor([0.5, 0.0, 0.5]), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda b: b.exclude("action"), ContractError, "DistributionalDQNLoss reads 'action'"),
        (lambda b: b.set("action", b["action"].unsqueeze(-1)), ShapeError, r"actions of shape \(7, 1\)"),
        pytest.param(  # elsewhere indices are not read
            lambda b: b.set("action", torch.full_like(b["action"], 9)),
            ShapeError,
            "from 9 to 9 for 3 action values",
            marks=pytest.mark.cpu,
        ),
        (lambda b: b.set(("next", "reward"), b["next", "reward"][:, 0]), ShapeError, r"got reward of shape \(7,\)"),
        (lambda b: b.set("gamma", torch.ones(7)), ShapeError, r"got gamma of shape \(7,\)"),
    ],
    ids=["missing", "action", "index", "reward", "gamma"],
)
def test_wrong_batches_are_refused_before_anything_is_written(change, error, text):
    batch = change(make_batch(7))  # as many rows as atoms
    with pytest.raises(error, match=text):
        make_loss()(batch)
    assert "td_error" not in batch


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "found no support in TensorDictModule"),
        ({"support": torch.ones(1)}, "at least two floating-point atoms"),
        ({"support": torch.tensor([0.0, 1.0, 3.0])}, "ascending, equal steps"),
        ({"support": torch.tensor([1.0, 0.0])}, "ascending, equal steps"),
        ({"support": torch.arange(3)}, "int64"),
        ({"support": SUPPORT, "gamma": 2.0}, "gamma must be .* got 2.0"),
        ({"support": SUPPORT, "double_dqn": True, "delay_value": False}, "double_dqn=True without delay_value"),
    ],
    ids=["none", "one", "uneven", "descending", "integers", "gamma", "double"],
)
def test_arguments_outside_their_range_are_refused(options, text):
    with pytest.raises(ArgumentError, match=text):
        DistributionalDQNLoss(network(), **options)


def test_other_layouts_and_estimators_are_refused():
    with pytest.raises(ShapeError, match=r"expected \[\*B, n_atoms, n_actions\]"):
        DistributionalDQNLoss(network(outputs=9 * ACTIONS), support=SUPPORT)(make_batch(4))
    with pytest.raises(
        UnsupportedError, match="cannot use TDLambdaEstimator: the target of a distribution is one step"
    ):
        make_loss().make_value_estimator("td-lambda")
