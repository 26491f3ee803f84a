"""`ActionMask`: random actions that are legal."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.mdp import where_reset
from rl.envs.base._checks import expected_entry
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["ActionMask"]


class ActionMask(Transform):
    """Keeps the mask of legal actions of the action spec up to date, so that ``rand_action`` is legal.

    Reads a mask at every reset and step: bool, true for legal actions, or integers, 1 for legal actions and 0 for the
    others, as those of Gymnasium. It needs a discrete action. Where none is legal, as at the end of a game, the mask
    allows all.

    Args:
        action_key: the action.
        mask_key: the mask.

    Raises:
        SpecError: if the environment has no such entries, or the mask has another dtype.
        ContractError: if a mask of integers has a value other than 0 and 1.

    Example:
        >>> from rl.envs import TicTacToeEnv, TransformedEnv
        >>> env = TransformedEnv(TicTacToeEnv(), ActionMask())
        >>> env.rollout(9)["next", "player0", "reward"].abs().sum().item() <= 1
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, action_key: NestedKey = "action", mask_key: NestedKey = "action_mask") -> None:
        super().__init__()
        self.action_key, self.mask_key = unwrap(action_key), unwrap(mask_key)

    @property
    def masked_spec(self) -> Any:
        """Spec of the action in the environment, whose mask is that of the last step."""
        env: Any = self._parent
        return env.full_action_spec[self.action_key]

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        self._update(root, mask)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        self._update(outcome, root.get("_step", None))
        return outcome

    def _legal(self, entries: Any) -> Tensor:
        mask: Tensor = entries[self.mask_key]
        legal = mask != 0
        if mask.dtype is not torch.bool and not bool((mask == legal).all()):
            raise ContractError(
                f"{self!r} reads a mask of 0 and 1, and {key_str(self.mask_key)} has the values"
                f" {mask.unique().tolist()}: name the mask with mask_key="
            )
        return legal

    def _update(self, entries: Any, chosen: Tensor | None) -> None:
        """Take the mask of the chosen elements, all if None; the others keep theirs."""
        assert self._parent is not None
        legal, spec = self._legal(entries), self.masked_spec
        if chosen is not None and spec.mask is not None:
            legal = where_reset(chosen.reshape(*self._parent.batch_size, 1), legal, spec.mask)
        spec.update_mask(legal | ~legal.any(-1, keepdim=True))

    def transform_specs(self, specs: Specs) -> None:
        """Check that the entries exist."""
        specs.read(self.action_key, self)
        for spec in specs.written(self.mask_key, self):
            dtype = spec[self.mask_key].dtype
            if dtype is None or dtype.is_floating_point or dtype.is_complex:
                raise SpecError(
                    f"{self!r} reads a mask of booleans or integers, and {key_str(self.mask_key)} is"
                    f" {expected_entry(spec[self.mask_key])}: name the mask with mask_key="
                )
