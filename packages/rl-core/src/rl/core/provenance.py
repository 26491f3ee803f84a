"""Which stage of a pipeline had a key last, and which one dropped it; kept so that errors can name them.

Whatever takes a batch and gives one on (the postproc of a collector, the transforms of an environment or of a buffer)
notes once which keys it was given and which it gave. That costs nothing afterwards, and is forgotten with its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from rl.core._fate import fate_of
from rl.core._stages import forget_stage, note_stage, noted
from rl.core.keys import NestedKey, unwrap

__all__ = ["fate_of", "forget_stage", "keys_in", "note_stage", "noted", "through"]


def keys_in(entries: Any) -> list[NestedKey]:
    """The leaf keys of a TensorDict or of specs, or the keys of a dict; none of anything else."""
    from tensordict import is_leaf_nontensor, is_tensor_collection

    from rl.core.specs import Composite

    if isinstance(entries, dict):
        return [unwrap(key) for key in cast("dict[Any, Any]", entries) if _is_key(key)]
    if isinstance(entries, Composite):
        return [unwrap(key) for key in entries.keys(include_nested=True, leaves_only=True)]
    if not is_tensor_collection(entries):
        return []
    found = entries.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return [unwrap(key) for key in found]


def _is_key(key: Any) -> bool:
    return isinstance(key, str) or (
        isinstance(key, tuple) and len(key) > 0 and all(isinstance(one, str) for one in key)
    )


def through(
    owner: object,
    stages: Iterable[tuple[str, Callable[[Any], Any]]],
    entries: Any,
    *,
    promised: bool = False,
    behind: Iterable[object] | None = None,
) -> Any:
    """`entries` through functions in a row, each of which is noted.

    Args:
        owner: has the functions.
        stages: names and functions.
        entries: what the first of them gets: a TensorDict, specs, or a dict by flat key.
        promised: see `note_stage`.
        behind: see `note_stage`.
    """
    behind = None if behind is None else list(behind)
    for name, function in stages:
        taken = keys_in(entries)
        entries = function(entries)
        note_stage(owner, name, taken, keys_in(entries), promised=promised, behind=behind)
    return entries
