"""Groups, dropping, partial rollouts, staleness: with engines that follow a script."""

import random
import threading
import time

import pytest
import torch

from rl.core.errors import ArgumentError, RLError
from rl.llm import (
    AsyncLLMCollector,
    CharTokenizer,
    ChatTemplate,
    Completion,
    GuessTask,
    LLMCollector,
    MCAdvantage,
    Problem,
    Reply,
    Sampling,
    ScriptedEngine,
    SortTask,
    Task,
    batch_of,
    padded,
)

TRAINED, ATTENTION = ("masks", "all_assistant_mask"), ("masks", "all_attention_mask")
TOKENIZER = CharTokenizer("0123456789?<>")
TEMPLATE = ChatTemplate(TOKENIZER)


def encoded(text):
    return TOKENIZER.encode(text, add_special_tokens=True)


def collector_of(script, task=None, **settings):
    engine = script if hasattr(script, "generate") else ScriptedEngine(script, stop_tokens=[1])
    settings = {"groups_per_batch": 2, "group_size": 2} | settings
    return LLMCollector(task or SortTask(), TEMPLATE, engine, **settings)


class EchoTask(Task):
    """The reward is the number that the policy writes."""

    max_tokens = 6

    def sample(self, rng):
        return Problem(({"role": "user", "content": "?"},), None)

    def reply(self, problem, answers):
        return Reply(float(answers[-1]))


def test_a_batch_has_tokens_masks_rewards_and_flags_of_each_response():
    groups = collector_of([encoded("7"), encoded("123"), encoded("8888888")[:6], encoded("4")], EchoTask()).collect()
    batch = batch_of(groups)
    assert batch["next", "reward"].flatten().tolist() == [7.0, 123.0, 0.0, 4.0]
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True, False]
    assert batch["next", "terminated"].flatten().tolist() == [True, True, False, True]
    assert batch["next", "done"].all()
    assert batch["group"].flatten().tolist() == [0, 0, 1, 1]
    assert batch["masks", "all_assistant_mask"].sum(-1).tolist() == [2, 4, 6, 2]
    prompt = TEMPLATE.prompt([{"role": "user", "content": "?"}]).tokens.tolist()
    assert batch["tokens", "full"][1].tolist()[: len(prompt) + 4] == prompt + encoded("123")
    rollouts = [one.rollout for group in groups for one in group.dialogues]
    expected = padded(rollouts)
    for key in expected.keys(include_nested=True, leaves_only=True):
        torch.testing.assert_close(batch[key], expected[key])
    assert MCAdvantage(2)(batch)["advantage"].shape == (4, 1)


def test_a_second_turn_follows_the_sampled_tokens_and_the_hint():
    def guess(prompt):
        return encoded("2") if TOKENIZER.encode(">")[0] in prompt else encoded("1")

    task = GuessTask(largest=2)
    groups = collector_of(guess, task, groups_per_batch=4).collect()
    for group in groups:
        answer = group.dialogues[0].problem.answer
        assert group.rewards == [1.0, 1.0]
        rollout = group.dialogues[0].rollout
        assert [one.role for one in rollout.segments()] == ["user", "assistant", "user", "assistant"][: 2 * answer]
        assert rollout.tokens.tolist() == TEMPLATE.encode(group.dialogues[0].messages)[0]


def test_a_turn_after_a_stop_string_has_the_stop_token_of_the_answer_untrained():
    class Engine:
        version = 0

        def generate(self, prompts, sampling):
            return [Completion(TOKENIZER.encode("3"), [-1.0], 0, "stop") for _ in prompts]

    group = collector_of(Engine(), GuessTask(largest=2), groups_per_batch=1).collect()[0]
    rollout = group.dialogues[0].rollout
    whole, _ = TEMPLATE.encode(group.dialogues[0].messages)
    assert [*rollout.tokens.tolist(), 1] == whole
    assert rollout.tokens[rollout.mask].tolist() == TOKENIZER.encode("33")


def test_groups_without_variance_are_dropped_and_replaced():
    script = [encoded(one) for one in ("1", "1", "1", "2", "3", "3", "4", "5")]
    collector = collector_of(script, EchoTask(), max_dropped=9)
    groups = collector.collect()
    assert [group.rewards for group in groups] == [[1.0, 2.0], [4.0, 5.0]]
    assert (collector.dropped, collector.started) == (2, 4)


