from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import NonTensorStack

from rl.core.errors import ArgumentError, MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)
from rl.envs import GymEnv, GymWrapper, register_gym_spec_conversion

# a table of spaces is converted, without an environment for each
from rl.envs.gym._spaces import places, space_spec
from rl.testing import check_env


def to_gym(env, action):
    """The simulator's action, by another way than the wrapper's."""
    return int(action.argmax()) if isinstance(env.action_space, gym.spaces.Discrete) else action.numpy().copy()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_rollout_is_that_of_gymnasium(name):
    env, reference = GymEnv(name), gym.make(name)
    env.set_seed(3)
    torch.manual_seed(0)
    data = env.rollout(250, break_when_any_done=False)
    observation, _ = reference.reset(seed=3)
    for step in data:
        np.testing.assert_array_equal(step["observation"].numpy(), observation)
        observation, reward, terminated, truncated, _ = reference.step(to_gym(reference, step["action"]))
        np.testing.assert_array_equal(step["next", "observation"].numpy(), observation)
        assert step["next", "reward"].item() == np.float32(reward)
        assert step["next", "terminated"].item() == terminated
        assert step["next", "truncated"].item() == truncated
        assert step["next", "done"].item() == (terminated or truncated)
        if terminated or truncated:
            observation, _ = reference.reset()


def test_several_environments_are_those_of_gymnasium_one_by_one():
    env = GymEnv("CartPole-v1", num_envs=3)
    env.set_seed(7)
    data = env.rollout(60, break_when_any_done=False)
    for index, row in enumerate(data):
        reference = gym.make("CartPole-v1")
        observation, _ = reference.reset(seed=7 + index)
        for step in row:
            np.testing.assert_array_equal(step["observation"].numpy(), observation)
            observation, _, terminated, truncated, _ = reference.step(int(step["action"].argmax()))
            np.testing.assert_array_equal(step["next", "observation"].numpy(), observation)
            if terminated or truncated:
                observation, _ = reference.reset()


def test_specs_and_layout_as_promised():
    env = GymEnv("Pendulum-v1")
    assert str(env) == "GymEnv(env=Pendulum-v1, batch_size=torch.Size([]), device=None)"
    assert isinstance(env.action_spec, Bounded)
    assert env.action_spec.space.low.tolist() == [-2.0]
    assert env.observation_spec["observation"].shape == (3,)
    reset = env.reset()
    assert set(reset.keys()) == {"done", "observation", "terminated", "truncated"}
    step = env.rand_step(reset)
    outcome = {"done", "observation", "reward", "terminated", "truncated"}
    roots = {"action", "done", "observation", "terminated", "truncated"}
    assert set(step.keys(True, True)) == {*roots, *(("next", key) for key in outcome)}
    assert step["next", "reward"].shape == (1,)
    assert step["next", "done"].dtype == torch.bool


def test_discrete_actions_are_one_hot_unless_asked():
    one_hot = GymEnv("CartPole-v1").action_spec
    assert isinstance(one_hot, OneHot)
    assert (one_hot.shape, one_hot.dtype) == ((2,), torch.int64)
    integer = GymEnv("CartPole-v1", categorical_action_encoding=True, num_envs=4).action_spec
    assert isinstance(integer, Categorical)
    assert (integer.n, integer.shape) == (2, (4,))


@pytest.mark.parametrize(
    ("space", "categorical", "spec"),
    [
        pytest.param(gym.spaces.Box(-1, 1, (2,), np.float32), False, Bounded(-1, 1, shape=(2,)), id="box"),
        pytest.param(gym.spaces.Box(-np.inf, np.inf, (2,)), False, Unbounded(2), id="free-box"),
        pytest.param(
            gym.spaces.Box(0, 255, (2, 2), np.uint8),
            False,
            Bounded(0, 255, shape=(2, 2), dtype=torch.uint8),
            id="image",
        ),
        pytest.param(gym.spaces.Discrete(4, start=-1), False, OneHot(4, dtype=torch.int64), id="one-hot"),
        pytest.param(gym.spaces.Discrete(4, start=-1), True, Categorical(4), id="categorical"),
        pytest.param(
            gym.spaces.MultiDiscrete([2, 3], start=[1, 5]),
            False,
            MultiOneHot([2, 3], dtype=torch.int64),
            id="multi-one-hot",
        ),
        pytest.param(
            gym.spaces.MultiDiscrete([2, 3], start=[1, 5]),
            True,
            MultiCategorical(torch.tensor([2, 3]), shape=(2,)),
            id="multi-categorical",
        ),
        pytest.param(gym.spaces.MultiBinary(3), False, Binary(3, dtype=torch.int8), id="binary"),
    ],
)
def test_spaces_and_specs_say_the_same(space, categorical, spec):
    assert space_spec(space, categorical=categorical) == spec
    (place,) = places(space, "observation", categorical=categorical, under_name=False)
    space.seed(0)
    values = [space.sample() for _ in range(5)]
    tensor = torch.from_numpy(place.encode(values))
    assert all(spec.is_in(row) for row in tensor)
    for back, value in zip(place.decode(tensor), values, strict=True):
        np.testing.assert_array_equal(back, value)
        assert space.contains(back) or isinstance(space, gym.spaces.Discrete)


