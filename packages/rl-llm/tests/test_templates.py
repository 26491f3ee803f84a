"""Histories, and chat templates on a small tokenizer and on one of Hugging Face: masks, checks, refusals."""

from importlib.util import find_spec

import pytest
import torch

from rl.core.errors import ArgumentError
from rl.llm import ChatHistory, ChatTemplate, History, Rollout, Segment

CHAT = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "<think>so</think>hi"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "later"},
]


def chatml(messages, start="", stop_marked=True, drops=False, marked=True):
    """Pieces of text, each with the mark of the assistant."""
    last = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=-1)
    for i, one in enumerate(messages):
        mine = one["role"] == "assistant" and marked
        content = one["content"]
        if drops and one["role"] == "assistant" and i < last:
            content = content.split("</think>")[-1]
        yield f"<|im_start|>{one['role']}\n", False
        yield content, mine
        yield "<|im_end|>", mine and stop_marked
        yield "\n", False


TEMPLATES = {
    "good": {},
    "drops thinking": {"drops": True},
    "stop token not marked": {"stop_marked": False},
    "no marks": {"marked": False},
}


class Characters:
    """Tokenizer of characters, with one token for each control sequence."""

    special = ("<|im_start|>", "<|im_end|>")
    eos_token_id = 1

    def __init__(self, template="good"):
        self.chat_template = template
        self.encoded = []

    def encode(self, text, *, add_special_tokens=True):
        self.encoded.append(text)
        ids = []
        while text:
            found = next((i for i, one in enumerate(self.special) if text.startswith(one)), None)
            ids.append(found if found is not None else ord(text[0]) + 2)
            text = text[1 if found is None else len(self.special[found]) :]
        return ids

    def decode(self, token_ids):
        return "".join(self.special[token] if token < 2 else chr(token - 2) for token in token_ids)

    def apply_chat_template(self, conversation, *, chat_template, add_generation_prompt, **options):
        assert options["tokenize"]
        ids, masks = [], []
        for text, mark in chatml(conversation, **TEMPLATES[chat_template]):
            part = self.encode(text)
            ids += part
            masks += [int(mark)] * len(part)
        if add_generation_prompt:
            part = self.encode("<|im_start|>assistant\n")
            ids, masks = ids + part, masks + [0] * len(part)
        return {"input_ids": ids, "assistant_masks": masks}


