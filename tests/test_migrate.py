"""`rl migrate` on scripts in the style of TorchRL, Stable-Baselines3 and our older series, which run afterwards."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fresh_env import ROOT

pytest.importorskip("libcst")

from test_coming_from_torchrl import answering

from rl.core.cli import main
from rl.core.errors import ArgumentError
from rl.torchrl._migrate import MARK, migrate  # the command works on files, this gives texts and notes
from rl.torchrl._migrate_sources import NAMES, Renamed, TorchRL
from rl.torchrl._names import ANOTHER_MEANING, RENAMED, SAME_VALUES
from rl.torchrl._sb3 import ALGORITHMS, DEFAULTS, FIXED, METHODS, NEEDLESS, REMEDIES, SETTINGS, StableBaselines3
from rl.torchrl._sb3 import NAMES as SB3_NAMES
from rl.trainers import config


def code(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def changed(text: str, source=None) -> str:
    source = TorchRL() if source is None else source
    once = migrate(code(text), source).text
    assert migrate(once, source).text == once  # again: nothing
    ast.parse(once)
    return once


def run(text: str, folder: Path) -> str:
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-W", "ignore", "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


DQN = """
    import torch
    from torchrl.collectors import SyncDataCollector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler
    from torchrl.envs import Compose, GymEnv, StepCounter, TransformedEnv
    from torchrl.modules import MLP, EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=50)))
    actor = QValueActor(MLP(4, 2, num_cells=[16]), in_keys=["observation"], spec=env.action_spec)
    collector = SyncDataCollector(
        env, actor, frames_per_batch=20, total_frames=60, split_trajs=False, use_buffers=False
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=PrioritizedSampler(100, alpha=0.6, beta=0.4), batch_size=8
    )
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    updater = SoftUpdate(loss_module=loss, eps=0.9)
    for data in collector:  # the loop
        buffer.extend(data)
        sample = buffer.sample()
        value = loss(sample)["loss"]
        value.backward()
        updater.step()
        buffer.update_tensordict_priority(sample)
    print(bool(value.isfinite()))
"""

PPO = """
    import torch
    import torchrl
    import torchrl.envs as envs
    from tensordict.nn import TensorDictModule
    from torchrl import modules, objectives
    from torchrl.objectives.value import GAE

    env = envs.TransformedEnv(
        envs.GymEnv("Pendulum-v1"), envs.transforms.Compose(envs.RewardSum(), envs.StepCounter(max_steps=20))
    )
    net = torch.nn.Sequential(modules.MLP(3, 2, num_cells=[8]), modules.NormalParamExtractor())
    actor = modules.ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=modules.TanhNormal,
        return_log_prob=True,
    )
    critic = modules.ValueOperator(modules.MLP(3, 1, num_cells=[8]), in_keys=["observation"])
    loss = objectives.ClipPPOLoss(actor=actor, critic=critic, entropy_coef=0.01)
    collector = torchrl.collectors.Collector(env, actor, frames_per_batch=40, total_frames=40)
    for data in collector:
        GAE(gamma=0.99, lmbda=0.95, value_network=critic, vectorized=True)(data)
        losses = loss(data.reshape(-1))
        print(sorted(key for key in losses.keys() if key.startswith("loss")))
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(DQN, "True\n", id="names"),
        pytest.param(PPO, "['loss_critic', 'loss_entropy', 'loss_objective']\n", id="modules"),
    ],
)
def test_a_script_of_torchrl_runs_after_migration(script, printed, tmp_path):
    text = changed(script)
    assert "torchrl" not in text
    assert MARK not in text
    assert run(text, tmp_path) == printed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "from torchrl.envs import GymEnv as G\nG('x')\n", "from rl.envs import GymEnv as G\nG('x')\n", id="alias"
        ),
        pytest.param(
            "from torchrl.envs import env_creator as make\nmake(f)\n",
            "from rl.envs import EnvCreator as make\nmake(f)\n",
            id="alias of another name",
        ),
        pytest.param(
            "from torchrl.data import CompositeSpec\ndef f(x: CompositeSpec): ...\n",
            "from rl.core.specs import Composite\ndef f(x: Composite): ...\n",
            id="annotation",
        ),
        pytest.param(
            "from torchrl.data import ReplayBuffer, Composite  # both\n",
            "from rl.replay import ReplayBuffer\nfrom rl.core import Composite  # both\n",
            id="two packages",
        ),
        pytest.param(
            "def f():\n    import torchrl.envs\n    return torchrl.envs.GymEnv\n",
            "def f():\n    import rl.envs\n    return rl.envs.GymEnv\n",
            id="inside of a function",
        ),
        pytest.param(
            "from torchrl.envs import GymEnv\ndef f(SyncDataCollector): return SyncDataCollector\n",
            "from rl.envs import GymEnv\ndef f(SyncDataCollector): return SyncDataCollector\n",
            id="a name of the user",
        ),
        pytest.param(
            "from torchrl.collectors import SyncDataCollector\nx.SyncDataCollector(SyncDataCollector=1)\n",
            "from rl.collectors import Collector\nx.SyncDataCollector(SyncDataCollector=1)\n",
            id="an attribute and an argument",
        ),
        pytest.param("s = 'torchrl.envs'  # torchrl\n", "s = 'torchrl.envs'  # torchrl\n", id="texts"),
        pytest.param(
            "from torchrl.envs import (\n    GymEnv,  # one\n)\n",
            "from rl.envs import (\n    GymEnv,  # one\n)\n",
            id="layout",
        ),
        pytest.param("from .torchrl import GymEnv\n", "from .torchrl import GymEnv\n", id="a module of the user"),
    ],
)
def test_names_of_torchrl(before, after):
    assert changed(before) == after


