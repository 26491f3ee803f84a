"""Names of settings: those of losses and modules, and those of older versions."""

import ast
import dataclasses
import inspect
import json
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from rl.core import components, load
from rl.core.cli import main
from rl.core.errors import ArgumentError
from rl.trainers import (
    Algorithm,
    DQNConfig,
    OnPolicyConfig,
    PPOConfig,
    QLearningConfig,
    load_checkpoint,
    load_run,
    save_checkpoint,
    train_ppo,
)

# files of older versions are read, without the training that follows
from rl.trainers._arguments import parse_train
from rl.trainers._benchmark import read_cases
from rl.trainers._storage import config_yaml
from rl.trainers.algorithms import ppo
from rl.trainers.config import OldNameWarning

RECIPES = [load("recipe", component.name) for component in components("recipe")]
CONFIGS = {one.name: one.config for one in RECIPES if one.config.__module__.startswith("rl.trainers.")}
#: those that were there when settings had other names
OLDER = {name: config for name, config in CONFIGS.items() if any(vars(one).get("renamed") for one in config.__mro__)}
#: today's names by those of rl-trainers 0.4; several where recipes had one name for several arguments
RENAMED = {
    "anneal": ("anneal_lr",),
    "anneal_clip": ("anneal_clip_epsilon",),
    "clip": ("clip_epsilon",),
    "context": ("inference_context",),
    "critic_hidden": ("critic_num_cells",),
    "critics": ("num_qvalue_nets",),
    "decoder_layers": ("num_decoder_layers",),
    "diffusion_steps": ("num_steps",),
    "discriminator_hidden": ("discriminator_num_cells",),
    "discriminator_minibatch_size": ("discriminator_batch_size",),
    "double": ("double_dqn",),
    "dropped": ("top_quantiles_to_drop_per_net",),
    "encoder_layers": ("num_encoder_layers",),
    "entropy_weight": ("entropy_coeff",),
    "epsilon_end": ("eps_end",),
    "epsilon_frames": ("annealing_num_steps",),
    "epsilon_start": ("eps_init",),
    "executed": ("replan_interval",),
    "gae_lambda": ("lmbda",),
    "heads": ("n_head", "nheads"),
    "hidden": ("num_cells",),
    "init_log_scale": ("log_std_init",),
    "latent": ("latent_dim",),
    "layers": ("n_layer",),
    "minibatch_size": ("batch_size", "minibatch_size"),
    "mixing_width": ("mixing_embed_dim",),
    "n_step": ("n_steps",),
    "state_independent_scale": ("state_independent_std",),
    "subset": ("sub_sample_len",),
    "target_tau": ("tau",),
    "td_lambda": ("lmbda",),
    "updates_per_step": ("utd_ratio",),
    "value_weight": ("critic_coeff",),
    "width": ("hidden_dim", "n_embd"),
}
TINY = {"total_frames": 128, "num_envs": 2, "frames_per_batch": 128, "minibatch_size": 64, "epochs": 1,
        "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",), "env": "test/guess"}  # fmt: skip


#: settings that have one value
ALWAYS = {("crossq", "tau"), ("mbpo", "n_steps"), ("rainbow", "eps_end")}


def names_of(config):
    return [field.name for field in dataclasses.fields(config)]


def other(value):
    """Another value of a setting."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (8,) if value else ()
    return value * 2 if isinstance(value, int) else value / 2 or 0.1


def renamed_in(config):
    """Older name, today's name and another value for each renamed setting of a config."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    of_others = "gae_lambda" if config.recipe == "dqn" else "td_lambda"
    for old, today in RENAMED.items():
        for new in today:
            if new == "anneal_lr" and not issubclass(config, OnPolicyConfig | QLearningConfig):
                continue  # which had none then
            if new in defaults and old not in (new, of_others):
                fixed = new in config.absent or (config.recipe, new) in ALWAYS
                yield old, new, defaults[new] if fixed else other(defaults[new])


