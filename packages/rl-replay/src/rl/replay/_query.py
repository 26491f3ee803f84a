"""Queries of trajectories: `traj`, the trajectories of a batch, and where they begin and stop in a ring of rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ArgumentError, ContractError, ShapeError, issue_warning
from rl.core.keys import REWARD, NestedKey, as_tuple, key_str, leaf_keys, next_key
from rl.replay._trajectories import Boundaries


def find_start_stop_traj(
    *,
    trajectory: Tensor | None = None,
    end: Tensor | None = None,
    at_capacity: bool,
    cursor: int | Tensor | range | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the first and the last row of each trajectory of a ring of rows.

    Args:
        trajectory: Trajectory ids ``[T, *B]`` in the order of storage; a trajectory ends where the id changes.
        end: Flags of last steps, bool ``[T, *B]``; one of `trajectory` and `end` is given.
        at_capacity: Whether the ring is full, so that row 0 follows the last one; that is an end otherwise.
        cursor: Last row that was written, where a trajectory of a full ring ends; of several rows the last counts.
        device: Device that computes; that of the input if None.

    Returns:
        First rows int64 ``[N, 1 + len(B)]`` (row, then the indices in B), last rows of the same shape, and lengths
        ``[N]``, by element and then by last row. A trajectory that crosses the end of the ring begins after its stop.

    Raises:
        ArgumentError: If both or neither of `trajectory` and `end` are given, or there are no rows.

    Example:
        >>> end = torch.tensor([False, False, True, False, False, False])
        >>> start, stop, length = find_start_stop_traj(end=end, at_capacity=True, cursor=4)
        >>> start.flatten().tolist(), stop.flatten().tolist(), length.tolist()
        ([5, 3], [2, 4], [4, 2])
    """
    given = end if trajectory is None else trajectory
    if given is None or (trajectory is not None and end is not None) or not given.numel():
        raise ArgumentError("find_start_stop_traj takes one of trajectory and end, [T, *B] with at least one row")
    home, given = given.device, given.to(device or given.device)
    last = given.bool().clone() if trajectory is None else given != given.roll(-1, 0)
    if not at_capacity:
        last[-1] = True
    elif cursor is not None:
        row = cursor[-1] if isinstance(cursor, range) else torch.as_tensor(cursor).reshape(-1)[-1]
        last[int(row)] = True
    last[-1] |= ~last.any(0)  # a ring without any end
    rows = last.shape[0]
    element, stop = last.reshape(rows, -1).T.nonzero().unbind(1)
    count = torch.bincount(element)
    before = stop.roll(1)
    before[count.cumsum(0) - count] = stop[count.cumsum(0) - 1]  # of the first one: the last one of its element
    start = (before + 1) % rows
    inner = torch.unravel_index(element, last.shape[1:]) if last.ndim > 1 else ()
    found = (torch.stack([start, *inner], 1), torch.stack([stop, *inner], 1), (stop - start) % rows + 1)
    first, final_row, length = (part.to(home) for part in found)
    return first, final_row, length


@final
class Trajectory:
    """The steps of one trajectory, with their entries as attributes.

    An attribute is an entry of the root, or else the entry under ``next``: ``trajectory.reward``. Indices select steps
    and return a `Trajectory`, keys return entries.

    Args:
        data: TensorDict ``[T]``.

    Attributes:
        data: That TensorDict.

    Raises:
        ShapeError: If it has another number of batch dimensions.

    Example:
        >>> from tensordict import TensorDict
        >>> reward = TensorDict(reward=torch.ones(3, 1), batch_size=[3])
        >>> one = Trajectory(TensorDict(x=torch.arange(3), next=reward, batch_size=[3]))
        >>> one.length, one.total_reward.item(), one[1:].x.tolist()
        (3, 3.0, [1, 2])
    """

    def __init__(self, data: TensorDictBase) -> None:
        if data.batch_dims != 1:
            raise ShapeError(f"Trajectory takes steps [T], got a batch of shape {list(data.batch_size)}")
        self.data = data

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.data)

    @property
    def total_reward(self) -> Tensor:
        """Sum of the rewards, without dimensions."""
        return self._entry(REWARD).sum()

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """Return an entry of the root, or else the one under ``next``."""
        found: Any = self.data.get(as_tuple(key), None)
        return self.data.get(next_key(key), default) if found is None else found

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """Return the keys of `data`."""
        return self.data.keys(*args, **kwargs)

    def _entry(self, key: NestedKey) -> Any:
        found = self.get(key)
        if found is None:
            known = ", ".join(map(key_str, leaf_keys(self.data)))
            raise ContractError(f"a trajectory has no entry {key_str(key)}, nor under 'next' (it has: {known})")
        return found

    def __getattr__(self, name: str) -> Any:
        if name == "data" or name.startswith("__"):  # while it is unpickled
            raise AttributeError(name)
        try:
            return self._entry(name)
        except ContractError as error:
            raise AttributeError(str(error)) from None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (isinstance(index, tuple) and all(isinstance(part, str) for part in index)):
            return self.data[index]
        found: Any = self.data[index]
        return Trajectory(found) if found.batch_dims else found

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Trajectory(length={self.length}, keys={sorted(map(str, self.data.keys()))})"


