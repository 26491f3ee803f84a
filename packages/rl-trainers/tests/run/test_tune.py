"""`rl tune`: its space, its trials, and the preset that it writes."""

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import ClassVar

import pytest
import yaml

from rl.core.cli import main
from rl.core.errors import RLError

# `_tune` for trials without trainings, and what a command line means
from rl.trainers import DQNConfig, PPOConfig, RainbowConfig, RunConfig, _tune, at_least, train
from rl.trainers._arguments import UsageError, parse_train
from rl.trainers._space import space_of
from rl.trainers._tune import Outcome, Pruning, Study, train_seed
from rl.trainers.algorithms.ppo import PPO

TINY = {"total_frames": 256, "num_envs": 2, "frames_per_batch": 128, "minibatch_size": 64, "epochs": 1,
        "eval_every": 128, "eval_episodes": 1, "final_eval_episodes": 2, "loggers": ("csv",)}  # fmt: skip
CONFIG = PPOConfig(env="test/guess", **TINY)
WORDS = ["--env", "test/guess", *(f"--{name}={json.dumps(value)}" for name, value in TINY.items())]


def text_of(config, *given, only=None, typed=()):
    return {one.name: one.text for one in space_of(config, given, only=only, typed=typed)}


# ------------------------------------------------------------------ the space


def test_ranges_stand_beside_the_fields_and_are_inherited():
    @dataclass(frozen=True, kw_only=True)
    class OwnConfig(PPOConfig):
        recipe: ClassVar[str] = "own"
        learning_rate: float = 1e-2
        width: int = at_least(1, 4, search="1..8")

    found = text_of(OwnConfig())
    assert found["width"] == "1..8"
    assert found["learning_rate"] == text_of(PPOConfig())["learning_rate"] == "1e-5..1e-2:log"


def test_values_that_the_other_settings_exclude_are_left_out():
    assert text_of(PPOConfig(num_envs=1024))["frames_per_batch"] == "1024,2048,4096"
    assert text_of(PPOConfig(frames_per_batch=128, minibatch_size=64))["minibatch_size"] == "32,64,128"
    assert "eps_end" in text_of(DQNConfig())
    assert "eps_end" not in text_of(RainbowConfig())  # which explores by noise


def test_ranges_of_the_command_line_replace_and_add_and_what_is_typed_is_fixed():
    found = text_of(CONFIG, "gamma=0.9..0.999", "critic-coeff=0.25,0.5", "gae_lambda=0.9,1", typed=["learning_rate"])
    assert found["gamma"] == "0.9..0.999"
    assert found["critic_coeff"] == "0.25,0.5"
    assert found["lmbda"] == "0.9,1"  # by the name of an older version
    assert "learning_rate" not in found
    assert text_of(CONFIG, "gamma=0.9,0.99", only="gamma,epochs") == {"gamma": "0.9,0.99", "epochs": "3..20"}


def test_a_recipe_without_ranges_asks_for_them():
    @dataclass(frozen=True, kw_only=True)
    class PlainConfig(RunConfig):
        recipe: ClassVar[str] = "plain"
        width: int = 4

    for only in (None, "width"):
        with pytest.raises(UsageError, match="plain declares no ranges: name what to search"):
            space_of(PlainConfig(), [], only=only, typed=[])
    assert text_of(PlainConfig(), "width=1..8") == {"width": "1..8"}


class FixedTrial:
    """The first or the last value of everything."""

    def __init__(self, last):
        self.last = last

    def suggest_float(self, name, low, high, log):
        assert isinstance(low, float)
        return high if self.last else low

    def suggest_int(self, name, low, high, log):
        assert isinstance(low, int)
        return high if self.last else low

    def suggest_categorical(self, name, choices):
        return choices[-1 if self.last else 0]


