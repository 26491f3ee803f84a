"""What the recipes train on, and what they say about the rest."""

import re

import pytest
import torch
from rl_trainers_test_envs import FakeEnv
from torch import nn

from rl.core.errors import SpecError
from rl.core.registry import load
from rl.core.specs import Bounded, Categorical, Unbounded
from rl.trainers import DQNConfig, PPOConfig, make_env, train_dqn, train_ppo
from rl.trainers.algorithms.dqn import dqn_policy
from rl.trainers.algorithms.ppo import policy as ppo_policy
from rl.trainers.loggers import read_metrics
from rl.trainers.networks import described_observations, network

MODULE = "rl_trainers_test_gym:"
TINY = {"total_frames": 256, "num_envs": 2, "eval_every": 256, "eval_episodes": 1, "final_eval_episodes": 1,
        "loggers": ("csv",), "num_cells": (8,), "max_episode_steps": 20}  # fmt: skip
RECIPES = {
    "ppo": (train_ppo, PPOConfig(**TINY, frames_per_batch=128, minibatch_size=64, epochs=1)),
    "dqn": (
        train_dqn,
        DQNConfig(**TINY, learning_starts=64, utd_ratio=0.05, batch_size=16, buffer_size=200),
    ),
}
SEEN = ["SeenDiscrete-v0", "SeenChoices-v0", "SeenBits-v0", "SeenDouble-v0", "SeenImage-v0", "SeenTuple-v0", "Dict-v0"]


def tiny(recipe, **settings):
    train, config = RECIPES[recipe]
    return train, type(config)(**{**vars(config), **settings})


@pytest.mark.parametrize("env", [*(MODULE + name for name in SEEN), "FrozenLake-v1"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_kind_of_observation_is_trained_on(recipe, env, tmp_path):
    train, config = tiny(recipe, env=env)
    assert train(config, out=tmp_path / "run", display="none").train_frames == 256
    losses = {k: v for k, v in read_metrics(tmp_path / "run" / "metrics.csv").items() if k.startswith("train/loss")}
    assert losses
    assert all(torch.tensor(column[-1:]).isfinite().all() for column in losses.values())


def test_a_large_image_goes_through_the_layers_of_mnih_et_al():
    """8 x 8 by 4, 4 x 4 by 2, 3 x 3 by 1, and 512 units; the reference is torch's own layers."""
    env = FakeEnv(Categorical(6), Bounded(0, 255, (4, 84, 84), dtype=torch.uint8))
    net = network(env, out_features=6, num_cells=(512,), activation="relu", last_gain=None, device="cpu")
    reference = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip
    ours, theirs = list(net.parameters()), list(reference.parameters())
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    reference.load_state_dict(dict(zip(reference.state_dict(), ours, strict=True)))
    image = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    torch.testing.assert_close(net(image), reference(image / 255))


REMEDIES = [
    pytest.param("dqn", "Pendulum-v1", 2, id="dqn-vector-of-one"),
    pytest.param("dqn", MODULE + "Scalar-v0", 1, id="dqn-number"),
    pytest.param("ppo", MODULE + "Scalar-v0", 1, id="ppo-number"),
    pytest.param("ppo", MODULE + "Matrix-v0", 1, id="ppo-matrix"),
    pytest.param("ppo", MODULE + "Text-v0", 1, id="text"),
    pytest.param("dqn", MODULE + "NestedText-v0", 1, id="nested-text"),
]


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # Gymnasium, about numbers
@pytest.mark.parametrize(("recipe", "env", "count"), REMEDIES)
def test_the_transforms_that_an_error_names_make_the_environment_trainable(recipe, env, count, tmp_path):
    train, config = tiny(recipe, env=env)
    with pytest.raises(SpecError, match="--transform") as told:
        train(config, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()
    named = tuple(re.findall(r"--transform '([^']*)'", str(told.value)))
    assert len(named) == count
    train, config = tiny(recipe, env=env, transform=named)
    assert train(config, out=tmp_path / "run", display="none").train_frames == 256


@pytest.mark.parametrize(
    ("policy", "config", "env", "message"),
    [
        pytest.param(ppo_policy, PPOConfig(), "HalfOpen-v0", "'clip:{in_keys_inv: [action], low: LOW, high: HIGH}'",
                     id="half-open"),
        pytest.param(ppo_policy, PPOConfig(), "Several-v0", "make them one with a transform of your own",
                     id="several"),
        pytest.param(ppo_policy, PPOConfig(), "Integers-v0", "with a transform of your own", id="integers"),
        pytest.param(dqn_policy, DQNConfig(), "Integers-v0", "with a transform of your own", id="dqn-integers"),
    ],
)  # fmt: skip
def test_other_actions_are_rejected_with_what_to_do(policy, config, env, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        policy(config, make_env(MODULE + env, 2, seed=0))


def test_bounds_can_be_set_with_the_named_transform():
    env = make_env(MODULE + "HalfOpen-v0", 2, seed=0, transform=["clip:{in_keys_inv: [action], low: 0.0, high: 3.0}"])
    action = ppo_policy(PPOConfig(), env)(env.reset())["action"]
    assert ((action >= 0) & (action <= 3)).all()


def goal_env(action, **more):
    seen = {"achieved_goal": Unbounded((2,)), "desired_goal": Unbounded((2,)), "observation": Unbounded((4,)), **more}
    return FakeEnv(action, seen)


@pytest.mark.parametrize(
    "recipe", ["ppo", "a2c", "impala", "dqn", "c51", "qrdqn", "discrete-sac", "sac", "td3", "bc", "iql"]
)
def test_goals_are_read_beside_the_observation(recipe):
    action = Bounded(-1, 1, (2,)) if recipe in ("sac", "td3", "bc", "iql") else Categorical(3)
    found = load("recipe", recipe)
    policy = found.make_policy(found.config(num_cells=(8,)), goal_env(action))
    assert set(policy.in_keys) == {"observation", "desired_goal", "achieved_goal"}


def test_what_is_left_out_is_reported():
    """One observation in three, of which one has a name that transforms use for bookkeeping."""
    env = FakeEnv(
        Categorical(3), {"observation": Unbounded((4,)), "speed": Unbounded((2,)), "step_count": Unbounded((1,))}
    )
    line = described_observations(env)
    assert line.startswith("reads 'observation': float32 [4] as a vector. It leaves out 'speed', 'step_count'; ")
    assert "--transform 'cat-tensors:{in_keys: [observation, speed, step_count], out_key: observation}'" in line
    assert "leaves out" not in described_observations(goal_env(Categorical(3)))
    assert "leaves out 'speed'" in described_observations(goal_env(Categorical(3), speed=Unbounded((2,))))
