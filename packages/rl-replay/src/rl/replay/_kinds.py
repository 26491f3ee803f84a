"""Rows that are not TensorDicts: tensorclasses, and dicts, tuples and other PyTrees of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensorclass
from torch import Tensor
from torch.utils import _pytree as pytree

from rl.core.errors import ContractError, ShapeError

_PLAIN: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}


@dataclass(frozen=True)
class NodeType:
    """Type of a node of a row, which flattens and rebuilds the node.

    Args:
        name: ``dict``, ``list``, ``tuple``, or module and name of a class.
        node: Type of the node; None if only the name of its class is known.
        keys: Keys of a dict; their order does not matter.
        spec: Structure of another PyTree, as torch has it.
    """

    name: str
    node: type | None
    keys: tuple[str | int, ...] | None = field(default=None, compare=False)
    spec: Any = None

    @property
    def has_batch(self) -> bool:
        """Whether it is a tensorclass, which has batch dimensions as a TensorDict."""
        return self.node is not None and is_tensorclass(self.node)

    @property
    def short(self) -> str:
        """The name without its module."""
        return self.name.rpartition(":")[2]

    @property
    def plain(self) -> bool:
        """Whether it is a dict, list or tuple, which can be rebuilt from its name."""
        return self.name in _PLAIN

    def unflatten(self, content: Mapping[str, Any]) -> Any:
        """Return the node whose children are `content`, by their names.

        Raises:
            ContractError: If only the name of the class is known.
        """
        if self.node is None:
            raise ContractError(f"rows are of the class {self.name}, of which only the name is known")
        if self.keys is not None:
            return {key: content[str(key)] for key in self.keys}
        children = [content[str(place)] for place in range(len(content))]
        return pytree.tree_unflatten(children, self.spec) if self.spec is not None else self.node(children)

    def unflatten_tensordict(self, td: TensorDictBase) -> Any:
        """Return the tensorclass whose fields are the entries of `td`."""
        make: Any = self.node
        return make.from_tensordict(td)

    def state(self) -> list[Any]:
        """Name and keys, as plain data."""
        return [self.name, None if self.keys is None else list(self.keys)]

    @classmethod
    def from_state(cls, state: Any) -> NodeType | None:
        """Return the kind that `state` was created from; None for that of a TensorDict."""
        if state is None:
            return None
        name, keys = state
        if (keys is not None) != (name == "dict"):
            raise ValueError(f"a node {name} with the keys {keys}")
        return cls(str(name), _PLAIN.get(name), None if keys is None else tuple(keys))


NodeTypes = dict[tuple[str, ...], NodeType]
"""The nodes of a row that are no TensorDicts, by their path."""


def flatten_node(value: Any, place: tuple[str, ...]) -> tuple[NodeType, dict[str, Any]]:
    """Return the kind of a node that is no TensorDict, and its children by name.

    Raises:
        ContractError: If it is no node, or has children that are no tensors or keys that are neither str nor int.
    """
    own: type = type(value)
    name = f"{own.__module__}:{own.__qualname__}"
    if is_tensorclass(value):
        return NodeType(name, own), dict(value.items())
    if own is dict:
        content = {str(key): child for key, child in value.items()}
        if len(content) < len(value) or not all(type(key) in (str, int) for key in value):
            raise ContractError(
                f"a dict{_at(place)} has the keys {list(value)}; keys of stored rows are different strings and integers"
            )
        return NodeType("dict", dict, tuple(value)), content
    if own in (list, tuple):
        children, kind = value, NodeType(own.__name__, own)
    else:
        children, spec = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
        if isinstance(value, TensorDictBase) or is_non_tensor(value) or spec.is_leaf():
            raise ContractError(
                f"expected tensors{_at(place)}, got {own.__name__}: a tensor storage takes tensors, TensorDicts,"
                " tensorclasses, and dicts, tuples and other PyTrees of these; use ListStorage for other objects"
            )
        kind = NodeType(name, own, spec=spec)
    return kind, {str(number): child for number, child in enumerate(children)}


def is_batched(value: Any) -> bool:
    """Return whether `value` is a TensorDict, a tensor or a tensorclass, which has batch dimensions itself."""
    return isinstance(value, (Tensor, TensorDictBase)) or (is_tensorclass(value) and not is_non_tensor(value))


def one_row(row: Any) -> Any:
    """Return a row as a batch: a TensorDict or tensor ``[1, ...]``, or a list."""
    return row.unsqueeze(0) if isinstance(row, (TensorDictBase, Tensor)) else [row]


def batch_shape(data: Any, dims: int) -> torch.Size:
    """Return the batch dimensions of `data`; of a PyTree the first `dims` of its tensors.

    Raises:
        ContractError: If `data` holds something else than tensors.
        ShapeError: If tensors of a PyTree differ in these dimensions, have fewer, or are nested tensors.
    """
    if isinstance(data, (TensorDictBase, Tensor)) or is_tensorclass(data):
        return data.shape
    if isinstance(data, list):
        raise ContractError("a list is a list of rows; create a batch of it with torch.stack, or use a tuple")
    shapes: dict[str, torch.Size] = {}
    _shapes(data, dims, (), shapes)
    if not shapes:
        raise ContractError(f"this {type(data).__name__} has no tensors; a row needs at least one")
    (first, shape), *others = shapes.items()
    for place, other in others:
        if other != shape:
            raise ShapeError(
                f"all tensors of a batch need the same {dims} leading dimension(s), the number of rows; got"
                f" {list(shape)} at {first} and {list(other)} at {place}. Nothing was written"
            )
    return shape


def _shapes(value: Any, dims: int, place: tuple[str, ...], out: dict[str, torch.Size]) -> None:
    if isinstance(value, Tensor) and value.is_nested:
        raise ShapeError(f"a nested tensor{_at(place)}, whose rows differ in shape; pad them to one shape")
    if is_batched(value):
        if value.ndim < dims:
            raise ShapeError(
                f"expected at least {dims} leading dimension(s){_at(place)}, got the shape {list(value.shape)}; `add`"
                " takes a single row, `extend` a batch of rows"
            )
        out[".".join(place)] = value.shape[:dims]
        return
    for name, child in flatten_node(value, place)[1].items():
        _shapes(child, dims, (*place, name), out)


def stacked(rows: Sequence[Any]) -> Any:
    """Return the batch of rows.

    Raises:
        ContractError: If a row is a list, or holds something else than tensors.
        ShapeError: If there are none, or they differ.
    """
    if not rows:
        raise ShapeError("a batch without rows, an empty list")
    if isinstance(rows[0], list):
        raise ContractError("a row is a list, and a list is a batch of rows; use a tuple")
    leaves, specs = zip(*(pytree.tree_flatten(row, is_leaf=_is_leaf) for row in rows), strict=True)
    for row, spec, parts in zip(rows, specs, leaves, strict=True):
        if spec != specs[0]:
            raise ShapeError(f"rows of a list differ: {type(rows[0]).__name__} and {type(row).__name__}; {spec}")
        for part in parts:
            if not _is_leaf(part):
                flatten_node(part, ())  # raises
    try:
        return pytree.tree_unflatten([torch.stack(parts) for parts in zip(*leaves, strict=True)], specs[0])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ShapeError(f"the {len(rows)} rows of a list differ and cannot be stacked ({reason})") from error


def class_in(data: Any) -> str | None:
    """Return the first class in a batch that is neither dict, list nor tuple; None if there is none."""
    if isinstance(data, (Tensor, TensorDictBase)) or is_non_tensor(data):
        return None
    if type(data) in _PLAIN.values():
        children = data.values() if isinstance(data, dict) else data
        return next((name for child in children if (name := class_in(child)) is not None), None)
    return type(data).__qualname__ if is_tensorclass(data) or not pytree.tree_structure(data).is_leaf() else None


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Tensor, TensorDictBase)) or is_tensorclass(value)


def _at(place: tuple[str, ...]) -> str:
    return f" at {'.'.join(place)}" if place else ""
