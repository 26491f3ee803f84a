from __future__ import annotations

import pytest
import torch

from rl.core.errors import CheckpointError
from rl.envs import (
    Compose,
    GymEnv,
    GymWrapper,
    InitTracker,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)


def plain(value):
    """Whether a state holds only what can be stored without pickling objects."""
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) and plain(one) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return all(plain(one) for one in value)
    fits = not isinstance(value, int) or abs(value) < 2**63
    return value is None or (isinstance(value, (torch.Tensor, str, bool, int, float)) and fits)


def transforms():
    return Compose(StepCounter(17), RewardSum(), InitTracker())


MAKERS = {
    "cartpole": lambda: GymEnv("CartPole-v1"),
    "pendulum-3": lambda: GymEnv("Pendulum-v1", num_envs=3),
    "cartpole-skip": lambda: GymEnv("CartPole-v1", num_envs=2, frame_skip=2),
    "transformed": lambda: TransformedEnv(GymEnv("CartPole-v1", num_envs=3), transforms()),
    "torch": lambda: TransformedEnv(PendulumEnv([2]), transforms()),
    "serial": lambda: SerialEnv(2, lambda: TransformedEnv(GymEnv("CartPole-v1"), transforms())),
    "blackjack": lambda: GymEnv("Blackjack-v1", num_envs=2),
}


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded", "not-seeded"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_run_goes_on_bit_for_bit(name, seeded):
    env, other = MAKERS[name](), MAKERS[name]()
    if seeded:
        env.set_seed(5)
    root = env.reset()
    for _ in range(33):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    state = env.state_dict()
    assert state["restorable"]
    assert plain(state)
    assert other.load_state_dict(state) is True
    mine = theirs = root
    for _ in range(40):
        action = env.full_action_spec.rand()
        a, mine = env.step_and_maybe_reset(mine.copy().update(action))
        b, theirs = other.step_and_maybe_reset(theirs.copy().update(action))
        assert all(torch.equal(a[key], b[key]) for key in a.keys(True, True))
        assert all(torch.equal(mine[key], theirs[key]) for key in mine.keys(True, True))


def test_a_seed_that_waits_for_its_reset_is_kept():
    env, other = GymEnv("CartPole-v1", num_envs=2), GymEnv("CartPole-v1", num_envs=2)
    env.set_seed(9)
    assert other.load_state_dict(env.state_dict())
    assert torch.equal(env.reset()["observation"], other.reset()["observation"])


def test_randomness_of_its_own_is_found_out(counting_gym):
    class Fickle(counting_gym):
        def _seen(self):
            out = super()._seen()
            out[0] = torch.rand(()).item()
            return out

    env = GymWrapper(Fickle())
    env.rollout(2)
    with pytest.warns(UserWarning, match="took another course"):
        assert GymWrapper(Fickle()).load_state_dict(env.state_dict()) is False


def test_a_state_of_another_size_is_refused():
    state = GymEnv("CartPole-v1", num_envs=2).state_dict()
    with pytest.raises(CheckpointError, match="3 environments, the state has 2"):
        GymEnv("CartPole-v1", num_envs=3).load_state_dict(state)
    with pytest.raises(CheckpointError):
        PendulumEnv().load_state_dict({"restorable": True})
    serial = SerialEnv(2, PendulumEnv)
    with pytest.raises(CheckpointError):
        SerialEnv(3, PendulumEnv).load_state_dict(serial.state_dict())
    with pytest.raises(CheckpointError, match="2 transforms"):
        Compose(StepCounter(), RewardSum()).load_state_dict({"transforms": []})
