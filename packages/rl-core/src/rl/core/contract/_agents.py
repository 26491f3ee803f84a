"""Shapes of the entries of groups of agents, for `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from rl.core.contract._contract import Contract, Key
from rl.core.keys import NEXT, NestedKey, as_tuple, leaf_keys, next_key, unwrap
from rl.core.recurrent import declared_states

__all__ = ["Shapes"]

_Shape = tuple[str | int, ...]


class Shapes:
    """Shapes of the entries of a pipeline, with the number of agents of each group.

    The specs of environments say what an entry is. Contracts of other components give entries of groups without the
    dimension of agents, recurrent states excepted.

    Args:
        envs: the environments of the pipeline.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self._known: dict[NestedKey, _Shape] = {}
        self._groups: dict[tuple[str, ...], int | None] = {}
        self._alone = not envs
        for env in envs:
            actions, rewards, flags = env.full_action_spec, env.full_reward_spec, env.full_done_spec
            specs = [env.observation_spec, getattr(env, "full_state_spec", None), actions, rewards, flags]
            dims = len(env.batch_size)
            shapes = {
                key: tuple(spec[key].shape[dims:]) for spec in specs if spec is not None for key in leaf_keys(spec)
            }
            self._known.update(shapes)
            outcome = {*leaf_keys(rewards), *leaf_keys(flags)}
            for group in {as_tuple(key)[:-1] for key in leaf_keys(actions)} - {()}:
                inside = {key: shape for key, shape in shapes.items() if as_tuple(key)[: len(group)] == group}
                first = {shape[:1] for shape in inside.values()}
                if len(first) == 1 and () not in first and all(len(inside[key]) > 1 for key in outcome & {*inside}):
                    (n,) = first.pop()
                    self._groups[group] = n if any(len(shape) > 1 for shape in inside.values()) else None

    def of(self, component: Any, contract: Contract) -> Contract:
        """The contract of a component, with the shapes of all agents; without those that are not known."""
        modules = component.modules() if isinstance(component, nn.Module) else [component]
        names = [state.name for module in modules for state in declared_states(module)]
        exact = {*names, *map(next_key, names)}
        groups = {self._group(key) for key in (*contract.reads, *contract.writes)}
        mixed = any(group in self._groups for group in groups)

        def shown(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            return tuple(
                key if key.name in exact else replace(key, shape=self._shape(key, mixed=mixed)) for key in keys
            )

        return Contract(shown(contract.reads), shown(contract.writes))

    def _group(self, key: Key) -> tuple[str, ...]:
        """The group of agents that a key is in; all that stands before its name where no environment says it."""
        path = _current(key.name)
        for group in self._groups:
            if path[: len(group)] == group:
                return group
        return path[:-1] if self._alone else ()

    def _shape(self, key: Key, *, mixed: bool) -> _Shape | None:
        """Shape of an entry, None if it is not known.

        Args:
            key: of a contract.
            mixed: whether the component has entries of agents: those outside may be for each agent or for all.
        """
        if not key.batched:
            return key.shape
        if (known := self._known.get(unwrap(_current(key.name)))) is not None or key.shape is None:
            return known
        group = self._group(key)
        n = self._groups.get(group)
        if n is not None:
            return (n, *key.shape)
        return None if group or mixed else key.shape


def _current(name: NestedKey) -> tuple[str, ...]:
    """The key without ``next``."""
    path = as_tuple(name)
    return path[1:] if path[0] == NEXT else path