def test_dropping_ends_at_its_bound():
    collector = collector_of([encoded("1")], EchoTask(), max_dropped=3)
    assert len(collector.collect()) == 2
    assert collector.dropped == 3


def test_over_sampled_groups_are_kept_for_the_next_batch():
    collector = collector_of([encoded("1")], EchoTask(), in_flight=3)
    numbers = [[group.number for group in collector.collect()] for _ in range(3)]
    assert sorted(one for part in numbers for one in part) == [0, 1, 2, 3, 4, 5]


def test_a_partial_rollout_continues_with_the_next_version_and_loses_no_token():
    lengths = {0: encoded("1"), 1: encoded("55555")}

    class Engine:
        version, sampled = 0, 0

        def generate(self, prompts, sampling):
            found = []
            for prompt in prompts:
                # The prompt of odd groups is longer by its content: "??" against "?".
                head = 4 if prompt[2] == 1 else 5
                text = lengths[head - 4][len(prompt) - head :][: sampling.max_tokens]
                self.sampled += len(text)
                engine = ScriptedEngine([text], stop_tokens=[1], version=self.version)
                found += engine.generate([prompt], sampling)
            return found

    class Alternating(EchoTask):
        count = 0

        def sample(self, rng):
            self.count += 1
            return Problem(({"role": "user", "content": "?" * (2 - self.count % 2)},), None)

    engine = Engine()
    collector = collector_of(engine, Alternating(), chunk=2, groups_per_batch=1, in_flight=2)
    batches = []
    for version in range(1, 6):
        batches += collector.collect()
        engine.version = version
    returned = [one for group in batches for one in group.dialogues]
    long = [one for one in returned if len(one.problem.messages[0]["content"]) == 2]
    assert long
    assert all(one.answers == ["55555"] for one in long)
    assert any(len({*one.versions} - {-1}) > 1 for one in long)
    assert all(one.versions == sorted(one.versions) for one in long)
    waiting = [one for group in [*collector._active, *collector._ready] for one in group.dialogues]  # in flight
    assert engine.sampled == sum(sum(version >= 0 for version in one.versions) for one in returned + waiting)
    group = batches[[one in long for one in (g.dialogues[0] for g in batches)].index(True)]
    assert group.oldest_version == min(version for version in group.dialogues[0].versions if version >= 0)


def test_a_dialogue_is_truncated_by_its_bound_of_tokens():
    groups = collector_of([encoded("9")], GuessTask(largest=3), sampling=Sampling(max_tokens=2, max_total=8)).collect()
    assert all(one.truncated and not one.terminated for group in groups for one in group.dialogues)


def test_turns_are_rows_with_their_own_rewards_and_trained_tokens():
    class Doubles(EchoTask):
        max_turns = 2

        def reply(self, problem, answers):
            follow = ({"role": "user", "content": "<"},) if answers == ["1"] else ()
            return Reply(float(answers[-1]), follow)

    groups = collector_of([encoded("1"), encoded("25"), encoded("3"), encoded("7")], Doubles()).collect()
    batch = batch_of(groups, turns=True)
    # One dialogue has two turns, and its group ends last.
    assert batch["group"].flatten().tolist() == [1, 1, 0, 0, 0]
    assert batch["next", "reward"].flatten().tolist() == [3.0, 7.0, 1.0, 1.0, 25.0]
    assert batch["next", "done"].flatten().tolist() == [True, True, False, True, True]
    trained = [row[mask].tolist() for row, mask in zip(batch["tokens", "full"], batch[TRAINED], strict=True)]
    assert trained == [encoded(one) for one in ("3", "7", "1", "1", "25")]
    rollout = groups[1].dialogues[0].rollout
    assert torch.equal(batch[TRAINED][2:4].any(0), rollout.mask)
    assert torch.equal(batch["tokens", "full"][3], rollout.tokens)
    assert (batch["policy_version"] >= 0).equal(batch[TRAINED])
    assert batch[ATTENTION][2].sum() == rollout.mask.cumsum(0).eq(2).nonzero()[0] + 1
    assert MCAdvantage(None, prompt_key="group")(batch)["advantage"].shape == (5, 1)


