"""`rl eval --video`: as fast as the environment says, and clear where it cannot be done."""

import gymnasium
import imageio.v3 as imageio
import numpy as np
import pytest

from rl.core.cli import main
from rl.core.errors import RLError
from rl.trainers import PPOConfig, evaluate, load_run, train_ppo

# the number of frames, and the error before the command prints it
from rl.trainers._play import record_video

SMALL = {"total_frames": 64, "num_envs": 1, "frames_per_batch": 64, "minibatch_size": 64, "epochs": 1,
         "num_cells": (8,),
         "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",)}  # fmt: skip


class Slides(gymnasium.Env):
    """Ten pictures, the first of them black."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._t += 1
        return np.zeros(2, np.float32), 1.0, self._t == 9, False, {}

    def render(self):
        return np.full((22, 18, 3), 20 * self._t, np.uint8)


class Unhurried(Slides):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


class Blind(Slides):
    metadata = {"render_modes": []}  # noqa: RUF012


for kind in (Slides, Unhurried, Blind):
    if f"{kind.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)


@pytest.fixture
def trained():
    def train(env):
        train_ppo(PPOConfig(env=env, **SMALL), out="run", display="none")
        return load_run("run")

    return train


@pytest.mark.filterwarnings("ignore:.*render fps")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio leaves its reader open
@pytest.mark.parametrize(("env", "fps"), [("Slides-v0", 10), ("Unhurried-v0", 30)])
def test_videos_run_at_the_speed_of_the_environment(env, fps, trained):
    run = trained(env)
    for name in ("a.mp4", "a.gif"):
        assert record_video(run, name, seed=0) == 10
    assert imageio.immeta("a.mp4")["fps"] == fps
    assert imageio.immeta("a.mp4")["size"] == (18, 22)  # not resized
    assert imageio.immeta("a.gif")["duration"] == pytest.approx(1000 / fps, abs=10)  # hundredths of a second


@pytest.mark.parametrize("env", ["Blind-v0", "pendulum"])
@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_an_environment_that_cannot_be_rendered_is_named(env, tmp_path):
    train_ppo(PPOConfig(env=env, **SMALL, max_episode_steps=10), out="run", display="none")
    with pytest.raises(RLError, match=f"'{env}' cannot be rendered"):
        record_video(load_run("run"), "a.mp4", seed=0)
    assert not (tmp_path / "a.mp4").exists()


def test_a_video_that_cannot_be_written_is_reported_before_episodes_are_played(tmp_path, capsys, trained):
    trained("Slides-v0")
    (tmp_path / "file").write_text("")
    assert main(["eval", "run", "--video", "file/a.mp4"]) == 1
    told = capsys.readouterr()
    assert "file/a.mp4 cannot be written" in told.err
    assert "return" not in told.out


@pytest.mark.parametrize("policy", ["lstm", "gru"])
def test_a_recurrent_policy_plays_the_episode_of_its_evaluation(policy, tmp_path):
    config = PPOConfig(
        env="CartPole-v1", observation_indices=(0, 2), policy=policy, recurrent_size=8, num_cells=(8,),
        total_frames=512,
        num_envs=2, frames_per_batch=256, minibatch_size=128, eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
    )  # fmt: skip
    run = load_run(train_ppo(config, out=tmp_path / "run", display="none").folder)
    for seed in (3, 4):
        length = int(evaluate(run, episodes=1, seed=seed))
        assert record_video(run, tmp_path / f"{seed}.gif", seed=seed) == length + 1


@pytest.mark.parametrize(
    "message",
    [
        "an OpenGL platform library has not been loaded into this process",
        "gladLoadGL error",
        "GLFW error (code 65550): X11: The DISPLAY environment variable is missing",
        "Default framebuffer is not complete, error 0x0",
    ],
)
def test_rendering_without_a_screen_names_the_remedy(message):
    # errors of a simulator that needs a screen, without the simulator
    from rl.trainers._play import without_screen

    assert "MUJOCO_GL=egl rl eval" in without_screen(RuntimeError(message))
