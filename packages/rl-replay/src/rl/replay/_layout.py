"""The layout of stored rows: which keys, of which shape and dtype, and how a batch is put together again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor, is_tensorclass
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, nearest
from rl.replay._kinds import NodeType, NodeTypes, batch_shape, flatten_node

Cells = dict[NestedKey, Any]
"""Columns by flat key: a tensor ``[n, ...]``, or a list of n Python objects for non-tensor data."""

TENSOR: NestedKey = ()
"""Key of the only column when rows are plain tensors."""


_CPU = torch.device("cpu")
_UNCHECKED: Callable[..., TensorDict] = getattr(TensorDict, "_new_unsafe", TensorDict)
"""Creates a TensorDict without looking at each entry: columns have the shapes of the layout. It takes a quarter of
the constructor's time, which is that of gathering a few columns; where tensordict lacks it, the constructor serves."""


@dataclass(frozen=True)
class Column:
    """Shape of one row and dtype; the dtype is None for Python objects."""

    shape: torch.Size
    dtype: torch.dtype | None

    def __str__(self) -> str:
        if self.dtype is None:
            return "non-tensor data"
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True)
class Node:
    """A node of the tree: its batch dimensions after the row's, their names, and its entries.

    `kind` is that of a node that is no TensorDict.
    """

    tail: torch.Size
    names: tuple[str | None, ...] | None
    columns: tuple[tuple[str, NestedKey], ...]
    children: tuple[tuple[str, Node], ...]
    kind: NodeType | None = None

    def build(
        self,
        make: Callable[..., TensorDict],
        cells: Mapping[NestedKey, Any],
        lead: torch.Size,
        device: Any,
        lead_names: Sequence[str | None] | None = None,
    ) -> Any:
        """Return the node with batch ``[*lead, *tail]`` whose columns are `cells`; `make` is its constructor."""
        content: dict[str, Any] = {name: cells[key] for name, key in self.columns}
        for name, child in self.children:
            content[name] = child.build(make, cells, lead, device, lead_names)
        if self.kind is not None and not self.kind.has_batch:
            return self.kind.unflatten(content)
        names: Any = None
        if not (self.names or self.tail):
            names = None if lead_names is None else [*lead_names]
        elif self.names is not None or lead_names is not None:
            names = [*(lead_names or [None] * len(lead)), *(self.names or [None] * len(self.tail))]
        td = make(content, batch_size=lead + self.tail if self.tail else lead, names=names, device=device)
        return td if self.kind is None else self.kind.unflatten_tensordict(td)


def leading(shape: torch.Size, dims: int) -> torch.Size:
    """Return the dimensions that count rows.

    Raises:
        ShapeError: If there are fewer than `dims`.
    """
    if len(shape) < dims:
        raise ShapeError(
            f"expected a batch with at least {dims} leading dimension(s), got batch size {list(shape)}; "
            "`add` takes a single row, `extend` a batch of rows"
        )
    return shape[:dims]


def flatten(data: Any, dims: int, kinds: NodeTypes | None = None) -> Cells:
    """Columns of a batch whose first `dims` dimensions count rows, merged into one.

    Args:
        data: TensorDict, tensor, tensorclass or PyTree.
        dims: Number of dimensions that count rows.
        kinds: Dict that receives the nodes that are no TensorDicts.

    Raises:
        ContractError: If `data` holds something else than tensors.
        ShapeError: If `data` has fewer batch dimensions.
    """
    leading(batch_shape(data, dims), dims)
    if isinstance(data, Tensor):
        return {TENSOR: data.detach().flatten(0, dims - 1)}
    cells: Cells = {}
    _walk(data, dims, (), cells, {} if kinds is None else kinds)
    return cells


