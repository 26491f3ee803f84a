"""`IsaacLabWrapper` on an environment with the interface that Isaac Lab documents."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.errors import RLError, SpecError
from rl.core.testing import check_env
from rl.envs import IsaacLabWrapper, StepCounter, TransformedEnv

COUNT = 3


class Scene:
    """A ``ManagerBasedRLEnv``: element i adds its actions up, ends at 2 + i, and is cut after 5 steps.

    The groups are ``policy`` (position, noise) and ``critic``, a dictionary. Elements that have ended are reset within
    the step.
    """

    device = "cpu"
    num_envs = COUNT
    single_action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, *, final: bool = False):
        self.final, self.resets, self.generator = final, [], torch.Generator()
        self.unwrapped, self.closed = self, False
        image = SimpleNamespace(data=SimpleNamespace(output={"rgb": torch.zeros(COUNT, 4, 4, 3, dtype=torch.uint8)}))
        self.scene = SimpleNamespace(sensors={"tiled_camera": image})

    def _begin(self, ids):
        self.place[ids] = torch.rand(len(ids), 1, generator=self.generator) / 10
        self.count[ids] = 0

    def _seen(self):
        self.scene.sensors["tiled_camera"].data.output["rgb"][:] = (self.place * 50).to(torch.uint8)[..., None, None]
        return {"policy": torch.cat([self.place, self.place**2], -1), "critic": {"count": self.count.float()}}

    def reset(self, seed=None, env_ids=None, options=None):
        if seed is not None:
            self.generator.manual_seed(seed)
        if env_ids is None:
            self.place, self.count = torch.zeros(COUNT, 1), torch.zeros(COUNT, 1, dtype=torch.long)
            env_ids = torch.arange(COUNT)
        self.resets.append(env_ids.tolist())
        self._begin(env_ids)
        return self._seen(), {}

    def step(self, action):
        assert action.shape == (COUNT, 1)
        self.place, self.count = self.place + action, self.count + 1
        terminated = (self.place > 2 + torch.arange(COUNT)[:, None])[:, 0]
        truncated = (self.count >= 5)[:, 0] & ~terminated
        reward, extras, over = self.place[:, 0].clone(), {}, terminated | truncated
        if bool(over.any()):
            if self.final:
                extras["final_obs"] = self._seen()
            self._begin(over.nonzero().flatten())
        return self._seen(), reward, terminated, truncated, extras

    def close(self):
        self.closed = True


class Direct(Scene):
    """A ``DirectRLEnv``, whose reset has no ``env_ids``."""

    def reset(self, seed=None, options=None):
        return super().reset(seed)


@pytest.mark.parametrize("final", [True, False])
def test_the_last_observation_is_that_of_the_simulator_or_the_one_before(final):
    env, raw = IsaacLabWrapper(Scene(final=final)), Scene(final=final)
    env.set_seed(0)
    root, (seen, _) = env.reset(), raw.reset(seed=0)
    for _ in range(1000):
        action = torch.rand(COUNT, 1)
        before, now = seen["policy"], raw.place + action
        seen, reward, terminated, truncated, _ = raw.step(action)
        over = (terminated | truncated)[:, None]
        stepped, root = env.step_and_maybe_reset(root.set("action", action))
        last = torch.cat([now, now**2], -1) if final else before
        torch.testing.assert_close(stepped["next", "policy"], torch.where(over, last, seen["policy"]))
        torch.testing.assert_close(stepped["next", "reward"], reward[:, None])
        assert stepped["next", "terminated"].flatten().tolist() == terminated.tolist()
        assert stepped["next", "truncated"].flatten().tolist() == truncated.tolist()
        torch.testing.assert_close(root["policy"], seen["policy"])
        torch.testing.assert_close(root["critic", "count"], seen["critic"]["count"])
        assert not root["done"].any()
    assert len(raw.resets) == 1
    assert len(env.isaac_env.resets) == 2  # one for the specs: finished elements reset themselves


def test_running_elements_are_reset_by_number_or_refused():
    env = IsaacLabWrapper(Scene())
    root = env.step(env.reset().set("action", torch.ones(COUNT, 1)))["next"]
    part = root.clone().set("_reset", torch.tensor([[False], [True], [False]]))
    again = env.reset(part)
    assert env.isaac_env.resets[-1] == [1]
    assert again["policy"][1, 0] < 0.2
    assert (again["policy"][[0, 2], 0] > 1).all()
    direct = IsaacLabWrapper(Direct())
    root = direct.step(direct.reset().set("action", torch.ones(COUNT, 1)))["next"]
    with pytest.raises(RLError, match="resets running elements only all at once"):
        direct.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))


def test_conformance_and_transforms():
    check_env(lambda: IsaacLabWrapper(Scene()))
    check_env(lambda: IsaacLabWrapper(Scene(final=True), from_tiled_camera=True))
    data = TransformedEnv(IsaacLabWrapper(Scene()), StepCounter()).rollout(20, break_when_any_done=False)
    assert data["next", "step_count"].max() <= 5
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(IsaacLabWrapper(Scene()), frames_per_batch=60).collect()
    assert batch["collector", "traj_ids"].max() >= 3 * COUNT


def test_a_camera_writes_pixels():
    env = IsaacLabWrapper(Scene(), from_tiled_camera=True)
    assert env.rollout(2)["pixels"].shape == (COUNT, 2, 4, 4, 3)
    with pytest.raises(SpecError, match="no tiled camera 'top' with images 'rgb'"):
        IsaacLabWrapper(Scene(), from_tiled_camera=True, tiled_camera_name="top")


def test_discrete_actions_are_one_hot_or_integers():
    class Choices(Scene):
        single_action_space = gymnasium.spaces.Discrete(2)

        def step(self, action):
            return super().step(action[:, None])

    assert IsaacLabWrapper(Choices()).rollout(2)["action"].shape == (COUNT, 2, 2)
    assert IsaacLabWrapper(Choices(), categorical_action_encoding=True).rollout(2)["action"].shape == (COUNT, 2)


def test_other_objects_are_refused():
    with pytest.raises(SpecError, match="wraps a ManagerBasedRLEnv or DirectRLEnv"):
        IsaacLabWrapper(gymnasium.make("CartPole-v1"))
