"""Dropout whose mask stays the same during an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl.core import load
from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple
from rl.core.lowering import Lowered, unhooked
from rl.core.specs import Unbounded
from rl.modules._keys import key_list

__all__ = ["ConsistentDropout", "ConsistentDropoutModule"]

_UNDRAWN = -1.0


class ConsistentDropout(nn.Module):
    """Dropout that returns its mask, and takes it back.

    Hausknecht and Wagener, "Consistent Dropout for Policy Gradient Reinforcement Learning", 2022: with the mask that
    was used while acting, an update scores actions by the policy that chose them.

    Args:
        p: probability of dropping a feature, in [0, 1).

    Shapes: ``[*B, F]`` to ``[*B, F]`` and, in training mode, a mask of the same shape, whose entries are 0 or ``1 / (1
    - p)``. In evaluation mode the input comes back alone.

    Raises:
        SpecError: if `p` is no probability below 1.

    Example:
        >>> drop = ConsistentDropout(0.5)
        >>> x = torch.ones(3, 4)
        >>> out, mask = drop(x)
        >>> out.equal(drop(x, mask)[0])
        True
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise SpecError(f"ConsistentDropout got p={p}; it is a probability below 1")
        self.p = float(p)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Drop features; with the mask if one is given, else with a new one."""
        if not self.training:
            return x
        mask = self.make_mask(x) if mask is None else mask
        return x * mask, mask

    def make_mask(self, x: Tensor) -> Tensor:
        """A new mask for an input ``[*B, F]``."""
        return torch.empty_like(x).bernoulli_(1 - self.p).div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class ConsistentDropoutModule(TensorDictModuleBase):
    """`ConsistentDropout` on named entries: the mask is drawn at the first step of an episode and kept in the batch.

    Goes between two modules of a policy. ``env.append_transform(module.make_tensordict_primer())`` adds the entry of
    the mask to an environment. The mask is drawn where this entry is negative, as the primer makes it, and written in
    its place, where following steps and updates find it.

    Args:
        in_keys: of the input, or of the input and the mask, whose key is otherwise ``("dropout_mask", *input)``.
        out_keys: of the output, or of the output and the mask; those of `in_keys` if None.
        input_shape: of the input without batch dimensions; needed by `make_tensordict_primer` alone.
        input_dtype: of the input; needed by `make_tensordict_primer` alone.
        p: probability of dropping a feature, in [0, 1).

    Raises:
        ContractError: if the keys are none of these forms; in the call, if an entry is absent.
        ShapeError: in the call, if the mask has not the shape of the input.
        SpecError: if `p` is no probability below 1.

    Example:
        >>> from tensordict import TensorDict
        >>> drop = ConsistentDropoutModule(["hidden", "mask"], p=0.5)
        >>> out = drop(TensorDict(hidden=torch.ones(3, 4), mask=-torch.ones(3, 4), batch_size=[3]))
        >>> out["mask"].unique()
        tensor([0., 2.])
        >>> out["hidden"].equal(out["mask"])
        True
    """

    def __init__(
        self,
        in_keys: NestedKey | Sequence[NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        input_shape: Sequence[int] | None = None,
        input_dtype: torch.dtype | None = None,
        p: float = 0.5,
    ) -> None:
        super().__init__()
        reads = key_list(in_keys)
        if len(reads) == 1:
            reads = [reads[0], ("dropout_mask", *as_tuple(reads[0]))]
        writes = reads if out_keys is None else key_list(out_keys)
        if len(writes) == 1:
            writes = [writes[0], *reads[1:]]
        if len(reads) != 2 or len(writes) != 2 or reads[1] != writes[1] or reads[1] in (reads[0], writes[0]):
            raise ContractError(
                "ConsistentDropoutModule reads an input and a mask, and writes an output and the same mask, got in_keys"
                f" {key_list(in_keys)} and out_keys {writes}"
            )
        self.dropout = ConsistentDropout(p)
        self.input_shape = None if input_shape is None else tuple(input_shape)
        self.input_dtype = input_dtype
        self.in_keys = key_list(reads)
        self.out_keys = key_list(writes)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Append the transform of make_tensordict_primer() to the environment, and store the entry in batches."
        doc = "0 where a feature is dropped, 1 / (1 - p) where not, negative if not drawn"
        source, mask = self.in_keys
        reads = Key(source, doc="input", remedy="The module before must write it."), Key(mask, doc=doc, remedy=remedy)
        return Contract(reads, (Key(self.out_keys[0], doc="input with features dropped"), Key(mask, doc=doc)))

    def make_tensordict_primer(self) -> Any:
        """The transform that adds the mask to an environment, not drawn at the start of each episode.

        Raises:
            SpecError: if `input_shape` was not given.
            UnknownComponentError: if rl-envs is not installed.
        """
        if self.input_shape is None:
            raise SpecError("ConsistentDropoutModule.make_tensordict_primer needs the module's input_shape=")
        key, spec = self.in_keys[1], Unbounded(self.input_shape, dtype=self.input_dtype or torch.get_default_dtype())
        return load("transform", "tensordict-primer")({key: spec}, default_value={key: _UNDRAWN})

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop features and write the mask.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if the mask has not the shape of the input.
        """
        leaves: list[Any] = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, key, self)
        for key, value in zip(self.out_keys, self._drop(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> Lowered | None:
        """The module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not ConsistentDropoutModule or not unhooked(self):
            return None
        return Lowered(self._drop, self.in_keys, self.out_keys)

    def _drop(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if mask.shape != x.shape:
            raise ShapeError(
                f"ConsistentDropoutModule: the mask has the shape {tuple(mask.shape)}, the input {tuple(x.shape)}"
            )
        mask = torch.where(mask < 0, self.dropout.make_mask(x), mask)
        return x * mask if self.training else x, mask