def test_text_is_not_a_tensor():
    assert isinstance(space_spec(gym.spaces.Text(5)), NonTensor)


def test_trees_of_spaces_become_nested_keys():
    box = gym.spaces.Box(-1, 1, (2,))
    space = gym.spaces.Dict(a=box, b=gym.spaces.Tuple([gym.spaces.Discrete(2), box]))
    spec = space_spec(space)
    assert isinstance(spec, Composite)
    assert spec.keys(True, True) == ["a", ("b", "0"), ("b", "1")]
    keys = [place.key for place in places(space, "action", categorical=False, under_name=True)]
    assert keys == [("action", "a"), ("action", "b", "0"), ("action", "b", "1")]


def test_a_space_of_ones_own_can_be_registered():
    class Odd(gym.Space):
        pass

    with pytest.raises(SpecError, match="register_gym_spec_conversion"):
        space_spec(Odd())
    register_gym_spec_conversion(Odd)(lambda space, categorical: (Unbounded(3), np.array, list))
    assert space_spec(Odd()) == Unbounded(3)


class Everything(gym.Env):
    """Returns as observation what it was given as action."""

    def __init__(self):
        parts = {"box": gym.spaces.Box(-1, 1, (2,)), "pick": gym.spaces.Discrete(3, start=4)}
        parts["pair"] = gym.spaces.Tuple([gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2)])
        self.observation_space = gym.spaces.Dict(parts)
        self.action_space = gym.spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains({**action, "pick": np.int64(action["pick"])}), action
        return action, 0.0, False, False, {}


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("count", [None, 3])
def test_every_part_of_a_nested_action_arrives(categorical, count):
    made = Everything() if count is None else [Everything() for _ in range(count)]
    env = GymWrapper(made, categorical_action_encoding=categorical)
    step = env.rand_step()
    for key in env.action_keys:
        torch.testing.assert_close(step[("next", *key[1:])], step[key], check_dtype=False)


def test_observations_do_not_share_the_simulators_memory(counting_gym):
    for wrapped in (counting_gym(reuse=True), [counting_gym(reuse=True) for _ in range(2)]):
        data = GymWrapper(wrapped).rollout(3)
        assert data["observation"][..., 1].reshape(-1, 3)[0].tolist() == [0.0, 1.0, 2.0]


def test_start_offsets_reach_the_simulator(counting_gym):
    simulator = counting_gym(lengths=[10])
    env = GymWrapper(simulator)
    td = env.reset()
    for index in range(3):
        td = env.step(td.set("action", torch.eye(3, dtype=torch.int64)[index]))
    assert simulator.acts == [1, 2, 3]


@pytest.mark.parametrize("count", [None, 2])
def test_frame_skip_adds_rewards_and_stops_at_the_end(counting_gym, count):
    made = counting_gym([5]) if count is None else [counting_gym([5]) for _ in range(count)]
    data = GymWrapper(made, frame_skip=2).rollout(
        10, policy=lambda td: td.set("action", torch.tensor([0, 1, 0]).expand(*td.batch_size, 3))
    )
    rewards = data["next", "reward"].reshape(-1, data.shape[-1])
    assert rewards[0].tolist() == [4.0, 4.0, 2.0]


def test_pixels(counting_gym):
    env = GymWrapper([counting_gym(render_mode="rgb_array") for _ in range(2)], from_pixels=True)
    data = env.rollout(2)
    assert data["pixels"].shape == (2, 2, 4, 5, 3)
    assert data["next", "pixels"][0, :, 0, 0, 0].tolist() == [1, 2]
    assert env.observation_keys == ["observation", "pixels"]
    assert env.from_pixels
    assert not GymWrapper(counting_gym()).from_pixels
    with pytest.raises(ArgumentError, match="render_mode='rgb_array'"):
        GymWrapper(counting_gym(), from_pixels=True)


