"""``rl train`` of language models; skipped without rl-trainers."""

import json
import re

import pytest

pytest.importorskip("rl.trainers", reason="recipes need rl-trainers")

from rl.core.errors import ArgumentError, RLError
from rl.core.registry import load
from rl.llm import load_model
from rl.llm.recipes import GRPO, GRPOConfig, SFTConfig
from rl.trainers.cli import benchmark, evaluate, plot, presets, train, tune

TINY = ["--task-options", "{length: 2, digits: 2}", "--eval-problems", "4", "--threads", "1"]
FEW = [*TINY, "--display", "none"]
GROUPS = ["--groups", "2", "--group-size", "2"]


def table(folder):
    """Cells of metrics.csv without times."""
    lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(lines[0]) if not name.startswith("time/")]
    return [[line[i] for i in kept] for line in lines]


def test_the_command_trains_resumes_and_exports(tmp_path):
    run = str(tmp_path / "run")
    assert train(["grpo", "--updates", "2", *GROUPS, "--out", run, *FEW]) == 0
    assert train(["--resume", run, "--updates", "3", "--display", "none"]) == 0
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 4
    assert [one["frames"] for one in json.loads((tmp_path / "run" / "history.json").read_text())] == [0, 2]
    assert train(["sft", "--model", f"{run}/model", "--updates", "1", "--out", str(tmp_path / "sft"), *FEW]) == 0
    load_model(str(tmp_path / "sft" / "model"))


def test_a_killed_run_continues_from_its_checkpoint_with_the_same_rows_and_samples(tmp_path):
    config = GRPOConfig(updates=5, groups=2, group_size=2, eval_problems=2, eval_every=1, checkpoint_every=2, threads=1)

    def kill(update):
        if update == 3:
            raise KeyboardInterrupt
        return False

    GRPO.train(config, out=tmp_path / "whole", display="none")
    with pytest.raises(KeyboardInterrupt):
        GRPO.train(config, out=tmp_path / "killed", display="none", should_stop=kill)
    assert len(table(tmp_path / "killed")) == 1 + 3
    GRPO.train(config, resume=tmp_path / "killed", display="none")
    assert table(tmp_path / "killed") == table(tmp_path / "whole")
    samples, weights = ([tmp_path / run / name for run in ("killed", "whole")] for name in ("samples.txt", "model"))
    assert samples[0].read_text() == samples[1].read_text()
    assert (weights[0] / "model.safetensors").read_bytes() == (weights[1] / "model.safetensors").read_bytes()


