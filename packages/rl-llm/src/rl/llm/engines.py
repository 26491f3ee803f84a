"""Engines, which sample and score tokens: the protocol, one in plain torch, and one that follows a script."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError
from rl.llm._keys import LOG_PROBS
from rl.llm.log_probs import TokenScorer, accepted_arguments, token_positions
from rl.llm.rollouts import Rollout, Segment, Tokenizer, padded

__all__ = ["Completion", "Engine", "Sampling", "ScriptedEngine", "TorchEngine"]


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled.

    Args:
        max_tokens: Largest number of tokens of a response.
        temperature: Number by which logits are divided; 0 takes the most probable token.
        stop_strings: Texts that end a response; they stay in it.
        max_total: Largest number of tokens of a dialogue, its prompt included; no bound if None. A longer prompt has a
            response of one token.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    stop_strings: tuple[str, ...] = ()
    max_total: int | None = None

    def __post_init__(self) -> None:
        as_integer(self.max_tokens, "Sampling", "max_tokens", least=1)
        as_number(self.temperature, "Sampling", "temperature", least=0)
        if isinstance(self.stop_strings, str):
            raise ArgumentError(f"Sampling: stop_strings must be a tuple of texts, got {self.stop_strings!r}")
        if self.max_total is not None:
            as_integer(self.max_total, "Sampling", "max_total", least=1)


class Completion(NamedTuple):
    """A response as it was sampled.

    Attributes:
        tokens: Sampled tokens, the stop token included.
        log_probs: Log-probability of each token under the sampler, nats.
        version: Version of the policy.
        finish: "stop" after a stop token or string, "length" if the tokens were used up.
    """

    tokens: list[int]
    log_probs: list[float]
    version: int
    finish: str

    @property
    def segment(self) -> Segment:
        """The tokens as a segment of a rollout."""
        return Segment.sampled(self.tokens, self.log_probs, version=self.version)


@runtime_checkable
class Engine(Protocol):
    """Object that samples and scores tokens with one version of a policy."""

    @property
    def version(self) -> int:
        """Version of the weights."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Return a response to each prompt, in order.

        Args:
            prompts: Tokens so far of each dialogue.
            sampling: How responses are sampled.
        """
        ...

    def score(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        """Return the log-probability of each token given those before it, ``[N]``; 0 for the first one.

        Args:
            rollouts: Tokens.
        """
        ...

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the weights.

        Args:
            weights: Weights by name.
            version: Version, above the present one.

        Raises:
            ArgumentError: If the version is not above the present one.
        """


def check_version(owner: str, version: int, present: int) -> int:
    """Return a version of new weights, which must be above the present one."""
    if version <= present:
        raise ArgumentError(f"{owner}: version must be above the present one ({present}), got {version}")
    return version


def response_limit(sampling: Sampling, prompt: Sequence[int]) -> int:
    """Return the largest number of tokens of a response to a prompt."""
    total = sampling.max_total
    return sampling.max_tokens if total is None else max(1, min(sampling.max_tokens, total - len(prompt)))


@dataclass
class _Request:
    """A prompt and what was sampled so far."""

    prompt: list[int]
    limit: int
    tokens: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    finish: str = ""


