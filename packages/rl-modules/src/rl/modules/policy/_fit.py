"""Checks that a network, a distribution and an action spec fit together."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from tensordict.nn import CompositeDistribution, TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl.core import specs
from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, unwrap
from rl.core.specs import Bounded, Composite, TensorSpec
from rl.modules._keys import key_list, parts
from rl.modules.distributions._base import NormalParamExtractor
from rl.modules.distributions._bounded import TanhDelta, TanhNormal, TruncatedNormal
from rl.modules.distributions._discrete import Categorical, OneHotCategorical
from rl.modules.distributions._normal import IndependentNormal
from rl.modules.nets._heads import NormalHead

_SPACES: dict[type[TensorSpec], str] = {
    specs.OneHot: "one-hot",
    specs.Categorical: "categorical",
    specs.MultiOneHot: "multi-one-hot",
    specs.MultiCategorical: "multi-categorical",
}
_BOUNDED = (TanhNormal, TruncatedNormal, TanhDelta)
_ALIASES = {"mult-one-hot": "multi-one-hot"}
_KEEPS_WIDTH = (nn.Tanh, nn.ReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Identity, nn.Dropout, nn.LayerNorm)


def action_leaf(spec: TensorSpec | None, key: NestedKey, owner: str) -> TensorSpec | None:
    """Return the spec of the action, which may be an entry of a composite.

    Raises:
        ArgumentError: if it is no spec.
        SpecError: if a composite has no entry under `key`.
    """
    if spec is not None and not isinstance(spec, TensorSpec):
        raise ArgumentError(f"{owner} needs the spec of the action, got {spec!r:.50}: pass env.action_spec")
    if not isinstance(spec, Composite):
        return spec
    leaf = spec.get(key, None)
    if leaf is None:
        raise SpecError(f"{owner} writes {key_str(key)}, of which the spec has no entry (entries: {leaf_keys(spec)})")
    return leaf


def spec_by_key(spec: TensorSpec | None, key: NestedKey) -> Composite | None:
    """Return the spec of what a module writes, as a composite by key."""
    return spec if spec is None or isinstance(spec, Composite) else Composite({key: spec})


def action_space(space: str | TensorSpec | None) -> str | None:
    """Return the name of the discrete action space of a spec, or for an older name; None if it is not discrete.

    Raises:
        ArgumentError: if a name is unknown, or it is neither a name nor a spec.

    Example:
        >>> from rl.core.specs import OneHot
        >>> action_space(OneHot(3)), action_space("mult_one_hot")
        ('one-hot', 'multi-one-hot')
    """
    if space is None:
        return None
    if isinstance(space, str):
        name = space.replace("_", "-")
        name = _ALIASES.get(name, name)
        if name not in _SPACES.values():
            raise ArgumentError(f"no action space is called {space!r}: use one of {sorted(_SPACES.values())}")
        return name
    if not isinstance(space, TensorSpec):
        raise ArgumentError(f"an action space is a spec or one of {sorted(_SPACES.values())}, got {space!r:.50}")
    return next((name for kind, name in _SPACES.items() if isinstance(space, kind)), None)


def group_sizes(spec: specs.MultiOneHot | specs.MultiCategorical) -> list[int]:
    """Numbers of actions of each choice in a spec with several.

    Raises:
        SpecError: if the choices are not in one row.
    """
    if spec.nvec.ndim != 1:
        raise SpecError(f"expected nvec as a list of numbers, got {spec.nvec.tolist()}: flatten the action")
    return [int(n) for n in spec.nvec]


def action_shape(spec: TensorSpec | None) -> tuple[int, ...] | None:
    """Shape of one action, without batch dimensions; None without a spec."""
    if spec is None or isinstance(spec, Composite):
        return None
    return () if action_space(spec) == "categorical" else tuple(spec.shape[-1:])


def num_values(spec: TensorSpec) -> int | None:
    """How many outputs of a network stand for one action of a discrete spec."""
    if isinstance(spec, specs.MultiOneHot | specs.MultiCategorical):
        return sum(group_sizes(spec))
    return spec.n if isinstance(spec, specs.OneHot | specs.Categorical) else None


def output_width(module: Any, key: NestedKey | None = None) -> int | None:
    """Size of the last dimension of a module's output, or None if its layers do not show it."""
    if isinstance(module, TensorDictSequential):
        writers = [part for part in parts(module) if key in key_list(part.out_keys)]
        return output_width(writers[-1], key) if writers else None
    if isinstance(module, TensorDictModule):
        return output_width(module.module)
    own = getattr(module, "out_features", None)
    if own is not None:
        return as_integer(own[-1] if isinstance(own, Sequence) else own, type(module).__name__, "out_features")
    if not isinstance(module, nn.Sequential) or isinstance(module, NormalHead):
        return None
    divisor = 1
    for layer in reversed(list(module.children())):
        if isinstance(layer, NormalParamExtractor):
            divisor *= 2
        elif not isinstance(layer, _KEEPS_WIDTH):
            width = output_width(layer)
            return width if width is None else width // divisor
    return None


