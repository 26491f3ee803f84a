"""The time dimension of a batch, and checks of the order of its steps."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import INDEX, IS_INIT, TRAJ_IDS, key_str
from rl.objectives._batch.mask import by_step

__all__ = ["check_time_order", "find_time_dim"]

_REMEDY = (
    "run the estimator on the batch as it was collected, before it is shuffled; of sampled slices, mark the last step"
    " of each as truncated and done"
)


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
            f" {names[dim]!r}: name the one that is time 'time', or give time_dim. If none is, {_REMEDY}"
        )
    return dim


def check_time_order(td: TensorDictBase, dim: int, done: Tensor, owner: str) -> None:
    """Raise if adjacent steps of the batch were not adjacent in time.

    A replay buffer's ``index`` [*B] may go up by one, wrap to 0 or stay the same along time, a collector's
    ``("collector", "traj_ids")`` [*B] may stay the same, and ``is_init`` [*B, 1] may be false; anything else needs an
    end of episode in between. Where the dimension is named ``time``, ``index`` is not checked: rows of several
    environments are interleaved in a storage.
    Nothing is checked while `torch.compile` traces.

    Args:
        td: the batch.
        dim: dimension of time.
        done: bool, ``[*B, ...]``.
        owner: for the message.

    Raises:
        ContractError: if a step does not follow the one before it.
    """
    if torch.compiler.is_compiling() or td.shape[dim] < 2:
        return
    shape, begins = td.shape, td.get(IS_INIT, None)
    marks = {key: mark for key in (INDEX, TRAJ_IDS) if (mark := td.get(key, None)) is not None and mark.shape == shape}
    if INDEX in marks and td.names[dim] == "time":
        del marks[INDEX]
    if not marks and begins is None:
        return
    size = shape[dim] - 1
    ended = by_step(done, td.ndim).narrow(dim, 0, size)
    for key, mark in marks.items():
        now, then = mark.narrow(dim, 0, size), mark.narrow(dim, 1, size)
        broken = now != then
        if key == INDEX:
            broken = broken & (then != now + 1) & (then != 0)
        if bool((broken & ~ended).any()):
            raise ContractError(
                f"{owner} needs steps in time order, but {key_str(key)} jumps along dimension {dim} without a done in"
                f" between, so this batch is not: {_REMEDY}"
            )
    if begins is not None:
        _refuse_open_begins(begins, dim, ended, shape, owner)


def _refuse_open_begins(begins: Tensor, dim: int, ended: Tensor, shape: torch.Size, owner: str) -> None:
    """Raise if a sequence starts after a step that is not done.

    Two slices without an end flag in between look so.
    """
    if begins.dtype is not torch.bool or begins.shape not in (shape, (*shape, 1)):
        return
    broken = begins.reshape(shape).narrow(dim, 1, shape[dim] - 1) & ~ended
    if bool(broken.any()):
        step = int(broken.nonzero()[0, dim])
        raise ContractError(
            f"{owner} needs steps in time order, but {key_str(IS_INIT)} is true at step {step + 1}, and step {step} is"
            f" not done, so that returns would cross from one sequence into another: {_REMEDY}"
        )
