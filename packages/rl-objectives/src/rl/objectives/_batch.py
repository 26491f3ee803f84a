"""Batches of losses and estimators: masks, done flags, and the dimension of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import BUFFER_KEYS, DONE, TERMINATED, TRUNCATED, NestedKey, as_tuple, key_str, next_key, unwrap

MASK: NestedKey = ("collector", "mask")
"""Key under which ``SliceSampler(pad_output=True)`` writes the mask."""

VALIDITY_MASK: NestedKey = "validity_mask"
"""Key under which the windows of ``Sequence`` have a flag that is false at repeated rows."""

LEARNING_MASK: NestedKey = "learning_mask"
"""Key under which the windows of ``Sequence`` have a flag that is false at burn-in and bootstrap rows."""

SEQUENCE_ID: NestedKey = "sequence_id"
"""Key under which the windows of ``Sequence`` have the number of the window."""

DISCOUNT: NestedKey = "gamma"
"""Key under which ``MultiStepTransform`` of rl-replay writes the discount of each next value."""

STEPS: NestedKey = "steps_to_next_obs"
"""Key under which ``MultiStepTransform`` of rl-replay and ``MultiStep`` write the number of steps."""


def entry_of_loss(td: TensorDictBase, key: NestedKey) -> Tensor | None:
    """An optional entry that losses read; None if it is absent, or is an observation.

    An environment may call an observation ``gamma`` or ``priority_weight``. What it writes is under ``next`` too, what
    replay buffers write is not. An entry under another key, which `set_keys` names, is read in either case.

    Example:
        >>> from tensordict import TensorDict
        >>> gravity = torch.tensor([[9.8]])
        >>> entry_of_loss(TensorDict(gamma=gravity, next=TensorDict(gamma=gravity), batch_size=[1]), "gamma")
        >>> entry_of_loss(TensorDict(gamma=gravity, batch_size=[1]), "gamma")
        tensor([[9.8000]])
    """
    found: Tensor | None = td.get(key, None)
    if found is None or key not in BUFFER_KEYS:
        return found
    return found if td.get(next_key(key), None) is None else None


def leaf_of(td: TensorDictBase, key: NestedKey) -> Tensor | None:
    """An entry that is read only if it is there; a group of the name, such as ``("next", "done")``, is none.

    Example:
        >>> from tensordict import TensorDict
        >>> leaf_of(TensorDict(done=TensorDict(left=torch.ones(1))), "done")
    """
    found: Tensor | None = td.get(key, None)
    return found if isinstance(found, Tensor) else None


def check_unobserved(td: TensorDictBase, keys: Mapping[str, Any], owner: str) -> None:
    """Raise if the environment writes an advantage or a value target, which losses and estimators would confuse.

    Args:
        td: the batch.
        keys: Keys named ``advantage`` and ``value_target``.
        owner: the component that reads or writes them, for the message.

    Raises:
        ContractError: naming the entry.
    """
    for name in ("advantage", "value_target"):
        if td.get(next_key(keys[name]), None) is not None:
            raise ContractError(
                f"{owner}: the batch has {key_str(next_key(keys[name]))}, so that {key_str(keys[name])} is an"
                f" observation, and not the {name} of an estimator. Name another key, of estimator and loss:"
                f" set_keys({name}='my_{name}')"
            )


def discount_key(name: NestedKey) -> Key:
    """The discount of the next values in a contract."""
    return Key(name, (1,), "discount of the next value, in place of the estimator's", optional=True)


def steps_key(name: NestedKey) -> Key:
    """The number of steps from each state to the next one in a contract."""
    return Key(name, (1,), "steps to the next state; its value is discounted by gamma to that power", optional=True)


def mask_keys_of_steps(name: NestedKey) -> tuple[Key, ...]:
    """The masks of steps in a contract: that of valid steps called `name`, and those of windows."""
    return (
        Key(name, (), "true at valid steps, false at padding", torch.bool, optional=True),
        Key(VALIDITY_MASK, (), "false at repeated rows of a window, which are padding", torch.bool, optional=True),
        Key(LEARNING_MASK, (), "false at burn-in and bootstrap rows of a window", torch.bool, optional=True),
    )


def terminated_key(name: NestedKey) -> Key:
    """The flag of terminal steps in a contract, called `name` under ``next``."""
    doc = "whether the episode terminated; done if absent"
    return Key(next_key(name), (1,), doc, torch.bool, optional=True)


def scalar(name: str, doc: str) -> Key:
    """A scalar output of a loss in its contract."""
    return Key(name, (), doc, batched=False)


def valid_steps(td: TensorDictBase, key: NestedKey, owner: str) -> Tensor | None:
    """The mask of valid steps ``[*B]`` in a batch: that under `key`, and of windows ``validity_mask``; None without.

    Args:
        td: the batch ``[*B]``.
        key: Key of the mask.
        owner: the component that reads it, for messages.

    Raises:
        ShapeError: if a mask has another shape or dtype, or is false at each of its steps.

    Example:
        >>> from tensordict import TensorDict
        >>> flags = torch.tensor([[True, True, False]])
        >>> valid_steps(TensorDict(collector=TensorDict(mask=flags), batch_size=[1, 3]), MASK, "DQNLoss").tolist()
        [[True, True, False]]
    """
    mask, unrepeated = _flags_of_steps(td, key, owner), _flags_of_steps(td, VALIDITY_MASK, owner)
    if mask is None or unrepeated is None:
        return unrepeated if mask is None else mask
    return mask & unrepeated


def learning_steps(td: TensorDictBase, owner: str) -> Tensor | None:
    """The mask of steps to learn from, ``[*B]``, false at burn-in and bootstrap rows; None without.

    Args:
        td: the batch ``[*B]``.
        owner: the component that reads it, for messages.

    Raises:
        ShapeError: as `valid_steps`.
    """
    return _flags_of_steps(td, LEARNING_MASK, owner)


def _flags_of_steps(td: TensorDictBase, key: NestedKey, owner: str) -> Tensor | None:
    mask = entry_of_loss(td, key)
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
    return [leaf.where(fitted(mask, leaf), leaf.flatten(0, mask.ndim - 1)[first]) for leaf in leaves]


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


def find_time_dim(td: TensorDictBase, time_dim: int | None, owner: str) -> int:
    """The time dimension of a batch: `time_dim`, else the one named ``time``, else the last one.

    Args:
        td: the batch.
        time_dim: index into ``td.batch_size``; None if unknown.
        owner: for the message.

    Raises:
        ContractError: if there is none, or the dimension has another name.

    Example:
        >>> from tensordict import TensorDict
        >>> find_time_dim(TensorDict(batch_size=[3, 5]), None, "GAE")
        1
        >>> find_time_dim(TensorDict(batch_size=[5, 3], names=["time", None]), None, "GAE")
        0
    """
    if td.ndim == 0:
        raise ContractError(f"{owner} got a batch without dimensions; it needs one that is time")
    names: list[str | None] = list(td.names)
    named = names.index("time") if "time" in names else None
    if time_dim is None and named is not None:
        return named
    if time_dim is not None and not -td.ndim <= time_dim < td.ndim:
        raise ContractError(f"{owner} has time_dim={time_dim}, which a batch of shape {tuple(td.shape)} does not have")
    dim = td.ndim - 1 if time_dim is None else time_dim % td.ndim
    if named is not None and named != dim:
        raise ContractError(
            f"{owner} has time_dim={time_dim}, but dimension {named} of the batch (names: {names}) is the one named"
            " 'time': leave time_dim out, or name the dimensions as they are"
        )
    if time_dim is None and names[dim] is not None:
        raise ContractError(
            f"{owner} needs steps in time order, but the last dimension of the batch (names: {names}) is"
            f" {names[dim]!r}: name the time dimension 'time', or give time_dim. If there is none, run the"
            " estimator before steps are shuffled"
        )
    return dim


def end_flags(
    td: TensorDictBase,
    done: Tensor,
    terminated: Tensor | None,
    keys: Mapping[str, Any],
    mask: Tensor | None,
    owner: str,
) -> tuple[Tensor, Tensor]:
    """The flags ``done`` and ``terminated`` as bool; a step that is terminated or truncated is done.

    In windows of a replay buffer no return crosses into another window or a repeated row: `done` is true before.

    Flags of a group of agents end where the episode does: ``("next", "done")`` at the root counts too, if it is there,
    and for agents that are not done themselves ``("next", "terminated")`` beside it.

    On CPU a contradiction is refused. Elsewhere, and in compiled code, a check would wait for the device: there `done`
    is completed with the other two.

    Args:
        td: the batch ``[*B]``; ``truncated`` is read if it is there.
        done: as the batch holds it, ``[*B, 1]``.
        terminated: as the batch holds it; `done` if None.
        keys: those named ``done`` and ``terminated``.
        mask: of valid steps, ``[*B]``.
        owner: the component that messages name.

    Raises:
        ContractError: if a valid step is terminated or truncated, and not done.
    """
    done, terminated = ended(done, terminated)
    above = None if keys["done"] == DONE else leaf_of(td, next_key(DONE))
    if above is not None:
        above = fitted(above.bool().reshape(td.batch_size), done)
        over = leaf_of(td, next_key(TERMINATED))
        over = above if over is None else above & fitted(over.bool().reshape(td.batch_size), done)
        terminated, done = terminated | (over & ~done), done | above
    cut = _ends_of_windows(td)
    if cut is not None:
        done = done | fitted(cut, done)
    beside = unwrap((*as_tuple(keys["done"])[:-1], TRUNCATED))
    checked = done.device.type == "cpu" and not torch.compiler.is_compiling()
    whole = done
    for key, flag in ((keys["terminated"], terminated), (beside, leaf_of(td, next_key(beside)))):
        if flag is None or flag is done or flag.shape != done.shape:
            continue
        if not checked:
            whole = whole | flag.bool()
            continue
        wrong = flag.bool() > done
        if mask is not None and mask.ndim == wrong.ndim:  # of agents, whose flags are shared
            mask = mask.any(-1)
        if bool(wrong.any()) and (mask is None or bool((wrong := wrong & fitted(mask, wrong)).any())):
            raise ContractError(
                f"{owner}: at {wrong.nonzero()[0].tolist()} of {list(done.shape)} {key_str(next_key(key))} is true and"
                f" {key_str(next_key(keys['done']))} is false. Write done = terminated | truncated"
            )
    return whole, terminated


def _ends_of_windows(td: TensorDictBase) -> Tensor | None:
    """Steps before another window, and before and at repeated rows, ``[*B]``; time is the last dimension."""
    cut: Tensor | None = None
    for key in (VALIDITY_MASK, SEQUENCE_ID):
        value = entry_of_loss(td, key)
        if value is None or not td.batch_dims or value.numel() != td.batch_size.numel():
            continue
        value = value.reshape(td.batch_size)
        now, following = value[..., :-1], value[..., 1:]
        ends = ~(now & following) if key == VALIDITY_MASK else now != following
        ends = torch.nn.functional.pad(ends, (0, 1))
        cut = ends if cut is None else cut | ends
    return cut


def ended(done: Tensor, terminated: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both flags as bool; `terminated` is `done` where it is absent."""
    done = done if done.dtype is torch.bool else done.bool()
    if terminated is None:
        return done, done
    return done, terminated if terminated.dtype is torch.bool else terminated.bool()
