"""QRDQNLoss against a float64 loop written from equation 10 of the paper."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnsupportedError
from rl.objectives import QRDQNLoss
from rl.objectives.functional import quantile_huber
from rl.testing import check_loss

ACTIONS, QUANTILES = 3, 5


def make_loss(**options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, ACTIONS * QUANTILES), nn.Unflatten(-1, (ACTIONS, QUANTILES)))
    loss = QRDQNLoss(TensorDictModule(net, ["observation"], ["action_value"]), **{"gamma": 0.9, **options})
    with torch.no_grad():
        for parameter in loss.target_value_network.parameters():
            parameter.add_(torch.randn(parameter.shape))
    return loss


def make_batch(*size):
    g = torch.Generator().manual_seed(0)
    done = torch.rand(*size, 1, generator=g) < 0.4
    return TensorDict(
        {
            "observation": torch.randn(*size, 4, generator=g),
            "action": torch.randint(ACTIONS, size, generator=g),
            "next": {
                "observation": torch.randn(*size, 4, generator=g),
                "reward": 2 * torch.randn(*size, 1, generator=g),
                "done": done,
                "terminated": done & (torch.rand(*size, 1, generator=g) < 0.5),
            },
        },
        batch_size=size,
    )


def by_hand(prediction, target, kappa):
    """Equation 10, pair by pair."""
    total = 0.0
    for i, theta in enumerate(prediction):
        for other in target:
            u = other - theta
            size = abs(u)
            huber = size if kappa == 0 else 0.5 * u * u if size <= kappa else kappa * (size - 0.5 * kappa)
            total += abs((i + 0.5) / len(prediction) - (u < 0)) * huber / len(target)
    return total


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_the_loss_is_equation_10(double, kappa):
    loss, batch = make_loss(double_dqn=double, kappa=kappa, reduction="none"), make_batch(30)
    found = loss(batch)["loss"].detach()
    online, following = loss.value_network.module.double(), loss.target_value_network.module.double()
    expected, errors = [], []
    for step in batch:
        after = step["next", "observation"].double()[None]
        values, others = following(after)[0], online(after)[0]
        means = [sum(q) / QUANTILES for q in (others if double else values).tolist()]
        best = max(range(ACTIONS), key=means.__getitem__)
        gamma = 0.0 if step["next", "terminated"] else 0.9
        target = [step["next", "reward"].item() + gamma * q for q in values[best].tolist()]
        prediction = online(step["observation"].double()[None])[0, step["action"]].tolist()
        expected.append(by_hand(prediction, target, kappa))
        errors.append(abs(sum(prediction) - sum(target)) / QUANTILES)
    torch.testing.assert_close(found, torch.tensor(expected))
    torch.testing.assert_close(batch["td_error"], torch.tensor(errors))


def test_numbers_and_gradients_by_hand():
    prediction = torch.tensor([[0.0, 1.0]], requires_grad=True)
    target = torch.tensor([[0.5, 3.0, -1.0]])
    loss = quantile_huber(prediction, target)
    loss.sum().backward()
    # Levels 1/4 and 3/4. Errors of the first quantile: 0.5, 3, -1; of the second: -0.5, 2, -2.
    first = (0.25 * 0.125 + 0.25 * 2.5 + 0.75 * 0.5) / 3
    second = (0.25 * 0.125 + 0.75 * 1.5 + 0.25 * 1.5) / 3
    torch.testing.assert_close(loss.detach(), torch.tensor([first + second]))
    slopes = [-(0.25 * 0.5 + 0.25 * 1 - 0.75 * 1) / 3, -(-0.25 * 0.5 + 0.75 * 1 - 0.25 * 1) / 3]
    torch.testing.assert_close(prediction.grad, torch.tensor([slopes]))


def test_the_quantiles_of_samples_minimize_the_loss():
    samples = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prediction = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([prediction], lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_huber(prediction, samples, 0.0).sum().backward()
        optimizer.step()
    levels = torch.tensor([0.125, 0.375, 0.625, 0.875], dtype=torch.float64)
    torch.testing.assert_close(prediction.detach()[0], samples[0].quantile(levels), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", ["gamma", "steps_to_next_obs"])
def test_the_discount_of_a_multi_step_transition_is_that_of_its_steps(name):
    batch = make_batch(8)
    steps = torch.full((8, 1), 3)
    batch[name] = steps if name == "steps_to_next_obs" else 0.9**steps
    expected = make_loss(gamma=0.9**3)(batch.exclude(name))
    torch.testing.assert_close(make_loss()(batch), expected)


@pytest.mark.parametrize("size", [(12,), (1,), (3, 4)], ids=str)
def test_the_loss_conforms(size):
    batch = make_batch(*size)
    batch["priority_weight"] = torch.rand(size)
    frozen = ["target_value_network", ("next", "observation"), ("next", "reward")]
    check_loss(make_loss(double_dqn=True), batch, frozen=frozen)


def test_weights_and_padding():
    each, batch = make_loss(reduction="none")(make_batch(4, 3))["loss"], make_batch(4, 3)
    batch["priority_weight"] = torch.rand(4, 3)
    batch["collector", "mask"] = torch.arange(3).expand(4, 3) < 2
    batch["observation"][:, 2], batch["next", "reward"][:, 2], batch["action"][:, 2] = torch.nan, torch.nan, 99
    expected = (each * batch["priority_weight"])[:, :2].mean()
    torch.testing.assert_close(make_loss()(batch)["loss"], expected)


def test_huge_errors_have_finite_gradients():
    loss, batch = make_loss(), make_batch(8)
    batch["next", "reward"].fill_(1e30)
    loss(batch)["loss"].backward()
    assert all(p.grad.isfinite().all() for p in loss.parameters())


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda b: b.exclude("action"), ContractError, "QRDQNLoss reads 'action'"),
        (lambda b: b.set("action", b["action"].unsqueeze(-1)), ShapeError, r"actions of shape \(5, 1\)"),
        pytest.param(  # elsewhere indices are not read
            lambda b: b.set("action", torch.full_like(b["action"], 9)),
            ShapeError,
            "actions from 9 to 9 for",
            marks=pytest.mark.cpu,
        ),
        (lambda b: b.set(("next", "reward"), b["next", "reward"][:, 0]), ShapeError, r"got reward of shape \(5,\)"),
    ],
    ids=["missing", "action", "index", "reward"],
)
def test_wrong_batches_are_refused_before_anything_is_written(change, error, text):
    batch = change(make_batch(5))  # as many rows as quantiles
    with pytest.raises(error, match=text):
        make_loss()(batch)
    assert "td_error" not in batch


def test_other_layouts_arguments_and_estimators_are_refused():
    flat = TensorDictModule(nn.Linear(4, ACTIONS), ["observation"], ["action_value"])
    with pytest.raises(ShapeError, match=r"expected \[\*B, n_actions, n_quantiles\]"):
        QRDQNLoss(flat)(make_batch(4))
    with pytest.raises(ArgumentError, match="kappa must be at least 0"):
        make_loss(kappa=-1)
    with pytest.raises(ArgumentError, match="kappa must be at least 0"):
        quantile_huber(torch.ones(1, 2), torch.ones(1, 2), -1)
    with pytest.raises(ShapeError, match="would broadcast"):
        quantile_huber(torch.ones(1, 2), torch.ones(3, 2))
    with pytest.raises(UnsupportedError, match="cannot use TD1Estimator"):
        make_loss().make_value_estimator("td1")
