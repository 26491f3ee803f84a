"""Objectives of language models as pure functions: ratio, surrogate, normalizer, divergence, correction.

Tensors of tokens are ``[*B, T]``. The mask is true for tokens that are trained; all other entries are ignored, so that
padding, packing and the order of rows change nothing. `Sequences` tells which tokens form a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from rl.core.arguments import as_number, one_of, same_shape
from rl.core.errors import ArgumentError, ShapeError

__all__ = [
    "KL_ESTIMATORS",
    "NORMALIZERS",
    "RATIOS",
    "Sequences",
    "cispo",
    "geometric_clip",
    "kl_estimate",
    "off_policy_sequence_mask",
    "overlong_penalty",
    "per_token",
    "ppo_clip",
    "reinforce",
    "rejection_mask",
    "soft_clip",
    "token_weights",
    "truncated_weights",
    "tv_mask",
]


@final
class Sequences:
    """Sums and means over the trained tokens of each sequence.

    Args:
        mask: Trained tokens, bool ``[*B, T]``.
        index: Number of the sequence of each token, int64 ``[*B, T]``, where rows hold several sequences (packing);
            each row is one sequence if None. Numbers of tokens outside the mask are ignored.

    Raises:
        ShapeError: If the mask has no dimension, or the index another shape.

    Example:
        >>> mask = torch.tensor([[True, True, False], [True, False, False]])
        >>> Sequences(mask).mean(torch.tensor([[1.0, 3.0, 9.0], [5.0, 9.0, 9.0]]))
        tensor([2., 5.])
    """

    def __init__(self, mask: Tensor, index: Tensor | None = None) -> None:
        if mask.ndim == 0 or mask.dtype is not torch.bool:
            raise ShapeError(f"Sequences: mask must be bool [*B, T], got {mask.dtype} {tuple(mask.shape)}")
        if index is not None:
            same_shape(mask=mask, index=index)
            index = index.where(mask, 0)
        self.mask, self.index = mask, index
        self._count = 0 if index is None or not index.numel() else int(index.max()) + 1
        self.lengths = self.sum(torch.ones_like(mask, dtype=torch.int64))
        """Trained tokens of each sequence, int64 ``[S]``."""

    @property
    def count(self) -> Tensor:
        """Number of sequences with at least one trained token, int64 ``[]``."""
        return (self.lengths > 0).sum()

    def sum(self, values: Tensor) -> Tensor:
        """Return sums over the trained tokens of each sequence, ``[S]``."""
        values = values.where(self.mask, 0)
        if self.index is None:
            return values.sum(-1).flatten()
        return values.new_zeros(self._count).index_add(0, self.index.flatten(), values.flatten())

    def mean(self, values: Tensor) -> Tensor:
        """Return means over the trained tokens of each sequence, ``[S]``; 0 for a sequence without any."""
        return self.sum(values) / self.lengths.clamp(min=1)

    def expand(self, values: Tensor) -> Tensor:
        """Return the value of its sequence for each token: ``[S]`` to ``[*B, T]``."""
        if self.index is None:
            return values.view(*self.mask.shape[:-1], 1).expand(self.mask.shape)
        return values[self.index]


def per_token(values: Tensor, mask: Tensor, name: str = "advantage") -> Tensor:
    """Expand a value of each sequence or token to tokens.

    Args:
        values: ``[*B, 1]``, one for each row, or ``[*B, T, 1]``, one for each token.
        mask: ``[*B, T]``, for the shape.
        name: Name of the entry that the message uses.

    Raises:
        ShapeError: If the values have neither shape.

    Example:
        >>> per_token(torch.tensor([[2.0]]), torch.ones(1, 3, dtype=torch.bool))
        tensor([[2., 2., 2.]])
    """
    if values.shape == (*mask.shape, 1):
        return values.squeeze(-1)
    if values.shape == (*mask.shape[:-1], 1):
        return values.expand(mask.shape)
    rows = tuple(mask.shape[:-1])
    raise ShapeError(
        f"{name} must be {(*rows, 1)}, one for each row, or {(*mask.shape, 1)}, one for each token; got"
        f" {tuple(values.shape)}"
    )


# --- ratios: logarithm of the importance weight of each token -------------------------------------------------------


def token_log_ratio(log_ratio: Tensor, sequences: Sequences) -> Tensor:  # noqa: ARG001 - the signature of the table
    """Return ``log pi - log pi_old`` of each token as it is (PPO, GRPO)."""
    return log_ratio


def sequence_log_ratio(log_ratio: Tensor, sequences: Sequences) -> Tensor:
    """Return the mean log-ratio of the sequence for each token.

    Zheng et al., "Group sequence policy optimization", 2025, eq. 7: the likelihood ratio of the sequence to the power
    of one over its length.
    """
    return sequences.expand(sequences.mean(log_ratio))


def sequence_token_log_ratio(log_ratio: Tensor, sequences: Sequences) -> Tensor:
    """Return the mean log-ratio of the sequence as value, with the gradient of the token's own log-probability.

    Zheng et al., "Group sequence policy optimization", 2025, eq. 15 (GSPO-token).
    """
    # log_ratio - sg(log_ratio) is 0 with the gradient of log pi.
    return log_ratio - log_ratio.detach() + sequence_log_ratio(log_ratio.detach(), sequences)


def product_log_ratio(log_ratio: Tensor, sequences: Sequences) -> Tensor:
    """Return the sum of log-ratios of the sequence for each token: the sequence is one action (RLOO)."""
    return sequences.expand(sequences.sum(log_ratio))


RATIOS: dict[str, Callable[[Tensor, Sequences], Tensor]] = {
    "token": token_log_ratio,
    "sequence": sequence_log_ratio,
    "sequence_token": sequence_token_log_ratio,
    "product": product_log_ratio,
}
"""Logarithm of the importance weight of each token, from that of each token and the sequences."""


# --- surrogates: loss of each token -----------------------------------------------------------------------------------


def ppo_clip(
    log_ratio: Tensor, advantage: Tensor, low: float | None = 0.2, high: float | None = 0.2, dual: float | None = None
) -> Tensor:
    """Return the clipped surrogate ``-min(r A, clip(r, 1 - low, 1 + high) A)``.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7. Different bounds: Yu et al., "DAPO", 2025,
    eq. 10. Dual clip: Ye et al., "Mastering complex control in MOBA games with deep reinforcement learning", 2020,
    eq. 5: for negative advantages the objective is at least ``dual * A``; INTELLECT-2 and TRL call it `delta`.

    Args:
        log_ratio: Logarithm of the ratio, ``[*B, T]``.
        advantage: Advantage, ``[*B, T]``.
        low: Distance of the lower bound from 1; None for no bound.
        high: Distance of the upper bound from 1; None for no bound.
        dual: Largest ratio for negative advantages; None for no limit.

    Example:
        >>> ppo_clip(torch.tensor([1.5, 1.5]).log(), torch.tensor([1.0, -1.0]))
        tensor([-1.2000,  1.5000])
    """
    same_shape(log_ratio=log_ratio, advantage=advantage)
    ratio = log_ratio.exp()
    bounded = ratio
    if low is not None or high is not None:
        bounded = ratio.clamp(None if low is None else 1 - low, None if high is None else 1 + high)
    objective = torch.minimum(ratio * advantage, bounded * advantage)
    if dual is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
    return -objective


def cispo(log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, low: float = 0.0, high: float = 5.0) -> Tensor:
    """Return ``-sg(clip(r, low, high)) A log pi``: every token keeps a gradient, with a bounded weight.

    MiniMax, "MiniMax-M1", 2025, eq. 4. The bounds are ratios, not distances from 1.

    Args:
        log_prob: Log-probability of each token, ``[*B, T]``.
        log_ratio: Logarithm of the ratio, ``[*B, T]``.
        advantage: Advantage, ``[*B, T]``.
        low: Smallest weight, at most 1.
        high: Largest weight, at least 1; about 5 in Khatri et al., "ScaleRL", 2025.

    Example:
        >>> cispo(torch.tensor([-1.0]), torch.tensor([9.0]).log(), torch.tensor([2.0]))
        tensor([10.])
    """
    same_shape(log_prob=log_prob, log_ratio=log_ratio, advantage=advantage)
    return -log_ratio.detach().exp().clamp(low, high) * advantage * log_prob


def soft_clip(log_ratio: Tensor, advantage: Tensor, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Tensor:
    """Return ``-4/tau sigmoid(tau (r - 1)) A``: a clip without corners.

    Gao et al., "Soft adaptive policy optimization", 2025, eq. 6. The gradient at ratio 1 is that of REINFORCE.

    Args:
        log_ratio: Logarithm of the ratio, ``[*B, T]``.
        advantage: Advantage, ``[*B, T]``.
        tau_positive: Steepness for positive advantages.
        tau_negative: Steepness for other advantages.
    """
    same_shape(log_ratio=log_ratio, advantage=advantage)
    tau = torch.full_like(advantage, tau_negative).masked_fill(advantage > 0, tau_positive)
    return -torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau * advantage


def geometric_clip(log_ratio: Tensor, advantage: Tensor, sequences: Sequences, log_clip: float = 0.4) -> Tensor:
    """Return ``-A`` times the geometric mean of the clipped ratios of the sequence, for each of its tokens.

    Zhao et al., "Geometric-mean policy optimization", 2025, eq. 4: ratios are clipped to ``exp(+-log_clip)`` on the
    pessimistic side before the mean.

    Args:
        log_ratio: Logarithm of the ratio of each token, ``[*B, T]``.
        advantage: Advantage, ``[*B, T]``, one value for each sequence.
        sequences: Sequences of the tokens.
        log_clip: Bound of the log-ratio.
    """
    same_shape(log_ratio=log_ratio, advantage=advantage)
    pessimistic = torch.where(advantage > 0, log_ratio.clamp(max=log_clip), log_ratio.clamp(min=-log_clip))
    return -sequences.expand(sequences.mean(pessimistic)).exp() * advantage


def tv_mask(
    log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, threshold: float = 0.2, penalty: float = 1e-3
) -> Tensor:
    """Return ``-r A`` without tokens whose probability already moved too far, plus ``penalty * (log r)^2``.

    Masked out are tokens with ``p - p_old > threshold`` and a positive advantage, or ``p - p_old < -threshold`` and a
    negative one: the total-variation trust region of DPPO, as in prime-rl.

    Args:
        log_prob: Log-probability of each token, ``[*B, T]``.
        log_ratio: Logarithm of the ratio, ``[*B, T]``.
        advantage: Advantage, ``[*B, T]``.
        threshold: Largest change of the probability, in (0, 1].
        penalty: Weight of the squared log-ratio.
    """
    same_shape(log_prob=log_prob, log_ratio=log_ratio, advantage=advantage)
    moved = log_prob.detach().exp() - (log_prob - log_ratio).detach().exp()
    outside = ((moved > threshold) & (advantage > 0)) | ((moved < -threshold) & (advantage < 0))
    return -(log_ratio.exp() * advantage).masked_fill(outside, 0) + penalty * log_ratio.square()


def reinforce(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Return ``-A log pi``.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.
    """
    same_shape(log_prob=log_prob, advantage=advantage)
    return -advantage * log_prob


