"""`GymEnv(vectorization=...)`: the same experience as the library's own environments, and its options."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError
from rl.core.specs import Unbounded
from rl.envs import GymEnv, GymWrapper, StepCounter
from rl.testing import check_env


def test_native_cart_poles_follow_gymnasium_with_resets_that_are_no_steps():
    """An episode equals Gymnasium's own vector environment from the same state, without the step that resets."""
    env = GymEnv("CartPole-v1", num_envs=5, vectorization="native", categorical_action_encoding=True)
    env.set_seed(3)
    data = env.rollout(300, break_when_any_done=False)
    raw = gym.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
    raw.reset(seed=3)
    assert np.array_equal(raw.state.T.astype(np.float32), data["observation"][:, 0].numpy())
    for t in range(300):  # Gymnasium's state is set to ours after a reset, which takes no step here
        fresh = data["next", "done"][:, t - 1, 0].numpy() if t else np.zeros(5, bool)
        raw.state[:, fresh] = env_state(data, t)[:, fresh]
        raw.steps[fresh], raw.prev_done[:] = 0, False
        seen, reward, terminated, truncated, _ = raw.step(data["action"][:, t].numpy())
        np.testing.assert_allclose(data["next", "observation"][:, t].numpy(), seen, atol=1e-5)
        assert np.array_equal(data["next", "terminated"][:, t, 0].numpy(), terminated)
        assert np.array_equal(data["next", "truncated"][:, t, 0].numpy(), truncated)
        assert np.array_equal(data["next", "reward"][:, t, 0].numpy(), reward)
    assert data["next", "done"].sum() > 20


def env_state(data, t):
    return data["observation"][:, t].numpy().astype(np.float64).T


@pytest.mark.parametrize("vectorization", ["native", "async"])
def test_conformance(vectorization):
    def make():
        return GymEnv("CartPole-v1", num_envs=2, vectorization=vectorization)

    check_env(make, steps=60)
    env = make().append_transform(StepCounter(max_steps=5))  # resets what has not ended
    assert env.rollout(20, break_when_any_done=False)["next", "step_count"].max() == 5
    env.close()


def test_processes_give_what_this_process_does():
    options = {"num_envs": 3, "frame_skip": 2, "wrappers": [shifted], "info_keys": ["prob"], "is_slippery": False}
    found = []
    for vectorization in ("in-process", "async"):
        with GymEnv("FrozenLake-v1", vectorization=vectorization, **options) as env:
            env.set_seed(1)
            torch.manual_seed(0)
            found.append(env.rollout(40, break_when_any_done=False))
    assert (found[0] == found[1]).all()
    assert found[0]["next", "done"].any()


def shifted(env):
    return gym.wrappers.TransformReward(env, lambda reward: reward + 1)


@pytest.mark.parametrize("vectorization", ["in-process", "native", "async"])
def test_pixels_alone(vectorization):
    pytest.importorskip("pygame")
    with GymEnv("CartPole-v1", num_envs=2, from_pixels=True, pixels_only=True, vectorization=vectorization) as env:
        assert list(env.observation_spec.keys()) == ["pixels"]
        data = env.rollout(8)
        assert data["pixels"].dtype == torch.uint8
        assert data["pixels"].shape[-1] == 3
        assert not (data["pixels"][:, 0] == data["next", "pixels"][:, -1]).all()


def test_infos_of_a_vector_environment_need_specs():
    inner = gym.vector.SyncVectorEnv([lambda: gym.make("FrozenLake-v1")] * 2)
    with pytest.raises(ArgumentError, match="mapping"):
        GymWrapper(inner, info_keys=["prob"])
    env = GymWrapper(inner, info_keys={"prob": Unbounded((), dtype=torch.float64)})
    data = env.rollout(5, break_when_any_done=False)
    assert (data["prob"][:, 0] == 1).all()  # of a reset
    assert (data["next", "prob"] - 1 / 3 < 0.01).all()


def test_available_ids():
    assert "CartPole-v1" in GymEnv.available_envs
    assert GymEnv("CartPole-v1").available_envs == sorted(GymEnv.available_envs)


def test_an_environment_of_one_element_can_be_held():
    env = GymEnv("CartPole-v1")
    root = env.rand_action(env.reset()).set("_step", torch.zeros(1, dtype=torch.bool))
    held = env.lowered().step_leaves({key: root[key] for key in root.keys()})
    assert (held["observation"] == root["observation"]).all()
    assert held["reward"].item() == 0


def test_environments_in_processes_are_not_pickled():
    with (
        GymEnv("CartPole-v1", num_envs=2, vectorization="async") as env,
        pytest.raises(TypeError, match="processes of"),
    ):
        pickle.dumps(env)


def test_a_reset_at_the_next_step_is_no_step_of_other_processes():
    mode = gym.vector.AutoresetMode.NEXT_STEP
    found = []
    for env in (
        GymWrapper(gym.vector.AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode)),
        GymEnv("CartPole-v1", num_envs=3),
    ):
        env.set_seed(2)
        torch.manual_seed(0)
        found.append(env.rollout(100, break_when_any_done=False))
        env.close()
    assert (found[0] == found[1]).all()
    assert found[0]["next", "done"].sum() > 5


def test_native_atari_games_advance_at_the_step_after_a_reset():
    env = GymEnv(
        "ALE/Breakout-v5", num_envs=2, vectorization="native", info_keys={"episode_frame_number": Unbounded(())},
        noop_max=0, repeat_action_probability=0.0,
    )  # fmt: skip
    env.set_seed(0)
    data = env.rollout(400, break_when_any_done=False)
    before, after = data["episode_frame_number"], data["next", "episode_frame_number"]
    assert data["next", "done"].any()
    assert (after > before).all()  # the step of a reset would begin and end at the same frame
    env.close()
