"""Checks of the copies of a transform: clones, pickles and states continue as the transform itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core.testing._contracts import seeded
from rl.core.testing._report import Report, raising, require_plain, require_same

__all__ = ["check_copies_in_env", "check_copies_on_batch", "copy_of"]

_STEPS = 8


def copy_of(transform: Any) -> Any:
    """A copy from ``clone()`` if the transform has it, that belongs to no environment."""
    clone = getattr(transform, "clone", None)
    return clone() if clone is not None else copy.deepcopy(transform)


def check_copies_on_batch(transform: Any, batch: TensorDictBase, report: Report, *, picklable: bool) -> None:
    """Check copies of a transform that has run on a batch."""
    used = copy_of(transform)
    used(batch.copy())
    copies = list(_copies(transform, used, report, picklable=picklable))
    state = _state(used, report)
    expected = seeded(used, batch)
    for what, other in copies:
        _load(other, state)
        require_same(seeded(other, batch), expected, f"{what} gives another result", report.owner)


def check_copies_in_env(
    transform: Any, wrap: Callable[[Any], Any], seed: int, report: Report, *, picklable: bool
) -> None:
    """Check copies of a transform that has run in an environment."""
    used = copy_of(transform)
    env = wrap(used)
    try:
        _walk(env, seed)
        copies = list(_copies(transform, used, report, picklable=picklable))
        state = _state(used, report)
        expected = _walk(env, seed)
        for what, other in copies:
            twin = wrap(other)
            try:
                _load(other, state)
                found = _walk(twin, seed)
            finally:
                twin.close()
            for one, two in zip(found, expected, strict=True):
                require_same(one, two, f"{what} gives another result", report.owner)
    finally:
        env.close()


def _copies(transform: Any, used: Any, report: Report, *, picklable: bool) -> Iterator[tuple[str, Any]]:
    with raising("clone or deepcopy", report.owner):
        yield "its clone" if hasattr(transform, "clone") else "its deepcopy", copy_of(used)
        yield "its deepcopy", copy.deepcopy(copy_of(used))
    if picklable:
        with raising("pickle (if it cannot be pickled on purpose, give `picklable=False`)", report.owner):
            yield "its pickle", pickle.loads(pickle.dumps(copy_of(used)))
    if hasattr(used, "state_dict"):
        yield "a new one with its state_dict", copy_of(transform)


def _state(used: Any, report: Report) -> Any:
    if not hasattr(used, "state_dict"):
        return None
    state = used.state_dict()
    require_plain(state, "state_dict", report.owner)
    return copy.deepcopy(state)


def _load(other: Any, state: Any) -> None:
    if state is not None:
        other.load_state_dict(copy.deepcopy(state))


def _walk(env: Any, seed: int) -> list[TensorDictBase]:
    """The entries of a few random steps."""
    env.set_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        root = env.reset()
        steps: list[TensorDictBase] = []
        for _ in range(_STEPS):
            stepped, root = env.step_and_maybe_reset(root.update(env.full_action_spec.rand()))
            steps.append(stepped.clone())
    return steps