# --- normalizers: weight of each token in the loss --------------------------------------------------------------------


def _inverse(count: Tensor) -> Tensor:
    """Return one over a count, in double precision where the device has it."""
    return 1 / count.clamp(min=1).to(torch.float32 if count.device.type == "mps" else torch.float64)


def _tokens(sequences: Sequences, max_tokens: float | None) -> Tensor:  # noqa: ARG001 - the signature of the table
    return sequences.expand(_inverse(sequences.lengths.sum()).expand_as(sequences.lengths))


def _sequence(sequences: Sequences, max_tokens: float | None) -> Tensor:  # noqa: ARG001
    return sequences.expand(_inverse(sequences.lengths.clamp(min=1) * sequences.count))


def _constant(sequences: Sequences, max_tokens: float | None) -> Tensor:
    if max_tokens is None:
        raise ArgumentError("normalizer 'constant' needs max_tokens, the largest number of tokens of a response")
    return sequences.expand((_inverse(sequences.count) / max_tokens).expand_as(sequences.lengths))


NORMALIZERS: dict[str, Callable[[Sequences, float | None], Tensor]] = {
    "tokens": _tokens,
    "sequence": _sequence,
    "constant": _constant,
    "prompt": _sequence,  # over the tokens of a prompt in place of those of a sequence
}
"""Weight of each token; the loss is the sum of weighted losses of tokens."""


