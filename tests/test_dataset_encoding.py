"""A data set of Minari holds what the wrapper of its environment writes and reads, for each kind of space."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as S

from rl.envs import GymWrapper
from rl.replay.datasets import MinariExperienceReplay

SPACES = {
    "discrete": S.Discrete(3, start=1),
    "negative": S.Discrete(4, start=-2),
    "multi-discrete": S.MultiDiscrete([3, 2], start=[1, -5]),
    "multi-binary": S.MultiBinary(3),
    "box": S.Box(-1, 1, (2,)),
    "image": S.Box(0, 255, (2, 3), np.uint8),
    "wide": S.Box(0, 60_000, (2,), np.uint16),
    "wider": S.Box(0, 2**32 - 1, (2,), np.uint32),
    "half": S.Box(-1, 1, (2,), np.float16),
    "number": S.Box(-1, 1, ()),
    "bits": S.MultiBinary((2, 3)),
    "table": S.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "constant": S.Box(np.array([1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64),
    "dots": S.Dict({"a.b": S.Discrete(2, start=3), "ü": S.Box(-1, 1, (1,))}),
    "dict": S.Dict(a=S.Discrete(3, start=1), b=S.Dict(c=S.MultiDiscrete([2, 2], start=[1, 1]))),
    "tuple": S.Tuple((S.Discrete(3, start=1), S.Box(-1, 1, (1,)))),
}


class Sampled(gym.Env):
    """Observations are samples; keeps what it returned and was given."""

    def __init__(self, space):
        self.observation_space, self.action_space = space, space
        self.seen, self.acts = [], []

    def _see(self):
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action):
        self.acts.append(action)
        return self._see(), 1.0, False, len(self.acts) == 5, {}


def stacked(values, space):
    if isinstance(space, S.Dict):
        return {name: stacked([value[name] for value in values], part) for name, part in space.items()}
    if isinstance(space, S.Tuple):
        return tuple(stacked([value[i] for value in values], part) for i, part in enumerate(space))
    return np.array(values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPACES)
def test_rows_are_the_steps_that_the_wrapper_wrote(name, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    space = SPACES[name]
    sim = Sampled(space)
    steps = GymWrapper(sim, categorical_action_encoding=True).rollout(5)
    assert all(space.contains(action) for action in sim.acts)
    episode = minari.data_collector.EpisodeBuffer(
        id=0,
        observations=stacked(sim.seen, space),
        actions=stacked(sim.acts, space),
        rewards=[1.0] * 5,
        terminations=[False] * 5,
        truncations=[False] * 4 + [True],
    )
    minari.create_dataset_from_buffers("test/own-v0", [episode], observation_space=space, action_space=space)
    rows = MinariExperienceReplay("test/own-v0", root=tmp_path)[:]
    assert set(rows.keys(True, True)) - {"episode", "index"} == set(steps.keys(True, True)) - {
        "done",
        "terminated",
        "truncated",
    }
    for key in set(rows.keys(True, True)) - {"episode", "index"}:
        assert rows[key].dtype == steps[key].dtype
        assert torch.equal(rows[key], steps[key]), key
