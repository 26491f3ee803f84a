"""Policy losses: one loss of three choices, and the published objectives as presets of it.

Those take the policy first, and the divergence, entropy and correction of `PolicyLoss` as `options`.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_number, one_of
from rl.core.contract import Key
from rl.core.errors import ArgumentError, ContractError, issue_warning
from rl.core.keys import ADVANTAGE, NestedKey, key_str
from rl.llm import functional as f
from rl.llm._base import TokenBatch, TokenLoss, per_token_key, scalar
from rl.llm._keys import LOG_PROBS, OLD, REFERENCE, REMEDIES, TEACHER
from rl.llm.surrogates import CISPO, Correction, PPOClip, Surrogate, check_choices

__all__ = ["CISPOLoss", "DAPOLoss", "DistillationLoss", "DrGRPOLoss", "GRPOLoss", "GSPOLoss", "PolicyLoss", "RLOOLoss"]


#: log-ratio from which the first batch gives a warning: half of the usual clip, above rounding in bfloat16.
_DRIFT = 0.1


class PolicyLoss(TokenLoss):
    """Policy gradient on sampled tokens: a ratio, a surrogate and a normalizer, chosen independently.

    Reads the inputs of the policy, ``("masks", "all_assistant_mask")`` bool ``[*B, T]``, ``("log_probs", "full")``
    ``[*B, T]``, which the sampler recorded, ``advantage`` ``[*B, 1]`` or ``[*B, T, 1]``; with a correction
    ``("old_log_probs", "full")`` of the policy before the update, with `kl_to_ref_coeff` ``("ref_log_probs", "full")``.
    Optional: ``("tokens", "sequence")`` of packed rows, ``token_weight`` of `normalize`.

    Returns ``loss_objective``, and with their coefficients ``loss_kl_to_ref`` and ``loss_entropy``; all of them are
    summed with the same weights of tokens. Diagnostics have TRL's names: ``clip_ratio/low_mean``,
    ``clip_ratio/high_mean``, ``clip_ratio/region_mean``, ``kl``, ``entropy``,
    ``sampling/importance_sampling_ratio/mean``...; ``log_ratio/max_abs`` is 0 for the first step on fresh samples if
    trainer and sampler agree, and ``ESS`` is the effective share of tokens. A first batch with a log-ratio above 0.1
    issues a warning.

    Args:
        actor_network: Policy, such as a `TokenScorer`.
        surrogate: Surrogate with its settings, such as ``PPOClip(0.2, 0.28)``.
        ratio: Level of the importance weight: "token", "sequence", "sequence_token" or "product".
        normalizer: Weight of a token: "tokens", "sequence", "constant" or "prompt".
        max_tokens: Largest number of tokens of a response, for "constant".
        kl_to_ref_coeff: Weight of the divergence from the reference policy; None for no term.
        kl_estimator: Estimator of the divergence: "k1", "k2", "k3", "k1+" or "k3+".
        kl_importance: Whether the estimator is multiplied by the ratio, with its gradient, as TRL does.
        entropy_coeff: Weight of the entropy bonus; None for no term.
        correction: Correction of the mismatch with the sampler; None for a ratio against the sampler (bypass).

    Raises:
        ArgumentError: If a value is out of its range, or the choices do not fit.
        ContractError: If the policy does not write log-probabilities, or no entropy for `entropy_coeff`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from rl.llm import TokenScorer
        >>> actor = TokenScorer(nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5)))
        >>> tokens, mask = torch.randint(5, (4, 6)), torch.ones(4, 6, dtype=torch.bool)
        >>> mask[:, :2] = False  # the prompt
        >>> batch = TensorDict({"tokens": {"full": tokens}, "masks": {"all_assistant_mask": mask}}, batch_size=[4])
        >>> batch["masks", "all_attention_mask"] = torch.ones(4, 6, dtype=torch.bool)
        >>> batch["log_probs"] = actor(batch)["log_probs"].detach()  # those of a sampler, here of the policy
        >>> batch["advantage"] = torch.randn(4, 1)
        >>> out = PolicyLoss(actor, PPOClip(), ratio="token", normalizer="tokens")(batch)
        >>> out["loss_objective"].backward()
        >>> out["log_ratio/max_abs"]
        tensor(0.)
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **TokenLoss.default_keys,
        "sample_log_prob": LOG_PROBS,
        "old_log_prob": OLD,
        "ref_log_prob": REFERENCE,
        "advantage": ADVANTAGE,
    }

    def __init__(
        self,
        actor_network: nn.Module,
        surrogate: Surrogate,
        *,
        ratio: str,
        normalizer: str,
        max_tokens: float | None = None,
        kl_to_ref_coeff: float | None = None,
        kl_estimator: str = "k3",
        kl_importance: bool = False,
        entropy_coeff: float | None = None,
        correction: Correction | None = None,
    ) -> None:
        owner = type(self).__name__
        check_choices(ratio, surrogate, normalizer, owner)
        super().__init__(actor_network, normalizer=normalizer, max_tokens=max_tokens)
        for name, value in (("kl_to_ref_coeff", kl_to_ref_coeff), ("entropy_coeff", entropy_coeff)):
            if value is not None:
                as_number(value, owner, name, least=0)
        if correction is not None and not isinstance(correction, Correction):
            raise ArgumentError(f"{owner}: correction must be a Correction or None, got {correction!r:.100}")
        if entropy_coeff is not None and not self._has_entropy:
            raise ContractError(
                f"{owner}: entropy_coeff needs a policy that writes {key_str(self._keys['entropy'])}. Build it as"
                " TokenScorer(..., entropy=True), or leave out the coefficient"
            )
        self.surrogate, self.ratio, self.correction = surrogate, ratio, correction
        self.kl_to_ref_coeff, self.entropy_coeff = kl_to_ref_coeff, entropy_coeff
        self.kl_estimator = one_of(kl_estimator, owner, "kl_estimator", f.KL_ESTIMATORS)
        self.kl_importance = kl_importance
        self._checked = False

    @property
    def _reads_sampler(self) -> bool:
        return self.surrogate.reads_ratio or self.correction is not None

    def _reads(self) -> tuple[Key, ...]:
        keys = self._keys
        reads: list[Key] = []
        if self._reads_sampler:
            reads.append(per_token_key(keys["sample_log_prob"], "log-probability when the token was sampled, nats"))
        if self.correction is not None:
            reads.append(per_token_key(keys["old_log_prob"], "log-probability before the update, nats"))
        if self.kl_to_ref_coeff is not None:
            reads.append(per_token_key(keys["ref_log_prob"], "log-probability under the reference policy, nats"))
        return (*reads, *self._reads_advantage())

    def _reads_advantage(self) -> tuple[Key, ...]:
        name = self._keys["advantage"]
        return (Key(name, doc="advantage, [*B, 1] or [*B, T, 1]", remedy=REMEDIES.get(name, "")),)

    def _writes(self) -> tuple[Key, ...]:
        writes = [scalar("loss_objective", "surrogate objective")]
        if self.kl_to_ref_coeff is not None:
            writes.append(scalar("loss_kl_to_ref", "weighted divergence from the reference policy"))
            writes.append(scalar("kl", "mean divergence from the reference policy, nats, no gradient"))
        if self.entropy_coeff is not None:
            writes.append(scalar("loss_entropy", "weighted negative entropy"))
        if self._has_entropy:
            writes.append(scalar("entropy", "mean entropy, nats, no gradient"))
        if self.surrogate.reads_ratio:
            writes += [
                scalar("log_ratio/max_abs", "largest absolute log-ratio, nats, no gradient"),
                scalar("ESS", "effective share of tokens by their ratios, in [0, 1], no gradient"),
                scalar("clip_ratio/low_mean", "share clipped below with a negative advantage, no gradient"),
                scalar("clip_ratio/high_mean", "share clipped above with a positive advantage, no gradient"),
                scalar("clip_ratio/region_mean", "share clipped, no gradient"),
            ]
        if self.correction is not None:
            writes += [
                scalar("sampling/sampling_logp_difference/mean", "mean |log pi_old - log pi_sampler|, no gradient"),
                scalar("sampling/sampling_logp_difference/max", "largest one, no gradient"),
                *(
                    scalar(f"sampling/importance_sampling_ratio/{name}", f"{name} of the weights used, no gradient")
                    for name in ("min", "mean", "max")
                ),
                scalar("sampling/rejected_mean", "share of tokens with weight 0, no gradient"),
            ]
        return tuple(writes)

    def _advantage(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the advantage of each token, and diagnostics of it."""
        return batch.expanded(self._keys["advantage"]), {}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch, keys = self.read(tensordict), self._keys
        log_prob, sequences = batch.log_prob, batch.sequences
        advantage, values = self._advantage(batch)
        # Without a correction pi_old is the sampler (bypass); without a ratio it is the policy itself.
        sampled = batch.constant(keys["sample_log_prob"]) if self._reads_sampler else log_prob.detach()
        old = sampled if self.correction is None else batch.constant(keys["old_log_prob"])
        token_ratio = log_prob - old
        log_ratio = f.RATIOS[self.ratio](token_ratio, sequences)
        losses = self.surrogate.loss(log_prob, log_ratio, advantage, sequences)
        if self.correction is not None:
            weights, found = self._correct(self.correction, batch, old - sampled, sampled, advantage)
            losses = losses * weights
            values |= found
        values["loss_objective"] = batch.reduce(losses)
        if self.kl_to_ref_coeff is not None:
            kl = f.kl_estimate(log_prob, batch.constant(keys["ref_log_prob"]), self.kl_estimator)
            if self.kl_importance:
                kl = kl * log_ratio.exp()
            values |= {"loss_kl_to_ref": self.kl_to_ref_coeff * batch.reduce(kl), "kl": batch.mean(kl)}
        if batch.entropy is not None:
            values["entropy"] = batch.mean(batch.entropy)
            if self.entropy_coeff is not None:
                values["loss_entropy"] = -self.entropy_coeff * batch.reduce(batch.entropy)
        if self.surrogate.reads_ratio:
            values |= self._ratio_diagnostics(batch, token_ratio.detach(), log_ratio.detach(), advantage)
            self._check_first(values["log_ratio/max_abs"])
        return self._written(values)

    def _check_first(self, largest: Tensor) -> None:
        """Warn if the policy already differs from the sampler in the first update."""
        if self._checked or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        try:
            value = float(largest)
        except RuntimeError:  # under vmap a tensor has no single value
            return
        self._checked = True
        if value > _DRIFT:
            issue_warning(
                f"{type(self).__name__}: in the first batch the log-ratio of a token is {value:.3g}; on fresh samples"
                " it is 0 if trainer and sampler agree. Look for dropout, another temperature, padding, lower precision"
                " or older weights, or pass correction="
            )

    def _correct(
        self, correction: Correction, batch: TokenBatch, log_weight: Tensor, sampled: Tensor, advantage: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weight of each token, and diagnostics."""
        weights = correction.weights(log_weight, batch.sequences)
        if correction.drift is not None:
            kept = f.off_policy_sequence_mask(batch.log_prob, sampled, advantage, batch.sequences, correction.drift)
            weights = weights * kept
        difference, ratio = log_weight.abs(), "sampling/importance_sampling_ratio"
        return weights, {
            "sampling/sampling_logp_difference/mean": batch.mean(difference),
            "sampling/sampling_logp_difference/max": batch.extreme(difference),
            f"{ratio}/min": batch.extreme(weights, largest=False),
            f"{ratio}/mean": batch.mean(weights),
            f"{ratio}/max": batch.extreme(weights),
            "sampling/rejected_mean": batch.mean(weights == 0),
        }

    def _ratio_diagnostics(
        self, batch: TokenBatch, token_ratio: Tensor, log_ratio: Tensor, advantage: Tensor
    ) -> dict[str, Tensor]:
        ratio, (low, high) = log_ratio.exp(), self.surrogate.limits()
        below = (ratio < (-1.0 if low is None else low)) & (advantage < 0)
        above = (ratio > (float("inf") if high is None else high)) & (advantage > 0)
        one_per_sequence = self.ratio != "token"

        def mean(values: Tensor) -> Tensor:
            if not one_per_sequence:
                return batch.mean(values)
            per_sequence = batch.sequences.mean(values.to(ratio.dtype))
            return per_sequence.sum() / batch.sequences.count.clamp(min=1)

        return {
            "log_ratio/max_abs": batch.extreme(token_ratio.abs()),
            # (sum w)^2 / (n sum w^2): 1 if all weights are equal.
            "ESS": mean(ratio).square() / mean(ratio.square()).clamp(min=1e-30),
            "clip_ratio/low_mean": mean(below),
            "clip_ratio/high_mean": mean(above),
            "clip_ratio/region_mean": mean(below | above),
        }


def _pair(value: float | tuple[float, float]) -> tuple[float, float]:
    """Return the distances of both bounds from 1."""
    if isinstance(value, tuple) and len(value) != 2:
        raise ArgumentError(f"clip_epsilon must be a number or a pair of numbers, got {value}")
    return value if isinstance(value, tuple) else (value, value)


@final
class GRPOLoss(PolicyLoss):
    """Group relative policy optimization: clipped token ratios, mean per sequence, divergence from a reference.

    Shao et al., "DeepSeekMath", 2024, eq. 3. Advantages: ``MCAdvantage(group_size)``.
    Keys and outputs are those of `PolicyLoss`.

    Args:
        clip_epsilon: Distance of the bounds from 1, or a pair of them.
        dual_clip: Largest ratio for negative advantages; None for no limit.
        kl_to_ref_coeff: Weight of the divergence from the reference policy; None for no term. DeepSeek-R1 has 0.001.
        options: Estimator, entropy and correction, as for `PolicyLoss`.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        dual_clip: float | None = None,
        kl_to_ref_coeff: float | None = 0.04,
        **options: Any,
    ) -> None:
        clip, options = PPOClip(*_pair(clip_epsilon), dual=dual_clip), {"kl_to_ref_coeff": kl_to_ref_coeff, **options}
        super().__init__(actor_network, clip, ratio="token", normalizer="sequence", **options)


@final
class DAPOLoss(PolicyLoss):
    """DAPO: clip-higher, mean over the tokens of the step, no divergence.

    Yu et al., "DAPO", 2025, eq. 8. Its other parts: groups without reward variance are dropped, truncated responses
    have a false mask, `rl.llm.functional.overlong_penalty`. Call `normalize` on the step before it is split.

    Args:
        clip_epsilon: Distances of the lower and the upper bound from 1.
        dual_clip: Largest ratio for negative advantages; None for no limit.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        clip_epsilon: float | tuple[float, float] = (0.2, 0.28),
        dual_clip: float | None = None,
        **options: Any,
    ) -> None:
        clip = PPOClip(*_pair(clip_epsilon), dual=dual_clip)
        super().__init__(actor_network, clip, ratio="token", normalizer="tokens", **options)


