"""Training runs of a few updates: learning, resuming, micro-batches, files."""

import csv
import json
import math
import threading
from dataclasses import replace

import pytest
import torch

from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.llm import (
    DPO,
    GRPO,
    SFT,
    TASKS,
    CharTokenizer,
    DAPOLoss,
    DatasetTask,
    Distillation,
    ExpertIteration,
    LLMSettings,
    Method,
    Problem,
    Reply,
    Task,
    TinyTransformer,
    TorchEngine,
    load_model,
    save_model,
    train_llm,
)
from rl.llm.environments import make_record_task  # what --reward names
from rl.llm.training import evaluate_run  # what `rl eval` runs

SMALL = {"task_options": {"length": 2, "digits": 2}, "eval_problems": 8, "eval_every": 3, "checkpoint_every": 2}
FEW = GRPO(groups=2, group_size=4, epochs=1)


METHODS = [
    FEW,
    SFT(batch_size=4),
    ExpertIteration(groups=2, group_size=4),
    DPO(pairs=2, group_size=4),
    Distillation("tiny", batch_size=4),
    GRPO(groups=2, group_size=4, epochs=1, loss="GRPOLoss"),  # with a reference, which is the model at the start
]


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


def weights(folder):
    return load_model(str(folder / "model"))[0].state_dict()


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_continues_bit_by_bit(tmp_path, method):
    settings = LLMSettings(updates=5, **SMALL)
    whole = train_llm(settings, method, out=tmp_path / "whole")
    first = train_llm(settings, method, out=tmp_path / "parts", should_stop=lambda update: update == 3)
    assert (first.interrupted, first.updates) == (True, 3)
    second = train_llm(settings, method, out=tmp_path / "parts", resume=True)
    assert (second.interrupted, second.updates, second.reward) == (False, 5, whole.reward)
    assert rows(second.folder) == rows(whole.folder)
    torch.testing.assert_close(weights(second.folder), weights(whole.folder), atol=0, rtol=0)


def test_micro_batches_give_the_same_update(tmp_path):
    found = []
    for size in (0, 3):
        result = train_llm(LLMSettings(updates=1, micro_batch=size, **SMALL), FEW, out=tmp_path / str(size))
        found.append(weights(result.folder))
    torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=0)  # Adam's first step is a sign


def test_half_precision_trains(tmp_path):
    result = train_llm(LLMSettings(updates=1, precision="bf16", **SMALL), FEW, out=tmp_path / "run")
    assert all(one.isfinite().all() for one in weights(result.folder).values())


@pytest.mark.parametrize("loss", ["GRPOLoss", "DrGRPOLoss", "GSPOLoss", "CISPOLoss", "RLOOLoss"])
def test_each_policy_loss_makes_an_update(tmp_path, loss):
    result = train_llm(LLMSettings(updates=1, **SMALL), GRPO(2, 4, 1, loss), out=tmp_path / "run")
    assert len(rows(result.folder)) == 1


