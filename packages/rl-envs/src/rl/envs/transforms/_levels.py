"""Keys of a transform that counts or marks episodes, next to each done flag."""

from __future__ import annotations

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._specs import Specs

__all__ = ["level_keys"]


def level_keys(specs: Specs, key: NestedKey, owner: object) -> list[tuple[NestedKey, NestedKey]]:
    """Return the key to write and the ``done`` next to it, for each done group.

    Args:
        specs: of the environment.
        key: a name, for every group; or a path, for that of the path alone.
        owner: the transform, for messages.

    Raises:
        SpecError: if the path has no ``done``.
    """
    *level, name = as_tuple(key)
    levels = [tuple(level)] if level else specs.done_levels()
    for one in levels:
        if specs.done.get((*one, "done"), None) is None:
            raise SpecError(
                f"{owner!r} writes {key_str(key)} next to a 'done' which the environment does not have (done keys:"
                f" {leaf_keys(specs.done)}): give a key next to one of them"
            )
    return [(unwrap((*one, name)), unwrap((*one, "done"))) for one in levels]
