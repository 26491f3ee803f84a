"""`IsaacLabWrapper` on an environment with the interface that Isaac Lab documents."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, RLError, UnknownComponentError
from rl.envs import IsaacLabEnv, IsaacLabWrapper, StepCounter, TransformedEnv, isaac_lab_env
from rl.testing import check_env

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
    assert env.rollout(2, break_when_any_done=False)["pixels"].shape == (COUNT, 2, 4, 4, 3)
    with pytest.raises(ArgumentError, match="no tiled camera 'top' with images 'rgb'"):
        IsaacLabWrapper(Scene(), from_tiled_camera=True, tiled_camera_name="top")


def test_discrete_actions_are_one_hot_or_integers():
    class Choices(Scene):
        single_action_space = gymnasium.spaces.Discrete(2)

        def step(self, action):
            return super().step(action[:, None])

    assert IsaacLabWrapper(Choices()).rollout(1)["action"].shape == (COUNT, 1, 2)
    assert IsaacLabWrapper(Choices(), categorical_action_encoding=True).rollout(1)["action"].shape == (COUNT, 1)


LIBRARY = {
    "isaaclab/__init__.py": "",
    "isaaclab/app.py": """
started = []

class AppLauncher:
    def __init__(self, **options):
        import sys
        assert not started and "isaaclab_tasks" not in sys.modules
        started.append(options)
""",
    "isaaclab_tasks/__init__.py": """
import gymnasium
gymnasium.register("Isaac-Sum-v0", entry_point="isaaclab_tasks.sums:Sums", disable_env_checker=True)
""",
    "isaaclab_tasks/utils.py": """
from types import SimpleNamespace

def parse_env_cfg(task_name, device="cuda:0", num_envs=None):
    return SimpleNamespace(device=device, num_envs=num_envs or 4, compute_final_obs=False)
""",
    "isaaclab_tasks/sums.py": """
import gymnasium, numpy, torch

class Sums(gymnasium.Env):
    single_action_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (1,), numpy.float32)
    existing = 0

    def __init__(self, cfg):
        assert not Sums.existing
        Sums.existing, self.cfg, self.num_envs, self.device = 1, cfg, cfg.num_envs, cfg.device

    def reset(self, seed=None, env_ids=None, options=None):
        if env_ids is None:
            self.total, self.count = torch.zeros(self.num_envs, 1), torch.zeros(self.num_envs, dtype=torch.long)
        else:
            self.total[env_ids], self.count[env_ids] = 0.0, 0
        return {"policy": self.total.clone()}, {}

    def step(self, action):
        self.total, self.count = self.total + action.clip(-1, 1), self.count + 1
        reward, truncated = -self.total[:, 0].abs(), self.count == 5
        final = {"final_obs": {"policy": self.total.clone()}} if self.cfg.compute_final_obs else {}
        seen, _ = self.reset(env_ids=truncated.nonzero().flatten())
        return seen, reward, torch.zeros_like(truncated), truncated, final

    def close(self):
        Sums.existing = 0
""",
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library with the documented way to start."""
    for name, text in LIBRARY.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(IsaacLabEnv, "_app", None)
    yield
    gymnasium.registry.pop("Isaac-Sum-v0", None)
    for name in [name for name in sys.modules if name.startswith("isaaclab")]:
        del sys.modules[name]


@pytest.mark.usefixtures("library")
def test_tasks_are_started_by_id_the_second_one_in_a_process_of_its_own():
    env = isaac_lab_env("Isaac-Sum-v0", num_envs=3, device="cpu")
    assert isinstance(env, IsaacLabEnv)
    data = env.rollout(7, break_when_any_done=False)
    assert data["next", "truncated"][:, 4].all()
    assert torch.equal(data["next", "policy"][:, 4], data["policy"][:, 4] + data["action"][:, 4].clip(-1, 1))
    assert sys.modules["isaaclab.app"].started == [{"headless": True, "enable_cameras": False, "device": "cpu"}]
    with pytest.raises(RLError, match="one environment in a process, and one is open"):
        IsaacLabEnv("Isaac-Sum-v0")
    second = isaac_lab_env("Isaac-Sum-v0", num_envs=2, device="cpu")
    assert second.rollout(5)["next", "truncated"][:, -1].all()
    second.close()
    env.close()
    with pytest.raises(UnknownComponentError, match="Did you mean 'Isaac-Sum-v0'"):
        IsaacLabEnv("Isaac-Sun-v0", device="cpu")
    again = IsaacLabEnv("Isaac-Sum-v0", device="cpu")  # the application runs already
    assert again.batch_size == (4,)
    again.close()


def test_a_missing_library_is_named_with_its_guide(monkeypatch):
    monkeypatch.setattr(IsaacLabEnv, "_app", None)
    monkeypatch.setitem(sys.modules, "isaaclab", None)
    with pytest.raises(MissingExtraError, match=r"needs isaaclab.*install it with Isaac Sim"):
        isaac_lab_env("Isaac-Cartpole-v0")


def test_other_objects_are_refused():
    with pytest.raises(ArgumentError, match="wraps a ManagerBasedRLEnv or DirectRLEnv"):
        IsaacLabWrapper(gymnasium.make("CartPole-v1"))
