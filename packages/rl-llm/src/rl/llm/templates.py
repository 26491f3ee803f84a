"""Chat templates: messages to tokens once, masks of trained tokens, and checks of what training needs of a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from rl.core.arguments import one_of
from rl.core.errors import ArgumentError
from rl.llm.chat import History
from rl.llm.rollouts import ROLES, Rollout, Segment, Tokenizer

__all__ = ["ChatTemplate"]

Messages = Sequence[Mapping[str, Any]]


_PROBE: Messages = (
    {"role": "user", "content": "alpha"},
    {"role": "assistant", "content": "<think>beta</think>gamma"},
    {"role": "user", "content": "delta"},
    {"role": "assistant", "content": "epsilon"},
)


@final
class ChatTemplate:
    """Chat template of a tokenizer, with the checks that training needs.

    - **Prefix-preserving**: the tokens of a conversation do not change when messages follow. Some templates drop
      earlier thinking, and a rollout of several turns is then not what the policy saw.
    - **Stop token trained**: the mask of an assistant message includes the token that ends it, else the policy never
      learns to stop.
    - **Assistant tokens marked**: the template has ``{% generation %}`` marks around what the assistant writes, and
      around nothing else.

    Args:
        tokenizer: Tokenizer of the policy.
        template: Template in Jinja that replaces that of the tokenizer; "raw" for the texts of messages one after the
            other, each of the assistant with the first stop token; None for the tokenizer's own.
        stop_tokens: Tokens that end a message; ``eos_token_id`` of the tokenizer if None.
        tools: Descriptions of tools that the template shows to the policy.

    Raises:
        ArgumentError: If the tokenizer has neither a template nor a stop token, and none is given; or there are tools
            and no template that shows them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: str | None = None,
        stop_tokens: Sequence[int] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> None:
        self.tokenizer, self.tools = tokenizer, tools
        self.template = tokenizer.chat_template if template is None else template
        if self.template is None:
            raise ArgumentError(
                "ChatTemplate: the tokenizer has no chat_template. Set that of the tokenizer, or pass template= or"
                " --chat-template"
            )
        if tools is not None and self.template == "raw":
            raise ArgumentError("ChatTemplate: template must show tools to the policy, got 'raw'")
        stops = [tokenizer.eos_token_id] if stop_tokens is None else stop_tokens
        self.stop_tokens = [int(one) for one in stops if one is not None]
        if not self.stop_tokens:
            raise ArgumentError("ChatTemplate: the tokenizer has no eos_token_id. Pass stop_tokens=")

    def encode(
        self, messages: History | Messages, *, add_generation_prompt: bool = False
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a conversation, and whether the template marks them as the assistant's.

        Args:
            messages: Conversation.
            add_generation_prompt: Whether the start of an assistant message follows, for sampling.
        """
        ones = _dictionaries(messages)
        if self.template == "raw":
            return self._encode_raw(ones)
        found = self.tokenizer.apply_chat_template(
            ones,
            chat_template=self.template,
            tools=None if self.tools is None else list(self.tools),
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return [int(one) for one in found["input_ids"]], [bool(one) for one in found["assistant_masks"]]

    def _encode_raw(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
        tokens: list[int] = []
        marks: list[bool] = []
        for one in messages:
            mine = one["role"] == "assistant"
            part = [*self.tokenizer.encode(one["content"], add_special_tokens=False), *self.stop_tokens[: int(mine)]]
            tokens += part
            marks += [mine] * len(part)
        return tokens, marks

    def prompt(self, prompt: str | History | Messages, *, raw: bool = False) -> Segment:
        """Return the tokens from which a response is sampled.

        Args:
            prompt: Conversation, to which the start of an assistant message is added; a text with `raw`.
            raw: Whether the prompt is a text that is encoded as it is, without the template.

        Raises:
            ArgumentError: If the prompt is a text without `raw`, or a conversation with it.
        """
        if isinstance(prompt, str) != raw:
            got = "a text" if isinstance(prompt, str) else "a conversation"
            raise ArgumentError(
                f"ChatTemplate: prompt must be {'a text with raw=True' if raw else 'a conversation'}, got {got}. A text"
                " skips the template: pass [{'role': 'user', 'content': ...}], or raw=True if that is meant"
            )
        if isinstance(prompt, str):
            return Segment.given(self.tokenizer.encode(prompt, add_special_tokens=False), role="user")
        return Segment.given(self.encode(prompt, add_generation_prompt=True)[0], role="user")

    def continuation(
        self, messages: History | Messages, new: History | Messages, *, role: str = "tool", stopped: bool = True
    ) -> Segment:
        """Return the tokens of messages that follow a sampled response, and of the start of the next one.

        The sampled tokens are not encoded again: the result is what the template adds after the stop token of the
        response.

        Args:
            messages: Conversation up to and with the sampled response.
            new: Messages that follow, such as results of tools.
            role: Role of the segment.
            stopped: Whether the response has its stop token; the result begins with it otherwise, as after a stop
                string.

        Raises:
            ArgumentError: If the template changes earlier tokens when messages follow, or writes no stop token.
        """
        before = self.encode(messages)[0]
        after = self.encode([*_dictionaries(messages), *_dictionaries(new)], add_generation_prompt=True)[0]
        _check_prefix(before, after, self.tokenizer)
        stops = [i for i, token in enumerate(before) if token in self.stop_tokens]
        if not stops:
            raise ArgumentError("ChatTemplate: the template writes no stop token after a response. Pass stop_tokens=")
        return Segment.given(after[stops[-1] + int(stopped) :], role=one_of(role, "ChatTemplate", "role", ROLES))

    def rollout(self, messages: History | Messages) -> Rollout:
        """Return a given conversation as a rollout for supervised training: one segment for each message or part of it.

        Args:
            messages: Conversation; the tokens that the template marks are trained.

        Raises:
            ArgumentError: If the template marks no token, or changes earlier tokens when messages follow.
        """
        ones = _dictionaries(messages)
        tokens, marks = self.encode(ones)
        if not any(marks):
            raise ArgumentError(f"ChatTemplate: {_UNMARKED}")
        segments: list[Segment] = []
        start = 0
        for count in range(1, len(ones) + 1):
            part = self.encode(ones[:count])[0]
            _check_prefix(part, tokens, self.tokenizer)
            segments += _split(tokens[start : len(part)], marks[start : len(part)], ones[count - 1]["role"])
            start = len(part)
        return Rollout.of(segments)

    def is_prefix_preserving(self, messages: History | Messages = _PROBE) -> bool:
        """Return whether tokens of a conversation stay as they are when messages follow."""
        ones = _dictionaries(messages)
        whole = self.encode(ones)[0]
        for count in range(1, len(ones)):
            waiting = ones[count]["role"] == "assistant"
            for prompt in (False, True) if waiting else (False,):
                part = self.encode(ones[:count], add_generation_prompt=prompt)[0]
                if whole[: len(part)] != part:
                    return False
        return True

    def is_stop_token_trained(self, messages: History | Messages = _PROBE) -> bool:
        """Return whether each run of marked tokens includes a stop token."""
        runs = _runs(*self.encode(messages))
        return bool(runs) and all(any(token in self.stop_tokens for token in run) for run in runs)

    def marks_assistant(self, messages: History | Messages = _PROBE) -> bool:
        """Return whether the marked tokens are the assistant's messages and not those of others."""
        ones, runs = _dictionaries(messages), _runs(*self.encode(messages))
        answers = [one["content"] for one in ones if one["role"] == "assistant"]
        others = [one["content"] for one in ones if one["role"] != "assistant"]
        texts = [self.tokenizer.decode(run) for run in runs]
        if len(texts) != len(answers):
            return False
        right = all(answer.split(">")[-1] in text for answer, text in zip(answers, texts, strict=True))
        return right and not any(other in text for text in texts for other in others)

    def check(self, *, given: bool = True, turns: bool = True) -> None:
        """Raise unless the template has what training needs.

        Args:
            given: Whether given answers are trained. Those that are sampled need no marks.
            turns: Whether messages follow an answer. A single answer may be changed afterwards.

        Raises:
            ArgumentError: If it does not; the message names each fault.
        """
        prompt, answered = self.encode(_PROBE[:1], add_generation_prompt=True)[0], self.encode(_PROBE[:2])[0]
        ends = any(token in self.stop_tokens for token in answered[len(prompt) :])
        stops = self.tokenizer.decode(self.stop_tokens)
        faults = [
            text
            for good, text in (
                (
                    ends,
                    f"it ends an answer without {stops}, the stop token: save the tokenizer with that of the template",
                ),
                (not given or self.marks_assistant(), _UNMARKED),
                (
                    not given or not ends or self.is_stop_token_trained(),
                    "the stop token is not marked: the policy would not learn to stop",
                ),
                (not turns or self.is_prefix_preserving(), "earlier tokens change when messages follow"),
            )
            if not good
        ]
        if faults:
            raise ArgumentError(
                f"ChatTemplate: {'; '.join(faults)}. Pass a template for training with template= or --chat-template"
            )


_UNMARKED = "the template does not mark the assistant's tokens with {% generation %}"


def _dictionaries(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, History):
        return messages.messages()
    return [dict(one) for one in messages]


def _runs(tokens: list[int], marks: list[bool]) -> list[list[int]]:
    """Return the consecutive marked tokens."""
    runs: list[list[int]] = []
    for i, (token, mark) in enumerate(zip(tokens, marks, strict=True)):
        if mark and (i == 0 or not marks[i - 1]):
            runs.append([])
        if mark:
            runs[-1].append(token)
    return runs


def _split(tokens: list[int], marks: list[bool], role: str) -> list[Segment]:
    """Return a segment for each run of equal marks; given tokens have no log-probability."""
    found: list[Segment] = []
    start = 0
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or marks[end] != marks[start]:
            segment = Segment.given(tokens[start:end], role=role)
            segment.mask = torch.full_like(segment.mask, marks[start])
            found.append(segment)
            start = end
    return found


def _check_prefix(part: list[int], whole: list[int], tokenizer: Tokenizer) -> None:
    if whole[: len(part)] == part:
        return
    pairs = zip(part, whole, strict=False)
    where = next((i for i, (a, b) in enumerate(pairs) if a != b), len(whole))
    context = tokenizer.decode(part[max(0, where - 3) : where + 3])
    raise ArgumentError(
        f"ChatTemplate: earlier tokens change when messages follow, first at token {where} near {context!r}. Pass a"
        " template that keeps them with template="
    )