def test_supervised_training_learns_a_file(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(
        '{"prompt": "01", "completion": "11"}\n'
        '{"messages": [{"role": "user", "content": "10"}, {"role": "assistant", "content": "00"}]}\n'
    )
    settings = LLMSettings(updates=50, learning_rate=3e-3, **SMALL)
    result = train_llm(settings, SFT(8, str(file)), out=tmp_path / "run")
    losses = [float(row["train/loss"]) for row in rows(result.folder)]
    assert losses[-1] < 0.1 * losses[0]
    samples = (result.folder / "samples.txt").read_text()
    assert "user: 10 | assistant: 00" in samples.split("update")[-1]
    assert json.loads((result.folder / "settings.json").read_text())["updates"] == 50


def test_what_does_not_fit_is_refused(tmp_path):
    settings = LLMSettings(updates=2, **SMALL)
    train_llm(settings, FEW, out=tmp_path / "run")
    with pytest.raises(RLError, match="exists already"):
        train_llm(settings, FEW, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="learning_rate differ"):
        train_llm(LLMSettings(updates=3, learning_rate=1.0, **SMALL), FEW, out=tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train_llm(settings, FEW, out=tmp_path / "none", resume=True)
    with pytest.raises(ValueError, match="precision"):
        LLMSettings(precision="fp8")
    with pytest.raises(ValueError, match="GRPO: loss"):
        GRPO(loss="PPO")
    with pytest.raises(ValueError, match="scale must be false with RLOOLoss"):
        GRPO(loss="RLOOLoss", scale=True)
    with pytest.raises(ValueError, match="need a model of Hugging Face"):
        load_model("tiny", lora_rank=4)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ValueError, match="record 1"):
        train_llm(settings, SFT(2, str(tmp_path / "bad.jsonl")), out=tmp_path / "other")


def test_the_divergence_from_the_model_at_the_start_is_weighted_as_the_loss_says(tmp_path):
    # It has no gradient where policy and reference are equal, so that the first of two steps is that of any weight, and
    # the second one sees the same divergence.
    settings = LLMSettings(updates=1, learning_rate=0.1, temperature=0.7, **SMALL)
    found = {}
    for weight in (None, 0.5, 0):
        method = GRPO(groups=2, group_size=4, epochs=2, loss="GRPOLoss", kl_to_ref_coeff=weight)
        (row,) = rows(train_llm(settings, method, out=tmp_path / str(weight)).folder)
        found[weight] = float(row["train/loss"])
    assert found[0.5] - found[0] > 1e-3
    assert (found[None] - found[0]) / (found[0.5] - found[0]) == pytest.approx(
        0.04 / 0.5, rel=1e-3
    )  # 0.04 in the paper


def test_a_weight_of_zero_needs_no_reference(tmp_path):
    method = GRPO(groups=2, group_size=4, epochs=1, loss="GRPOLoss", kl_to_ref_coeff=0)
    (row,) = rows(train_llm(LLMSettings(updates=1, **SMALL), method, out=tmp_path / "run").folder)
    assert "train/kl" not in row
    with pytest.raises(ArgumentError, match="kl_to_ref_coeff must be at least 0, got -1"):
        GRPO(kl_to_ref_coeff=-1)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_policy_and_reference_of_dpo_are_equal_at_the_start_at_any_temperature(tmp_path, temperature):
    settings = LLMSettings(updates=1, temperature=temperature, **SMALL)
    (row,) = rows(train_llm(settings, DPO(pairs=4, group_size=8), out=tmp_path / "run").folder)
    assert float(row["train/loss"]) == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_student_that_is_its_teacher_has_nothing_to_learn_at_any_temperature(tmp_path, temperature):
    save_model(*load_model("tiny", alphabet=TASKS["sort"].alphabet), tmp_path / "model")
    both = str(tmp_path / "model")
    settings = LLMSettings(model=both, updates=1, temperature=temperature, **SMALL)
    (row,) = rows(train_llm(settings, Distillation(both, batch_size=8), out=tmp_path / "run").folder)
    assert float(row["train/grad_norm"]) == pytest.approx(0, abs=1e-4)


def test_lengths_are_those_of_all_answers(tmp_path):
    method = ExpertIteration(groups=2, group_size=4, threshold=2.0)  # which no answer reaches
    result = train_llm(LLMSettings(updates=1, **SMALL), method, out=tmp_path / "run")
    (row,) = rows(result.folder)
    assert float(row["train/num_tokens"]) == 0
    assert float(row["train/completions/mean_length"]) >= 1


def test_the_share_of_groups_without_variance_is_logged(tmp_path):
    method = GRPO(groups=1, group_size=2, epochs=1)
    result = train_llm(LLMSettings(updates=8, **SMALL), method, out=tmp_path / "run")
    found = [(row["train/frac_reward_zero_std"], float(row["train/reward_std"]) == 0) for row in rows(result.folder)]
    assert {*found} == {("0.0", False), ("1.0", True)}


def test_answers_with_equal_rewards_are_no_preference(tmp_path):
    settings = LLMSettings(task="countdown", updates=1, eval_problems=1)  # an untrained model has the reward 0
    result = train_llm(settings, DPO(pairs=2, group_size=2), out=tmp_path / "run")
    (row,) = rows(result.folder)
    assert float(row["train/grad_norm"]) == 0


def test_a_teacher_needs_the_tokenizer_of_the_model(tmp_path):
    other = CharTokenizer("abcdefghij")  # as many characters as the task has
    save_model(TinyTransformer(len(other)), other, tmp_path / "teacher")
    for teacher, message in (("", "teacher must be a folder"), (str(tmp_path / "teacher"), "tokenizer of the model")):
        with pytest.raises(ValueError, match=message):
            train_llm(LLMSettings(updates=1), Distillation(teacher), out=tmp_path / "run")


def test_preferences_of_a_file_are_learned(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "01", "chosen": "11", "rejected": "00"}\n')
    settings = LLMSettings(updates=10, **SMALL)
    result = train_llm(settings, DPO(pairs=2, dataset=str(file)), out=tmp_path / "run")
    losses = [float(row["train/loss"]) for row in rows(result.folder)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)  # policy and reference are equal at the start
    assert losses[-1] < 0.85 * losses[0]
    file.write_text('{"prompt": "01"}\n')
    with pytest.raises(ValueError, match="record 1"):
        train_llm(settings, DPO(dataset=str(file)), out=tmp_path / "other")


def test_a_student_comes_to_have_the_answers_of_its_teacher(tmp_path):
    options = {"task_options": {"length": 2, "digits": 2}, "eval_problems": 8}
    teacher = train_llm(LLMSettings(updates=60, learning_rate=3e-3, **options), SFT(16), out=tmp_path / "teacher")
    method = Distillation(str(teacher.folder / "model"), batch_size=64)
    student = train_llm(
        LLMSettings(updates=60, seed=1, learning_rate=2e-3, **options), method, out=tmp_path / "student"
    )
    assert teacher.reward > 0.9
    assert float(rows(student.folder)[0]["train/reward"]) < 0.5
    assert student.reward > 0.8
    with pytest.raises(ValueError, match="tokenizer of the model"):
        train_llm(LLMSettings(task="guess", updates=1), method, out=tmp_path / "other")


@pytest.mark.slow
def test_grpo_learns_to_sort_from_chance(tmp_path):
    lines = []
    settings = LLMSettings(task_options={"length": 3, "digits": 3}, updates=60, learning_rate=2e-3, eval_every=60)
    result = train_llm(settings, GRPO(), out=tmp_path / "run", report=lines.append)
    assert float(rows(result.folder)[0]["train/reward"]) < 0.4
    assert result.reward > 0.8
    assert lines == [f"update 60: reward {result.reward:.3f} on 64 problems"]


@pytest.mark.parametrize("staleness", [1, 3])
def test_samples_of_a_thread_are_not_older_than_the_bound(tmp_path, staleness):
    method = GRPO(groups=2, group_size=4, epochs=1, max_staleness=staleness)
    settings = LLMSettings(updates=6, **SMALL)
    first = train_llm(settings, method, out=tmp_path / "run", should_stop=lambda update: update == 4)
    assert first.interrupted
    result = train_llm(settings, method, out=tmp_path / "run", resume=True)
    ages = [float(row["train/staleness/max"]) for row in rows(result.folder)]
    assert len(ages) == 6
    assert max(ages) <= staleness
    assert ages[0] == ages[4] == 0  # of the first batch after a start
    assert not [one for one in threading.enumerate() if one.name == "AsyncLLMCollector"]


class Endless(Task):
    """A message follows each answer."""

    alphabet, max_tokens, max_turns = "01", 20, 99

    def sample(self, rng):
        return Problem(({"role": "user", "content": "01"},), None)

    def reply(self, problem, answers):
        return Reply(0.0, ({"role": "user", "content": "0"},))


@pytest.mark.parametrize(("total", "most"), [(0, 128), (50, 50)])  # the small model has 128 positions
def test_dialogues_end_with_their_bound_or_the_positions_of_the_model(tmp_path, monkeypatch, total, most):
    lengths = []
    generate = TorchEngine.generate

    def record(engine, prompts, sampling):
        found = generate(engine, prompts, sampling)
        lengths.extend(len(prompt) + len(one.tokens) for prompt, one in zip(prompts, found, strict=True))
        return found

    monkeypatch.setattr(TorchEngine, "generate", record)
    settings = LLMSettings(task=f"{__name__}:Endless", updates=1, eval_problems=2, max_total=total)
    (row,) = rows(train_llm(settings, FEW, out=tmp_path / "run").folder)
    assert most - 5 < max(lengths) <= most  # a message and what is around it has 4 tokens
    assert float(row["train/completions/clipped_ratio"]) == 1


def test_a_run_whose_first_update_fails_leaves_no_folder(tmp_path):
    class Failing(Method):
        loss = DAPOLoss

        def batch(self):
            raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        train_llm(LLMSettings(**SMALL), Failing, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "~/nowhere"])
