"""Surrogate objectives with their settings, and which ratios and normalizers each of them allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rl.core.arguments import as_number, one_of
from rl.core.errors import ArgumentError
from rl.llm import functional as f

__all__ = ["CISPO", "GMPO", "SAPO", "Correction", "PPOClip", "Reinforce", "Surrogate", "TVMask", "check_choices"]


@dataclass(frozen=True)
class Surrogate(ABC):
    """Loss of each token from its log-probability, log-ratio and advantage; bad settings raise `ArgumentError`."""

    ratios: ClassVar[tuple[str, ...]] = ("token",)
    normalizers: ClassVar[tuple[str, ...]] = tuple(f.NORMALIZERS)
    reads_ratio: ClassVar[bool] = True

    @abstractmethod
    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:
        """Compute the loss of each token, ``[*B, T]``.

        Args:
            log_prob: Log-probability of each token under the policy.
            log_ratio: Logarithm of the importance weight of each token.
            advantage: Advantage of each token.
            sequences: Sequences of the tokens.
        """

    def limits(self) -> tuple[float | None, float | None]:
        """Return the lower and the upper ratio beyond which a token is counted as clipped; None for no limit."""
        return None, None


@final
@dataclass(frozen=True)
class PPOClip(Surrogate):
    """Clipped surrogate: PPO, clip-higher, dual clip; see `rl.llm.functional.ppo_clip`.

    Args:
        low: Distance of the lower bound from 1, in (0, 1); None for no bound.
        high: Distance of the upper bound from 1, above 0; None for no bound.
        dual: Largest ratio for negative advantages, above ``1 + high``; None for no limit.

    Raises:
        ArgumentError: If a bound is out of its range.

    Example:
        >>> PPOClip(0.2, 0.28, dual=3.0).limits()
        (0.8, 1.28)
    """

    ratios: ClassVar[tuple[str, ...]] = tuple(f.RATIOS)
    low: float | None = 0.2
    high: float | None = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        if self.low is not None:
            as_number(self.low, "PPOClip", "low", above=0, below=1)
        if self.high is not None:
            as_number(self.high, "PPOClip", "high", above=0)
        if self.dual is not None:
            as_number(self.dual, "PPOClip", "dual", above=1 + (self.high or 0))

    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:  # noqa: ARG002
        return f.ppo_clip(log_ratio, advantage, self.low, self.high, self.dual)

    def limits(self) -> tuple[float | None, float | None]:
        return None if self.low is None else 1 - self.low, None if self.high is None else 1 + self.high


@final
@dataclass(frozen=True)
class CISPO(Surrogate):
    """Policy gradient with a clipped and detached weight; see `rl.llm.functional.cispo`.

    Args:
        high: Largest weight, a ratio of at least 1 (not a distance from 1).
        low: Smallest weight, a ratio in [0, 1].

    Raises:
        ArgumentError: If a bound is on the other side of 1: it would change on-policy gradients.

    Example:
        >>> CISPO(high=0.28)
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: CISPO: high must be at least 1, got 0.28
    """

    high: float = 5.0
    low: float = 0.0

    def __post_init__(self) -> None:
        as_number(self.high, "CISPO", "high", least=1)
        as_number(self.low, "CISPO", "low", least=0, most=1)

    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:  # noqa: ARG002
        return f.cispo(log_prob, log_ratio, advantage, self.low, self.high)

    def limits(self) -> tuple[float | None, float | None]:
        return self.low, self.high


@final
@dataclass(frozen=True)
class SAPO(Surrogate):
    """Sigmoid in place of a clip; see `rl.llm.functional.soft_clip`.

    Args:
        tau_positive: Steepness for positive advantages, above 0.
        tau_negative: Steepness for other advantages, above 0.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        as_number(self.tau_positive, "SAPO", "tau_positive", above=0)
        as_number(self.tau_negative, "SAPO", "tau_negative", above=0)

    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:  # noqa: ARG002
        return f.soft_clip(log_ratio, advantage, self.tau_positive, self.tau_negative)


@final
@dataclass(frozen=True)
class GMPO(Surrogate):
    """Geometric mean of the clipped ratios of a sequence; see `rl.llm.functional.geometric_clip`.

    Args:
        log_clip: Bound of the log-ratio, above 0.

    Raises:
        ArgumentError: If the bound is not above 0.
    """

    normalizers: ClassVar[tuple[str, ...]] = ("sequence",)
    log_clip: float = 0.4

    def __post_init__(self) -> None:
        as_number(self.log_clip, "GMPO", "log_clip", above=0)

    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:  # noqa: ARG002
        return f.geometric_clip(log_ratio, advantage, sequences, self.log_clip)


@final
@dataclass(frozen=True)
class TVMask(Surrogate):
    """Trust region on the probability of each token (DPPO); see `rl.llm.functional.tv_mask`.

    Args:
        threshold: Largest change of the probability, in (0, 1].
        penalty: Weight of the squared log-ratio, at least 0.
    """

    threshold: float = 0.2
    penalty: float = 1e-3

    def __post_init__(self) -> None:
        as_number(self.threshold, "TVMask", "threshold", above=0, most=1)
        as_number(self.penalty, "TVMask", "penalty", least=0)

    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:  # noqa: ARG002
        return f.tv_mask(log_prob, log_ratio, advantage, self.threshold, self.penalty)


