"""The recipes for data sets: they beat the policy of the data, resume exactly, and refuse what does not fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import RLError, SpecError
from rl.core.testing import check_recipe
from rl.replay import ReplayBuffer, TensorStorage
from rl.replay.datasets import register_dataset
from rl.trainers import DQNConfig, evaluate, load_checkpoint, train_dqn
from rl.trainers.cli import dataset
from rl.trainers.recipes.bc._config import BC
from rl.trainers.recipes.cql._config import CQL
from rl.trainers.recipes.iql._config import IQL
from rl.trainers.recipes.td3_bc._config import TD3_BC

RECIPES = {recipe.name: recipe for recipe in (BC, TD3_BC, IQL, CQL)}


def targets(name, batch_size):
    """Random steps of the test environment Doubles: the reward is the closeness to (0.5, -0.5) of an action."""
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(2048, 2, generator=generator, dtype=torch.float64) * 2 - 1
    if name == "good":
        action = torch.tensor([0.5, -0.5], dtype=torch.float64) + 0.1 * action
    reward = 1 - (action - torch.tensor([0.5, -0.5])).abs().mean(-1, keepdim=True)
    over = (torch.arange(2048) % 8 == 7).unsqueeze(-1)
    seen = torch.ones(2048, 2)
    after = TensorDict(observation=seen, reward=reward.float(), done=over, terminated=over, batch_size=[2048])
    rows = TensorDict(observation=seen, action=action.float() if name == "floats" else action, batch_size=[2048])
    return ReplayBuffer(storage=TensorStorage(rows.set("next", after)), batch_size=batch_size)


@pytest.fixture(autouse=True)
def sources():
    register_dataset("targets", targets)


def config_of(name, data="random", **changes):
    settings = {
        "env": "rl_trainers_test_gym:Doubles-v0",
        "dataset": f"targets:{data}",
        "total_frames": 300,
        "minibatch_size": 64,
        "hidden": (32,),
        "learning_rate": 3e-3,
        "gamma": 0.9,
        "eval_every": 300,
        "eval_episodes": 1,
        "final_eval_episodes": 1,
        "log_every": 100,
        "loggers": ("csv",),
    }
    if name == "cql":
        settings |= {"min_q_weight": 0.5, "num_random": 4}
    if name == "td3-bc":
        settings |= {"alpha": 20.0}
    if name == "iql":
        settings |= {"temperature": 30.0, "expectile": 0.9}
    return RECIPES[name].config(**{**settings, **changes})


def train(name, config, **options):
    return RECIPES[name].load_train()(config, display="none", **options)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_conforms(name):
    assert check_recipe(RECIPES[name]).not_exercised == ["training: call `train` in a test of its own"]


@pytest.mark.parametrize("name", ["td3-bc", "iql", "cql"])
def test_they_are_better_than_the_policy_of_the_data(name, tmp_path):
    data = targets("random", 1)[:]
    of_data = 8 * float(data["next", "reward"].mean())
    found = train(name, config_of(name, total_frames=1500), out=tmp_path / "run").eval_return_mean
    assert found > of_data + 1.0  # of 8 at best
    assert math.isclose(float(evaluate(tmp_path / "run", episodes=1).mean()), found, rel_tol=1e-6)


def test_cloning_repeats_the_actions_of_the_data(tmp_path):
    assert train("bc", config_of("bc", "good"), out=tmp_path / "run").eval_return_mean > 7.8


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    config = config_of(name)
    whole = train(name, config, out=tmp_path / "whole")
    train(name, config, out=tmp_path / "half", should_stop=lambda steps: steps >= 100)
    resumed = train(name, config, resume=tmp_path / "half")
    assert resumed.eval_return_mean == whole.eval_return_mean
    one, two = (load_checkpoint(tmp_path / run / "checkpoints" / "last.safetensors") for run in ("whole", "half"))
    for key, value in one["policy"].items():
        assert torch.equal(value, two["policy"][key]), key


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(SpecError, match="iql learns from a data set: give --dataset"):
        train("iql", config_of("iql", dataset=""), out=tmp_path / "run")
    register_dataset(
        "bare", lambda name, batch_size: ReplayBuffer(storage=TensorStorage(rows()), batch_size=batch_size)
    )
    with pytest.raises(SpecError, match=r"bc reads 'action', which bare:x lacks; it has 'observation'"):
        train("bc", config_of("bc", dataset="bare:x"), out=tmp_path / "run")
    with pytest.raises(SpecError, match="normalize_observation must be left out"):
        config_of("bc", normalize_observation=True)


def rows():
    return TensorDict(observation=torch.ones(4, 2), batch_size=[4])


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_recorded_and_learned_from(tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("RL_DATASETS", str(tmp_path / "rows"))
    train("bc", config_of("bc", "good"), out=tmp_path / "run")
    assert dataset(["record", str(tmp_path / "run"), "test/targets-v0", "--frames", "100", "--random", "0.5"]) == 0
    assert "test/targets-v0: 128 steps in 16 episodes" in capsys.readouterr().out
    assert dataset(["info", "test/targets-v0"]) == 0
    found = capsys.readouterr().out
    assert "128 steps in 16 episodes" in found
    assert "'action': torch.float64 [2]" in found
    config = config_of("bc", dataset="minari:test/targets-v0", total_frames=100)
    assert train("bc", config, out=tmp_path / "again").train_frames == 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [96, 40])
def test_a_replay_buffer_is_recorded_step_by_step(size, tmp_path, monkeypatch, capsys):
    """Observations of CartPole follow from each other by its equations; a buffer of 40 steps lost the first ones."""
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    config = DQNConfig(
        total_frames=96,
        num_envs=2,
        frames_per_batch=16,
        buffer_size=size,
        minibatch_size=16,
        eval_every=96,
        eval_episodes=1,
        final_eval_episodes=1,
        loggers=("csv",),
    )
    train_dqn(config, out=tmp_path / "run", display="none")
    assert dataset(["record", str(tmp_path / "run"), "test/replay-v0", "--replay"]) == 0
    assert f"{size // 16 * 16} steps" in capsys.readouterr().out
    for episode in minari.load_dataset("test/replay-v0"):
        x, v, angle, turn = episode.observations.T
        np.testing.assert_allclose(x[1:], x[:-1] + 0.02 * v[:-1], atol=1e-6)
        np.testing.assert_allclose(angle[1:], angle[:-1] + 0.02 * turn[:-1], atol=1e-6)
        np.testing.assert_array_equal(np.diff(v) > 0, episode.actions == 1)
        assert episode.terminations[-1] ^ episode.truncations[-1]
        assert not (episode.terminations | episode.truncations)[:-1].any()
    train_dqn(replace(config, n_step=3), out=tmp_path / "three", display="none")
    with pytest.raises(RLError, match="no replay buffer of single steps"):
        dataset(["record", str(tmp_path / "three"), "test/three-v0", "--replay"])
