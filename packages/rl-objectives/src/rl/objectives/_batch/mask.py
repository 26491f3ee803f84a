"""Optional entries of a batch: the mask of valid steps, end flags, the discount of each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key
from rl.core.errors import ShapeError
from rl.core.keys import NestedKey, key_str, next_key

__all__ = [
    "DISCOUNT",
    "MASK",
    "STEPS",
    "discount_key",
    "fitted",
    "mask_key",
    "mean_of",
    "mean_std",
    "scalar",
    "steps_key",
    "terminated_key",
    "valid_steps",
    "without_padding",
]

MASK: NestedKey = ("collector", "mask")
"""Key under which ``SliceSampler(pad_output=True)`` writes the mask."""


DISCOUNT: NestedKey = "gamma"
"""Key under which ``MultiStepTransform`` of rl-replay writes the discount of each next value."""

STEPS: NestedKey = "steps_to_next_obs"
"""Key under which ``MultiStepTransform`` of rl-replay and ``MultiStep`` write the number of steps."""


def discount_key(name: NestedKey) -> Key:
    """The discount of the next values in a contract."""
    return Key(name, (1,), "discount of the next value, in place of the estimator's", optional=True)


def steps_key(name: NestedKey) -> Key:
    """The number of steps from each state to the next one in a contract."""
    return Key(name, (1,), "steps to the next state; its value is discounted by gamma to that power", optional=True)


def mask_key(name: NestedKey) -> Key:
    """The mask in a contract."""
    return Key(name, (), "true at valid steps, false at padding", torch.bool, optional=True)


def terminated_key(name: NestedKey) -> Key:
    """The flag of terminal steps in a contract, called `name` under ``next``."""
    doc = "whether the episode terminated; done if absent"
    return Key(next_key(name), (1,), doc, torch.bool, optional=True)


def scalar(name: str, doc: str) -> Key:
    """A scalar output of a loss in its contract."""
    return Key(name, (), doc, batched=False)


def valid_steps(td: TensorDictBase, key: NestedKey, owner: str) -> Tensor | None:
    """The mask of a batch, bool ``[*B]``, true at valid steps; None if all are.

    Args:
        td: the batch ``[*B]``.
        key: of the mask, ``[*B]`` or ``[*B, 1]``.
        owner: the component that reads it, for messages.

    Raises:
        ShapeError: if the mask has another shape or dtype, or is false at each of its steps.

    Example:
        >>> from tensordict import TensorDict
        >>> flags = torch.tensor([[True, True, False]])
        >>> valid_steps(TensorDict(collector=TensorDict(mask=flags), batch_size=[1, 3]), MASK, "DQNLoss").tolist()
        [[True, True, False]]
    """
    mask: Tensor | None = td.get(key, None)
    if mask is None:
        return None
    size = td.batch_size
    flat = mask.squeeze(-1) if mask.ndim > len(size) else mask
    if mask.dtype is not torch.bool or flat.shape != size:
        raise ShapeError(
            f"{owner}: {key_str(key)} is {mask.dtype} {list(mask.shape)}, expected bool {list(size)}: true at valid"
            " steps, false at padding. Remove the entry if it means something else"
        )
    # Read on the CPU only: on another device, reading waits for all work before it.
    if not torch.compiler.is_compiling() and mask.is_cpu and mask.numel() and not bool(mask.any()):
        raise ShapeError(
            f"{owner}: {key_str(key)} is false at each of {mask.numel()} steps: no step is valid, skip this batch"
        )
    return flat


def fitted(mask: Tensor, elements: Tensor) -> Tensor:
    """`mask` ``[*B]`` for each of `elements` ``[*B, ...]``."""
    return mask.reshape(*mask.shape, *[1] * (elements.ndim - mask.ndim)).expand(elements.shape)


def without_padding(leaves: Sequence[Tensor], mask: Tensor | None) -> list[Tensor]:
    """`leaves` ``[*B, ...]`` with the first valid step in place of padding.

    Whatever padding holds, NaN or an action out of range, is replaced before the arithmetic: after it, a weight of zero
    would still make NaN of its gradient.

    Example:
        >>> without_padding([torch.tensor([1.0, torch.nan])], torch.tensor([True, False]))
        [tensor([1., 1.])]
    """
    if mask is None or not mask.numel():
        return list(leaves)
    first = mask.flatten().to(torch.uint8).argmax().unsqueeze(0)
    return [leaf.where(fitted(mask, leaf), leaf.flatten(0, mask.ndim - 1).index_select(0, first)) for leaf in leaves]


def mean_of(elements: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of the valid elements ``[*B, ...]``.

    Example:
        >>> mean_of(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    if mask is None:
        return elements.mean()
    inside = fitted(mask, elements)
    return elements.where(inside, 0).sum() / inside.sum().clamp_min(1)


def mean_std(elements: Tensor, mask: Tensor | None, apart: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the valid elements; gradients are finite where the latter is 0.

    Args:
        elements: ``[*B, ...]``.
        mask: of the valid ones, ``[*B]``; all are if None.
        apart: dimensions that have a mean and a deviation for each index; the results have size 1 in the others.
    """
    dims = [dim for dim in range(elements.ndim) if dim not in {one % elements.ndim for one in apart}]
    if mask is None:
        std, mean = torch.std_mean(elements, dims, correction=0, keepdim=bool(apart))
        return mean, std
    inside = fitted(mask, elements)
    count = inside.sum(dims, keepdim=bool(apart)).clamp_min(1)
    mean = elements.where(inside, 0).sum(dims, keepdim=bool(apart)) / count
    rest = (elements - mean).where(inside, 0)
    norm = torch.linalg.vector_norm(rest, dim=dims, keepdim=bool(apart))  # a root has an infinite gradient at 0
    return mean, norm / count.to(norm.dtype).sqrt()
