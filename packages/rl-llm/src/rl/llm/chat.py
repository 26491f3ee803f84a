"""Conversations with TorchRL's names: messages, and text, tokens and masks of prompt and response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from tensordict import TensorClass, lazy_stack
from torch import Tensor

from rl.core.arguments import one_of
from rl.core.errors import ArgumentError
from rl.llm.rollouts import ROLES, Rollout

__all__ = ["ChatHistory", "History", "LogProbs", "Masks", "Text", "Tokens"]


class History(TensorClass["nocast"]):
    """Messages of a conversation, ``[T]``, or one message, ``[]``.

    Attributes:
        role: Role of each message, one of `ROLES`.
        content: Text of each message.
        is_complete: Whether the message ended with its stop token.
        tool_calls: Calls of tools in the message: dictionaries as chat templates read them; None without any.
        tool_responses: Results of tools; None without any.

    Example:
        >>> history = History.from_chats([{"role": "user", "content": "1+1"}])
        >>> history = history.append(History(role="assistant", content="2"))
        >>> list(history.role), history[-1].content
        (['user', 'assistant'], '2')
        >>> history.messages()[1]
        {'role': 'assistant', 'content': '2'}
    """

    role: str
    content: str
    is_complete: bool = True
    tool_calls: list[dict[str, Any]] | None = None
    tool_responses: list[str] | None = None

    @classmethod
    def from_chats(cls, messages: Sequence[Mapping[str, Any]]) -> Self:
        """Return the history of messages as dictionaries.

        Args:
            messages: Dictionaries with ``role`` and ``content``, and optionally ``tool_calls`` and ``tool_responses``.

        Raises:
            ArgumentError: If there is no message, a role is unknown, or a message has another key.
        """
        if not messages:
            raise ArgumentError("History: at least one message is needed, got none")
        known = {"role", "content", "tool_calls", "tool_responses"}
        for one in messages:
            if not {"role", "content"} <= one.keys() <= known:
                raise ArgumentError(f"History: a message has role, content and tool_calls, got {sorted(one)}")
            one_of(one["role"], "History", "role", ROLES)
        return lazy_stack([cls(**one) for one in messages])

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages as dictionaries, as chat templates read them."""
        ones = [self] if not self.batch_size else [self[i] for i in range(self.batch_size[0])]
        found: list[dict[str, Any]] = []
        for one in ones:
            extra = {"tool_calls": one.tool_calls, "tool_responses": one.tool_responses}
            present = {name: list(value) for name, value in extra.items() if value is not None}
            found.append({"role": one.role, "content": one.content, **present})
        return found

    def append(self, message: Self) -> Self:
        """Return the history with one more message."""
        return self.extend(message)

    def extend(self, other: Self) -> Self:
        """Return the history with the messages of another one at the end."""
        parts = [part if part.batch_size else part.unsqueeze(0) for part in (self, other)]
        return lazy_stack([part[i] for part in parts for i in range(part.batch_size[0])])


class ChatHistory(TensorClass["nocast"]):
    """Conversation before a response, the response, and both.

    Attributes:
        prompt: Messages before the response.
        response: Messages of the response.
        full: All messages.
    """

    prompt: History | None = None
    response: History | None = None
    full: History | None = None


class Text(TensorClass["nocast"]):
    """Text of a prompt, a response, and both: a view of tokens, which is not encoded again.

    Attributes:
        prompt: Text of the prompt.
        response: Text of the response.
        full: Text of both.
    """

    prompt: str | None = None
    response: str | None = None
    full: str | None = None

    @classmethod
    def of(cls, rollout: Rollout, tokenizer: Any) -> Self:
        prompt, response = (rollout.text(tokenizer, part=part) for part in ("prompt", "response"))
        return cls(prompt=prompt, response=response, full=rollout.text(tokenizer))


class Tokens(TensorClass["nocast"]):
    """Tokens of a prompt, a response, and both, int64.

    Attributes:
        prompt: Tokens of the prompt.
        response: Tokens of the response.
        full: Tokens of both.
        padded: Whether rows are padded to one length.
    """

    prompt: Tensor | None = None
    response: Tensor | None = None
    full: Tensor | None = None
    padded: bool | None = None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        return cls(prompt=rollout.prompt, response=rollout.response, full=rollout.tokens, padded=False)


class Masks(TensorClass["nocast"]):
    """Masks of tokens, bool.

    Attributes:
        all_attention_mask: False for padding.
        all_assistant_mask: True for tokens that are trained.
        padded: Whether rows are padded to one length.
    """

    all_attention_mask: Tensor | None = None
    all_assistant_mask: Tensor | None = None
    padded: bool | None = None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        mask = rollout.mask
        return cls(all_attention_mask=mask.new_ones(mask.shape), all_assistant_mask=mask, padded=False)


class LogProbs(TensorClass["nocast"]):
    """Log-probabilities of the tokens of a prompt, a response, and both, nats.

    Attributes:
        prompt: Those of the prompt, 0 for tokens that were given.
        response: Those of the response.
        full: Those of both.
        padded: Whether rows are padded to one length.
    """

    prompt: Tensor | None = None
    response: Tensor | None = None
    full: Tensor | None = None
    padded: bool | None = None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        start = len(rollout.prompt)
        values = rollout.log_prob
        return cls(prompt=values[:start], response=values[start:], full=values, padded=False)
