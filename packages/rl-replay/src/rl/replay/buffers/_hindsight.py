"""Hindsight experience replay: sampled transitions with goals that were achieved later."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Self, Unpack, final

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_number, foreign_arguments, one_of
from rl.core.contract import Key, missing_key_message
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.interfaces import Sampler
from rl.core.keys import (
    DONE,
    REWARD,
    TD_ERROR,
    TERMINATED,
    TRUNCATED,
    NestedKey,
    as_tuple,
    key_str,
    leaf_keys,
    next_key,
)
from rl.replay._slice_sampling import SLICES
from rl.replay._trajectories import Boundaries, Trajectories, read_columns
from rl.replay._untraced import untraced
from rl.replay.buffers._base import ReplayBuffer, rows_of
from rl.replay.buffers._pipeline import BufferOptions, collate
from rl.replay.buffers._tensordict import TensorDictReplayBuffer

_GOAL_INDEX = "goal_index"
_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"


class HindsightStrategy(StrEnum):
    """Which achieved goal replaces the desired one: Andrychowicz et al. 2017, "Hindsight experience replay", 4.5."""

    FUTURE = "future"
    """A state of the same episode, uniformly from this transition's next state on."""
    FINAL = "final"
    """The last stored state of the same episode."""
    EPISODE = "episode"
    """Any state of the same episode, uniformly."""
    RANDOM = "random"
    """Any state in the buffer, uniformly."""


