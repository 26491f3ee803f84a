"""`VecGymEnvTransform`: last observations that a vector environment reports apart."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.autoreset._auto_reset import AutoResetTransform

__all__ = ["VecGymEnvTransform"]


class VecGymEnvTransform(AutoResetTransform):
    """Puts the last observation of an episode under ``next``, for an environment that writes it under another name.

    Vector environments of Gymnasium do so, and reset finished elements on their own. Reads each observation ``k``, and
    ``(final_name, k)``, valid where ``done`` is true; removes the latter. `GymWrapper` does so itself.

    Args:
        final_name: prefix of the last observations.

    Raises:
        SpecError: if an observation has no last one.

    Order: first.

    Example:
        >>> VecGymEnvTransform("last").final_name
        'last'
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, final_name: str = "final") -> None:
        super().__init__(replace=False)
        self.final_name = final_name

    def _terminal(self, key: NestedKey, outcome: Any) -> Tensor:
        return outcome[self._final[key]]

    def _shown(self, entries: Any) -> Any:
        for key in self._final.values():
            if entries.get(key, None) is not None:
                del entries[key]
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Remove the entries of last observations."""
        keys = leaf_keys(specs.observation)
        self._final = {
            key: unwrap((self.final_name, *as_tuple(key))) for key in keys if as_tuple(key)[0] != self.final_name
        }
        for key, final in self._final.items():
            if final not in keys:
                raise SpecError(
                    f"{self!r} reads {key_str(final)}, the last observation {key_str(key)}, which the environment does"
                    " not write"
                )
        del specs.observation[self.final_name]
        super().transform_specs(specs)
