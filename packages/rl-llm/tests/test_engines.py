"""Engines against a model that is called without a cache."""

import pytest
import torch

from rl.core.errors import ArgumentError
from rl.llm import (
    CharTokenizer,
    ChatTemplate,
    Engine,
    Rollout,
    Sampling,
    ScriptedEngine,
    Segment,
    TinyTransformer,
    TokenScorer,
    TorchEngine,
    nested,
    packed,
    padded,
)

TOKENIZER = CharTokenizer("0123456789")
PROMPTS = [[8, 9], [10], [8, 9, 10, 11, 12], [7, 7, 7], [14, 8]]


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = TinyTransformer(len(TOKENIZER), width=16, depth=2, heads=2, max_length=32)
    torch.nn.init.normal_(model.head.weight)  # far from uniform, so that a fault of the cache shows
    return model


@torch.no_grad()
def greedy(model, prompt, count):
    """Greedy tokens and their log-probabilities, from the whole sequence each time."""
    tokens, found = list(prompt), []
    for _ in range(count):
        log_probs = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(int(log_probs.argmax()))
        found.append(float(log_probs.max()))
        if tokens[-1] == 1:
            break
    return tokens[len(prompt) :], found


@pytest.mark.parametrize("max_batch", [1, 2, 5])
def test_a_batch_in_flight_gives_what_the_model_gives_without_a_cache(model, max_batch):
    engine = TorchEngine(model, stop_tokens=[1], max_batch=max_batch)
    found = engine.generate(PROMPTS, Sampling(max_tokens=7, temperature=0))
    for prompt, one in zip(PROMPTS, found, strict=True):
        tokens, log_probs = greedy(model, prompt, 7)
        assert one.tokens == tokens
        assert one.log_probs == pytest.approx(log_probs, abs=1e-4)
        assert one.finish == ("stop" if tokens[-1] == 1 else "length")


