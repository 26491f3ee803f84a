"""Numbers that are not finite: where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.errors import RLError
from rl.core.keys import NestedKey, key_str, leaf_keys

__all__ = ["check_batch", "check_rows", "first_bad_row", "has_bad_weight"]

_CHUNK = 10_000
"""Rows of a data set that are looked at together."""


def check_batch(batch: TensorDictBase, keys: Sequence[NestedKey], frames: int, env: str) -> None:
    """Raise about the first step at which an entry is NaN or infinite.

    A loss may be finite where its gradient is not; so this looks at what goes in, before anything is learned from it.

    Args:
        batch: ``[num_envs, T]``, in time order.
        keys: entries that are read; others, and those of integers, are left alone.
        frames: before the batch.
        env: name of the environment.

    Raises:
        RLError: if there is one.
    """
    there = ((key, batch.get(key, None)) for key in keys)
    read: list[tuple[NestedKey, Tensor]] = [(key, x) for key, x in there if x is not None and x.is_floating_point()]
    if not read or bool(torch.stack([x.sum().float() for _, x in read]).isfinite().all()):  # one pass, one wait
        return
    found: list[tuple[int, int, NestedKey, float]] = []
    for key, x in read:
        rows = x.reshape(*batch.shape[:2], -1)
        bad = ~rows.isfinite()
        if bool(bad.any()):
            step, index = min((t, e) for e, t in bad.any(-1).nonzero().tolist())
            found.append((step, index, key, float(rows[index, step][bad[index, step]][0])))
    if found:
        step, index, key, value = min(found, key=lambda one: one[:2])
        raise RLError(
            f"{key_str(key)} of {env!r} became {value} after {frames + (step + 1) * batch.shape[0]} frames (environment"
            f" {index}, step {step} of the batch), and nothing can be learned from it. Correct the environment, or"
            " replace such values with a transform (--transform module:Class), and begin a new run"
        )


def first_bad_row(data: Any, keys: Iterable[NestedKey], name: str) -> str:
    """Entry and first row of a data set that are NaN or infinite, as a sentence; empty if there is none.

    Example:
        >>> from tensordict import TensorDict
        >>> rows = TensorDict(x=torch.tensor([0.0, float("inf")]), batch_size=[2])
        >>> first_bad_row(rows, ["x"], "minari:bad")
        "'x' of minari:bad is inf in row 1"
    """
    wanted = list(keys)
    for start in range(0, len(data), _CHUNK):
        rows = data[start : min(start + _CHUNK, len(data))]
        for key in wanted:
            x = rows.get(key, None)
            if x is None or not x.is_floating_point() or bool(x.isfinite().all()):
                continue
            flat = x.reshape(len(x), -1)
            row = int((~flat.isfinite()).any(-1).nonzero()[0])
            value = float(flat[row][~flat[row].isfinite()][0])
            return f"{key_str(key)} of {name} is {value} in row {start + row}"
    return ""


def check_rows(data: Any, name: str) -> None:
    """Raise if a data set that is in memory has an entry that is NaN or infinite.

    Raises:
        RLError: if so.
    """
    where = first_bad_row(data, leaf_keys(data), name) if len(data) else ""
    if where:
        raise RLError(f"{where}, and nothing can be learned from it: remove that row")


def has_bad_weight(parts: Iterable[Any]) -> bool:
    """Whether a weight of some networks is NaN or infinite."""
    weights = [p.detach() for part in parts if isinstance(part, nn.Module) for p in part.parameters()]
    weights = [p for p in weights if p.is_floating_point()]
    return bool(weights) and not bool(torch.stack([p.sum().float() for p in weights]).isfinite().all())
