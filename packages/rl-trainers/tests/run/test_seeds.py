"""`rl train --seeds` and `rl benchmark`."""

import json
from dataclasses import replace
from statistics import median

import pytest
import yaml

from rl.core.cli import main
from rl.core.errors import RLError

# what a plot shows, what a command line means and what a benchmark reads, without trainings
from rl.trainers import PPOConfig, _benchmark
from rl.trainers import _report as plot
from rl.trainers._arguments import UsageError, parse_train
from rl.trainers._benchmark import check_seeds, read_cases, table, train_seeds
from rl.trainers._storage import config_yaml
from rl.trainers.algorithms.ppo import PPO

SMALL = {"num_envs": 2, "frames_per_batch": 128, "minibatch_size": 64, "epochs": 1, "eval_every": 128,
         "eval_episodes": 1, "final_eval_episodes": 2, "loggers": ["csv"]}  # fmt: skip
CONFIG = PPOConfig(env="test/guess", total_frames=256, **{**SMALL, "loggers": ("csv",)})


def read(path):
    return json.loads(path.read_text())


def test_runs_of_several_seeds_have_one_summary_and_one_plot(tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(plot, "_save", lambda figure, axes, out, again: drawn.append((axes, out.name)))
    found = train_seeds(PPO, CONFIG, (0, 2, 5), out="all", display="none")
    summary = read(tmp_path / "all" / "summary.json")
    assert summary == found
    runs = [read(tmp_path / "all" / f"seed-{seed}" / "summary.json") for seed in (0, 2, 5)]
    assert [run["seed"] for run in runs] == [0, 2, 5]
    for name in ("best/return_mean", "last/return_mean", "time/cpu_seconds"):
        values = [run[name] for run in runs]
        expected = {"median": median(values), "min": min(values), "max": max(values), "values": values}
        assert summary[name] == expected
    axes, name = drawn[-1]
    assert name == "learning_curve.png"
    curves = [plot.read_metrics(tmp_path / "all" / f"seed-{seed}" / "metrics.csv") for seed in (0, 2, 5)]
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [128, 256]
    assert line.get_ydata().tolist() == [
        median(values) for values in zip(*(curve["eval/return_mean"] for curve in curves), strict=True)
    ]


def test_the_command_continues_what_is_there(tmp_path, capsys):
    words = ["train", "ppo", "--env", "test/guess", "--total-frames", "256", "--display", "plain", "--out", "all"]
    words += [f"--{name}={value}".replace("'", "") for name, value in SMALL.items()]
    assert main([*words, "--seeds", "3,1"]) == 0
    before = (tmp_path / "all" / "seed-3" / "config.yaml").stat().st_mtime_ns
    assert main([*words, "--seeds", "3,1,4"]) == 0
    out = capsys.readouterr().out
    assert out.count("trained 256 frames") == 3
    assert "3 seeds: best policy, median return" in out
    assert (tmp_path / "all" / "seed-3" / "config.yaml").stat().st_mtime_ns == before
    assert (tmp_path / "all" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert main([*words, "--seeds", "3,1", "--gamma", "0.5"]) == 1
    assert "all/seed-3 was trained with gamma=0.99, not 0.5" in capsys.readouterr().err


def test_an_interrupted_seed_is_resumed(tmp_path, monkeypatch):
    train = PPO.train
    stop = [lambda frames: True]
    monkeypatch.setattr(PPO, "train", lambda *args, **kw: train(*args, **kw, should_stop=stop.pop() if stop else None))
    assert train_seeds(PPO, CONFIG, (0, 1), out="all", display="none") is None
    assert not (tmp_path / "all" / "seed-1").exists()
    assert train_seeds(PPO, CONFIG, (0, 1), out="all", display="none") is not None
    assert [start["frames"] for start in read(tmp_path / "all" / "seed-0" / "history.json")] == [0, 128]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0,0"], "--seeds must be different integers"),
        (["--seeds", "0,x"], "as in 0,1,2 or 0-4, got 0,x"),
        (["--seeds", "0,1", "--seed", "3"], "--seeds starts a run for each seed: remove --seed"),
    ],
)
def test_seeds_that_make_no_sense_are_rejected(words, message):
    with pytest.raises(UsageError, match=message):
        parse_train(["ppo", *words])
    assert parse_train(["ppo", "--seeds", "[4, 2]"]).seeds == (4, 2)


def write(path, values):
    path.write_text(yaml.safe_dump(values))