@pytest.mark.parametrize(
    ("call", "after", "note"),
    [
        pytest.param("TensorStorage(storage=data)", "TensorStorage(data=data)", "", id="renamed"),
        pytest.param("TensorStorage(storage=data, ndim=2)", "TensorStorage(data=data, ndim=2)", "", id="with another"),
        pytest.param("SerialEnv(2, f, serial_for_single=True)", "SerialEnv(2, f)", "", id="needless"),
        pytest.param("SACLoss(a, q, separate_losses=False)", "SACLoss(a, q)", "", id="the default"),
        pytest.param(
            "SACLoss(a, q, separate_losses=True)",
            "SACLoss(a, q, separate_losses=True)",
            "SACLoss(separate_losses=): not available yet: gradients of a shared network are summed; use two networks",
            id="another value",
        ),
        pytest.param(
            "SACLoss(a, q, separate_losses=flag)",
            "SACLoss(a, q, separate_losses=flag)",
            "SACLoss(separate_losses=): not available yet: gradients of a shared network are summed; use two networks",
            id="no literal",
        ),
        pytest.param(
            "SACLoss(a, q, colour=1)",
            "SACLoss(a, q, colour=1)",
            "SACLoss has no argument colour=; see docs/coming-from-torchrl.md",
            id="unknown",
        ),
        pytest.param("SACLoss(a, q, **options)", "SACLoss(a, q, **options)", "", id="unpacked"),
    ],
)
def test_arguments_of_torchrl(call, after, note):
    name = call.partition("(")[0]
    module = {"TensorStorage": "data", "SerialEnv": "envs"}.get(name, "objectives")
    *_, last = lines = changed(f"from torchrl.{module} import {name}\nx = {call}\n").splitlines()
    assert last == f"x = {after}"
    assert lines[1:-1] == ([f"{MARK}{note}"] if note else [])


def test_what_has_no_counterpart_stays_below_a_comment():
    text = changed("""
        from torchrl.data import HERReplayBuffer, ReplayBuffer, RobotDatasetMetadata
        from torchrl.nowhere import Thing
        from torchrl.envs import *
        import torchrl

        class Mine(torchrl.envs.EnvBase):
            def f(self):
                if Thing(1):
                    return torchrl.trainers.Trainer()
    """)
    assert text == code("""
        from rl.replay import ReplayBuffer
        # rl migrate: HERReplayBuffer means something else here; see Equal names with another meaning in PAGE
        # rl migrate: RobotDatasetMetadata: it is not available; PAGE lists what is not
        from torchrl.data import HERReplayBuffer, RobotDatasetMetadata
        # rl migrate: Thing has no counterpart; see docs/coming-from-torchrl.md
        from torchrl.nowhere import Thing
        # rl migrate: import the names of torchrl.envs one by one, and migrate again
        from torchrl.envs import *
        import rl.envs
        import torchrl

        # rl migrate: EnvBase: specs are written without the batch, and it is no nn.Module; see ENV
        class Mine(rl.envs.EnvBase):
            def f(self):
                if Thing(1):
                    # rl migrate: Trainer: write the loop as lines of your own; see docs/howto/own-loop.md
                    return torchrl.trainers.Trainer()
    """).replace("PAGE", "docs/coming-from-torchrl.md").replace("ENV", "docs/howto/environment.md")