def check_width(owner: str, module: Any, key: NestedKey, expected: int | None) -> None:
    """Reject a module whose output visibly has another width than expected.

    Raises:
        ShapeError: if so.
    """
    width = output_width(module, key)
    if expected is not None and width is not None and width != expected:
        raise ShapeError(
            f"{owner}: the module writes {key_str(key)} with {width} entries, its spec needs {expected}:"
            " change the width of the last layer"
        )


def check_params(owner: str, distribution: Any, names: Sequence[str], kwargs: Mapping[str, Any]) -> None:
    """Reject parameters that the distribution does not take.

    Raises:
        ArgumentError: if the distribution is a spec.
        ContractError: if a name is unknown to its constructor, or a required one is missing.
    """
    if not isinstance(distribution, type):
        return
    if issubclass(distribution, TensorSpec):
        raise ArgumentError(f"{owner}: {distribution.__name__} of rl.core is a spec; the distribution is in rl.modules")
    parameters = inspect.signature(distribution).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = [name for name in (*names, *kwargs) if name not in parameters]
    given = {*names, *kwargs}
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    missing = [name for name in needed if name not in given]
    if unknown or missing:
        raise ContractError(
            f"{owner}: {distribution.__name__} takes {list(parameters)}, got in_keys {list(names)}"
            f" and distribution_kwargs {list(kwargs)}"
            + (f"; unknown: {unknown}" if unknown else f"; missing: {missing}")
            + ": name the module's out_keys after the parameters, or map them with in_keys={parameter: key}"
        )


def distribution_kwargs(
    owner: str, distribution: Any, kwargs: Mapping[str, Any] | None, spec: TensorSpec | None
) -> dict[str, Any]:
    """Complete the keyword arguments of a distribution from the spec: bounds, and the dtype of one-hot vectors.

    Raises:
        SpecError: if distribution and spec contradict each other.
    """
    full = dict(kwargs or {})
    if spec is None or not isinstance(distribution, type):
        return full
    if issubclass(distribution, CompositeDistribution):
        return _composite_kwargs(owner, full, spec)
    one_hot, categorical = issubclass(distribution, OneHotCategorical), issubclass(distribution, Categorical)
    space = action_space(spec)
    if one_hot:
        _match(owner, distribution, "one-hot vectors", spec, fits=space == "one-hot")
        full.setdefault("dtype", spec.dtype)
    elif categorical:
        _match(owner, distribution, "integers", spec, fits=space == "categorical")
    elif issubclass(distribution, (*_BOUNDED, IndependentNormal)):
        _match(owner, distribution, "real vectors", spec, fits=space is None)
    if issubclass(distribution, _BOUNDED) and isinstance(spec, Bounded):
        low, high = bounds(spec, owner)
        full.setdefault("low", low)
        full.setdefault("high", high)
    return full


