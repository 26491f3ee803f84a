"""A module over one more batch dimension."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl.core.contract import Contract, Key, contract_of
from rl.core.errors import ContractError, ShapeError
from rl.core.lowering import Lowered, lower, unhooked
from rl.modules._keys import key_list

__all__ = ["VmapModule"]


class VmapModule(TensorDictModuleBase):
    """Run a module that takes one batch dimension less over a dimension, with `torch.vmap`.

    Random numbers differ along the dimension.

    Args:
        module: a TensorDict module with a lowered form, see `rl.core.lowering`.
        vmap_dim: the batch dimension; the last one if None.
        mock: loop over the dimension instead, to find out whether `torch.vmap` is at fault.

    Raises:
        ContractError: if `module` has no lowered form.
        ShapeError: in the call, if the batch has no such dimension.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> one = TensorDictModule(lambda x: x.sum(), ["x"], ["total"])  # of a vector
        >>> VmapModule(one)(TensorDict(x=torch.ones(5, 3), batch_size=[5]))["total"]
        tensor([3., 3., 3., 3., 3.])
    """

    def __init__(self, module: TensorDictModuleBase, vmap_dim: int | None = None, *, mock: bool = False) -> None:
        super().__init__()
        if lower(module) is None:
            raise ContractError(
                f"VmapModule maps functions of tensors, and {type(module).__name__} has no lowered form: use a"
                " TensorDictModule or TensorDictSequential without hooks"
            )
        self.module, self.vmap_dim, self.mock = module, vmap_dim, mock
        self.in_keys = key_list(module.in_keys)
        self.out_keys = key_list(module.out_keys)

    @property
    def contract(self) -> Contract:
        """What is read and written: that of the module, for each element of the dimension."""
        return contract_of(self.module)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Run the module for each element of the dimension.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if the batch has no such dimension.
        """
        ndim, dim = tensordict.ndim, -1 if self.vmap_dim is None else self.vmap_dim
        if not -ndim <= dim < ndim:
            raise ShapeError(f"VmapModule maps over dimension {dim}, the batch has the shape {list(tensordict.shape)}")
        leaves: list[Any] = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                Contract(tuple(Key(one, doc="input of the module") for one in self.in_keys)).refuse(
                    tensordict, key, self
                )
        for key, value in zip(self.out_keys, self._map(dim % ndim, *leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> Lowered | None:
        """The module as a plain call; None if it was changed or hooked, or counts its dimension from the last one."""
        dim = self.vmap_dim
        if type(self) is not VmapModule or not unhooked(self) or dim is None or dim < 0:
            return None
        return Lowered(lambda *leaves: self._map(dim, *leaves), self.in_keys, self.out_keys)

    def _map(self, dim: int, *leaves: Tensor) -> tuple[Tensor, ...]:
        call = lower(self.module)
        if call is None:
            raise ContractError(
                f"VmapModule: {type(self.module).__name__} has no lowered form any more: remove its hooks"
            )
        order = {key: place for place, key in enumerate(self.in_keys)}
        places = [order[key] for key in call.in_keys]
        if self.mock:
            rows = [call(*[leaves[place].select(dim, i) for place in places]) for i in range(leaves[0].shape[dim])]
            found = [torch.stack(column, dim) for column in zip(*rows, strict=True)]
        else:
            mapped: Any = torch.vmap(call, in_dims=dim, out_dims=dim, randomness="different")
            found = mapped(*[leaves[place] for place in places])
        by_key = dict(zip(call.out_keys, found, strict=True))
        return tuple(by_key[key] for key in self.out_keys)
