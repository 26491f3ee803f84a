"""Normalization of distributions of returns."""

from __future__ import annotations

from collections.abc import Sequence

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.nn.functional import log_softmax

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import ACTION_VALUE, NestedKey, key_str
from rl.core.lowering import Lowered, unhooked
from rl.modules._keys import key_list

__all__ = ["DistributionalDQNnet"]


class DistributionalDQNnet(TensorDictModuleBase):
    """Log-softmax over the atoms of distributions of returns.

    Goes between a network that writes logits ``[*B, atoms, n]`` and a `DistributionalQValueModule`.

    Args:
        in_keys: of the logits; ``["action_value"]`` if None.
        out_keys: of the log-probabilities, as many; ``["action_value"]`` if None.

    Raises:
        ContractError: if the numbers of keys differ; in the call, if an entry is absent.
        ShapeError: in the call, if an entry has fewer than two dimensions.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict(action_value=torch.randn(3, 51, 2), batch_size=[3])
        >>> DistributionalDQNnet()(td)["action_value"].exp().sum(-2).shape
        torch.Size([3, 2])
    """

    def __init__(
        self, *, in_keys: Sequence[NestedKey] | None = None, out_keys: Sequence[NestedKey] | None = None
    ) -> None:
        super().__init__()
        self.in_keys = key_list([ACTION_VALUE] if in_keys is None else in_keys)
        self.out_keys = key_list([ACTION_VALUE] if out_keys is None else out_keys)
        if len(self.in_keys) != len(self.out_keys):
            raise ContractError(
                f"DistributionalDQNnet writes one entry for each that it reads, got in_keys {self.in_keys} and"
                f" out_keys {self.out_keys}"
            )

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Let the network's out_keys be this key, or name another with in_keys=."
        shape = ("atoms", "n")
        return Contract(
            tuple(Key(key, shape, "logit of each atom, for each action", remedy=remedy) for key in self.in_keys),
            tuple(Key(key, shape, "log-probability of each atom, for each action") for key in self.out_keys),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the log-probabilities.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if an entry has fewer than two dimensions.
        """
        leaves = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, key, self)
        for key, value in zip(self.out_keys, self._normalize(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> Lowered | None:
        """The module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not DistributionalDQNnet or not unhooked(self):
            return None
        return Lowered(self._normalize, self.in_keys, self.out_keys)

    def _normalize(self, *logits: Tensor) -> tuple[Tensor, ...]:
        for key, one in zip(self.in_keys, logits, strict=True):
            if one.ndim < 2:
                raise ShapeError(
                    f"DistributionalDQNnet got {key_str(key)} of shape {tuple(one.shape)}: the network must write"
                    " [*B, atoms, n]"
                )
        return tuple(log_softmax(one, -2) for one in logits)