@pytest.mark.parametrize("keys", [["twice"], {"twice": Unbounded((), dtype=torch.float64)}], ids=["found", "stated"])
@pytest.mark.parametrize("count", [None, 2])
def test_info_entries_on_request(counting_gym, keys, count):
    made = counting_gym([9]) if count is None else [counting_gym([9]) for _ in range(count)]
    data = GymWrapper(made, info_keys=keys).rollout(3)
    assert data["twice"].reshape(-1, 3)[0].tolist() == [0.0, 2.0, 4.0]
    assert data["next", "twice"].reshape(-1, 3)[0].tolist() == [2.0, 4.0, 6.0]


def test_unknown_info_entry_is_named(counting_gym):
    with pytest.raises(ArgumentError, match=r"'thrice'.*\['twice'\]"):
        GymWrapper(counting_gym(), info_keys=["thrice"])


# ---- wrong use


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        pytest.param("CartPol-v1", UnknownComponentError, "Did you mean 'CartPole-v1'", id="typo"),
        pytest.param("cartpole-v1", UnknownComponentError, "'CartPole-v1'", id="case"),
        pytest.param("CartPole-v9", UnknownComponentError, "'CartPole-v0' or 'CartPole-v1'", id="version"),
        pytest.param("highway/Nothing-v0", UnknownComponentError, "pip install highway-env", id="namespace"),
    ],
)
def test_unknown_ids_get_a_hint(name, error, message):
    with pytest.raises(error, match=message):
        GymEnv(name)


def test_missing_libraries_get_the_line_that_installs_them():
    def lacking():
        raise gym.error.DependencyNotInstalled("Box2D is not there")

    gym.register("Lacking-v0", entry_point=lambda **_: lacking())
    with pytest.raises(MissingExtraError, match="Box2D is not there"):
        GymEnv("Lacking-v0")
    gym.register("Lander-v99", entry_point="gymnasium.envs.box2d.nowhere:Lander")
    with pytest.raises(MissingExtraError, match=r"pip install 'rl-envs\[box2d\]'"):
        GymEnv("Lander-v99")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        pytest.param({"num_envs": 0}, "at least 1", id="none"),
        pytest.param({"frame_skip": 0}, "at least 1", id="skip"),
        pytest.param({"vectorization": "threads"}, "'in-process', 'native' or 'async'", id="vectorization"),
        pytest.param({"vectorization": "native"}, "needs num_envs", id="native-one"),
        pytest.param({"pixels_only": True}, "from_pixels=True", id="pixels"),
        pytest.param({"vectorization": "native", "num_envs": 2, "frame_skip": 2}, "frame_skip", id="native-skip"),
        pytest.param(
            {"vectorization": "native", "num_envs": 2, "wrappers": [lambda env: env]}, "wrappers", id="native-wrappers"
        ),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        GymEnv("CartPole-v1", **kwargs)


def test_wrappers_are_applied_to_each_environment_innermost_first():
    def scaled(env):
        return gym.wrappers.TransformReward(env, lambda reward: 3 * reward)

    def shifted(env):
        return gym.wrappers.TransformReward(env, lambda reward: reward + 1)

    env = GymEnv("CartPole-v1", num_envs=2, wrappers=[scaled, shifted])
    assert (env.rollout(4)["next", "reward"] == 3 * 1 + 1).all()


def test_native_form_that_does_not_exist():
    with pytest.raises(RLError, match="in-process"):
        GymEnv("Pendulum-v1", num_envs=2, vectorization="native")


def test_different_environments_do_not_stack(counting_gym):
    with pytest.raises(ArgumentError, match="same spaces"):
        GymWrapper([counting_gym(), counting_gym(nested=True)])


def test_wrong_actions_are_refused_in_both_forms():
    env = GymEnv("Pendulum-v1")
    with pytest.raises(SpecError, match=r"got float32 \[5\]"):
        env.step(env.reset().set("action", torch.zeros(5)))
    with pytest.raises(SpecError, match=r"in \[-2, 2\].*50"):
        env.step(env.reset().set("action", torch.tensor([50.0])))
    leaf = GymEnv("CartPole-v1").lowered()
    with pytest.raises(SpecError, match="OneHot"):
        leaf.step_leaves({**leaf.reset_leaves(), "action": torch.zeros(2, dtype=torch.int64)})


def test_a_later_action_that_means_nothing_is_explained_too():
    env = GymEnv("CartPole-v1")
    _, td = env.step_and_maybe_reset(env.rand_action(env.reset()))
    with pytest.raises(SpecError, match="OneHot"):
        env.step(td.set("action", torch.zeros(2, dtype=torch.int64)))


