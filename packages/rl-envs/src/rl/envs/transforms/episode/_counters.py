"""Transforms that count: steps, episodes, time, and versions of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import Bounded, Unbounded
from rl.envs.base._specs import flag_spec
from rl.envs.transforms._base import Reset, Step, Transform, check_root_done, level_keys
from rl.envs.transforms._specs import Specs, from_root

_LONGEST = torch.iinfo(torch.int64).max


class StepCounter(Transform):
    """Writes how many steps the episode has had, and truncates it after `max_steps`.

    Reads ``done`` and ``truncated``; writes ``step_count`` (int64, the shape of ``done``) at the root and under
    ``next``, and, with `max_steps`, ``truncated`` and ``done`` under ``next``.

    Args:
        max_steps: Length at which an episode is truncated, at least 1; never if None.
        truncated_key: The flag to write, next to a ``done``: a name for every done group (the root's only, if it has
            one), or a path for one group.
        step_count_key: Key of the count, in the same way.
        update_done: Whether truncation sets ``done`` too; it must be true with a `max_steps`.

    Raises:
        ArgumentError: If `max_steps` is below 1, or `update_done` is false.
        SpecError: If the environment has no such ``done``.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=2))
        >>> env.rollout(5)["next", "truncated"].flatten()
        tensor([False,  True])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: NestedKey = "truncated",
        step_count_key: NestedKey = "step_count",
        *,
        update_done: bool = True,
    ) -> None:
        if max_steps is not None:
            max_steps = as_integer(max_steps, "StepCounter", "max_steps", 1)
        if max_steps is not None and not update_done:
            raise ArgumentError(
                "StepCounter: update_done=False sets 'truncated' without 'done', but done = terminated | truncated;"
                " to mark steps and not end the episode, leave max_steps out and compare 'step_count'"
            )
        super().__init__()
        self.max_steps = max_steps
        self.update_done = update_done
        self.truncated_key = unwrap(truncated_key)
        self.step_count_key = unwrap(step_count_key)
        self.out_keys = [self.step_count_key]

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for count, truncated, done in self._levels:
            root[count] = torch.zeros_like(root[done], dtype=torch.int64)
            if self.max_steps is not None and root.get(truncated, None) is None:
                root[truncated] = torch.zeros_like(root[done])
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key, truncated_key, done in self._levels:
            outcome[key] = count = from_root(root, key, self) + 1
            if self.max_steps is None:
                continue
            truncated = outcome.get(truncated_key, None)
            if truncated is not None and not count.is_cuda and count.numel() == 1 and count.item() < self.max_steps:
                continue  # by far the most frequent case of a single environment: nothing changes
            over = count >= self.max_steps
            outcome[truncated_key] = over if truncated is None else truncated | over
            outcome[done] = outcome[done] | over
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the count to the observation, and ``truncated`` to the flags if episodes are truncated."""
        flags = level_keys(specs, self.truncated_key, self)
        *own, name = as_tuple(self.step_count_key)
        self._levels = [(unwrap((*(own or as_tuple(done)[:-1]), name)), truncated, done) for truncated, done in flags]
        self.out_keys = [count for count, _, _ in self._levels]
        high = _LONGEST if self.max_steps is None else self.max_steps
        for count, truncated, done in self._levels:
            shape = specs.done[done].shape
            specs.add("observation", count, Bounded(0, high, shape=shape, dtype=torch.int64, device=specs.device), self)
            if self.max_steps is not None and specs.done.get(truncated, None) is None:
                specs.done[truncated] = flag_spec(shape, specs.device)


_LARGEST = torch.iinfo(torch.int64).max


class TrajCounter(Transform):
    """Writes the number of each episode, from 0 on, in the order in which they begin.

    Writes ``traj_count``, int64 ``[*B, 1]``, at the root and under ``next``. No two episodes of the environment have
    the same number; copies of the environment in other processes count on their own.

    Args:
        out_key: Key of the number.
        repeats: Begin from 0 again after this many episodes; never if None.

    Raises:
        ArgumentError: If `repeats` is below 1.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(2)).append_transform(TrajCounter())
        >>> env.rollout(5, break_when_any_done=False)["traj_count"].flatten().tolist()
        [0, 0, 1, 1, 2]
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, out_key: NestedKey = "traj_count", *, repeats: int | None = None) -> None:
        super().__init__(out_keys=[out_key])
        if repeats is not None:
            repeats = as_integer(repeats, "TrajCounter", "repeats", 1)
        self.out_key, self.repeats = unwrap(out_key), repeats
        self._begun = 0

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        begins = torch.ones_like(root["done"]) if mask is None else mask
        number = self._begun + begins.flatten().cumsum(0).reshape(begins.shape) - 1
        self._begun += int(begins.sum())
        if self.repeats is not None:
            self._begun %= self.repeats
            number = number % self.repeats
        root[self.out_key] = torch.where(begins, number, 0)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        outcome[self.out_key] = from_root(root, self.out_key, self).clone()
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the number to the observation."""
        check_root_done(specs, self)
        high = _LARGEST if self.repeats is None else self.repeats - 1
        shape = specs.done["done"].shape
        spec = Bounded(0, high, shape=shape, dtype=torch.int64, device=specs.device)
        specs.add("observation", self.out_key, spec, self)

    def state_dict(self) -> dict[str, Any]:
        """Return how many episodes have begun."""
        return {"begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._begun = int(state.get("begun", 0))


class InitTracker(Transform):
    """Writes whether a step is the first after a reset. Recurrent modules start from zero there.

    Writes ``is_init``, bool, in the shape of ``done``, at the root and (false) under ``next``. Where the environment
    has no ``done`` at the root, each group with a ``done`` gets its own ``is_init``.

    Args:
        init_key: Key of the mark, with the name alone for every done group, or as a tuple with the path of one.

    Raises:
        SpecError: If there is no ``done`` next to it.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), InitTracker()).rollout(3)["is_init"].flatten()
        tensor([ True, False, False])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, init_key: NestedKey = "is_init") -> None:
        super().__init__()
        self.init_key = unwrap(init_key)
        self.out_keys = [self.init_key]

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for key, done in self._marks:
            root[key] = torch.ones_like(root[done])
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        for key, done in self._marks:
            outcome[key] = torch.zeros_like(outcome[done])
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the marks to the observation."""
        self._marks = level_keys(specs, self.init_key, self)
        self.out_keys = [key for key, _ in self._marks]
        for key, done in self._marks:
            specs.add("observation", key, flag_spec(specs.done[done].shape, specs.device), self)


@foreign_arguments()
class Timer(Transform):
    """Writes durations in seconds: of the last step, of the caller between two calls (the policy), of the last reset.

    Writes ``time_step``, ``time_policy`` and ``time_reset``, float32 ``[*B, 1]``, at the root and under ``next``; 0
    where there was no such call. Transforms before it belong to the step, those after it to the caller. Work that a
    CUDA device has not finished is not waited for.

    Args:
        out_keys: Keys of the times of step, policy and reset.

    Raises:
        ArgumentError: Unless there are three keys.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> bool((TransformedEnv(PendulumEnv(), Timer()).rollout(3)["next", "time_step"] > 0).all())
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__(out_keys=["time_step", "time_policy", "time_reset"] if out_keys is None else out_keys)
        if len(self.out_keys) != 3:
            raise ArgumentError(f"Timer: out_keys must name step, policy and reset, got {self.out_keys}")
        self._returned: float | None = None

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        step_key, policy_key, reset_key = self.out_keys

        def restart(mask: Tensor | None) -> Any:
            begins = perf_counter()
            root = reset(mask)
            self._returned = now = perf_counter()
            shape, device = root["done"].shape, root["done"].device
            for key, seconds in ((step_key, 0.0), (policy_key, 0.0), (reset_key, now - begins)):
                root[key] = torch.full(shape, seconds, dtype=torch.float32, device=device)
            return root

        def timed(root: Any) -> Any:
            begins = perf_counter()
            policy = 0.0 if self._returned is None else begins - self._returned
            outcome = step(root)
            self._returned = now = perf_counter()
            shape, device = outcome["done"].shape, outcome["done"].device
            for key, seconds in ((step_key, now - begins), (policy_key, policy), (reset_key, 0.0)):
                outcome[key] = torch.full(shape, seconds, dtype=torch.float32, device=device)
            return outcome

        return restart, timed

    def transform_specs(self, specs: Specs) -> None:
        """Add the durations to the observation."""
        check_root_done(specs, self)
        for key in self.out_keys:
            specs.add("observation", key, Unbounded(specs.done["done"].shape, device=specs.device), self)