class TrajectoryPredicate:
    """A condition on a `Trajectory`, which `traj` creates; combined with ``&``, ``|`` and ``~``.

    Args:
        fn: Function from a trajectory to a boolean.
        description: Text of the condition.
        keys: Keys that it reads; None if they are not known.
    """

    def __init__(
        self,
        fn: Callable[[Trajectory], Any],
        description: str = "predicate",
        keys: frozenset[NestedKey] | None = None,
    ) -> None:
        self._function, self._text, self._keys = fn, description, keys

    def required_keys(self) -> frozenset[NestedKey] | None:
        """Return the keys that it reads, at the root or under ``next``; None if they are not known."""
        return self._keys

    def __call__(self, trajectory: Trajectory) -> bool:
        return bool(self._function(trajectory))

    def _join(self, other: TrajectoryPredicate, symbol: str, join: Callable[[bool, Callable[[], bool]], bool]) -> Any:
        keys = None if self._keys is None or other._keys is None else self._keys | other._keys
        return TrajectoryPredicate(
            lambda one: join(self(one), lambda: other(one)), f"({self._text} {symbol} {other._text})", keys
        )

    def __and__(self, other: TrajectoryPredicate) -> TrajectoryPredicate:
        return self._join(other, "&", lambda one, rest: one and rest())

    def __or__(self, other: TrajectoryPredicate) -> TrajectoryPredicate:
        return self._join(other, "|", lambda one, rest: one or rest())

    def __invert__(self) -> TrajectoryPredicate:
        return TrajectoryPredicate(lambda one: not self(one), f"~{self._text}", self._keys)

    def __bool__(self) -> bool:
        raise TypeError(f"{self._text} is a condition on trajectories: combine conditions with &, | and ~")

    def __repr__(self) -> str:
        return f"TrajectoryPredicate({self._text})"


class _Compared:
    """A condition on each step, which `any` or `all` makes one on the trajectory."""

    def __init__(self, function: Callable[[Trajectory], Any], text: str, keys: frozenset[NestedKey]) -> None:
        self._function, self._text, self._keys = function, text, keys

    def any(self) -> TrajectoryPredicate:
        """Return whether it is true of any step."""
        return TrajectoryPredicate(lambda one: self._function(one).any(), f"{self._text}.any()", self._keys)

    def all(self) -> TrajectoryPredicate:
        """Return whether it is true of all steps."""
        return TrajectoryPredicate(lambda one: self._function(one).all(), f"{self._text}.all()", self._keys)

    def __call__(self, trajectory: Trajectory) -> bool:
        del trajectory
        raise TypeError(f"{self._text} is a condition on steps: add .any() or .all()")

    __bool__ = __and__ = __or__ = __invert__ = __call__


class _Value:
    """A value of a trajectory, or of each of its steps, which is compared."""

    _result: Any = TrajectoryPredicate

    def __init__(self, function: Callable[[Trajectory], Any], text: str, keys: frozenset[NestedKey]) -> None:
        self._function, self._text, self._keys = function, text, keys

    def _compare(self, other: Any, compare: Callable[[Any, Any], Any], symbol: str) -> Any:
        return self._result(
            lambda one: compare(self._function(one), other), f"({self._text} {symbol} {other!r})", self._keys
        )

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt, ">")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge, ">=")

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt, "<")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le, "<=")

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq, "==")

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne, "!=")

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return self._text


