"""The Atari preset against Gymnasium's own wrappers, bitwise."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, SpecError
from rl.envs import GymEnv, TransformedEnv
from rl.envs.transforms import atari
from rl.testing import check_transform

ale_py = pytest.importorskip("ale_py")
gymnasium.register_envs(ale_py)

RAW = {"frameskip": 1, "repeat_action_probability": 0.0}


def ours(game, num_envs=None, *, color="rgb", **options):
    env = GymEnv(game, num_envs=num_envs, obs_type=color, info_keys=["lives"], categorical_action_encoding=True, **RAW)
    return TransformedEnv(env, atari(**options))


def reference(game, size=84, *, life=True, stack=4):
    env = gymnasium.make(game, **RAW)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=0, screen_size=size, terminal_on_life_loss=life)
    return gymnasium.wrappers.FrameStackObservation(env, stack)


@pytest.mark.parametrize("color", ["rgb", "grayscale"])
@pytest.mark.parametrize("game", ["ALE/Pong-v5", "ALE/Breakout-v5"])
def test_frames_rewards_and_ends_are_those_of_gymnasium(game, color):
    env = ours(game, 2, color=color, noop_max=0, clip_reward=False).lowered()
    twins = [reference(game) for _ in range(2)]
    env._env.set_seed(3)
    root = env.reset_leaves()
    firsts = [twin.reset(seed=3 + i)[0] for i, twin in enumerate(twins)]
    assert (root["observation"].numpy() == np.stack(firsts)).all()
    rng = np.random.default_rng(0)
    ends = 0
    for step in range(250):  # two environments
        actions = rng.integers(0, twins[0].action_space.n, 2)
        outcome = env.step_leaves({**root, "action": torch.from_numpy(actions)})
        fresh = outcome["observation"].clone()
        for i, twin in enumerate(twins):
            seen, reward, terminated, truncated, info = twin.step(actions[i])
            assert outcome["reward"][i].item() == reward
            assert outcome["terminated"][i].item() == terminated
            assert outcome["truncated"][i].item() == truncated
            assert outcome["lives"][i].item() == info["lives"]
            if not terminated:  # an end within a skip leaves frames of the step before in Gymnasium's buffer
                assert (outcome["observation"][i].numpy() == seen).all()
            if terminated or (step == 100 and i == 1):
                fresh[i] = torch.from_numpy(twin.reset()[0])
                ends += 1
        mask = outcome["done"].clone()
        mask[1] |= step == 100
        root = {key: value for key, value in outcome.items() if key != "reward"}
        if mask.any():
            root = env.reset_leaves(root, mask)
            assert (root["observation"] == fresh).all()
    assert ends > (5 if "Breakout" in game else 0)


def test_every_part_can_be_left_out():
    env = ours(
        "ALE/Pong-v5",
        color="rgb",
        noop_max=0,
        frame_skip=1,
        max_pool=False,
        grayscale=False,
        screen_size=None,
        stack=1,
        episodic_life=False,
        clip_reward=False,
    )
    raw = gymnasium.make("ALE/Pong-v5", **RAW)
    env.set_seed(0)
    root = env.reset()
    assert (root["observation"].movedim(0, -1).numpy() == raw.reset(seed=0)[0]).all()
    stepped = env.step(root.set("action", torch.tensor(2)))
    assert (stepped["next", "observation"].movedim(0, -1).numpy() == raw.step(2)[0]).all()


def test_the_whole_stack_conforms():
    check_transform(
        atari(noop_max=3),
        wrap=lambda one: TransformedEnv(
            GymEnv("ALE/Breakout-v5", num_envs=2, obs_type="grayscale", info_keys=["lives"], **RAW), one
        ),
    )


def test_rewards_are_clipped_and_episodes_begin_at_random():
    env = ours("ALE/Pong-v5", 4, color="grayscale")
    assert env.full_reward_spec["reward"].space.high.max() == 1
    env.set_seed(0)
    first = env.reset()["observation"]
    assert len({one.numpy().tobytes() for one in first}) > 1
    env.set_seed(0)
    assert torch.equal(env.reset()["observation"], first)


def test_screens_and_lives_must_be_there():
    with pytest.raises(SpecError, match=r"info_keys=\['lives'\]"):
        TransformedEnv(GymEnv("ALE/Pong-v5", **RAW), atari())
    with pytest.raises(SpecError, match="uint8 screens"):
        TransformedEnv(GymEnv("CartPole-v1"), atari(noop_max=0, episodic_life=False))
    with pytest.raises(ArgumentError, match="noop_max"):
        atari(noop_max=-1)
