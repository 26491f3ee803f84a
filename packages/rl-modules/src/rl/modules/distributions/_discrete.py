"""Distributions over a finite set of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Bernoulli, Independent, constraints, register_kl
from torch.nn.functional import logsigmoid

from rl.core.errors import ArgumentError, ShapeError
from rl.modules.distributions._base import LeanDistribution


class Categorical(LeanDistribution):
    """Actions ``0 .. n-1`` as integers.

    Samples are the index of the largest ``logits - log(e)`` with exponential noise `e`: exact, one pass, and an
    action of probability zero is never sampled.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        probs: Unnormalized probabilities instead, ``[*B, n]``.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Raises:
        ArgumentError: unless exactly one of `logits` and `probs` is given.

    Example:
        >>> dist = Categorical(logits=torch.tensor([[0.0, 100.0]]))
        >>> dist.sample(), dist.log_prob(torch.tensor([1]))
        (tensor([1]), tensor([0.]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # pyright: ignore[reportIncompatibleMethodOverride]  # torch does so, too
        "logits": constraints.real_vector,
        "probs": constraints.simplex,
    }
    has_enumerate_support = True

    def __init__(
        self, logits: Tensor | None = None, probs: Tensor | None = None, *, validate_args: bool = False
    ) -> None:
        if logits is None:
            logits = _logits_of(probs, type(self).__name__)
        elif probs is not None:
            raise ArgumentError(f"{type(self).__name__} takes logits or probs, got both")
        self._raw = logits
        self._set_shapes(logits.shape[:-1], self._event_of(logits), validate_args=False)
        if validate_args:
            self._validate_args = True  # pyright: ignore[reportIncompatibleUnannotatedOverride]
            self._check_parameters()

    def _event_of(self, logits: Tensor) -> Size:  # noqa: ARG002  one-hot needs it
        return Size()

    def _check_parameters(self) -> None:
        if self._raw.isnan().any() or (self._raw == torch.inf).any():
            raise ArgumentError(f"{type(self).__name__} got logits that are not a number or infinite")
        if (self._raw == -torch.inf).all(-1).any():
            raise ArgumentError(f"{type(self).__name__} got a row in which every action has probability zero")

    @property
    def num_actions(self) -> int:
        """How many actions there are."""
        return self._raw.shape[-1]

    @property
    def support(self) -> constraints.Constraint:
        """The integers below `num_actions`."""
        return constraints.integer_interval(0, self.num_actions - 1)

    @property
    def logits(self) -> Tensor:
        """Normalized log-probabilities, ``[*B, n]``."""
        found = self.__dict__.get("_log_probs")
        if found is None:
            found = self.__dict__["_log_probs"] = self._raw.log_softmax(-1)
        return found

    @property
    def probs(self) -> Tensor:
        """Probabilities, ``[*B, n]``."""
        return self._raw.softmax(-1)

    @property
    def mode(self) -> Tensor:
        """The most likely action; of equals the first."""
        return self._encode(self._raw.argmax(-1, keepdim=True))

    @property
    def mean(self) -> Tensor:
        """Raises: numbers of actions have no order.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{type(self).__name__} has no mean: use mode")

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw actions, ``[*sample_shape, *B]`` int64."""
        return self._encode(self._draw(sample_shape))

    def sample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        """Draw actions, and score them, ``[*sample_shape, *B]``; the score keeps its gradient."""
        index = self._draw(sample_shape)
        log_prob = self._score(index) if sample_shape else self.logits.gather(-1, index).squeeze(-1)
        return self._encode(index), log_prob

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of actions, ``[*B]``, nats.

        Args:
            value: Actions, integers ``[*sample_shape, *B]``.

        Raises:
            ArgumentError: if `value` is outside, with ``validate_args=True``.
        """
        if self._validate_args:
            self._check_value(value)
        return self._score(value.long().unsqueeze(-1))

    def entropy(self) -> Tensor:
        """Entropy, ``[*B]``, nats; at most ``log(n)``."""
        log_probs = self.logits
        finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min)  # 0 * -inf is 0 here
        return -(log_probs.exp() * finite).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:  # noqa: FBT001, FBT002  torch's signature
        """Every action, ``[n, *B]``, or ``[n, 1, ...]`` if not `expand`."""
        index = torch.arange(self.num_actions, device=self._raw.device).view(-1, *[1] * len(self._batch_shape))
        return self._encode((index.expand(-1, *self._batch_shape) if expand else index).unsqueeze(-1))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Categorical:
        """Return the same distribution with a larger batch shape."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("_log_probs", None)
        other._raw = self._raw.expand(Size(batch_shape) + self._raw.shape[-1:])
        other._batch_shape = Size(batch_shape)
        return other

    def _check_value(self, value: Tensor) -> None:
        if bool(((value < 0) | (value >= self.num_actions)).any()):
            raise ArgumentError(f"{type(self).__name__} of {self.num_actions} actions got values outside 0..n-1")

    def _encode(self, index: Tensor) -> Tensor:
        return index.squeeze(-1)

    def _draw(self, sample_shape: Any) -> Tensor:
        raw = self._raw.detach() if self._raw.requires_grad else self._raw
        shape = (*sample_shape, *raw.shape) if sample_shape else raw.shape
        noise = torch.empty(shape, dtype=raw.dtype, device=raw.device).exponential_()
        return torch.sub(raw, noise.log_()).argmax(-1, keepdim=True)

    def _score(self, index: Tensor) -> Tensor:
        log_probs = self.logits
        if index.shape[:-1] != log_probs.shape[:-1]:
            shape = torch.broadcast_shapes(index.shape[:-1], log_probs.shape[:-1])
            index, log_probs = index.expand(*shape, 1), log_probs.expand(*shape, -1)
        return log_probs.gather(-1, index).squeeze(-1)


class OneHotCategorical(Categorical):
    """Actions as one-hot vectors ``[*B, n]``.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        probs: Unnormalized probabilities instead, ``[*B, n]``.
        dtype: Dtype of the samples.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Example:
        >>> dist = OneHotCategorical(logits=torch.tensor([0.0, 100.0, 0.0]))
        >>> dist.sample()
        tensor([0, 1, 0])
    """

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        dtype: torch.dtype = torch.int64,
        validate_args: bool = False,
    ) -> None:
        self.dtype = dtype
        super().__init__(logits, probs, validate_args=validate_args)

    def _event_of(self, logits: Tensor) -> Size:
        return logits.shape[-1:]

    @property
    def support(self) -> constraints.Constraint:
        """One-hot vectors."""
        return constraints.one_hot

    @property
    def mean(self) -> Tensor:
        """The probabilities, ``[*B, n]``."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """Of each entry, ``[*B, n]``."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw one-hot vectors, ``[*sample_shape, *B, n]`` of `dtype`."""
        return self._encode(self._draw(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw one-hot vectors ``[*sample_shape, *B, n]`` whose gradient is that of the probabilities.

        Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
        Computation", 2013: the straight-through estimator. Floating point; policies use `sample`.
        """
        probs = self.probs
        return self.sample(sample_shape).to(probs.dtype) + (probs - probs.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of one-hot vectors, ``[*B]``, nats.

        Args:
            value: One-hot vectors, ``[*sample_shape, *B, n]``, of any dtype; of floating point, the largest entry
                counts.

        Raises:
            ShapeError: if the last dimension is not `num_actions`.
            ArgumentError: if `value` is not one-hot, with ``validate_args=True``.
        """
        if value.shape[-1:] != self._event_shape:
            raise ShapeError(
                f"{type(self).__name__} of {self.num_actions} actions got values of shape {tuple(value.shape)}:"
                " the last dimension must hold one-hot vectors; for integers use Categorical"
            )
        if self._validate_args:
            self._check_value(value)
        return self._score((value.byte() if value.dtype is torch.bool else value).argmax(-1, keepdim=True))

    def _check_value(self, value: Tensor) -> None:
        if not bool(self.support.check(value.long()).all()):
            raise ArgumentError(f"{type(self).__name__} got values that are not one-hot vectors")

    def _encode(self, index: Tensor) -> Tensor:
        shape = (*index.shape[:-1], self._raw.shape[-1])
        return torch.zeros(shape, dtype=self.dtype, device=index.device).scatter_(-1, index, 1)


class MaskedCategorical(Categorical):
    """Actions ``0 .. n-1`` as integers, some of which are forbidden.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        probs: Unnormalized probabilities instead, ``[*B, n]``.
        mask: Mask of the logits or of a shape that expands to theirs, bool; True where an action is allowed.
        neg_inf: Log-probability of a forbidden action before normalization; it is never sampled if that is ``-inf``.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Raises:
        ArgumentError: if some row allows no action (on a CPU or with `validate_args`; other devices assert it
            without synchronization).

    Example:
        >>> dist = MaskedCategorical(logits=torch.zeros(3), mask=torch.tensor([True, False, False]))
        >>> dist.sample(), dist.entropy()
        (tensor(0), tensor(-0.))
    """

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor,
        neg_inf: float = -torch.inf,
        validate_args: bool = False,
    ) -> None:
        if logits is None:
            logits, probs = _logits_of(probs, type(self).__name__), None
        super().__init__(_mask_logits(logits, mask, neg_inf, type(self).__name__), probs, validate_args=validate_args)
        self.mask = mask


class MaskedOneHotCategorical(OneHotCategorical):
    """Actions as one-hot vectors ``[*B, n]``, some of which are forbidden.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        probs: Unnormalized probabilities instead, ``[*B, n]``.
        mask: Mask of the logits or of a shape that expands to theirs, bool; True where an action is allowed.
        neg_inf: Log-probability of a forbidden action before normalization; it is never sampled if that is ``-inf``.
        dtype: Dtype of the samples.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Raises:
        ArgumentError: if some row allows no action (on a CPU or with `validate_args`; other devices assert it
            without synchronization).

    Example:
        >>> dist = MaskedOneHotCategorical(logits=torch.zeros(3), mask=torch.tensor([False, True, False]))
        >>> dist.sample()
        tensor([0, 1, 0])
    """

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor,
        neg_inf: float = -torch.inf,
        dtype: torch.dtype = torch.int64,
        validate_args: bool = False,
    ) -> None:
        if logits is None:
            logits, probs = _logits_of(probs, type(self).__name__), None
        logits = _mask_logits(logits, mask, neg_inf, type(self).__name__)
        super().__init__(logits, probs, dtype=dtype, validate_args=validate_args)
        self.mask = mask


