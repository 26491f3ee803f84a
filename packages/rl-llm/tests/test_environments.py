"""Environments of dialogues and transforms of their batches."""

import json

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, lazy_stack
from torch import nn

from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import missing_env_members
from rl.llm import (
    AddThinkingPrompt,
    CharTokenizer,
    ChatEnv,
    ChatTemplate,
    CountdownEnv,
    DataLoadingPrimer,
    GSM8KEnv,
    GuessTask,
    History,
    IFEvalEnv,
    IfEvalScorer,
    IncrementalTokenizer,
    KLRewardTransform,
    LLMEnv,
    MATHEnv,
    RetrieveKL,
    Rollout,
    Sampling,
    Segment,
    SortTask,
    TemplateTransform,
    TinyTransformer,
    TokenScorer,
    TransformersWrapper,
    padded,
    read_records,
)

TOKENIZER = CharTokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)


def answered(td, *texts, complete=True):
    ones = [History(role="assistant", content=text, is_complete=complete).unsqueeze(0) for text in texts]
    return td.set(("history", "response"), lazy_stack(ones))


def prompts(td):
    histories = td.get(("history", "prompt"))
    return [histories[i].messages() for i in range(len(td))]


def test_a_dialogue_of_two_turns_in_each_mode():
    for mode in ("history", "text", "tokens"):
        env = ChatEnv(GuessTask(largest=2), TEMPLATE, input_mode=mode, batch_size=3, seed=3)
        td = env.reset()
        numbers = [one.problem.answer for one in env._dialogues]
        assert {*numbers} == {1, 2}

        def respond(td, texts, env=env, mode=mode):
            if mode == "history":
                return answered(td, *texts)
            if mode == "text":
                return td.set(("text", "response"), NonTensorStack(*texts))
            rows = []
            for i, text in enumerate(texts):
                prompt = td["tokens", "prompt"][i][td["masks", "all_attention_mask"][i]]
                sampled = TOKENIZER.encode(text, add_special_tokens=True)
                given = Segment.given(prompt, role="user")
                rows.append(Rollout.of([given, Segment.sampled(sampled, [0.0] * len(sampled), version=0)]))
            return td.update(padded(rows))

        first = env.step(respond(td, ["1"] * 3))["next"]
        assert first["reward"].flatten().tolist() == [float(one == 1) for one in numbers]
        assert first["terminated"].flatten().tolist() == [one == 1 for one in numbers]
        assert not first["truncated"].any()
        root = env.reset(TensorDict({"_reset": first["done"]}, batch_size=[3]))
        second = env.step(respond(root, ["2" if one == 2 else "9" for one in numbers]))["next"]
        assert all(second["reward"][i] == 1 for i, one in enumerate(numbers) if one == 2)


def test_tokens_of_the_second_prompt_begin_with_what_was_sampled():
    env = LLMEnv(GuessTask(largest=9), TEMPLATE, seed=1)
    td = env.reset()
    wrong = "1" if env._dialogues[0].problem.answer != 1 else "2"
    prompt = td["tokens", "prompt"][0]
    sampled = TOKENIZER.encode(wrong, add_special_tokens=True)
    rollout = Rollout.of([Segment.given(prompt, role="user"), Segment.sampled(sampled, [0.0] * 2, version=0)])
    after = env.step(td.update(padded([rollout])))["next", "tokens", "prompt"][0].tolist()
    assert after[: len(rollout.tokens)] == rollout.tokens.tolist()
    assert len(after) > len(rollout.tokens)


def test_a_response_that_was_cut_is_truncated_without_a_reward():
    env = ChatEnv(GuessTask(largest=1))
    after = env.step(answered(env.reset(), "1", complete=False))["next"]
    assert (after["reward"].item(), after["terminated"].item(), after["truncated"].item()) == (0.0, False, True)


@pytest.mark.parametrize("mode", ["history", "text"])
def test_a_dialogue_that_used_up_its_tokens_is_truncated(mode):
    def second_turn(budget):
        env = ChatEnv(GuessTask(largest=9), TEMPLATE, input_mode=mode, seed=1, max_total=budget)
        td = env.reset()
        wrong = "1" if env._dialogues[0].problem.answer != 1 else "2"
        td = answered(td, wrong) if mode == "history" else td.set(("text", "response"), NonTensorStack(wrong))
        after = env.step(td)["next"]
        assert not after["terminated"]
        return bool(after["truncated"]), len(TEMPLATE.encode(env._dialogues[0].messages, add_generation_prompt=True)[0])

    truncated, used = second_turn(None)
    assert not truncated
    assert [second_turn(budget)[0] for budget in (used, used + 1)] == [True, False]
    with pytest.raises(ValueError, match="max_total need a template"):
        ChatEnv(GuessTask(), max_total=9)