def test_a_missing_folder_of_a_model_is_named(name):
    with pytest.raises(ArgumentError, match=f"there is no folder {name}"):
        load_model(name)


ROWS = [{"prompt": "01", "answer": 1}, {"prompt": [{"role": "user", "content": "10"}], "answer": "0"}]


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    "method", [GRPO(groups=2, group_size=8, epochs=1), ExpertIteration(groups=2, group_size=4), Distillation("tiny", 4)]
)
def test_records_of_a_file_are_sampled_and_rewarded_by_a_reward_with_a_name(tmp_path, method):
    train, held_out = (
        write(tmp_path / "train.jsonl", ROWS),
        write(tmp_path / "test.jsonl", [{**ROWS[0], "prompt": "2"}]),
    )
    settings = LLMSettings(updates=1, eval_dataset=held_out, max_tokens=2, eval_problems=4)
    if isinstance(method, Distillation):  # with the characters of the records, which the task does not have
        teacher = CharTokenizer("".join(map(chr, range(32, 127))) + "\n")
        save_model(TinyTransformer(len(teacher)), teacher, tmp_path / "teacher")
        method = replace(method, teacher=str(tmp_path / "teacher"))
    seen = []
    reply = DatasetTask.reply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatasetTask, "reply", lambda *given: seen.append((given[1], reply(*given))) or seen[-1][1])
        result = train_llm(settings, replace(method, dataset=train), out=tmp_path / "run")
    assert {found.reward for _, found in seen} <= {0.0, 1.0}
    assert {one.messages[0]["content"] for one, _ in seen} <= {"01", "10", "2"}
    lines = (result.folder / "samples.txt").read_text().splitlines()[1:]
    assert len(lines) == 4
    assert all(line.startswith("  user: 2 | assistant: ") for line in lines)  # of the records that are held out


