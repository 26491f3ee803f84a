"""What an update learns from: the loss and the batches of GRPO, expert iteration, SFT, DPO and distillation."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, final

import torch
from tensordict import TensorDictBase
from torch import nn

from rl.core.errors import ArgumentError
from rl.core.keys import NEXT, REWARD, TRUNCATED
from rl.llm import _processes as processes
from rl.llm import policy_losses
from rl.llm._keys import TEACHER, TRAINED, VERSION
from rl.llm.advantages import MCAdvantage
from rl.llm.collectors import AsyncLLMCollector, Dialogue, Group, LLMCollector, batch_of
from rl.llm.engines import Sampling, TorchEngine
from rl.llm.environments import is_messages, read_records
from rl.llm.log_probs import TokenScorer
from rl.llm.models import load_model, positions_of
from rl.llm.policy_losses import DistillationLoss
from rl.llm.rollouts import Rollout, padded
from rl.llm.settings import DPO, GRPO, SFT, Distillation, ExpertIteration, LLMSettings
from rl.llm.supervised_losses import DPOLoss, SFTLoss
from rl.llm.tasks import Task
from rl.llm.templates import ChatTemplate
from rl.llm.transforms import RetrieveLogProb

__all__ = ["Method"]


class Method:
    """What an update learns from: subclasses define a loss and batches for it.

    With several processes, `batch` returns the share of this process.

    Args:
        settings: Settings that all methods share.
        task: Task.
        template: Template.
        engine: Engine that samples with the model that is trained.
        scorer: Policy.

    Attributes:
        loss: Loss, with `normalize`.
        epochs: Number of optimizer steps on a batch.
        collector: Collector of answers, whose state is saved; None without.
        held_out: Conversations for evaluations alone: lists of one, or the chosen one first.
        rng: Source of randomness for everything else, whose state is saved.
    """

    loss: Any
    epochs: int = 1
    collector: LLMCollector | None = None
    held_out: Sequence[list[Rollout]] = ()

    def __init__(
        self, settings: LLMSettings, task: Task, template: ChatTemplate, engine: TorchEngine, scorer: TokenScorer
    ) -> None:
        self.settings, self.task, self.template, self.engine, self.scorer = settings, task, template, engine, scorer
        self.rng = random.Random(settings.seed)

    @abstractmethod
    def batch(self) -> TensorDictBase:
        """Return the data of one update."""

    def figures(self, batch: TensorDictBase) -> dict[str, float]:
        """Return figures of a batch for the log."""
        found = {"completions/mean_length": float(batch[TRAINED].sum(-1).float().mean())}
        reward: Any = batch.get((NEXT, REWARD), None)
        if reward is not None:
            clipped = float(batch[NEXT, TRUNCATED].float().mean())
            rewards = {"reward": float(reward.mean()), "reward_std": float(reward.std())}
            if self.collector is not None and self.collector.group_size > 1:
                groups = reward.view(-1, self.collector.group_size)
                rewards["frac_reward_zero_std"] = float((groups == groups[:, :1]).all(-1).float().mean())
            found = {**rewards, **found, "completions/clipped_ratio": clipped}
        return found

    def held_out_loss(self) -> float:
        """Return the loss on the conversations that are held out."""
        total = count = 0.0
        step = self.settings.micro_batch or 64
        for start in range(0, len(self.held_out), step):
            batch = self._given([one for row in self.held_out[start : start + step] for one in row])
            with torch.no_grad():
                out = self.loss(self.loss.normalize(batch))
            weight = float(batch[TRAINED].sum()) if self.loss.normalizer == "tokens" else len(batch)
            total += weight * sum(float(value) for key, value in out.items() if key.startswith("loss"))
            count += weight
        return total / count

    def updated(self) -> None:
        """Note that the model was updated."""

    def close(self) -> None:
        """Release what the method holds, at the end of a run."""

    def state_dict(self) -> dict[str, Any]:
        version, internal, gauss = self.rng.getstate()
        collector = {} if self.collector is None else {"collector": self.collector.state_dict()}
        return {"rng": [version, list(internal), gauss], **collector}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        version, internal, gauss = state["rng"]
        self.rng.setstate((version, tuple(internal), gauss))
        if self.collector is not None:
            self.collector.load_state_dict(state["collector"])

    def _collect_with(self, groups: int, size: int, max_dropped: int = 0) -> None:
        """Set the collector, for the groups of this process."""
        settings = self.settings
        self.collector = LLMCollector(
            self.task,
            self.template,
            self.engine,
            groups_per_batch=groups,
            group_size=size,
            sampling=Sampling(
                settings.max_tokens or self.task.max_tokens,
                settings.temperature,
                max_total=settings.max_total or positions_of(self.engine.model),
            ),
            max_dropped=max_dropped,
            seed=processes.seed_of(settings.seed),
        )

    def _score_by(self, model: nn.Module, **options: Any) -> RetrieveLogProb:
        """Return what writes log-probabilities of another model, at the temperature that the policy has."""
        frozen = model.to(self.engine.device).requires_grad_(requires_grad=False)
        scorer = TokenScorer(frozen, temperature=self.settings.temperature, entropy=False)
        return RetrieveLogProb(scorer, **options)

    def _groups(self) -> list[Group]:
        assert self.collector is not None
        return self.collector.collect()

    def _sample_batch(self) -> TensorDictBase:
        return batch_of(self._groups(), pad_token=self.engine.pad_token).to(self.engine.device)

    def _read(self, file: str, *, pairs: bool = False) -> list[list[Rollout]]:
        """Return the conversations of a file, if there is one, and set those that are held out."""
        if file and self.settings.eval_dataset:
            self.held_out = read_conversations(self.settings.eval_dataset, self.template, pairs=pairs)
        return read_conversations(file, self.template, pairs=pairs) if file else []

    def _given(self, rollouts: list[Rollout]) -> TensorDictBase:
        return padded(rollouts, pad_token=self.engine.pad_token).to(self.engine.device)


@final
class _GRPO(Method):
    def __init__(self, options: GRPO, *parts: Any) -> None:
        super().__init__(*parts)
        self.epochs, self.options = options.epochs, options
        self._collect_with(processes.share(options.groups, "GRPO", "groups"), options.group_size, options.max_dropped)
        weight = options.kl_to_ref_coeff
        extra: dict[str, Any] = {} if weight is None else {"kl_to_ref_coeff": weight or None}
        if options.loss == "DrGRPOLoss":
            extra["max_tokens"] = self.settings.max_tokens or self.task.max_tokens
        self.loss = getattr(policy_losses, options.loss)(self.scorer, **extra)
        self._reference = None if self.loss.kl_to_ref_coeff is None else self._score_by(deepcopy(self.engine.model))
        rloo = options.loss == "RLOOLoss"
        baseline, scale = "leave_one_out" if rloo else "group", "group" if options.scaled else None
        self.advantage = MCAdvantage(options.group_size, baseline=baseline, scale=scale)
        self._thread: AsyncLLMCollector | None = None

    def batch(self) -> TensorDictBase:
        batch = self.advantage(self._sample_batch())
        return batch if self._reference is None else self._reference(batch)

    def _groups(self) -> list[Group]:
        assert self.collector is not None
        if not self.options.max_staleness:
            return super()._groups()
        if self._thread is None:  # after the state was restored, if it is
            self.collector.engine = deepcopy(self.engine)  # the thread samples with weights of its own
            self._thread = AsyncLLMCollector(self.collector, max_staleness=self.options.max_staleness)
        return self._thread.collect()

    def figures(self, batch: TensorDictBase) -> dict[str, float]:
        found = super().figures(batch)
        if self._thread is not None:
            found["staleness/max"] = float(self.engine.version - int(batch[VERSION][batch[TRAINED]].min()))
        return found

    def updated(self) -> None:
        if self._thread is not None:
            self._thread.load_weights(self.engine.model.state_dict(), self.engine.version)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._thread is not None else super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.options.max_staleness:  # what was sampled and not trained is not saved: other problems follow
            self.rng.seed(f"{processes.seed_of(self.settings.seed)} after {self.engine.version} updates")
            assert self.collector is not None
            self.collector.rng = self.rng
        else:
            super().load_state_dict(state)


@final
class _ExpertIteration(Method):
    def __init__(self, options: ExpertIteration, *parts: Any) -> None:
        super().__init__(*parts)
        self.epochs, self.options = options.epochs, options
        self._collect_with(processes.share(options.groups, "ExpertIteration", "groups"), options.group_size)
        self.loss = SFTLoss(self.scorer)

    def batch(self) -> TensorDictBase:
        batch = self._sample_batch()
        reward = batch[NEXT, REWARD].view(-1, self.options.group_size)
        best = (reward == reward.amax(-1, keepdim=True)) & (reward >= self.options.threshold)
        return batch.set(TRAINED, batch[TRAINED] & best.view(-1, 1))

    def figures(self, batch: TensorDictBase) -> dict[str, float]:
        # Lengths are those of all answers, as for the other methods, and not of those that are trained.
        return super().figures(batch.copy().set(TRAINED, batch[VERSION] >= 0))


@final
class _SFT(Method):
    def __init__(self, options: SFT, *parts: Any) -> None:
        super().__init__(*parts)
        self.options = options
        processes.share(options.batch_size, "SFT", "batch_size")
        self.loss = SFTLoss(self.scorer)
        self.rows = self._read(options.dataset)
        if not self.rows and not self.task.sample(random.Random(0)).solution:
            raise ArgumentError(f"SFT: the task {self.settings.task!r} has no solutions. Pass a dataset")

    def _rollout(self) -> Callable[[], Rollout]:
        """Draw a conversation, and return what encodes it."""
        if self.rows:
            (row,) = self.rows[self.rng.randrange(len(self.rows))]
            return lambda: row
        problem = self.task.sample(self.rng)
        answer = {"role": "assistant", "content": problem.solution}
        return lambda: self.template.rollout([*problem.messages, answer])

    def batch(self) -> TensorDictBase:
        # All processes draw the same conversations.
        drawn = [self._rollout() for _ in range(self.options.batch_size)]
        return self._given([encode() for encode in drawn[processes.rank() :: processes.count()]])


@final
class _DPO(Method):
    def __init__(self, options: DPO, *parts: Any) -> None:
        super().__init__(*parts)
        self.options = options
        self.rows = self._read(options.dataset, pairs=True)
        pairs = processes.share(options.pairs, "DPO", "pairs")
        self._collect_with(pairs, options.group_size, 10 * pairs)  # groups without a best answer give no pair
        self.loss = DPOLoss(self.scorer, beta=options.beta)
        self._reference = self._score_by(deepcopy(self.engine.model))

    def _given(self, rollouts: list[Rollout]) -> TensorDictBase:
        return self._reference(super()._given(rollouts)).reshape(-1, 2)

    def batch(self) -> TensorDictBase:
        ends: list[Dialogue] = []
        if self.rows:
            drawn = [self.rows[self.rng.randrange(len(self.rows))] for _ in range(self.options.pairs)]
            found = [one for pair in drawn[processes.rank() :: processes.count()] for one in pair]
        else:
            groups = [sorted(one.dialogues, key=lambda each: each.reward) for one in self._groups()]
            ends = [one for group in groups for one in (group[-1], group[0])]
            found = [one.rollout for one in ends]
        batch = self._given(found)
        if ends:  # a pair of equal rewards has no preference, and is there if no more groups were replaced
            reward = torch.tensor([one.reward for one in ends], device=self.engine.device).view(-1, 2, 1)
            batch.set(TRAINED, batch[TRAINED] & (reward[:, :1] > reward[:, 1:]))
        return batch


@final
class _Distillation(Method):
    def __init__(self, options: Distillation, *parts: Any) -> None:
        super().__init__(*parts)
        self._collect_with(processes.share(options.batch_size, "Distillation", "batch_size"), 1)
        self.loss = DistillationLoss(self.scorer)
        if not options.teacher:
            raise ArgumentError("Distillation: teacher must be a folder or an id of a model, got none")
        teacher, tokenizer = load_model(options.teacher, alphabet=self.task.alphabet)
        if _vocabulary(tokenizer) != _vocabulary(self.template.tokenizer):
            raise ArgumentError(f"Distillation: teacher must have the tokenizer of the model, got {options.teacher!r}")
        self._teacher = self._score_by(teacher, key=TEACHER)

    def batch(self) -> TensorDictBase:
        return self._teacher(self._sample_batch())


def _vocabulary(tokenizer: Any) -> Any:
    return tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else tokenizer.alphabet


_METHODS = {DPO: _DPO, GRPO: _GRPO, SFT: _SFT, Distillation: _Distillation, ExpertIteration: _ExpertIteration}


def make_method(method: Any, *parts: Any) -> Method:
    """Return a method for its settings, or for a class of one's own, with the arguments of `Method`."""
    known = _METHODS.get(type(method))
    return method(*parts) if known is None else known(method, *parts)


