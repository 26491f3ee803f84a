"""Environments, wrappers and transforms by name, also from a module in the current folder."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from rl_trainers_test_envs import GuessEnv

from rl.core.cli import main
from rl.core.component import Component
from rl.core.errors import ArgumentError, MissingExtraError, RLError, UnknownComponentError
from rl.core.registry import Registry, default, load
from rl.envs import GymEnv
from rl.trainers import PPOConfig, evaluate, load_checkpoint, make_env, train_ppo
from rl.trainers import envs as _envs
# the configuration of a command line, without the training that follows
from rl.trainers._arguments import parse_train
from rl.trainers.evaluation import load_config

MODULE = """
import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete

from rl.envs import PendulumEnv


class Mission(gymnasium.Space):
    '''A space that nothing knows.'''

    def contains(self, x):
        return isinstance(x, str)


class Batch:
    def __init__(self, num_envs):
        pass


class Maze(gymnasium.Env):
    action_space = Discrete(2)
    observation_space = Dict({"image": Box(0, 255, (7, 7, 3), np.uint8), "mission": Mission()})

    def __init__(self, size=3):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), 1.0, self.steps >= self.size, False, {}

    def _seen(self):
        return {"image": np.zeros((7, 7, 3), np.uint8), "mission": "go"}


class ImageOnly(gymnasium.ObservationWrapper):
    def __init__(self, env, crop=7):
        super().__init__(env)
        self.crop = crop
        self.observation_space = Box(0, 255, (crop, crop, 3), np.uint8)

    def observation(self, observation):
        return observation["image"][: self.crop, : self.crop]


def swing(batch_size):
    return PendulumEnv(batch_size=batch_size)


def doubled(td):
    return td.set("observation", td["observation"] * 2)


def nothing():
    return 3


if "LocalMaze-v0" not in gymnasium.registry:
    gymnasium.register("LocalMaze-v0", entry_point=Maze, kwargs={"size": 5})
"""


@pytest.fixture
def maze(tmp_path, monkeypatch):
    """The module above under a name of its own, in the current folder."""
    name = f"maze_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_class_of_a_module_is_an_environment_with_wrappers_and_arguments(maze):
    env = make_env(f"{maze}:Maze", 2, seed=0, env_kwargs={"size": 4}, wrapper=[f"{maze}:ImageOnly:{{crop: 5}}"])
    assert env.observation_spec["observation"].shape == (2, 5, 5, 3)
    assert env.rollout(9).shape == (2, 4)
    assert make_env(f"{maze}:swing", 3, seed=0).batch_size == (3,)


@pytest.mark.parametrize("workers", [0, 2])
def test_info_keys_of_a_gymnasium_class_are_those_of_its_wrapper(workers, tmp_path, monkeypatch):
    (tmp_path / "my_hall.py").write_text(
        textwrap.dedent("""
        import gymnasium
        import numpy as np

        class Hall(gymnasium.Env):
            action_space = gymnasium.spaces.Discrete(2)
            observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,))

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return np.zeros(1, np.float32), {"is_success": False}

            def step(self, action):
                return np.ones(1, np.float32), 1.0, True, False, {"is_success": bool(action == 1)}
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make_env("my_hall:Hall", 2, seed=0, env_kwargs={"info_keys": ["is_success"]}, workers=workers)
    data = env.rollout(1)
    assert (data["next", "is_success"].flatten() == (data["action"].flatten() == 1)).all()
    env.close()
    with pytest.raises(RLError, match="info_keys"):  # none of Gymnasium
        make_env("rl_trainers_test_envs:GuessEnv", 1, seed=0, env_kwargs={"info_keys": ["is_success"]})


def test_an_id_of_a_module_gets_the_wrappers_too(maze):
    env = make_env(f"{maze}:LocalMaze-v0", 2, seed=0, wrapper=[f"{maze}:ImageOnly"])
    assert env.observation_spec["observation"].shape == (2, 7, 7, 3)
    assert env.rollout(9).shape == (2, 5)