def test_values_have_the_types_of_their_fields():
    given = ("num_cells=[8],[16,16]", "epochs=1..4", "gamma=0..1", "anneal_lr=false,cosine", "activation=tanh,relu")
    space = space_of(CONFIG, given, only="num_cells,epochs,gamma,anneal_lr,activation", typed=[])
    for last, expected in enumerate(
        [
            {"num_cells": (8,), "epochs": 1, "gamma": 0.0, "anneal_lr": False, "activation": "tanh"},
            {"num_cells": (16, 16), "epochs": 4, "gamma": 1.0, "anneal_lr": "cosine", "activation": "relu"},
        ]
    ):
        found = {one.name: one.suggest(FixedTrial(last)) for one in space}
        assert found == expected
        assert [type(value) for value in found.values()] == [type(expected[name]) for name in found]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--space", "gama=0..1"], "there is no setting gama; did you mean gamma"),
        (["--space", "gamma"], r"--space gamma: write NAME=low\.\.high"),
        (["--space", "gamma=0.9..0.8"], r"gamma=0\.9\.\.0\.8: the range is empty"),
        (["--space", "learning_rate=0..1:log"], "learning_rate must be above 0, got 0"),
        (["--space", "entropy_coeff=0..1:log"], "the range is empty, write low..high with low above 0"),
        (["--space", "gamma=0.9"], "two or more different values"),
        (["--space", "gamma=0.9,0.9"], "two or more different values"),
        (["--space", "gamma=0.9,high"], "--gamma must be a number, got high"),
        (["--space", "gamma=0.9..2"], r"gamma must be in \[0, 1\], got 2"),
        (["--space", "num_cells=1..4"], "num_cells"),
        (["--space", "seed=0..4"], "seed is the same in all trials"),
        (["--space", "gamma=0..1", "--space", "gamma=0,1"], "gamma is given twice"),
        (["--space", "gamma=0..1", "--gamma", "0.5"], "--gamma fixes gamma, and --space searches it"),
        (["--only", "gamma,lerning_rate"], "did you mean learning_rate"),
        (["--only", "critic_coeff"], "critic_coeff: it is not searched, give it a range"),
        (["--no-such-option", "1"], "there is no option --no-such-option"),
        (["--trials", "0"], "--trials must be above 0, got 0"),
        (["--trials", "many"], "invalid int value"),
        (["--jobs", "0"], "--jobs is the number of runs"),
        (["--seeds", "x"], "--seeds must be different integers"),
        (["--seed", "1"], "remove --seed"),
        (["--out", "here"], "--out is of one run: remove it"),
        (["--resume", "here"], "--resume is of one run"),
        (["--study", "mine"], r"--study mine must be a file with an ending, as mine\.journal"),
    ],
)
def test_a_command_that_makes_no_sense_is_rejected_before_anything_is_written(words, message, tmp_path, capsys):
    pytest.importorskip("optuna")
    assert main(["tune", "ppo", *WORDS, *words]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not [*tmp_path.iterdir()]


def test_an_environment_that_does_not_fit_is_rejected_before_anything_is_written(tmp_path, capsys):
    pytest.importorskip("optuna")
    assert main(["tune", "dqn", "--env", "Pendulum-v1", "--preset", "none"]) == 1
    assert "dqn" in capsys.readouterr().err
    assert main(["tune", "ppo", "--env", "NoSuch-v0"]) == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("recipe", ["bc", "gail"])
def test_a_recipe_without_its_data_set_is_rejected_before_anything_is_written(recipe, tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["tune", recipe, "--env", "Pendulum-v1", "--preset", "none", "--trials", "1"]
    assert main(words) == 1
    assert f"{recipe} learns from a data set: pass --dataset" in capsys.readouterr().err
    assert main([*words, "--dataset", "nowhere:nothing"]) == 1
    assert "trial" not in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_without_optuna_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "ppo", *WORDS]) == 1
    assert "pip install 'rl-trainers[tune]'" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_help_page_lists_what_is_searched(capsys):
    assert main(["tune", "td3", "--help"]) == 0
    page = capsys.readouterr().out
    assert "exploration_noise  0.05..0.5:log" in page
    assert "--prune" in page


# ------------------------------------------------------------------ trials, with trainings that are made up


def value_of(config):
    """What a training would return: best at gamma 0.5."""
    return 100 - 100 * abs(config.gamma - 0.5) + config.seed