def test_equal_prompts_are_computed_once(model):
    rows = []
    model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    engine = TorchEngine(model, stop_tokens=[1], seed=3)
    found = engine.generate([PROMPTS[0]] * 4 + [PROMPTS[3]] * 2 + [PROMPTS[0]], Sampling(max_tokens=1))
    assert rows == [2]
    for prompt, one in zip([PROMPTS[0]] * 4 + [PROMPTS[3]] * 2 + [PROMPTS[0]], found, strict=True):
        log_probs = model(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        assert one.log_probs[0] == pytest.approx(float(log_probs[one.tokens[0]].detach()), abs=1e-5)


def test_recorded_log_probabilities_are_those_of_the_scorer_at_the_temperature(model):
    engine = TorchEngine(model, stop_tokens=[1], max_batch=2)
    prompt = Rollout.of([Segment.given(PROMPTS[0], role="user")])
    for one in engine.generate([PROMPTS[0]] * 4, Sampling(max_tokens=6, temperature=0.7)):
        rollout = prompt.append(one.segment)
        scored = engine.score([rollout], temperature=0.7)[0]
        torch.testing.assert_close(scored[2:], rollout.log_prob[2:], atol=1e-4, rtol=0)


def test_samples_are_those_of_the_seed_and_have_the_right_frequencies(model):
    first, second = (
        TorchEngine(model, stop_tokens=[1], seed=3).generate([[8]] * 3000, Sampling(max_tokens=1)) for _ in range(2)
    )
    assert first == second
    expected = model(torch.tensor([[8]])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor([one.tokens[0] for one in first]), minlength=len(TOKENIZER))
    torch.testing.assert_close(counts / 3000, expected.detach(), atol=0.04, rtol=0)


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(model):
    engine = TorchEngine(model, stop_tokens=[], tokenizer=TOKENIZER)
    whole = engine.generate([[13]], Sampling(max_tokens=8, temperature=0))[0]
    text = TOKENIZER.decode(whole.tokens)
    stop = text[1:3]
    cut = engine.generate([[13]], Sampling(max_tokens=8, temperature=0, stop_strings=(stop,)))[0]
    assert TOKENIZER.decode(cut.tokens) == text[: text.index(stop) + 2]
    assert (whole.finish, cut.finish) == ("length", "stop")
    with pytest.raises(ValueError, match="stop_strings need a tokenizer"):
        TorchEngine(model, stop_tokens=[1]).generate([[8]], Sampling(stop_strings=("1",)))


def test_a_response_ends_with_the_tokens_of_its_dialogue(model):
    model.head.bias = torch.nn.Parameter(torch.eye(len(TOKENIZER))[1] * -1e9)  # which never stops
    found = TorchEngine(model, stop_tokens=[1]).generate(PROMPTS, Sampling(max_tokens=4, max_total=6))
    assert [len(one.tokens) for one in found] == [4, 4, 1, 3, 4]
    assert {one.finish for one in found} == {"length"}
    assert len(TorchEngine(model, stop_tokens=[1]).generate([[8] * 9], Sampling(max_total=6))[0].tokens) == 1


def test_weights_come_with_a_rising_version_that_tokens_carry(model):
    engine = TorchEngine(model, stop_tokens=[1])
    other = {name: one + 1 for name, one in model.state_dict().items()}
    engine.load_weights(other, 3)
    assert engine.generate([[8]], Sampling(max_tokens=1))[0].version == 3
    assert torch.equal(model.head.weight, other["head.weight"])
    for engine_of in (engine, ScriptedEngine([[1]], stop_tokens=[1], version=3)):
        assert isinstance(engine_of, Engine)
        with pytest.raises(ValueError, match="version must be above the present one"):
            engine_of.load_weights(other, 3)


def test_the_model_scores_padded_and_packed_rows_alike(model):
    scorer = TokenScorer(model)
    rollouts = [Rollout.of([Segment.given(one, role="user")]) for one in PROMPTS]
    rows = [scorer(padded([one]))["log_probs", "full"][0] for one in rollouts]
    for side in ("left", "right"):
        td = scorer(padded(rollouts, side=side))
        found = td["log_probs", "full"][td["masks", "all_attention_mask"]]
        torch.testing.assert_close(found, torch.cat(rows), atol=1e-5, rtol=0)
    torch.testing.assert_close(scorer(packed(rollouts))["log_probs", "full"][0], torch.cat(rows), atol=1e-5, rtol=0)
    td = scorer(packed(rollouts, row_tokens=6))
    assert td["tokens", "full"].shape == (3, 6)
    for i, row in enumerate(rows):
        found = td["log_probs", "full"][td["tokens", "sequence"] == i]
        torch.testing.assert_close(found, row, atol=1e-5, rtol=0)
    assert nested(rollouts).batch_size == (5,)


def test_a_scripted_engine_answers_by_prompt():
    engine = ScriptedEngine(lambda prompt: [prompt[-1], 1], stop_tokens=[1], log_prob=-2.0)
    found = engine.generate([[3, 4], [5]], Sampling(max_tokens=1))
    assert [(one.tokens, one.log_probs, one.finish) for one in found] == [
        ([4], [-2.0], "length"),
        ([5], [-2.0], "length"),
    ]
    assert engine.score([Rollout.of([Segment.given([3, 4], role="user")])])[0].tolist() == [0.0, -2.0]
    with pytest.raises(ValueError, match="at least one response"):
        ScriptedEngine([], stop_tokens=[1])


def test_the_tokenizer_of_characters_passes_the_checks_of_templates():
    template = ChatTemplate(CharTokenizer())
    template.check()
    with pytest.raises(ValueError, match="got 'a'"):
        TOKENIZER.encode("1a")
    with pytest.raises(ValueError, match="different characters"):
        CharTokenizer("11")


def test_the_model_refuses_longer_sequences_and_unfit_sizes():
    with pytest.raises(ValueError, match="at most max_length"):
        TinyTransformer(5, max_length=4)(torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="multiple of heads"):
        TinyTransformer(5, width=10)


@pytest.mark.parametrize("wrong", [-1, 17, 1 << 40])
def test_a_token_that_the_model_does_not_have_is_named(wrong):
    engine = TorchEngine(TinyTransformer(17, width=16, depth=1, heads=2), stop_tokens=[1])
    message = f"tokens must be from 0 to 16, the vocabulary of the model, got {wrong}"
    with pytest.raises(ArgumentError, match=message):
        engine.generate([[3], [4, wrong]], Sampling(2))
    with pytest.raises(ArgumentError, match=message):
        engine.score([Rollout.of([Segment.given([4, wrong], role="user")])])


@pytest.mark.parametrize("prompt", ["12", [5.5], [[5]], None, [], torch.tensor([5.0]), ["5"]])
def test_a_prompt_that_is_no_list_of_tokens_is_named(prompt):
    engine = TorchEngine(TinyTransformer(17, width=16, depth=1, heads=2), stop_tokens=[1])
    with pytest.raises(ArgumentError, match="prompts must be lists of tokens"):
        engine.generate([[3], prompt], Sampling(2))


def test_stops_are_tokens_and_texts():
    model = TinyTransformer(17, width=16, depth=1, heads=2)
    with pytest.raises(ArgumentError, match="a stop token must be an integer, got None"):
        TorchEngine(model, stop_tokens=[None])
    with pytest.raises(ArgumentError, match="stop_strings must be a tuple of texts, got '12'"):
        Sampling(2, stop_strings="12")
