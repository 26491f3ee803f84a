"""`TensorDictPrimer`: the start of what a policy carries, in every form of an environment."""

import pytest
import torch

from rl.core import recurrent_mode, set_recurrent_mode
from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs import InitTracker, PendulumEnv, SerialEnv, StepCounter, TensorDictPrimer, TransformedEnv, gSDENoise
from rl.testing import check_env

H, C = ("recurrent_state", "h"), "c"


def primed(batch_size=(), **kwargs):
    primer = TensorDictPrimer({H: Unbounded((1, 3)), C: Unbounded((2,))}, **kwargs)
    env = TransformedEnv(PendulumEnv(batch_size=batch_size), StepCounter(max_steps=3))
    return env.append_transform(InitTracker()).append_transform(primer)


def counting(td):
    """Carries the number of steps of the episode."""
    td["action"] = torch.zeros(*td.batch_size, 1)
    td["next", "recurrent_state", "h"] = td[H] + 1
    td["next", "c"] = td[C] + 2
    return td


@pytest.mark.parametrize("size", [(), (2,)])
def test_it_keeps_the_rules_of_transforms_and_environments(size):
    check_env(lambda: primed(size))


@pytest.mark.parametrize("size", [(), (2,)])
def test_states_start_again_and_move_on(size):
    td = primed(size).rollout(8, counting, break_when_any_done=False)
    expected = torch.tensor([0.0, 1, 2, 0, 1, 2, 0, 1])
    assert td[H].shape == (*size, 8, 1, 3)
    assert torch.equal(td[H], expected[:, None, None].expand(*size, 8, 1, 3))
    assert torch.equal(td[C], 2 * expected[:, None].expand(*size, 8, 2))
    assert torch.equal(td["next", "recurrent_state", "h"], td[H] + 1)


def test_only_elements_that_are_reset_start_again():
    env = primed((2,))
    td = counting(env.reset())
    root = env.step_mdp(env.step(td))
    root["_reset"] = torch.tensor([[True], [False]])
    again = env.reset(root)
    assert again[H][:, 0, 0].tolist() == [0, 1]
    assert again[C][:, 0].tolist() == [0, 2]


def test_default_values():
    assert bool((primed(default_value=0.5).reset()[H] == 0.5).all())
    td = primed(default_value={H: torch.tensor([[1.0, 2.0, 3.0]])}).reset()
    assert td[H].tolist() == [[1, 2, 3]]
    assert td[C].tolist() == [0, 0]


def test_random_entries_lie_in_their_spec():
    spec = Bounded(2, 3, shape=(4,))
    env = TransformedEnv(PendulumEnv(batch_size=(5,)), TensorDictPrimer({"z": spec}, random=True))
    first, second = env.reset()["z"], env.reset()["z"]
    assert first.shape == (5, 4)
    assert bool(((first >= 2) & (first <= 3)).all())
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [None, (2000,)])
def test_the_noise_of_gsde_is_standard_normal_and_drawn_in_each_episode(shape):
    noise = gSDENoise(state_dim=3, action_dim=1, shape=shape)
    env = TransformedEnv(PendulumEnv(batch_size=(2000,)), noise)
    first, second = env.reset()["_eps_gSDE"], env.reset()["_eps_gSDE"]
    assert first.shape == (2000, 1, 3)
    assert abs(first.mean()) < 0.05
    assert abs(first.std() - 1) < 0.05
    assert not torch.equal(first, second)


def test_specs_may_be_nested_or_named():
    primer = TensorDictPrimer(Composite(recurrent_state=Composite(h=Unbounded((1, 3)))), c=Unbounded((2,)))
    assert list(primer.primers) == [H, C]
    assert list(TensorDictPrimer({"recurrent_state": Composite(h=Unbounded((1, 3)))}).primers) == [H]


def test_serial_environments_have_it_each():
    make = lambda: TransformedEnv(PendulumEnv(), TensorDictPrimer({H: Unbounded((1, 3))}, default_value=2.0))
    td = SerialEnv(2, make).reset()
    assert torch.equal(td[H], torch.full((2, 1, 3), 2.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (TensorDictPrimer, "nothing to write"),
        (lambda: gSDENoise(state_dim=3), "gSDENoise needs state_dim and action_dim, got 3 and None"),
        (lambda: TensorDictPrimer({"h": torch.zeros(2)}), "takes specs by key, got Tensor under 'h'"),
        (
            lambda: TensorDictPrimer({"h": Unbounded((2,))}, default_value=torch.zeros(3)),
            r"shape \(3,\), its spec \(2,\)",
        ),
        (lambda: TensorDictPrimer({"state": Unbounded((2,))}, default_value={"stat": 1.0}), "did you mean 'state'"),
        (lambda: TransformedEnv(PendulumEnv(), TensorDictPrimer({"th": Unbounded(())})), "has already"),
        (lambda: TransformedEnv(PendulumEnv(), TensorDictPrimer({"observation": Unbounded((3,))})), "has already"),
    ],
)
def test_what_it_refuses(make, message):
    with pytest.raises((ArgumentError, SpecError), match=message):
        make()


def test_a_rollout_takes_single_steps_whatever_mode_holds_outside():
    seen = []

    def asking(td):
        seen.append(recurrent_mode())
        return counting(td)

    with set_recurrent_mode(True):
        primed((2,)).rollout(3, asking)
    assert seen == [False] * 3


def test_specs_with_the_batch_of_the_environment_are_those_of_an_element():
    with_batch = Composite(h=Unbounded((2, 3)), inner=Composite(c=Unbounded((2, 1)), shape=(2,)), shape=(2,))
    for primers in (with_batch, {"h": Unbounded(3), "inner": Composite(c=Unbounded((2, 1)), shape=(2,))}):
        root = TransformedEnv(PendulumEnv([2]), TensorDictPrimer(primers)).reset()
        assert root["h"].shape == (2, 3)
        assert root["inner", "c"].shape == (2, 1)
