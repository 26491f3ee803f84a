"""The command ``rl suggest-workers``."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.cli import main
from rl.envs import GymEnv

# the advice is tested for given speeds, where the command measures them
from rl.envs.cli import _batch, _frames_per_second, _report, _single


def test_it_measures_this_process_and_worker_processes(capsys):
    assert main(["suggest-workers", "cartpole", "--num-envs", "2", "--max-processes", "2", "--frames", "120"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cartpole: ")
    assert [line.split()[0] for line in lines[4:7]] == ["0", "1", "2"]
    assert lines[4].endswith("1.00")


@pytest.mark.parametrize(
    ("speeds", "advice"),
    [
        ([100.0, 80.0, 105.0], "do not pay"),
        (
            [100.0, 90.0, 180.0, 190.0],
            r"ParallelEnv(8, make, processes=2), or rl train --num-envs 8 --workers 2: 1.8 times",
        ),
    ],
)
def test_the_advice_is_the_fewest_processes_that_are_nearly_the_fastest(speeds, advice):
    assert advice in list(_report("env", "GymEnv", 8, dict(enumerate(speeds))))[-1]


class Own(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert isinstance(action, (int, np.integer))
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ("suggested:Own", "GymWrapper"),
        ("CartPole-v1", "GymEnv"),
        ("gymnasium:CartPole-v1", "GymEnv"),
        ("cartpole", "Car"),
    ],
)
def test_the_baseline_is_the_batch_that_recipes_train_on(env, kind, monkeypatch, capsys):
    module = ModuleType("suggested")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "suggested", module)
    assert main(["suggest-workers", env, "--num-envs", "3", "--max-processes", "1", "--frames", "60"]) == 0
    assert f"0 ({kind}" in capsys.readouterr().out


def test_environments_without_a_batch_have_the_actions_of_those_in_processes():
    def make(*, categorical_action_encoding=False):
        return GymEnv("CartPole-v1", categorical_action_encoding=categorical_action_encoding)

    assert _batch(make, 2).action_spec[0] == _single(make).action_spec


def test_measurements_take_turns():
    turns = []

    class Env:
        batch_size = torch.Size([2])

        def __init__(self, number):
            self.number = number

        def reset(self):
            return torch.zeros(2)

        def rollout(self, steps, **others):
            turns.append(self.number)
            return torch.zeros(2, steps)

        def step_mdp(self, root):
            return root

    assert len(_frames_per_second([Env(0), Env(1)], 1)) == 2
    assert turns == [0, 1] * (len(turns) // 2)
    assert len(turns) >= 8


def test_mistakes_are_named(capsys):
    assert main(["suggest-workers", "x.y:z"]) == 1
    assert "there is no environment 'x.y:z'" in capsys.readouterr().err
    assert main(["suggest-workers", "cartpole", "--frames", "0"]) == 2