def read_conversations(file: str | Path, template: ChatTemplate, *, pairs: bool = False) -> list[list[Rollout]]:
    """Return the encoded conversations of a file with a JSON object a line: lists of one, or the chosen one first.

    Objects have ``messages``, or ``prompt`` and ``completion``; pairs ``prompt``, ``chosen`` and ``rejected``.
    """
    found: list[list[Rollout]] = []
    for number, row in enumerate(read_records(file), start=1):
        conversations = _conversations(row, pairs=pairs)
        if conversations is None:
            wanted = "prompt, chosen and rejected" if pairs else "messages, or prompt and completion"
            raise ArgumentError(
                f"read_conversations: record {number} of {file} must have {wanted}, as text with an answer of the"
                f" assistant, got {json.dumps(row):.100}"
            )
        try:
            found.append([template.rollout(one) for one in conversations])
        except ArgumentError as error:
            raise ArgumentError(f"read_conversations: record {number} of {file} does not fit ({error})") from error
    return found


def _conversations(row: Any, *, pairs: bool) -> list[Sequence[Mapping[str, Any]]] | None:
    """Return the conversations of a record; None if it lacks an entry."""
    if not isinstance(row, Mapping):
        return None
    if "messages" in row and not pairs:
        found: list[Any] = [row["messages"]]
    else:
        names = ("chosen", "rejected") if pairs else ("completion",)
        if not {"prompt", *names} <= row.keys():
            return None
        user = {"role": "user", "content": row["prompt"]}
        found = [[user, {"role": "assistant", "content": row[name]}] for name in names]
    right = (is_messages(one) and any(each["role"] == "assistant" for each in one) for one in found)
    return found if all(right) else None