@final
class TorchEngine:
    """Engine in this process: a model with a cache of keys and values, and a batch in flight.

    The model is called as those of Hugging Face are, and returns ``logits`` and ``past_key_values``; its attention is
    over all tokens. Equal prompts, as those of a group, are computed once. A response that ends leaves the batch, and
    the next prompt takes its place. The model may be the one that is trained; recorded log-probabilities are those of
    the sampling temperature. Weights that are loaded are those of ``state_dict()``.

    Args:
        model: Causal language model.
        stop_tokens: Tokens that end a response.
        pad_token: Token of the padding.
        tokenizer: Tokenizer, for stop strings.
        max_batch: Largest number of responses that are sampled at once.
        version: Version of the weights, at least 0.
        seed: Seed of the samples.

    Raises:
        ArgumentError: If a number is out of its range, or responses with stop strings are sampled without a tokenizer.

    Example:
        >>> from rl.llm import CharTokenizer, TinyTransformer
        >>> tokenizer = CharTokenizer("0123456789")
        >>> engine = TorchEngine(TinyTransformer(len(tokenizer)), stop_tokens=[tokenizer.eos_token_id])
        >>> found = engine.generate([tokenizer.encode("12")], Sampling(max_tokens=4))[0]
        >>> len(found.tokens) <= 4, all(one < 0 for one in found.log_probs), found.version
        (True, True, 0)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        stop_tokens: Sequence[int],
        pad_token: int = 0,
        tokenizer: Tokenizer | None = None,
        max_batch: int = 256,
        version: int = 0,
        seed: int = 0,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.stop_tokens = frozenset(as_integer(one, "TorchEngine", "a stop token", least=0) for one in stop_tokens)
        self.pad_token = as_integer(pad_token, "TorchEngine", "pad_token", least=0)
        self.max_batch = as_integer(max_batch, "TorchEngine", "max_batch", least=1)
        self.version = as_integer(version, "TorchEngine", "version", least=0)
        self.device = next(model.parameters()).device
        self.generator = torch.Generator(self.device).manual_seed(seed)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        if sampling.stop_strings and self.tokenizer is None:
            raise ArgumentError("TorchEngine: stop_strings need a tokenizer, got none. Pass tokenizer=")
        rows = map(self._tokens_of, prompts)
        requests = [_Request(one, response_limit(sampling, one)) for one in rows]
        training = self.model.training
        self.model.eval()
        waiting, batch = deque(requests), _Batch(self.model, self.pad_token, self.device)
        try:
            while waiting or batch.rows:
                free = self.max_batch - len(batch.rows)
                if waiting and free:
                    batch.admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
                self._sample(batch, sampling)
                batch.keep([i for i, row in enumerate(batch.rows) if not row.finish])
                if batch.rows:
                    batch.decode()
        finally:
            self.model.train(training)
        return [Completion(one.tokens, one.log_probs, self.version, one.finish) for one in requests]

    def _tokens_of(self, prompt: Sequence[int]) -> list[int]:
        """Return the tokens of a prompt, all of which the model has: on a GPU another one would end the process."""
        try:
            tokens = [index(one) for one in prompt]
        except TypeError:  # a text, or numbers that are no integers
            tokens = []
        if not tokens:
            raise ArgumentError(f"TorchEngine: prompts must be lists of tokens, at least one each, got {prompt!r:.60}")
        if hasattr(self.model, "get_input_embeddings"):
            size = len(self.model.get_input_embeddings().weight)  # pyright: ignore[reportCallIssue]
            wrong = next((one for one in (min(tokens), max(tokens)) if not 0 <= one < size), None)
            if wrong is not None:
                raise ArgumentError(
                    f"TorchEngine: tokens must be from 0 to {size - 1}, the vocabulary of the model, got {wrong}. Use"
                    " its tokenizer"
                )
        return tokens

    def _sample(self, batch: _Batch, sampling: Sampling) -> None:
        """Add one token to each row of the batch."""
        logits = batch.logits.float()
        if sampling.temperature:
            probs = (logits / sampling.temperature).softmax(-1)
            tokens = torch.multinomial(probs, 1, generator=self.generator)
        else:
            tokens = logits.argmax(-1, keepdim=True)
        if sampling.temperature not in (0, 1):
            logits = logits * (1 / sampling.temperature)
        # As log_probs_of_logits, without what gradients and entropies need.
        largest = logits.amax(-1, keepdim=True)
        normalizer = largest + (logits - largest).exp().sum(-1, keepdim=True).log()
        log_probs = logits.gather(-1, tokens) - normalizer
        batch.sampled = tokens
        for row, (token,), (log_prob,) in zip(batch.rows, tokens.tolist(), log_probs.tolist(), strict=True):
            row.tokens.append(token)
            row.log_probs.append(log_prob)
            if token in self.stop_tokens or (sampling.stop_strings and self._ends_with(row.tokens, sampling)):
                row.finish = "stop"
            elif len(row.tokens) == row.limit:
                row.finish = "length"

    def _ends_with(self, tokens: list[int], sampling: Sampling) -> bool:
        """Return whether a stop string ends within the last token."""
        tokenizer: Any = self.tokenizer
        text, before = tokenizer.decode(tokens), tokenizer.decode(tokens[:-1])
        return any(stop in text and stop not in before for stop in sampling.stop_strings)

    @torch.no_grad()
    def score(self, rollouts: Sequence[Rollout], *, temperature: float = 1.0) -> list[Tensor]:
        """Return the log-probability of each token at a temperature, as `Engine.score` does."""
        scorer = TokenScorer(self.model, temperature=temperature, entropy=False)
        found: list[Tensor] = []
        for start in range(0, len(rollouts), self.max_batch):
            part = rollouts[start : start + self.max_batch]
            for one in part:
                self._tokens_of(one.tokens.tolist())
            rows = scorer(padded(part, pad_token=self.pad_token).to(self.device))[LOG_PROBS]
            found += [row[: len(one.tokens)] for row, one in zip(rows, part, strict=True)]
        return found

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        check_version("TorchEngine", version, self.version)
        self.model.load_state_dict(dict(weights))
        self.version = version


class _Batch:
    """Rows in flight: left-padded keys and values ``[B, heads, S, D]``, and the logits of the next token."""

    def __init__(self, model: nn.Module, pad_token: int, device: torch.device) -> None:
        self.model, self.pad_token, self.device = model, pad_token, device
        self.rows: list[_Request] = []
        self.cache: Any = None
        self.cache_name = ""
        self.mask = torch.zeros(0, 0, dtype=torch.bool, device=device)
        self.logits = torch.zeros(0, 0, device=device)
        self.sampled = torch.zeros(0, 1, dtype=torch.int64, device=device)

    def admit(self, rows: list[_Request]) -> None:
        """Compute the cache of new prompts, and add them to the batch."""
        keys = [(*one.prompt, *one.tokens) for one in rows]
        unique = {key: i for i, key in enumerate(dict.fromkeys(keys))}  # responses to one prompt share its cache
        prompts = [torch.tensor(key) for key in unique]
        side: dict[str, Any] = {"batch_first": True, "padding_side": "left"}
        tokens = torch.nn.utils.rnn.pad_sequence(prompts, padding_value=self.pad_token, **side).to(self.device)
        ones = [torch.ones_like(one, dtype=torch.bool) for one in prompts]
        mask = torch.nn.utils.rnn.pad_sequence(ones, **side).to(self.device)
        options = {"logits_to_keep": 1} if "logits_to_keep" in accepted_arguments(self.model) else {}
        positions = token_positions(mask)
        out = self.model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True, **options)
        # transformers 5.24 calls it `cache`, older versions and the small model `past_key_values`.
        self.cache_name = "cache" if getattr(out, "cache", None) is not None else "past_key_values"
        logits, cache = out.logits[:, -1], getattr(out, self.cache_name)
        if len(unique) < len(rows):
            index = torch.tensor([unique[key] for key in keys], device=self.device)
            logits, mask = logits[index], mask[index]
            cache = _cache_like(cache, [[one[index] for one in two] for two in _pairs(cache)])
        if self.rows:
            size = max(self.mask.shape[1], mask.shape[1])
            pairs = zip(_pairs(self.cache), _pairs(cache), strict=True)
            joined = [[torch.cat([_left(a, size), _left(b, size)]) for a, b in zip(*two, strict=True)] for two in pairs]
            cache = _cache_like(cache, joined)
            mask = torch.cat([_left(one[..., None], size)[..., 0] for one in (self.mask, mask)])
            logits = torch.cat([self.logits, logits])
        self.rows, self.cache, self.mask, self.logits = [*self.rows, *rows], cache, mask, logits

    def keep(self, rows: list[int]) -> None:
        """Remove all other rows, and the columns that are padding in all that stay."""
        if len(rows) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in rows]
        if not rows:
            self.cache = None
            return
        index = torch.tensor(rows, device=self.device)
        mask = self.mask[index]
        first = int(mask.any(0).int().argmax())
        self.mask, self.sampled = mask[:, first:], self.sampled[index]
        self.cache = _cache_like(self.cache, [[one[index][:, :, first:] for one in two] for two in _pairs(self.cache)])

    def decode(self) -> None:
        """Compute the logits after the last token of each row."""
        positions = self.mask.sum(-1, keepdim=True)
        self.mask = nn.functional.pad(self.mask, (0, 1), value=True)
        options = {"attention_mask": self.mask, "position_ids": positions, self.cache_name: self.cache}
        out = self.model(input_ids=self.sampled, use_cache=True, **options)
        self.logits, self.cache = out.logits[:, -1], getattr(out, self.cache_name)


def _left(values: Tensor, size: int) -> Tensor:
    """Pad the dimension before the last one on the left."""
    return nn.functional.pad(values, (0, 0, size - values.shape[-2], 0))


def _pairs(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of each layer."""
    if isinstance(cache, tuple):
        return list(cache)
    return [(one.keys, one.values) for one in cache.layers]


