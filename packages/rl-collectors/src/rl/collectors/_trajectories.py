"""Trajectory ids, batches split by them, and batches of complete trajectories (``trajs_per_batch``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import DONE, NEXT, TRAJ_IDS, NestedKey, as_tuple, key_str, leaf_keys
from rl.core.mdp import FLAGS


def any_flag(flags: Iterable[Tensor], dims: int) -> Tensor:
    """Return whether any of some flags is set, reduced to their first `dims` dimensions."""
    return torch.stack([flag.flatten(dims).any(-1) for flag in flags]).any(0)


def number_trajectories(done: Tensor, current: Tensor, free: int) -> tuple[Tensor, Tensor, int]:
    """Compute the trajectory ids of a batch from its done flags.

    Ids are assigned in the order in which episodes begin: by time, then by element. They grow along time, so that a
    running maximum fills each episode with its id.

    Args:
        done: End of an episode, bool ``[*B, T]``: true at the last step of an episode.
        current: Ids int64 ``[*B]`` of the episodes at the first step of the batch.
        free: Smallest unused id.

    Returns:
        Ids int64 ``[*B, T]``, the ids of the next step ``[*B]``, and the smallest unused id after it.

    Example:
        >>> done = torch.tensor([False, True, False])
        >>> ids, coming, free = number_trajectories(done, torch.tensor(0), 1)
        >>> ids.tolist(), coming.item(), free
        ([0, 0, 1], 1, 2)
    """
    steps = done.shape[-1]
    flat = done.reshape(-1, steps)
    begun = flat.T.reshape(-1).cumsum(0)  # by time, then by element
    fresh = (begun + (free - 1)).reshape(steps, -1).T
    ids = torch.cat([current.reshape(-1, 1), torch.where(flat, fresh, -1)], dim=1).cummax(dim=1).values
    ids = ids.reshape(*done.shape[:-1], steps + 1)
    return ids[..., :-1].contiguous(), ids[..., -1].clone(), free + int(begun[-1])


@foreign_arguments()
def split_trajectories(
    batch: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey = (NEXT, DONE),
    as_nested: bool | torch.layout = False,
    padded: bool = True,
) -> TensorDict:
    """Split a batch into its trajectories: one row for each, padded with zeros at the end, or one after the other.

    Args:
        batch: Batch ``[*B, T]`` in time order, from a collector.
        prefix: Key under which ``traj_ids`` is read, and ``mask`` or ``lengths`` is written: ``"collector"`` if None,
            the root if it is ``()``.
        trajectory_key: Key of trajectory ids, int64 ``[*B, T]``; a trajectory ends where it changes. ``(prefix,
            "traj_ids")`` if None. `done_key` is used if the entry is missing.
        done_key: Key of the done flag, bool ``[*B, T, 1]``; under ``next``, whether or not the key says so.
        as_nested: Whether entries are nested tensors ``[N, T_i, ...]`` without padding and mask; or their layout. The
            result has batch size ``[N]``.
        padded: Whether to pad; if false the trajectories follow each other.

    Returns:
        ``[N, T_max]`` with ``("collector", "mask")`` bool ``[N, T_max]``, false at padding. Rows are
        ordered by element, then by time. Without padding ``[sum T]``, in the same order, with ``("collector",
        "lengths")`` int64 ``[sum T]``, the length of the trajectory of each step.

    Raises:
        ContractError: If neither entry is there.
        ShapeError: If the batch has no dimension of time.
        ArgumentError: If `as_nested` is combined with ``padded=False``.

    Example:
        >>> data = TensorDict({"x": torch.arange(3), ("collector", "traj_ids"): torch.tensor([0, 0, 1])}, [3])
        >>> parts = split_trajectories(data)
        >>> parts["x"].tolist(), parts["collector", "mask"].tolist()
        ([[0, 1], [2, 0]], [[True, True], [True, False]])
        >>> flat = split_trajectories(data, padded=False)
        >>> flat["x"].tolist(), flat["collector", "lengths"].tolist()
        ([0, 1, 2], [2, 2, 1])
    """
    if as_nested and not padded:
        raise ArgumentError("split_trajectories takes as_nested or padded=False, got both")
    under = as_tuple("collector" if prefix is None else prefix)
    if not batch.ndim:
        raise ShapeError("split_trajectories reads a batch [*B, T] in time order, got a single step without batch")
    steps = batch.batch_size[-1]
    ids = (*under, "traj_ids") if trajectory_key is None else trajectory_key
    flag = as_tuple(done_key)
    last = _last_steps(batch, ids, flag if flag[0] == NEXT else (NEXT, *flag)).reshape(-1, steps).clone()
    last[:, -1] = True
    ends = last.reshape(-1).nonzero().squeeze(-1) + 1
    lengths = torch.diff(ends, prepend=ends.new_zeros(1))
    rows = batch.reshape(-1)
    if not padded:
        flat: Any = rows.clone()
        flat.names = ["time"]
        return flat.set((*under, "lengths"), lengths.repeat_interleave(lengths))
    if as_nested:
        return _nest_rows(rows, lengths.tolist(), torch.strided if as_nested is True else as_nested)
    mask = torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(-1)

    def pad(leaf: Tensor) -> Tensor:
        out = leaf.new_zeros((*mask.shape, *leaf.shape[1:]))
        out[mask] = leaf
        return out

    padded = rows.apply(pad, batch_size=mask.shape)
    if not isinstance(padded, TensorDict):
        raise ContractError("split_trajectories got a batch without entries: pass what the collector yields")
    return padded.set((*under, "mask"), mask)


def _nest_rows(rows: TensorDictBase, lengths: list[int], layout: torch.layout) -> TensorDict:
    """Trajectories as nested tensors ``[N, T_i, ...]``."""

    def nest(leaf: Tensor) -> Tensor:
        return torch.nested.nested_tensor(list(leaf.split(lengths)), layout=layout)

    nested: Any = rows.apply(nest, batch_size=[len(lengths)])
    return nested


def _last_steps(batch: TensorDictBase, trajectory_key: NestedKey, done_key: NestedKey) -> Tensor:
    ids = batch.get(as_tuple(trajectory_key), None)
    if ids is not None:
        ids = ids.reshape(batch.batch_size)
        change = ids[..., 1:] != ids[..., :-1]
        return torch.cat([change, change.new_ones((*change.shape[:-1], 1))], dim=-1)
    done = batch.get(as_tuple(done_key), None)
    if done is None:
        keys = ", ".join(".".join(as_tuple(key)) for key in leaf_keys(batch))
        raise ContractError(
            f"split_trajectories reads {key_str(trajectory_key)} or {key_str(done_key)}, and the batch has neither"
            f" (keys: {keys}): collect with track_traj_ids=True, or name the keys with trajectory_key= and done_key="
        )
    return done.reshape(batch.batch_size)


def last_steps(batch: TensorDictBase) -> Tensor:
    """Return whether a step is the last one of its trajectory: whether any end flag is set, bool ``[*B, T]``.

    Args:
        batch: Batch ``[*B, T]`` with end flags under ``next``, at the root or in groups.
    """
    done = batch.get((NEXT, DONE), None)
    if done is not None:
        return done.reshape(batch.batch_size)
    nxt: Any = batch.get(NEXT)
    return any_flag([nxt.get(key) for key in leaf_keys(nxt) if as_tuple(key)[-1] in FLAGS], batch.batch_dims)


class WholeTrajectories:
    """Trajectories that have ended, in the order of their ends, and the parts of those that run.

    Args:
        count: Trajectories of a batch.
        form: Form of a batch, ``"padded"`` or ``"cat"``.
    """

    def __init__(self, count: int, form: str) -> None:
        self._count, self._form = count, form
        self._parts: list[list[Any]] = []  # of each element, worker after worker
        self._ended: list[Any] = []

    @property
    def ready(self) -> bool:
        """Whether there are trajectories for a batch."""
        return len(self._ended) >= self._count

    def add(self, batch: TensorDictBase, ended: Tensor, worker: int | None = None) -> None:
        """Add the steps of a batch.

        Args:
            batch: Batch ``[*B, T]``.
            ended: End of a trajectory, bool ``[*B, T]``: true at the last step of a trajectory.
            worker: Number of the worker that collected the batch, if there are several. All have the same `B`. A
                trajectory that its next batch does not continue is dropped: it has other trajectory ids.
        """
        steps = batch.batch_size[-1]
        rows = batch.reshape(-1, steps)
        begin, before = [0] * len(rows), (worker or 0) * len(rows)
        self._parts += [[] for _ in range(before + len(rows) - len(self._parts))]
        if worker is not None:
            self._drop_others(rows.get(TRAJ_IDS), before)
        for step, row in ended.reshape(-1, steps).T.nonzero().tolist():
            parts: list[Any] = [*self._parts[before + row], rows[row, begin[row] : step + 1]]
            self._ended.append(torch.cat(parts))
            self._parts[before + row], begin[row] = [], step + 1
        for row, first in enumerate(begin):
            if first < steps:
                self._parts[before + row].append(rows[row, first:])

    def _drop_others(self, ids: Tensor, before: int) -> None:
        """Drop the parts of trajectories that a reset, or the loss of a worker, has ended without a flag."""
        for row, now in enumerate(ids[:, 0].tolist(), start=before):
            if self._parts[row] and int(self._parts[row][-1][TRAJ_IDS][-1]) != now:
                self._parts[row] = []

    def drop_running(self) -> None:
        """Drop the parts of trajectories that have not ended: the environment was reset."""
        self._parts = [[] for _ in self._parts]

    def take(self) -> TensorDictBase | None:
        """Return the next batch; fewer trajectories if no more have ended, None if none has."""
        taken, self._ended = self._ended[: self._count], self._ended[self._count :]
        if not taken:
            return None
        flat: Any = torch.cat(taken)
        flat.names = ["time"]
        return flat if self._form == "cat" else split_trajectories(flat)

    def state(self) -> dict[str, Any]:
        """Return the trajectories and parts."""
        return {"parts": self._parts, "ended": self._ended}

    def load(self, state: Mapping[str, Any] | None, *, exact: bool) -> None:
        """Continue from a state; without the parts unless the environment continues exactly."""
        found = {"parts": [], "ended": []} if state is None else state
        self._ended = list(found["ended"])
        self.drop_running()
        if exact:
            self._parts = [list(parts) for parts in found["parts"]]
