"""`RenameTransform`: entries under other keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, key_str
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["RenameTransform"]


class RenameTransform(Transform):
    """Renames entries that the environment writes, and entries that it reads.

    Done flags can be copied, not renamed: an environment always has them under their names. An observation that the
    environment reads at the next step, as part of its state, is renamed in both directions.

    Args:
        in_keys: names in the environment.
        out_keys: names of the caller.
        in_keys_inv: names in the environment of what it reads.
        out_keys_inv: names of the caller.
        create_copy: keep the entries under their old names too.

    Raises:
        SpecError: if the lists differ in length, or an entry does not exist.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), RenameTransform(["observation"], ["obs"], ["action"], ["torque"]))
        >>> sorted(key for key in env.rollout(2).keys() if key in ("obs", "torque", "observation", "action"))
        ['obs', 'torque']
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey],
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        create_copy: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if len(self.in_keys) != len(self.out_keys) or len(self.in_keys_inv) != len(self.out_keys_inv):
            raise SpecError(f"{self!r} needs one out key for each in key")
        self.create_copy = create_copy

    def _call(self, entries: Any) -> Any:
        found = [(key, out, entries.get(key, None)) for key, out in zip(self.in_keys, self.out_keys, strict=True)]
        for key, _, value in found:
            if value is not None and not self.create_copy:
                del entries[key]
        for _, out, value in found:
            if value is not None:
                entries[out] = value.clone() if self.create_copy else value
        return entries

    def _inv(self, root: Any) -> Any:
        pairs = zip(self.in_keys_inv, self.out_keys_inv, strict=True)
        for key, value in [(key, root.get(out, None)) for key, out in pairs]:
            if value is not None:
                root[key] = value
        return root

    def transform_specs(self, specs: Specs) -> None:
        """Move the specs to the new keys."""
        self._rename_state(specs)
        moved = self._take_specs(specs)
        every = (specs.observation, specs.reward, specs.done, specs.action, specs.state)
        names: dict[NestedKey, NestedKey] = {}
        for spec, key, out, _ in moved:
            others = [one for one in every if one is not specs.state or spec is specs.state]
            if names.setdefault(out, key) != key or any(one.get(out, None) is not None for one in others):
                raise SpecError(
                    f"{self!r} writes {key_str(out)}, which the environment has already: choose another key"
                )
        for spec, _, out, leaf in moved:
            spec[out] = leaf

    def _rename_state(self, specs: Specs) -> None:
        """Rename what a step reads at the root too, where it is an observation that is renamed."""
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            carried = specs.state.get(key, None) is not None and specs.observation.get(key, None) is not None
            if not carried or self.create_copy:
                continue
            if key not in self.in_keys_inv:
                self.in_keys_inv.append(key)
                self.out_keys_inv.append(out)
            elif self.out_keys_inv[self.in_keys_inv.index(key)] != out:
                raise SpecError(
                    f"{self!r} writes {key_str(out)} in place of {key_str(key)}, which the environment reads at the"
                    " next step: give the same pair of keys in both directions"
                )

    def _take_specs(self, specs: Specs) -> list[tuple[Any, NestedKey, NestedKey, Any]]:
        """Where each spec goes, its key, its new key, and a copy of it; renamed ones are removed."""
        moved: list[tuple[Any, NestedKey, NestedKey, Any]] = []
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            for spec in specs.written(key, self):
                if spec is specs.done and not self.create_copy:
                    raise SpecError(f"{self!r} renames a done flag, which every environment has; use create_copy=True")
                moved.append((specs.observation if spec is specs.done else spec, key, out, spec[key].clone()))
                if not self.create_copy:
                    del spec[key]
        for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            for spec in specs.read(key, self):
                moved.append((spec, key, out, spec[key].clone()))
                del spec[key]
        return moved