SB3 = """
    import gymnasium as gym
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.env_util import make_vec_env

    vec_env = make_vec_env("CartPole-v1", n_envs=2)
    model = PPO(
        "MlpPolicy", vec_env, n_steps=32, batch_size=32, n_epochs=1, verbose=1, policy_kwargs=dict(net_arch=[8, 8])
    )
    model.learn(total_timesteps=64, progress_bar=True)
    env = gym.make("CartPole-v1")
    agent = DQN("MlpPolicy", env, learning_starts=16, seed=3, verbose=0).learn(1e2)
    print(model.train_frames, agent.train_frames)
"""


def test_a_script_of_stable_baselines3_runs_after_migration(tmp_path):
    text = changed(SB3, StableBaselines3())
    assert "from rl.trainers import DQNConfig, train_dqn, PPOConfig, train_ppo\n" in text
    settings = re.search(r"PPOConfig\((.*?=False)", text, re.DOTALL)[1]
    assert " ".join(settings.split()) == (
        'env="CartPole-v1", num_envs=2, num_cells=(8, 8), frames_per_batch=64, learning_rate=0.0003, minibatch_size=32,'
        " epochs=1, anneal_lr=False"
    )
    assert "model = train_ppo(dataclasses.replace(model, total_frames=64))" in text
    assert text.count(MARK) == 1
    assert "make_vec_env: use num_envs=" in text
    lines = [line for line in text.splitlines() if "make_vec_env" not in line]  # the reader removes it
    assert run("\n".join(lines), tmp_path).splitlines()[-1] == "64 100"


def test_td3_explores_by_noise_only_where_stable_baselines3_does():
    head = "from stable_baselines3 import TD3\nmodel = TD3('MlpPolicy', 'Pendulum-v1'"
    assert "exploration_noise=0.0" in changed(f"{head})\n", StableBaselines3())
    given = changed(f"{head}, action_noise=noise)\n", StableBaselines3())
    assert "exploration_noise=0.0" not in given
    assert "use exploration_noise= and noise=" in given


@pytest.mark.parametrize(
    ("line", "note"),
    [
        pytest.param(
            'x = PPO("MlpPolicy", e, learning_rate=linear(1))', "learning_rate: use anneal_lr=", id="schedule"
        ),
        pytest.param('x = PPO("MlpPolicy", e, target_kl=0.1)', "target_kl: target_kl= ends an update", id="other unit"),
        pytest.param('x = PPO("MlpPolicy", e, colour=1)', "colour: no counterpart", id="unknown"),
        pytest.param('x = PPO(MyPolicy, "A-v0")', "MyPolicy: networks are those of the recipe", id="policy"),
        pytest.param('x = PPO("MlpPolicy", e)', "env= is an id, or an environment of Gymnasium", id="env"),
        pytest.param('x = PPO("MlpPolicy", e, policy_kwargs=kw)', "policy_kwargs: use num_cells=", id="networks"),
        pytest.param(
            'x = DQN("MlpPolicy", "A-v0", exploration_fraction=0.2)', "exploration_fraction: use ann", id="share"
        ),
        pytest.param(
            'x = PPO("MlpPolicy", "A-v0"); x.learn(9, callback=c)', "learn(callback=): use eval_every=", id="callback"
        ),
        pytest.param(
            'x = PPO("MlpPolicy", "A-v0")\nx.predict(o)', "predict: use rl.trainers.load_policy", id="predict"
        ),
        pytest.param(
            'x = PPO("MlpPolicy", "A-v0")\nx.save("f")', "save: the checkpoints are in the run folder", id="save"
        ),
        pytest.param('x = PPO.load("f")', "load: use rl.trainers.load_run", id="load"),
        pytest.param("class Mine(PPO): ...", "a recipe is a page of functions", id="subclass"),
        pytest.param(
            "from stable_baselines3.common.vec_env import VecNormalize", "VecNormalize: use normalize", id="name"
        ),
        pytest.param("from stable_baselines3 import Other", "Other has no counterpart", id="no name"),
    ],
)
def test_what_stable_baselines3_has_and_settings_have_not_gets_a_comment(line, note):
    notes = migrate(f"from stable_baselines3 import DQN, PPO\n{line}\n", StableBaselines3()).notes
    assert any(one.startswith(note) for one in notes), notes


