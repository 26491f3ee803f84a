"""Results in memory that the caller gives, by the installed back end and by the composition in plain PyTorch."""

import pytest
import torch

from rl.core.errors import RLError, ShapeError

# plain torch takes the place of the installed back end, which hides it
from rl.objectives.functional._recurrence import torch_recurrence
from rl.objectives.value import functional

SHAPE = (3, 5, 1)
PAIRS = ("vec_generalized_advantage_estimate", "vtrace_advantage_estimate")
NAMES = (
    *PAIRS,
    "vec_td_lambda_return_estimate",
    "vec_td_lambda_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td1_advantage_estimate",
    "reward2go",
)


@pytest.fixture(params=["installed", "torch"], autouse=True)
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr("rl.objectives.functional._recurrence.recurrence_backend", lambda *_: torch_recurrence)


def call(name, numbers, done, **more):
    value, following, reward, log_prob = numbers
    arguments = {
        "vec_generalized_advantage_estimate": (0.9, 0.8, value, following, reward, done),
        "vtrace_advantage_estimate": (0.9, log_prob, 2 * log_prob, value, following, reward, done),
        "vec_td_lambda_return_estimate": (0.9, 0.8, following, reward, done),
        "vec_td_lambda_advantage_estimate": (0.9, 0.8, value, following, reward, done),
        "vec_td1_return_estimate": (0.9, following, reward, done),
        "vec_td1_advantage_estimate": (0.9, value, following, reward, done),
        "reward2go": (reward, done, 0.9),
    }
    return getattr(functional, name)(*arguments[name], **more)


def make(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(SHAPE, generator=generator, dtype=dtype) for _ in range(4)]
    return numbers, torch.rand(SHAPE, generator=generator) < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "strided"])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_written_there(name, dense, dtype):
    numbers, done = make(dtype)
    expected = call(name, numbers, done)
    count = 2 if name in PAIRS else 1
    out = tuple(torch.full((5, 3, 1), 7.0, dtype=dtype).transpose(0, 1) for _ in range(count))
    if dense:
        out = tuple(x.contiguous() for x in out)
    found = call(name, numbers, done, out=out if count == 2 else out[0])
    torch.testing.assert_close(found, expected)
    for one, other in zip(out, found if count == 2 else (found,), strict=True):
        assert one is other


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_written_is_refused_and_left_alone(name):
    numbers, done = make()
    before = [x.clone() for x in numbers]
    good = torch.full(SHAPE, 7.0)

    def into(out):
        return call(name, numbers, done, out=(good, out) if name in PAIRS else out)

    with pytest.raises(ShapeError, match=r"out has shape \(3, 5\)"):
        into(torch.empty(3, 5))
    with pytest.raises(RLError, match=r"out is torch\.float64"):
        into(torch.empty(SHAPE, dtype=torch.float64))
    with pytest.raises(RLError, match="overlaps"):
        into(numbers[2])
    if name == "vtrace_advantage_estimate":
        with pytest.raises(RLError, match="overlaps"):
            into(numbers[3])
    with pytest.raises(RLError, match="share memory"):
        into(torch.empty(3, 1, 1).expand(SHAPE))
    with pytest.raises(RLError, match="gradient"):
        into(torch.empty(SHAPE, requires_grad=True))
    numbers[2].requires_grad_()
    with pytest.raises(RLError, match="no gradient"):
        into(torch.empty(SHAPE))
    assert torch.equal(good, torch.full(SHAPE, 7.0))
    assert all(torch.equal(one, other) for one, other in zip(numbers, before, strict=True))


@pytest.mark.parametrize("name", PAIRS)
def test_two_results_need_two_places(name):
    numbers, done = make()
    one = torch.empty(SHAPE)
    with pytest.raises(RLError, match="overlaps"):
        call(name, numbers, done, out=(one, one))
    with pytest.raises(RLError, match="1 tensor"):
        call(name, numbers, done, out=(one,))


def test_a_parameter_counts_under_no_grad():
    numbers, done = make()
    numbers[0].requires_grad_()
    out = torch.empty(SHAPE), torch.empty(SHAPE)
    with torch.no_grad():
        assert call(PAIRS[0], numbers, done, out=out)[0] is out[0]


def test_flags_of_another_type_count():
    numbers, done = make()
    out = torch.empty(SHAPE)
    call("vec_td1_return_estimate", numbers, done.to(torch.uint8), out=out)
    torch.testing.assert_close(out, call("vec_td1_return_estimate", numbers, done))


def test_the_loop_gives_nothing_for_no_steps_as_the_back_end_does():
    number, flag = torch.zeros(2, 0, 1), torch.zeros(2, 0, 1, dtype=torch.bool)
    assert functional.generalized_advantage_estimate(0.9, 0.8, number, number, number, flag)[0].shape == (2, 0, 1)