@final
class DrGRPOLoss(PolicyLoss):
    """GRPO without the biases of length and difficulty: a constant normalizer.

    Liu et al., "Understanding R1-Zero-like training", 2025. Advantages: ``MCAdvantage(group_size, scale=None)``.

    Args:
        max_tokens: Largest number of tokens of a response.
        clip_epsilon: Distance of the bounds from 1, or a pair of them.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        max_tokens: float,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        **options: Any,
    ) -> None:
        options = {"max_tokens": max_tokens, **options}
        super().__init__(actor_network, PPOClip(*_pair(clip_epsilon)), ratio="token", normalizer="constant", **options)


@final
class GSPOLoss(PolicyLoss):
    """Group sequence policy optimization: one ratio for each sequence.

    Zheng et al., "Group sequence policy optimization", 2025, eq. 5 and 15.

    Args:
        clip_epsilon: Distances of the lower and the upper bound from 1.
        token_gradient: Whether each token has its own gradient (GSPO-token), for advantages of tokens.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        clip_epsilon: float | tuple[float, float] = (3e-4, 4e-4),
        token_gradient: bool = False,
        **options: Any,
    ) -> None:
        ratio = "sequence_token" if token_gradient else "sequence"
        super().__init__(actor_network, PPOClip(*_pair(clip_epsilon)), ratio=ratio, normalizer="sequence", **options)