def _walk(node: Any, dims: int, prefix: tuple[str, ...], out: Cells, kinds: NodeTypes) -> None:
    content: Any = node
    if not isinstance(node, TensorDictBase):
        kinds[prefix], content = flatten_node(node, prefix)
    value: Any  # an entry may be any collection, not only the kinds that tensordict's types name
    for name, value in content.items():
        key = (*prefix, name) if prefix else name
        if isinstance(value, Tensor):
            cell = value.detach() if value.requires_grad else value
            out[key] = cell if dims == 1 else cell.flatten(0, dims - 1)
        elif is_non_tensor(value):
            out[key] = _objects(value, dims)
        else:
            _walk(value, dims, (*prefix, name), out, kinds)


def _objects(value: Any, dims: int) -> list[Any]:
    rows: list[Any] = value.tolist()
    for _ in range(dims - 1):
        rows = [item for row in rows for item in row]
    return rows


Plan = dict[str, Any]
"""Key, dtype and shape of each entry of a batch of some shape; of a TensorDict its own plan."""

_PLANS = 16  # shapes of batches


def _match(td: TensorDictBase, plan: Plan, cells: Cells) -> bool:
    for name, value in td.items():
        expected = plan.get(name)
        if type(value) is Tensor and type(expected) is tuple:
            key, dtype, shape = expected
            if (
                value.dtype is not dtype
                or value.is_nested
                or value.shape != shape
                or value.layout is not torch.strided
                or not value.is_cpu
                or value.requires_grad
            ):
                return False
            cells[key] = value
        elif type(value) is not TensorDict or type(expected) is not dict or not _match(value, expected, cells):
            return False
    return True