def token_weights(
    mask: Tensor,
    normalizer: str,
    *,
    index: Tensor | None = None,
    prompt: Tensor | None = None,
    max_tokens: float | None = None,
) -> Tensor:
    """Compute the weight of each token of an optimizer step, ``[*B, T]``; 0 outside of the mask.

    The weights are those of the entire step: slices of it keep them, and losses of micro-batches are summed.

    - ``"tokens"``: one over the number of trained tokens N (DAPO).
    - ``"sequence"``: mean over the tokens of a sequence, then over sequences (GRPO, GSPO).
    - ``"constant"``: one over the number of sequences times `max_tokens` (Dr. GRPO).
    - ``"prompt"``: mean over the tokens of a prompt's responses, then over prompts.

    Args:
        mask: Trained tokens of the step, bool ``[*B, T]``.
        normalizer: Name of one of the four.
        index: Number of the sequence of each token, int64 ``[*B, T]``, of packed rows.
        prompt: Number of the prompt of each token, int64 ``[*B, T]``; for ``"prompt"``.
        max_tokens: Largest number of tokens of a response; for ``"constant"``.

    Raises:
        ArgumentError: If the normalizer is unknown, or lacks its argument.
        ShapeError: If shapes differ.

    Example:
        >>> mask = torch.tensor([[True, True, True], [True, False, False]])
        >>> token_weights(mask, "tokens").tolist()
        [[0.25, 0.25, 0.25], [0.25, 0.0, 0.0]]
        >>> token_weights(mask, "constant", max_tokens=4).tolist()
        [[0.125, 0.125, 0.125], [0.125, 0.0, 0.0]]
    """
    one_of(normalizer, "token_weights", "normalizer", NORMALIZERS)
    if normalizer == "prompt":
        if prompt is None:
            raise ArgumentError("normalizer 'prompt' needs the prompt of each token")
        same_shape(mask=mask, prompt=prompt)
        index = prompt.where(mask, -1).unique(return_inverse=True)[1]
    if max_tokens is not None:
        as_number(max_tokens, "token_weights", "max_tokens", above=0)
    return NORMALIZERS[normalizer](Sequences(mask, index), max_tokens).where(mask, 0)


