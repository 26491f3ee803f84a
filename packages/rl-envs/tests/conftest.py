"""Toy simulators. They are fixtures because a test folder is no package to import from."""

from __future__ import annotations

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.specs import Categorical, Composite, Unbounded
from rl.envs import EnvBase


class CountingGym(gym.Env):
    """Observes (number of the episode, step in it); episode k ends after ``lengths[k]`` steps, by turns."""

    metadata: ClassVar[dict] = {"render_modes": ["rgb_array"], "render_fps": 1}

    def __init__(self, lengths=(3, 2), nested=False, reuse=False, noise=False, render_mode=None):
        self.lengths, self.nested, self.reuse, self.noise = list(lengths), nested, reuse, noise
        self.render_mode = render_mode
        box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = (
            gym.spaces.Dict(place=box, inner=gym.spaces.Dict(step=gym.spaces.Discrete(1000, start=5)))
            if nested
            else box
        )
        self.action_space = gym.spaces.Discrete(3, start=1)
        self.episode, self.count, self.acts = -1, 0, []
        self.buffer = np.zeros(2, np.float32)
        self.closed = 0

    def _seen(self):
        value = (self.episode, self.count + (self.np_random.random() / 2 if self.noise else 0))
        if self.reuse:
            self.buffer[:] = value
            box = self.buffer
        else:
            box = np.array(value, np.float32)
        return {"place": box, "inner": {"step": 5 + self.count}} if self.nested else box

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.acts.append(int(action))
        self.count += 1
        over = self.count >= self.lengths[self.episode % len(self.lengths)]
        truncated = over and self.episode % 2 == 1
        return self._seen(), float(action), over and not truncated, truncated, {"twice": 2.0 * self.count}

    def render(self):
        return np.full((4, 5, 3), self.count, np.uint8)

    def close(self):
        self.closed += 1


class Counter(EnvBase):
    """Counts; element i ends after ``lengths[i]`` steps. Stateful: it holds the counts itself."""

    def __init__(self, lengths=(3,), batch=True, debug=False, **kwargs):
        super().__init__(batch_size=(len(lengths),) if batch else (), debug=debug)
        self.observation_spec = Composite(observation=Unbounded(1))
        self.action_spec = Categorical(2)
        self.lengths = torch.tensor(lengths).reshape(*self.batch_size, 1)
        self.counts = torch.zeros(*self.batch_size, 1)
        self.resets = 0

    def _reset(self, td):
        mask = None if td is None else td.get("_reset", None)
        zeros = torch.zeros_like(self.counts)
        self.counts = zeros if mask is None else torch.where(mask, zeros, self.counts)
        self.resets += 1
        return TensorDict(observation=self.counts.clone(), batch_size=self.batch_size)

    def _step(self, td):
        held = td.get("_step", None)
        more = 1.0 if held is None else held.reshape(self.counts.shape).float()
        self.counts = self.counts + more
        return TensorDict(
            observation=self.counts.clone(),
            reward=td["action"].float().unsqueeze(-1),
            terminated=self.counts >= self.lengths,
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed):
        pass


@pytest.fixture(scope="session")
def counting_gym():
    return CountingGym


@pytest.fixture(scope="session")
def counter():
    return Counter