def test_a_benchmark_trains_what_is_missing_and_makes_a_table(tmp_path, capsys):
    cases = [
        {"recipe": "ppo", "env": "test/guess", "frames": 256, "settings": SMALL, "reference": 8, "source": "by hand"},
        {"recipe": "ppo", "env": "test/guess", "frames": 256, "settings": {**SMALL, "gamma": 0.5}, "seeds": [7],
         "name": "myopic"},
    ]  # fmt: skip
    write(tmp_path / "bench.yaml", {"seeds": [0, 1], "cases": cases[:1]})
    assert main(["benchmark", "bench.yaml", "--display", "plain"]) == 0
    assert capsys.readouterr().out.count("trained 256 frames") == 2
    write(tmp_path / "bench.yaml", {"seeds": [0, 1], "cases": cases})
    assert main(["benchmark", "bench.yaml", "--display", "plain"]) == 0
    assert capsys.readouterr().out.count("trained 256 frames") == 1
    results = read(tmp_path / "bench" / "results.json")["cases"]
    assert [(r["name"], r["seeds"], r["reference"]) for r in results] == [
        ("ppo-test-guess", [0, 1], 8.0), ("myopic", [7], None)
    ]  # fmt: skip
    text = (tmp_path / "bench" / "results.md").read_text()
    assert text == table(results)
    row = next(line for line in text.splitlines() if "ppo-test-guess" in line)
    best = results[0]["best/return_mean"]
    assert f"| 256 | 2 | {best['median']:.1f} [{best['min']:.1f}, {best['max']:.1f}] |" in row
    assert "| 8 (by hand) |" in row
    assert (tmp_path / "bench" / "myopic" / "learning_curve.png").is_file()
    cases[0]["settings"] = {**SMALL, "epochs": 2}
    write(tmp_path / "bench.yaml", {"seeds": [0, 1], "cases": cases})
    with pytest.raises(RLError, match="was trained with epochs=1, not 2"):
        train_seeds(PPO, read_cases("bench.yaml")[0][0].config, (0, 1), out="bench/ppo-test-guess", display="none")


def test_a_benchmark_trains_the_named_cases_and_keeps_the_results_of_others(tmp_path, capsys):
    case = {"recipe": "ppo", "env": "test/guess", "frames": 256, "settings": SMALL}
    write(tmp_path / "bench.yaml", {"seeds": [0], "cases": [{**case, "name": name} for name in "abc"]})
    assert main(["benchmark", "bench.yaml", "--case", "b", "--display", "none"]) == 0
    (before,) = read(tmp_path / "bench" / "results.json")["cases"]
    assert before["name"] == "b"
    assert main(["benchmark", "bench.yaml", "--case", "c", "--case", "a", "--display", "none"]) == 0
    results = read(tmp_path / "bench" / "results.json")["cases"]
    assert [result["name"] for result in results] == ["b", "a", "c"]
    assert results[0] == before
    assert main(["benchmark", "bench.yaml", "--case", "aa"]) == 2
    assert "there is no case aa; did you mean a?" in capsys.readouterr().err


def test_a_published_run_is_trained_again_and_compared(tmp_path, capsys, monkeypatch):
    case = {"recipe": "ppo", "env": "test/guess", "frames": 256, "settings": SMALL}
    write(tmp_path / "bench.yaml", {"seeds": [0, 3], "cases": [case, {**case, "name": "other"}]})
    assert main(["benchmark", "bench.yaml", "--case", "ppo-test-guess", "--display", "none"]) == 0
    (found,) = read(tmp_path / "bench" / "results.json")["cases"]
    found["runs"] = [read(tmp_path / "bench" / "ppo-test-guess" / f"seed-{seed}" / "summary.json") for seed in (0, 3)]
    (tmp_path / "presets").mkdir()
    published = tmp_path / "presets" / "results.json"
    monkeypatch.setattr(_benchmark, "files", lambda _package: tmp_path)  # of the wheel
    published.write_text(json.dumps({"cases": [found]}))
    capsys.readouterr()
    assert main(["benchmark", "bench.yaml", "--check", "--display", "none"]) == 0
    assert ": as published, " in capsys.readouterr().out
    for run in found["runs"]:
        run["last/return_mean"] += 0.5
        run["versions"]["numpy"] = "1.0"
    published.write_text(json.dumps({"cases": [found]}))
    assert main(["benchmark", "bench.yaml", "--check", "--case", "ppo-test-guess", "--display", "none"]) == 1
    out = capsys.readouterr().out
    assert "last/return_mean" in out
    assert "numpy" in out
    assert main(["benchmark", "bench.yaml", "--check", "--case", "other"]) != 0
    assert "there is no published case other" in capsys.readouterr().err
    assert main(["benchmark", "bench.yaml", "--check", "--out", "a"]) == 2