@final
@foreign_arguments()
class HERReplayBuffer(TensorDictReplayBuffer):
    """Buffer of goal-conditioned transitions that replaces goals when it samples (hindsight experience replay).

    In a sample each transition keeps its goal with probability ``1 - her_ratio``. Otherwise its desired goal becomes
    the goal that was achieved in another stored state, selected by `strategy`, and its reward is computed for that
    goal. Stored rows are not changed. Andrychowicz et al. 2017, "Hindsight experience replay", algorithm 1; a ratio of
    0.8 are their k = 4 replaced goals for each original one.

    Reads, in each row: ``achieved_goal`` and ``desired_goal``, also under ``next``; ``("next", "reward")``; and end
    flags or trajectory ids, as `SliceSampler`, to know which rows are of one episode. Write batches of several
    environments as ``[environments, time]`` into a storage with ``ndim=2``: in a flattened batch, an episode ends with
    its part of the batch. An episode that is not complete, or partly overwritten, has the states that are stored.

    Writes into samples, in addition to `TensorDictReplayBuffer`: both desired goals, the reward and ``goal_index``,
    int64 ``[n]``: the row whose next achieved goal became the desired one, -1 for rows that keep theirs. With a
    `SliceSampler` all steps of a slice get one goal, from the states after the slice's last step.

    Args:
        reward_fn: ``reward_fn(achieved_goal, desired_goal)`` of goals ``[n, *goal]`` returns the rewards ``[n]`` or
            ``[n, 1]`` as tensor or array, or a pair of rewards and ``terminated`` bool ``[n]``. The pair also sets
            ``("next", "terminated")``, and ``("next", "done")`` to terminated or truncated. For Gymnasium-Robotics:
            ``lambda achieved, desired: env.unwrapped.compute_reward(achieved.numpy(), desired.numpy(), {})``.
        her_ratio: Probability that a transition gets another goal, in [0, 1].
        strategy: Member of `HindsightStrategy`, or its name.
        achieved_goal_key: Entry of the achieved goal. If None, ``"achieved_goal"`` if rows have it, else
            ``("observation", "achieved_goal")``.
        desired_goal_key: Entry of the desired goal. If None, next to the achieved one.
        reward_key: Entry of the reward, without ``next``.
        end_key: Argument of `SliceSampler`.
        traj_key: Argument of `SliceSampler`.
        priority_key: Argument of `TensorDictReplayBuffer`.
        sampler: Argument of `ReplayBuffer`.
        options: Arguments of `ReplayBuffer`, except for `sample_unit`, `consume_after_n_samples` and `shared`.
            `transform` is called after goals are replaced; with `prefetch`, `reward_fn` is called in other threads.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay.storages import LazyTensorStorage
        >>> buffer = HERReplayBuffer(
        ...     lambda achieved, desired: (achieved == desired).all(-1).float() - 1,
        ...     strategy="final",
        ...     her_ratio=1.0,
        ...     storage=LazyTensorStorage(100),
        ... )
        >>> place, goal = torch.arange(4).unsqueeze(-1), torch.full((4, 1), 9)
        >>> after = TensorDict(
        ...     achieved_goal=place + 1, desired_goal=goal, reward=-torch.ones(4, 1), done=place == 3, batch_size=[4]
        ... )
        >>> _ = buffer.extend(TensorDict(achieved_goal=place, desired_goal=goal, next=after, batch_size=[4]))
        >>> sample = buffer.sample(8)
        >>> set(sample["desired_goal"].flatten().tolist())  # the place at the end of the episode
        {4}
        >>> bool((sample["next", "reward"] == (sample["next", "achieved_goal"] == 4).float() - 1).all())
        True
    """

    _fields_of_state = (*ReplayBuffer._fields_of_state, "trajectories")  # noqa: SLF001  of the base
    _annotations = (*ReplayBuffer._annotations, _GOAL_INDEX)  # noqa: SLF001

    def __init__(
        self,
        reward_fn: Callable[[Tensor, Tensor], Any],
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = HindsightStrategy.FUTURE,
        achieved_goal_key: NestedKey | None = None,
        desired_goal_key: NestedKey | None = None,
        reward_key: NestedKey = REWARD,
        end_key: NestedKey | None = None,
        traj_key: NestedKey | None = None,
        priority_key: NestedKey = TD_ERROR,
        sampler: Sampler | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        owner = type(self).__name__
        if not callable(reward_fn):
            raise ArgumentError(
                f"{owner}: reward_fn(achieved_goal, desired_goal) returns rewards [n], got {reward_fn!r}"
            )
        one_of(str(strategy), owner, "strategy", [one.value for one in HindsightStrategy])
        self.reward_fn: Final = reward_fn
        self.her_ratio = as_number(her_ratio, owner, "her_ratio", least=0, most=1)
        self.strategy: Final = HindsightStrategy(strategy)
        self._goal_keys: Final = achieved_goal_key, desired_goal_key
        self._reward: Final = next_key(reward_key)
        self._trajectories: Final = Trajectories(owner, Boundaries(owner, end_key, traj_key))
        super().__init__(priority_key=priority_key, sampler=sampler, **options)
        self._trajectories.attach(self.storage)

    def empty(self) -> None:
        """Remove all rows; see `ReplayBuffer.empty`."""
        with self._lock:
            super().empty()
            self._trajectories.empty()

    def _write(self, data: Any) -> Tensor:
        with self._lock:
            self._check(data)
            first: Any = data[0] if isinstance(data, list) and data else data
            for key in (*self._keys(first)[:3], self._reward):
                _entry(type(self).__name__, first, key)
            self._trajectories.admit(data)
            index = super()._write(data)
            self._trajectories.extended(index, data)
        return index

    @untraced
    def _select(self, size: int, generator: torch.Generator | None = None) -> tuple[Tensor, dict[Any, Any]]:
        generator = generator if self.generator is None else self.generator
        index, info = super()._select(size, generator)
        info[_GOAL_INDEX] = self._goals(index, info.get(SLICES), generator)
        return index, info

    def _goals(self, index: Tensor, slices: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Rows whose achieved goals replace the desired ones, int64 in the shape of `index`; -1 to keep a goal."""
        flat = index.reshape(-1)
        if slices is not None:  # one goal for each slice, achieved after its last step
            padded = index.dim() > 1
            slices = torch.full_like(slices, index.shape[1]) if padded else slices
            flat = index[:, -1] if padded else flat[slices.cumsum(0) - 1]
        device = "cpu" if generator is None else generator.device
        random = torch.rand(2, len(flat), dtype=torch.float64, generator=generator, device=device).cpu().numpy()
        if self.strategy is HindsightStrategy.RANDOM:
            found = (random[1] * len(self.storage)).astype(np.int64)
        else:
            table = self._trajectories.table_of(self.storage)
            number, step = table.locate(flat.cpu().numpy())
            begin, end = 0, table.steps[number]
            if self.strategy is HindsightStrategy.FUTURE:
                begin = step
            elif self.strategy is HindsightStrategy.FINAL:
                begin = end - 1
            step = begin + (random[1] * (end - begin)).astype(np.int64)
            found = table.rows_of(number, step)
        goals = torch.from_numpy(np.where(random[0] < self.her_ratio, found, -1))
        if slices is not None:
            goals = goals.repeat_interleave(slices)
        return goals.reshape(index.shape).to(index.device)

    def _read(self, index: Tensor, info: dict[Any, Any]) -> Any:
        rows = super()._read(index, info)
        chosen = info[_GOAL_INDEX] >= 0
        if not bool(chosen.any()):
            return rows
        if isinstance(rows, list):
            return list(self._relabelled(collate(rows), info[_GOAL_INDEX].reshape(-1)).unbind(0))
        return self._relabelled(rows, info[_GOAL_INDEX])

    def _relabelled(self, data: TensorDictBase, goal_index: Tensor) -> TensorDictBase:
        """Return a sample ``[*n]`` with the goals of the rows `goal_index` ``[*n]`` where these are at least 0."""
        owner = type(self).__name__
        achieved_key, desired_key, next_achieved, next_desired = self._keys(data)
        chosen = goal_index >= 0
        where = goal_index[chosen]
        column = read_columns(self.storage, [next_achieved], where.cpu())[next_achieved]
        chosen = chosen if data.device is None else chosen.to(data.device)
        desired = _entry(owner, data, desired_key)
        if column.shape[1:] != desired.shape[goal_index.dim() :]:
            raise ShapeError(
                f"{owner}: {key_str(achieved_key)} is {list(column.shape[1:])} in a row, {key_str(desired_key)}"
                f" {list(desired.shape[goal_index.dim() :])}: a goal replaces another of the same shape"
            )
        goal = column.to(desired)
        for key in (desired_key, next_desired):
            _put(data, key, chosen, goal)
        result = self.reward_fn(_entry(owner, data, next_achieved)[chosen], goal)
        reward, terminated = result if isinstance(result, tuple) else (result, None)
        self._set(data, self._reward, chosen, reward)
        if terminated is not None:
            keys = [(*as_tuple(self._reward)[:-1], name) for name in (TERMINATED, TRUNCATED, DONE)]
            _entry(owner, data, keys[0])
            self._set(data, keys[0], chosen, torch.as_tensor(terminated).bool())
            flags = [data.get(key, None) for key in keys]
            if flags[2] is not None:
                done = flags[0] if flags[1] is None else flags[0] | flags[1]
                _put(data, keys[2], chosen, done[chosen])
        return data

    def _set(self, data: TensorDictBase, key: NestedKey, chosen: Tensor, value: Any) -> None:
        """Set an entry of the rows `chosen` to a result of `reward_fn`.

        Raises:
            ShapeError: If it has another number of values.
        """
        stored = _entry(type(self).__name__, data, key)
        wanted = stored[chosen].shape
        value = torch.as_tensor(value)
        if value.numel() != wanted.numel():
            raise ShapeError(
                f"{type(self).__name__}: reward_fn returned {list(value.shape)} for {key_str(key)} of"
                f" {wanted[0]} rows, expected {list(wanted)} or {list(wanted[:1])}"
            )
        _put(data, key, chosen, value.reshape(wanted).to(stored))

    def _keys(self, data: TensorDictBase) -> tuple[NestedKey, NestedKey, NestedKey, NestedKey]:
        """Achieved and desired goal, at the root and under ``next``."""
        achieved, desired = self._goal_keys
        if achieved is None:
            achieved = _ACHIEVED if _ACHIEVED in data.keys() else ("observation", _ACHIEVED)
            achieved = achieved if data.get(achieved, None) is not None else _ACHIEVED
        if desired is None:
            desired = (*as_tuple(achieved)[:-1], _DESIRED)
        return achieved, desired, next_key(achieved), next_key(desired)

    def _state(self, storage: dict[str, Any]) -> dict[str, Any]:
        return {**super()._state(storage), "trajectories": self._trajectories.state_dict()}

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        size = self.storage.max_size
        super()._load(state, rows, max_size)
        stored = rows_of(self.storage)
        vars(self)["_trajectories"] = self._trajectories.twin(state["trajectories"], stored, size)

    def adopt(self, twin: Self) -> None:
        """Continue as `twin`; see `ReplayBuffer.adopt`."""
        super().adopt(twin)
        self._trajectories.adopt(twin._trajectories)
        self._trajectories.attach(self.storage)


def _entry(owner: str, data: TensorDictBase, key: NestedKey) -> Tensor:
    """Return an entry of `data`.

    Raises:
        ContractError: If it is absent.
    """
    found = data.get(key, None)
    if not isinstance(found, Tensor):
        remedy = "Goals are those of a goal-conditioned environment; name other entries with achieved_goal_key=, "
        remedy += "desired_goal_key= or reward_key=."
        raise ContractError(missing_key_message(owner, Key(key, remedy=remedy), leaf_keys(data)))
    return found


def _put(data: TensorDictBase, key: NestedKey, chosen: Tensor, value: Tensor) -> None:
    """Set an entry of the rows `chosen`; rows without it stay without."""
    found = data.get(key, None)
    if found is not None:
        found[chosen] = value
        data.set(key, found)
