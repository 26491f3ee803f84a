"""Several learners of one run: equal to one with all data, one log, exact continuation, and how they end."""

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rl_trainers_test_envs import FakeEnv, GuessEnv
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, RLError, WorkerError
from rl.core.specs import Bounded, Categorical, Unbounded
from rl.envs.transforms.normalize import RunningStats  # of VecNorm and RewardNorm
from rl.trainers import (
    Algorithm,
    BCConfig,
    Callback,
    CrossQConfig,
    DiscreteSACConfig,
    DQNConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    load_checkpoint,
    train_bc,
    train_crossq,
    train_dqn,
    train_ppo,
    train_sac,
)

# learners are started with one update in place of a run: their data would differ from that of one learner
from rl.trainers import _learners as learners
from rl.trainers.actors import on_policy_critic
from rl.trainers.algorithms import ppo, sac, td3
from rl.trainers.config import config_of_learner
from rl.trainers.loggers import read_metrics
from rl.trainers.loops.off_policy import OffPolicyUpdater

CONFIG = PPOConfig(
    env="test/guess", num_envs=4, total_frames=1024, frames_per_batch=128, minibatch_size=32, epochs=2, num_cells=(16,),
    eval_every=500, eval_episodes=2, final_eval_episodes=2, log_every=300, loggers=("csv",), learners=2,
)  # fmt: skip
SMALL = {
    "total_frames": 512, "num_envs": 2, "frames_per_batch": 64, "batch_size": 32, "num_cells": (16,),
    "learning_starts": 100, "buffer_size": 400, "eval_every": 250, "eval_episodes": 1, "final_eval_episodes": 1,
    "log_every": 100, "loggers": ("csv",), "learners": 2,
}  # fmt: skip


OBSERVATION = Unbounded((4,), dtype=torch.float32)  # networks convert others to that


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def mine(data):
    """Return the rows of this learner; all of them without others."""
    return data.chunk(learners.count())[learners.rank()]


def alone_and_together(update, config):
    """Return what an update returns in one learner, and in the first of two."""
    return update(replace(config, learners=1)), learners.train(lambda config, **_: update(config), config, {})


def weights(*modules):
    return torch.cat([p.detach().flatten() for module in modules for p in module.parameters()])


@pytest.mark.parametrize("settings", [{}, {"target_kl": 1e-3, "learning_rate": 0.03}, {"normalize_advantage": False}])
def test_ppo_with_two_learners_takes_the_steps_of_one_with_both_batches(settings, in_float64):
    env = FakeEnv(Categorical(3), OBSERVATION, batch=8)
    config = replace(CONFIG, num_envs=8, minibatch_size=128, epochs=3, **settings)
    torch.manual_seed(0)
    scales = torch.arange(1.0, 9).reshape(8, 1, 1)  # mean and deviation of the halves differ
    data = TensorDict(
        observation=torch.randn(8, 16, 4),
        advantage=torch.randn(8, 16, 1) * scales + scales,
        value_target=torch.randn(8, 16, 1),
        batch_size=[8, 16],
    )

    def update(config):
        torch.manual_seed(1)
        actor, critic = ppo.policy(config, env).double(), on_policy_critic(config, env).double()
        with torch.no_grad():
            batch = actor(data.clone())
        before = weights(actor, critic)
        metrics = ppo.updater(config_of_learner(config), env, actor, critic)(mine(batch))()
        return weights(actor, critic) - before, learners.mean_values(metrics)

    alone, together = alone_and_together(update, config)
    assert alone[0].abs().max() > 1e-3
    torch.testing.assert_close(together[0], alone[0], rtol=0, atol=1e-6)
    for name in ("loss_actor", "loss_critic", "entropy", "kl", "gradient_norm"):
        assert together[1][name] == pytest.approx(alone[1][name], abs=1e-6), name


