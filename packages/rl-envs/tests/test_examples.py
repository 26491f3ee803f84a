"""What a first page about environments shows."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.envs import Compose, GymEnv, PendulumEnv, SerialEnv, StepCounter, TransformedEnv


def test_a_first_rollout_with_lazy_layers():
    env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=200))
    policy = TensorDictModule(
        nn.Sequential(nn.LazyLinear(64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh()),
        in_keys=["observation"],
        out_keys=["action"],
    )
    rollout = env.rollout(max_steps=32, policy=policy)
    assert rollout.batch_size == torch.Size([32])
    assert rollout["next", "reward"].shape[:1] == torch.Size([32])


def test_reset_step_and_specs():
    env = GymEnv("Pendulum-v1")
    assert env.observation_spec["observation"].shape[-1] == 3
    reset = env.reset()
    reset["action"] = env.action_spec.rand()
    stepped = env.step(reset)
    assert stepped is reset
    assert "TransformedEnv" in str(TransformedEnv(env, Compose(StepCounter(max_steps=200))))


def test_several_in_one_batch():
    env = SerialEnv(4, lambda: GymEnv("Pendulum-v1"))
    td = env.reset()
    assert td.batch_size == torch.Size([4])
    td["action"] = env.action_spec.rand()
    assert env.step(td).batch_size == torch.Size([4])
    env.close()


def test_the_readme_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "torch.Size([4, 50]) [None, 'time']" in capsys.readouterr().out
