"""Losses on given responses: supervised fine-tuning, preferences, reward models."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rl.core.arguments import as_number, one_of
from rl.core.contract import Contract, Key, contract_of
from rl.core.errors import ShapeError
from rl.core.keys import NestedKey
from rl.llm._base import KeyedLoss, TokenBatch, TokenLoss, per_token_key, scalar
from rl.llm._keys import REFERENCE

__all__ = ["DPOLoss", "RewardModelLoss", "SFTLoss"]


@final
class SFTLoss(TokenLoss):
    """Supervised fine-tuning: negative log-probability of the trained tokens.

    Reads the inputs of the policy and ``("masks", "all_assistant_mask")`` bool ``[*B, T]``. Optional:
    ``("tokens", "sequence")`` of packed rows, ``token_weight`` of `normalize`. Returns ``loss_sft``, and
    ``num_tokens`` and ``entropy`` without gradient.

    Args:
        actor_network: Policy, such as a `TokenScorer`.
        loss_type: "nll", or "dft", which weights each token by its detached probability (Wu et al., "On the
            generalization of SFT", 2025, eq. 9).
        normalizer: Weight of a token: "tokens", "sequence", "constant" or "prompt".
        max_tokens: Largest number of tokens of a response, for "constant".

    Example:
        >>> from rl.llm import TokenScorer
        >>> actor = TokenScorer(nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5)))
        >>> mask = torch.tensor([[False, True, True]])
        >>> masks = {"all_attention_mask": torch.ones_like(mask), "all_assistant_mask": mask}
        >>> batch = TensorDict({"tokens": {"full": torch.tensor([[1, 2, 3]])}, "masks": masks}, batch_size=[1])
        >>> SFTLoss(actor)(batch)["loss_sft"].backward()
    """

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        loss_type: str = "nll",
        normalizer: str = "tokens",
        max_tokens: float | None = None,
    ) -> None:
        super().__init__(actor_network, normalizer=normalizer, max_tokens=max_tokens)
        self.loss_type = one_of(loss_type, "SFTLoss", "loss_type", ("nll", "dft"))

    def _reads(self) -> tuple[Key, ...]:
        return ()

    def _writes(self) -> tuple[Key, ...]:
        writes = (scalar("loss_sft", "negative log-probability"), scalar("num_tokens", "trained tokens, no gradient"))
        return (*writes, scalar("entropy", "mean entropy, nats, no gradient")) if self._has_entropy else writes

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch = self.read(tensordict)
        losses = -batch.log_prob
        if self.loss_type == "dft":
            losses = losses * batch.log_prob.detach().exp()
        values = {"loss_sft": batch.reduce(losses), "num_tokens": batch.mask.sum()}
        if batch.entropy is not None:
            values["entropy"] = batch.mean(batch.entropy)
        return self._written(values)


@final
class DPOLoss(TokenLoss):
    """Direct preference optimization: the policy prefers the first of two responses more than the reference does.

    Rafailov et al., "Direct preference optimization", 2023, eq. 7; label smoothing of Mitchell, "A note on DPO with
    noisy preferences", 2023, eq. 3.

    Reads batches ``[*B, 2]``, the chosen response first: the inputs of the policy, ``("masks", "all_assistant_mask")``
    bool ``[*B, 2, T]`` and ``("ref_log_probs", "full")`` ``[*B, 2, T]``. Returns ``loss_dpo``, and TRL's diagnostics
    ``rewards/chosen``, ``rewards/rejected``, ``rewards/accuracies``, ``rewards/margins``, ``logps/chosen`` and
    ``logps/rejected``. The loss is a mean over pairs, over those of the step after `normalize`.

    Args:
        actor_network: Policy, such as a `TokenScorer`.
        beta: Weight of the divergence from the reference, above 0.
        label_smoothing: Probability that a pair is labelled the wrong way round, in [0, 0.5).
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **{name: key for name, key in TokenLoss.default_keys.items() if name not in ("sequence", "group")},
        "ref_log_prob": REFERENCE,
    }

    def __init__(self, actor_network: nn.Module, *, beta: float = 0.1, label_smoothing: float = 0.0) -> None:
        super().__init__(actor_network, normalizer="sequence")
        self.beta = as_number(beta, "DPOLoss", "beta", above=0)
        self.label_smoothing = as_number(label_smoothing, "DPOLoss", "label_smoothing", least=0, below=0.5)

    def _weights_of_step(self, td: TensorDictBase, mask: Tensor) -> Tensor:  # noqa: ARG002
        return mask.new_full(mask.shape, 1 / mask.numel(), dtype=torch.float64)  # those of a pair add up to 1 / pairs

    def _reads(self) -> tuple[Key, ...]:
        return (per_token_key(self._keys["ref_log_prob"], "log-probability under the reference policy, nats"),)

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_dpo", "negative log-likelihood of the preferences"),
            scalar("rewards/chosen", "mean implicit reward of the chosen responses, no gradient"),
            scalar("rewards/rejected", "mean implicit reward of the others, no gradient"),
            scalar("rewards/accuracies", "share of pairs with a higher reward of the chosen response, no gradient"),
            scalar("rewards/margins", "mean difference of rewards, no gradient"),
            scalar("logps/chosen", "mean log-probability of the chosen responses, no gradient"),
            scalar("logps/rejected", "mean log-probability of the others, no gradient"),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        _check_pairs(tensordict, "DPOLoss")
        batch: TokenBatch = self.read(tensordict)
        reference = batch.constant(self._keys["ref_log_prob"])
        logps = batch.log_prob.sum(-1)  # [*B, 2]
        rewards = self.beta * (logps - reference.sum(-1))
        margin = rewards[..., 0] - rewards[..., 1]
        smoothing = self.label_smoothing
        losses = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        return self._written(
            {
                "loss_dpo": (losses * batch.weights.sum((-2, -1))).sum(),
                "rewards/chosen": rewards[..., 0].mean(),
                "rewards/rejected": rewards[..., 1].mean(),
                "rewards/accuracies": (margin > 0).to(margin.dtype).mean(),
                "rewards/margins": margin.mean(),
                "logps/chosen": logps[..., 0].mean(),
                "logps/rejected": logps[..., 1].mean(),
            }
        )