def test_several_seeds_are_plotted_and_evaluated_as_those_of_other_recipes(tmp_path, capsys):
    folder = tmp_path / "runs"
    assert train(["sft", "--updates", "2", "--seeds", "0,1", "--out", str(folder), "--eval-every", "1", *FEW]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["env"] == "sort"
    assert len(summary["best/return_mean"]["values"]) == 2
    assert (folder / "learning_curve.png").is_file()
    assert plot([str(folder / "seed-0")]) == 0
    capsys.readouterr()
    assert evaluate([str(folder), "--episodes", "3"]) == 0
    assert "over 3 episodes (last policy, 2 frames)" in capsys.readouterr().out
    assert evaluate([str(folder / "seed-0"), "--stochastic", "--seed", "3"]) == 0
    with pytest.raises(RLError, match="without --video"):
        evaluate([str(folder / "seed-0"), "--video", str(tmp_path / "a.gif")])


def test_a_case_of_a_benchmark_names_the_task_as_its_environment(tmp_path):
    file = tmp_path / "cases.yaml"
    file.write_text(
        "seeds: [0]\ncases:\n  - {recipe: grpo, env: copy, frames: 1, settings: {groups: 2, group_size: 2,"
        " task_options: {length: 2}, eval_problems: 2}}\n"
    )
    assert benchmark([str(file), "--out", str(tmp_path / "out"), "--display", "none"]) == 0
    (case,) = json.loads((tmp_path / "out" / "results.json").read_text())["cases"]
    assert (case["name"], case["env"], case["frames"]) == ("grpo-copy", "copy", 1)


def test_task_and_updates_are_further_names_of_env_and_total_frames(capsys):
    config = GRPOConfig(task="copy", updates=3)
    assert (config.env, config.total_frames, config.task, config.updates) == ("copy", 3, "copy", 3)
    assert config == GRPOConfig(env="copy", total_frames=3)
    assert presets(["grpo"]) == 0
    assert "countdown" in capsys.readouterr().out


OWN = """
from rl.llm import Problem, Reply, Task

class Reverse(Task):
    max_tokens = 3

    def sample(self, rng):
        text = rng.choice(("01", "12"))
        return Problem(({"role": "user", "content": text},), text[::-1])

    def reply(self, problem, answers):
        return Reply(float(answers[-1] == problem.answer))
"""


def test_a_task_of_ones_own_is_trained_and_trusted_by_its_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_reverse_task.py").write_text(OWN)
    words = ["--task", "my_reverse_task:Reverse", "--updates", "1", *GROUPS, "--eval-problems", "2"]
    assert train(["grpo", *words, "--display", "none"]) == 0
    run = "runs/grpo-my_reverse_task-Reverse-0-1"
    with pytest.raises(RLError, match="names code of the module my_reverse_task"):
        evaluate([run])
    assert evaluate([run, "--trust", "my_reverse_task"]) == 0


def test_a_run_of_another_name_goes_to_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["expert-iteration", "--task", "copy", "--updates", "1", *GROUPS, *TINY[2:]]
    assert train([*arguments, "--task-options", "{length: 2}", "--display", "plain"]) == 0
    assert "run folder: runs/expert-iteration-copy-0-1" in capsys.readouterr().out


def test_a_stopped_run_says_so(tmp_path):
    config = GRPOConfig(updates=3, groups=2, group_size=2, eval_problems=2)
    result = GRPO.train(config, out=tmp_path / "run", display="none", should_stop=lambda update: update == 1)
    assert (result.interrupted, result.train_frames) == (True, 1)
    with pytest.raises(RLError, match="no model yet"):
        evaluate([str(tmp_path / "run")])


def test_settings_of_environments_and_bad_values_are_refused(capsys):
    assert train(["grpo", "--num-envs", "2"]) == 2
    assert train(["grpo", "--loss", "PPO"]) == 2
    assert "GRPO: loss must be" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="num_envs must be left out"):
        SFTConfig(num_envs=2)
    assert load("recipe", "grpo") is GRPO
    with pytest.raises(ValueError, match="no policy"):
        GRPO.make_policy(GRPOConfig(), None)


