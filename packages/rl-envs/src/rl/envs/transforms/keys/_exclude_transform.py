"""`ExcludeTransform`: without some observations."""

from __future__ import annotations

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, key_str
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.keys._select_transform import SelectTransform

__all__ = ["ExcludeTransform"]


@_foreign.exclude
class ExcludeTransform(SelectTransform):
    """Removes observations.

    Order: transforms after it do not see the removed entries.

    Args:
        excluded_keys: keys of entries or of nested groups.

    Raises:
        SpecError: if the environment does not write one, or reads it at the next step.

    Example:
        >>> from rl.envs import TicTacToeEnv, TransformedEnv
        >>> "action_mask" in TransformedEnv(TicTacToeEnv(), ExcludeTransform("action_mask")).reset().keys()
        False
    """

    def __init__(self, *excluded_keys: NestedKey) -> None:
        super().__init__(*excluded_keys)

    def transform_specs(self, specs: Specs) -> None:
        """Remove the specs of the excluded observations."""
        for key in self.selected_keys:
            specs.written(key, self)
        self._removed = [key for key in leaf_keys(specs.observation) if self._keeps(key)]
        needed = [key_str(key) for key in self._removed if specs.state.get(key, None) is not None]
        if needed:
            raise SpecError(f"{self!r} would remove {', '.join(needed)}, which the environment reads at the next step")
        for key in self._removed:
            del specs.observation[key]
