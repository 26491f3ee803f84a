"""What stands beyond the end of an episode reaches no return before it."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

# each form multiplies by zero at an end; the estimates call only one of them
from rl.objectives.functional._recurrence import scan_recurrence, torch_recurrence
from rl.objectives.value import GAE
from rl.objectives.value import functional as F

BAD = [float("nan"), float("inf"), -float("inf")]


def numbers(shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    value, following, reward = (torch.randn(shape, generator=g) for _ in range(3))
    return value, following, reward, *(-torch.rand(shape, generator=g) for _ in range(2))


RETURNS = {
    "gae": lambda v, n, r, *_, end: F.vec_generalized_advantage_estimate(0.9, 0.8, v, n, r, end),
    "gae-loop": lambda v, n, r, *_, end: F.generalized_advantage_estimate(0.9, 0.8, v, n, r, end),
    "gae-by-step": lambda v, n, r, *_, end: F.vec_generalized_advantage_estimate(
        torch.full_like(r, 0.9), 0.8, v, n, r, end
    ),
    "td-lambda": lambda _, n, r, *__, end: (F.vec_td_lambda_return_estimate(0.9, 0.8, n, r, end),),
    "td1": lambda _, n, r, *__, end: (F.vec_td1_return_estimate(0.9, n, r, end),),
    "td-loop": lambda _, n, r, *__, end: (F.td_lambda_return_estimate(0.9, 0.8, n, r, end),),
    "td0": lambda _, n, r, *__, end: (F.td0_return_estimate(0.9, n, r, end),),
    "reward-to-go": lambda _, __, r, *___, end: (F.reward2go(r, end, 0.9),),
    "vtrace": lambda v, n, r, p, m, end: F.vtrace_advantage_estimate(0.9, p, m, v, n, r, end),
    "vtrace-lambda": lambda v, n, r, p, m, end: F.vtrace_advantage_estimate(
        0.9, p, m, v, n, r, end, lmbda=0.9, rho_thresh=1.5
    ),
}


def turned(tensor, back):
    """The same numbers with steps side by side in memory, or lanes."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1) if back else tensor


@pytest.fixture(params=["installed", "torch"])
def _back_end(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr("rl.objectives.functional._recurrence.recurrence_backend", lambda *_: torch_recurrence)


@pytest.mark.usefixtures("_back_end")
@pytest.mark.parametrize("lanes_first", [False, True], ids=["steps-side-by-side", "lanes-side-by-side"])
@pytest.mark.parametrize("name", RETURNS)
@pytest.mark.parametrize("shape", [(3, 5, 1), (24, 40, 1), (40, 40, 2)], ids=str)
def test_what_follows_an_end_does_not_reach_the_steps_before_it(name, shape, lanes_first):
    end = torch.zeros(shape, dtype=torch.bool)
    end[:, 1], end[:, shape[1] // 2] = True, True
    clean = numbers(shape)
    expected = RETURNS[name](*clean, end=end)
    for bad in BAD:
        spoiled = [one.clone() for one in clean]
        behind = shape[1] // 2 + 1
        for one in spoiled:
            one[1:3, behind:] = bad
        found = RETURNS[name](*(turned(one, lanes_first) for one in spoiled), end=turned(end, lanes_first))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[:, :behind], other[:, :behind])
            torch.testing.assert_close(one[0], other[0])  # other lanes
            assert not one[1, -1].isfinite().any()  # and it is not hidden where it stands


@pytest.mark.parametrize("name", sorted(set(RETURNS) - {"gae-by-step"}))
def test_no_gradient_comes_from_beyond_an_end(name):
    shape = (2, 6, 1)
    end = torch.zeros(shape, dtype=torch.bool)
    end[:, 2] = True
    spoiled = [one.clone() for one in numbers(shape)]
    for one in spoiled:
        one[:, 3:] = float("nan")
    asked = [one.requires_grad_() for one in spoiled]
    total = sum(one[:, :3].sum() for one in RETURNS[name](*asked, end=end))
    for gradient in torch.autograd.grad(total, asked, allow_unused=True):
        assert gradient is None or gradient[:, :3].isfinite().all()


@pytest.mark.parametrize("steps", [1, 2, 7, 33])
def test_a_weight_of_zero_selects_in_the_scan_as_in_a_loop(steps):
    torch.manual_seed(0)
    d, c = torch.randn(4, steps), torch.rand(4, steps)
    c[:, ::3] = 0
    c[1, 1::3], d[2, 2::3] = float("nan"), float("inf")
    x, rows = torch.zeros(4), []
    for t in range(steps - 1, -1, -1):
        x = d[:, t] if t == steps - 1 else torch.where(c[:, t] == 0, d[:, t], d[:, t] + c[:, t] * x)
        rows.append(x)
    expected = torch.stack(rows[::-1], 1)
    for found in (
        scan_recurrence(d, c, 1),
        torch_recurrence(d, c, 1),
        torch.compile(torch_recurrence, backend="eager")(d, c, 1),
    ):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_differentiable_values_do_not_see_what_a_terminal_state_holds():
    critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
    end = torch.zeros(1, 4, 1, dtype=torch.bool)
    end[:, -1] = True
    after = {"observation": torch.randn(1, 4, 3), "reward": torch.ones(1, 4, 1), "done": end, "terminated": end}
    after["observation"][:, -1] = float("nan")
    batch = TensorDict({"observation": torch.randn(1, 4, 3), "next": after}, [1, 4])
    found = GAE(value_network=critic, differentiable=True)(batch)["advantage"]
    gradient = torch.autograd.grad(found.sum(), list(critic.parameters()))
    assert found.isfinite().all()
    assert all(one.isfinite().all() for one in gradient)
