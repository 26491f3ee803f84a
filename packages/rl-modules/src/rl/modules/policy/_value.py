"""Value networks."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.contract import Contract, Key
from rl.core.keys import ACTION, OBSERVATION, STATE_ACTION_VALUE, STATE_VALUE, NestedKey, as_tuple
from rl.modules._keys import key_list
from rl.modules.policy._actor import reads_of
from rl.modules.policy._fit import check_width, output_width

__all__ = ["ValueOperator"]


class ValueOperator(TensorDictModule):
    """The value of a state, or of a state and an action.

    Args:
        module: function of the entries under `in_keys`, returns ``[*B, 1]``; under another out key than
            ``"state_value"`` it may be wider, as the quantiles of a TQC critic are.
        in_keys: keys read; ``["observation"]`` if None.
        out_keys: keys written; if None, ``["state_action_value"]`` where an action is read, otherwise
            ``["state_value"]``.

    Raises:
        ShapeError: if the module visibly returns another width than 1 under ``"state_value"``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> critic = ValueOperator(nn.Linear(3, 1))
        >>> critic(TensorDict(observation=torch.zeros(4, 3), batch_size=[4]))["state_value"].shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        inputs = key_list([OBSERVATION] if in_keys is None else in_keys)
        if out_keys is None:
            of_action = any(as_tuple(key)[-1] == ACTION for key in inputs)
            out_keys = [STATE_ACTION_VALUE if of_action else STATE_VALUE]
        super().__init__(module, inputs, key_list(out_keys))
        if as_tuple(out_keys[0])[-1] == STATE_VALUE:
            check_width("ValueOperator", self, key_list(out_keys)[0], 1)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        doc = "expected return, units of reward"
        writes = (Key(key, (output_width(self, key) or 1,), doc) for key in key_list(self.out_keys))
        return Contract(reads_of(self.in_keys), tuple(writes))