class _Field(_Value):
    """An entry of each step."""

    _result = _Compared

    def _reduce(self, name: str, function: Callable[[Tensor], Any]) -> _Value:
        return _Value(lambda one: function(self._function(one)), f"{self._text}.{name}()", self._keys)

    def sum(self) -> _Value:
        """Sum over the steps."""
        return self._reduce("sum", torch.sum)

    def mean(self) -> _Value:
        """Mean over the steps."""
        return self._reduce("mean", lambda values: values.double().mean())

    def max(self) -> _Value:
        """Largest value."""
        return self._reduce("max", torch.max)

    def min(self) -> _Value:
        """Smallest value."""
        return self._reduce("min", torch.min)

    def first(self) -> _Value:
        """Value at the first step."""
        return self._reduce("first", lambda values: values[0])

    def last(self) -> _Value:
        """Value at the last step."""
        return self._reduce("last", lambda values: values[-1])


class _Query:
    """The beginning of a condition: ``traj.length``, ``traj.reward.sum()``, ``traj["info", "speed"]``."""

    @property
    def length(self) -> _Value:
        """Number of steps."""
        return _Value(lambda one: one.length, "traj.length", frozenset())

    @property
    def total_reward(self) -> _Value:
        """Sum of the rewards."""
        return _Value(lambda one: one.total_reward, "traj.total_reward", frozenset([REWARD]))

    def __getitem__(self, key: NestedKey) -> _Field:
        return _Field(lambda one: one._entry(key), f"traj[{key!r}]", frozenset([key]))  # noqa: SLF001  of this module

    def __getattr__(self, name: str) -> _Field:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Field(lambda one: one._entry(name), f"traj.{name}", frozenset([name]))  # noqa: SLF001  of this module

    def __repr__(self) -> str:
        return "traj"


traj: Final = _Query()
"""Conditions on trajectories: ``(traj.reward.sum() > 100) & (traj.length < 50)``, ``(traj.reward > 10).any()``.

An attribute or key is an entry of each step: of the root, or else under ``next``. It is compared, and the result is
reduced with ``any()`` or ``all()``; or it is reduced with ``sum()``, ``mean()``, ``max()``, ``min()``, ``first()`` or
``last()``, and the result is compared. ``length`` and ``total_reward`` are values of the trajectory.
"""


def iter_trajectories(data: TensorDictBase, trajectory_key: NestedKey | None = None) -> Iterator[Trajectory]:
    """Split steps in the order of time into their trajectories.

    Args:
        data: Steps ``[n]``, one trajectory after the other.
        trajectory_key: Trajectory id; if None, ``("collector", "traj_ids")`` or ``"episode"`` if it is there. End flags
            under ``next`` separate trajectories, too. Without ids they alone do, and it warns: a trajectory whose last
            step has no flag is joined to the next one.

    Raises:
        ContractError: If there are neither ids nor flags.
        ShapeError: If `data` has another number of batch dimensions.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(x=torch.arange(5), episode=torch.tensor([0, 0, 0, 1, 1]), batch_size=[5])
        >>> [one.x.tolist() for one in iter_trajectories(data)]
        [[0, 1, 2], [3, 4]]
    """
    if data.batch_dims != 1:
        raise ShapeError(f"iter_trajectories takes steps [n], got a batch of shape {list(data.batch_size)}")
    if not len(data):
        return
    ends, ids = Boundaries("iter_trajectories", None, trajectory_key).of_batch(data, data.batch_size)
    last = torch.from_numpy(ends.copy())
    if ids is None:
        issue_warning(
            "iter_trajectories found no trajectory ids: a trajectory whose last step has no end flag is joined to the"
            " next one. Store ids, or name them with trajectory_key="
        )
    else:
        last[:-1] |= torch.from_numpy(ids[1:] != ids[:-1])
    start, stop, _ = find_start_stop_traj(end=last, at_capacity=False)
    for first, final_row in zip(start.flatten().tolist(), stop.flatten().tolist(), strict=True):
        rows: Any = data[first : final_row + 1]
        yield Trajectory(rows)


def filter_trajectories(
    data: TensorDictBase,
    predicate: Callable[[Trajectory], bool] | None = None,
    *,
    trajectory_key: NestedKey | None = None,
) -> list[Trajectory]:
    """Return the trajectories of steps in the order of time that satisfy a condition.

    Args:
        data: Steps ``[n]``; see `iter_trajectories`.
        predicate: Condition built with `traj`, or a function from `Trajectory` to a boolean; all trajectories if None.
        trajectory_key: Trajectory id; see `iter_trajectories`.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(x=torch.arange(5), episode=torch.tensor([0, 0, 0, 1, 1]), batch_size=[5])
        >>> [one.x.tolist() for one in filter_trajectories(data, (traj.x > 3).any() & (traj.length == 2))]
        [[3, 4]]
    """
    return [one for one in iter_trajectories(data, trajectory_key) if predicate is None or predicate(one)]
