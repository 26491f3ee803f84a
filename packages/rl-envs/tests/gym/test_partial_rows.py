"""Partial resets of several Gymnasium environments: rows written in place against the general path."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl.core.errors import ContractError, ShapeError
from rl.envs import GymEnv, GymWrapper

SPACES = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "double": spaces.Box(-1, 1, (2, 2), np.float64),
    "bytes": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(4),
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))),
    "dict": spaces.Dict(a=spaces.Discrete(3), b=spaces.Dict(c=spaces.Box(0, 1, (2,), np.float32))),
}


class Draws(gym.Env):
    """Observes what its space draws."""

    def __init__(self, space):
        self.observation_space, self.action_space = copy.deepcopy(space), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def vector(space):
    return gym.vector.SyncVectorEnv([lambda: Draws(space) for _ in range(3)])


@pytest.mark.parametrize("make", [lambda space: [Draws(space) for _ in range(3)], vector], ids=["list", "vector"])
@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("marked", [[0, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1]])
def test_rows_written_in_place_equal_the_general_path(make, name, categorical, marked, monkeypatch):
    results = []
    for in_place in (True, False):
        env = GymWrapper(make(SPACES[name]), categorical_action_encoding=categorical)
        if not in_place:
            monkeypatch.setattr(GymWrapper, "_reset_rows", lambda *_: None)
        env.set_seed(0)
        leaf = env.lowered()
        root = leaf.reset_leaves()
        torch.manual_seed(0)
        root["action"] = env.action_spec.rand()
        current = leaf.step_leaves(root)
        del current["reward"]
        current["done"] = torch.tensor([[True], [False], [True]])  # not the same as the mask
        current = {k: v + 0.25 if v.is_floating_point() else v for k, v in current.items()}  # a user may change rows
        results.append(leaf.reset_leaves(current, torch.tensor(marked).bool().unsqueeze(-1)))
    written, general = results
    assert written.keys() == general.keys()
    for key, rows in general.items():
        assert written[key].dtype == rows.dtype
        assert torch.equal(written[key], rows), key


def test_rows_that_stay_keep_their_gradient():
    leaf = GymEnv("CartPole-v1", num_envs=3).lowered()
    current = leaf.reset_leaves()
    observed = current["observation"].clone().requires_grad_()
    fresh = leaf.reset_leaves({**current, "observation": observed}, torch.tensor([[True], [False], [False]]))
    fresh["observation"].sum().backward()
    assert observed.grad.tolist() == [[0.0] * 4, [1.0] * 4, [1.0] * 4]


def test_what_does_not_fit_is_named_before_a_simulator_moves(counting_gym):
    env = GymWrapper([counting_gym([5]) for _ in range(2)])
    leaf = env.lowered()
    current = leaf.reset_leaves()
    for mask in (torch.tensor([True, False]), torch.ones(3, 1).bool(), torch.tensor([[1], [0]])):
        with pytest.raises(ShapeError, match=r"must be torch.bool \(2, 1\)"):
            leaf.reset_leaves(current, mask)
    del current["observation"]
    with pytest.raises(ContractError, match="'observation' of what is not reset"):
        leaf.reset_leaves(current, torch.tensor([[True], [False]]))