@pytest.fixture
def trained(monkeypatch):
    """Replace trainings by a function of the settings; returns the list of them, and what is called in their place."""
    pytest.importorskip("optuna")
    calls = SimpleNamespace(configs=[], others=[], outcome=lambda config, folder: Outcome(value_of(config)))

    def train_seed(recipe, config, folder, others):
        calls.configs.append(config)
        calls.others.append(others)
        return calls.outcome(config, folder)

    monkeypatch.setattr(_tune, "train_seed", train_seed)
    return calls


def study_of(file="one.journal", seeds=(0, 1, 2), given=("gamma=0..1",), config=CONFIG, **options):
    return Study(Path(file), PPO, config, space_of(config, given, only="gamma", typed=[]), seeds, **options)


def test_the_value_of_a_trial_is_the_median_over_its_seeds(trained):
    trained.outcome = lambda config, folder: Outcome(config.gamma * [1.0, 5.0, -20.0][config.seed])
    study = study_of()
    assert study.run(4)
    assert [config.seed for config in trained.configs] == [0, 1, 2] * 4
    for one, config in zip(study.trials, trained.configs[::3], strict=True):
        assert one.value == pytest.approx(median([config.gamma, 5 * config.gamma, -20 * config.gamma]))
        assert one.params["gamma"] == config.gamma
    assert study.ranking[0].value == max(one.value for one in study.trials)
    assert trained.configs[0].gamma == CONFIG.gamma  # the settings as they are come first
    assert all(replace(config, gamma=0.5, seed=0) == replace(CONFIG, gamma=0.5) for config in trained.configs)


def test_the_search_finds_the_best_settings(trained):
    study = study_of(seeds=(0,))
    assert study.run(40)
    assert abs(study.settings(study.ranking[0])["gamma"] - 0.5) < 0.1


def test_the_setting_that_decides_is_the_most_important(trained):
    space = space_of(CONFIG, ("gamma=0..1", "lmbda=0..1"), only="gamma,lmbda", typed=[])
    study = Study(Path("one.journal"), PPO, CONFIG, space, (0,))
    assert study.run(5)
    assert study.importance() == {}  # too few trials
    assert study.run(30)
    shares = study.importance()
    assert [*shares] == ["gamma", "lmbda"]
    assert sum(shares.values()) == pytest.approx(1)


def test_a_failed_trial_is_recorded_and_the_search_goes_on(trained):
    def outcome(config, folder):
        if len(trained.configs) in (2, 4):
            raise RLError("the loss\nbecame nan")
        return Outcome(1.0)

    trained.outcome = outcome
    seen = []
    study = study_of(report=seen.append)
    assert study.run(4)
    states = [one.state.name for one in study.trials]
    assert states == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert [one.number for one in seen] == [0, 1, 2, 3]
    assert study.trials[0].user_attrs["error"] == "seed 1: RLError: the loss became nan"
    assert study.trials[0].user_attrs["returns"] == [[0, 1.0]]
    assert len(trained.configs) == 2 + 2 + 3 + 3  # no further seed of a trial that has failed


def test_values_that_exclude_each_other_are_a_failed_trial(trained):
    config = replace(CONFIG, frames_per_batch=128, minibatch_size=64)
    given = ("frames_per_batch=64,128", "minibatch_size=64,128")
    study = Study(
        Path("one.journal"),
        PPO,
        config,
        space_of(config, given, only="frames_per_batch,minibatch_size", typed=[]),
        (0,),
    )
    assert study.run(20)
    failed = [one for one in study.trials if one.state.name == "FAIL"]
    assert failed
    for one in failed:
        assert one.params == {"frames_per_batch": "64", "minibatch_size": "128"}
        assert "minibatch_size must be between 2 and frames_per_batch (64), got 128" in one.user_attrs["error"]


def test_a_study_without_a_complete_trial_ends_with_the_error(trained, tmp_path):
    def outcome(config, folder):
        raise RLError("no data set")

    trained.outcome = outcome
    study = study_of()
    assert study.run(2)
    with pytest.raises(
        RLError, match=r"no trial of one\.journal is complete; trial 1 failed with seed 0: RLError: no da"
    ):
        study.write_preset()
    assert not study.preset.exists()