@pytest.mark.parametrize("config", OLDER.values(), ids=list(OLDER))
def test_no_setting_has_an_older_name(config):
    today = {name for names in RENAMED.values() for name in names}
    assert not (RENAMED.keys() - today) & set(names_of(config))
    assert ("minibatch_size" in names_of(config)) == (config.recipe in ("ppo", "ppo-rnd", "gail", "mappo", "ippo"))


@pytest.mark.parametrize("config", OLDER.values(), ids=list(OLDER))
def test_an_older_name_gives_the_same_config(config):
    assert [*renamed_in(config)] or not config.renamed
    for old, new, value in renamed_in(config):
        with pytest.warns(OldNameWarning, match=rf"^{old} is now {new}; older names are accepted until"):
            found = config(**{old: value})
        assert found == config(**{new: value})
        with pytest.warns(OldNameWarning, match=old):
            assert getattr(found, old) == getattr(found, new)
        with pytest.warns(OldNameWarning, match=old):
            assert dataclasses.replace(config(), **{old: value}) == found


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(PPOConfig):
    """Settings whose environment has a further name."""

    aliases: ClassVar[dict[str, str]] = {"task": "env"}


@pytest.mark.filterwarnings("error")
def test_an_alias_is_accepted_without_a_warning():
    config = TaskConfig(task="Acrobot-v1")
    assert config == TaskConfig(env="Acrobot-v1")
    assert config.task == "Acrobot-v1"
    assert dataclasses.replace(config, task="Pendulum-v1").env == "Pendulum-v1"
    assert "Acrobot-v1" in config_yaml("ppo", config)


#: settings of a second network, of two arguments, and of an output that no argument is named after
OWN_NAMES = {
    ("num_cells", "critic_num_cells"),
    ("num_cells", "discriminator_num_cells"),
    ("gamma", "intrinsic_gamma"),
    ("out_features", "features"),
    ("resid_pdrop", "dropout"),
    ("attn_pdrop", "dropout"),
    ("loss_value", "critic_coeff"),
}


def passed_on(path):
    """Name of the argument or entry, and of the setting, wherever a page passes one on."""
    for node in ast.walk(ast.parse(path.read_text())):
        pairs = [(one.arg, one.value) for one in node.keywords if one.arg] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.Dict):
            pairs = [
                (key.value, one)
                for key, one in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
        for name, value in pairs:
            wrapped = isinstance(value, ast.Call) and len(value.args) == 1  # list(config.num_cells)
            inner = value.args[0] if wrapped else value
            if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) in (
                "config",
                "self.config",
                "self._config",
            ):
                yield name, inner.attr


def test_settings_are_passed_on_under_the_names_of_the_arguments():
    found = {pair for path in Path(ppo.__file__).parent.glob("*.py") for pair in passed_on(path)}
    assert {("lmbda", "lmbda"), ("num_qvalue_nets", "num_qvalue_nets"), ("eps_init", "eps_init")} <= found
    assert {pair for pair in found if pair[0] != pair[1]} <= OWN_NAMES
    assert PPOConfig().loss_settings.items() >= {("clip_epsilon", PPOConfig().clip_epsilon), ("entropy_coeff", 0.0)}


def test_a_setting_by_both_names_is_rejected():
    with pytest.raises(ArgumentError, match="PPOConfig: got clip_epsilon and its older name clip; leave the older"):
        PPOConfig(clip=0.1, clip_epsilon=0.3)


def test_a_field_with_an_older_name_is_rejected():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(OnPolicyConfig):
        hidden: tuple[int, ...] = (8,)

    with pytest.raises(ArgumentError, match="Mine: hidden is now num_cells; rename the field"):
        Mine()


def test_names_are_those_of_the_family():
    with pytest.raises(TypeError, match="td_lambda"):
        PPOConfig(td_lambda=0.5)
    with pytest.raises(AttributeError, match="DQNConfig has no setting 'gae_lambda'"):
        _ = DQNConfig().gae_lambda


