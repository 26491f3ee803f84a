"""The recipes for data sets: they beat the policy of the data, resume exactly, and refuse what does not fit."""

import csv
import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, MissingExtraError, RLError, SpecError
from rl.core.registry import load
from rl.objectives import CQLLoss
from rl.replay import ReplayBuffer, TensorStorage
from rl.replay.datasets import load_dataset, register_dataset
from rl.trainers import DQNConfig, PPOConfig, evaluate, load_checkpoint, make_env, train_dqn, train_ppo
from rl.trainers.algorithms.act import ACT
from rl.trainers.algorithms.bc import BC
from rl.trainers.algorithms.cql import CQL
from rl.trainers.algorithms.diffusion_bc import DIFFUSION_BC
from rl.trainers.algorithms.dt import DT
from rl.trainers.algorithms.gail import GAIL
from rl.trainers.algorithms.iql import IQL
from rl.trainers.algorithms.sac import SAC
from rl.trainers.algorithms.td3 import TD3
from rl.trainers.algorithms.td3_bc import TD3_BC
from rl.trainers.cli import dataset
from rl.trainers.datasets import open_dataset, origin_of
from rl.trainers.replay import buffer_with_dataset
from rl.trainers.run import Run

#: module of the environments, which runs name
GYM = "rl_trainers_test_gym"
RECIPES = {recipe.name: recipe for recipe in (BC, TD3_BC, IQL, CQL, DT, DIFFUSION_BC, ACT)}


def targets(name, batch_size):
    """Random steps of the test environment Doubles: the reward is the closeness to (0.5, -0.5) of an action."""
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(2048, 2, generator=generator, dtype=torch.float64) * 2 - 1
    if name == "good":
        action = torch.tensor([0.5, -0.5], dtype=torch.float64) + 0.1 * action
    if name == "two":
        better = (torch.arange(2048) // 8 % 2 == 0).unsqueeze(-1)
        action = torch.where(better, torch.tensor([0.5, -0.5]), torch.tensor([-0.9, 0.9])).double()
    reward = 1 - (action - torch.tensor([0.5, -0.5])).abs().mean(-1, keepdim=True)
    over = (torch.arange(2048) % 8 == 7).unsqueeze(-1)
    seen = torch.ones(2048, 2)
    after = TensorDict(observation=seen, reward=reward.float(), done=over, terminated=over, batch_size=[2048])
    rows = TensorDict(observation=seen, action=action.float() if name == "floats" else action, batch_size=[2048])
    return ReplayBuffer(storage=TensorStorage(rows.set("next", after)), batch_size=batch_size)


@pytest.fixture(autouse=True)
def sources():
    register_dataset("targets", targets, replace=True)
    register_dataset("bare", bare, replace=True)


def config_of(name, data="random", **changes):
    settings = {
        "env": "rl_trainers_test_gym:Doubles-v0",
        "dataset": f"targets:{data}",
        "total_frames": 300,
        "batch_size": 64,
        "num_cells": (32,),
        "learning_rate": 3e-3,
        "gamma": 0.9,
        "eval_every": 300,
        "eval_episodes": 1,
        "final_eval_episodes": 1,
        "log_every": 100,
        "loggers": ("csv",),
    }
    if name in ("dt", "act"):
        settings |= {"num_cells": (), "n_embd" if name == "dt" else "hidden_dim": 16}
    if name == "dt":
        settings |= {"inference_context": 4, "n_layer": 1, "target_return": 8.0}
    if name == "diffusion-bc":
        settings |= {"num_steps": 20, "sampling_steps": 5}
    if name == "act":
        settings |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "kl_weight": 1.0}
    if name in ("diffusion-bc", "act"):
        settings |= {"chunk_size": 4, "replan_interval": 2}
    if name == "cql":
        settings |= {"min_q_weight": 0.5, "num_random": 4}
    if name == "td3-bc":
        settings |= {"alpha": 20.0}
    if name == "iql":
        settings |= {"temperature": 30.0, "expectile": 0.9}
    return RECIPES[name].config(**{**settings, **changes})


def train(name, config, **options):
    return (RECIPES | {"gail": GAIL})[name].train(config, display="none", **options)