class Layout:
    """What every row of a storage looks like; fixed by the first batch.

    Args:
        columns: Shape and dtype of one row, by flat key.
        root: Tree of TensorDicts, or None if rows are plain tensors.

    Example:
        >>> batch = TensorDict({"a": torch.zeros(5, 3), "next": {"b": torch.ones(5)}}, batch_size=[5])
        >>> layout = Layout.of(batch)
        >>> [(key, str(column)) for key, column in layout.columns.items()]
        [('a', 'float32 [3]'), (('next', 'b'), 'float32 []')]
    """

    def __init__(self, columns: Mapping[NestedKey, Column], root: Node | None) -> None:
        self.columns = dict(columns)
        self.root = root
        self._objects = [(key, len(column.shape)) for key, column in self.columns.items() if column.dtype is None]
        self._plans: dict[torch.Size, Plan] = {}  # of `match`, by the dimensions that count rows
        self.kinds: NodeTypes = {} if root is None else dict(_kinds(root, ()))

    @classmethod
    def of(cls, data: Any, dims: int = 1) -> Layout:
        """Return the layout of a batch whose first `dims` dimensions count rows."""
        if isinstance(data, Tensor):
            return cls({TENSOR: Column(data.shape[dims:], data.dtype)}, None)
        columns: dict[NestedKey, Column] = {}
        root = _node(data, dims, (), columns)
        return cls(columns, root)

    def check(self, cells: Cells, owner: str, kinds: NodeTypes | None = None) -> int:
        """Return the number of rows in `cells`, having compared them, and `kinds` unless None, with the layout.

        Raises:
            ContractError: If a key is missing or was not there in the first batch, or a node is of another kind.
            SpecError: If a dtype differs, or one side is a tensor and the other is not.
            ShapeError: If the shape of a row differs.
        """
        if kinds is not None and kinds.get(()) != self.kinds.get(()) and TENSOR not in cells:
            self._raise_kind((), kinds, owner)
        if cells.keys() != self.columns.keys():
            self._raise_keys(cells, owner)
        if kinds is not None and kinds != self.kinds:
            places = [*self.kinds, *kinds]
            self._raise_kind(next(at for at in places if kinds.get(at) != self.kinds.get(at)), kinds, owner)
        for key, column in self.columns.items():
            cell = cells[key]
            if column.dtype is None:
                if isinstance(cell, Tensor):
                    self._raise_column(key, column, cell, owner)
            elif (
                not isinstance(cell, Tensor)
                or cell.is_nested
                or cell.dtype is not column.dtype
                or cell.shape[1:] != column.shape
            ):
                self._raise_column(key, column, cell, owner)
        return len(next(iter(cells.values()))) if cells else 0

    def fit(self, cells: Cells, kinds: NodeTypes, count: int, *, missing: bool, extra: bool) -> None:
        """Bring the entries of a batch of `count` rows to this layout, in place; `check` rejects what does not fit.

        Args:
            cells: Entries of the batch.
            kinds: Nodes of the batch that are no TensorDicts.
            count: Number of rows.
            missing: Whether to add what the batch lacks: NaN for floating-point and complex numbers, 0 or False for
                others, None for non-tensor data.
            extra: Whether to remove what the layout lacks.
        """
        lacks, more = self.columns.keys() - cells.keys(), cells.keys() - self.columns.keys()
        if len(lacks) == len(self.columns) or any(_overlap(one, two) for one in lacks for two in more):
            return  # other data, or a tensor where the layout has a node
        device = next((cell.device for cell in cells.values() if isinstance(cell, Tensor)), None)
        if missing:
            for place, kind in self.kinds.items():
                if not _under(place, cells):
                    kinds[place] = kind
        if extra:
            for key in more:
                del cells[key]
            for place in [place for place in kinds if not _under(place, self.columns)]:
                del kinds[place]
        if missing:
            for key in lacks:
                cells[key] = _filler(self.columns[key], count, device)

    def match(self, data: TensorDictBase, lead: torch.Size) -> Cells | None:
        """Entries ``[*lead, ...]`` of a batch, if they are ordinary tensors on the CPU that agree with the layout.

        Does the work of `flatten` and `check` in one pass, for the common case, and merges no dimensions; None in all
        other cases.
        """
        plan = self._plans.get(lead)
        if plan is None:
            if self.root is None or self._objects or self.kinds:
                return None
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[lead] = self._plan(self.root, lead)
        cells: Cells = {}
        return cells if _match(data, plan, cells) and len(cells) == len(self.columns) else None

    def _plan(self, node: Node, lead: torch.Size) -> Plan:
        plan: Plan = {name: self._plan(child, lead) for name, child in node.children}
        for name, key in node.columns:
            column = self.columns[key]
            plan[name] = (key, column.dtype, lead + column.shape)
        return plan

    def build(
        self,
        cells: Cells,
        lead: Sequence[int],
        device: torch.device | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Any:
        """Return the batch whose columns are `cells` ``[*lead, ...]``, of the type of the first batch.

        Lists of objects become `NonTensorStack`; with an empty `lead` the cell is the object itself. `names` are those
        of the dimensions `lead`.
        """
        if self.root is None:
            return cells[TENSOR]
        size = torch.Size(lead)
        for key, depth in self._objects:
            cells[key] = _non_tensor(cells[key], len(size) + depth)
        checks = self._objects or not (device is None or device == _CPU)
        return self.root.build(TensorDict if checks else _UNCHECKED, cells, size, device, names)

    def state(self) -> dict[str, Any]:
        """Return the layout as plain containers."""
        columns = [[key, list(c.shape), None if c.dtype is None else str(c.dtype)] for key, c in self.columns.items()]
        return {"columns": columns, "root": None if self.root is None else _node_state(self.root)}

    @property
    def classes(self) -> str:
        """Names of the classes of nodes, which a state does not tell enough of to make them again; empty if none."""
        return ", ".join(sorted({kind.name for kind in self.kinds.values() if not kind.plain}))

    @classmethod
    def from_state(cls, state: Any) -> Layout:
        """Return the layout that `state` was created from.

        Raises:
            SpecError: If it is not the state of a layout.
        """
        columns = {
            key_of(key): Column(torch.Size(shape), None if dtype is None else _dtype(dtype))
            for key, shape, dtype in state["columns"]
        }
        root = state["root"]
        layout = cls(columns, None if root is None else _node_from_state(root))
        in_tree = [TENSOR] if layout.root is None else list(_keys_below(layout.root, (), torch.Size(), columns))
        if (
            set(in_tree) != columns.keys()
            or len(in_tree) != len(columns)
            or _as_lists(layout.state()) != _as_lists(state)
        ):
            raise SpecError(f"no layout of rows: {state}")
        return layout

    def __repr__(self) -> str:
        return ", ".join(f"{key_str(key) if key else 'tensor'}: {c}" for key, c in self.columns.items())

    def _raise_keys(self, cells: Cells, owner: str) -> NoReturn:
        present, expected = list(cells), list(self.columns)
        if TENSOR in cells or TENSOR in self.columns:
            kind = self.kinds.get(())
            tree = "TensorDicts" if kind is None else f"batches of the kind {kind.short}"
            kinds = {True: "plain tensors", False: "entries with keys"}
            holds = kinds[True] if TENSOR in self.columns else tree
            raise SpecError(
                f"{owner} holds {holds}, got {kinds[TENSOR in cells]}: the first batch "
                "decides; use another buffer for the other kind"
            )
        missing = [key for key in expected if key not in cells]
        extra = [key for key in present if key not in self.columns]
        parts: list[str] = []
        if missing:
            parts.append(f"misses {', '.join(map(key_str, missing))}")
        if extra:
            parts.append(f"has {', '.join(map(key_str, extra))}, which the first batch did not have")
        close = nearest(missing[0], extra) if missing and extra else None
        hint = "" if close is None else f" ({key_str(close)} may stand for {key_str(missing[0])})"
        raise ContractError(
            f"{owner}: the batch {' and '.join(parts)}{hint}; expected the keys "
            f"{', '.join(map(key_str, expected))}; nothing was written. "
            "Bring the batch to these keys with `select`, `exclude` or `set`, or give the storage allow_missing=True or"
            " allow_extra=True"
        )

    def _raise_kind(self, place: tuple[str, ...], kinds: NodeTypes, owner: str) -> NoReturn:
        expected, got = self.kinds.get(place), kinds.get(place)
        first = "TensorDict" if expected is None else expected.short
        name = "TensorDict" if got is None else got.short
        if self.root is None:
            first = "tensor"
        elif first == name:
            name = f"{name} with other keys or fields"
        where = f"{key_str(place)} was" if place else "the first batch was"
        raise ContractError(
            f"{owner}: {where} a {first}, got a {name}; nothing was written. Convert the batch, or use a new buffer"
        )

    @staticmethod
    def _raise_column(key: NestedKey, column: Column, cell: Any, owner: str) -> NoReturn:
        name = key_str(key) if key else "the tensor"
        got: Any = "non-tensor data"
        if isinstance(cell, Tensor):
            got = "a nested tensor" if cell.is_nested else Column(cell.shape[1:], cell.dtype)
        what = f"{owner}: {name} was {column} per row in the first batch, got {got}; nothing was written. "
        remedy = "Convert the batch, or use a new buffer"
        if isinstance(cell, Tensor) and cell.dtype is column.dtype:
            raise ShapeError(what + remedy)
        raise SpecError(what + remedy)


def _node(node: Any, dims: int, prefix: tuple[str, ...], found: dict[NestedKey, Column]) -> Node:
    kind, content = (None, node) if isinstance(node, TensorDictBase) else flatten_node(node, prefix)
    has_batch = kind is None or is_tensorclass(node)
    columns: list[tuple[str, NestedKey]] = []
    children: list[tuple[str, Node]] = []
    tail = torch.Size(node.batch_size[dims:] if has_batch else ())
    value: Any  # an entry may be any collection, not only the kinds that tensordict's types name
    for name, value in content.items():
        key = (*prefix, name) if prefix else name
        if isinstance(value, Tensor):
            found[key] = Column(value.shape[dims:], value.dtype)
            columns.append((name, key))
        elif is_non_tensor(value):
            found[key] = Column(tail, None)
            columns.append((name, key))
        else:
            children.append((name, _node(value, dims, (*prefix, name), found)))
    names: tuple[str | None, ...] = tuple(node.names)[dims:] if has_batch else ()
    return Node(tail, names if any(names) else None, tuple(columns), tuple(children), kind)


def _under(place: tuple[str, ...], keys: Iterable[NestedKey]) -> bool:
    """Return whether a key is at this path or below."""
    return any(as_tuple(key)[: len(place)] == place for key in keys)


def _overlap(one: NestedKey, two: NestedKey) -> bool:
    """Return whether one key begins with the other."""
    return all(a == b for a, b in zip(as_tuple(one), as_tuple(two), strict=False))


def _filler(column: Column, count: int, device: torch.device | None) -> Any:
    """Values of an entry that a batch of `count` rows lacks."""
    shape, dtype = (count, *column.shape), column.dtype
    if dtype is None:
        values: Any = None
        for size in reversed(shape):
            values = [values] * size
        return values
    value = math.nan if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full(shape, value, dtype=dtype, device=device)


def _kinds(node: Node, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], NodeType]]:
    if node.kind is not None:
        yield prefix, node.kind
    for name, child in node.children:
        yield from _kinds(child, (*prefix, name))


