"""Conformance of a collector."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core.errors import CheckError
from rl.core.interfaces import Collector
from rl.core.keys import NEXT, TRAJ_IDS, NestedKey, as_tuple, key_str, leaf_keys, next_key
from rl.core.mdp import FLAGS
from rl.testing._report import Report, require, require_plain, require_same, same_values

_MEMBERS = ("__iter__", "shutdown", "state_dict", "load_state_dict")


def check_collector(make: Callable[[], Collector], *, batches: int = 3) -> Report:
    """Check a collector: batches in time order, terminal observations, trajectory ids, states, shutdown.

    Batches are ``[*B, T]`` with the last dimension named ``time``. Within an episode the root of a step is what the
    step before wrote under ``next``, across batches too. A batch that was returned stays as it is. Another collector
    that loads a state continues with the same batches, given the same state of torch's generator.

    Args:
        make: Function that returns a new collector of at least `batches` batches, with an environment of its own.
        batches: Number of batches that are collected, at least 2.

    Returns:
        What was not exercised, for example episode ends if there was none.

    Raises:
        CheckError: An `AssertionError` with the reason first.

    Example:
        >>> class Nothing:
        ...     def __iter__(self):
        ...         return iter([None])
        ...     def shutdown(self): ...
        ...     def state_dict(self): ...
        ...     def load_state_dict(self, state): ...
        >>> check_collector(Nothing)
        Traceback (most recent call last):
        ...
        rl.core.errors.CheckError: ended after 1 of 3 batches: the check needs more (Nothing)
    """
    collector = make()
    owner = type(collector).__name__
    report = Report(owner)
    missing = [name for name in _MEMBERS if not hasattr(collector, name)]
    require(not missing, f"no rl.core.interfaces.Collector: lacks {missing}", owner)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = _collected(collector, batches, owner)
        ended = _check_order(found, owner)
        if not ended:
            report.skip(f"episode ends: none in {batches} batches; use longer batches or shorter episodes")
    finally:
        collector.shutdown()
    try:
        collector.shutdown()
    except Exception as error:
        raise CheckError(f"shutdown, called a second time, raised {type(error).__name__}: {error} ({owner})") from error
    _check_state(make, batches, report)
    return report.warn()


def _collected(collector: Collector, batches: int, owner: str) -> list[TensorDictBase]:
    found: list[TensorDictBase] = []
    before: list[TensorDictBase] = []
    for batch in islice(iter(collector), batches):
        found.append(batch)
        before.append(batch.clone() if isinstance(batch, TensorDictBase) else batch)
    require(len(found) == batches, f"ended after {len(found)} of {batches} batches: the check needs more", owner)
    for batch, then in zip(found, before, strict=True):
        _check_form(batch, owner)
        for key in leaf_keys(batch):
            same = same_values(batch.get(key), then.get(key))
            require(same, f"reuses its buffer: {key_str(key)} of a batch was overwritten by a later one", owner)
    return found


def _check_form(batch: Any, owner: str) -> None:
    require(isinstance(batch, TensorDictBase), f"a batch is a TensorDict, got {type(batch).__name__}", owner)
    require(batch.ndim > 0, "a batch has shape [*B, T], got []", owner)
    name = batch.names[-1]
    require(name == "time", f"the last dimension of a batch is named 'time', got {name!r}", owner)
    keys = leaf_keys(batch)
    for flag in FLAGS[:2]:
        there = any(as_tuple(key)[0] == NEXT and as_tuple(key)[-1] == flag for key in keys)
        require(there, f"a batch has no {key_str(next_key(flag))} (keys: {keys})", owner)


def _check_order(found: list[TensorDictBase], owner: str) -> bool:
    """Whether an episode ended; raises unless the steps follow each other."""
    tensors: Any = found  # torch.cat is typed for tensors alone
    steps: Any = torch.cat(tensors, dim=-1)
    if next_key("done") not in leaf_keys(steps):
        return True  # flags of groups: ends are not those of batch elements
    done = steps.get(next_key("done")).flatten(steps.ndim).any(-1)
    either = [steps.get(next_key(flag), None) for flag in FLAGS[1:]]
    union = torch.stack([flag.flatten(steps.ndim).any(-1) for flag in either if flag is not None]).any(0)
    require(torch.equal(done, union), "('next', 'done') is not the union of terminated and truncated", owner)
    inside = ~done[..., :-1]
    for key in _followed(steps):
        now, following = steps.get(next_key(key))[..., :-1, :], steps.get(key)[..., 1:, :]
        reason = f"within an episode, {key_str(key)} is not what the step before wrote under 'next'"
        require(same_values(now[inside], following[inside]), reason, owner)
    ids = steps.get(TRAJ_IDS, None)
    if ids is not None:
        changed = ids[..., 1:] != ids[..., :-1]
        require(torch.equal(changed, ~inside), f"{key_str(TRAJ_IDS)} does not change exactly at episode ends", owner)
    return bool(done[..., :-1].any())


def _followed(steps: TensorDictBase) -> list[NestedKey]:
    """Entries that stand at the root and under ``next``, with a dimension after time."""
    keys = set(leaf_keys(steps))
    return [
        key
        for key in keys
        if next_key(key) in keys
        and as_tuple(key)[-1] not in (*FLAGS, "is_init")
        and isinstance(value := steps.get(key), torch.Tensor)
        and value.ndim > steps.ndim
    ]


def _check_state(make: Callable[[], Collector], batches: int, report: Report) -> None:
    """Another collector continues where a state was taken."""
    one, two = make(), make()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            torch.manual_seed(0)
            stream = iter(one)
            next(stream)
            state = copy.deepcopy(one.state_dict())
            require_plain(state, "state_dict", report.owner)
            torch.manual_seed(1)
            expected = list(islice(stream, batches - 1))
            two.load_state_dict(copy.deepcopy(state))
            torch.manual_seed(1)
            found = list(islice(iter(two), batches - 1))
        if refused := [str(warning.message) for warning in warned]:
            report.skip(f"exact continuation: {refused[0]}")
            return
        require(len(found) == len(expected), "after load_state_dict, another number of batches follows", report.owner)
        for batch, again in zip(expected, found, strict=True):
            reason = "the state_dict is incomplete: after load_state_dict, other batches follow"
            require_same(batch, again, reason, report.owner)
    finally:
        one.shutdown()
        two.shutdown()
