"""`ExcludeTransform`: without some observations."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.keys._select_transform import SelectTransform

__all__ = ["ExcludeTransform"]


@_foreign.exclude
class ExcludeTransform(SelectTransform):
    """Removes observations, rewards, and the flag ``truncated``.

    On a batch it removes entries at the root and under ``next``; keys that begin with ``"next"`` only there.

    Order: transforms after it do not see the removed entries.

    Args:
        excluded_keys: keys of entries or of nested groups.

    Raises:
        SpecError: if the environment does not write one, or reads it at the next step; for ``done`` and ``terminated``,
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
