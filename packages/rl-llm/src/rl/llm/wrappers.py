"""Policies on TensorDict: a model and its tokenizer, here or in a Ray actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from tensordict import NonTensorStack, TensorDictBase, lazy_stack
from torch import Tensor, nn

from rl.core.arguments import one_of
from rl.core.errors import ArgumentError, ContractError
from rl.llm._keys import ATTENTION, LOG_PROBS, TOKENS, TRAINED, VERSION
from rl.llm.chat import History
from rl.llm.engines import Completion, Engine, Sampling, TorchEngine
from rl.llm.rollouts import Rollout, Segment, nested, padded
from rl.llm.templates import ChatTemplate

__all__ = ["LLMWrapperBase", "RemoteTransformersWrapper", "TransformersWrapper"]

_MODES = ("history", "text", "tokens")


class LLMWrapperBase(nn.Module):
    """Policy on TensorDict that samples and scores with any engine, such as `vLLMWrapper`; it is an `Engine` too.

    Generation reads ``("history", "prompt")``, ``("text", "prompt")`` or ``("tokens", "prompt")``, and writes the
    entries of `rl.llm.padded` or `rl.llm.nested`, and for the first two ``("text", "response")``; for histories also
    ``("history", "response")`` and ``("history", "full")``. Scoring reads the same with "full", and writes
    ``("log_probs", "full")``.

    Args:
        engine: Engine.
        tokenizer: Tokenizer of its model.
        input_mode: What is read: "history", "text" or "tokens".
        generate: Whether responses are sampled; tokens are scored if not.
        sampling: How responses are sampled; the defaults of `Sampling` if None.
        pad_output: Whether rows are padded to one length; jagged if not.
        template: Chat template, for histories; that of the tokenizer if None.
        raw: Whether texts are encoded as they are, without the template.

    Raises:
        ArgumentError: If the mode is unknown, or texts would skip a template without `raw`.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        input_mode: str = "history",
        generate: bool = True,
        sampling: Sampling | None = None,
        pad_output: bool = True,
        template: ChatTemplate | None = None,
        raw: bool = False,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        if input_mode == "text" and not raw and (template or getattr(tokenizer, "chat_template", None)):
            raise ArgumentError(
                f"{owner}: input_mode 'text' skips the chat template. Use 'history', or pass raw=True for texts that"
                " have it already, such as those of ChatEnv"
            )
        self.engine, self.tokenizer, self.generates = engine, tokenizer, generate
        self.input_mode = one_of(input_mode, owner, "input_mode", _MODES)
        self.sampling = Sampling() if sampling is None else sampling
        self.pad_output = pad_output
        self.template = ChatTemplate(tokenizer) if template is None and input_mode == "history" else template
        part = "prompt" if generate else "full"
        self.in_keys = [(self.input_mode, part)]
        texts = [] if input_mode == "tokens" else [("text", "response")]
        self.out_keys = [TOKENS, LOG_PROBS, TRAINED, ATTENTION, VERSION, *(texts if generate else [])]

    @property
    def version(self) -> int:
        return self.engine.version

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        return self.engine.generate(prompts, sampling)

    def score(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        return self.engine.score(rollouts)

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.engine.load_weights(weights, version)

    def _inputs(self, td: TensorDictBase) -> list[list[int]]:
        """Return the tokens of each row."""
        key = self.in_keys[0]
        if td.get(key, None) is None:
            raise ContractError(f"{type(self).__name__} reads {key}, which the batch lacks")
        if self.input_mode == "tokens":
            rows: Any = td.get(key)
            mask: Any = td.get(ATTENTION, None)
            if rows.is_nested:
                return [one.tolist() for one in rows.unbind()]
            if mask is None or mask.shape != rows.shape:
                return rows.tolist()
            return [row[keep].tolist() for row, keep in zip(rows, mask, strict=True)]
        if self.input_mode == "text":
            texts: Any = td[key]
            return [self.tokenizer.encode(one, add_special_tokens=False) for one in list(texts)]
        histories: list[Any] = [td.get(key)[i] for i in range(len(td))]
        template: Any = self.template
        if self.generates:
            return [template.prompt(one).tokens.tolist() for one in histories]
        return [template.encode(one)[0] for one in histories]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write responses, or the log-probabilities of given tokens, into a batch ``[B]``.

        Raises:
            ContractError: If the input is absent.
        """
        rows = self._inputs(tensordict)
        make = padded if self.pad_output else nested
        if not self.generates:
            found = [Rollout.of([Segment.given(row, role="user")]) for row in rows]
            for one, log_prob in zip(found, self.engine.score(found), strict=True):
                one.log_prob = log_prob.cpu()
            out = make(found)
            return tensordict.update(out.exclude(TRAINED, VERSION))
        completions = self.engine.generate(rows, self.sampling)
        pairs = zip(rows, completions, strict=True)
        out = make([Rollout.of([Segment.given(row, role="user"), one.segment]) for row, one in pairs])
        tensordict.update(out)
        if self.input_mode == "tokens":
            return tensordict
        texts = [self._text(one) for one in completions]
        tensordict.set(("text", "response"), NonTensorStack(*texts))
        if self.input_mode == "history":
            answers = [
                History(role="assistant", content=text, is_complete=one.finish == "stop")
                for text, one in zip(texts, completions, strict=True)
            ]
            prompts: list[Any] = [tensordict.get(("history", "prompt"))[i] for i in range(len(rows))]
            full = [prompt.append(one) for prompt, one in zip(prompts, answers, strict=True)]
            stacks: Any = lazy_stack([one.unsqueeze(0) for one in answers]), lazy_stack(full)
            tensordict.set(("history", "response"), stacks[0]).set(("history", "full"), stacks[1])
        return tensordict

    def _text(self, completion: Completion) -> str:
        """Return the text of a response without its stop token."""
        stops = () if self.template is None else self.template.stop_tokens
        return self.tokenizer.decode([token for token in completion.tokens if token not in stops])


def _engine_options(
    tokenizer: Any, stop_tokens: Sequence[int] | None, template: ChatTemplate | None, max_batch: int, seed: int
) -> dict[str, Any]:
    """Return arguments of `TorchEngine`."""
    stops = template.stop_tokens if stop_tokens is None and template is not None else stop_tokens
    stops = [tokenizer.eos_token_id] if stops is None else list(stops)
    if None in stops:
        raise ArgumentError("TransformersWrapper: the tokenizer has no eos_token_id. Pass stop_tokens=")
    pad = getattr(tokenizer, "pad_token_id", None)
    options = {"stop_tokens": stops, "pad_token": stops[0] if pad is None else pad, "tokenizer": tokenizer}
    return {**options, "max_batch": max_batch, "seed": seed}


@final
class TransformersWrapper(LLMWrapperBase):
    """Policy of a causal language model that is called as those of Hugging Face are; keys as in `LLMWrapperBase`.

    Args:
        model: Causal language model.
        tokenizer: Its tokenizer.
        stop_tokens: Tokens that end a response; those of the template, or the tokenizer's, if None.
        max_batch: Largest number of responses that are sampled at once.
        seed: Seed of the samples.
        template: Chat template, for histories; that of the tokenizer if None.
        options: Further arguments of `LLMWrapperBase`.

    Raises:
        ArgumentError: If the mode is unknown, or there is no stop token.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.llm import CharTokenizer, TinyTransformer
        >>> tokenizer = CharTokenizer("0123456789")
        >>> policy = TransformersWrapper(TinyTransformer(len(tokenizer)), tokenizer, input_mode="text", raw=True,
        ...                              sampling=Sampling(max_tokens=3))
        >>> td = TensorDict({}, batch_size=[2]).set(("text", "prompt"), NonTensorStack("12", "345"))
        >>> td = policy(td)
        >>> td["log_probs", "full"].shape == td["tokens", "full"].shape
        True
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        stop_tokens: Sequence[int] | None = None,
        max_batch: int = 256,
        seed: int = 0,
        template: ChatTemplate | None = None,
        **options: Any,
    ) -> None:
        engine = TorchEngine(model, **_engine_options(tokenizer, stop_tokens, template, max_batch, seed))
        super().__init__(engine, tokenizer, template=template, **options)
        self.model = model