def _check_pairs(td: TensorDictBase, owner: str) -> None:
    if not td.batch_size or td.batch_size[-1] != 2 or not td.batch_size.numel():
        raise ShapeError(f"{owner}: the batch must be [*B, 2], the chosen response first, got {list(td.batch_size)}")


@final
class RewardModelLoss(KeyedLoss):
    """Reward model from preferences: the chosen response scores higher.

    Ouyang et al., "Training language models to follow instructions with human feedback", 2022, eq. 1. The centering
    term is that of Eisenstein et al., "Helping or herding?", 2023, eq. 2.

    Reads batches ``[*B, 2]``, the chosen response first: the inputs of the network and, if there, ``pair_weight``
    ``[*B, 2]`` of `normalize`. Returns ``loss_reward``, a mean over pairs, and TRL's diagnostics ``accuracy``,
    ``margin``, ``mean_reward``, ``min_reward`` and ``max_reward``.

    Args:
        reward_network: Network that writes ``score`` ``[*B, 2, 1]``, such as a `TensorDictModule`.
        center_rewards_coefficient: Weight of the squared sum of the scores of a pair, at least 0; None for no term.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> loss = RewardModelLoss(TensorDictModule(nn.Linear(3, 1), ["features"], ["score"]))
        >>> loss(TensorDict(features=torch.randn(4, 2, 3), batch_size=[4, 2]))["loss_reward"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"score": "score", "weight": "pair_weight"}

    reward_network: nn.Module

    def __init__(self, reward_network: nn.Module, *, center_rewards_coefficient: float | None = None) -> None:
        super().__init__(reward_network, "reward_network", "score")
        if center_rewards_coefficient is not None:
            as_number(center_rewards_coefficient, "RewardModelLoss", "center_rewards_coefficient", least=0)
        self.center_rewards_coefficient = center_rewards_coefficient

    @property
    def contract(self) -> Contract:
        writes = (
            scalar("loss_reward", "negative log-likelihood of the preferences"),
            scalar("accuracy", "share of pairs with a higher score of the chosen response, no gradient"),
            scalar("margin", "mean difference of scores, no gradient"),
            scalar("mean_reward", "mean score, no gradient"),
            scalar("min_reward", "smallest score, no gradient"),
            scalar("max_reward", "largest score, no gradient"),
        )
        weight = Key(self._keys["weight"], (), "weight in the step, of normalize", optional=True)
        return Contract((*contract_of(self.reward_network).reads, weight), writes)

    def normalize(self, step: TensorDictBase) -> TensorDictBase:
        """Return a shallow copy of the pairs of an optimizer step with their weights; see `TokenLoss.normalize`."""
        _check_pairs(step, "RewardModelLoss")
        size = step.batch_size
        return step.copy().set(
            self._keys["weight"], torch.full(size, 2 / size.numel(), dtype=torch.float64, device=step.device)
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        _check_pairs(tensordict, "RewardModelLoss")
        self.contract.read(tensordict, self)
        inputs = [key.name for key in contract_of(self.reward_network).reads]
        scored = self.reward_network(tensordict.select(*inputs, strict=False))
        score: Tensor = scored.get(self._keys["score"])
        if score.shape != (*tensordict.batch_size, 1):
            wanted = [*tensordict.batch_size, 1]
            raise ShapeError(f"RewardModelLoss: the score must be {wanted}, got {list(score.shape)}")
        score = score.squeeze(-1).to(torch.promote_types(score.dtype, torch.float32))
        margin = score[..., 0] - score[..., 1]
        losses = -logsigmoid(margin)
        if self.center_rewards_coefficient is not None:
            losses = losses + self.center_rewards_coefficient * score.sum(-1).square()
        weight: Any = tensordict.get(self._keys["weight"], None)
        loss = losses.mean() if weight is None else (losses * weight[..., 0].to(losses.dtype)).sum()
        found = score.detach()
        return TensorDict(
            {
                "loss_reward": loss,
                "accuracy": (margin > 0).to(score.dtype).mean(),
                "margin": margin.detach().mean(),
                "mean_reward": found.mean(),
                "min_reward": found.amin(),
                "max_reward": found.amax(),
            }
        )