def test_transforms_by_name_are_applied_in_order(maze):
    env = make_env(
        "pendulum", 2, seed=0, transform=[f"{maze}:doubled", "step-counter:{max_steps: 7, step_count_key: mine}"]
    )
    plain = make_env("pendulum", 2, seed=0)
    torch.testing.assert_close(env.reset()["observation"], 2 * plain.reset()["observation"])
    assert env.rollout(20).shape == (2, 7)


def test_arguments_of_any_number_are_given_as_a_list():
    env = make_env("CartPole-v1", 2, seed=0, transform=["step-counter", "exclude:{excluded_keys: [step_count]}"])
    assert list(env.observation_spec.keys()) == ["observation"]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        pytest.param({"wrapper": ["ImageOnly"]}, UnknownComponentError, "write module:callable", id="bare-wrapper"),
        pytest.param({"wrapper": ["MAZE:Image"]}, UnknownComponentError, "no attribute 'Image'", id="no-attribute"),
        pytest.param({"env": "pendulum", "wrapper": ["MAZE:ImageOnly"]}, ArgumentError, "use a transform", id="not-gym"),
        pytest.param({"env": "MAZE:nothing"}, RLError, "returned a int, which is neither", id="no-environment"),
        pytest.param({"env_kwargs": {"sise": 2}}, RLError, r"env_kwargs={'sise': 2}: .*sise", id="unknown-argument"),
        pytest.param({"env": "pendulum", "transform": ["step-countr"]}, UnknownComponentError,
                     "did you mean 'step-counter'", id="no-transform"),
        pytest.param({"env": "pendulum", "transform": ["step-counter:{a: 1}"]}, RLError,
                     "transform 'step-counter:{a: 1}' cannot be created", id="transform-argument"),
        pytest.param({"env": "pendulum", "transform": ["step-counter:{a"]}, RLError, "no mapping", id="no-mapping"),
        pytest.param({"env": "pendulum", "transform": ["step-counter:[3]"]}, RLError, r"write NAME:\{key: value\}",
                     id="no-braces"),
        pytest.param({"env": "pendulum", "transform": ["step-counter:{max_steps:3}"]}, RLError,
                     "with a space after the colon", id="no-space"),
        pytest.param({"env": "pendulum", "transform": ["torch:zeros"]}, RLError,
                     "the transform 'torch:zeros' does not fit: .*; name a Transform", id="no-transform-at-all"),
        pytest.param({"wrapper": ["gymnasium.wrappers:TimeLimit"]}, RLError,
                     "TimeLimit' cannot be created: .*missing 1 required positional argument", id="wrapper-argument"),
        pytest.param({"env": "json:dumps"}, RLError, "json:dumps' cannot be created: .*; pass what", id="no-env"),
        pytest.param({"env": "MAZE:Nope"}, UnknownComponentError, r"[.?] And the module 'maze_.*' has no 'Nope'\.$",
                     id="no-class"),
        pytest.param({"env": "MAZE:Batch", "workers": 1}, ArgumentError,
                     "Batch creates a batch of environments itself: leave it out", id="workers-of-a-batch"),
        pytest.param({"env": "gymnax"}, UnknownComponentError, "takes an id: write gymnax/ID$", id="no-example"),
        pytest.param({"env": "Nope-v7"}, UnknownComponentError, r"[.?] And no installed plugin offers", id="full-stop"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_named(settings, error, message, maze):
    settings = {k: [x.replace("MAZE", maze) for x in v] if isinstance(v, list) else v for k, v in settings.items()}
    env = settings.pop("env", "MAZE:Maze").replace("MAZE", maze)
    with pytest.raises(error, match=message):
        make_env(env, 1, seed=0, **settings)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("component", "example"), _envs._EXAMPLES.items())
