"""Multi-layer perceptron."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number, constructor_setting, foreign_arguments
from rl.core.errors import ArgumentError, ShapeError
from rl.core.policy_program import ProgramBuilder, Register
from rl.core.tensor_functions import run_layers
from rl.modules.layers import NoisyLazyLinear, NoisyLinear, StackedLinear

Options = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


def is_list(value: Any) -> bool:
    """Whether an argument holds one entry per layer: a sequence, or an array or tensor with a dimension."""
    return bool(getattr(value, "shape", ())) or (isinstance(value, Sequence) and not isinstance(value, str))


def make_activation(owner: str, activation_class: Any, kwargs: Mapping[str, Any] | None) -> nn.Module:
    """Create an activation.

    Args:
        owner: Network that messages name.
        activation_class: Class of modules, or a function that builds one.
        kwargs: Arguments of the class.

    Raises:
        ArgumentError: If it creates no module, such as an activation in place of its class.
    """
    module = isinstance(activation_class, nn.Module)
    try:
        found = None if module else activation_class(**(kwargs or {}))
    except TypeError as error:
        raise ArgumentError(
            f"{owner}: activation_class cannot be created with {dict(kwargs or {})} ({error})"
        ) from error
    if not isinstance(found, nn.Module):
        raise ArgumentError(
            f"{owner}: activation_class must be a class of modules such as torch.nn.Tanh, got {activation_class!r:.100}"
        )
    return found


def make_norm(
    owner: str, norm_class: Any, kwargs: Mapping[str, Any] | None, width: int, device: torch.device | str | None
) -> nn.Module:
    """Create a normalization layer.

    The width goes to the one required argument of the class that `kwargs` leaves out: ``num_features`` of a batch
    norm, ``normalized_shape`` of a layer norm, ``num_channels`` of a group norm; a lazy class has none.

    Args:
        owner: Network that messages name.
        norm_class: Class of modules, or a function that builds one.
        kwargs: Other arguments of the class.
        width: Number of features or channels.
        device: Device of its parameters.

    Raises:
        ArgumentError: if more than one required argument is left out.
    """
    given = dict(kwargs or {})
    named = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = inspect.signature(norm_class).parameters.values()
    except TypeError as error:
        raise ArgumentError(f"{owner}: norm_class must be a class of modules, got {norm_class!r:.100}") from error
    needed = [p for p in parameters if p.default is p.empty and p.kind not in named and p.name not in given]
    if len(needed) > 1:
        name = getattr(norm_class, "__name__", norm_class)
        raise ArgumentError(
            f"{owner}: {name} needs {[p.name for p in needed]}, of which only one can be the width:"
            " pass the others in norm_kwargs"
        )
    if needed and needed[0].kind is inspect.Parameter.POSITIONAL_ONLY:
        return norm_class(width, **given).to(device)
    return norm_class(**{p.name: width for p in needed}, **given).to(device)


def per_layer(owner: str, name: str, given: Options, count: int) -> list[dict[str, Any]]:
    """Further arguments of each of `count` layers, of one mapping for all or a list with one for each.

    Raises:
        ArgumentError: if there is a list of another length.
    """
    if given is None or isinstance(given, Mapping):
        return [dict(given or {})] * count
    if len(given) != count:
        raise ArgumentError(f"{owner} got {len(given)} {name} for {count} layers: pass one mapping, or one for each")
    return [dict(one or {}) for one in given]


def with_defaults(
    defaults: Mapping[str, Any], given: Mapping[str, Any] | None, device: torch.device | str | None
) -> dict[str, Any]:
    """Return the arguments of a part of a network: those that were given, defaults for the others.

    A list of widths makes the default depth void.
    """
    merged = {"device": device, **defaults, **(given or {})}
    if given is not None and "depth" not in given and is_list(given.get("num_cells")):
        merged.pop("depth", None)
    return merged


Maker = Any  # a class of modules, called with arguments that differ from class to class
_LAZY: dict[Maker, Maker] = {nn.Linear: nn.LazyLinear, NoisyLinear: NoisyLazyLinear}


@foreign_arguments()
class MLP(nn.Sequential):
    """Linear layers with activations between them.

    Args:
        in_features: Width of the input; found out at the first call if None.
        out_features: Width of the output, or its shape; the last of `num_cells` if None.
        num_cells: Widths of the hidden layers, or one width for all `depth` of them.
        depth: Number of hidden layers; 3 if neither it nor a list of `num_cells` is given.
        activation_class: Class of the activations between layers.
        activation_kwargs: Arguments of the activations; a list has those of each.
        activate_last_layer: Whether normalization, activation and dropout come after the last layer too.
        norm_class: Class of the normalization before each activation; none if None. The one required argument that
            `norm_kwargs` leaves out is the layer's width; a lazy class has none.
        norm_kwargs: Further arguments of the normalization layers; a list has those of each.
        dropout: Probability of dropping a hidden feature.
        bias_last_layer: Whether the last layer has a bias.
        layer_class: Class of the layers, called like `torch.nn.Linear`.
        layer_kwargs: Further arguments of the layers; a list has those of each.
        device: Device of the parameters.

    Shapes: ``[*B, in_features]`` to ``[*B, out_features]``; several inputs are concatenated on the last dimension.

    Raises:
        ArgumentError: if arguments contradict each other or are out of range.

    Example:
        >>> MLP(64, 10, num_cells=[128, 128])(torch.zeros(4, 64)).shape
        torch.Size([4, 10])
        >>> MLP(out_features=(2, 3), depth=1)(torch.zeros(5), torch.zeros(2)).shape
        torch.Size([2, 3])
    """

    row_wise = True
    """Rows of a batch do not see each other, unless a layer lets them: a loss may pass a batch in parts."""

    def __init__(  # noqa: PLR0913  the names that users of TorchRL know
        self,
        in_features: int | None = None,
        out_features: int | Sequence[int] | None = None,
        num_cells: int | Sequence[int] | None = None,
        depth: int | None = None,
        activation_class: Maker = nn.Tanh,
        activation_kwargs: Options = None,
        *,
        activate_last_layer: bool = False,
        norm_class: Maker | None = None,
        norm_kwargs: Options = None,
        dropout: float | None = None,
        bias_last_layer: bool = True,
        layer_class: Maker = nn.Linear,
        layer_kwargs: Options = None,
        device: torch.device | str | None = None,
    ) -> None:
        if in_features is not None:
            in_features = as_integer(in_features, "MLP", "in_features", least=0)
        hidden = _widths(num_cells, depth)
        if out_features is None:
            if not hidden:
                raise ArgumentError("MLP needs out_features or at least one hidden layer")
            out_features = hidden.pop()
        shape, width_last = _output(out_features)
        out_features = width_last if shape is None else shape
        lazy = _LAZY.get(layer_class, getattr(layer_class, "lazy", None))
        if in_features is None and lazy is None:
            raise ArgumentError(
                f"MLP finds out in_features for {' and '.join(one.__name__ for one in _LAZY)} only:"
                f" pass it for {layer_class.__name__}"
            )
        widths: list[Any] = [in_features, *hidden, width_last]
        layers: list[nn.Module] = []
        count = len(widths) - 1
        options = per_layer("MLP", "layer_kwargs", layer_kwargs, count)
        active = count if activate_last_layer else count - 1
        norms = per_layer("MLP", "norm_kwargs", norm_kwargs, active)
        activations = per_layer("MLP", "activation_kwargs", activation_kwargs, active)
        for place, (width_in, width_out) in enumerate(pairwise(widths)):
            last = place == count - 1
            kwargs: dict[str, Any] = {"device": device, **options[place]}
            if last and not bias_last_layer:
                kwargs["bias"] = False
            layers.append(
                lazy(width_out, **kwargs)
                if width_in is None and lazy is not None
                else layer_class(width_in, width_out, **kwargs)
            )
            if last and not activate_last_layer:
                continue
            if norm_class is not None:
                layers.append(make_norm("MLP", norm_class, norms[place], width_out, device))
            layers.append(make_activation("MLP", activation_class, activations[place]))
            if dropout is not None:
                layers.append(nn.Dropout(as_number(dropout, "MLP", "dropout", least=0, most=1)))
        super().__init__(*layers)
        self._in_features, self._out_features = in_features, out_features
        self._out_shape = shape

    in_features: int | None = constructor_setting("_in_features")
    """Width of the input; None if it is found out at the first call."""
    out_features: int | Sequence[int] = constructor_setting("_out_features")
    """Width of the output, or its shape."""

    def forward(self, *inputs: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # takes several
        """Concatenate the inputs and run the layers.

        Raises:
            ShapeError: if there is no input, or its width is not `in_features`, or its dtype not that of the weights.
        """
        if not inputs:
            raise ShapeError("MLP got no input")
        x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)
        if self._in_features is not None and x.shape[-1] != self._in_features:
            shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
            raise ShapeError(f"MLP was created for in_features={self._in_features}, got inputs of shape {shapes}")
        first = next(iter(self._modules.values()), None)
        weight = getattr(first, "weight", None) if type(first) is nn.Linear else None
        if weight is not None and x.dtype is not weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ShapeError(
                f"MLP got inputs of {x.dtype}, and its weights are {weight.dtype}: convert observations and one-hot"
                f" integers with DTypeCastTransform, or .to({weight.dtype})"
            )
        x = run_layers(self, x)
        return x if self._out_shape is None else x.unflatten(-1, self._out_shape)

    def describe(self, builder: ProgramBuilder, *inputs: Register) -> tuple[Register, ...]:
        """Append the layers to a program; see `rl.core.policy_program`."""
        if len(inputs) != 1 or len(self._out_shape or (0,)) != 1:
            builder.reject("MLP reads several inputs, or writes several dimensions")
        for layer in self:
            inputs = builder.network(layer, *inputs)
        return inputs

    def __getitem__(self, index: int | slice) -> Any:
        """One layer, or some of them as a plain `torch.nn.Sequential`."""
        layers = list(self)
        return nn.Sequential(*layers[index]) if isinstance(index, slice) else layers[index]


def _widths(num_cells: int | Sequence[int] | None, depth: int | None) -> list[int]:
    if depth is not None:
        depth = as_integer(depth, "MLP", "depth", least=0)
    if num_cells is None or not is_list(num_cells):
        width = 32 if num_cells is None else as_integer(num_cells, "MLP", "num_cells", least=0)
        return [width] * (3 if depth is None else depth)
    widths = [as_integer(width, "MLP", "an entry of num_cells", least=0) for width in num_cells]  # pyright: ignore[reportGeneralTypeIssues]  # a list
    if depth is not None and depth != len(widths):
        raise ArgumentError(f"MLP got depth={depth} and {len(widths)} num_cells: leave one of them out")
    return widths


def _output(out_features: int | Sequence[int]) -> tuple[tuple[int, ...] | None, int]:
    """Return the shape that the last dimension is unflattened to, if any, and its width."""
    if not is_list(out_features):
        return None, as_integer(out_features, "MLP", "out_features", least=0)
    sizes: Any = out_features
    shape = tuple(as_integer(size, "MLP", "an entry of out_features", least=0) for size in sizes)
    if not shape:
        raise ArgumentError("MLP got out_features=(); it is a width, or a shape with at least one dimension")
    return shape, math.prod(shape)


Net = TypeVar("Net", bound=nn.Module)


def orthogonal_init(module: Net, gain: float = math.sqrt(2), last_gain: float | None = None) -> Net:
    """Set the weights of linear and convolutional layers orthogonal and their biases zero, in place.

    Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks", 2014. For
    policy gradients, a hidden gain of sqrt(2), 0.01 in the policy's last layer and 1 in the critic's are customary.

    Args:
        module: Network; lazy layers must have seen an input.
        gain: Scale of the weights.
        last_gain: Scale of the weights of the last layer in order of registration; `gain` if None.

    Returns:
        `module` itself.

    Raises:
        ArgumentError: if a layer is lazy and has not seen an input.

    Example:
        >>> import torch
        >>> net = orthogonal_init(nn.Linear(4, 4), gain=2.0)
        >>> torch.allclose((net.weight @ net.weight.T).diag(), torch.full((4,), 4.0))
        True
    """
    layers = [m for m in module.modules() if isinstance(m, (nn.Linear, StackedLinear, nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    for layer in layers:
        if nn.parameter.is_lazy(layer.weight):
            raise ArgumentError(f"orthogonal_init: {layer} does not know its width yet; call the network once before")
    for place, layer in enumerate(layers):
        last = last_gain is not None and place == len(layers) - 1
        for weight in layer.weight if isinstance(layer, StackedLinear) else [layer.weight]:
            nn.init.orthogonal_(weight, last_gain if last and last_gain is not None else gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module
