"""Distributions in TorchRL's spelling: the actions that are allowed, by mask or by index."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl import modules
from rl.core.errors import ArgumentError


class _Indexed:
    """Distribution that takes `indices` in place of a mask.

    Args:
        logits: Unnormalized log-probabilities, ``[*B, n]``.
        probs: Unnormalized probabilities instead, ``[*B, n]``.
        mask: Mask of the actions that are allowed, bool ``[*B, n]``.
        indices: Actions that are allowed instead, ``[*B, k]``; all others have the probability 0, and `neg_inf` is what
            `log_prob` returns for them.
        padding_value: Value of `indices` that stands for no action.
        neg_inf: Log-probability of an action that the mask forbids, before normalization.
        use_cross_entropy: Ignored: log-probabilities are computed in one way.
        padding_side: Ignored: padding may be anywhere.
        options: Arguments of the class of `rl.modules`.

    Raises:
        ArgumentError: If both or neither of `mask` and `indices` are given.
    """

    def __init__(  # TorchRL's arguments
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        indices: Tensor | None = None,
        padding_value: int | None = None,
        neg_inf: float = -torch.inf,
        use_cross_entropy: bool = True,
        padding_side: str = "left",
        **options: Any,
    ) -> None:
        del use_cross_entropy, padding_side
        parameters = probs if logits is None else logits
        if (mask is None) == (indices is None):
            raise ArgumentError(f"{type(self).__name__}: a mask or some indices must be provided, but not both")
        self._log_prob_of_others = -torch.inf
        if indices is not None and parameters is not None:
            self._log_prob_of_others, neg_inf = neg_inf, -torch.inf
            mask = _mask_of(indices, parameters, padding_value)
        super().__init__(logits, probs, mask=mask, neg_inf=neg_inf, **options)  # pyright: ignore[reportCallIssue]

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of actions."""
        found: Tensor = super().log_prob(value)  # pyright: ignore[reportAttributeAccessIssue]
        return found.masked_fill(found == -torch.inf, self._log_prob_of_others)


def _mask_of(indices: Tensor, parameters: Tensor, padding_value: int | None) -> Tensor:
    """Return the mask that is true at `indices`, in the shape of the parameters."""
    indices = indices.expand(*parameters.shape[:-1], indices.shape[-1])
    valid = torch.ones_like(indices, dtype=torch.bool) if padding_value is None else indices != padding_value
    count = torch.zeros(parameters.shape, dtype=torch.int64, device=parameters.device)
    return count.scatter_add(-1, indices.where(valid, 0), valid.long()) > 0


class MaskedCategorical(_Indexed, modules.MaskedCategorical):
    """`rl.modules.MaskedCategorical`, with the arguments of TorchRL.

    Example:
        >>> dist = MaskedCategorical(torch.zeros(4), indices=torch.tensor([0, 3]))
        >>> dist.log_prob(torch.tensor([0, 1]))
        tensor([-0.6931,    -inf])
    """


class MaskedOneHotCategorical(_Indexed, modules.MaskedOneHotCategorical):
    """`rl.modules.MaskedOneHotCategorical`, with the arguments of TorchRL.

    Example:
        >>> dist = MaskedOneHotCategorical(torch.zeros(3), indices=torch.tensor([1]))
        >>> dist.sample()
        tensor([0, 1, 0])
    """
