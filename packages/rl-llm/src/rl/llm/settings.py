"""Settings of the training of language models; a value out of its range raises `ArgumentError`.

Imports no torch, for the command line reads them first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl.core.errors import ArgumentError

__all__ = ["DPO", "GRPO", "SFT", "Distillation", "ExpertIteration", "LLMSettings"]


def _searched(default: Any, search: str) -> Any:
    """Define a field with the range that ``rl tune`` searches, as `rl.trainers.checked` does; without rl-trainers."""
    return field(default=default, metadata={"search": search})


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """Settings that methods and recipes share, which name the task and the length of a run differently.

    Args:
        model: Model: tiny, a folder with a model of Hugging Face or of an earlier run, or an id of Hugging Face.
        chat_template: File with a chat template in Jinja that replaces that of the tokenizer; raw for the texts of
            messages without one, each answer with the stop token.
        task_options: Arguments of the task, as in '{length: 5}'.
        eval_dataset: File as for --dataset, with records for evaluations alone.
        learning_rate: Learning rate of AdamW at the start; it falls linearly to 0.
        max_grad_norm: Largest norm of the gradient.
        micro_batch: Number of sequences of a micro-batch, whose gradients are summed; 0 for all at once.
        precision: Precision of forward and backward passes: fp32, or bf16 for automatic mixed precision.
        checkpoint_activations: Whether activations are computed again in the backward pass (Hugging Face).
        lora_rank: Rank of adapters that are trained in place of the weights (Hugging Face, with peft); 0 for all.
        max_tokens: Largest number of tokens of an answer; 0 for what the task needs.
        max_total: Largest number of tokens of a dialogue, at which it is truncated; 0 for the positions of the model.
        temperature: Temperature of sampling.
        eval_every: Number of updates between two evaluations.
        eval_problems: Number of problems of an evaluation, answered greedily.
        checkpoint_every: Number of updates between two checkpoints.
        seed: Seed of weights, problems and samples.
        device: Device of the model; in several processes, cuda is the GPU of each.
        shard: Whether the processes of torchrun divide gradients, states of the optimizer and trained weights (FSDP2).
        threads: Number of torch threads; 0 leaves torch's setting.
    """

    model: str = "tiny"
    chat_template: str = ""
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    eval_dataset: str = ""
    learning_rate: float = _searched(1e-3, "1e-5..1e-2:log")
    max_grad_norm: float = _searched(1.0, "0.3..5:log")
    micro_batch: int = 0
    precision: str = "fp32"
    checkpoint_activations: bool = False
    lora_rank: int = 0
    max_tokens: int = 0
    max_total: int = 0
    temperature: float = 1.0
    eval_every: int = 50
    eval_problems: int = 64
    checkpoint_every: int = 50
    seed: int = 0
    device: str = "cpu"
    shard: bool = False
    threads: int = 0

    def __post_init__(self) -> None:
        _check_least(self, 1, "eval_every", "eval_problems", "checkpoint_every")
        _check_least(self, 0, "micro_batch", "lora_rank", "max_tokens", "max_total", "seed", "threads")
        _check_positive(self, "learning_rate", "max_grad_norm", "temperature")
        if self.precision not in ("fp32", "bf16"):
            raise ArgumentError(f"{type(self).__name__}: precision must be fp32 or bf16, got {self.precision!r}")


@dataclass(frozen=True, kw_only=True)
class LLMSettings(SharedSettings):
    """Settings that all methods share.

    Args:
        task: Name of a task, as in `TASKS`, or module:Class of a task of one's own.
        updates: Number of optimizer steps on fresh data.

    The others are those of `SharedSettings`, which ``rl train grpo --help`` describes.
    """

    task: str = "sort"
    updates: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_least(self, 1, "updates")


def _check_least(settings: Any, least: int, *names: str) -> None:
    # Those of rl.core.arguments would import torch.
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            owner = type(settings).__name__
            raise ArgumentError(f"{owner}: {name} must be an integer of at least {least}, got {value!r}")


def _check_positive(settings: Any, *names: str) -> None:
    for name in names:
        if not 0 < getattr(settings, name) < math.inf:
            owner = type(settings).__name__
            raise ArgumentError(f"{owner}: {name} must be above 0, got {getattr(settings, name)!r}")


#: policy losses, and whether they are published with advantages that are divided by the standard deviation.
_SCALED = {
    "DAPOLoss": True,
    "GRPOLoss": True,
    "DrGRPOLoss": False,
    "GSPOLoss": True,
    "CISPOLoss": True,
    "RLOOLoss": False,
}
_REWARDS = ("exact", "gsm8k", "math", "countdown", "ifeval")


@dataclass(frozen=True, kw_only=True)
class Records:
    """Data set whose records are the problems, for methods that sample answers.

    Args:
        dataset: File with a JSON object a line: the prompt, a text or a list of messages, and what the reward reads;
            problems of the task if empty.
        reward: Reward of an answer to a record: exact, 1 if it is ``answer``, with the prompt under ``prompt``; or that
            of gsm8k, math, countdown or ifeval, with the names of that data set.
    """

    dataset: str = ""
    reward: str = "exact"

    def __post_init__(self) -> None:
        if self.reward not in _REWARDS:
            known = ", ".join(_REWARDS)
            raise ArgumentError(f"{type(self).__name__}: reward must be one of {known}, got {self.reward!r}")


@dataclass(frozen=True)
class Groups(Records):
    """Groups of answers, each to one problem.

    Args:
        groups: Number of problems of a batch.
        group_size: Number of answers to each problem.
        epochs: Number of optimizer steps on a batch.
    """

    groups: int = _searched(16, "8,16,32")
    group_size: int = _searched(16, "4,8,16")
    epochs: int = _searched(2, "1..4")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_least(self, 1, "groups", "group_size", "epochs")


@dataclass(frozen=True)
class GRPO(Groups):
    """Group relative policy optimization, or another policy loss of `rl.llm` on groups.

    Args:
        loss: Policy loss: DAPOLoss, GRPOLoss, DrGRPOLoss, GSPOLoss, CISPOLoss or RLOOLoss.
        scale: Whether advantages are divided by the standard deviation of the group. As the loss is published if left
            out: true but for DrGRPOLoss, and RLOOLoss, which has no such form.
        kl_to_ref_coeff: Weight of the divergence from the model at the start; 0 for none. That of the loss if left out:
            0.04 of GRPOLoss, none of the others.
        max_dropped: Number of groups without variance that are replaced in a batch at most.
        max_staleness: Number of updates by which samples may be older than the policy that they train; above 0, a
            copy of the model samples in a thread while the model is updated.

    The others are those of `Groups`, with a `group_size` of at least 2.
    """

    recipe: ClassVar[str] = "grpo"
    loss: str = "DAPOLoss"
    scale: bool | None = None
    kl_to_ref_coeff: float | None = None
    max_dropped: int = 0
    max_staleness: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in _SCALED:
            raise ArgumentError(f"GRPO: loss must be one of {', '.join(_SCALED)}, got {self.loss!r}")
        if self.scale and self.loss == "RLOOLoss":
            raise ArgumentError("GRPO: scale must be false with RLOOLoss, whose advantages are not divided")
        weight = self.kl_to_ref_coeff
        if weight is not None and not 0 <= weight < math.inf:
            raise ArgumentError(f"GRPO: kl_to_ref_coeff must be at least 0, got {weight!r}")
        _check_least(self, 2, "group_size")
        _check_least(self, 0, "max_dropped", "max_staleness")

    @property
    def scaled(self) -> bool:
        """Whether advantages are divided by the standard deviation of the group."""
        return _SCALED[self.loss] if self.scale is None else self.scale


@dataclass(frozen=True)
class ExpertIteration(Groups):
    """Supervised training on the best of one's own answers (Anthony et al., 2017; rejection sampling).

    Args:
        threshold: Reward that an answer needs to be trained, besides being the best of its group.

    The others are those of `Groups`.
    """

    recipe: ClassVar[str] = "expert-iteration"
    threshold: float = 0.5


@dataclass(frozen=True)
class SFT:
    """Supervised fine-tuning on the solutions of a task, or on conversations of a file.

    Args:
        batch_size: Number of conversations of an update.
        dataset: File with a JSON object a line: ``{"messages": [{"role": ..., "content": ...}, ...]}``, or
            ``{"prompt": ..., "completion": ...}``; solutions of the task if empty.
    """

    recipe: ClassVar[str] = "sft"
    batch_size: int = _searched(64, "16,32,64,128")
    dataset: str = ""

    def __post_init__(self) -> None:
        _check_least(self, 1, "batch_size")


@dataclass(frozen=True)
class DPO:
    """Direct preference optimization: pairs of a file, or the best and the worst of one's own answers.

    The reference is the model at the start.

    Args:
        pairs: Number of pairs of an update.
        group_size: Number of answers of which the best and the worst are a pair, without a file.
        beta: Weight of the divergence from the reference.
        dataset: File with a JSON object a line: ``{"prompt": ..., "chosen": ..., "rejected": ...}``.
    """

    recipe: ClassVar[str] = "dpo"
    pairs: int = _searched(16, "8,16,32")
    group_size: int = 8
    beta: float = _searched(0.1, "0.01..1:log")
    dataset: str = ""

    def __post_init__(self) -> None:
        _check_least(self, 1, "pairs")
        _check_least(self, 2, "group_size")
        _check_positive(self, "beta")


@dataclass(frozen=True)
class Distillation(Records):
    """On-policy distillation: the teacher scores the answers of the student, which has the same tokenizer.

    Args:
        teacher: Folder or id of the teacher, as for --model; it must be given.
        batch_size: Number of answers of an update.
    """

    recipe: ClassVar[str] = "distill"
    teacher: str = ""
    batch_size: int = _searched(64, "16,32,64,128")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_least(self, 1, "batch_size")