def test_closing_closes_every_simulator(counting_gym):
    made = [counting_gym() for _ in range(2)]
    env = GymWrapper(made)
    env.close()
    env.close()
    assert [one.closed for one in made] == [1, 1]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: GymEnv("CartPole-v1"), id="one"),
        pytest.param(lambda: GymEnv("CartPole-v1", num_envs=3), id="three"),
        pytest.param(lambda: GymEnv("CartPole-v1", categorical_action_encoding=True, frame_skip=3), id="skip"),
        pytest.param(lambda: GymEnv("Pendulum-v1", num_envs=1), id="batch-of-one"),
        pytest.param(lambda: GymEnv("Blackjack-v1", num_envs=2), id="tuple"),
        pytest.param(lambda: GymEnv("FrozenLake-v1"), id="discrete"),
    ],
)
def test_conformance(make):
    check_env(make)


def test_conformance_of_nested_observations(counting_gym):
    class Repeatable(counting_gym):
        """Counts its episodes from the seed on."""

        def reset(self, *, seed=None, options=None):
            self.episode = self.episode if seed is None else -1
            return super().reset(seed=seed, options=options)

    check_env(lambda: GymWrapper([Repeatable(nested=True, noise=True) for _ in range(3)]))


class Talking(gym.Env):
    """Observes a word and a number."""

    def __init__(self):
        self.observation_space = gym.spaces.Dict(word=gym.spaces.Text(5), number=gym.spaces.Discrete(9))
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return {"word": "start", "number": 0}, {}

    def step(self, action):
        self.count += 1
        return {"word": f"w{self.count}", "number": self.count}, 1.0, self.count == 3, False, {}


@pytest.mark.parametrize("count", [None, 2])
def test_text_goes_along_without_a_leaf_form(count):
    env = GymWrapper(Talking() if count is None else [Talking() for _ in range(count)])
    assert env.lowered() is None
    td = env.reset()
    words = []
    for _ in range(4):
        stepped, td = env.step_and_maybe_reset(env.rand_action(td))
        words.append(stepped["next"].get("word"))
    assert "w1" in str(words[0])
    assert "w3" in str(words[2])


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("ALE/X-v5", "ale_py", "atari"), ("BabyAI-X-v0", "minigrid", "minigrid")]
)
def test_ids_of_a_missing_library_get_the_line_that_installs_it(name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'rl-envs\[{extra}\]'"):
        GymEnv(name)


FAMILIES = {
    "CartPole-v1": "gymnasium",
    "LunarLander-v3": "Box2D",
    "HalfCheetah-v5": "mujoco",
    "ALE/Pong-v5": "ale_py",
    "MiniGrid-Empty-5x5-v0": "minigrid",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_thousand_steps_are_bitwise_those_of_the_library(name):
    pytest.importorskip(FAMILIES[name])
    env = GymEnv(name, categorical_action_encoding=True)
    raw = gym.make(name)
    raw.action_space.seed(0)
    env.set_seed(7)
    root = env.reset()
    observation, _ = raw.reset(seed=7)
    for _ in range(1000):
        action = raw.action_space.sample()
        tensor = torch.as_tensor(action)
        compare(root, observation)
        stepped = env.step(root.set("action", tensor))
        observation, reward, terminated, truncated, _ = raw.step(action)
        compare(stepped["next"], observation)
        assert stepped["next", "reward"].item() == np.float32(reward)
        assert (stepped["next", "terminated"].item(), stepped["next", "truncated"].item()) == (terminated, truncated)
        root = env.maybe_reset(env.step_mdp(stepped))
        if terminated or truncated:
            observation, _ = raw.reset()


def compare(td, observation):
    parts = observation if isinstance(observation, dict) else {"observation": observation}
    for key, value in parts.items():
        if isinstance(value, str):
            assert td[key] == value
        else:
            np.testing.assert_array_equal(td[key].numpy(), value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GymWrapper([]), "at least one environment, got an empty list"),
        (lambda: GymEnv("CartPole-v1", num_envs="3"), "num_envs must be an integer, got '3'"),
        (lambda: GymEnv("CartPole-v1", frame_skip=2.5), r"frame_skip must be an integer, got 2\.5"),
        (lambda: GymEnv("CartPole-v1", num_workers=2), "vectorization='async'"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(RLError, match=message):
        make()


class Spelling(gym.Env):
    """Takes the number of letters as reward."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Text(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(len(action)), False, False, {}


@pytest.mark.parametrize("count", [None, 2])
def test_actions_of_text_are_given_to_the_simulator(count):
    env = GymWrapper(Spelling() if count is None else [Spelling() for _ in range(count)])
    words = "abc" if count is None else NonTensorStack("abc", "a")
    rewards = env.step(env.reset().set("action", words))["next", "reward"].flatten().tolist()
    assert rewards == ([3.0] if count is None else [3.0, 1.0])
    with pytest.raises(SpecError, match="an action of text has no random values"):
        env.rollout(2)