def _cache_like(cache: Any, pairs: list[list[Tensor]]) -> Any:
    """Return keys and values as a cache of the same class."""
    if isinstance(cache, tuple):
        return tuple((k, v) for k, v in pairs)
    if any(getattr(one, "is_sliding", False) for one in cache.layers):
        raise ArgumentError("TorchEngine: the model must attend over all tokens, got one with sliding windows")
    found = type(cache)()
    for i, (k, v) in enumerate(pairs):
        found.update(k, v, i)
    return found


@final
class ScriptedEngine:
    """Engine that returns given responses, for tests of what uses an engine.

    Args:
        script: Responses as lists of tokens, returned one after the other and then again from the first one; or a
            function that returns the response to the tokens of a prompt.
        stop_tokens: Tokens that end a response.
        log_prob: Log-probability of each token, nats.
        version: Version of the weights, at least 0.

    Raises:
        ArgumentError: If there is no response.

    Example:
        >>> engine = ScriptedEngine([[5, 1], [6, 7]], stop_tokens=[1])
        >>> [one.finish for one in engine.generate([[3], [3]], Sampling())]
        ['stop', 'length']
    """

    def __init__(
        self,
        script: Sequence[Sequence[int]] | Callable[[list[int]], Sequence[int]],
        *,
        stop_tokens: Sequence[int],
        log_prob: float = -1.0,
        version: int = 0,
    ) -> None:
        if not callable(script) and not len(script):
            raise ArgumentError("ScriptedEngine: script must have at least one response, got none")
        self.script, self.stop_tokens, self.log_prob = script, frozenset(stop_tokens), log_prob
        self.version, self.weights = version, {}
        self._next = 0

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        found: list[Completion] = []
        for prompt in prompts:
            if callable(self.script):
                response = list(self.script(list(prompt)))
            else:
                response = list(self.script[self._next % len(self.script)])
                self._next += 1
            response = response[: response_limit(sampling, prompt)]
            finish = "stop" if self.stop_tokens & {*response[-1:]} else "length"
            found.append(Completion(response, [self.log_prob] * len(response), self.version, finish))
        return found

    def score(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        return [torch.full(one.tokens.shape, self.log_prob).index_fill(0, torch.tensor(0), 0) for one in rollouts]

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.version = check_version("ScriptedEngine", version, self.version)
        self.weights = dict(weights)