@final
class CISPOLoss(PolicyLoss):
    """CISPO: policy gradient with clipped, detached weights: no token loses its gradient.

    MiniMax, "MiniMax-M1", 2025, eq. 4; cap of Khatri et al., "The art of scaling reinforcement learning compute", 2025.

    Args:
        high: Largest weight, a ratio of at least 1.
        low: Smallest weight, a ratio in [0, 1].
    """

    def __init__(self, actor_network: nn.Module, *, high: float = 5.0, low: float = 0.0, **options: Any) -> None:
        super().__init__(actor_network, CISPO(high, low), ratio="token", normalizer="tokens", **options)


@final
class RLOOLoss(PolicyLoss):
    """REINFORCE leave-one-out: a response is one action, with a clipped ratio.

    Ahmadian et al., "Back to basics", 2024, with the clip of TRL. Advantages:
    ``MCAdvantage(group_size, baseline="leave_one_out", scale=None)``; the divergence from a reference (k1 per
    response, weight 0.05) is subtracted from the reward.

    Args:
        clip_epsilon: Distance of the bounds from 1, or a pair of them.
    """

    def __init__(
        self, actor_network: nn.Module, *, clip_epsilon: float | tuple[float, float] = 0.2, **options: Any
    ) -> None:
        super().__init__(
            actor_network, PPOClip(*_pair(clip_epsilon)), ratio="product", normalizer="sequence", **options
        )