# --- divergence -------------------------------------------------------------------------------------------------------


def _k1(x: Tensor) -> Tensor:
    return x


def _k2(x: Tensor) -> Tensor:
    return x.square() / 2


def _k3(x: Tensor) -> Tensor:
    return (-x).exp() - 1 + x


def _with_gradient_of_k2(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: _k2(x) - _k2(x).detach() + value(x.detach())


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": _k1,
    "k2": _k2,
    "k3": _k3,
    "k1+": _with_gradient_of_k2(_k1),
    "k3+": _with_gradient_of_k2(_k3),
}
"""Estimators of KL(pi || pi_ref) from ``log pi - log pi_ref`` of tokens that pi sampled."""


def kl_estimate(log_prob: Tensor, reference: Tensor, estimator: str = "k3") -> Tensor:
    """Estimate KL(pi || pi_ref) of each token from its log-probabilities.

    Schulman, "Approximating KL divergence", 2020: with ``x = log pi - log pi_ref``, k1 is x, k2 is ``x^2 / 2``, k3 is
    ``exp(-x) - 1 + x``. The forms with "+" have the value of k1 or k3 and the gradient of k2, whose expectation is the
    gradient of the divergence; that of k1 is 0 and that of k3 that of the other direction.

    Args:
        log_prob: Log-probability under the policy, ``[*B, T]``.
        reference: Log-probability under the reference, ``[*B, T]``.
        estimator: Name: "k1", "k2", "k3", "k1+" or "k3+".

    Raises:
        ArgumentError: If the estimator is unknown.

    Example:
        >>> kl_estimate(torch.tensor([-1.0]), torch.tensor([-2.0]), "k2")
        tensor([0.5000])
    """
    same_shape(log_prob=log_prob, reference=reference)
    one_of(estimator, "kl_estimate", "estimator", KL_ESTIMATORS)
    return KL_ESTIMATORS[estimator](log_prob - reference)