def _logits_of(probs: Tensor | None, owner: str) -> Tensor:
    if probs is None:
        raise ArgumentError(f"{owner} takes logits or probs, got neither")
    # Zero must become -inf without making the gradient of the others not a number.
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log().masked_fill(probs <= 0, -torch.inf)


def check_mask(mask: Tensor, owner: str, group_sizes: Sequence[int] | None = None) -> None:
    """Reject a mask that allows no action somewhere.

    Raises:
        ArgumentError: if the mask is not bool, or allows nothing in some row (on a CPU; other devices assert it
            without synchronization).
    """
    if mask.dtype is not torch.bool:
        raise ArgumentError(f"the mask of {owner} must be bool, got {mask.dtype}")
    for part in (mask,) if group_sizes is None else mask.split(list(group_sizes), -1):
        allowed = part.any(-1).all()
        message = f"{owner} got a mask with a row that allows no action"
        if mask.device.type != "cpu" or torch.compiler.is_compiling():
            torch._assert_async(allowed, message)  # noqa: SLF001  # pyright: ignore[reportPrivateImportUsage]  # does not wait
        elif not allowed:
            raise ArgumentError(f"{message}: allow at least one, also in states that end an episode")


def _mask_logits(logits: Tensor, mask: Tensor, neg_inf: float, owner: str) -> Tensor:
    if mask.shape[-1:] != logits.shape[-1:]:
        raise ShapeError(f"{owner} got logits {tuple(logits.shape)} and a mask {tuple(mask.shape)}")
    check_mask(mask, owner)
    return torch.where(mask, logits, neg_inf)