class _Actor:
    """What the Ray actor of `RemoteTransformersWrapper` runs: an engine whose methods are called by name."""

    def __init__(self, make_model: Callable[[], nn.Module], options: Mapping[str, Any]) -> None:
        self.engine = TorchEngine(make_model(), **options)

    def version(self) -> int:
        return self.engine.version

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.engine, name)(*arguments)

    def score(self, rows: list[list[int]]) -> list[Tensor]:
        rollouts = [Rollout.of([Segment.given(row, role="user")]) for row in rows]
        return [one.cpu() for one in self.engine.score(rollouts)]


class _RemoteEngine:
    """Engine in a Ray actor; tokens and weights travel as plain lists and CPU tensors."""

    def __init__(self, actor: Any, ray: Any) -> None:
        self._actor, self._ray = actor, ray

    @property
    def version(self) -> int:
        return self._ray.get(self._actor.version.remote())

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        return self._ray.get(self._actor.call.remote("generate", [list(one) for one in prompts], sampling))

    def score(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        return self._ray.get(self._actor.score.remote([one.tokens.tolist() for one in rollouts]))

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        plain = {name: one.detach().cpu() for name, one in weights.items()}
        self._ray.get(self._actor.call.remote("load_weights", plain, version))


@final
class RemoteTransformersWrapper(LLMWrapperBase):
    """`TransformersWrapper` whose model lives in a Ray actor; tokens travel, the model does not.

    Args:
        make_model: Function that returns the model, called in the actor.
        tokenizer: Tokenizer, here.
        actor_options: Options of the actor, such as ``{"num_gpus": 1}``.

    The others are those of `TransformersWrapper`.

    Raises:
        ArgumentError: If Ray is not installed, or there is no stop token.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        tokenizer: Any,
        *,
        actor_options: Mapping[str, Any] | None = None,
        stop_tokens: Sequence[int] | None = None,
        max_batch: int = 256,
        seed: int = 0,
        **options: Any,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ArgumentError("RemoteTransformersWrapper needs Ray. Install rl-llm[ray]") from error
        arguments = _engine_options(tokenizer, stop_tokens, options.get("template"), max_batch, seed)
        actor: Any = ray.remote(_Actor).options(**(actor_options or {})).remote(make_model, arguments)
        super().__init__(_RemoteEngine(actor, ray), tokenizer, **options)
        self._actor, self._ray = actor, ray

    def close(self) -> None:
        """End the actor. May be called twice."""
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None