# --- correction of the mismatch between trainer and sampler -----------------------------------------------------------


def truncated_weights(log_weight: Tensor, low: float, high: float) -> Tensor:
    """Return ``clip(w, low, high)`` without gradient: truncated importance sampling.

    Args:
        log_weight: ``log pi_old - log pi_sampler`` of tokens, or of their sequences, ``[*B, T]``.
        low: Smallest weight.
        high: Largest weight.

    Example:
        >>> truncated_weights(torch.tensor([1.0, 5.0]).log(), 0.0, 2.0)
        tensor([1., 2.])
    """
    return log_weight.detach().exp().clamp(low, high)


def rejection_mask(log_weight: Tensor, low: float, high: float) -> Tensor:
    """Return whether the weight lies in ``[low, high]``, bool.

    Args:
        log_weight: Logarithm of the weight, ``[*B, T]``.
        low: Smallest weight that is kept.
        high: Largest weight that is kept.

    Example:
        >>> rejection_mask(torch.tensor([1.0, 9.0]).log(), 0.5, 5.0)
        tensor([ True, False])
    """
    weight = log_weight.detach().exp()
    return (weight >= low) & (weight <= high)


def off_policy_sequence_mask(
    log_prob: Tensor, sample_log_prob: Tensor, advantage: Tensor, sequences: Sequences, threshold: float = 0.5
) -> Tensor:
    """Return false for tokens of sequences with negative advantage that the policy has left, bool ``[*B, T]``.

    DeepSeek, "DeepSeek-V3.2", 2025, eq. 9: a sequence is left out if ``A < 0`` and the mean of
    ``log pi_sampler - log pi`` over its tokens exceeds the threshold.
    """
    same_shape(log_prob=log_prob, sample_log_prob=sample_log_prob, advantage=advantage)
    drift = sequences.expand(sequences.mean((sample_log_prob - log_prob).detach()))
    return (advantage >= 0) | (drift <= threshold)


def overlong_penalty(length: Tensor, max_length: int, buffer: int) -> Tensor:
    """Return the soft penalty of long responses that is added to the reward, in [-1, 0].

    Yu et al., "DAPO", 2025, eq. 13: 0 up to ``max_length - buffer`` tokens, then linear to -1 at `max_length`.

    Args:
        length: Number of tokens of each response, any shape.
        max_length: Length from which the penalty is -1.
        buffer: Number of tokens over which it grows.

    Raises:
        ArgumentError: If the buffer is not in [1, max_length].

    Example:
        >>> overlong_penalty(torch.tensor([10, 18, 30]), max_length=20, buffer=4)
        tensor([ 0.0000, -0.5000, -1.0000])
    """
    as_number(buffer, "overlong_penalty", "buffer", least=1, most=max_length)
    return ((max_length - buffer - length) / buffer).clamp(-1, 0)