@final
class DistillationLoss(PolicyLoss):
    """On-policy distillation: reverse divergence from a teacher on tokens that the student sampled.

    Agarwal et al., "On-policy distillation of language models", 2024, with the policy gradient of sampled tokens: the
    advantage of a token is ``log pi_teacher - log pi``. With `clip_epsilon` None its expectation is the gradient of
    KL(student || teacher) at each position, also for samples of an older student.

    Reads ``("teacher_log_probs", "full")`` ``[*B, T]`` in place of ``advantage``.

    Args:
        actor_network: Student, such as a `TokenScorer`.
        clip_epsilon: Distance of the bounds from 1, or a pair of them; None for no bound.
        normalizer: Weight of a token: "tokens", "sequence" or "prompt".
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **{name: key for name, key in PolicyLoss.default_keys.items() if name != "advantage"},
        "teacher_log_prob": TEACHER,
    }

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        clip_epsilon: float | tuple[float, float] | None = None,
        normalizer: str = "tokens",
        **options: Any,
    ) -> None:
        clip = PPOClip(None, None) if clip_epsilon is None else PPOClip(*_pair(clip_epsilon))
        super().__init__(actor_network, clip, ratio="token", normalizer=normalizer, **options)

    def _reads_advantage(self) -> tuple[Key, ...]:
        return (per_token_key(self._keys["teacher_log_prob"], "log-probability under the teacher, nats"),)

    def _writes(self) -> tuple[Key, ...]:
        return (*super()._writes(), scalar("kl_to_teacher", "mean log pi - log pi_teacher, nats, no gradient"))

    def _advantage(self, batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        advantage = batch.constant(self._keys["teacher_log_prob"]) - batch.log_prob.detach()
        return advantage, {"kl_to_teacher": batch.mean(-advantage)}
