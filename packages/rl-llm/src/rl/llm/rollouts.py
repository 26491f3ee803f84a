"""Token containers: segments, rollouts, and batches of them for losses; text is a view of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from tensordict import TensorClass, TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import NestedKey
from rl.llm._keys import ATTENTION, LOG_PROBS, SEQUENCE, TOKENS, TRAINED, VERSION

__all__ = ["ROLES", "Rollout", "Segment", "Tokenizer", "nested", "packed", "padded"]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of segments; a rollout has their positions in this list."""


class Tokenizer(Protocol):
    """What is used of a tokenizer; those of Hugging Face have it."""

    chat_template: Any
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """Return a mapping with ``input_ids`` and, with ``return_assistant_tokens_mask``, ``assistant_masks``."""


class Segment(TensorClass):
    """Consecutive tokens of one origin: a prompt, a sampled response, the result of a tool.

    A response that two policies sampled, one after the other, is two segments.

    Attributes:
        tokens: Tokens, int64 ``[N]``, as they were sampled or encoded.
        log_prob: Log-probability of each token when it was sampled, nats, ``[N]``; 0 for tokens that were given.
        mask: Trained tokens, bool ``[N]``.
        role: Role, one of `ROLES`.
        version: Version of the policy that sampled the tokens; -1 for tokens that were given.

    Example:
        >>> prompt = Segment.given([5, 6], role="user")
        >>> response = Segment.sampled([7, 8, 2], log_prob=[-0.1, -0.5, -0.2], version=3)
        >>> Rollout.of([prompt, response]).mask
        tensor([False, False,  True,  True,  True])
    """

    tokens: Tensor
    log_prob: Tensor
    mask: Tensor
    role: str
    version: int

    @classmethod
    def given(cls, tokens: Sequence[int] | Tensor, *, role: str) -> Self:
        """Return a segment that is not trained.

        Args:
            tokens: Tokens, ``[N]``.
            role: Role, one of `ROLES`.

        Raises:
            ArgumentError: If the role is unknown.
        """
        ids = _ids(tokens)
        one_of(role, "Segment", "role", ROLES)
        log_prob, mask = torch.zeros(ids.shape), torch.zeros(ids.shape, dtype=torch.bool)
        return cls(tokens=ids, log_prob=log_prob, mask=mask, role=role, version=-1, batch_size=[len(ids)])

    @classmethod
    def sampled(
        cls,
        tokens: Sequence[int] | Tensor,
        log_prob: Sequence[float] | Tensor,
        *,
        version: int,
        role: str = "assistant",
    ) -> Self:
        """Return a segment whose tokens are all trained, the stop token included.

        Args:
            tokens: Sampled tokens, ``[N]``.
            log_prob: Log-probability of each token under the sampler, nats, ``[N]``.
            version: Version of the policy that sampled them, at least 0.
            role: Role, one of `ROLES`.

        Raises:
            ArgumentError: If the role is unknown or the version is negative.
            ShapeError: If there is not one log-probability for each token.
        """
        ids, found = _ids(tokens), torch.as_tensor(log_prob).float()
        one_of(role, "Segment", "role", ROLES)
        as_integer(version, "Segment", "version", least=0)
        if found.shape != ids.shape:
            raise ShapeError(f"Segment: log_prob must be {list(ids.shape)}, as the tokens, got {list(found.shape)}")
        mask = torch.ones(ids.shape, dtype=torch.bool)
        return cls(tokens=ids, log_prob=found, mask=mask, role=role, version=version, batch_size=[len(ids)])


def _ids(tokens: Sequence[int] | Tensor) -> Tensor:
    """Return tokens as int64 ``[N]``."""
    if isinstance(tokens, str):
        raise ArgumentError("Segment: tokens must be integers, got a text. Encode it once, with a ChatTemplate")
    ids = torch.as_tensor(tokens, dtype=None if len(tokens) else torch.int64)
    if ids.ndim != 1 or ids.is_floating_point() or ids.dtype is torch.bool:
        raise ShapeError(f"Segment: tokens must be integers [N], got {ids.dtype} {list(ids.shape)}")
    return ids.long()


