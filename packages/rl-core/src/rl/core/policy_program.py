"""Policies as lists of operations, which a back end computes in one call.

A lowered policy (`rl.core.tensor_functions`) is a function that hides its layers. A *program* lists them: dense and
recurrent layers, activations, the head, exploration. `describe_policy` writes it, a back end behind the hook
``rl_policy_step`` computes it, and `rl.core.backends.policy_step` returns that back end, or raises with the reason why
there is none.

A class takes part with a method ``describe(builder, *inputs)``: its inputs and outputs are `Register`, in the order of
its arguments, of a TensorDict module in the order of ``in_keys`` and ``out_keys``. The layers of `torch.nn` and the
modules of `tensordict.nn` are known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl.core.errors import UnsupportedError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.tensor_functions import as_function, unhooked

__all__ = ["Operation", "PolicyProgram", "ProgramBuilder", "Register", "describe_policy", "reader"]


@dataclass(eq=False)
class Register:
    """A value of a program: rows ``[*B, width]``, or ``[*B]`` if the width is 0.

    Args:
        width: Number of columns; None until an operation that reads it says so.
        dtype: Dtype of the rows.
        shape: Shape of a row, if that is not ``[width]``.
    """

    width: int | None = None
    dtype: torch.dtype = torch.float32
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Operation:
    """One operation of a program.

    Args:
        name: Name of the operation; `ProgramBuilder` lists them.
        reads: Registers that are read; None for an absent one.
        writes: Registers that are written, each for the first time; None for one that is not wanted.
        tensors: Functions that return parameters, which have to outlive the call; they are called at every step, so
            that changes are seen.
        settings: Numbers and switches.
    """

    name: str
    reads: tuple[Register | None, ...]
    writes: tuple[Register | None, ...]
    tensors: tuple[Callable[[], Tensor | None], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class PolicyProgram:
    """A policy as a list of operations.

    Args:
        operations: Operations in the order in which they run.
        inputs: Register of each key that is read.
        outputs: Register of each key that is written; two keys may have the same.
    """

    operations: tuple[Operation, ...]
    inputs: dict[NestedKey, Register]
    outputs: dict[NestedKey, Register]


class ProgramBuilder:
    """List of operations that grows while a policy is described.

    ================== ============================= ======================== ==========================================
    operation          reads                         writes                   tensors; settings
    ================== ============================= ======================== ==========================================
    ``linear``         x                             y                        weight, bias
    ``tanh`` ...       x                             y                        ``relu``, ``sigmoid``, ``silu``, ``elu``,
                                                                              ``leaky_relu``, ``gelu``; ``value``
    ``layer_norm``     x                             y                        weight, bias; ``eps``
    ``lstm``, ``gru``  x, h, (c,) is_init            y, next h(, next c)      weights of all layers; ``units``,
                                                                              ``layers``
    ``split``          x                             both halves
    ``scale``          x                             scale                    ``mapping``; ``shift``, ``plus``, ``low``,
                                                                              ``high``
    ``own_scale``                                    scale                    logarithm of the scale; ``low``, ``high``
    ``bound``          x                             tanh(x) half + middle    half, middle
    ``categorical``    logits, mask                  action, log-probability  ``one_hot``
    ``normal``         loc, scale                    action, log-probability
    ``tanh_normal``    loc, scale                    action, log-probability  low, high
    ``best``           values, mask                  action, value, values    ``one_hot``
    ``epsilon_greedy`` action, mask                  action                   epsilon; ``one_hot``
    ``noise``          action                        action                   sigma, low, high
    ================== ============================= ======================== ==========================================

    ``categorical``, ``normal`` and ``tanh_normal`` also have the setting ``how``, the interaction type where none is
    set. The mappings of ``scale`` are ``softplus(x + shift) + plus`` and ``x``, at least ``low``, under the names
    ``softplus`` and ``relu``, and the exponential of ``x + shift`` clamped to ``low`` and ``high``, ``exp``.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(
        self,
        name: str,
        reads: Sequence[Register | None],
        writes: Sequence[Register | None],
        tensors: Sequence[Callable[[], Tensor | None]] = (),
        **settings: Any,
    ) -> None:
        """Append an operation."""
        self.operations.append(Operation(name, tuple(reads), tuple(writes), tuple(tensors), settings))

    def expect(self, register: Register, width: int, what: str) -> None:
        """Set the width of a register, or compare it.

        Raises:
            UnsupportedError: If it has another one.
        """
        if register.width is None:
            register.width = width
        if register.width != width:
            self.reject(f"{what} reads {width} columns of {register.width}")

    def row(self, tensor: Tensor, width: int) -> Tensor:
        """Return the float32 vector of `width` numbers that `tensor` holds for each element of a batch.

        Raises:
            UnsupportedError: If elements differ, or it is not float32.
        """
        flat = tensor.detach().expand(width) if tensor.ndim == 0 else tensor.detach().reshape(-1, tensor.shape[-1])
        if tensor.ndim and (flat.shape[-1] != width or bool((flat != flat[:1]).any())):
            self.reject(f"bounds {list(tensor.shape)} are not the same for each element")
        if tensor.dtype not in (torch.float32, torch.int64):
            self.reject(f"bounds are {tensor.dtype}")
        return (flat if tensor.ndim == 0 else flat[0]).to(torch.float32).contiguous()

    def reject(self, reason: str) -> None:
        """Raise the reason why a policy cannot be described.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(reason)

    def network(self, module: Any, *inputs: Register) -> tuple[Register, ...]:
        """Describe a network of tensors.

        Args:
            module: Network: a layer of `torch.nn`, a `torch.nn.Sequential`, or a module with a method ``describe``.
            inputs: Its arguments.

        Raises:
            UnsupportedError: If it is not known.
        """
        kind = type(module)
        if not unhooked(module):
            self.reject(f"{kind.__name__} has hooks, is compiled, or has a forward of its own")
        if callable(getattr(kind, "describe", None)):
            return module.describe(self, *inputs)
        if kind.__dict__.get("forward", kind.forward if isinstance(module, nn.Module) else None) is None:
            self.reject(f"{getattr(module, '__name__', kind.__name__)} is a function")
        if getattr(kind, "forward", None) is nn.Sequential.forward:
            layers: Any = module  # not its children, which lack the second of two equal layers
            for layer in layers:
                inputs = self.network(layer, *inputs)
            return inputs
        if len(inputs) == 1 and kind in _LAYERS:
            return (_LAYERS[kind](self, module, inputs[0]),)
        self.reject(f"{kind.__name__} is no known layer")
        raise AssertionError

    def layer(
        self, name: str, x: Register, tensors: Sequence[Callable[[], Tensor | None]] = (), **settings: Any
    ) -> Register:
        """Append an operation that maps a register to another one of the same width, and return that."""
        y = Register(x.width)
        self.add(name, [x], [y], tensors, **settings)
        return y

    def keyed(self, module: Any, known: dict[NestedKey, Register]) -> None:
        """Describe a TensorDict module.

        Args:
            module: Module with ``in_keys`` and ``out_keys``.
            known: Registers by key, which the outputs are added to; a key that is absent is an input of the program.

        Raises:
            UnsupportedError: If it is not known.
        """
        name = type(module).__name__
        if as_function(module) is None:
            self.reject(f"{name} has no lowered form: it has hooks, was compiled, or has a forward of its own")
        if callable(getattr(type(module), "describe", None)):
            found = module.describe(self, *[_register(known, key) for key in module.in_keys])
        elif isinstance(module, TensorDictSequential | ProbabilisticTensorDictSequential):
            inner = module.module
            for part in inner.values() if isinstance(inner, nn.ModuleDict) else inner:
                self.keyed(part, known)
            return
        elif isinstance(module, TensorDictModule) and type(module).forward is TensorDictModule.forward:
            if getattr(module, "_kwargs", None) is not None:
                self.reject(f"{name} passes its inputs by name")
            found = self.network(module.module, *[_register(known, key) for key in module.in_keys])
        else:
            self.reject(f"{name} is no known module")
            raise AssertionError
        keys = [unwrap(key) for key in module.out_keys]
        if len(found) != len(keys):
            self.reject(f"{name} writes {len(keys)} entries, and {len(found)} are described")
        known.update(zip(keys, found, strict=True))


def _register(known: dict[NestedKey, Register], key: Any) -> Register:
    return known.setdefault(unwrap(key), Register())


def reader(module: nn.Module, name: str) -> Callable[[], Tensor | None]:
    """Return a function that reads a parameter or buffer of a module, whichever tensor that is then."""
    own = module.__dict__["_parameters"] if name in module.__dict__["_parameters"] else module.__dict__["_buffers"]
    return lambda: own[name]


def _linear(builder: ProgramBuilder, layer: Any, x: Register) -> Register:
    builder.expect(x, layer.in_features, "Linear")
    y = Register(layer.out_features)
    builder.add("linear", [x], [y], [reader(layer, "weight"), reader(layer, "bias")])
    return y


def _layer_norm(builder: ProgramBuilder, layer: Any, x: Register) -> Register:
    if len(layer.normalized_shape) != 1:
        builder.reject("LayerNorm normalizes several dimensions")
    builder.expect(x, layer.normalized_shape[0], "LayerNorm")
    return builder.layer("layer_norm", x, [reader(layer, "weight"), reader(layer, "bias")], eps=layer.eps)


def _elementwise(name: str, setting: str | None = None) -> Callable[[ProgramBuilder, Any, Register], Register]:
    def describe(builder: ProgramBuilder, layer: Any, x: Register) -> Register:
        if x.width is None:
            builder.reject(f"{type(layer).__name__} comes before any layer of known width")
        return builder.layer(name, x, value=0.0 if setting is None else float(getattr(layer, setting)))

    return describe


def _gelu(builder: ProgramBuilder, layer: Any, x: Register) -> Register:
    return builder.layer("gelu" if layer.approximate == "none" else "gelu_tanh", x)


_LAYERS: dict[Any, Callable[[ProgramBuilder, Any, Register], Register]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Tanh: _elementwise("tanh"),
    nn.ReLU: _elementwise("relu"),
    nn.Sigmoid: _elementwise("sigmoid"),
    nn.SiLU: _elementwise("silu"),
    nn.ELU: _elementwise("elu", "alpha"),
    nn.LeakyReLU: _elementwise("leaky_relu", "negative_slope"),
    nn.GELU: _gelu,
    nn.Identity: lambda _builder, _layer, x: x,
}


def describe_policy(policy: Any) -> PolicyProgram:
    """Return the program of a policy.

    Args:
        policy: TensorDict module.

    Raises:
        UnsupportedError: If a part of it is not known; the message names it.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> policy = TensorDictModule(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), ["observation"], ["action"])
        >>> [operation.name for operation in describe_policy(policy).operations]
        ['linear', 'tanh']
    """
    if not hasattr(policy, "in_keys"):
        raise UnsupportedError(f"{getattr(policy, '__name__', type(policy).__name__)} is no TensorDict module")
    builder = ProgramBuilder()
    known = {unwrap(key): Register() for key in policy.in_keys}
    inputs = dict(known)
    builder.keyed(policy, known)
    outputs = {unwrap(key): known[unwrap(key)] for key in policy.out_keys}
    for key, register in inputs.items():
        if register.width is None:
            raise UnsupportedError(f"the width of {key_str(key)} is not known")
    return PolicyProgram(tuple(builder.operations), inputs, outputs)