@final
@dataclass(frozen=True)
class Reinforce(Surrogate):
    """Policy gradient without a ratio; see `rl.llm.functional.reinforce`."""

    reads_ratio: ClassVar[bool] = False

    def loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, sequences: f.Sequences) -> Tensor:  # noqa: ARG002
        return f.reinforce(log_prob, advantage)


def check_choices(ratio: str, surrogate: Surrogate, normalizer: str, owner: str) -> None:
    """Raise for a ratio, a surrogate and a normalizer that do not fit.

    Args:
        ratio: Name in `rl.llm.functional.RATIOS`.
        surrogate: Surrogate with its settings.
        normalizer: Name in `rl.llm.functional.NORMALIZERS`.
        owner: Name of the loss in messages.

    Raises:
        ArgumentError: If a name is unknown, or the three do not fit; the message has the reason.

    Example:
        >>> check_choices("sequence", PPOClip(), "tokens", "GSPOLoss")
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: GSPOLoss: ratio 'sequence' has one value for all tokens of a sequence, and ...
    """
    one_of(ratio, owner, "ratio", f.RATIOS)
    one_of(normalizer, owner, "normalizer", f.NORMALIZERS)
    name = type(surrogate).__name__
    if not isinstance(surrogate, Surrogate):
        raise ArgumentError(f"{owner}: surrogate must be a Surrogate such as PPOClip(), got {surrogate!r:.100}")
    if ratio not in surrogate.ratios:
        raise ArgumentError(
            f"{owner}: {name} weights the gradient of each token by its own ratio, got ratio {ratio!r}. Use ratio"
            " 'token', or PPOClip"
        )
    if normalizer not in (("sequence",) if ratio != "token" else surrogate.normalizers):
        which = name if ratio == "token" else f"ratio {ratio!r}"
        raise ArgumentError(
            f"{owner}: {which} has one value for all tokens of a sequence, and normalizer {normalizer!r} would weight"
            " sequences by their length. Use normalizer 'sequence'"
        )


_LEVELS = ("token", "sequence", None)


@final
@dataclass(frozen=True)
class Correction:
    """Correction of the mismatch of trainer and sampler, whose log-probabilities of a token differ.

    With w = pi_old / pi_sampler of a token, W the product over its sequence and G the geometric mean: a weight, which
    removes the bias, and a rejection, which bounds the variance. Both are detached. Without a correction the ratio of
    the loss is against the sampler (bypass).

    | form | arguments |
    |---|---|
    | token truncation (TIS) | ``Correction("token", cap=2.0)`` |
    | token mask (IcePop) | ``Correction("token", cap=None, reject="token", low=0.5, high=5.0)`` |
    | sequence truncation | ``Correction("sequence", cap=2.0)`` |
    | sequence mask (TRL's default) | ``Correction("sequence", cap=None, reject="sequence", high=3.0)`` |
    | geometric rejection | ``Correction(None, reject="geometric", low=0.99, high=1 / 0.99)`` |
    | off-policy sequence mask | ``Correction(None, drift=0.5)`` |

    Args:
        weight: Level of the weight, "token" or "sequence"; None for no weight.
        cap: Largest weight, above 0; None for no truncation.
        reject: Level of the rejection, "token", "sequence" or "geometric"; None for no rejection.
        low: Smallest weight that is kept, at least 0.
        high: Largest weight that is kept; None for no limit.
        drift: Largest mean of ``log pi_sampler - log pi`` of a sequence with a negative advantage; None for no limit.

    Raises:
        ArgumentError: If a level is unknown or a bound is out of its range.
    """

    weight: str | None = "token"
    cap: float | None = 2.0
    reject: str | None = None
    low: float = 0.0
    high: float | None = None
    drift: float | None = None

    def __post_init__(self) -> None:
        one_of(self.weight, "Correction", "weight", _LEVELS)
        one_of(self.reject, "Correction", "reject", ("token", "sequence", "geometric", None))
        if self.cap is not None:
            as_number(self.cap, "Correction", "cap", above=0)
        as_number(self.low, "Correction", "low", least=0)
        if self.high is not None:
            as_number(self.high, "Correction", "high", above=self.low)
        if self.drift is not None:
            as_number(self.drift, "Correction", "drift", least=0)
        if self.reject is None and (self.low or self.high is not None):
            raise ArgumentError("Correction: low and high need a level in reject, got reject=None")

    def weights(self, log_weight: Tensor, sequences: f.Sequences) -> Tensor:
        """Return the weight of each token, ``[*B, T]``; 0 where it is rejected.

        Args:
            log_weight: ``log pi_old - log pi_sampler`` of each token, ``[*B, T]``; 0 outside of the mask.
            sequences: Sequences of the tokens.
        """
        log_weight = log_weight.detach()
        levels = {
            "token": log_weight,
            "sequence": f.product_log_ratio(log_weight, sequences),
            "geometric": f.sequence_log_ratio(log_weight, sequences),
        }
        found = torch.ones_like(log_weight)
        if self.weight is not None:
            found = f.truncated_weights(levels[self.weight], 0.0, float("inf") if self.cap is None else self.cap)
        if self.reject is not None:
            high = float("inf") if self.high is None else self.high
            found = found.masked_fill(~f.rejection_mask(levels[self.reject], self.low, high), 0)
        return found
