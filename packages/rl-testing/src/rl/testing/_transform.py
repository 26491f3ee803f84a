"""Conformance of a transform: within an environment, on batches, and of its copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.contract import Contract
from rl.core.interfaces import Env, Transform
from rl.core.keys import NEXT, NestedKey, as_tuple, key_str, leaf_keys, next_key
from rl.testing._component import Tried, require_kept, seeded
from rl.testing._env import check_env
from rl.testing._report import Report, raising, require, require_plain, require_same, same_values

_STEPS = 8


def copy_of(transform: Any) -> Any:
    """Return a copy from ``clone()`` if the transform has it, that belongs to no environment."""
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
        require_same(seeded(other, batch), expected, f"{what} returns another result", report.owner)


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
                require_same(one, two, f"{what} returns another result", report.owner)
    finally:
        env.close()


def _copies(transform: Any, used: Any, report: Report, *, picklable: bool) -> Iterator[tuple[str, Any]]:
    with raising("clone or deepcopy", report.owner):
        yield "its clone" if hasattr(transform, "clone") else "its deepcopy", copy_of(used)
        yield "its deepcopy", copy.deepcopy(copy_of(used))
    if picklable:
        with raising("pickle (if it cannot be pickled on purpose, pass `picklable=False`)", report.owner):
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
    """Return the entries of a few random steps."""
    env.set_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        root = env.reset()
        steps: list[TensorDictBase] = []
        for _ in range(_STEPS):
            stepped, root = env.step_and_maybe_reset(root.update(env.full_action_spec.rand()))
            steps.append(stepped.clone())
    return steps


Copy = Callable[[], Any]


def check_on_batch(
    copy: Copy, batch: TensorDictBase, report: Report, *, nested: Any, repeatable: bool, compiles: bool
) -> None:
    """Check fresh copies of a transform, created by `copy`, on a batch."""
    _check_entries(copy, batch, report)
    if repeatable:
        transform = copy()
        reason = "the same input yields two results: the transform is random or keeps a state (if on purpose, pass"
        out, again = transform(batch.copy()), transform(batch.copy())
        require_same(out, again, f"{reason} `repeatable=False`)", report.owner)
        _check_dimension(copy, batch, report)
    _check_inverse(copy(), batch, report)
    if nested is not None:
        _check_nested(copy(), nested, batch, report)
    if compiles:
        _check_compiled(copy, batch, report)
    if torch.cuda.is_available():
        _check_cuda(copy, batch, report)


def check_called_as_in_env(transform: Any, batch: TensorDictBase, report: Report, *, in_env: bool) -> None:
    """Check that a plain transform maps what a step writes when it is called with that by itself.

    Args:
        transform: A copy; one with ``inv`` is for replay buffers, one with ``transform_specs`` has its own rules.
        batch: Batch on which it runs.
        report: Report of what is no fault of a transform of batches.
        in_env: Whether it is meant for environments too.
    """
    outcome = batch.get(NEXT, None)
    if outcome is None or hasattr(transform, "inv") or hasattr(transform, "transform_specs"):
        return
    changed = _list_changes(outcome, transform(batch.copy()).get(NEXT, outcome))
    try:
        also = _list_changes(outcome, transform(outcome.copy()))
    except Exception as error:  # noqa: BLE001  any failure of the transform is the finding
        also, reason = [], f"fails: {type(error).__name__}: {error}"
    else:
        reason = "has no effect on it"
    lost = [key for key in changed if key not in also]
    if lost:
        sentence = (
            f"called with what a step wrote by itself, as environments do, it {reason}; on a batch it changes"
            f" {key_str(next_key(lost[0]))}: read and write {key_str(lost[0])}"
        )
        require(not in_env, sentence, report.owner)
        report.skip(f"environments: {sentence}, or use it in replay buffers only")


def _list_changes(before: TensorDictBase, after: TensorDictBase) -> list[NestedKey]:
    """Return the keys of entries that were changed, added or removed."""
    old, new = leaf_keys(before), leaf_keys(after)
    both = [key for key in old if key in new and not same_values(before.get(key), after.get(key))]
    return [*both, *(key for key in (*old, *new) if (key in old) != (key in new))]


def _check_entries(copy: Copy, batch: TensorDictBase, report: Report) -> None:
    transform, owner = copy(), report.owner
    contract = getattr(transform, "contract", None)
    if isinstance(contract, Contract):
        Tried(copy(), contract, batch, owner)  # raises if it reads more than it declares
    out = _unchanged(transform, batch, "of its input", owner)
    require(
        out.batch_size == batch.batch_size,
        f"batch size {tuple(out.batch_size)} was returned for an input of {tuple(batch.batch_size)}",
        owner,
    )
    declared: list[NestedKey] = list(
        contract.out_keys if isinstance(contract, Contract) else getattr(transform, "out_keys", ())
    )
    if declared:
        require_kept(batch, out, [*declared, *map(next_key, declared)], owner)
        return
    present = leaf_keys(out)
    replaced = [key for key in leaf_keys(batch) if key in present and not same_values(batch.get(key), out.get(key))]
    if replaced:
        report.skip(f"whether {replaced} may be replaced: the transform has no contract and no out_keys")


def _unchanged(call: Callable[[Any], Any], batch: TensorDictBase, which: str, owner: str) -> TensorDictBase:
    """Return the result of a call that must change no tensor of the batch in place."""
    before, held = batch.clone(), dict(batch.items(include_nested=True, leaves_only=True))
    out = call(batch.copy())
    require(isinstance(out, TensorDictBase), f"must return a TensorDict, got {type(out).__name__}", owner)
    for key, value in held.items():
        if isinstance(value, Tensor):
            same = same_values(value, before.get(key))
            require(same, f"changed {key_str(key)} {which} in place: others hold that tensor too", owner)
    return out


def _check_dimension(copy: Copy, batch: TensorDictBase, report: Report) -> None:
    """Check that a batch ``[1, *B]`` returns the same as ``[*B]``."""
    reason = f"a batch {[1, *batch.batch_size]} returns another result than the same batch {list(batch.batch_size)}"
    with raising(f"a batch {[1, *batch.batch_size]}", report.owner):
        out = copy()(batch.unsqueeze(0))
    require_close(out, copy()(batch.copy()).unsqueeze(0), reason, report.owner)


def _check_inverse(transform: Any, batch: TensorDictBase, report: Report) -> None:
    inverse = getattr(transform, "inv", None)
    if inverse is None or not getattr(transform, "has_inverse", lambda: True)():
        return
    names = ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv")
    keys, outs, keys_inv, outs_inv = (list(getattr(transform, name, ())) for name in names)
    backwards = list(zip(keys_inv, outs_inv, strict=False))
    both = [key for key, out in zip(keys, outs, strict=False) if (key, out) in backwards]
    present = leaf_keys(batch)
    for key in (one for one in both if one in present):
        back = _unchanged(inverse, transform(batch.copy()), "of the input of inv", report.owner)
        same = back.get(key, None) is not None and _close(back.get(key), batch.get(key))
        reason = f"the inverse of the result must be the input again, and {key_str(key)} differs"
        require(same, f"{reason}: leave the key out of in_keys_inv if it cannot be inverted", report.owner)


def _check_nested(transform: Any, nested: Any, batch: TensorDictBase, report: Report) -> None:
    """Check that the transform of nested keys does with nested entries what the other does with those at the root."""
    with raising("the transform with nested keys", report.owner):
        out = nested(_nested(batch))
    require_close(out, _nested(transform(batch.copy())), "nested keys return another result", report.owner)


def _nested(batch: TensorDictBase) -> TensorDict:
    out = TensorDict({}, batch_size=batch.batch_size)
    for key in leaf_keys(batch):
        first, *rest = as_tuple(key)
        out.set((NEXT, "nested", *rest) if first == NEXT else ("nested", first, *rest), batch.get(key))
    return out


def _check_compiled(copy: Copy, batch: TensorDictBase, report: Report) -> None:
    expected, transform = seeded(copy(), batch), copy()

    def run(td: TensorDictBase) -> TensorDictBase:
        return transform(td)

    torch.compiler.reset()
    function: Any = torch.compile(run, fullgraph=True, backend="eager")
    what = "torch.compile(fullgraph=True) (if it cannot be compiled on purpose, pass `compiles=False`)"
    with raising(what, report.owner):
        out = seeded(function, batch)
    torch.compiler.reset()
    require_close(out, expected, "compiled, it returns another result", report.owner)


def _check_cuda(copy: Copy, batch: TensorDictBase, report: Report) -> None:
    transform = copy()
    if hasattr(transform, "to"):
        transform = transform.to("cuda")
    with raising("a batch on a CUDA device", report.owner):
        out = transform(batch.to("cuda").clear_device_())  # one with a device moves what is set
    values = {key: out.get(key) for key in leaf_keys(out)}
    devices = {key: value.device.type for key, value in values.items() if isinstance(value, Tensor)}
    for key, device in devices.items():
        one = len(set(devices.values())) == 1 or device != "cpu"
        require(one, f"{key_str(key)} is on the CPU for a batch on a CUDA device, other entries are not", report.owner)


def require_close(left: Any, right: Any, reason: str, owner: str) -> None:
    """Raise unless two sets of entries agree up to rounding; the error names the key."""
    one, two = set(leaf_keys(left)), set(leaf_keys(right))
    require(one == two, f"{reason}: the entries {sorted(map(str, one ^ two))} are in one of them only", owner)
    for key in one:
        require(_close(left.get(key), right.get(key)), f"{reason}: {key_str(key)} differs", owner)


def _close(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape and one.is_floating_point():
        return one.dtype == two.dtype and torch.allclose(one, two, rtol=1e-4, atol=1e-5, equal_nan=True)
    return same_values(one, two)


def check_transform(
    transform: Transform,
    batch: TensorDictBase | None = None,
    *,
    wrap: Callable[[Any], Env] | None = None,
    nested: Transform | None = None,
    seed: int = 0,
    repeatable: bool = True,
    picklable: bool = True,
    compiles: bool = True,
    time_limit: int | None = None,
) -> Report:
    """Check a transform on a batch, within an environment, or both.

    On a batch, it

    - returns a TensorDict of the same batch size, and changes no tensor of its input in place;
    - replaces only entries that its ``contract`` or ``out_keys`` declare;
    - returns the same result for the same input, for a batch with one dimension more, compiled by
      ``torch.compile(fullgraph=True)``, and with nested keys;
    - restores the input back through ``inv``, for keys that are in ``in_keys`` and ``in_keys_inv``;
    - runs on a CUDA device, where there is one;
    - if it has neither ``inv`` nor ``transform_specs``: changes the entries under ``next`` also when it is called as in
      an environment, with the root and with ``next`` by themselves. Without `wrap` this is only reported.

    Within an environment, that environment passes `check_env`: data match the specs that the transform makes,
    observations restart with partial resets. On both, a clone, a deep copy, a pickle, and a new one with its
    ``state_dict`` continue as the transform does.

    Args:
        transform: Callable from TensorDict to TensorDict. Copies of it are used, from its ``clone()`` if it has
            one.
        batch: Batch on which it can run.
        wrap: Function that puts a copy of the transform around an environment, for example
            ``lambda t: TransformedEnv(PendulumEnv(), t)``. A batched environment is needed for partial resets.
        nested: Same transform with ``("nested", key)`` in place of each of its keys; it runs on a copy of `batch`
            with these keys.
        seed: Seed of the environment.
        repeatable: False for a transform that is random, or keeps a state, on purpose; its copies are compared if it
            has a ``state_dict``.
        picklable: False for a transform that holds a function without a name.
        compiles: False for a transform of a batch that is not for compiled code, because it reads values for example.
        time_limit: Argument of `check_env`.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` with the reason first.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> check_transform(lambda td: td.set("twice", 2 * td["x"]), TensorDict(x=torch.ones(3), batch_size=[3]))
        Report(owner='<lambda>', not_exercised=[])
    """
    report = Report(getattr(transform, "__name__", type(transform).__name__))
    require(batch is not None or wrap is not None, "needs a batch, or wrap= with an environment", "check_transform")
    require(nested is None or batch is not None, "needs a batch for the transform nested=", "check_transform")
    copied = not isinstance(transform, FunctionType) and (repeatable or hasattr(transform, "state_dict"))
    if batch is not None:
        check_on_batch(
            lambda: copy_of(transform), batch, report, nested=nested, repeatable=repeatable, compiles=compiles
        )
        check_called_as_in_env(copy_of(transform), batch, report, in_env=wrap is not None)
        if copied:
            check_copies_on_batch(transform, batch, report, picklable=picklable)
    report.warn()
    if wrap is not None:
        inner = check_env(lambda: wrap(copy_of(transform)), seed=seed, time_limit=time_limit)
        report.not_exercised += inner.not_exercised
        if copied:
            check_copies_in_env(transform, wrap, seed, report, picklable=picklable)
    return report