@pytest.mark.parametrize("name", ["td3-bc", "iql", "cql"])
def test_offline_recipes_exceed_the_policy_of_the_data(name, tmp_path):
    data = targets("random", 1)[:]
    of_data = 8 * float(data["next", "reward"].mean())
    found = train(name, config_of(name, total_frames=1500), out=tmp_path / "run").eval_return_mean
    assert found > of_data + 1.0  # of 8 at best
    assert math.isclose(float(evaluate(tmp_path / "run", episodes=1, trust=GYM).mean()), found, rel_tol=1e-6)


def test_the_policy_of_cql_imitates_for_its_first_steps(tmp_path, monkeypatch):
    modes, forward = [], CQLLoss.forward
    monkeypatch.setattr(CQLLoss, "forward", lambda loss, td: (modes.append(loss.actor_bc), forward(loss, td))[1])
    train("cql", config_of("cql", actor_bc_frames=150), out=tmp_path / "run")  # rounded up to 200
    assert modes == [True] * 200 + [False] * 100


def test_the_learning_rate_rises_and_falls_over_the_gradient_steps(tmp_path):
    train("bc", config_of("bc", learning_rate=0.004, anneal_lr=True, warmup_frames=200), out=tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rates = [float(row["train/learning_rate"]) for row in csv.DictReader(file)]
    assert rates == pytest.approx([0.0, 0.002, 0.004])  # of 0, 100 and 200 steps, before each hundred


@pytest.mark.parametrize("name", ["bc", "dt", "diffusion-bc", "act"])
def test_cloning_repeats_the_actions_of_the_data(name, tmp_path):
    found = train(name, config_of(name, "good"), out=tmp_path / "run").eval_return_mean
    assert found > 7.4
    assert math.isclose(float(evaluate(tmp_path / "run", episodes=1, trust=GYM).mean()), found, rel_tol=1e-6)


def test_a_decision_transformer_acts_for_the_wanted_return(tmp_path):
    """Half of the episodes take actions with a reward of 1, the others with -0.4."""
    for target, expected in ((None, 8.0), (-3.2, -3.2)):  # None: the best return of the data
        config = config_of("dt", "two", target_return=target)
        found = train("dt", config, out=tmp_path / str(target)).eval_return_mean
        assert abs(found - expected) < 1


def test_a_stochastic_decision_transformer_imitates(tmp_path):
    config = config_of("dt", "good", stochastic=True)
    assert train("dt", config, out=tmp_path / "run").eval_return_mean > 7.2


def adversarial(data="good", **changes):
    settings = {
        "env": "rl_trainers_test_gym:Doubles-v0",
        "dataset": f"targets:{data}",
        "total_frames": 8192,
        "num_envs": 8,
        "frames_per_batch": 512,
        "minibatch_size": 128,
        "num_cells": (32,),
        "learning_rate": 3e-3,
        "gamma": 0.5,
        "discriminator_learning_rate": 1e-3,
        "eval_every": 8192,
        "eval_episodes": 1,
        "final_eval_episodes": 1,
        "loggers": ("csv",),
    }
    return GAIL.config(**{**settings, **changes})


def test_gail_takes_the_actions_of_the_expert(tmp_path):
    assert train("gail", adversarial(), out=tmp_path / "run").eval_return_mean > 6.5  # 5 untrained
    rows = (tmp_path / "run" / "metrics.csv").read_text()
    assert "train/imitation_reward" in rows


def test_gail_resumes_exactly(tmp_path):
    config = adversarial(total_frames=2048)
    whole = train("gail", config, out=tmp_path / "whole")
    train("gail", config, out=tmp_path / "half", should_stop=lambda frames: frames >= 1024)
    assert train("gail", config, resume=tmp_path / "half").eval_return_mean == whole.eval_return_mean
    one, two = (load_checkpoint(tmp_path / run / "checkpoints" / "last.safetensors") for run in ("whole", "half"))
    for part in ("policy", "discriminator"):
        for key, value in one[part].items():
            assert torch.equal(value, two[part][key]), key


def guesses(name, batch_size):
    """Steps of the test environment of guesses: the expert names the picture, others guess."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(2, (2048,), generator=generator)
    action = kind if name == "expert" else torch.randint(2, (2048,), generator=generator)
    over = (torch.arange(2048) % 8 == 7).unsqueeze(-1)
    pictures = torch.nn.functional.one_hot(kind, 2).float()
    reward = (action == kind).float().unsqueeze(-1)
    entries = {"observation": pictures.roll(-1, 0), "reward": reward, "done": over, "terminated": over}
    after = TensorDict(entries, batch_size=[2048])
    rows = TensorDict(observation=pictures, action=action, next=after, batch_size=[2048])
    return ReplayBuffer(storage=TensorStorage(rows), batch_size=batch_size)


@pytest.mark.parametrize("name", ["iql", "cql", "gail"])
def test_choices_are_learned(name, tmp_path):
    register_dataset("guesses", guesses, replace=True)
    if name == "gail":
        config = adversarial(env="test/guess", dataset="guesses:expert", total_frames=4096)
    else:
        weight = {"min_q_weight": 0.1} if name == "cql" else {"temperature": 10.0, "expectile": 0.7}
        config = RECIPES[name].config(
            env="test/guess",
            dataset="guesses:random",
            total_frames=300,
            batch_size=128,
            num_cells=(32,),
            learning_rate=1e-2,
            gamma=0.5,
            eval_episodes=2,
            final_eval_episodes=2,
            loggers=("csv",),
            **weight,
        )
    assert train(name, config, out=tmp_path / "run").eval_return_mean > 7.5  # of 8; 4 by chance


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


ONLINE = {
    "env": "rl_trainers_test_gym:Doubles-v0",
    "total_frames": 256,
    "num_cells": (32,),
    "batch_size": 64,
    "gamma": 0.9,
    "learning_starts": 0,
    "eval_every": 256,
    "eval_episodes": 1,
    "final_eval_episodes": 1,
    "loggers": ("csv",),
}


@pytest.mark.parametrize(("name", "recipe"), [("cql", SAC), ("td3-bc", TD3)])
def test_training_goes_on_in_the_environment(name, recipe, tmp_path):
    train(name, config_of(name), out=tmp_path / "offline")
    config = recipe.config(**ONLINE, dataset="targets:random", init=str(tmp_path / "offline"))
    online = recipe.train
    # without a gradient step that matters, it is the policy of the data set
    still = replace(config, learning_rate=1e-12, tau=1e-9)
    found = online(still, out=tmp_path / "still", display="none").eval_return_mean
    assert math.isclose(found, last_return(tmp_path / "offline"), rel_tol=1e-3)
    whole = online(config, out=tmp_path / "whole", display="none")
    online(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 128)
    resumed = online(config, resume=tmp_path / "half", display="none")
    assert resumed.eval_return_mean == whole.eval_return_mean


def test_the_first_steps_after_init_are_those_of_its_policy(tmp_path):
    """The rewards depend on actions alone, and without noise and gradient steps these are the policy's."""
    train("td3-bc", config_of("td3-bc"), out=tmp_path / "offline")
    config = TD3.config(**ONLINE | {"learning_starts": 256}, exploration_noise=0.0, init=str(tmp_path / "offline"))
    TD3.train(config, out=tmp_path / "run", display="none")
    with (tmp_path / "run" / "episodes.csv").open() as file:
        returns = [float(row["return"]) for row in csv.DictReader(file)]
    assert sum(returns) / len(returns) == pytest.approx(last_return(tmp_path / "offline"), rel=0.05)


def last_return(run):
    return json.loads((run / "summary.json").read_text())["last/return_mean"]


def test_a_data_set_is_part_of_each_minibatch(tmp_path):
    keys = ["observation", "action", ("next", "reward")]
    config = SAC.config(**ONLINE, dataset="targets:random", offline_fraction=0.25)
    buffer, both = buffer_with_dataset(config, make_env(config.env, 1, seed=0), keys, [*keys, ("next", "truncated")])
    assert both == keys
    new = targets("random", 1)[:8].select(*keys)
    new["next", "reward"].fill_(-7.0)
    buffer.extend(new)
    batch = buffer.sample()
    assert batch.shape == (64,)
    assert int((batch["next", "reward"] == -7.0).sum()) == 48
    with pytest.raises(ContractError, match=r"sac reads 'action'.* which bare:x lacks"):
        SAC.train(replace(config, dataset="bare:x"), out=tmp_path / "run", display="none")
    with pytest.raises(ArgumentError, match="n_steps must be 1 with a data set"):
        replace(config, n_steps=3)
    train("td3-bc", config_of("td3-bc", total_frames=10, eval_every=10), out=tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"sac cannot start from .* whose networks are others"):
        SAC.train(replace(config, init=str(tmp_path / "other")), out=tmp_path / "run", display="none")


def test_what_does_not_fit_is_rejected(tmp_path):
    with pytest.raises(ArgumentError, match="iql learns from a data set: pass --dataset"):
        train("iql", config_of("iql", dataset=""), out=tmp_path / "run")
    with pytest.raises(ContractError, match=r"bc reads 'action', which bare:x lacks; it has 'observation'"):
        train("bc", config_of("bc", dataset="bare:x"), out=tmp_path / "run")
    with pytest.raises(SpecError, match="dt trains vectors of bounded floats"):
        train("dt", config_of("dt", env="test/guess"), out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="gail learns from a data set: pass --dataset"):
        train("gail", adversarial(dataset=""), out=tmp_path / "run")
    for option in ({"with_lagrange": True}, {"actor_bc_frames": 100}):
        with pytest.raises(ArgumentError, match=f"leave {next(iter(option))} out"):
            train("cql", config_of("cql", env="test/guess", **option), out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="normalize_observation must be left out"):
        config_of("bc", normalize_observation=True)


def bare(name, batch_size):
    rows = TensorDict(observation=torch.ones(4, 2), batch_size=[4])
    return ReplayBuffer(storage=TensorStorage(rows), batch_size=batch_size)


def test_a_data_set_that_does_not_fit_into_memory_is_compared_with_the_environment():
    class Large(ReplayBuffer):
        def __getitem__(self, index):
            rows = super().__getitem__(index)
            assert rows.numel() < 5000
            return rows

    def large(name, batch_size):
        rows = TensorDict(
            observation=torch.ones(9000, 4), action=torch.zeros(9000, dtype=torch.int64), batch_size=[9000]
        )
        rows["action"][int(name)] = 5
        return Large(storage=TensorStorage(rows), batch_size=batch_size)

    register_dataset("large", large, replace=True)
    for last in ("0", "8999"):
        with pytest.raises(SpecError, match="'action' goes up to 5 there, and 'CartPole-v1' has 2 choices"):
            open_dataset(f"large:{last}", make_env("CartPole-v1", 1, seed=0), 8, "CartPole-v1")


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_recorded_and_learned_from(tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("RL_DATASETS", str(tmp_path / "rows"))
    train("bc", config_of("bc", "good"), out=tmp_path / "run")
    assert (
        dataset(
            ["record", str(tmp_path / "run"), "test/targets-v0", "--frames", "100", "--random", "0.5", "--trust", GYM]
        )
        == 0
    )
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
        batch_size=16,
        eval_every=96,
        eval_episodes=1,
        final_eval_episodes=1,
        loggers=("csv",),
    )
    train_dqn(config, out=tmp_path / "run", display="none")
    assert dataset(["record", str(tmp_path / "run"), "test/replay-v0", "--replay", "--trust", GYM]) == 0
    assert f"{size // 16 * 16} steps" in capsys.readouterr().out
    for episode in minari.load_dataset("test/replay-v0"):
        x, v, angle, turn = episode.observations.T
        np.testing.assert_allclose(x[1:], x[:-1] + 0.02 * v[:-1], atol=1e-6)
        np.testing.assert_allclose(angle[1:], angle[:-1] + 0.02 * turn[:-1], atol=1e-6)
        np.testing.assert_array_equal(np.diff(v) > 0, episode.actions == 1)
        assert episode.terminations[-1] ^ episode.truncations[-1]
        assert not (episode.terminations | episode.truncations)[:-1].any()
    train_dqn(replace(config, n_steps=3), out=tmp_path / "three", display="none")
    with pytest.raises(RLError, match="no replay buffer of single steps"):
        dataset(["record", str(tmp_path / "three"), "test/three-v0", "--replay", "--trust", GYM])


def test_names_are_checked_before_anything_is_played(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with pytest.raises(RLError, match="none is not a run folder"):
        dataset(["record", str(tmp_path / "none"), "bad name"])
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "config.yaml").touch()  # more than that is not read
    for name in ("p/a-v0", "bad name", "bad", "a/bad"):
        with pytest.raises(RLError, match=f"the data set '{name}' cannot be written.*pendulum/medium-v0"):
            dataset(["record", str(tmp_path / "none"), name])
    assert not list((tmp_path / "minari").rglob("data"))
    (tmp_path / "minari" / "pendulum" / "medium-v0").mkdir(parents=True)
    with pytest.raises(RLError, match="there is a data set 'pendulum/medium-v0'"):
        dataset(["record", str(tmp_path / "none"), "pendulum/medium-v0"])


def test_without_minari_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"rl-replay\[minari\].*SOURCE:NAME"):
        dataset(["info", "pendulum/medium-v0"])