def test_a_study_continues_and_earlier_trials_count(trained):
    assert study_of().run(2)
    assert study_of().run(3)
    assert study_of().run(3)
    assert len(trained.configs) == 3 * 3
    again = study_of()
    assert [one.number for one in again.trials] == [0, 1, 2]


def test_processes_share_a_study(trained):
    """Two that take turns, as two processes do: what one has told, the other knows."""
    first, second = study_of(), study_of()

    def outcome(config, folder):
        if len(trained.configs) == 1:
            trained.outcome = lambda config, folder: Outcome(value_of(config))
            assert second.run(2)  # while a trial of the other one is running
        return Outcome(value_of(config))

    trained.outcome = outcome
    assert first.run(4)
    assert [one.number for one in first.trials] == [0, 1, 2, 3]
    assert len({one.params["gamma"] for one in second.trials}) == 4


def test_an_interrupted_trial_continues_with_what_it_has_done(trained):
    folders = []

    def outcome(config, folder):
        folders.append(folder)
        return Outcome(0.0, interrupted=True) if len(trained.configs) == 5 else Outcome(value_of(config))

    trained.outcome = outcome
    assert not study_of().run(2)
    assert study_of().ranking[0].number == 0
    assert study_of().run(2)
    study = study_of()
    assert [one.state.name for one in study.trials] == ["COMPLETE", "COMPLETE"]
    assert [config.seed for config in trained.configs] == [0, 1, 2, 0, 1, 1, 2]  # the first seed is not repeated
    assert trained.configs[4] == trained.configs[5]
    assert folders[4] == folders[5] == Path("one/trial-1/seed-1")
    assert study.trials[1].value == value_of(replace(trained.configs[3], seed=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": (0, 1)}, r"study with seeds \[0, 1, 2\], not \[0, 1\]"),
        ({"given": ("gamma=0..0.9",)}, r"space gamma 0\.\.1, not 0\.\.0\.9"),
        ({"config": replace(CONFIG, lmbda=0.5)}, r"lmbda 0\.95, not 0\.5"),
        ({"config": replace(CONFIG, env="test/recall")}, "env test/guess, not test/recall"),
    ],
)
def test_a_study_with_other_settings_is_rejected(trained, change, message, tmp_path):
    assert study_of().run(1)
    before = (tmp_path / "one.journal").read_bytes()
    with pytest.raises(UsageError, match=f"{message}.*: name another file with --study"):
        study_of(**change)
    assert (tmp_path / "one.journal").read_bytes() == before
    study_of(config=replace(CONFIG, threads=0, loggers=()))  # of the machine, and of what is written


def test_a_study_of_another_algorithm_or_none_is_rejected(trained, tmp_path, capsys):
    optuna = pytest.importorskip("optuna")
    assert study_of().run(1)
    assert main(["tune", "dqn", "--study", "one.journal"]) == 2
    assert "one.journal is a study of ppo, not of dqn: name another file with --study" in capsys.readouterr().err
    (tmp_path / "text.journal").write_text("a list\nof things\n")
    with pytest.raises(UsageError, match=r"text\.journal is no journal of Optuna"):
        study_of("text.journal")
    backend = optuna.storages.journal.JournalFileBackend("other.journal")
    optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name="mine")
    with pytest.raises(UsageError, match=r"other\.journal has the study mine, none of rl tune"):
        study_of("other.journal")
    (tmp_path / "two").mkdir()
    with pytest.raises(UsageError, match=r"two is there, without its study two\.journal"):
        study_of("two.journal")


# ------------------------------------------------------------------ pruning


def followed(others, curve, total=1000):
    """Frames at which a run with these evaluations is ended; None if it is not."""
    pruning = Pruning(others)
    for frames, value in curve:
        pruning.on_evaluation(SimpleNamespace(frames=frames, progress=frames / total), value)
        if pruning.hopeless:
            return frames
    return None