@pytest.mark.parametrize(
    ("config", "loss", "action"),
    [
        (TD3Config(policy_noise=0.0, **SMALL), td3.td3_loss, Bounded(-1.0, 1.0, (2,), dtype=torch.float64)),
        (DiscreteSACConfig(**SMALL), sac.discrete_loss, Categorical(3)),
    ],
    ids=["td3", "discrete-sac"],
)
def test_off_policy_with_two_learners_takes_the_steps_of_one_with_both_batches(config, loss, action, in_float64):
    env = FakeEnv(action, OBSERVATION, batch=1)
    config = replace(config, max_grad_norm=0.1, learning_starts=0, frames_per_batch=4, utd_ratio=1.0)
    torch.manual_seed(0)
    terminated = torch.rand(64, 1) < 0.3
    data = TensorDict(
        observation=torch.randn(64, 4),
        action=torch.randint(3, (64,)) if type(action) is Categorical else torch.rand(64, 2) * 2 - 1,
        next=TensorDict(
            observation=torch.randn(64, 4),
            reward=torch.randn(64, 1) * torch.arange(64.0).unsqueeze(-1),
            terminated=terminated,
            done=terminated,
            batch_size=[64],
        ),
        batch_size=[64],
    )

    class Rows:
        """A buffer that always samples the same rows."""

        def __len__(self):
            return 1_000

        def sample(self):
            return mine(data).clone()

    def update(config):
        torch.manual_seed(1)
        policy = (td3.policy if loss is td3.td3_loss else sac.discrete_policy)(config, env).double()
        losses = loss(config, env, policy).double()
        before = weights(losses)
        share = config_of_learner(config)
        metrics = OffPolicyUpdater(share, losses, Rows(), 2, (0.9, 0.999))(4)()
        return weights(losses) - before, learners.mean_values(metrics)

    alone, together = alone_and_together(update, config)
    assert alone[0].abs().max() > 1e-4
    torch.testing.assert_close(together[0], alone[0], rtol=0, atol=1e-6)
    assert together[1] == pytest.approx(alone[1], abs=1e-6)


def test_running_statistics_are_those_of_the_values_of_all_learners():
    values = torch.randn(3, 2, 50, 4, dtype=torch.float64) * torch.arange(1.0, 7).reshape(3, 2, 1, 1) + 3

    def pooled(config, **_):
        norm = RunningStats(torch.Size([4]), 1.0)
        for batch in values[:, learners.rank()]:  # three batches [50, 4] of each learner
            norm.update(batch)
            norm.load_state_dict(learners.pool_statistics(norm.state_dict()))
        return norm.mean, norm.std(1e-6)

    mean, deviation = learners.train(pooled, CONFIG, {})
    torch.testing.assert_close(mean, values.flatten(0, 2).mean(0))
    torch.testing.assert_close(deviation, values.flatten(0, 2).std(0, correction=0))


def outcome(folder):
    """Return the metrics of a run, and the states of networks and generators of its learners at the end."""
    last = load_checkpoint(folder / "checkpoints" / "last.safetensors")
    rows = read_metrics(folder / "metrics.csv")
    generators = [one["rng"]["torch"] for one in (last["checkpoint"], *last["learners"]["states"])]
    metrics = {name: [*map(repr, values)] for name, values in rows.items() if not name.startswith("time/")}
    return metrics, {"policy": dict(last["policy"]), "generators": generators}


@pytest.mark.parametrize(
    ("train", "config"),
    [
        (train_ppo, CONFIG),
        (train_ppo, replace(CONFIG, env="CartPole-v1", normalize_observation=True, normalize_reward=True)),
        (train_ppo, replace(CONFIG, policy="lstm", recurrent_size=8, sequence_length=16)),
        (train_sac, SACConfig(**SMALL)),
        (train_dqn, DQNConfig(n_steps=3, **SMALL)),
    ],
    ids=["ppo", "statistics", "lstm", "sac", "dqn"],
)
def test_a_resumed_run_is_the_one_that_was_not_interrupted(train, config, tmp_path):
    train(config, out=tmp_path / "whole", display="none")
    stopped = train(config, out=tmp_path / "parts", display="none", should_stop=lambda frames: frames >= 256)
    assert stopped.interrupted
    assert stopped.train_frames == 256
    assert not train(config, resume=tmp_path / "parts", display="none").interrupted
    (metrics, states), (expected, wanted) = outcome(tmp_path / "parts"), outcome(tmp_path / "whole")
    assert metrics == expected
    torch.testing.assert_close(states, wanted, rtol=0, atol=0)


def test_learners_write_one_log_of_all_environments(tmp_path):
    result = train_ppo(CONFIG, out=tmp_path / "run", display="none")
    assert result.train_frames == 1024
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert rows["frames"] == [384.0, 640.0, 1024.0] or rows["frames"] == sorted(set(rows["frames"]))
    with (tmp_path / "run" / "episodes.csv").open() as file:
        assert len([*csv.DictReader(file)]) == 1024 / 8  # an episode of this environment has eight steps
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")["run"]["config"]["learners"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_learners_draw_different_random_numbers_and_have_equal_weights(tmp_path):
    train_ppo(CONFIG, out=tmp_path / "run", display="none")
    state = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")
    (other,) = state["learners"]["states"]
    assert not torch.equal(other["rng"]["torch"], state["checkpoint"]["rng"]["torch"])
    assert {*other["parts"]} == {"collector"}  # the weights are there once


class At(Callback):
    """Calls a function after a number of updates."""

    def __init__(self, count, action):
        self.count, self.action = count, action

    def on_update(self, run, metrics):
        self.count -= 1
        if self.count == 0:
            self.action(run)