def test_the_example_of_an_id_is_one_of_the_component(component, example):
    with pytest.raises(UnknownComponentError, match=f"write {component}/ID, for example {component}/{example}$"):
        make_env(component, 1, seed=0)
    try:
        ids = load("env", component).available_envs
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert any(one == example or one.startswith(f"{example}_v") for one in ids)


def test_a_module_that_raises_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("bad_module_of_a_test.py").write_text("raise ValueError('three')")
    Path("poor_module_of_a_test.py").write_text("import a_library_that_is_nowhere")
    with pytest.raises(RLError, match="importing the module 'bad_module_of_a_test' raised ValueError: three"):
        make_env("bad_module_of_a_test:Maze", 1, seed=0)
    with pytest.raises(RLError, match="needs 'a_library_that_is_nowhere', which is not installed"):
        make_env("poor_module_of_a_test:Maze", 1, seed=0)


def test_the_command_finds_the_current_folder_and_says_something_before_it_imports_torch(tmp_path):
    """A program that is installed elsewhere, as the command `rl` is: its own folder is not the current one."""
    (tmp_path / "local_maze.py").write_text(textwrap.dedent(MODULE))
    program = tmp_path / "bin" / "rl"
    program.parent.mkdir()
    program.write_text(
        "import sys\n"
        "from rl.core.cli import main\n"
        "write = sys.stdout.write\n"
        "def spy(text):\n"
        "    if 'importing libraries' in text: write(f'torch {\"torch\" in sys.modules}: ')\n"
        "    return write(text)\n"
        "sys.stdout.write = spy\n"
        "sys.exit(main())\n"
    )
    words = ["train", "dqn", "--env", "local_maze:Maze", "--wrapper", "local_maze:ImageOnly", "--total-frames", "64",
             "--env-kwargs", "{size: 4}", "--transform", "step-counter:{max_steps: 3}", "--transform=reward-sum",
             "--eval-episodes", "1", "--final-eval-episodes", "1", "--loggers", "[csv]", "--display", "plain",
             "--out", "run"]  # fmt: skip
    done = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch False: rl train: dqn on local_maze:Maze; importing libraries ...\n")
    assert "reads 'observation': uint8 [7, 7, 3] as an image of 7 x 7, 3 channels last" in done.stdout
    config = load_config("run", trust="local_maze")[1]
    assert config.env_kwargs == {"size": 4}
    assert config.wrapper == ("local_maze:ImageOnly",)
    assert config.transform == ("step-counter:{max_steps: 3}", "reward-sum")


def test_the_command_line_replaces_the_transforms_of_a_file():
    Path("c.yaml").write_text("transform: [init-tracker]\nenv_kwargs: {a: 1, b: [2, x]}\n")
    assert parse_train(["--config", "c.yaml"]).config.transform == ("init-tracker",)
    config = parse_train(["--config", "c.yaml", "--transform", "reward-sum"]).config
    assert config.transform == ("reward-sum",)
    assert config.env_kwargs == {"a": 1, "b": [2, "x"]}


def test_an_unknown_id_gives_the_message_of_gymenv_and_names_plugins_that_are_left_out(monkeypatch, capsys):
    with pytest.raises(UnknownComponentError) as told:
        GymEnv("highway/merge-v0")
    assert main(["train", "dqn", "--env", "highway/merge-v0", "--display", "none"]) == 1
    assert str(told.value) in capsys.readouterr().err

    def left_out(kind, name):
        if name == "gym":
            return GymEnv
        raise UnknownComponentError(f"{kind} {name!r} is of acme:acme, which is left out: disabled")

    monkeypatch.setattr(_envs, "load", left_out)
    with pytest.raises(UnknownComponentError, match="env 'acme/grid' is of acme:acme, which is left out"):
        make_env("acme/grid", 1, seed=0)