def test_a_run_of_a_version_without_a_setting_counts_as_one_with_its_default(tmp_path):
    case = {"recipe": "ppo", "env": "test/guess", "frames": 256, "settings": SMALL}
    write(tmp_path / "bench.yaml", {"seeds": [0], "cases": [case]})
    config = read_cases("bench.yaml")[0][0].config
    saved = yaml.safe_load(config_yaml("ppo", config))
    del saved["clip_value"]
    (tmp_path / "all" / "seed-0").mkdir(parents=True)
    write(tmp_path / "all" / "seed-0" / "config.yaml", saved)
    check_seeds(PPO, config, (0,), "all")
    with pytest.raises(RLError, match="was trained with epochs=1, not 2"):
        check_seeds(PPO, replace(config, epochs=2), (0,), "all")
    with pytest.raises(RLError, match=r"was trained with clip_value=0\.0, not 0\.5"):
        check_seeds(PPO, replace(config, clip_value=0.5), (0,), "all")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "has nothing; write seeds"),
        ({"cases": [{"recipe": "ppo"}]}, "case 1: a case has recipe and env"),
        ({"cases": [{"recipe": "ppo", "env": "a", "fames": 1}]}, "case 1: a case has recipe and env"),
        ({"cases": [{"recipe": "pppo", "env": "a"}]}, "case 1: there is no recipe 'pppo'; did you mean 'ppo'"),
        (
            {"cases": [{"recipe": "ppo", "env": "a", "settings": {"clip_epsilon": 3}}]},
            r"case 1: PPOConfig: clip_epsilon must be in",
        ),
        (
            {"cases": [{"recipe": "ppo", "env": "a", "settings": {"resume": "b"}}]},
            "case 1: settings has resume, which",
        ),
        ({"cases": [{"recipe": "ppo", "env": "a", "settings": {"out": "b"}}]}, "case 1: settings has out, which is no"),
        ({"cases": [{"recipe": "ppo", "env": "a"}] * 2}, "several cases ppo-a: give each a name"),
    ],
)
def test_a_wrong_file_is_rejected_before_anything_is_trained(values, message, tmp_path, capsys):
    write(tmp_path / "bench.yaml", values)
    with pytest.raises(UsageError, match=message):
        read_cases("bench.yaml")
    assert main(["benchmark", "bench.yaml"]) == 2
    assert not (tmp_path / "bench").exists()


def test_a_folder_of_seeds_is_plotted_and_evaluated_run_by_run(tmp_path, capsys):
    train_seeds(PPO, CONFIG, (10, 2), out="all", display="none")
    for run in ("all", "all/seed-2", "all/seed-10"):
        (tmp_path / run / "learning_curve.png").unlink()
    assert main(["plot", "all"]) == 0
    assert capsys.readouterr().out.split() == [
        f"{run}learning_curve.png" for run in ("all/seed-2/", "all/seed-10/", "all/")
    ]
    assert (tmp_path / "all" / "learning_curve.png").is_file()
    assert main(["eval", "all", "--episodes", "2"]) == 0
    *each, last = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in each] == ["all/seed-2", "all/seed-10"]
    assert main(["eval", "all/seed-10", "--episodes", "2"]) == 0
    assert f"all/seed-10: {capsys.readouterr().out.strip()}" == each[1]
    assert last.startswith("2 seeds: median ")
    assert main(["eval", "all", "--video", "a.gif"]) == 1
    assert "all has 2 runs, and --video shows one: name one, as in all/seed-2" in capsys.readouterr().err


def test_one_seed_has_no_range(tmp_path, capsys):
    found = train_seeds(PPO, CONFIG, (4,), out="one", display="plain")
    best = found["best/return_mean"]["median"]
    assert f"1 seed: best policy, return {best:.1f}\n" in capsys.readouterr().out
    row = table([{"name": "a", **found, "reference": None, "source": ""}]).splitlines()[2]
    assert f"| {best:.1f} |" in row
    assert "[" not in row.replace("[curve]", "")
