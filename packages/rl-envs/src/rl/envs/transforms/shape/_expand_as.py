"""`ExpandAs`: an entry in the shape of another one."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["ExpandAs"]


class ExpandAs(Transform):
    """Expands an entry on the right to the shape of another one, for example a shared ``done`` to that of each agent.

    Args:
        in_key: the entry; its shape is the beginning of the other's, apart from trailing dimensions of size 1.
        ref_key: the entry with the shape.
        out_key: the result; `in_key` if None.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"flag": torch.ones(2, 1), "value": torch.zeros(2, 3, 1)}, [2])
        >>> ExpandAs("flag", "value")(batch)["flag"].shape
        torch.Size([2, 3, 1])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, in_key: NestedKey, ref_key: NestedKey, out_key: NestedKey | None = None) -> None:
        super().__init__([in_key], None if out_key is None else [out_key])
        self.ref_key = unwrap(ref_key)

    def _call(self, entries: Any) -> Any:
        value, like = entries.get(self.in_keys[0], None), entries.get(self.ref_key, None)
        if value is not None and like is not None:
            entries[self.out_keys[0]] = _expanded(value, like.shape)
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Give the result the shape of the other entry."""
        like: TensorSpec = specs.written(self.ref_key, self)[0][self.ref_key]
        for spec in specs.written(self.in_keys[0], self):
            old = spec[self.in_keys[0]]
            shape = old.shape[:-1] if len(old.shape) and old.shape[-1] == 1 else old.shape
            new = old.reshape(*shape, *[1] * (len(like.shape) - len(shape))).expand(*like.shape)
            name = as_tuple(self.out_keys[0])
            spec[unwrap(name)] = new


def _expanded(value: Tensor, shape: Any) -> Tensor:
    while value.ndim > 1 and value.shape[-1] == 1 and value.shape != shape[: value.ndim]:
        value = value.squeeze(-1)
    return value.reshape(*value.shape, *[1] * (len(shape) - value.ndim)).expand(shape).clone()