@pytest.mark.parametrize("env", ["CartPole-v1", "pendulum"])
def test_the_number_of_processes_does_not_change_the_policy(env, tmp_path):
    settings = {"total_frames": 256, "num_envs": 4, "frames_per_batch": 64, "minibatch_size": 32, "num_cells": (8,)}
    settings |= {"eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",), "normalize_observation": True}
    weights = []
    for workers in (1, 3):
        config = PPOConfig(env=env, workers=workers, **settings)
        train_ppo(config, out=tmp_path / str(workers), display="none")
        weights.append(load_checkpoint(tmp_path / str(workers) / "checkpoints" / "last.safetensors")["policy"])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_what_processes_cannot_run_is_rejected():
    with pytest.raises(ArgumentError, match=r"--workers.*creates a batch"):
        make_env("test/guess", 4, seed=0, workers=2)
    with pytest.raises(UnknownComponentError, match="Did you mean"):
        make_env("CartPole-v11", 4, seed=0, workers=2)
    with pytest.raises(ArgumentError, match=r"workers must be 0 or more, and at most num_envs \(2\)"):
        PPOConfig(num_envs=2, frames_per_batch=64, minibatch_size=32, workers=3)


def test_actors_share_the_environments_evenly_and_no_statistics():
    settings = {"num_envs": 4, "frames_per_batch": 64, "minibatch_size": 32, "ray": "local"}
    for wrong, words in (
        ({}, "workers must be the number of actors"),
        ({"workers": 3}, r"a divisor of num_envs \(4\)"),
        ({"workers": 2, "normalize_reward": True}, "actors share no statistics"),
    ):
        with pytest.raises(ArgumentError, match=words):
            PPOConfig(**settings, **wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")
def test_actors_of_ray_train_a_policy(tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    settings = {"total_frames": 256, "num_envs": 4, "frames_per_batch": 64, "minibatch_size": 32, "num_cells": (8,)}
    settings |= {"eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",)}
    try:
        result = train_ppo(PPOConfig(workers=2, ray="auto", **settings), out=tmp_path / "run", display="none")
    finally:
        ray.shutdown()
    assert result.train_frames == 256


def small_goal(size=4):
    return gymnasium.make("CartPole-v1", max_episode_steps=size)


def goal(size=9):
    return small_goal(size)


GIVEN = {
    "function": (small_goal, "test_environments:small_goal"),
    "lambda": (lambda: small_goal(4), "test_environments:<lambda>"),
    "partial": (partial(goal, size=4), "test_environments:goal"),
    "made": (gymnasium.make("CartPole-v1", max_episode_steps=4), "CartPole-v1"),
    "wrapped": (gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 4), "CartPole-v1"),
}


@pytest.mark.parametrize("how", GIVEN)
def test_an_environment_may_be_given_as_an_object(how, tmp_path):
    """Every copy has the same limit of four steps, which no pole falls in."""
    env, name = GIVEN[how]
    config = PPOConfig(env=env, total_frames=64, num_envs=2, frames_per_batch=64, minibatch_size=64, epochs=1,
                       eval_episodes=1, final_eval_episodes=2, loggers=("csv",))  # fmt: skip
    assert config.env.endswith(name)
    assert replace(config, seed=3).env == config.env
    result = train_ppo(config, out=tmp_path / "run", display="none")
    assert result.eval_return_mean == 4
    assert f"env: {config.env}\n" in (tmp_path / "run" / "config.yaml").read_text().replace("'", "")
    if how != "lambda":
        later = evaluate(tmp_path / "run", episodes=2, trust=small_goal.__module__)
        assert later.tolist() == [4, 4]


def test_the_id_of_a_component_may_be_a_path(monkeypatch):
    monkeypatch.setattr("rl.core.registry._default", [Registry.installed()])
    default().add(Component("env", "program", "rl_trainers_test_envs:of_id"))
    opened = []

    def of_id(name, num_envs=1):
        opened.append(name)
        return GuessEnv(num_envs)

    monkeypatch.setattr(sys.modules["rl_trainers_test_envs"], "of_id", of_id)
    for path in ("/home/me/game", "~/my games/a:b.x86_64", "../game", "C:/Games/"):
        make_env(f"program/{path}", 2, seed=0)
        assert opened.pop() == path
    for env in ("nothing//home/me", "my game/x", "/home/me/game"):
        with pytest.raises(UnknownComponentError, match="has the wrong form"):
            make_env(env, 2, seed=0)