def _composite_kwargs(owner: str, kwargs: dict[str, Any], spec: TensorSpec) -> dict[str, Any]:
    """Complete the arguments of the parts of a `CompositeDistribution` from the specs of their samples."""
    extra = dict(kwargs.get("extra_kwargs") or {})
    for name, key in places_of_parts(kwargs).items():
        distribution = kwargs["distribution_map"][name]
        leaf = spec.get(key, None) if isinstance(spec, Composite) else None
        completed = distribution_kwargs(owner, distribution, extra.get(name), leaf)
        if completed:
            extra[name] = completed
    return {**kwargs, "extra_kwargs": extra} if extra else kwargs


def places_of_parts(kwargs: Mapping[str, Any]) -> dict[Any, NestedKey]:
    """Return the key of the sample of each part of a `CompositeDistribution`, by the part's name."""
    places: Mapping[Any, Any] = kwargs.get("name_map") or {}
    return {name: unwrap(places.get(name, name)) for name in kwargs.get("distribution_map", {})}


def _match(owner: str, distribution: type, draws: str, spec: TensorSpec, *, fits: bool) -> None:
    if not fits:
        raise SpecError(
            f"{owner}: {distribution.__name__} draws {draws}, the spec is {spec}: use OneHotCategorical for one-hot"
            " actions, Categorical for integer ones, TanhNormal or IndependentNormal for continuous ones"
        )


def bounds(spec: Bounded, owner: str) -> tuple[float | Tensor, float | Tensor]:
    """Return the bounds of a spec: numbers if they are the same everywhere, else a vector each for all elements.

    Raises:
        SpecError: if an end is infinite.
    """
    low, high = spec.low.detach(), spec.high.detach()
    if not bool(low.isfinite().all() & high.isfinite().all()):
        raise SpecError(
            f"{owner}: finite bounds are needed, the spec has {spec}: use IndependentNormal for unbounded actions"
        )
    rows = [end.reshape(-1, end.shape[-1]) if end.ndim else end.reshape(1, 1) for end in (low, high)]
    if all(bool((row == row[0, 0]).all()) for row in rows):
        return float(rows[0][0, 0]), float(rows[1][0, 0])
    if all(bool((row == row[0]).all()) for row in rows):
        return rows[0][0].clone(), rows[1][0].clone()
    return low.clone(), high.clone()


def expected_width(distribution: Any, spec: TensorSpec | None) -> int | None:
    """Size of the last dimension of the distribution's parameters, where the spec tells."""
    if spec is None or not isinstance(distribution, type):
        return None
    if issubclass(distribution, Categorical):
        return num_values(spec)
    own = issubclass(distribution, (OneHotCategorical, IndependentNormal, *_BOUNDED))
    if not own and num_values(spec) is not None:
        return None  # how many numbers another distribution needs for a choice is unknown
    return spec.shape[-1] if len(spec.shape) else None


def missing_params(owner: str, module: Any, keys: Sequence[NestedKey]) -> None:
    """Reject distribution parameters that the module does not write, unless it is read from elsewhere.

    Raises:
        ContractError: if none of `keys` is among the module's ``out_keys``.
    """
    written = key_list(module.out_keys)
    if not any(unwrap(key) in written or is_group(key, written) for key in keys):
        raise ContractError(
            f"{owner} builds its distribution from {[key_str(key) for key in keys]}, the module writes"
            f" {[key_str(key) for key in written]}: give the module these out_keys, or name its own in in_keys"
        )


def is_group(key: NestedKey, leaves: Sequence[NestedKey]) -> bool:
    """Whether a key names a group of the leaves, such as ``"params"`` that of ``("params", "loc")``."""
    group = as_tuple(key)
    return any(as_tuple(leaf)[: len(group)] == group and leaf != unwrap(key) for leaf in leaves)


def last_names(keys: Sequence[NestedKey]) -> list[str]:
    """Return the parameter that each key stands for: its last part."""
    return [as_tuple(key)[-1] for key in keys]
