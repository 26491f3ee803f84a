"""Distributions over ordered actions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rl.modules.distributions._discrete import Categorical, OneHotCategorical

__all__ = ["OneHotOrdinal", "Ordinal"]


class Ordinal(Categorical):
    """Actions ``0 .. n-1`` as integers, of which neighbours have similar probabilities.

    Tang and Agrawal, "Discretizing Continuous Action Space for On-Policy Optimization", 2020, section 4.2: with ``s``
    the logistic function of the scores, the logit of action `i` is ``sum_{j <= i} log s_j + sum_{j > i} log(1 - s_j)``.

    Args:
        scores: ``[*B, n]``, what a network writes.
        validate_args: check parameters and values; off, as a policy builds one per call.

    Example:
        >>> Ordinal(torch.tensor([9.0, 9.0, -9.0, -9.0])).mode
        tensor(1)
    """

    def __init__(self, scores: Tensor, *, validate_args: bool = False) -> None:
        super().__init__(logits=_ordinal_logits(scores), validate_args=validate_args)


class OneHotOrdinal(OneHotCategorical):
    """Actions as one-hot vectors ``[*B, n]``, of which neighbours have similar probabilities; see `Ordinal`.

    Args:
        scores: ``[*B, n]``, what a network writes.
        dtype: of the samples.
        validate_args: check parameters and values; off, as a policy builds one per call.

    Example:
        >>> OneHotOrdinal(torch.tensor([9.0, 9.0, -9.0, -9.0])).mode
        tensor([0, 1, 0, 0])
    """

    def __init__(self, scores: Tensor, *, dtype: torch.dtype = torch.int64, validate_args: bool = False) -> None:
        super().__init__(logits=_ordinal_logits(scores), dtype=dtype, validate_args=validate_args)


def _ordinal_logits(scores: Tensor) -> Tensor:
    below, above = logsigmoid(scores), logsigmoid(-scores)
    return below.cumsum(-1) + above.flip(-1).cumsum(-1).flip(-1) - above