@pytest.mark.parametrize("recipe", ["bc", "td3-bc", "iql", "cql", "dt", "act", "diffusion-bc", "sac", "td3", "gail"])
def test_a_data_set_of_another_environment_is_rejected(recipe, tmp_path):
    found = load("recipe", recipe)
    config = found.config(env="pendulum", dataset="targets:random", max_episode_steps=10)
    message = r"targets:random does not fit the environment: 'observation' is \[2\] there and \[3\] in 'pendulum'"
    with pytest.raises(SpecError, match=message):
        found.train(config, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()


def test_more_choices_than_the_environment_has_are_rejected(tmp_path):
    def three(name, batch_size=None, **settings):
        del name, settings
        after = TensorDict(observation=torch.ones(8, 4), reward=torch.ones(8, 1), done=torch.ones(8, 1).bool(),
                           terminated=torch.ones(8, 1).bool(), batch_size=[8])  # fmt: skip
        rows = TensorDict(observation=torch.ones(8, 4), action=torch.arange(8) % 3, next=after, batch_size=[8])
        return ReplayBuffer(storage=TensorStorage(rows), batch_size=batch_size)

    register_dataset("three", three, replace=True)
    config = load("recipe", "bc").config(env="CartPole-v1", dataset="three:x")
    with pytest.raises(SpecError, match="'action' goes up to 2 there, and 'CartPole-v1' has 2 choices"):
        load("recipe", "bc").train(config, out=tmp_path / "run", display="none")


def test_an_equal_data_set_of_another_environment_is_noted(tmp_path, capsys):
    def elsewhere(name, batch_size=None, **settings):
        data = targets(name, batch_size, **settings)
        data.minari_dataset = SimpleNamespace(env_spec=SimpleNamespace(id="Elsewhere-v3"))
        return data

    register_dataset("elsewhere", elsewhere, replace=True)
    config = replace(config_of("bc"), dataset="elsewhere:random", total_frames=100)
    load("recipe", "bc").train(config, out=tmp_path / "run", display="plain")
    assert "was recorded on Elsewhere-v3, and this run evaluates on rl_trainers_test_gym:Do" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("env", "known"),
    [(f"{GYM}:Doubles", None), ("CartPole-v1", "CartPole-v1"), ("gym/CartPole-v1", "CartPole-v1"), ("pendulum", None)],
)
def test_a_recorded_data_set_tells_its_environment(env, known, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("RL_DATASETS", str(tmp_path / "rows"))
    small = {"total_frames": 32, "num_envs": 2, "frames_per_batch": 32, "minibatch_size": 16, "epochs": 1,
             "max_episode_steps": 8, "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",)}  # fmt: skip
    train_ppo(PPOConfig(env=env, **small), out=tmp_path / "run", display="none")
    assert dataset(["record", str(tmp_path / "run"), "test/origin-v0", "--frames", "8", "--trust", GYM]) == 0
    assert getattr(minari.load_dataset("test/origin-v0").env_spec, "id", None) == known
    data, notes = load_dataset("minari:test/origin-v0"), []
    for other in (env, env.removeprefix("gym/"), "other:Env"):
        run = SimpleNamespace(config=SimpleNamespace(env=other), note=notes.append)
        Run.note_origin(run, origin_of(data), "minari:test/origin-v0")
    (note,) = notes
    assert f"was recorded on {env}, and this run evaluates on other:Env" in note
    assert note.endswith(f"--env {env}")


def test_a_data_set_that_is_not_there_has_a_remedy_for_the_command_line(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    config = replace(config_of("bc"), dataset="minari:no/such-v0")
    with pytest.raises(RLError, match=r"""python -c ".*load_dataset\('minari:no/such-v0', download=True\)", which"""):
        load("recipe", "bc").train(config, out=tmp_path / "run", display="none")