FILES = {
    "empty.jsonl": "",
    "broken.jsonl": '{"prompt": "01", "completion": "1"\n',
    "keys.jsonl": '{"text": "01"}\n',
    "numbers.jsonl": "3\n",
    "letters.jsonl": '{"prompt": "ab", "completion": "1"}\n',
    "question.jsonl": '{"messages": [{"role": "user", "content": "1"}]}\n',
    "bytes.jsonl": b"\xff\xfe{",
    "deep.jsonl": "[" * 100_000,
    "role.jsonl": '{"messages": [{"role": "boss", "content": "1"}, {"role": "assistant", "content": "1"}]}\n',
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sft --dataset absent.jsonl", "there is no file absent.jsonl"),
        ("sft --dataset empty.jsonl", "at least one record"),
        ("sft --dataset broken.jsonl", "broken.jsonl must have a JSON object a line"),
        ("sft --dataset keys.jsonl", "record 1 of keys.jsonl must have messages, or prompt and completion"),
        ("sft --dataset numbers.jsonl", "record 1 of numbers.jsonl must have"),
        ("sft --dataset letters.jsonl", "record 1 of letters.jsonl does not fit .*got 'ab'"),
        ("sft --dataset question.jsonl", "with an answer of the assistant"),
        ("sft --dataset role.jsonl", "record 1 of role.jsonl does not fit .*got 'boss'"),
        ("dpo --dataset keys.jsonl", "must have prompt, chosen and rejected"),
        ("grpo --dataset bytes.jsonl", "bytes.jsonl must have a JSON object a line, got .*can't decode"),
        ("sft --dataset deep.jsonl", "deep.jsonl must have a JSON object a line"),
        ("grpo --chat-template bytes.jsonl", "chat_template must be raw or a text file, got .*can't decode"),
        ("grpo --chat-template absent", "chat_template must be raw or a text file, got .*absent"),
        ("grpo --reward best", "reward must be one of exact"),
        ("grpo --task :", "':' cannot be imported"),
        ("grpo --device meta", "the device 'meta' cannot be used here"),
        ("grpo --out empty.jsonl/run", "the run folder cannot be created"),
        ("grpo --shard", "Start them with torchrun"),
        ("grpo --task sorting", "'sort', got 'sorting'"),
        ("grpo --task-options {size:3}", "--task-options must be arguments"),
        ("grpo --task-options={\"size\":3}", "options must be arguments of sort"),
        ("grpo --task-options={\"digits\":11}", "digits must be at most 10, got 11"),
        ("grpo --task countdown --task-options={\"operators\":\"^\"}", "operators must be of"),
        ("grpo --group-size 1", "group_size must be an integer of at least 2, got 1"),
        ("sft --batch-size 0", "batch_size must be an integer of at least 1, got 0"),
        ("expert-iteration --groups 0", "groups must be an integer of at least 1, got 0"),
        ("grpo --max-staleness -1", "max_staleness must be an integer of at least 0, got -1"),
        ("grpo --device cuda:99", "the device 'cuda:99' cannot be used here"),
        ("grpo --lora-rank 4", "need a model of Hugging Face, got 'tiny'"),
        ("grpo --lr 3", "here it is --learning-rate"),
        ("grpo --resume absent", "absent is not a run folder"),
        ("distill --teacher absent", "'absent' is"),
    ],
)  # fmt: skip
def test_a_wrong_command_gets_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        assert train([*words.split(), "--display", "none"]) == 2
        line = capsys.readouterr().err.strip()
    except RLError as error:  # which `rl` prints
        line = str(error)
    assert "\n" not in line
    assert re.search(message, line)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(FILES)


def test_a_run_of_another_recipe_is_not_resumed(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert train(["sft", "--updates", "1", "--out", run, *FEW]) == 0
    assert train(["grpo", "--resume", run]) == 2
    assert "about the recipe 'sft'" in capsys.readouterr().err
    with pytest.raises(RLError, match="has done all its 1 updates"):
        train(["sft", "--resume", run, "--display", "none"])


@pytest.mark.parametrize(
    ("recipe", "field"),
    [("grpo", "group_size"), ("sft", "batch_size"), ("dpo", "beta"), ("distill", "batch_size"),
     ("expert-iteration", "groups")],
)  # fmt: skip
def test_ranges_that_rl_tune_searches_are_declared(recipe, field, capsys):
    assert tune([recipe, "--help"]) == 0
    found = dict(
        re.findall(r"^  (\w+) +(\S+)$", capsys.readouterr().out.partition("but for what is typed")[2], re.MULTILINE)
    )
    assert found["learning_rate"] == "1e-5..1e-2:log"
    assert field in found


def test_a_search_without_evaluations_in_an_environment_rejects_pruning(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert tune(["grpo", "--prune", "--trials", "1"]) == 2
    assert "grpo has none: leave it out" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_help_explains_each_option(capsys):
    assert train(["grpo", "--help"]) == 0
    page = capsys.readouterr().out
    assert "Number of answers to each problem" in page
    assert "--num-envs" not in page