def is_slippery(env):
    """Whether a step of the lake may lead to several states."""
    (one,) = env.gym_env if isinstance(env.gym_env, list) else [env.gym_env]
    return len(one.unwrapped.P[0][0]) > 1


def test_arguments_of_an_environment_that_is_given_as_an_object_are_settings():
    made = gymnasium.make("FrozenLake-v1", is_slippery=False)
    config = PPOConfig(env=made)
    assert config.env_kwargs == {"is_slippery": False}  # and not the map that is registered
    assert PPOConfig(env=partial(small_goal, size=(4, 5))).env_kwargs == {"size": [4, 5]}  # as after a file
    assert PPOConfig(env=made, env_kwargs={"is_slippery": True}).env_kwargs == {"is_slippery": True}
    for slippery in (True, False):  # the settings decide, and nothing that the object still holds
        for env in (config.env, "FrozenLake-v1"):
            assert is_slippery(make_env(env, 1, seed=0, env_kwargs={"is_slippery": slippery})) == slippery
    assert not is_slippery(make_env(made, 1, seed=0))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), -1, 1), "the wrappers RescaleAction"),
        (gymnasium.make("Seen-v0", action_space=gymnasium.spaces.Discrete(3)), "the argument action_space of type"),
        (partial(small_goal, 4), "a partial with arguments without names"),
        (partial(small_goal, size=np.arange(3)), "the argument size of type ndarray"),
    ],
)
def test_an_environment_that_no_settings_can_hold_is_rejected(env, words):
    with pytest.raises(ArgumentError, match=f"{words}.*, which no settings can hold.*pass a function of a module"):
        PPOConfig(env=env)


def test_an_environment_that_cannot_be_rebuilt_is_rejected():
    class Own(gymnasium.Env):
        pass

    with pytest.raises(ArgumentError, match="a Own, which cannot be rebuilt.*as in env=MyEnv"):
        PPOConfig(env=Own())
    with pytest.raises(ArgumentError, match="env must be the name of an environment; in Python also a class"):
        PPOConfig(env=3)


def test_components_are_also_named_with_their_distribution(tmp_path, capsys):
    for name, target in (("acme/line", "GuessEnv"), ("acme", "of_id")):
        if name not in {component.name for component in default().components("env")}:
            default().add(Component("env", name, f"rl_trainers_test_envs:{target}"), distribution="acme-rl")
    small = (
        "--num-envs 2 --total-frames 128 --frames-per-batch 128 --minibatch-size 64 --eval-episodes 1 --display none"
    )
    words = "train rl-trainers:ppo --env Acme_RL:acme/line --loggers rl-trainers:csv"
    assert main([*words.split(), *small.split(), "--final-eval-episodes", "1", "--out", "run"]) == 0
    assert "acme/line" in (tmp_path / "run" / "config.yaml").read_text()
    assert main(["eval", "run", "--episodes", "1"]) == 0  # an installed component needs no trust
    assert (
        main(["train", "--config", "run/config.yaml", "--total-frames", "128", "--display", "none", "--out", "b"]) == 0
    )
    assert make_env("acme-rl:acme/size", 3, seed=0).batch_size == (3,)  # a component with an id
    for env, text in (("acme-rl:nothing", "acme-rl"), ("rl-envs:acme/line", "rl-envs")):
        assert main(["train", "--env", env, "--display", "none"]) == 1
        assert text in capsys.readouterr().err
    config = (tmp_path / "run" / "config.yaml").read_text().replace("Acme_RL:acme/line", "rl-envs:unity-mlagents/sh")
    (tmp_path / "program.yaml").write_text(config)
    assert main(["train", "--config", "program.yaml", "--display", "none"]) == 1
    assert "--trust unity-mlagents" in capsys.readouterr().err
