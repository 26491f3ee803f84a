"""Done flags: ``done = terminated | truncated`` at each level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import DONE, TERMINATED, TRUNCATED, NestedKey, as_tuple, key_str, unwrap

__all__ = [
    "FLAGS",
    "Keys",
    "Level",
    "complete_done",
    "done_levels",
    "key_list",
]

FLAGS = (DONE, TERMINATED, TRUNCATED)
"""The flags of one level."""

Keys = NestedKey | Iterable[NestedKey]
Level = tuple[str, ...]


def key_list(keys: Keys) -> list[NestedKey]:
    """One key or several, as a list; a tuple of strings is one key."""
    if isinstance(keys, str) or (isinstance(keys, tuple) and keys and all(isinstance(k, str) for k in keys)):
        return [keys]  # pyright: ignore[reportReturnType]  # checked
    return list(keys)  # pyright: ignore[reportReturnType]  # a collection of keys


def done_levels(done_keys: Keys) -> list[Level]:
    """Where flags stand, outermost first.

    Example:
        >>> done_levels(["done", "terminated", ("agents", "done")])
        [(), ('agents',)]
    """
    return sorted({as_tuple(key)[:-1] for key in key_list(done_keys)}, key=lambda level: (len(level), level))


def _flag(td: Any, key: NestedKey, shape: Sequence[int] | None, owner: str) -> Tensor | None:
    """A flag as bool of the right shape; None if it is absent."""
    value = td.get(key, None)
    if value is None:
        return None
    if value.dtype is not torch.bool:
        odd = value[(value != 0) & (value != 1)]
        if odd.numel():
            got = f"{odd.flatten()[0].item()} ({value.dtype})"
            raise SpecError(f"{owner} wrote the flag {key_str(key)} as {got}, expected true or false")
        value = value.bool()
    if shape is not None and value.shape != torch.Size(shape):
        if value.numel() != torch.Size(shape).numel():
            raise ShapeError(f"flag {key_str(key)} must have shape {tuple(shape)}, got {tuple(value.shape)}")
        value = value.reshape(torch.Size(shape))
    return value


def complete_done(
    tensordict: Any,
    *,
    level: Level = (),
    flags: Iterable[str] = FLAGS,
    shape: Sequence[int] | None = None,
    owner: str = "the environment",
) -> Any:
    """Fill in the flags of one level, in place, and refuse flags that contradict ``done = terminated | truncated``.

    With ``terminated`` (and perhaps ``truncated``) alone, ``done`` is either; with ``done`` alone, it counts as
    ``terminated``; with ``truncated`` alone, ``done`` is the same and nothing is terminated; a missing ``truncated``
    is what is done but not terminated. Without any flag all are false.

    Args:
        tensordict: a TensorDict, or leaves by flat key.
        level: where the flags stand.
        flags: those that shall be there in the end.
        shape: of a flag, ``[*B, 1]``; flags of another shape are reshaped; that of the flags found if None.
        owner: the component that wrote the flags, for messages.

    Raises:
        ContractError: if ``done`` and ``truncated`` are there without ``terminated``: it is not known which ends are
            terminal. Also if ``done`` is not ``terminated | truncated``.
        ShapeError: if a flag does not fit `shape`, or there is no flag and no shape.
        SpecError: if a flag has a value other than 0 and 1.

    Example:
        >>> from tensordict import TensorDict
        >>> td = complete_done(TensorDict(terminated=torch.tensor([True])))
        >>> td["done"], td["truncated"]
        (tensor([True]), tensor([False]))
    """
    names: list[NestedKey] = [unwrap((*level, flag)) for flag in FLAGS]
    done, terminated, truncated = (_flag(tensordict, name, shape, owner) for name in names)
    if done is not None and truncated is not None and terminated is None:
        raise ContractError(
            f"flags {key_str(names[0])} and {key_str(names[2])} came without {key_str(names[1])}:"
            " say which ends are terminal"
        )
    if terminated is None:
        terminated = _terminated(tensordict, done, truncated, names, shape)
    if done is None:
        done = terminated.clone() if truncated is None else terminated | truncated
    else:
        _refuse_contradiction(done, terminated, truncated, level, owner)
    if truncated is None:
        truncated = done & ~terminated
    wanted = set(flags)
    for flag, name, value in zip(FLAGS, names, (done, terminated, truncated), strict=True):
        if flag in wanted and tensordict.get(name, None) is not value:
            tensordict[name] = value
    return tensordict


def _terminated(
    td: Any, done: Tensor | None, truncated: Tensor | None, names: Sequence[NestedKey], shape: Sequence[int] | None
) -> Tensor:
    """The flag ``terminated`` where it is absent."""
    if done is not None:
        return done.clone()
    if truncated is not None:
        return torch.zeros_like(truncated)
    if shape is not None:
        return torch.zeros(torch.Size(shape), dtype=torch.bool, device=getattr(td, "device", None))
    raise ShapeError(f"no flag among {[key_str(name) for name in names]}, and no shape to make one of")


def _refuse_contradiction(done: Tensor, terminated: Tensor, truncated: Tensor | None, level: Level, owner: str) -> None:
    wrong = terminated & ~done if truncated is None else done ^ (terminated | truncated)
    if not bool(wrong.any()):
        return
    found = dict(zip(FLAGS, (done, terminated, truncated), strict=True))
    at = wrong.nonzero()[0].tolist()
    said = ", ".join(
        f"{key_str(unwrap((*level, name)))} {bool(flag[tuple(at)])}" for name, flag in found.items() if flag is not None
    )
    raise ContractError(
        f"{owner} wrote done flags that contradict each other, at {at} of {list(done.shape)}: {said}."
        " Write done = terminated | truncated, or leave 'done' out to have it filled in"
    )
