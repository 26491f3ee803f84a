"""What a run rejects: keys that two parts write, values that are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import IS_INIT, NEXT, NestedKey, as_tuple, key_str, leaf_keys
from rl.core.recurrent import states_of
from rl.objectives import LossModule
from rl.trainers.networks import bookkeeping_names, yaml_key

_OF_ENVIRONMENTS = frozenset({"action_mask", "done", "is_init", "mask", "terminated", "truncated"})
"""Entries that environments write for losses."""


def check_dataset_named(recipe: str, name: str) -> None:
    """Raise if a recipe that learns from a data set has the name of none.

    Raises:
        ArgumentError: If so.
    """
    if not name:
        raise ArgumentError(f"{recipe} learns from a data set: pass --dataset SOURCE:NAME, such as minari:NAME")


def check_no_clash(recipe: str, env: Env, parts: Sequence[Any], more: Sequence[NestedKey] = ()) -> None:
    """Raise if a part of a recipe would overwrite an observation, or read it as something else.

    Args:
        recipe: Name of the recipe.
        env: Environment, which writes observations.
        parts: Policies, critics, estimators and losses; what they write, and what losses read if it is there, as
            ``gamma``.
        more: Other keys that the loop writes into batches.

    Raises:
        SpecError: If so; the message has the transform that renames the observation.
    """
    own = {as_tuple(key) for part in parts for key in _keys_of(part)} | {as_tuple(key) for key in more}
    own = {key for key in own if key[0] != NEXT} | {("collector",)}  # which collectors write
    if any(states_of(part) for part in parts):
        own |= {(IS_INIT,)} & {(name,) for name in bookkeeping_names(env)}
    clashes = [
        key
        for key in leaf_keys(env.observation_spec)
        if any(as_tuple(key)[: len(one)] == one or one[: len(as_tuple(key))] == as_tuple(key) for one in own)
    ]
    if clashes:
        reject_clash(recipe, clashes)


def reject_clash(owner: str, clashes: Sequence[NestedKey]) -> NoReturn:
    """Raise about observations that have the names of entries of `owner`.

    Raises:
        SpecError: Always; the message has the transform that renames the observations.
    """
    renamed = [(*as_tuple(key)[:-1], f"{as_tuple(key)[-1]}_seen") for key in clashes]
    old = ", ".join(yaml_key(key) for key in clashes)
    new = ", ".join(yaml_key(key if len(key) > 1 else key[0]) for key in renamed)
    several = len(clashes) > 1
    raise SpecError(
        f"{owner} has entries {', '.join(map(key_str, clashes))} of its own, and so has the environment: one would"
        f" take the place of the other. Rename the observation{'s' * several}, with"
        f" --transform 'rename:{{in_keys: [{old}], out_keys: [{new}]}}'"
    )


def _keys_of(part: Any) -> Iterator[NestedKey]:
    for module in part.modules() if isinstance(part, nn.Module) else ():
        writes: Any = getattr(module, "out_keys", ())
        if not isinstance(module, LossModule):  # the outputs of a loss are no batch
            yield from writes
    contract = getattr(part, "contract", None)
    if contract is None:
        return
    yield from (key.name for key in contract.reads if key.optional and as_tuple(key.name)[-1] not in _OF_ENVIRONMENTS)
    if not isinstance(part, nn.Module) or not _is_loss(part):
        yield from (key.name for key in contract.writes)


def _is_loss(part: nn.Module) -> bool:
    return any(isinstance(module, LossModule) for module in part.modules())


_CHUNK = 10_000
"""Rows of a data set that are looked at together."""


SQUARABLE = 1.8e19
"""Magnitude above which the square of a number is infinite in float32."""


def check_batch(batch: TensorDictBase, keys: Sequence[NestedKey], frames: int, env: str) -> str:
    """Raise about the first step at which an entry is NaN or infinite.

    A loss may be finite where its gradient is not; so this looks at what goes in, before anything is learned from it.

    Args:
        batch: Batch ``[num_envs, T]``, in time order.
        keys: Entries that are read; others, and those of integers, are left alone.
        frames: Number of frames before the batch.
        env: Name of the environment.

    Returns:
        A sentence about an entry whose square overflows, which makes losses infinite; empty if there is none.

    Raises:
        RLError: If there is one.
    """
    there = ((key, batch.get(key, None)) for key in keys)
    read: list[tuple[NestedKey, Tensor]] = [(key, x) for key, x in there if x is not None and x.is_floating_point()]
    # one pass, one wait; the comparison is false for NaN
    if not read or bool((torch.stack([x.sum().float() for _, x in read]).abs() < SQUARABLE).all()):
        return ""
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
    sizes = ((key, float(x.abs().max())) for key, x in read)
    large = next(((key, size) for key, size in sizes if size >= SQUARABLE), None)
    if large is None:
        return ""
    return f"{key_str(large[0])} of {env!r} reached {large[1]:.3g}, whose square overflows in float32"


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
        RLError: If so.
    """
    where = first_bad_row(data, leaf_keys(data), name) if len(data) else ""
    if where:
        raise RLError(f"{where}, and nothing can be learned from it: remove that row")


def has_bad_weight(parts: Iterable[Any]) -> bool:
    """Whether a weight of some networks is NaN or infinite."""
    weights = [p.detach() for part in parts if isinstance(part, nn.Module) for p in part.parameters()]
    weights = [p for p in weights if p.is_floating_point()]
    return bool(weights) and not bool(torch.stack([p.sum().float() for p in weights]).isfinite().all())