JINJA = """{%- set last = namespace(index=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.index = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\n' -}}
{%- if m.role == 'assistant' -%}
{%- set text = m.content.split('</think>')[-1] if DROPS and loop.index0 < last.index else m.content -%}
OPEN{{- text STOP_INSIDE -}}CLOSE{{- STOP_OUTSIDE '\n' -}}
{%- else -%}
{{- m.content + '<|im_end|>' + '\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


def jinja(drops=False, stop_marked=True, marked=True):
    marks = ("{%- generation -%}", "{%- endgeneration -%}") if marked else ("", "")
    text = JINJA.replace("DROPS", str(drops).lower()).replace("OPEN", marks[0]).replace("CLOSE", marks[1])
    inside, outside = ("+ '<|im_end|>'", "") if stop_marked else ("", "'<|im_end|>' +")
    return text.replace("STOP_INSIDE", inside).replace("STOP_OUTSIDE", outside)


def hugging_face(name):
    """A tokenizer of bytes that is trained here, with a template of ours."""
    import tokenizers
    import transformers

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special)
    inner.train_from_iterator([one["content"] for one in CHAT], trainer)
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    found.chat_template = jinja(**{key: value for key, value in TEMPLATES[name].items() if key != "start"})
    return found


needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.fixture(params=["characters", pytest.param("hugging face", marks=needs_transformers)])
def tokenizer(request):
    return Characters if request.param == "characters" else hugging_face


def test_a_good_template_passes_and_marks_what_the_assistant_writes(tokenizer):
    one = tokenizer("good")
    template = ChatTemplate(one)
    template.check()
    tokens, marks = template.encode(CHAT)
    trained = [token for token, mark in zip(tokens, marks, strict=True) if mark]
    assert one.decode(trained) == "<think>so</think>hi<|im_end|>later<|im_end|>"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("drops thinking", "earlier tokens change when messages follow"),
        ("stop token not marked", "the stop token is not marked"),
        ("no marks", "does not mark the assistant's tokens"),
    ],
)
def test_a_bad_template_is_refused_with_the_reason(name, reason, tokenizer):
    template = ChatTemplate(tokenizer(name))
    with pytest.raises(ArgumentError, match=reason):
        template.check()
    found = (template.is_prefix_preserving(), template.is_stop_token_trained(), template.marks_assistant())
    assert (
        found
        == {
            "drops thinking": (False, True, True),
            "stop token not marked": (True, False, True),
            "no marks": (True, False, False),
        }[name]
    )


def test_a_text_is_refused_as_prompt_unless_it_is_raw(tokenizer):
    """A string skipped the template without an error: reward and gradient were 0 (TRL 1.9.2)."""
    one = tokenizer("good")
    template = ChatTemplate(one)
    with pytest.raises(ArgumentError, match="got a text"):
        template.prompt("hello")
    with pytest.raises(ArgumentError, match="got a conversation"):
        template.prompt(CHAT[:2], raw=True)
    assert one.decode(template.prompt("hello", raw=True).tokens.tolist()) == "hello"
    text = one.decode(template.prompt(CHAT[:2]).tokens.tolist())
    assert text.endswith("<|im_start|>assistant\n")


def test_a_given_conversation_is_a_rollout_with_trained_answers(tokenizer):
    one = tokenizer("good")
    template = ChatTemplate(one)
    rollout = template.rollout(History.from_chats(CHAT))
    assert rollout.tokens.tolist() == template.encode(CHAT)[0]
    assert rollout.mask.tolist() == template.encode(CHAT)[1]
    assert [segment.role for segment in rollout.segments() if segment.mask.all()] == ["assistant"] * 2
    for name in ("drops thinking", "no marks"):
        with pytest.raises(ArgumentError, match="ChatTemplate: "):
            ChatTemplate(tokenizer(name)).rollout(CHAT)


def test_sampled_tokens_are_not_encoded_again_in_several_turns(tokenizer):
    one = tokenizer("good")
    template = ChatTemplate(one)
    rollout = Rollout.of([template.prompt(CHAT[:2])])
    # The same text as other tokens than the tokenizer writes, as a sampler may return them.
    stop = one.encode("<|im_end|>", add_special_tokens=False)
    sampled = [token for letter in "ok" for token in one.encode(letter, add_special_tokens=False)] + stop
    rollout = rollout.append(Segment.sampled(sampled, [-0.1] * len(sampled), version=0))
    answer = {"role": "assistant", "content": "ok"}
    tool = {"role": "tool", "content": "42"}
    rollout = rollout.append(template.continuation([*CHAT[:2], answer], [tool]))
    assert rollout.segments()[1].tokens.tolist() == sampled
    whole = [*CHAT[:2], answer, tool]
    assert rollout.text(one) == one.decode(template.encode(whole, add_generation_prompt=True)[0])
    with pytest.raises(ArgumentError, match="earlier tokens change"):
        ChatTemplate(tokenizer("drops thinking")).continuation(CHAT[:3], CHAT[3:4])


def test_a_tokenizer_without_template_or_stop_token_is_refused():
    one = Characters(None)
    with pytest.raises(ArgumentError, match="has no chat_template"):
        ChatTemplate(one)
    ChatTemplate(one, template="good").check()
    one.eos_token_id = None
    with pytest.raises(ArgumentError, match="has no eos_token_id"):
        ChatTemplate(one, template="good")
    ChatTemplate(one, template="good", stop_tokens=[1]).check()


def test_histories_keep_messages_and_calls_of_tools():
    call = {"name": "add", "arguments": {"a": 1, "b": 2}}
    messages = [*CHAT[:2], {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "3"}]
    history = History.from_chats(messages)
    assert history.batch_size == torch.Size([4])
    assert history.messages() == messages
    assert history[2].messages() == [messages[2]]
    longer = history.append(History(role="assistant", content="three"))
    assert [one["content"] for one in longer.messages()[-2:]] == ["3", "three"]
    assert history.extend(history).messages() == messages * 2
    chat = ChatHistory(prompt=history, response=longer[-1], full=longer)
    assert chat.response.content == "three"
    assert chat.full.messages() == longer.messages()


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user"}], [{"role": "person", "content": "x"}], [{"role": "user", "content": "x", "mood": 1}]],
)
def test_messages_that_are_not_of_a_conversation_are_refused(messages):
    with pytest.raises(ArgumentError, match="History"):
        History.from_chats(messages)


def test_texts_without_a_template_are_one_after_the_other_with_a_stop_token_after_each_answer():
    tokenizer = Characters(template=None)
    template = ChatTemplate(tokenizer, template="raw")
    template.check()
    rollout = template.rollout(CHAT)
    assert rollout.text(tokenizer) == "ruleshello there<think>so</think>hi<|im_end|>byelater<|im_end|>"
    assert tokenizer.decode(rollout.tokens[rollout.mask].tolist()) == "<think>so</think>hi<|im_end|>later<|im_end|>"
    with pytest.raises(ArgumentError, match="must show tools"):
        ChatTemplate(tokenizer, template="raw", tools=[{}])