@register_kl(Categorical, Categorical)
def _kl_categorical(p: Categorical, q: Categorical) -> Tensor:
    p_log, q_log = p.logits, q.logits
    terms = p_log.exp() * (p_log - q_log)
    return torch.where(p_log == -torch.inf, 0.0, terms).sum(-1)


class Ordinal(Categorical):
    """Actions ``0 .. n-1`` as integers, of which neighbours have similar probabilities.

    Tang and Agrawal, "Discretizing Continuous Action Space for On-Policy Optimization", 2020, section 4.2: with ``s``
    the logistic function of the scores, the logit of action `i` is ``sum_{j <= i} log s_j + sum_{j > i} log(1 - s_j)``.

    Args:
        scores: Scores ``[*B, n]``, the output of a network.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Example:
        >>> Ordinal(torch.tensor([9.0, 9.0, -9.0, -9.0])).mode
        tensor(1)
    """

    def __init__(self, scores: Tensor, *, validate_args: bool = False) -> None:
        super().__init__(logits=_ordinal_logits(scores), validate_args=validate_args)


class OneHotOrdinal(OneHotCategorical):
    """Actions as one-hot vectors ``[*B, n]``, of which neighbours have similar probabilities; see `Ordinal`.

    Args:
        scores: Scores ``[*B, n]``, the output of a network.
        dtype: Dtype of the samples.
        validate_args: Whether parameters and values are checked; off, as a policy builds one per call.

    Example:
        >>> OneHotOrdinal(torch.tensor([9.0, 9.0, -9.0, -9.0])).mode
        tensor([0, 1, 0, 0])
    """

    def __init__(self, scores: Tensor, *, dtype: torch.dtype = torch.int64, validate_args: bool = False) -> None:
        super().__init__(logits=_ordinal_logits(scores), dtype=dtype, validate_args=validate_args)