class Rollout(TensorClass):
    """Tokens of one trajectory: the segments of a conversation one after the other, ``[N]``.

    Attributes:
        tokens: Tokens, int64 ``[N]``.
        log_prob: Log-probability of each token when it was sampled, nats, ``[N]``; 0 for tokens that were given.
        mask: Trained tokens, bool ``[N]``.
        segment: Number of the segment of each token, int64 ``[N]``.
        role: Position of the segment's role in `ROLES`, int64 ``[N]``.
        version: Version of the policy that sampled the token, int64 ``[N]``; -1 for tokens that were given.

    Example:
        >>> rollout = Rollout.of([Segment.given([5, 6], role="user")])
        >>> rollout = rollout.append(Segment.sampled([7, 2], [-0.1, -0.2], version=0))
        >>> [(segment.role, segment.tokens.tolist()) for segment in rollout.segments()]
        [('user', [5, 6]), ('assistant', [7, 2])]
        >>> rollout.prompt.tolist(), rollout.response.tolist()
        ([5, 6], [7, 2])
    """

    tokens: Tensor
    log_prob: Tensor
    mask: Tensor
    segment: Tensor
    role: Tensor
    version: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Self:
        """Return the rollout of some segments, in order.

        Args:
            segments: Segments; empty ones are left out.

        Raises:
            ArgumentError: If there is no token.
        """
        filled = [one for one in segments if len(one.tokens)]
        if not filled:
            raise ArgumentError("Rollout: at least one token is needed, got none")
        sizes = torch.tensor([len(one.tokens) for one in filled])
        device = filled[0].tokens.device

        def repeated(values: list[int]) -> Tensor:
            return torch.tensor(values).repeat_interleave(sizes).to(device)

        return cls(
            tokens=torch.cat([one.tokens for one in filled]),
            log_prob=torch.cat([one.log_prob for one in filled]),
            mask=torch.cat([one.mask for one in filled]),
            segment=repeated(list(range(len(filled)))),
            role=repeated([ROLES.index(one.role) for one in filled]),
            version=repeated([int(one.version) for one in filled]),
            batch_size=[int(sizes.sum())],
        )

    def segments(self) -> list[Segment]:
        """Return the segments, in order."""
        sizes = self.segment.unique_consecutive(return_counts=True)[1].tolist()
        return [
            Segment(
                tokens=part.tokens,
                log_prob=part.log_prob,
                mask=part.mask,
                role=ROLES[int(part.role[0])],
                version=int(part.version[0]),
                batch_size=part.batch_size,
            )
            for part in self.split(sizes)
        ]

    def append(self, *segments: Segment) -> Self:
        """Return a rollout with further segments at the end; its tokens so far stay as they are."""
        return type(self).of([*self.segments(), *segments])

    @property
    def prompt(self) -> Tensor:
        """Tokens before the first trained token, int64."""
        return self.tokens[: self._start]

    @property
    def response(self) -> Tensor:
        """Tokens from the first trained token to the end, results of tools included, int64."""
        return self.tokens[self._start :]

    @property
    def _start(self) -> int:
        return int((self.mask.cumsum(-1) == 0).sum())

    def text(self, tokenizer: Tokenizer, *, part: str = "full") -> str:
        """Return the text of the tokens, special tokens included.

        Args:
            tokenizer: Tokenizer of the policy.
            part: "prompt", "response" or "full".

        Raises:
            ArgumentError: If the part is unknown.
        """
        one_of(part, "Rollout.text", "part", ("prompt", "response", "full"))
        tokens = self.tokens if part == "full" else getattr(self, part)
        return tokenizer.decode(tokens.tolist())


_LEAVES: tuple[tuple[NestedKey, str], ...] = (
    (TOKENS, "tokens"),
    (TRAINED, "mask"),
    (LOG_PROBS, "log_prob"),
    (VERSION, "version"),
)


def _check(rollouts: Sequence[Rollout], values: dict[str, Tensor], owner: str) -> None:
    if not rollouts:
        raise ArgumentError(f"{owner}: at least one rollout is needed, got none")
    for name, value in values.items():
        if value.ndim < 2 or len(value) != len(rollouts):
            raise ShapeError(
                f"{owner}: {name} must be [{len(rollouts)}, ...] with a trailing dimension, got {list(value.shape)}"
            )


def padded(rollouts: Sequence[Rollout], *, pad_token: int = 0, side: str = "right", **values: Tensor) -> TensorDict:
    """Return rollouts as rows of one length, ``[B]``, for a loss.

    Writes ``("tokens", "full")``, ``("masks", "all_attention_mask")``, ``("masks", "all_assistant_mask")``,
    ``("log_probs", "full")`` and ``policy_version``, ``[B, T]``.

    Args:
        rollouts: Rollouts.
        pad_token: Token of the padding.
        side: Side of the padding, "right" or "left".
        values: Further entries for each rollout, ``[B, ...]``, such as rewards or advantages ``[B, 1]``.

    Raises:
        ArgumentError: If there is no rollout, or the side is unknown.
        ShapeError: If an entry has another number of rows.

    Example:
        >>> short = Rollout.of([Segment.given([5], role="user"), Segment.sampled([2], [-0.1], version=0)])
        >>> long = Rollout.of([Segment.given([5], role="user"), Segment.sampled([7, 2], [-0.1, -0.2], version=0)])
        >>> padded([short, long], advantage=torch.ones(2, 1))["tokens", "full"]
        tensor([[5, 2, 0],
                [5, 7, 2]])
    """
    _check(rollouts, values, "padded")
    one_of(side, "padded", "side", ("right", "left"))
    td, _ = _join(rollouts, [[i] for i in range(len(rollouts))], pad_token, side)
    return td.update(values)


