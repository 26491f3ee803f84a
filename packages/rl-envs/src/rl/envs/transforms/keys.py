"""Transforms of keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from tensordict import TensorDictBase

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Composite
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["ExcludeTransform", "FlattenTensorDict", "RemoveEmptySpecs", "RenameTransform", "SelectTransform"]


_FLAGS = ("done", "terminated", "truncated")


@foreign_arguments()
class SelectTransform(Transform):
    """Keeps the selected observations and removes the others; rewards, done flags and state entries stay.

    On a batch with a ``next``, observations are the entries that are at the root and under ``next``, except done flags.
    A batch without it, or keys of which one begins with ``"next"``, are taken literally: only the selected entries
    stay.

    Order: transforms after it see the selected entries only.

    Args:
        selected_keys: Keys of entries or of nested groups.

    Raises:
        SpecError: If the environment does not write one.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> list(TransformedEnv(CartPoleEnv(), SelectTransform("observation")).observation_spec.keys())
        ['observation', 'state']
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, *selected_keys: NestedKey) -> None:
        super().__init__()
        self.selected_keys = [unwrap(key) for key in selected_keys]
        self._removed: list[NestedKey] = []

    def _call(self, entries: Any) -> Any:
        for key in self._removed:
            if entries.get(key, None) is not None:
                del entries[key]
        return entries

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch without the other observations."""
        following = tensordict.get("next", None)
        if following is None or any(as_tuple(key)[0] == "next" for key in self.selected_keys):
            return tensordict.select(*self.selected_keys, strict=False)
        both = set(leaf_keys(following)) & set(leaf_keys(tensordict))
        others = [key for key in both if as_tuple(key)[-1] not in _FLAGS and not self._keeps(key)]
        return tensordict.exclude(*others, *[("next", *as_tuple(key)) for key in others])

    def transform_specs(self, specs: Specs) -> None:
        """Remove the specs of the other observations."""
        for key in self.selected_keys:
            specs.written(key, self)
        state = set(leaf_keys(specs.state))
        self._removed = [key for key in leaf_keys(specs.observation) if key not in state and not self._keeps(key)]
        for key in self._removed:
            del specs.observation[key]

    def _keeps(self, key: NestedKey) -> bool:
        path = as_tuple(key)
        return any(path[: len(as_tuple(one))] == as_tuple(one) for one in self.selected_keys)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.selected_keys))})"


@foreign_arguments()
class ExcludeTransform(SelectTransform):
    """Removes observations, rewards, and the flag ``truncated``.

    On a batch it removes entries at the root and under ``next``; keys that begin with ``"next"`` only there.

    Order: transforms after it do not see the removed entries.

    Args:
        excluded_keys: Keys of entries or of nested groups.

    Raises:
        SpecError: If the environment does not write one, or reads it at the next step; for ``done`` and ``terminated``,
            which every environment has.

    Example:
        >>> from rl.envs import TicTacToeEnv, TransformedEnv
        >>> "action_mask" in TransformedEnv(TicTacToeEnv(), ExcludeTransform("action_mask")).reset().keys()
        False
    """

    def __init__(self, *excluded_keys: NestedKey) -> None:
        super().__init__(*excluded_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch without the entries."""
        plain = [as_tuple(key) for key in self.selected_keys]
        return tensordict.exclude(*plain, *[("next", *key) for key in plain if key[0] != "next"])

    def transform_specs(self, specs: Specs) -> None:
        """Remove the specs of the excluded entries."""
        for key in self.selected_keys:
            specs.written(key, self)
        groups = (specs.observation, specs.reward, specs.done)
        self._removed = [key for spec in groups for key in leaf_keys(spec) if self._keeps(key)]
        kept = [key_str(key) for key in self._removed if as_tuple(key)[-1] in ("done", "terminated")]
        if kept:
            raise SpecError(f"{self!r} would remove {', '.join(kept)}, which every environment has: leave it out")
        needed = [key_str(key) for key in self._removed if specs.state.get(key, None) is not None]
        if needed:
            raise SpecError(f"{self!r} would remove {', '.join(needed)}, which the environment reads at the next step")
        for key in self._removed:
            for spec in groups:
                if spec.get(key, None) is not None:
                    del spec[key]


class FlattenTensorDict(Transform):
    """Flattens the dimensions of a batch into one. For replay buffers; not for environments.

    Args:
        inverse: Whether to flatten what is written to the buffer, otherwise what is sampled from it.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> FlattenTensorDict(inverse=False)(TensorDict({"x": torch.zeros(2, 3)}, [2, 3])).batch_size
        torch.Size([6])
    """

    leafwise = False

    def __init__(self, *, inverse: bool = True) -> None:
        super().__init__()
        self.inverse = inverse

    def has_inverse(self) -> bool:
        """Whether it flattens what is written."""
        return self.inverse

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Flatten a sampled batch, unless `inverse`."""
        return tensordict if self.inverse else tensordict.reshape(-1)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Flatten a written batch if `inverse`."""
        return tensordict.reshape(-1) if self.inverse else tensordict

    def transform_specs(self, specs: Specs) -> None:
        """Reject an environment.

        Raises:
            RLError: Always.
        """
        del specs
        raise RLError("FlattenTensorDict is for replay buffers: an environment keeps its batch size")


class RemoveEmptySpecs(Transform):
    """Removes groups without entries from the specs; data without entries need nothing.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), RemoveEmptySpecs()).rollout(1).batch_size
        torch.Size([1])
    """

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the batch as it is."""
        return tensordict

    def transform_specs(self, specs: Specs) -> None:
        """Rebuild each spec from its leaves."""
        for name in ("observation", "action", "reward", "state"):
            spec: Composite = getattr(specs, name)
            out = Composite({}, device=spec.device)
            for key in leaf_keys(spec):
                out[key] = spec[key]
            setattr(specs, name, out)


class RenameTransform(Transform):
    """Renames entries that the environment writes, and entries that it reads.

    Done flags can be copied, not renamed: an environment always has them under their names. An observation that the
    environment reads at the next step, as part of its state, is renamed in both directions.

    Args:
        in_keys: Names in the environment.
        out_keys: Names of the caller.
        in_keys_inv: Names in the environment of what it reads.
        out_keys_inv: Names of the caller.
        create_copy: Whether to keep the entries under their old names too.

    Raises:
        ArgumentError: If the lists differ in length.
        SpecError: If an entry does not exist.

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
            raise ArgumentError(f"{self!r} needs one out key for each in key")
        for names in (self.out_keys, self.in_keys_inv):
            if len({*names}) < len(names):
                raise ArgumentError(f"{self!r} must give each entry a key of its own, got {names}")
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
                    " next step: pass the same pair of keys in both directions"
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
