"""The time dimension of a batch."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl.core.errors import ContractError

__all__ = ["find_time_dim"]


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