def test_settings_of_the_table_are_fields_and_its_defaults_have_a_counterpart():
    for name, settings in SETTINGS.items():
        ours = {
            one.name
            for one in config.config_fields(getattr(__import__("rl.trainers").trainers, f"{ALGORITHMS[name]}Config"))
        }
        assert {*settings.values(), *FIXED.get(name, {})} <= ours, name
        assert set(DEFAULTS[name]) <= {*settings, "n_steps", "train_freq", "gradient_steps", "tau"}


def test_names_of_our_older_series_are_renamed(tmp_path):
    text = changed(
        """
        import rl.core.testing
        from rl.core import lower, load
        from rl.core.lowering import Lowered as L
        from rl.core.testing import check_env
        from rl.trainers import PPOConfig

        check_env(rl.core.testing.CountingEnv)
        c = PPOConfig(clip=0.1, hidden=(8, 8), env="CartPole-v1")
        print(lower.__name__, c.clip_epsilon)
        """,
        Renamed("0.2"),
    )
    assert text == code("""
        import rl.testing
        from rl.core import as_function, load
        from rl.core.tensor_functions import TensorFunction as L
        from rl.testing import check_env
        from rl.trainers import PPOConfig

        check_env(rl.testing.CountingEnv)
        c = PPOConfig(clip_epsilon=0.1, num_cells=(8, 8), env="CartPole-v1")
        print(as_function.__name__, c.clip_epsilon)
        """)
    assert run(text, tmp_path) == "as_function 0.1\n"
    assert changed("from rl.core import lower\n", Renamed("0.3")) == "from rl.core import lower\n"


def test_the_table_of_renamed_names_is_true():
    for names in [RENAMED, *NAMES.values()]:
        for old, new in names.items():
            if not old.endswith("*"):
                module, _, name = new.rpartition(".")
                assert hasattr(__import__(module, fromlist=[name]), name), old


def test_names_with_another_meaning_are_those_of_the_page():
    page = (ROOT / "docs" / "coming-from-torchrl.md").read_text()
    rows = page.partition("## Equal names with another meaning")[2].partition("\n## ")[0]
    assert frozenset(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == ANOTHER_MEANING


def test_arguments_with_the_same_values_are_answered_with_their_new_name():
    sentences = [(name, why) for _, found in answering() for name, (why, *_) in found.table.items()]
    for argument in SAME_VALUES:
        assert any(name == argument and re.fullmatch(r"use \w+=", why) for name, why in sentences), argument


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / ".venv").mkdir()
    old = b"from torchrl.envs import GymEnv\r\nx = 1  \r\n"
    for name in ("pkg/a.py", ".venv/b.py", "c.txt"):
        (tmp_path / name).write_bytes(old)
    (tmp_path / "pkg" / "d.py").write_text("x = 1\n")
    return old


def test_diff_and_check_write_nothing(project, capsys):
    assert main(["migrate", "."]) == 0
    assert "-from torchrl.envs import GymEnv" in capsys.readouterr().out
    assert main(["migrate", ".", "--check"]) == 1
    out, err = capsys.readouterr()
    assert out == f"{Path('pkg/a.py')}\n"
    assert err == "2 files, 1 to change; 0 comments `# rl migrate:` to read\n"
    assert Path("pkg/a.py").read_bytes() == project
    assert main(["migrate", "pkg/d.py", "--check"]) == 0