def _non_tensor(value: Any, depth: int) -> Any:
    """`value`, lists nested `depth` deep, as the non-tensor entry of a TensorDict."""
    if depth == 0:
        return NonTensorData(value)
    return NonTensorStack(*[_non_tensor(item, depth - 1) for item in value])


def _node_state(node: Node) -> dict[str, Any]:
    kind = {} if node.kind is None else {"kind": node.kind.state()}
    return {
        **kind,
        "tail": list(node.tail),
        "names": None if node.names is None else list(node.names),
        "columns": [[name, key] for name, key in node.columns],
        "children": [[name, _node_state(child)] for name, child in node.children],
    }


def _node_from_state(state: Mapping[str, Any]) -> Node:
    return Node(
        tail=torch.Size(state["tail"]),
        names=None if state["names"] is None else tuple(state["names"]),
        columns=tuple((name, key_of(key)) for name, key in state["columns"]),
        children=tuple((name, _node_from_state(child)) for name, child in state["children"]),
        kind=NodeType.from_state(state.get("kind")),
    )


def _keys_below(
    node: Node, prefix: tuple[str, ...], batch: torch.Size, columns: Mapping[NestedKey, Column]
) -> Iterator[NestedKey]:
    """Keys of all columns of a tree.

    Raises:
        SpecError: If shapes or names do not fit the tree.
    """
    tail = node.tail
    if min(tail, default=0) < 0 or tail[: len(batch)] != batch or len(node.names or tail) != len(tail):
        raise SpecError(f"a TensorDict with the batch {list(tail)}, named {node.names}, in one of {list(batch)}")
    for name, key in node.columns:
        column = columns[key]
        whole = column.shape == tail if column.dtype is None else column.shape[: len(tail)] == tail
        if not whole or as_tuple(key) != (*prefix, name):
            raise SpecError(f"a column {key_str(key)} {list(column.shape)} in a TensorDict with the batch {list(tail)}")
        yield key
    if len(dict(node.children)) != len(node.children):
        raise SpecError(f"TensorDicts of one name: {[name for name, _ in node.children]}")
    for name, child in node.children:
        yield from _keys_below(child, (*prefix, name), tail, columns)


def _as_lists(value: Any) -> Any:
    """`value` with lists for tuples, so that states of other formats compare equal."""
    if isinstance(value, Mapping):
        return {key: _as_lists(item) for key, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def key_of(key: Any) -> Any:
    """Return a nested key of a state, whose tuples may have become lists."""
    return tuple(key) if isinstance(key, list) else key


def _dtype(name: str) -> torch.dtype:
    value = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(value, torch.dtype):
        raise SpecError(f"the stored layout names {name!r}, which is no dtype of this torch")
    return value
