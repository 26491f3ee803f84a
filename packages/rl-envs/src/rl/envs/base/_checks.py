"""Comparing what an environment is given and returns with its specs; errors name key, expected, got and who."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorStack, TensorDictBase, is_non_tensor
from torch import Tensor

from rl.core.errors import ContractError, RLError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.specs import Composite, TensorSpec
from rl.envs.base._specs import leaf_keys

if TYPE_CHECKING:
    from rl.envs.base._base import EnvBase

__all__ = [
    "as_batch_size",
    "check_action",
    "check_batch",
    "check_entries",
    "check_result",
    "describe",
    "entry_keys",
    "refuse_closed",
    "refuse_done",
]


def describe(value: Any) -> str:
    """Dtype and shape of a value, or its type, for messages."""
    if isinstance(value, (Tensor, TensorSpec)) and value.dtype is not None:
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def entry_keys(entries: Any) -> list[NestedKey]:
    """The leaf keys of a TensorDict, or the keys of a mapping."""
    if isinstance(entries, TensorDictBase):
        return [unwrap(key) for key in entries.keys(include_nested=True, leaves_only=True, is_leaf=_is_leaf)]
    return list(entries)


def _is_leaf(kind: type) -> bool:
    """What is no container: tensors, and data that is none."""
    return not issubclass(kind, TensorDictBase) or issubclass(kind, NonTensorStack) or is_non_tensor(kind)


def _domain(spec: TensorSpec) -> str:
    space = getattr(spec, "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return f" in [{_ends(low)}, {_ends(high)}]"
    n = getattr(space, "n", None)
    return f" of {type(spec).__name__}({n})" if n is not None else f" of {type(spec).__name__}"


def _ends(bound: Tensor) -> str:
    values = bound.flatten().unique().tolist() or [float("nan")]
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g}..{values[-1]:g}"


def _range(value: Tensor) -> str:
    if not value.numel():
        return ""
    if value.numel() <= 8:
        return f" with values {value.tolist()}"
    return f" with values from {value.min().item():g} to {value.max().item():g}"


def _fault(spec: TensorSpec, value: Any) -> str | None:
    """What is wrong with a value, or None."""
    if not isinstance(value, Tensor):
        return f"expected {describe(spec)}, got {describe(value)}" if spec.dtype is not None else None
    if value.shape != spec.shape or value.dtype != spec.dtype:
        return f"expected {describe(spec)}{_domain(spec)}, got {describe(value)}"
    if spec.device is not None and value.device != spec.device:
        return f"expected device {spec.device}, got {value.device}"
    if not spec.is_in(value):
        return f"expected {describe(spec)}{_domain(spec)}, got {describe(value)}{_range(value)}"
    return None


def check_entries(entries: Any, specs: Iterable[Composite], *, who: str, allowed: Iterable[NestedKey] = ()) -> None:
    """Raise unless `entries` holds exactly what `specs` say.

    Args:
        entries: a TensorDict, or tensors by flat key.
        specs: with the batch.
        who: what wrote the entries.
        allowed: keys that may be there without a spec.

    Raises:
        SpecError: one line for each entry that is missing, unknown, or not as its spec says.
    """
    wanted = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
    found = entry_keys(entries)
    faults: list[str] = []
    for key, spec in wanted.items():
        if key not in found:
            close = nearest(key, [other for other in found if other not in wanted])
            hint = f" (did it write {key_str(close)} instead?)" if close is not None else ""
            faults.append(f"  {key_str(key)}: expected {describe(spec)}, got nothing{hint}")
        elif (fault := _fault(spec, entries.get(key))) is not None:
            faults.append(f"  {key_str(key)}: {fault}")
    extra = [key for key in found if key not in wanted and key not in {unwrap(k) for k in allowed}]
    faults += [f"  {key_str(key)}: expected nothing, got {describe(entries.get(key))}" for key in extra]
    if faults:
        remedy = (
            "Change what it returns, or the spec; specs are written for one element and the environment adds its batch"
        )
        raise SpecError(f"{who} does not agree with the specs:\n" + "\n".join(faults) + f"\n{remedy}")


def check_action(entries: Any, spec: Composite, *, who: str) -> None:
    """Raise unless every action is there and lies in its spec.

    Raises:
        ContractError: if an action is missing.
        SpecError: if an action has another shape, dtype or device, or lies outside.
    """
    for key in leaf_keys(spec):
        value = entries.get(key, None)
        if value is None:
            found = entry_keys(entries)
            close = nearest(key, found)
            hint = f" Did you mean {key_str(close)}?" if close is not None else ""
            listed = ", ".join(key_str(k) for k in found) or "none"
            raise ContractError(
                f"{who}.step reads {key_str(key)}, which nothing wrote (keys: {listed}).{hint} Let the policy write it"
                f" (out_keys), or draw one with env.rand_action(td)"
            )
        fault = _fault(spec[key], value)
        if fault is not None:
            raise SpecError(
                f"{who}.step was given {key_str(key)} that is not in its spec: {fault}. Squash or scale the policy's"
                f" output to the spec, or bring it inside with env.action_spec.project(action)"
            )


def as_batch_size(batch_size: Iterable[int], who: str) -> torch.Size:
    """A batch size from any sequence of integers.

    Raises:
        SpecError: if it is none.
    """
    try:
        size = torch.Size(batch_size)
    except TypeError:
        size = None
    if size is None or any(n < 0 for n in size):
        raise SpecError(f"{who}: batch_size must be a sequence such as [] or [8], got {batch_size!r}")
    return size


def refuse_closed(env: EnvBase) -> None:
    """Raise if the environment was closed."""
    if env.is_closed:
        raise RLError(f"{env!r} is closed; make a new one")


def check_batch(env: EnvBase, tensordict: TensorDictBase, what: str) -> None:
    """Raise unless an input has the batch of its environment."""
    if tensordict.batch_size != env.batch_size:
        raise SpecError(
            f"{env._rl_name}.{what} was given a TensorDict of batch size {tuple(tensordict.batch_size)};"
            f" this environment runs {tuple(env.batch_size)}: take env.reset(), or make it with that batch_size"
        )


def check_result(env: EnvBase, out: Any, given: Any, what: str) -> None:
    """Raise unless a hook returned a new TensorDict with the batch of its environment."""
    if not isinstance(out, TensorDictBase):
        raise SpecError(f"{env._rl_name}.{what} must return a TensorDict, got {type(out).__name__}")
    if out is given:
        raise SpecError(f"{env._rl_name}.{what} returned its input: return a new TensorDict")
    if out.batch_size != env.batch_size:
        raise SpecError(
            f"{env._rl_name}.{what} returned batch size {tuple(out.batch_size)}, expected"
            f" {tuple(env.batch_size)}: build it with batch_size=self.batch_size"
        )


def refuse_done(
    fresh: Any, done_keys: Iterable[NestedKey], masks: Mapping[tuple[str, ...], Tensor] | None, who: str
) -> None:
    """Raise if an episode that just began is over."""
    for key in done_keys:
        done = fresh.get(key)
        mask = None if masks is None else masks.get(as_tuple(key)[:-1], masks.get(()))
        if bool(done.any() if mask is None else (done & mask).any()):
            raise SpecError(f"{who}._reset returned {key_str(key)} true: an episode cannot begin at its end")