def test_instructions_that_need_a_detector_of_languages():
    record = {"prompt": "Say", "instruction_id_list": ["language:response_language"], "kwargs": [{"language": "de"}]}
    env = IFEvalEnv([record], scorer=IfEvalScorer(detect_language=lambda text: "de"))
    assert env.step(answered(env.reset(), "Ja"))["next", "reward"].item() == 1.0


def test_a_policy_and_an_environment_make_steps():
    torch.manual_seed(0)
    model = TinyTransformer(len(TOKENIZER), width=16, depth=1, heads=2)
    env = LLMEnv(SortTask(), TEMPLATE, batch_size=4)
    policy = TransformersWrapper(model, TOKENIZER, input_mode="tokens", sampling=Sampling(max_tokens=5))
    root = env.reset()
    for _ in range(2):
        stepped, root = env.step_and_maybe_reset(policy(root))
        assert stepped["next", "reward"].shape == (4, 1)
        assert stepped["next", "done"].all()
    assert missing_env_members(env) == []
    env.close()


def test_seeds_repeat_problems_and_what_is_missing_is_named():
    env = ChatEnv(SortTask(), batch_size=2)
    assert env.set_seed(3) == 4
    first = prompts(env.reset())
    env.set_seed(3)
    assert prompts(env.reset()) == first
    assert env.full_done_spec.zero()["truncated"].shape == (2, 1)
    assert env.full_reward_spec.zero()["reward"].shape == (2, 1)
    assert ("history", "prompt") in env.observation_spec.keys(include_nested=True, leaves_only=True)
    with pytest.raises(ContractError, match="response"):
        env.step(env.reset())
    with pytest.raises(ContractError, match="after reset"):
        ChatEnv(SortTask()).step(TensorDict({}, batch_size=[1]))
    with pytest.raises(ValueError, match="need a template"):
        ChatEnv(SortTask(), input_mode="tokens")


@pytest.mark.parametrize(
    ("make", "record", "answer", "shown"),
    [
        (GSM8KEnv, {"question": "1+1?", "answer": "#### 2"}, "<answer>2</answer>", "1+1?"),
        (MATHEnv, {"problem": "Half?", "solution": r"$\boxed{\frac{1}{2}}$"}, "<answer>0.5</answer>", "Half?"),
        (CountdownEnv, {"nums": [3, 4], "target": 7}, "<answer>3+4</answer>", "numbers 3, 4 once"),
        (IFEvalEnv, {"prompt": "Say", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}, "a", "Say"),
    ],
)
def test_records_of_a_file_become_dialogues(tmp_path, make, record, answer, shown):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(record) + "\n")
    env = make(file, batch_size=2)
    td = env.reset()
    assert all(shown in one[-1]["content"] for one in prompts(td))
    after = env.step(answered(td, answer, ", "))["next"]
    assert after["reward"].flatten().tolist() == [1.0, 0.0]
    (tmp_path / "list.json").write_text(json.dumps([record]))
    assert read_records(tmp_path / "list.json") == [record]
    with pytest.raises(ValueError, match="Download the data set"):
        make(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="at least one record"):
        read_records([])


@pytest.mark.parametrize(
    ("env", "record", "missing"),
    [
        (GSM8KEnv, {"question": "1 + 1?"}, "answer"),
        (MATHEnv, {"problem": "1 + 1?"}, "solution"),
        (CountdownEnv, {"nums": [1, 2]}, "target"),
        (IFEvalEnv, {"prompt": "Say it.", "kwargs": []}, "instruction_id_list"),
    ],
)
def test_a_record_without_what_its_reward_reads_is_named_before_it_is_played(env, record, missing):
    with pytest.raises(ArgumentError, match=f"record 1 must have '{missing}', an entry of prompt or reward"):
        env([record])