def _ordinal_logits(scores: Tensor) -> Tensor:
    below, above = logsigmoid(scores), logsigmoid(-scores)
    return below.cumsum(-1) + above.flip(-1).cumsum(-1).flip(-1) - above


class IndependentCategorical(Independent):  # pyright: ignore[reportMissingTypeArgument]  # not generic in older torch
    """Vectors of independent choices, int64 ``[*B, k]``; for the spec `MultiCategorical`.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, k * n]``, where n is the largest number of classes.
        mask: Classes of each choice, bool ``[k, n]``; False for padding of choices with fewer classes.
        action_mask: Mask of the classes that are allowed, bool ``[*B, c]``, those of the first choice, then those of
            the second, without padding, as `MultiCategorical` has it; all are allowed if None.

    Raises:
        ArgumentError: if some choice allows no class (on a CPU; other devices assert it without synchronization).
        ShapeError: if `action_mask` has another number of classes than `mask`.

    Example:
        >>> dist = IndependentCategorical(torch.zeros(1, 6), torch.tensor([[True, True, False], [True, True, True]]))
        >>> dist.log_prob(torch.tensor([[1, 2]])).exp()
        tensor([0.1667])
    """

    def __init__(self, logits: Tensor, mask: Tensor, action_mask: Tensor | None = None) -> None:
        allowed = mask if action_mask is None else _padded_mask(action_mask, mask, type(self).__name__)
        masked = logits.unflatten(-1, mask.shape).masked_fill(~allowed, -torch.inf)
        super().__init__(Categorical(masked), 1, validate_args=False)

    @property
    def deterministic_sample(self) -> Tensor:
        """Most likely class of each choice."""
        return self.base_dist.mode


def _padded_mask(action_mask: Tensor, classes: Tensor, owner: str) -> Tensor:
    """Return a mask of classes ``[*B, k, n]`` of a mask without padding ``[*B, c]``."""
    position = classes.flatten().cumsum(0) - 1  # of each class in the mask without padding
    if not torch.compiler.is_compiling() and classes.is_cpu and action_mask.shape[-1] != int(position[-1]) + 1:
        raise ShapeError(
            f"{owner} has {int(position[-1]) + 1} classes in all, and got a mask of shape {tuple(action_mask.shape)}:"
            " its last dimension lists the classes of each choice, one choice after the other"
        )
    padded = action_mask.index_select(-1, position.clamp_min(0)).unflatten(-1, classes.shape)
    padded = padded.masked_fill(~classes, False)  # noqa: FBT003  a value
    check_mask(padded, owner)
    return padded


class IndependentBernoulli(Independent):  # pyright: ignore[reportMissingTypeArgument]
    """Vectors of independent zeros and ones, ``[*B, n]``; for the spec `Binary`.

    Args:
        logits: Log-odds of ones, ``[*B, n]``.
        dtype: Dtype of the samples.

    Example:
        >>> IndependentBernoulli(torch.tensor([100.0, -100.0])).sample()
        tensor([1, 0], dtype=torch.int8)
    """

    def __init__(self, logits: Tensor, dtype: torch.dtype = torch.int8) -> None:
        super().__init__(Bernoulli(logits=logits, validate_args=False), 1, validate_args=False)
        self._dtype = dtype

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  torch's signature
        """Sample vectors of zeros and ones, ``[*sample_shape, *B, n]``."""
        return super().sample(sample_shape).to(self._dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of `value`, ``[*B]``, nats."""
        return super().log_prob(value.to(self.base_dist.logits.dtype))

    @property
    def deterministic_sample(self) -> Tensor:
        """The more likely of zero and one in each position; zero if both are equally likely."""
        return (self.base_dist.logits > 0).to(self._dtype)
