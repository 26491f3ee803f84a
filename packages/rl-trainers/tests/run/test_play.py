"""``rl play``: the episodes of an evaluation in a window or a video, and keys in place of the policy."""

import json
import shutil
from pathlib import Path

import gymnasium
import imageio.v3 as imageio
import numpy as np
import pygame
import pytest
import torch
from rl_trainers_test_envs import TeamEnv
from tensordict import TensorDict

from rl.core.cli import main
from rl.core.errors import RLError, SpecError
from rl.trainers import (
    DQNConfig,
    IPPOConfig,
    Logger,
    PPOConfig,
    evaluate,
    load_run,
    make_env,
    train_dqn,
    train_ippo,
    train_ppo,
)

# screens and keys of a test, which the command takes from a display
from rl.trainers._play import KeyActions, describe_keys, keys_of, play
from rl.trainers._play_command import Window

SMALL = {"total_frames": 64, "num_envs": 1, "num_cells": (8,), "eval_episodes": 1, "final_eval_episodes": 1,
         "loggers": ("csv",)}  # fmt: skip
PPO = {**SMALL, "frames_per_batch": 64, "minibatch_size": 64, "epochs": 1}


class Walk(gymnasium.Env):
    """Action 2 of three is one step to the goal, five steps away; the picture is as bright as the place."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,))
    action_space = gymnasium.spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 200}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self._seen(), {"is_success": False}

    def step(self, action):
        assert self.action_space.contains(action)
        self.place += action == 2
        self.steps += 1
        reached = self.place == 5
        return self._seen(), float(action == 2), reached, self.steps == 8, {"is_success": reached}

    def render(self):
        return np.full((8, 10, 3), 40 * self.place, np.uint8)

    def _seen(self):
        return np.array([self.place], np.float32)


class Piano(Walk):
    def get_keys_to_action(self):
        return {(): 0, ("w",): 1, (ord(" "),): 2, (pygame.K_LEFT, "w"): 0}

    def get_action_meanings(self):
        return ["REST", "UP", "STEP"]


for kind in (Walk, Piano):
    if f"{kind.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)


class DrawnTeamEnv(TeamEnv):
    def __init__(self, num_envs=1, render_mode=None):
        super().__init__(num_envs)

    def render(self):
        return np.full((8, 8, 3), int(self._steps[0]), np.uint8)


pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # imageio leaves its reader open
    pytest.mark.filterwarnings("ignore:.*observation.*:UserWarning"),
]


class Shown:
    """A screen of a test."""

    def __init__(self, last=10**9):
        self.pictures, self.titles, self.last = [], [], last

    def at(self, fps):
        self.fps = fps
        return self

    def show(self, picture, title):
        self.pictures.append(int(picture[0, 0, 0]))
        self.titles.append(title)
        assert (picture == picture[0, 0]).all()
        return len(self.pictures) == self.last


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = PPOConfig(env="Walk-v0", env_kwargs={"info_keys": ["is_success"]}, **PPO)
    return train_ppo(config, out=tmp_path_factory.mktemp("play") / "run", display="none").folder


@pytest.fixture
def walk(trained):
    shutil.copytree(trained, "run")
    return load_run("run")


# ---- the loop


def test_episodes_are_those_of_an_evaluation(walk):
    shown = Shown()
    seeds = [3, 4, 5]
    episodes = [*play(walk, shown.at, episodes=3, seed=3, deterministic=False)]
    expected = [float(evaluate(walk, episodes=1, seed=seed, deterministic=False)) for seed in seeds]
    assert [one.total for one in episodes] == expected
    assert all(one.whole for one in episodes)
    assert len(shown.pictures) == sum(one.steps + 1 for one in episodes)  # the first picture is that of the reset
    assert shown.fps == 200
    ends = np.cumsum([one.steps + 1 for one in episodes]) - 1
    assert [shown.pictures[end] for end in ends] == [40 * one for one in expected]
    assert shown.titles[0] == "ppo on Walk-v0, episode 1, return 0.0"
    assert shown.titles[-1] == f"ppo on Walk-v0, episode 3, return {expected[-1]:.1f}"


def test_closing_the_window_ends_the_play(walk):
    shown = Shown(last=4)
    (episode,) = play(walk, shown.at, episodes=None, seed=0)
    assert (episode.steps, episode.whole) == (3, False)
    assert len(shown.pictures) == 4


def test_random_numbers_of_the_caller_stay(walk):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(play(walk, Shown().at, seed=0))
    assert torch.equal(torch.rand(3), expected)


def test_several_agents_are_played(monkeypatch):
    monkeypatch.setattr("rl_trainers_test_envs.DrawnTeamEnv", DrawnTeamEnv, raising=False)
    config = IPPOConfig(env="rl_trainers_test_envs:DrawnTeamEnv", **PPO)
    run = load_run(train_ippo(config, out="run", display="none").folder, trust="rl_trainers_test_envs")
    shown = Shown()
    (episode,) = play(run, shown.at, seed=3)
    assert shown.pictures == list(range(episode.steps + 1))
    assert episode.total == pytest.approx(float(evaluate(run, episodes=1, seed=3)))


# ---- keys


@pytest.mark.parametrize("action", range(3))
def test_a_key_acts_in_place_of_the_policy(action, walk):
    shown = Shown()
    (episode,) = play(walk, shown.at, seed=0, keys=lambda: {str(action), "shift"})
    if action == 2:
        assert episode == (5.0, 5, True, True)
        assert shown.pictures == [0, 40, 80, 120, 160, 200]
    else:
        assert episode == (0.0, 8, False, True)


def test_without_a_key_the_policy_acts(walk):
    policy = [*play(walk, Shown().at, seed=0)]
    assert [*play(walk, Shown().at, seed=0, keys=set)] == policy
    assert [*play(walk, Shown().at, seed=0, keys=lambda: {"z"})] == policy


def test_the_keys_of_an_environment_are_those_of_its_table():
    env = make_env("Piano-v0", 1, seed=0)
    keys = {frozenset({"w"}): 1, frozenset({"space"}): 2, frozenset({"left", "w"}): 0}
    assert keys_of(env) == keys
    assert describe_keys(env) == "  left+w  REST\n  w       UP\n  space   STEP\n"


@pytest.mark.parametrize(
    ("env", "arrows"), [("CartPole-v1", ["left", "right"]), ("Walk-v0", ["left", "down", "right"])]
)
def test_few_actions_have_arrows(env, arrows):
    env = make_env(env, 1, seed=0)
    numbers = [str(action) for action in range(len(arrows))]
    assert keys_of(env) == {frozenset({key}): int(n) for n, key in zip(numbers * 2, arrows + numbers, strict=True)}
    assert describe_keys(env).splitlines()[0].split() == ["left", "or", "0", "action", "0"]


def test_an_illegal_action_is_left_to_the_policy():
    env = make_env("Walk-v0", 1, seed=0)
    keys = KeyActions(env, lambda: {"1"})
    keys._mask = "action_mask"  # as of an environment that has one
    root = TensorDict(action=torch.tensor([2]), action_mask=torch.tensor([[True, False, True]]), batch_size=[1])
    assert keys.inv(root)["action"].tolist() == [2]
    root["action_mask"] = torch.tensor([[True, True, True]])
    assert keys.inv(root)["action"].tolist() == [1]


def test_continuous_actions_have_no_keys():
    with pytest.raises(SpecError, match="--keyboard is for environments with one discrete action; this one has action"):
        keys_of(make_env("pendulum", 1, seed=0))


# ---- the window


@pytest.fixture
def window(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame.display.quit()
    yield Window()
    pygame.display.quit()


def press(key, kind=pygame.KEYDOWN):
    pygame.event.post(pygame.event.Event(kind, key=key))


def test_a_window_shows_pictures_and_reads_keys(window):
    picture = np.zeros((8, 10, 3), np.uint8)
    picture[2, 7] = 255
    assert not window.at(1000).show(picture, "walk")
    surface = pygame.display.get_surface()
    assert surface.get_size() == (400, 320)  # small pictures are enlarged
    assert surface.get_at((7 * 40 + 20, 2 * 40 + 20))[:3] == (255, 255, 255)
    assert surface.get_at((6 * 40 + 20, 2 * 40 + 20))[:3] == (0, 0, 0)
    assert pygame.display.get_caption()[0] == "walk"
    press(pygame.K_LEFT)
    press(pygame.K_1)
    press(pygame.K_1, pygame.KEYUP)
    window.show(picture, "walk")
    assert window.keys() == {"left", "1"}  # also one that was released since
    assert window.keys() == {"left"}
    press(pygame.K_LEFT, pygame.KEYUP)
    window.show(picture, "walk")
    assert window.keys() == set()
    press(pygame.K_ESCAPE)
    assert window.show(picture, "walk")
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    assert window.show(picture, "walk")
    window.close()
    window.close()


def test_the_command_plays_in_a_window_where_there_is_one(walk, window, monkeypatch, capsys):
    monkeypatch.setattr("rl.trainers._play_command.has_display", lambda: True)
    monkeypatch.setattr("rl.trainers._play_command.Window.keys", lambda self: {"right"})
    assert main(["play", "run", "--episodes", "2", "--keyboard"]) == 0
    assert capsys.readouterr().out == (
        "run: ppo on Walk-v0, best policy, 64 frames\n"
        "while one of these keys is held, it acts in place of the policy:\n"
        "  left or 0   action 0\n"
        "  down or 1   action 1\n"
        "  right or 2  action 2\n"
        "close the window or press Escape to end\n"
        "episode 1: return 5.00 in 5 steps, success\n"
        "episode 2: return 5.00 in 5 steps, success\n"
    )
    assert not Path("run/videos").exists()


# ---- videos


@pytest.fixture
def no_display(monkeypatch):
    monkeypatch.setattr("rl.trainers._play_command.has_display", lambda: False)


def test_without_a_display_a_video_is_written(walk, no_display, capsys):
    assert main(["play", "run", "--seed", "3", "--latest"]) == 0
    out = capsys.readouterr().out
    (episode,) = play(walk, Shown().at, seed=3)
    assert out.splitlines()[:2] == ["run: ppo on Walk-v0, last policy, 64 frames",
                                    "there is no display here, so a video is written"]  # fmt: skip
    assert out.splitlines()[3] == f"run/videos/play-1.mp4: {episode.steps + 1} frames"
    assert main(["play", "run", "--episodes", "2"]) == 0
    assert "run/videos/play-2.mp4" in capsys.readouterr().out
    assert main(["play", "run", "--video", "x.gif", "--seed", "3"]) == 0
    shown = Shown()
    list(play(walk, shown.at, seed=3))
    frames = imageio.imread("x.gif")
    assert len(frames) <= len(shown.pictures)  # a GIF joins equal pictures
    assert frames[-1, 0, 0, 0] == shown.pictures[-1]


def test_the_newest_run_is_the_default(trained, no_display, capsys):
    assert main(["play"]) == 1
    assert "there is no run in the folder runs" in capsys.readouterr().err
    for seed, started in ((0, "2026-01-02"), (1, "2026-01-03"), (2, "2026-01-01")):
        shutil.copytree(trained, f"runs/{seed}")
        history = Path(f"runs/{seed}/history.json")
        history.write_text(json.dumps([{**json.loads(history.read_text())[0], "started": started}]))
    assert main(["play"]) == 0
    assert capsys.readouterr().out.startswith("runs/1: ")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nothing"], 1, "nothing is not a run folder"),
        (["run", "--episodes", "0"], 2, "--episodes must be above 0, got 0"),
        (["run", "--seed", "-1"], 2, "--seed must be in [0, 2147483647], got -1"),
        (["run", "--best", "--latest"], 2, "not allowed with argument --best"),
        (["run", "--keyboard"], 1, "--keyboard needs a window, and there is no display here"),
        (["run", "--keyboard", "--video", "x.mp4"], 2, "--keyboard is for a window"),
        (["run", "--video", "x.avi"], 1, "writes .mp4 or .gif, got 'x.avi'"),
        (["run", "--video", "there.mp4"], 1, "there.mp4 exists already and is not overwritten"),
        (["run", "--vide", "x.mp4"], 2, "unrecognized arguments"),
        (["seeds"], 1, "seeds has 2 runs, and one is played: name one, as in seeds/seed-0"),
    ],
)
def test_wrong_words_are_explained(words, status, said, walk, no_display, capsys):
    Path("there.mp4").write_text("")
    for seed in range(2):
        shutil.copytree("run", f"seeds/seed-{seed}")
    assert main(["play", *words]) == status
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1


def test_an_environment_without_pictures_is_named(no_display, capsys):
    train_ppo(PPOConfig(env="pendulum", max_episode_steps=10, **PPO), out="run", display="none")
    assert main(["play", "run"]) == 1
    assert "'pendulum' cannot be rendered" in capsys.readouterr().err
    assert not list(Path("run/videos").glob("*"))


# ---- while training


def test_videos_are_written_while_training(capsys):
    settings = {**PPO, "total_frames": 256, "num_envs": 2}
    plain = train_ppo(PPOConfig(env="Walk-v0", **settings), out="plain", display="none")
    train_ppo(PPOConfig(env="Walk-v0", video_every=100, **settings), out="run", display="none")
    names = sorted(path.name for path in Path("run/videos").iterdir())
    assert names == ["policy-128.mp4", "policy-256.mp4"]
    (episode,) = play(load_run("run", "last"), Shown().at, seed=_evaluation_seed("run"))
    assert len(imageio.imread("run/videos/policy-256.mp4")) == episode.steps + 1
    both = [Path(folder, "checkpoints", "best.safetensors").read_bytes() for folder in ("plain", "run")]
    assert both[0] == both[1]  # drawing changes no random numbers
    assert plain.train_frames == 256
    train_ppo(
        PPOConfig(env="Walk-v0", video_every=64, **{**settings, "total_frames": 384}), resume="run", display="none"
    )
    names = sorted(path.name for path in Path("run/videos").iterdir())
    assert names == ["policy-128.mp4", "policy-256.mp4", "policy-320.mp4", "policy-384.mp4"]


def _evaluation_seed(run):
    from rl.trainers._device import seeds_of  # which evaluations of training have

    return seeds_of(load_run(run).config.seed).evaluation


def test_trackers_get_the_videos(monkeypatch):
    got = []

    class Tracker(Logger):
        def log_scalar(self, name, value, step=None):
            pass

        def log_video_file(self, name, path, step=None):
            got.append((name, path.name, path.stat().st_size > 0, step))

    monkeypatch.setattr("rl_trainers_test_envs.Tracker", Tracker, raising=False)
    loggers = {**PPO, "loggers": ("csv", "rl_trainers_test_envs:Tracker")}
    train_ppo(PPOConfig(env="Walk-v0", video_every=64, **loggers), out="run", display="none")
    assert got == [("policy", "policy-64.mp4", True, 64)]


def test_a_run_that_cannot_be_drawn_does_not_begin():
    config = PPOConfig(env="pendulum", max_episode_steps=10, video_every=64, **PPO)
    with pytest.raises(RLError, match="'pendulum' cannot be rendered"):
        train_ppo(config, out="run", display="none")
    assert not Path("run").exists()


# ---- success


def test_success_is_a_rate_and_no_observation(walk, capsys):
    assert walk.policy.in_keys == ["observation"]
    header, *rows = Path("run/metrics.csv").read_text().splitlines()
    rates = [row.split(",")[header.split(",").index("eval/success_rate")] for row in rows]
    assert rates[-1] in ("0", "1")
    total = evaluate(walk, episodes=20, seed=1, deterministic=False)
    assert main(["eval", "run", "--episodes", "20", "--seed", "1", "--stochastic"]) == 0
    rate = float((total == 5).double().mean())
    assert f", success rate {rate:.2f} over 20 episodes" in capsys.readouterr().out


def test_an_environment_that_does_not_say_has_no_success_rate(capsys):
    train_dqn(DQNConfig(env="Walk-v0", **SMALL), out="run", display="none")
    assert "success" not in Path("run/metrics.csv").read_text()
    assert main(["eval", "run"]) == 0
    assert "success" not in capsys.readouterr().out
