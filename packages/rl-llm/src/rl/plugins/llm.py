"""Components of rl-llm, as data."""

from __future__ import annotations

from collections.abc import Iterator

from rl.core.component import Component
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_components() -> Iterator[Component]:
    """Losses, advantages and the policy of a language model."""
    losses = (
        ("grpo", "GRPOLoss", "Group relative policy optimization: clipped token ratios, mean per sequence."),
        ("dapo", "DAPOLoss", "Clip-higher with the mean over the tokens of the step."),
        ("dr-grpo", "DrGRPOLoss", "GRPO with a constant normalizer."),
        ("gspo", "GSPOLoss", "Group sequence policy optimization: one ratio for each sequence."),
        ("cispo", "CISPOLoss", "Policy gradient with clipped, detached importance weights."),
        ("rloo", "RLOOLoss", "REINFORCE leave-one-out: a response is one action."),
        ("llm-policy", "PolicyLoss", "Policy gradient of tokens: a ratio, a surrogate and a normalizer."),
        ("distillation", "DistillationLoss", "On-policy distillation from a teacher."),
        ("sft", "SFTLoss", "Supervised fine-tuning of a language model."),
        ("dpo", "DPOLoss", "Direct preference optimization."),
        ("reward-model", "RewardModelLoss", "Reward model from preferences."),
    )
    for name, attribute, summary in losses:
        yield Component(kind="loss", name=name, target=f"rl.llm:{attribute}", summary=summary)
    yield Component(
        kind="estimator",
        name="mc-advantage",
        target="rl.llm:MCAdvantage",
        summary="Advantage of a response relative to others to the same prompt.",
    )
    yield Component(
        kind="module",
        name="token-scorer",
        target="rl.llm:TokenScorer",
        summary="Log-probability and entropy of each token under a causal language model.",
    )
    recipes = (
        ("grpo", "GRPO", "Language model: group relative policy optimization on a task."),
        ("sft", "SFT", "Language model: supervised fine-tuning on solutions or conversations."),
        ("dpo", "DPO", "Language model: direct preference optimization on pairs."),
        ("distill", "DISTILL", "Language model: on-policy distillation from a teacher."),
        ("expert-iteration", "EXPERT_ITERATION", "Language model: supervised training on its own best answers."),
    )
    for name, attribute, summary in recipes:
        yield Component(kind="recipe", name=name, target=f"rl.llm.recipes:{attribute}", summary=summary, extra="train")