class PolicyVersion(Transform):
    """Writes the version of the policy next to each step; `increment_version` after each update of the weights.

    Writes ``policy_version``, int64 ``[*B]``, at the root (the version that acts) and under ``next``.

    Args:
        version_type: Type of versions, ``"int"`` or ``int``: an integer, 0 at first.

    Raises:
        ArgumentError: If the type is another.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> version = PolicyVersion()
        >>> env = TransformedEnv(PendulumEnv(), version)
        >>> version.increment_version()
        >>> env.rollout(3)["policy_version"].tolist()
        [1, 1, 1]
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, version_type: str | type[int] = "int") -> None:
        super().__init__(out_keys=["policy_version"])
        if version_type not in ("int", int):
            raise ArgumentError(
                f"PolicyVersion: version_type must be 'int', got {version_type!r}: versions are compared as integers"
            )
        self._version = torch.zeros((), dtype=torch.int64)

    @property
    def version(self) -> int:
        """The version of the policy."""
        return int(self._version)

    def increment_version(self) -> None:
        """Count an update of the weights."""
        self._version = self._version + 1

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return self._write(root)

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        return self._write(outcome)

    def _write(self, entries: Any) -> Any:
        entries["policy_version"] = self._version.expand(self._batch).clone()
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Add the version to the observation."""
        self._batch = specs.batch_size
        if specs.device is not None:
            self.to(specs.device)
        specs.add("observation", "policy_version", Unbounded((), dtype=torch.int64, device=specs.device), self)

    def state_dict(self) -> dict[str, Any]:
        """Return the version."""
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._version = torch.full_like(self._version, int(state["version"]))