def test_records_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ValueError, match="record 2 must have 'question'"):
        GSM8KEnv([{"question": "1+1?", "answer": "#### 2"}, {"text": "2"}])
    (tmp_path / "broken.jsonl").write_text('{"question": "1+1?"}\n{"question"\n')
    with pytest.raises(ValueError, match=r"broken\.jsonl must have a JSON object a line, got '{\"question\"'"):
        GSM8KEnv(tmp_path / "broken.jsonl")


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_divergence_from_the_reference_lowers_the_reward(estimator):
    torch.manual_seed(0)
    rows = [([1], [2, 3], [-1.0, -2.0]), ([1, 2], [3], [-0.5])]
    batch = padded(
        [Rollout.of([Segment.given(p, role="user"), Segment.sampled(t, lp, version=0)]) for p, t, lp in rows]
    )
    batch["next"] = TensorDict({"reward": torch.ones(2, 1)}, batch_size=[2])
    table = nn.Embedding(5, 5)
    out = KLRewardTransform(TokenScorer(table), coeff=0.5, estimator=estimator)(batch)
    for i, (prompt, tokens, sampled) in enumerate(rows):
        total = 0.0
        for before, token, log_prob in zip([prompt[-1], *tokens], tokens, sampled, strict=False):
            x = torch.tensor(log_prob) - table.weight[before].log_softmax(-1)[token].detach()
            total += float({"k1": x, "k2": x**2 / 2, "k3": torch.exp(-x) - 1 + x}[estimator])
        assert out["next", "reward"][i].item() == pytest.approx(1 - 0.5 * total, abs=1e-5)
    with pytest.raises(ValueError, match="estimator"):
        RetrieveKL("k4")


def test_templates_and_incremental_tokens_agree():
    chats = [[{"role": "user", "content": "12"}], [{"role": "user", "content": "3"}]]
    td = TensorDict({}, batch_size=[2]).set(("history", "prompt"), lazy_stack(list(map(History.from_chats, chats))))
    whole = TemplateTransform(TEMPLATE)(td.clone())
    assert whole["tokens", "prompt"].tolist() == IncrementalTokenizer(TEMPLATE)(td.clone())["tokens", "prompt"].tolist()
    longer = [[*chat, {"role": "assistant", "content": "4"}, {"role": "user", "content": "5"}] for chat in chats]
    known = [Rollout.of([Segment.given(TEMPLATE.encode(one[:2])[0], role="user")]) for one in longer]
    td = padded(known).set(("history", "prompt"), lazy_stack(list(map(History.from_chats, longer))))
    whole = TemplateTransform(TEMPLATE)(td.clone())["tokens", "prompt"]
    assert IncrementalTokenizer(TEMPLATE)(td)["tokens", "prompt"].tolist() == whole.tolist()


def test_a_wrong_answer_gets_a_second_thought_once():
    env = ChatEnv(SortTask(length=2, digits=2), batch_size=2)
    td = env.reset()
    right = "".join(sorted(prompts(td)[0][0]["content"]))
    think = AddThinkingPrompt(lambda row: row["reward"] < 1, "Again.")
    after = env.step(answered(td, right, "99"))["next"]
    out = think(think(after))
    assert out["done"].flatten().tolist() == [True, False]
    assert out["reward"].flatten().tolist() == [1.0, 0.0]
    assert [one[-1]["content"] == "Again." for one in prompts(out)] == [False, True]
    assert sum(one["content"] == "Again." for one in prompts(out)[1]) == 1


def test_records_are_dealt_in_epochs_and_resume():
    records = [{"text": str(i), "level": i} for i in range(3)]
    primer = DataLoadingPrimer(records, repeats=2, seed=1)
    epoch = primer(TensorDict({}, batch_size=[6]))
    assert sorted(epoch["level"].flatten().tolist()) == [0, 0, 1, 1, 2, 2]
    other = DataLoadingPrimer(records, repeats=2, seed=1)
    other.load_state_dict(primer.state_dict())
    following = [one(TensorDict({}, batch_size=[4]))["level"].tolist() for one in (primer, other)]
    assert following[0] == following[1]
    with pytest.raises(ValueError, match="multiple of repeats"):
        primer(TensorDict({}, batch_size=[3]))


def test_records_may_have_empty_lines_a_mark_of_their_encoding_and_any_character(tmp_path):
    file = tmp_path / "records.jsonl"
    rows = [{"q": "a\u2028b\x85c\u00e9"}, {"q": "2"}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    file.write_bytes(("\ufeff" + "\r\n\n".join(lines) + "\n\n").encode())
    assert read_records(file) == rows
    file.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    assert read_records(file) == rows
