import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml

import rl.trainers
from rl.core import components, load
from rl.core.cli import main
from rl.trainers import PPOConfig

# the settings of each preset, without a training for each
from rl.trainers._arguments import UsageError, parse_train
from rl.trainers._storage import config_yaml

RECIPES = [load("recipe", component.name) for component in components("recipe")]
RECIPES = [one for one in RECIPES if one.config.__module__.startswith("rl.trainers.")]
PRESETS = [(recipe, preset) for recipe in RECIPES for preset in recipe.load_presets().values()]


@pytest.mark.parametrize(("recipe", "preset"), PRESETS, ids=[f"{r.name}-{p.name}" for r, p in PRESETS])
def test_a_preset_is_a_config_with_measured_returns(recipe, preset):
    parsed = parse_train([recipe.name, "--env", preset.name])
    assert parsed.config == recipe.config(env=preset.name, **preset.settings)
    assert preset.name in gymnasium.registry or preset.name.partition("/")[0] in {one.name for one in components("env")}
    assert preset.source
    assert len(preset.seeds) == len(preset.returns) > 0
    assert "env" not in preset.settings


def test_files_of_presets_hold_settings_alone():
    """Returns stand once, in ``results.json``, from which commands and tables take them."""
    files = [*(Path(rl.trainers.__file__).parent / "presets").glob("*.yaml")]
    entries = [
        entry for file in files for section in yaml.safe_load(file.read_text()).values() for entry in section.values()
    ]
    assert len(entries) == len(PRESETS)
    assert {key for entry in entries for key in entry} == {"settings", "source", "case"}


def settings(*words):
    return parse_train(["ppo", *words]).config


def test_options_win_over_files_over_presets_over_defaults(tmp_path):
    pendulum = load("recipe", "ppo").load_presets()["Pendulum-v1"].settings
    found = settings("--env", "gym/Pendulum-v1", "--epochs", "3")
    assert (found.gamma, found.epochs) == (pendulum["gamma"], 3) != (PPOConfig.gamma, pendulum["epochs"])
    assert settings("--env", "Pendulum-v1", "--preset", "none").gamma == PPOConfig.gamma
    assert settings("--env", "test/guess").gamma == PPOConfig.gamma
    assert settings("--env", "test/guess", "--preset", "Pendulum-v1").gamma == pendulum["gamma"]
    (tmp_path / "mine.yaml").write_text("env: Pendulum-v1\nepochs: 7\n")
    assert settings("--config", "mine.yaml").gamma == PPOConfig.gamma  # a file is looked up by name only
    named = settings("--config", "mine.yaml", "--preset", "Pendulum-v1")
    assert (named.gamma, named.epochs) == (pendulum["gamma"], 7)


def test_the_start_names_the_settings_that_the_preset_decides(tmp_path, capsys):
    words = ["--env", "Pendulum-v1", "--total-frames", "64", "--frames-per-batch", "64", "--minibatch-size", "32"]
    words += ["--epochs", "1", "--max-episode-steps", "10", "--eval-episodes", "1", "--final-eval-episodes", "1"]
    assert main(["train", "ppo", *words, "--loggers", "[csv]", "--out", "run", "--display", "plain"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("preset Pendulum-v1: ")]
    assert "--gamma 0.9 " in line
    assert "--epochs" not in line
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["gamma"] == 0.9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "Pendulum-v2"], "no preset of ppo named Pendulum-v2; did you mean Pendulum-v1.*rl presets ppo"),
        (["--env", "Pendulum-v1", "--num-envs", "3"], "preset Pendulum-v1 apply, --preset none leaves them out"),
        (["--resume", "run", "--preset", "Pendulum-v1"], "--resume continues with the settings of the run"),
        (["--config", "mine.yaml"], "mine.yaml sets 'preset', which a config file cannot"),
    ],
)
def test_what_a_preset_cannot_do_is_rejected(words, message, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(config_yaml("ppo", PPOConfig()))
    (tmp_path / "mine.yaml").write_text("preset: none\n")
    with pytest.raises(UsageError, match=message):
        parse_train(["ppo", *words])


def test_an_error_that_the_preset_did_not_cause_does_not_name_it():
    with pytest.raises(UsageError, match=r"must be in .0, 1., got 5") as caught:
        parse_train(["ppo", "--env", "Pendulum-v1", "--gamma", "5"])
    assert "preset" not in str(caught.value)


def test_rl_presets_lists_them_without_torch(capsys):
    assert main(["presets"]) == 0
    page = capsys.readouterr().out
    lines = page.splitlines()
    own = {one.name for one in RECIPES}  # those of other packages are listed, too
    listed = {tuple(line.split()[:2]) for line in lines[1:]}
    assert {one for one in listed if one[0] in own} == {(recipe.name, preset.name) for recipe, preset in PRESETS}
    column = lines[0].index("preset")
    assert all(line[column - 1] == " " != line[column] for line in lines)  # names are aligned
    assert main(["presets", "dqn"]) == 0
    page = capsys.readouterr().out
    assert "source: " in page
    assert "Pendulum-v1" not in page
    assert main(["presets", "nothing"]) == 2
    assert "Pendulum-v1" in parse_train(["ppo", "--help"])
    code = "import sys; from rl.trainers.cli import presets; presets([]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
