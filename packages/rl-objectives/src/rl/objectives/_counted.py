"""Which steps of a batch count: all but those that only fill a shorter sequence up."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey, key_str

__all__ = ["MASK", "counted_steps", "fitted", "mean_of", "moments", "refuse_open_ends"]

MASK: NestedKey = ("collector", "mask")
"""Where ``SliceSampler(pad_output=True)`` says which steps are real."""


def counted_steps(td: TensorDictBase, key: NestedKey, who: str) -> Tensor | None:
    """The mask of a batch, bool ``[*B]``, true where a step counts; None if all do.

    Args:
        td: the batch ``[*B]``.
        key: of the mask, ``[*B]`` or ``[*B, 1]``.
        who: reads it, for messages.

    Raises:
        ShapeError: if the mask has another shape or dtype, or no step counts.

    Example:
        >>> from tensordict import TensorDict
        >>> flags = torch.tensor([[True, True, False]])
        >>> counted_steps(TensorDict(collector=TensorDict(mask=flags), batch_size=[1, 3]), MASK, "DQNLoss").tolist()
        [[True, True, False]]
    """
    mask: Tensor | None = td.get(key, None)
    if mask is None:
        return None
    size = td.batch_size
    flat = mask.squeeze(-1) if mask.ndim > len(size) else mask
    if mask.dtype is not torch.bool or flat.shape != size:
        raise ShapeError(
            f"{who}: {key_str(key)} is {mask.dtype} {list(mask.shape)}, expected bool {list(size)}: true where a step"
            " counts, false where it is padding. Drop the entry if it says something else"
        )
    if not torch.compiler.is_compiling() and not bool(mask.any()):
        raise ShapeError(
            f"{who}: {key_str(key)} is false at each of {mask.numel()} steps, so that nothing in this batch counts:"
            " leave it out"
        )
    return flat


def fitted(mask: Tensor, elements: Tensor) -> Tensor:
    """`mask` ``[*B]`` for each of `elements` ``[*B, ...]``."""
    return mask.reshape(*mask.shape, *[1] * (elements.ndim - mask.ndim)).expand(elements.shape)


def mean_of(elements: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the elements ``[*B, ...]`` that count.

    Example:
        >>> mean_of(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    if mask is None:
        return elements.mean()
    inside = fitted(mask, elements)
    return elements.where(inside, 0).sum() / inside.sum()


def moments(elements: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of the elements that count."""
    if mask is None:
        variance, mean = torch.var_mean(elements, correction=0)
        return mean, variance
    mean = mean_of(elements, mask)
    return mean, mean_of((elements - mean).square(), mask)


def refuse_open_ends(td: TensorDictBase, done: Tensor, dim: int, who: str) -> None:
    """Refuse padding behind a step that does not end: what comes back from it would be of padding.

    Args:
        td: the batch ``[*B]``; nothing is refused if it has no mask.
        done: ``[*B, ...]``.
        dim: time.
        who: reads it, for messages.

    Raises:
        ContractError: if there is such a step.
        ShapeError: if the mask has another shape or dtype, or no step counts.
    """
    mask = counted_steps(td, MASK, who)
    if mask is None or torch.compiler.is_compiling() or mask.shape[dim] < 2:
        return
    length = mask.shape[dim] - 1
    ends = done.flatten(mask.ndim).any(-1) if done.ndim > mask.ndim else done
    open_ends = mask.narrow(dim, 0, length) & ~mask.narrow(dim, 1, length) & ~ends.narrow(dim, 0, length)
    if bool(open_ends.any()):
        step = int(open_ends.nonzero()[0, dim])
        raise ContractError(
            f"{who}: step {step} of this batch is the last one before padding ({key_str(MASK)} is false behind it) and"
            " is not done, so that its return would be made of padding: mark it as done and truncated, as"
            " SliceSampler(pad_output=True) does"
        )