@pytest.mark.filterwarnings("always::rl.trainers.config.OldNameWarning")
def test_the_command_line_notes_an_older_name_once(capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items() if name != "loggers"]
    assert main(["train", "ppo", *words, "--clip", "0.1", "--gae_lambda=0.5", "--loggers", "csv", "--seeds", "0,1",
                 "--out", "runs", "--display", "none"]) == 0  # fmt: skip
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "older names" in line]
    assert line.startswith("note: --clip is now --clip-epsilon, --gae-lambda is now --lmbda; older names")
    config = load_run("runs/seed-1").config
    assert (config.clip_epsilon, config.lmbda) == (0.1, 0.5)


def test_files_of_older_versions_are_read(tmp_path):
    (tmp_path / "c.yaml").write_text("recipe: dqn\nhidden: [8]\nepsilon-frames: 7\nminibatch_size: 16\n")
    with pytest.warns(OldNameWarning, match="epsilon_frames is now annealing_num_steps"):
        config = parse_train(["--config", "c.yaml"]).config
    assert config == DQNConfig(num_cells=(8,), annealing_num_steps=7, batch_size=16)
    case = {"recipe": "td3", "env": "pendulum", "settings": {"target_tau": 0.1, "updates_per_step": 2}}
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({"cases": [case]}))
    with pytest.warns(OldNameWarning, match="--target-tau is now --tau, --updates-per-step is now --utd-ratio"):
        ((found,), _) = read_cases("b.yaml")
    assert (found.config.tau, found.config.utd_ratio) == (0.1, 2)


def test_presets_of_an_older_plugin_are_read(tmp_path, monkeypatch):
    (tmp_path / "old_presets").mkdir()
    (tmp_path / "old_presets" / "__init__.py").touch()
    (tmp_path / "old_presets" / "p.yaml").write_text("Maze-v0: {source: own, settings: {clip: 0.1, hidden: [8]}}")
    monkeypatch.syspath_prepend(tmp_path)
    mine = Algorithm(PPOConfig, loop="on_policy", policy=ppo.policy, presets="old_presets:p.yaml")
    with pytest.warns(OldNameWarning, match="hidden is now num_cells"):
        assert mine.load_presets()["Maze-v0"].settings == {"clip_epsilon": 0.1, "num_cells": (8,)}


@pytest.mark.filterwarnings("always::rl.trainers.config.OldNameWarning")
def test_a_run_folder_of_an_older_version_is_evaluated_and_resumed(tmp_path, capsys):
    config = PPOConfig(**TINY, num_cells=(8,))
    folder = train_ppo(config, out=tmp_path / "run", display="none").folder
    older = {"lmbda": "gae_lambda", "num_cells": "hidden", "clip_epsilon": "clip", "anneal_lr": "anneal"}

    def aged(settings):
        return {older.get(name, name): value for name, value in settings.items()}

    (folder / "config.yaml").write_text(yaml.safe_dump(aged(yaml.safe_load((folder / "config.yaml").read_text()))))
    last = load_checkpoint(folder / "checkpoints" / "last.safetensors")
    last["run"]["config"] = aged(last["run"]["config"])
    save_checkpoint(folder / "checkpoints" / "last.safetensors", last)
    assert main(["eval", str(folder), "--episodes", "1"]) == 0
    assert capsys.readouterr().err.count("hidden is now num_cells") == 1
    assert main(["train", "--resume", str(folder), "--total-frames", "256", "--display", "none"]) == 0
    assert capsys.readouterr().err.count("hidden is now num_cells") == 1
    assert json.loads((folder / "summary.json").read_text())["frames"] == 256
    assert yaml.safe_load((folder / "config.yaml").read_text())["num_cells"] == [8]


def test_a_config_keeps_its_signature():
    assert "clip_epsilon" in inspect.signature(PPOConfig).parameters
