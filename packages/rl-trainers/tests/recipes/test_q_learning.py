"""The recipes in dqn's loop: they learn, resume exactly, refuse what they cannot train, and build what they claim."""

import pytest
import torch
from rl_trainers_test_envs import FakeEnv
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Bounded, OneHot, Unbounded
from rl.modules import NoisyLinear, reset_noise, set_exploration_type
from rl.trainers import (
    C51Config,
    DQNConfig,
    QRDQNConfig,
    RainbowConfig,
    evaluate,
    load_checkpoint,
    train_c51,
    train_dqn,
    train_qrdqn,
    train_rainbow,
)
from rl.trainers.algorithms.dqn import C51, QRDQN, RAINBOW

RECIPES = {
    "c51": (C51, C51Config, train_c51),
    "qrdqn": (QRDQN, QRDQNConfig, train_qrdqn),
    "rainbow": (RAINBOW, RainbowConfig, train_rainbow),
}
SMALL = {
    "env": "test/guess",
    "num_envs": 4,
    "total_frames": 512,
    "frames_per_batch": 64,
    "batch_size": 32,
    "learning_starts": 128,
    "buffer_size": 512,
    "num_cells": (16,),
    "eval_every": 256,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "log_every": 100,
    "loggers": ("csv",),
}
ATOMS = {"c51": {"v_min": 0.0, "v_max": 10.0, "atoms": 21}, "rainbow": {"v_min": 0.0, "v_max": 10.0, "atoms": 21}}


def config_of(name, **settings):
    return RECIPES[name][1](**{**SMALL, **ATOMS.get(name, {}), **settings})


def policies(folder, *runs):
    found = [load_checkpoint(folder / run / "checkpoints" / "last.safetensors")["policy"] for run in runs]
    return [torch.cat([value.flatten() for value in policy.values()]) for policy in found]


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_learns_to_guess(name, tmp_path):
    config = config_of(name, total_frames=4096, learning_rate=0.01, final_eval_episodes=5, buffer_size=4096)
    assert RECIPES[name][2](config, out=tmp_path / "run", display="none").eval_return_mean == 8.0
    assert evaluate(tmp_path / "run", episodes=2).tolist() == [8.0, 8.0]


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    train = RECIPES[name][2]
    config = config_of(name, utd_ratio=0.1)
    whole = train(config, out=tmp_path / "whole", display="none")
    train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 320)
    train(config, resume=tmp_path / "half", display="none")
    assert whole.train_frames == 512
    assert torch.equal(*policies(tmp_path, "whole", "half"))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("shape", [(36, 36, 3), (6, 6, 4)], ids=str)
def test_policies_read_images_and_write_distributions(name, shape):
    spec = Bounded(0, 255, shape=shape, dtype=torch.uint8)
    env = FakeEnv(OneHot(3), observation=spec)
    config = config_of(name, observation_layout="channels-last")
    policy = RECIPES[name][0].make_policy(config, env)
    out = policy(TensorDict(observation=spec.expand(5, *shape).rand(), batch_size=[5]))
    assert out["action"].shape == (5, 3)
    assert out["action_value"].shape == ((5, 3, 25) if name == "qrdqn" else (5, 21, 3))


@pytest.mark.parametrize("name", RECIPES)
def test_what_cannot_be_trained_is_rejected(name):
    with pytest.raises(SpecError, match=f"{name} trains one choice"):
        RECIPES[name][0].make_policy(config_of(name), FakeEnv(Unbounded(2)))


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (C51Config, {"v_min": 1.0, "v_max": 1.0}, r"v_max must be above v_min \(1\.0\), got 1\.0"),
        (C51Config, {"atoms": 1}, "atoms must be 2 or more"),
        (QRDQNConfig, {"quantiles": 0}, "quantiles must be above 0"),
        (DQNConfig, {"dueling": True, "num_cells": ()}, "dueling must be false without hidden layers"),
    ],
)
def test_options_that_do_not_fit_are_rejected(config, change, message):
    with pytest.raises(ArgumentError, match=message):
        config(**change)


def test_rainbow_has_its_six_parts():
    config = RainbowConfig()
    assert (config.double_dqn, config.dueling, config.noisy, config.n_steps) == (True, True, True, 3)
    assert config.sampler.startswith("prioritized")
    assert config.eps_init == config.eps_end == 0
    policy = RAINBOW.make_policy(config_of("rainbow"), FakeEnv(OneHot(3), observation=Unbounded(4)))
    assert not [m for m in policy.modules() if type(m) is torch.nn.Linear]
    assert [m for m in policy.modules() if isinstance(m, NoisyLinear)]
    td = TensorDict(observation=torch.randn(4), batch_size=[])
    with set_exploration_type("random"):
        first = policy(td.clone())["action_value"]
        policy.apply(reset_noise)
        second = policy(td.clone())["action_value"]
    with set_exploration_type("deterministic"):
        third = policy(td.clone())["action_value"]
        policy.apply(reset_noise)
        fourth = policy(td.clone())["action_value"]
    assert not torch.equal(first, second)
    assert torch.equal(third, fourth)


def test_dqn_with_a_dueling_network_of_noisy_layers_resumes(tmp_path):
    config = DQNConfig(**{**SMALL, "num_cells": (16, 16)}, dueling=True, noisy=True, utd_ratio=0.1)
    train_dqn(config, out=tmp_path / "whole", display="none")
    train_dqn(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 320)
    train_dqn(config, resume=tmp_path / "half", display="none")
    assert torch.equal(*policies(tmp_path, "whole", "half"))