def test_a_run_below_the_median_of_the_same_seed_at_the_same_frames_is_pruned():
    others = [[(200, 0.0), (400, 10.0 + i), (800, 50.0)] for i in range(5)]  # median of the best: 12, then 50
    assert followed(others, [(200, -5.0), (400, 11.0)]) == 400  # not in the first third
    assert followed(others, [(200, 0.0), (400, 12.0), (800, 49.0)]) == 800
    assert followed(others, [(200, 60.0), (400, 0.0), (800, 0.0)]) is None  # the best evaluation counts
    assert followed(others, [(300, -1.0), (500, 11.0)]) == 500  # at other frames: what the others had until then
    assert followed(others[1:], [(400, -100.0)]) is None  # too few others


def test_trials_are_compared_on_the_same_seed(trained):
    def outcome(config, folder):
        curve = [(128, config.seed), (256, 10 * config.seed)]
        return Outcome(value_of(config), curve, pruned=len(trained.configs) == 4)

    trained.outcome = outcome
    study = study_of(seeds=(3, 4))
    assert study.run(4, prune=True)
    assert trained.others[0] == []
    assert trained.others[2] == [[[128, 3], [256, 30]]]
    assert trained.others[3] == [[[128, 4], [256, 40]]]
    pruned = study.trials[1]
    assert (pruned.state.name, pruned.user_attrs["pruned_at"]) == ("PRUNED", 4)
    assert all(len(one.user_attrs["returns"]) == 2 for one in study.ranking)
    assert len(trained.others[-1]) == 2  # those of complete trials alone
    assert study.run(5)
    assert trained.others[-1] is None


def test_a_training_ends_where_it_is_pruned(tmp_path):
    others = [[[128, 100.0]]] * 5  # more than the environment pays
    bad = train_seed("ppo", replace(CONFIG, seed=1), tmp_path / "bad", others)
    assert (bad.pruned, bad.interrupted) == (True, False)
    assert [frames for frames, _ in bad.curve] == [128]
    good = train_seed("ppo", replace(CONFIG, seed=1), tmp_path / "good", [[[128, -1.0]]] * 5)
    assert (good.pruned, good.interrupted) == (False, False)
    assert [frames for frames, _ in good.curve] == [128, 256]
    assert good.value == train_seed("ppo", replace(CONFIG, seed=1), tmp_path / "alone", None).value


# ------------------------------------------------------------------ the command, with trainings


