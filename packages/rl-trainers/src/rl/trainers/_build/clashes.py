"""Entries of an environment that have the name of one that a recipe adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from torch import nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import IS_INIT, NEXT, NestedKey, as_tuple, key_str, leaf_keys
from rl.core.recurrent import states_of
from rl.objectives import LossModule
from rl.trainers._build.networks import bookkeeping_names, yaml_key

__all__ = ["check_no_clash", "refuse_clash"]

_OF_ENVIRONMENTS = frozenset({"action_mask", "done", "is_init", "mask", "terminated", "truncated"})
"""Entries that environments write for losses."""


def check_no_clash(recipe: str, env: Env, parts: Sequence[Any], more: Sequence[NestedKey] = ()) -> None:
    """Raise if a part of a recipe would overwrite an observation, or read it as something else.

    Args:
        recipe: Name of the recipe.
        env: writes observations.
        parts: policies, critics, estimators and losses; what they write, and what losses read if it is there, as
            ``gamma``.
        more: other keys that the loop writes into batches.

    Raises:
        SpecError: if so; the message has the transform that renames the observation.
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
        refuse_clash(recipe, clashes)


def refuse_clash(owner: str, clashes: Sequence[NestedKey]) -> NoReturn:
    """Raise about observations that have the names of entries of `owner`.

    Raises:
        SpecError: always; the message has the transform that renames the observations.
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