@pytest.mark.parametrize(
    ("text", "reward"),
    [("1", 1.0), (" 1\n", 1.0), ("<think>0</think>1", 1.0), ("<think>1", 0.0), ("01", 0.0), ("", 0.0)],
)
def test_an_answer_is_exact_without_thoughts_and_spaces(tmp_path, text, reward):
    task = make_record_task(write(tmp_path / "a.jsonl", ROWS), "exact")
    assert task.reply(task.problem(task.records[0]), [text]).reward == reward


def test_rewards_of_data_sets_have_names(tmp_path):
    row = {"question": "1+1?", "answer": "#### 2"}
    task = make_record_task(write(tmp_path / "a.jsonl", [row]), "gsm8k")
    problem = task.problem(row)
    assert [one["role"] for one in problem.messages] == ["system", "user"]
    assert task.reply(problem, ["<answer>2</answer>"]).reward == 1.0


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"answer": "1"}], {}, "record 1 must have 'prompt'"),
        ([{"prompt": "1"}], {}, "record 1 must have 'answer'"),
        ([{"prompt": 3, "answer": "1"}], {}, "a text or messages as prompt"),
        ([{"prompt": [], "answer": "1"}], {}, "a text or messages as prompt"),
        ([3], {}, "record 1 must have"),
        ([ROWS[0], {"prompt": "\u00e9", "answer": "1"}], {}, "record 2 of the data set does not fit"),
        (ROWS, {"reward": "gsm8k"}, "record 1 must have 'question'"),
    ],
)
def test_records_are_checked_before_the_run_folder_is_written(tmp_path, rows, options, message):
    method = GRPO(groups=2, group_size=2, dataset=write(tmp_path / "a.jsonl", rows), **options)
    with pytest.raises(ArgumentError, match=message):
        train_llm(LLMSettings(updates=1), method, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_held_out_file_needs_a_data_set(tmp_path):
    with pytest.raises(ArgumentError, match="holds out records of a data set"):
        train_llm(LLMSettings(eval_dataset="a.jsonl"), GRPO(), out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="reward must be one of exact, "):
        GRPO(reward="best")


@pytest.mark.parametrize("pairs", [False, True])
def test_the_loss_of_held_out_conversations_is_theirs_alone(tmp_path, pairs):
    kinds = ("chosen", "rejected") if pairs else ("completion",)
    files = [
        write(
            tmp_path / f"{name}.jsonl", [{"prompt": text, **dict(zip(kinds, answers, strict=False))} for text in texts]
        )
        for name, texts, answers in (("train", ("01", "10"), ("11", "00")), ("test", ("0", "110"), ("1", "011")))
    ]
    method = DPO(2, dataset=files[0]) if pairs else SFT(2, files[0])
    settings = LLMSettings(updates=4, eval_dataset=files[1], micro_batch=1, **{**SMALL, "eval_every": 2})
    result = train_llm(settings, method, out=tmp_path / "run")
    found = [row["eval/loss"] for row in rows(result.folder)]
    assert [bool(one) for one in found] == [False, True, False, True]
    if not pairs:  # the mean over the tokens of both answers
        model, tokenizer = load_model(str(result.folder / "model"))
        losses = []
        for prompt, answer in (("0", "1"), ("110", "1")):
            conversation = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
            encoded = tokenizer.apply_chat_template(conversation)
            ids, marks = torch.tensor([encoded["input_ids"]]), torch.tensor(encoded["assistant_masks"])
            logits = model(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
            losses += (-logits[marks[1:] == 1]).tolist()
        assert float(found[-1]) == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_texts_without_a_template_are_trained_and_evaluated_so(tmp_path):
    settings = LLMSettings(updates=1, chat_template="raw", **SMALL)
    seen = []
    generate = TorchEngine.generate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TorchEngine,
            "generate",
            lambda self, prompts, *rest: seen.extend(map(len, prompts)) or generate(self, prompts, *rest),
        )
        result = train_llm(settings, FEW, out=tmp_path / "run")
        evaluate_run(settings, FEW, result.folder, problems=3, seed=0)
    assert {*seen} == {2}  # the digits alone
    sft = train_llm(settings, SFT(batch_size=4), out=tmp_path / "sft")
    assert float(rows(sft.folder)[0]["train/num_tokens"]) == 4 * 3  # two digits and the stop token


@pytest.mark.parametrize(
    ("text", "message"), [("{{ messages }}", "template of its own"), (None, "must be raw or a text file")]
)
def test_a_template_that_cannot_be_used_is_named(tmp_path, text, message):
    if text is not None:
        (tmp_path / "chat.jinja").write_text(text)
    settings = LLMSettings(updates=1, chat_template=str(tmp_path / "chat.jinja"))
    with pytest.raises(ArgumentError, match=message):
        train_llm(settings, FEW, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("loss", "scaled"),
    [
        ("DAPOLoss", True),
        ("GRPOLoss", True),
        ("GSPOLoss", True),
        ("CISPOLoss", True),
        ("DrGRPOLoss", False),
        ("RLOOLoss", False),
    ],
)
def test_advantages_are_scaled_as_the_loss_is_published(loss, scaled):
    assert GRPO(loss=loss).scaled is scaled
    assert GRPO(loss="DAPOLoss", scale=False).scaled is False


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b'{"alphabet": 3}', b'{"letters": "ab"}', b"[" * 100_000])
def test_a_damaged_tokenizer_is_named(tmp_path, text):
    save_model(*load_model("tiny", alphabet="01"), tmp_path)
    (tmp_path / "char_tokenizer.json").write_bytes(text)
    with pytest.raises(RLError, match="load_model"):
        load_model(str(tmp_path))


def test_a_damaged_history_is_named_when_a_run_continues(tmp_path):
    settings = LLMSettings(updates=2, **SMALL)
    train_llm(settings, FEW, out=tmp_path / "run", should_stop=lambda update: update == 1)
    (tmp_path / "run" / "history.json").write_text("[")
    with pytest.raises(CheckpointError, match="train_llm"):
        train_llm(settings, FEW, out=tmp_path / "run", resume=True)
