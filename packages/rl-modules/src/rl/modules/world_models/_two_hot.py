"""Distributions of world models' heads: two-hot categoricals, squared errors, uniform mixtures."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Size, Tensor, nn
from torch.distributions import constraints

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError, ShapeError
from rl.modules.distributions._base import LeanDistribution, split_shape, sum_event
from rl.modules.value_transforms import symexp, symlog
from rl.modules.world_models._layers import softmax_of_groups

NUM_BINS = 255
"""Bins of the reward and value heads of DreamerV3."""


def symexp_bins(
    num_bins: int = NUM_BINS, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``symexp(linspace(-20, 20, num_bins))``, whose second half is exactly minus the first.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 10.

    Args:
        num_bins: Number of bins, at least 2; 0 is one of them if it is odd.
        device: Device of the result.
        dtype: Data type of the result.

    Example:
        >>> symexp_bins(3).tolist()
        [-485165184.0, 0.0, 485165184.0]
    """
    num_bins = as_integer(num_bins, "symexp_bins", "num_bins", least=2)
    # Only half of the grid is computed: the rounding of exp must not break the symmetry that makes the mean exactly 0.
    grid = torch.linspace(-20.0, 20.0, num_bins, dtype=torch.float64)[: num_bins // 2]
    half = symexp(grid).to(dtype or torch.get_default_dtype())
    middle = half.new_zeros(num_bins % 2)
    return torch.cat((half, middle, -half.flip(0))).to(device)


def two_hot_encode(x: Tensor, bins: Tensor) -> Tensor:
    """Encode numbers as weights of the two bins around them, which interpolate linearly.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 9; in the space of `bins`,
    which for DreamerV3 is that of the numbers themselves. Numbers outside the bins are encoded as the nearest bin.

    Args:
        x: Numbers, ``[*B]``.
        bins: Ascending values, ``[n]``.

    Returns:
        Weights, ``[*B, n]``, at least 0, with sum 1.

    Raises:
        ShapeError: If `bins` has more than one dimension or fewer than two values.

    Example:
        >>> two_hot_encode(torch.tensor([0.25]), torch.tensor([-1.0, 0.0, 1.0]))
        tensor([[0.0000, 0.7500, 0.2500]])
    """
    _check_bins("two_hot_encode", bins)
    upper, weight = _position(x, bins)
    target = x.new_zeros(*x.shape, len(bins))
    target.scatter_(-1, (upper - 1).unsqueeze(-1), (1 - weight).unsqueeze(-1))
    return target.scatter_(-1, upper.unsqueeze(-1), weight.unsqueeze(-1))


def _position(x: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the bin above each of the numbers ``[*B]``, and its weight; the bin below has the rest."""
    bins = bins.to(x)
    x = x.clamp(bins[0], bins[-1])
    upper = torch.searchsorted(bins, x.contiguous(), right=True).clamp(1, len(bins) - 1)
    below, above = bins[upper - 1], bins[upper]
    return upper, (x - below) / (above - below)


def two_hot_decode(logits: Tensor, bins: Tensor) -> Tensor:
    """Decode logits over bins to their mean value.

    Bins of opposite sign are added in pairs from the middle outwards, so that uniform logits over symmetric bins yield
    exactly 0: the largest bins are around 5e8, and a plain sum leaves a rounding error of that scale.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        bins: Values, ``[n]``.

    Returns:
        The mean, ``[*B]``.

    Raises:
        ShapeError: If the number of bins differs.

    Example:
        >>> bins = torch.tensor([-1.0, 0.0, 1.0])
        >>> two_hot_decode(two_hot_encode(torch.tensor([0.25]), bins).log(), bins)
        tensor([0.2500])
    """
    _check_bins("two_hot_decode", bins, logits)
    weighted = logits.softmax(-1) * bins.to(logits)
    half = len(bins) // 2
    pairs = weighted[..., :half].flip(-1) + weighted[..., len(bins) - half :]
    total = pairs.sum(-1)
    return total + weighted[..., half] if len(bins) % 2 else total


def two_hot_cross_entropy(logits: Tensor, target: Tensor, bins: Tensor) -> Tensor:
    """Cross-entropy of logits over bins to the two-hot encoding of numbers.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 8.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        target: Numbers, ``[*B]`` or ``[*B, 1]``.
        bins: Ascending values, ``[n]``.

    Returns:
        The cross-entropy, ``[*B]``, nats.

    Raises:
        ShapeError: If the shapes do not agree.

    Example:
        >>> two_hot_cross_entropy(torch.zeros(1, 3), torch.tensor([0.5]), torch.tensor([-1.0, 0.0, 1.0]))
        tensor([1.0986])
    """
    _check_bins("two_hot_cross_entropy", bins, logits)
    if target.shape == (*logits.shape[:-1], 1):
        target = target.squeeze(-1)
    if target.shape != logits.shape[:-1]:
        raise ShapeError(
            f"two_hot_cross_entropy got targets {list(target.shape)} for logits {list(logits.shape)}: expected"
            f" {list(logits.shape[:-1])} or {[*logits.shape[:-1], 1]}"
        )
    # Two of the bins have a weight: reading these is the sum over all, without a tensor of zeros.
    upper, weight = _position(target.to(logits.dtype), bins)
    log_probs = logits.log_softmax(-1).gather(-1, torch.stack((upper - 1, upper), -1))
    return -(torch.stack((1 - weight, weight), -1) * log_probs).sum(-1)


def _check_bins(owner: str, bins: Tensor, logits: Tensor | None = None) -> None:
    if bins.ndim != 1 or len(bins) < 2:
        raise ShapeError(f"{owner} got bins of shape {list(bins.shape)}; expected one dimension, at least two bins")
    if logits is not None and logits.shape[-1] != len(bins):
        raise ShapeError(f"{owner} got logits {list(logits.shape)} for {len(bins)} bins; the last dimension is bins")


class SymExpTwoHot(nn.Module):
    """Numbers as categoricals over exponentially spaced bins, as in DreamerV3's reward and value heads.

    Args:
        num_bins: Number of bins, at least 2.

    Attributes:
        bins: Values of the bins, see `symexp_bins`.

    Shapes: ``[*B, num_bins]`` logits to ``[*B, 1]`` numbers.

    Example:
        >>> two_hot = SymExpTwoHot(5)
        >>> target = torch.tensor([-10.0, 0.0, 10.0])
        >>> torch.allclose(two_hot.decode(two_hot.encode(target).log()), target, atol=1e-3)
        True
        >>> two_hot(torch.zeros(2, 5))
        tensor([[0.],
                [0.]])
    """

    bins: Tensor

    def __init__(self, num_bins: int = NUM_BINS) -> None:
        super().__init__()
        self.num_bins = as_integer(num_bins, "SymExpTwoHot", "num_bins", least=2)
        self.register_buffer("bins", symexp_bins(num_bins))

    def encode(self, target: Tensor) -> Tensor:
        """Return the two-hot weights ``[*B, num_bins]`` of numbers ``[*B]``."""
        return two_hot_encode(target, self.bins)

    def decode(self, logits: Tensor) -> Tensor:
        """Return the mean ``[*B]`` of logits ``[*B, num_bins]``."""
        return two_hot_decode(logits, self.bins)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy ``[*B]`` of logits ``[*B, num_bins]`` to numbers ``[*B]`` or ``[*B, 1]``."""
        return two_hot_cross_entropy(logits, target, self.bins)

    def forward(self, logits: Tensor) -> Tensor:
        """Return the mean as an entry of a TensorDict, ``[*B, 1]``."""
        return self.decode(logits).unsqueeze(-1)


class TwoHotCategorical(LeanDistribution):
    """Distribution of a number over bins: DreamerV3's reward or value, whose `log_prob` is minus the two-hot loss.

    As the ``distribution_class`` of a `ProbabilisticTensorDictModule` it gives losses the likelihood and the mean
    of a reward or value head.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        bins: Ascending values, ``[n]``; `symexp_bins` if None.

    Shapes: batch ``[*B]``, event ``[1]``.

    Example:
        >>> dist = TwoHotCategorical(torch.zeros(4, 255))
        >>> dist.mean.shape, dist.log_prob(torch.ones(4, 1)).shape
        (torch.Size([4, 1]), torch.Size([4]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {"logits": constraints.real_vector}  # pyright: ignore[reportIncompatibleMethodOverride]
    support = constraints.real  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, logits: Tensor, bins: Tensor | None = None) -> None:
        self.logits = logits
        self.bins = symexp_bins(logits.shape[-1], device=logits.device, dtype=logits.dtype) if bins is None else bins
        self._set_shapes(logits.shape[:-1], Size((1,)), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean of the number, ``[*B, 1]``."""
        return two_hot_decode(self.logits, self.bins).unsqueeze(-1)

    @property
    def mode(self) -> Tensor:
        """The mean: the bins are a support, not the values that are predicted."""
        return self.mean

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return the mean, expanded: the distribution represents a regression, and is not sampled."""
        return self.mean.expand(*sample_shape, *self.batch_shape, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return minus the cross-entropy to the two-hot encoding of ``value`` ``[*B, 1]``, ``[*B]``."""
        return -two_hot_cross_entropy(self.logits, value, self.bins)


class SymLogTwoHotCategorical(TwoHotCategorical):
    """Distribution of a number over bins in symlog space: TD-MPC2's reward or value.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024, section 3.1: evenly spaced
    bins of ``symlog(x)``; the prediction is ``symexp`` of their mean.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        low: Smallest bin, in symlog space.
        high: Largest bin, in symlog space.

    Example:
        >>> SymLogTwoHotCategorical(torch.zeros(2, 101)).mean.shape
        torch.Size([2, 1])
    """

    def __init__(self, logits: Tensor, low: float = -10.0, high: float = 10.0) -> None:
        super().__init__(logits, torch.linspace(low, high, logits.shape[-1], device=logits.device, dtype=logits.dtype))

    @property
    def mean(self) -> Tensor:
        """Predicted number, ``[*B, 1]``."""
        return symexp(super().mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return minus the cross-entropy to the two-hot encoding of ``symlog(value)``, ``[*B]``."""
        return super().log_prob(symlog(value))


class SquaredError(LeanDistribution):
    """Prediction whose `log_prob` is minus the summed squared error, as DreamerV3's decoders have it.

    Args:
        loc: Prediction, ``[*B, *E]``: of a vector in symlog space, of an image in [0, 1].
        event_dims: Number of dimensions of ``E``.
        symlog: Whether `loc` predicts ``symlog(x)``.

    Example:
        >>> SquaredError(torch.zeros(2, 3)).log_prob(torch.ones(2, 3))
        tensor([-3., -3.])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore[reportIncompatibleMethodOverride]
    support = constraints.real  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, loc: Tensor, event_dims: int = 1, *, symlog: bool = False) -> None:
        self.loc, self._dims, self._symlog = loc, event_dims, symlog
        self._set_shapes(*split_shape(loc.shape, event_dims), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Predicted value, in the units of the data."""
        return symexp(self.loc) if self._symlog else self.loc

    @property
    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return the mean, expanded."""
        return self.mean.expand(*sample_shape, *self.loc.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return minus the squared error ``[*B]``; bytes of an image count in 255ths."""
        if value.shape[-self.loc.ndim :] != self.loc.shape:
            raise ShapeError(f"SquaredError predicts {list(self.loc.shape)}, got a value of {list(value.shape)}")
        value = value / 255 if value.dtype is torch.uint8 else value
        return -sum_event((self.loc - (symlog(value) if self._symlog else value)).square(), self._dims)


def unimix_logits(logits: Tensor, unimix: float = 0.01) -> Tensor:
    """Mix categoricals with the uniform distribution, which bounds their log-probabilities.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "World model learning".

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        unimix: Share of the uniform distribution, in [0, 1).

    Returns:
        Normalized log-probabilities, ``[*B, n]``.

    Example:
        >>> unimix_logits(torch.tensor([0.0, 100.0]), 0.5).exp()
        tensor([0.2500, 0.7500])
    """
    unimix = as_number(unimix, "unimix_logits", "unimix", least=0, below=1)
    if not unimix:
        return logits.log_softmax(-1)
    return ((1 - unimix) * softmax_of_groups(logits) + unimix / logits.shape[-1]).log()


def straight_through(log_probs: Tensor, noise: Tensor) -> Tensor:
    """Sample one-hot categoricals, with the gradient of their probabilities.

    Bengio et al., "Estimating or propagating gradients through stochastic neurons", 2013. The sample is the index of
    the largest ``log p - log e`` with exponential noise ``e``.

    Args:
        log_probs: Normalized log-probabilities, ``[*B, n]``.
        noise: Exponential noise, same shape.

    Returns:
        One-hot vectors, ``[*B, n]``; their gradient is that of ``exp(log_probs)``.

    Example:
        >>> straight_through(torch.tensor([0.1, 0.9]).log(), torch.ones(2))
        tensor([0., 1.])
    """
    if noise.shape != log_probs.shape:
        raise ArgumentError(f"straight_through got noise {list(noise.shape)} for {list(log_probs.shape)}")
    probs = log_probs.exp()
    index = (log_probs.detach() - noise.log()).max(-1, keepdim=True).indices  # faster than argmax on a CPU
    hot = torch.zeros_like(probs).scatter_(-1, index, 1.0)
    return hot + (probs - probs.detach())  # exactly one-hot: what is added is exactly 0
