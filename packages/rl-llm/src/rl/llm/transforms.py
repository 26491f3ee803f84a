"""Transforms of batches of language models: divergence from a reference, thinking, templates, tokens, records."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from tensordict import NonTensorStack, TensorDictBase, lazy_stack
from torch import nn

from rl.core.arguments import as_integer, as_number, one_of
from rl.core.contract import contract_of
from rl.core.errors import ArgumentError
from rl.core.keys import NEXT, REWARD
from rl.llm._keys import ATTENTION, LOG_PROBS, REFERENCE, TOKENS, TRAINED
from rl.llm.chat import History
from rl.llm.environments import Records, read_records
from rl.llm.functional import kl_estimate
from rl.llm.rollouts import Rollout, Segment, padded
from rl.llm.templates import ChatTemplate

__all__ = [
    "AddThinkingPrompt",
    "DataLoadingPrimer",
    "IncrementalTokenizer",
    "KLRewardTransform",
    "RetrieveKL",
    "RetrieveLogProb",
    "TemplateTransform",
]


@final
class RetrieveLogProb:
    """Score the tokens of a batch with another policy, such as the reference.

    Reads what the policy reads. Writes ``("ref_log_probs", "full")`` ``[B, T]``, without gradient.

    Args:
        policy: Policy that writes ``("log_probs", "full")``, such as a `TokenScorer`.
        key: Key that is written.
    """

    def __init__(self, policy: nn.Module, *, key: Any = REFERENCE) -> None:
        self.policy, self.key = policy, key

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        names = [key.name for key in contract_of(self.policy).reads]
        training = self.policy.training
        self.policy.eval()
        with torch.no_grad():
            found = self.policy(tensordict.select(*names, strict=False))[LOG_PROBS]
        self.policy.train(training)
        return tensordict.set(self.key, found)


@final
class RetrieveKL:
    """Estimate the divergence from the reference at each token.

    Reads ``("log_probs", "full")`` and ``("ref_log_probs", "full")`` ``[B, T]``, and the mask of trained tokens. Writes
    ``kl_penalty`` ``[B, T]``, nats, 0 outside of the mask.

    Args:
        estimator: Estimator: "k1", "k2" or "k3", of `rl.llm.functional.kl_estimate`.
    """

    def __init__(self, estimator: str = "k1") -> None:
        self.estimator = one_of(estimator, "RetrieveKL", "estimator", ("k1", "k2", "k3"))

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        log_prob, reference = (tensordict[key].where(tensordict[TRAINED], 0) for key in (LOG_PROBS, REFERENCE))
        return tensordict.set("kl_penalty", kl_estimate(log_prob, reference, self.estimator))


@final
class KLRewardTransform:
    """Subtract the divergence of a response from the reference from its reward.

    Reads what the reference reads, ``("log_probs", "full")`` of the sampler, the mask, and ``("next", "reward")``
    ``[B, 1]``. Writes ``("ref_log_probs", "full")``, ``kl_penalty`` ``[B, T]``, and the reward, less `coeff` times the
    sum of the penalties over the response.

    Args:
        reference: Reference policy.
        coeff: Weight of the divergence, at least 0.
        estimator: Estimator: "k1", "k2" or "k3".

    Example:
        >>> from rl.llm import TokenScorer
        >>> rollout = Rollout.of([Segment.given([1], role="user"), Segment.sampled([2, 3], [-1.0, -2.0], version=0)])
        >>> batch = padded([rollout])
        >>> batch["next"] = {"reward": torch.ones(1, 1)}
        >>> reference = TokenScorer(nn.Embedding(5, 5).requires_grad_(False))
        >>> out = KLRewardTransform(reference, coeff=0.1)(batch)
        >>> bool((1 - out["next", "reward"] - 0.1 * out["kl_penalty"].sum()).abs() < 1e-5)
        True
    """

    def __init__(self, reference: nn.Module, *, coeff: float = 0.05, estimator: str = "k1") -> None:
        self.coeff = as_number(coeff, "KLRewardTransform", "coeff", least=0)
        self._score, self._kl = RetrieveLogProb(reference), RetrieveKL(estimator)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        td = self._kl(self._score(tensordict))
        td.set((NEXT, REWARD), td[NEXT, REWARD] - self.coeff * td["kl_penalty"].sum(-1, keepdim=True))
        return td


class TemplateTransform:
    """Encode histories with a chat template.

    Reads ``("history", "prompt")`` ``[B]``. Writes ``("tokens", "prompt")`` int64 ``[B, T]``, padded on the right, and
    ``("masks", "all_attention_mask")``.

    Args:
        template: Template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        histories: Any = tensordict.get(("history", "prompt"))
        rows = padded([self._encode(histories[i].messages(), tensordict, i) for i in range(len(tensordict))])
        return tensordict.set(("tokens", "prompt"), rows[TOKENS]).set(ATTENTION, rows[ATTENTION])

    def _encode(self, messages: list[dict[str, Any]], td: TensorDictBase, row: int) -> Rollout:  # noqa: ARG002
        return Rollout.of([self.template.prompt(messages)])