def test_the_command_trains_and_writes_a_preset_that_rl_train_reads(tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["tune", "ppo", *WORDS, "--only", "gamma,num_cells", "--space", "num_cells=[8],[16]", "--seeds", "0,2"]
    assert main([*words, "--trials", "2", "--study", "mine.journal"]) == 0
    out = capsys.readouterr().out
    assert "trial 0: return " in out
    assert "mine.journal: 2 complete" in out
    assert "rl train ppo --env test/guess --preset mine/preset.yaml" in out
    assert main([*words, "--trials", "2", "--study", "mine.journal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["trials"][found["best"]]
    assert f"return {best['value']:.4g}, the best" in out
    assert best["value"] == median(best["returns"].values())
    summaries = [json.loads((tmp_path / best["folder"] / f"seed-{n}" / "summary.json").read_text()) for n in (0, 2)]
    assert [*best["returns"].values()] == [summary["best/return_mean"] for summary in summaries]

    (entry,) = yaml.safe_load((tmp_path / "mine" / "preset.yaml").read_text())["ppo"].values()
    assert entry["seeds"] == [0, 2]
    assert entry["returns"] == [*best["returns"].values()]
    parsed = parse_train(
        ["ppo", "--env", "test/guess", "--preset", "mine/preset.yaml", "--seed", "2", "--loggers", "csv"]
    )
    ran = yaml.safe_load((tmp_path / best["folder"] / "seed-2" / "config.yaml").read_text())
    expected = replace(CONFIG, **{**best["settings"], "num_cells": tuple(best["settings"]["num_cells"])}, seed=2)
    assert parsed.config == expected
    assert ran["num_cells"] == best["settings"]["num_cells"]
    result = train(
        "ppo", env="test/guess", preset="mine/preset.yaml", seed=2, loggers=("csv",), out="run", display="none"
    )
    assert result.eval_return_mean == best["returns"]["2"]


def test_several_jobs_have_the_numbers_of_one(tmp_path, capsys):
    pytest.importorskip("optuna")
    words = ["tune", "ppo", *WORDS, "--env", "CartPole-v1", "--preset", "none", "--only", "gamma", "--seeds", "0-1"]
    assert main([*words, "--trials", "1", "--jobs", "2", "--study", "two.journal", "--json"]) == 0
    (two,) = json.loads(capsys.readouterr().out)["trials"]
    assert main([*words, "--trials", "1", "--study", "one.journal", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["trials"]
    assert (one["settings"], one["returns"]) == (two["settings"], two["returns"])


DYING = """
import os

import gymnasium
import numpy as np


class Dying(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        os._exit(3)
"""


def test_the_search_goes_on_after_a_process_has_died(tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    (tmp_path / "dying_env.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["tune", "ppo", *WORDS, "--env", "dying_env:Dying", "--seeds", "0-1", "--study", "one.journal"]
    assert main([*words, "--trials", "2", "--jobs", "2"]) == 1
    found = capsys.readouterr()
    assert found.out.count("failed, seed ") == 2
    assert "trial 1 failed with seed" in found.err
    assert "BrokenProcessPool" in found.err


# ------------------------------------------------------------------ presets in files


def write(path, values):
    path.write_text(yaml.safe_dump(values))
    return str(path.name)


def test_a_preset_file_is_below_options(tmp_path):
    entry = {"settings": {"gamma": 0.5, "num_cells": [8, 8], "epochs": 3}}
    file = write(tmp_path / "mine.yaml", {"ppo": {"Acrobot-v1": entry, "CartPole-v1": {"settings": {"gamma": 0.7}}}})
    config = parse_train(["ppo", "--env", "Acrobot-v1", "--preset", file, "--epochs", "4"]).config
    assert (config.gamma, config.num_cells, config.epochs) == (0.5, (8, 8), 4)
    assert parse_train(["ppo", "--env", "gym/CartPole-v1", "--preset", file]).config.gamma == 0.7
    alone = write(tmp_path / "alone.yml", {"ppo": {"Acrobot-v1": entry}})
    assert parse_train(["ppo", "--env", "test/guess", "--preset", alone]).config.gamma == 0.5
    config = parse_train(
        ["ppo", "--config", write(tmp_path / "c.yaml", {"env": "Acrobot-v1"}), "--preset", file]
    ).config
    assert (config.env, config.gamma) == ("Acrobot-v1", 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "cannot be read: No such file"),
        ([1], "has list, and nothing of ppo"),
        ({"dqn": {}}, "has dqn, and nothing of ppo"),
        ({"ppo": {"Acrobot-v1": {"gamma": 0.5}}}, "has no settings of Acrobot-v1"),
        ({"ppo": {"A-v0": {"settings": {}}, "B-v0": {"settings": {}}}}, "is for A-v0, B-v0, not for CartPole-v1"),
        ({"ppo": {"A-v0": {"settings": {"gama": 1}}}}, "there is no setting gama; did you mean gamma"),
        ({"ppo": {"A-v0": {"settings": {"gamma": 5}}}}, r"gamma must be in \[0, 1\], got 5"),
        ({"ppo": {"A-v0": {"settings": {"transform": ["subprocess:run"]}}}}, "names code of the module subprocess"),
    ],
)
def test_a_preset_file_that_cannot_be_used_is_rejected(values, message, tmp_path):
    if values is not None:
        write(tmp_path / "mine.yaml", values)
    with pytest.raises(RLError, match=message):
        parse_train(["ppo", "--preset", "mine.yaml"])
    with pytest.raises(RLError, match=message):
        train("ppo", preset="mine.yaml")


def test_a_module_that_a_preset_file_names_may_be_trusted(tmp_path):
    file = write(tmp_path / "mine.yaml", {"ppo": {"A-v0": {"settings": {"transform": ["my_module:Mine"]}}}})
    with pytest.raises(RLError, match="my_module"):
        parse_train(["ppo", "--preset", file])
    assert parse_train(["ppo", "--preset", file, "--trust", "my_module"]).config.transform == ("my_module:Mine",)