@pytest.mark.parametrize("chunk", [None, 2])
def test_no_dialogue_is_longer_than_its_bound_of_tokens(chunk):
    class Long(EchoTask):
        max_turns = 3

        def reply(self, problem, answers):
            return Reply(0.0, ({"role": "user", "content": "?"},))

    start = TEMPLATE.prompt([{"role": "user", "content": "?"}]).tokens.tolist()[-1]  # of an answer

    def script(prompt):
        return encoded("1234")[prompt[::-1].index(start) :]

    collector = collector_of(script, Long(), sampling=Sampling(max_tokens=6, max_total=15), chunk=chunk)
    ones = [one for group in collector.collect() for one in group.dialogues]
    # A turn has 4 tokens of the message and around it, and 5 of the answer: the second answer has 2 left.
    assert {(len(one.tokens), *one.answers, one.truncated) for one in ones} == {(15, "1234", "12", True)}


def test_the_state_restores_the_problems():
    first, second = (collector_of([encoded("0")], seed=5) for _ in range(2))
    first.collect()
    second.load_state_dict(first.state_dict())
    assert [one.dialogues[0].problem for one in first.collect()] == [
        one.dialogues[0].problem for one in second.collect()
    ]
    assert second.started == 4


class Slow:
    """Engine that takes a random time, and records the version of each token."""

    def __init__(self):
        self.inner = ScriptedEngine(lambda prompt: encoded("1"), stop_tokens=[1])
        self.rng = random.Random(0)

    version = property(lambda self: self.inner.version)

    def generate(self, prompts, sampling):
        time.sleep(self.rng.random() * 0.01)
        return self.inner.generate(prompts, sampling)

    def load_weights(self, weights, version):
        self.inner.load_weights(weights, version)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_sample_of_a_thread_is_older_than_the_bound_and_none_is_lost(staleness):
    numbers, ages, rng = [], [], random.Random(1)
    collector = collector_of(Slow(), EchoTask())
    with AsyncLLMCollector(collector, max_staleness=staleness) as threaded:
        for update in range(8):
            groups = threaded.collect()
            numbers += [group.number for group in groups]
            ages += [update - group.oldest_version for group in groups]
            time.sleep(rng.random() * 0.01)
            threaded.load_weights({}, update + 1)
    assert numbers == list(range(16))
    assert max(ages) <= staleness
    assert min(ages) >= 0


def test_dropped_groups_do_not_break_the_bound():
    script = [encoded(one) for one in ("1", "1", "1", "2")]
    collector = collector_of(script, EchoTask(), max_dropped=9)
    ages = []
    with AsyncLLMCollector(collector, max_staleness=1) as threaded:
        for update in range(6):
            groups = threaded.collect()
            assert all(len({*group.rewards}) == 2 for group in groups)
            ages += [update - group.oldest_version for group in groups]
            threaded.load_weights({}, update + 1)
    assert max(ages) <= 1


def test_a_trainer_that_loads_no_weights_is_refused_and_a_failure_is_raised():
    with AsyncLLMCollector(collector_of([encoded("1")], EchoTask()), max_staleness=0) as threaded:
        threaded.collect()
        with pytest.raises(RLError, match="Call load_weights after each update"):
            threaded.collect()
    failing = AsyncLLMCollector(collector_of([encoded("<")], EchoTask()), max_staleness=0)
    with failing, pytest.raises(RLError, match="sampling failed: could not convert"):
        failing.collect()
    assert not [one for one in threading.enumerate() if one.name == "AsyncLLMCollector"]


def test_unfit_settings_are_refused():
    for settings in ({"groups_per_batch": 0}, {"group_size": 0}, {"in_flight": 1}, {"chunk": 0}):
        with pytest.raises(ValueError, match="LLMCollector"):
            collector_of([[1]], **settings)
    with pytest.raises(ValueError, match="without chunk"):
        AsyncLLMCollector(collector_of([[1]], chunk=1), max_staleness=0)
    with pytest.raises(ValueError, match="max_tokens"):
        Sampling(max_tokens=0)


@pytest.mark.parametrize("reply", [None, 1.0, Reply("1"), Reply(None), ("1", ())])
def test_what_is_no_reply_is_named_with_its_task(reply):
    class Bad(Task):
        def sample(self, rng):
            return Problem(({"role": "user", "content": "1"},), "1")

        def reply(self, problem, answers):
            return reply

    tokenizer = CharTokenizer("01")
    engine = ScriptedEngine([[8, 1]], stop_tokens=[1])
    collector = LLMCollector(Bad(), ChatTemplate(tokenizer), engine, groups_per_batch=1, group_size=1)
    with pytest.raises(ArgumentError, match="Bad: reply must return a Reply with a number, got"):
        collector.collect()