def test_a_stop_of_the_first_learner_ends_all(tmp_path):
    ended = train_ppo(CONFIG, out=tmp_path / "a", display="none", callbacks=[At(3, lambda run: run.stop())])
    assert (ended.train_frames, ended.interrupted) == (384, False)
    saved = train_ppo(
        CONFIG, out=tmp_path / "b", display="none", callbacks=[At(3, lambda run: os.kill(os.getpid(), signal.SIGTERM))]
    )
    assert (saved.train_frames, saved.interrupted) == (384, True)
    goal = train_ppo(replace(CONFIG, stop_at_return=0.0), out=tmp_path / "c", display="none")
    assert goal.train_frames == 512


OWN_LOOP = Algorithm(PPOConfig, loop=lambda *_, **__: None, policy=ppo.policy)


def kill(run):
    os.kill(min(process.pid for process in multiprocessing.active_children()), signal.SIGKILL)


@pytest.mark.parametrize("count", [2, 4])
def test_a_killed_learner_ends_the_run_with_one_message(count, tmp_path, capfd):
    config = replace(CONFIG, checkpoint_every=128, learners=count)
    with pytest.raises(WorkerError, match=r"^learner 1 has ended \(exit code -9\)") as caught:
        train_ppo(config, out=tmp_path / "run", display="plain", callbacks=[At(2, kill)])
    assert caught.value.worker == 1
    out, err = capfd.readouterr()
    assert "128 frames are saved; to continue: rl train ppo --resume" in out
    assert not err
    assert not multiprocessing.active_children()
    assert train_ppo(config, resume=tmp_path / "run", display="none").train_frames == 1024


def test_an_error_of_a_learner_is_that_of_the_run(monkeypatch, tmp_path, capfd):
    step = GuessEnv.step

    def failing(self, tensordict):
        if learners.rank() == 1:
            raise ValueError("the simulator is broken")
        return step(self, tensordict)

    monkeypatch.setattr(GuessEnv, "step", failing)
    with pytest.raises(WorkerError, match=r"learner 1 raised .*the simulator is broken"):
        train_ppo(CONFIG, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()

    def broken(self, tensordict):
        out = step(self, tensordict)
        if learners.rank() == 1:
            out["next", "reward"][:] = np.nan
        return out

    monkeypatch.setattr(GuessEnv, "step", broken)
    with pytest.raises(RLError, match=r"^\('next', 'reward'\) of 'test/guess' became nan"):
        train_ppo(CONFIG, out=tmp_path / "run", display="none")
    assert not capfd.readouterr().err
    assert not multiprocessing.active_children()


def test_an_error_of_the_first_learner_ends_the_others(tmp_path, capfd):
    def fail(run):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train_ppo(CONFIG, out=tmp_path / "run", display="none", callbacks=[At(2, fail)])
    assert not multiprocessing.active_children()
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(CONFIG, num_envs=2, learners=4), r"learners must be a divisor of num_envs \(2\), got 4"),
        (lambda: replace(CONFIG, learners=0), "learners must be 1 or more, got 0"),
        (lambda: train_ppo(replace(CONFIG, minibatch_size=2)), "share of each of 2 learners does not fit: .*minibatch"),
        (lambda: train_ppo(replace(CONFIG, device="cuda:1")), "device must be cpu or cuda with learners"),
        (lambda: train_bc(BCConfig(learners=2, dataset="minari:x")), "learners must be left out with bc"),
        (lambda: train_crossq(CrossQConfig(num_envs=2, learners=2)), "learners must be left out with crossq"),
        (lambda: OWN_LOOP.train(replace(CONFIG)), "ppo has one learner: leave --learners out, got 2"),
    ],
)
def test_what_learners_cannot_share_is_rejected_before_anything_is_written(make, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        make()
    assert not [*tmp_path.iterdir()]


def test_the_number_of_learners_stays_in_a_resumed_run(tmp_path):
    train_ppo(CONFIG, out=tmp_path / "run", display="none", should_stop=lambda frames: True)
    with pytest.raises(CheckpointError, match="was begun with learners=2, not 1"):
        train_ppo(replace(CONFIG, learners=1), resume=tmp_path / "run", display="none")


def test_torchrun_starts_learners(tmp_path):
    options = "--env CartPole-v1 --num-envs 4 --frames-per-batch 64 --minibatch-size 32 --total-frames 256"
    options += " --eval-episodes 1 --final-eval-episodes 1 --loggers csv --preset none --out run"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start += ["-m", "rl.core", "train", "ppo", *options.split()]
    done = subprocess.run([*start, "--learners", "2"], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.count("run folder: run") == done.stdout.count("importing libraries") == 1
    assert read_metrics(tmp_path / "run" / "metrics.csv")["frames"][-1] == 256
    failed = subprocess.run(start, capture_output=True, text=True, check=False, timeout=300)
    assert "torchrun has started 2 processes: pass --learners 2, got 1" in failed.stderr