def _join(rollouts: Sequence[Rollout], rows: list[list[int]], pad_token: int, side: str) -> tuple[TensorDict, Tensor]:
    """Return the entries of rows of rollouts, and the number of the rollout of each token, -1 for padding."""
    fills = {"tokens": pad_token, "version": -1}

    def joined(parts: list[Tensor], fill: float) -> Tensor:
        found = [torch.cat([parts[i] for i in row]) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=fill, padding_side=side)

    td = TensorDict({}, batch_size=[len(rows)])
    for key, name in _LEAVES:
        td.set(key, joined([getattr(one, name) for one in rollouts], fills.get(name, 0)))
    index = joined([torch.full_like(one.tokens, i) for i, one in enumerate(rollouts)], -1)
    return td.set(ATTENTION, index >= 0), index


def packed(
    rollouts: Sequence[Rollout], *, row_tokens: int | None = None, pad_token: int = 0, **values: Tensor
) -> TensorDict:
    """Return rollouts one after the other, in one row or in few, for a loss.

    Writes the entries of `padded`, and ``("tokens", "sequence")`` int64 ``[R, T]``, the number of the rollout. The cost
    of attention grows with the length of a row: pass `row_tokens` for long batches.

    Args:
        rollouts: Rollouts.
        row_tokens: Largest number of tokens of a row, which holds the longest rollouts that fit first; one row without
            padding if None.
        pad_token: Token of the padding at the end of rows.
        values: Further entries for each rollout, ``[B, ...]``; each token gets that of its rollout.

    Raises:
        ArgumentError: If there is no rollout, or one is longer than a row.
        ShapeError: If an entry has another number of rows.

    Example:
        >>> rollouts = [Rollout.of([Segment.given([5] * size, role="user")]) for size in (3, 2, 4, 1)]
        >>> packed(rollouts, row_tokens=5)["tokens", "sequence"]
        tensor([[2, 2, 2, 2, 3],
                [0, 0, 0, 1, 1]])
    """
    _check(rollouts, values, "packed")
    rows = [list(range(len(rollouts)))] if row_tokens is None else _fill_rows(rollouts, row_tokens)
    td, index = _join(rollouts, rows, pad_token, "right")
    td.set(SEQUENCE, index)
    return td.update({name: value[index.clamp(min=0)] for name, value in values.items()})


def _fill_rows(rollouts: Sequence[Rollout], row_tokens: int) -> list[list[int]]:
    """Return the numbers of the rollouts of each row: the longest first, each in the first row with enough space."""
    sizes = [len(one.tokens) for one in rollouts]
    if max(sizes) > row_tokens:
        raise ArgumentError(f"packed: row_tokens must be at least {max(sizes)}, the longest rollout, got {row_tokens}")
    rows: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        row = next((j for j, space in enumerate(left) if space >= sizes[i]), len(rows))
        if row == len(rows):
            rows.append([])
            left.append(row_tokens)
        rows[row].append(i)
        left[row] -= sizes[i]
    return rows


def nested(rollouts: Sequence[Rollout], **values: Tensor) -> TensorDict:
    """Return rollouts as rows of their own lengths, ``[B]`` with jagged entries; losses compute with them packed.

    Writes the entries of `padded`, without a mask of padding.

    Args:
        rollouts: Rollouts.
        values: Further entries for each rollout, ``[B, ...]``.

    Raises:
        ArgumentError: If there is no rollout.
        ShapeError: If an entry has another number of rows.
    """
    _check(rollouts, values, "nested")
    td = TensorDict({}, batch_size=[len(rollouts)])
    sizes = torch.tensor([0, *(len(one.tokens) for one in rollouts)])
    offsets = sizes.cumsum(0).to(rollouts[0].tokens.device)
    for key, name in _LEAVES:
        flat = torch.cat([getattr(one, name) for one in rollouts])
        td.set(key, torch.nested.nested_tensor_from_jagged(flat, offsets))
    return td.update(values)


def packed_from_nested(td: TensorDictBase) -> TensorDictBase:
    """Return a batch of `nested`, ``[B]``, as one packed row; any other batch as it is."""
    keys: list[Any] = list(td.keys(include_nested=True, leaves_only=True))
    jagged = [key for key in keys if isinstance(td[key], Tensor) and td[key].is_nested]
    if not jagged:
        return td
    rows = {key: td[key].unbind() for key in jagged}  # slices of jagged tensors share the values of all rows
    sizes = torch.tensor([len(one) for one in rows[jagged[0]]], device=td[jagged[0]].device)
    index = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
    row = TensorDict({}, batch_size=[1])
    for key in keys:
        value = torch.cat(rows[key]) if key in rows else td[key][index]
        row.set(key, value.unsqueeze(0))
    return row.set(SEQUENCE, index.unsqueeze(0))