def test_write_changes_python_files_and_keeps_line_ends(project):
    assert main(["migrate", "--write", "."]) == 0
    assert Path("pkg/a.py").read_bytes() == project.replace(b"torchrl.", b"rl.")
    assert Path(".venv/b.py").read_bytes() == Path("c.txt").read_bytes() == project


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["nothing.py"], "there is no file or folder nothing.py", id="path"),
        pytest.param(
            ["pkg", "--from", "tianshou"], "--from must be torchrl, sb3, or a series such as rl==0.2", id="library"
        ),
        pytest.param(["pkg", "--from", "rl==old"], "must be followed by a version such as 0.2", id="version"),
        pytest.param(["pkg", "--write", "--check"], "not allowed with argument", id="modes"),
        pytest.param([], "required: PATH", id="none"),
    ],
)
def test_a_command_that_makes_no_sense_is_one_line(words, message, project, capsys):
    assert main(["migrate", *words]) in (1, 2)
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_is_no_python_is_named_and_the_others_are_changed(project, capsys):
    Path("pkg/0.py").write_text("import torchrl\nif x\n")
    Path("pkg/1.py").write_bytes(b"# torchrl \xff\n")
    assert main(["migrate", "--write", "."]) == 1
    err = capsys.readouterr().err
    assert f"{Path('pkg/0.py')}: line 2 is no Python" in err
    assert f"{Path('pkg/1.py')}: 'utf-8' codec" in err
    assert Path("pkg/0.py").read_text() == "import torchrl\nif x\n"
    assert b"rl.envs" in Path("pkg/a.py").read_bytes()
    with pytest.raises(ArgumentError, match="no Python"):
        migrate("import torchrl; (", TorchRL())


def test_a_file_whose_package_is_absent_is_named_and_the_others_are_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rl.torchrl._migrate_sources.find_spec", lambda name: None)  # as if it were absent
    Path("a.py").write_text("from rl.trainers import PPOConfig\nPPOConfig(clip=0.1)\n")
    Path("b.py").write_text("from rl.core import lower\n")
    assert main(["migrate", "--from", "rl==0.2", "--write", "."]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("rl migrate: a.py: it has settings of rl-trainers: pip install rl-trainers; it was left")
    assert out == "b.py\n"


def test_a_virtual_environment_in_a_folder_is_left_out(project):
    Path("venv/lib").mkdir(parents=True)
    Path("venv/pyvenv.cfg").write_text("")
    Path("venv/lib/e.py").write_bytes(project)
    assert main(["migrate", "--write", "."]) == 0
    assert Path("venv/lib/e.py").read_bytes() == project
    assert main(["migrate", "--write", "venv"]) == 0
    assert Path("venv/lib/e.py").read_bytes() != project


def test_without_libcst_one_line_says_what_to_install(tmp_path):
    (tmp_path / "libcst.py").write_text("raise ModuleNotFoundError('no', name='libcst')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "rl.core", "migrate", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (1, 'rl: rl migrate needs LibCST: pip install "rl-torchrl[migrate]"\n')


def test_the_page_about_stable_baselines3_has_the_table():
    page = (ROOT / "docs" / "coming-from-sb3.md").read_text()
    listed = page.partition("<!-- settings: begin -->\n")[2].partition("<!-- settings: end -->")[0].strip()
    assert listed == table(), "paste what `python tests/test_migrate.py` prints"


def table() -> str:
    """Rows of docs/coming-from-sb3.md: argument or name, algorithms, setting or remedy."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, settings in SETTINGS.items():
        for argument, setting in settings.items():
            rows.setdefault((f"`{argument}=`", f"`{setting}=`"), []).append(name)
    lines = [f"| {argument} | {', '.join(names)} | {setting} |" for (argument, setting), names in sorted(rows.items())]
    lines += [
        f"| `{argument}=` | all | left out: what is printed is `display=` of training |"
        for argument in sorted(NEEDLESS)
    ]
    lines += [f"| `{argument}=` | all | {remedy} |" for argument, remedy in sorted(REMEDIES.items())]
    lines += [f"| `.{method}()` | all | {remedy} |" for method, remedy in sorted(METHODS.items())]
    lines += [f"| `{name}` | - | {remedy} |" for name, remedy in sorted(SB3_NAMES.items())]
    return "\n".join(["| there | of | here |", "|---|---|---|", *lines])


if __name__ == "__main__":
    print(table())