@final
class IncrementalTokenizer(TemplateTransform):
    """Encode what was added to histories since the last call, and keep the tokens before as they are.

    Reads ``("history", "prompt")`` ``[B]`` and, if there, ``("tokens", "full")`` with the tokens so far, which a policy
    sampled. Writes ``("tokens", "prompt")`` and ``("masks", "all_attention_mask")``.

    Args:
        template: Template, which must keep earlier tokens when messages follow.
    """

    def _encode(self, messages: list[dict[str, Any]], td: TensorDictBase, row: int) -> Rollout:
        known, mask = td.get(TOKENS, None), td.get(ATTENTION, None)
        last = max((j for j, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
        if known is None or last < 0:
            return super()._encode(messages, td, row)
        before = known[row] if mask is None else known[row][mask[row]]
        new = self.template.continuation(messages[: last + 1], messages[last + 1 :])
        return Rollout.of([Segment.given(before, role="user"), new])


@final
class AddThinkingPrompt:
    """Let the policy think again: a message after answers that meet a condition, whose episodes then continue.

    Called with what a step of `ChatEnv` wrote under ``next``. Reads ``("history", "prompt")``, ``reward`` and the done
    flags. Where the condition holds, the history gets a message of the user, the reward is 0, and the flags are false.

    Args:
        condition: Function of one row that returns whether the policy should think again.
        prompt: Text of the message.
        max_times: Number of times that a dialogue gets the message at most.
    """

    def __init__(
        self,
        condition: Callable[[TensorDictBase], Any],
        prompt: str = "Wait. Think about it once more, then answer again.",
        *,
        max_times: int = 1,
    ) -> None:
        self.condition, self.prompt = condition, prompt
        self.max_times = as_integer(max_times, "AddThinkingPrompt", "max_times", least=1)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        histories: list[Any] = []
        for i in range(len(tensordict)):
            row = tensordict[i]
            history = tensordict.get(("history", "prompt"))[i]
            times = sum(one["content"] == self.prompt for one in history.messages())
            if times < self.max_times and bool(self.condition(row)):
                history = history.append(History(role="user", content=self.prompt))
                for name in (REWARD, "done", "terminated", "truncated"):
                    tensordict[name][i] = 0
            histories.append(history)
        return tensordict.set(("history", "prompt"), lazy_stack(histories))


@final
class DataLoadingPrimer:
    """Write records of a data set into a batch, each epoch in another order.

    Writes each entry that all records have: numbers as tensors ``[B, 1]``, everything else as it is. Has the state of
    the loader.

    Args:
        records: File or records, as for `read_records`.
        repeats: Number of rows that get the same record, one after the other: the size of a group.
        seed: Seed of the order.

    Raises:
        ArgumentError: If there is no record, or the rows of a batch are no multiple of `repeats`.

    Example:
        >>> from tensordict import TensorDict
        >>> primer = DataLoadingPrimer([{"question": "1+1?", "level": 1}], repeats=2)
        >>> td = primer(TensorDict({}, batch_size=[2]))
        >>> list(td["question"]), td["level"].tolist()
        (['1+1?', '1+1?'], [[1], [1]])
    """

    def __init__(self, records: str | Path | Records, *, repeats: int = 1, seed: int = 0) -> None:
        self.records = read_records(records)
        self.repeats = as_integer(repeats, "DataLoadingPrimer", "repeats", least=1)
        self.seed, self.taken = as_integer(seed, "DataLoadingPrimer", "seed", least=0), 0

    def _next(self) -> Mapping[str, Any]:
        epoch, place = divmod(self.taken, len(self.records))
        order = list(range(len(self.records)))
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        self.taken += 1
        return self.records[order[place]]

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        if len(tensordict) % self.repeats:
            raise ArgumentError(
                f"DataLoadingPrimer: rows must be a multiple of repeats ({self.repeats}), got {len(tensordict)}"
            )
        rows = [record for _ in range(len(tensordict) // self.repeats) for record in [self._next()] * self.repeats]
        for name in sorted(set.intersection(*({*row} for row in rows))):
            values: Sequence[Any] = [row[name] for row in rows]
            if all(isinstance(one, (int, float)) for one in values):
                tensordict.set(name, torch.tensor(values).unsqueeze(-1))
            else:
                tensordict.set(name, NonTensorStack(*values))
        return tensordict

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.taken = state["taken"]
