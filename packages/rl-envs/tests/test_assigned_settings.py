"""Settings that are assigned after an environment was made: they are followed, or refused."""

import pytest

from rl.envs import GymEnv, ParallelEnv, PendulumEnv, SerialEnv, TransformedEnv


def cart():
    return GymEnv("CartPole-v1")


class Levelled(PendulumEnv):
    """An environment with a setting of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 1

    @property
    def name(self):
        return "pendulum"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda make: make(),
        lambda make: TransformedEnv(make()),
        lambda make: SerialEnv(2, make),
        lambda make: SerialEnv(2, lambda: TransformedEnv(make())),
        lambda make: TransformedEnv(SerialEnv(2, make)),
    ],
)
@pytest.mark.parametrize(("name", "value"), [("frame_skip", 4), ("env_name", "Acrobot-v1")])
def test_a_setting_that_would_be_ignored_is_refused(wrap, name, value):
    env = wrap(cart)
    with pytest.raises(AttributeError, match=rf"GymEnv\.{name} is set by the constructor, .*Create a new GymEnv"):
        setattr(env, name, value)
    env.mine = 3
    assert env.mine == 3


def test_it_is_refused_in_workers_too():
    env = ParallelEnv(2, cart, processes=1)
    with pytest.raises(AttributeError, match=r"GymEnv\.frame_skip is set by the constructor"):
        env.frame_skip = 4
    assert env.frame_skip == [1, 1]
    env.close()


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_an_attribute_of_the_environments_inside_is_set_there(kind):
    env = kind(2, Levelled)
    env.level = 3
    assert env.level == [3, 3]
    env.mine = 5
    assert env.mine == 5
    with pytest.raises(AttributeError, match="name"):
        env.name = "other"
    env.close()
    env.level = 4  # of the closed object, where nothing runs any more


@pytest.mark.parametrize("name", ["num_workers", "timeout", "num_threads", "daemon", "shared_memory"])
def test_settings_of_workers_that_run_are_refused(name):
    env = ParallelEnv(2, PendulumEnv, processes=1)
    with pytest.raises(AttributeError, match=rf"ParallelEnv\.{name} is set by the constructor"):
        setattr(env, name, 3)
    env.close()


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_the_number_of_environments_can_be_read(kind):
    env = kind(2, PendulumEnv)
    assert env.num_workers == len(env) == 2
    env.close()
