"""Components as functions of tensors, in place of calls on TensorDicts, where they return the same numbers.

A `TensorDictModule` costs some 50 microseconds per call on top of its network. A component that calls a module many
times (a collector, a loss) calls its *lowered* form: a function from the tensors under its ``in_keys`` to those under
its ``out_keys``. A class offers its own with a method ``lowered()``; the classes of `tensordict.nn` are known here. A
module without a lowered form returns None and is called as it is: lowering changes speed, never results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from tensordict.nn import probabilistic as _probabilistic
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import linear
from torch.nn.modules import module as _module

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import LeafEnv, LoweredModule
from rl.core.keys import NestedKey, as_tuple, unwrap

__all__ = [
    "DistributionFunction",
    "TensorFunction",
    "as_distribution_function",
    "as_function",
    "as_tensor_env",
    "chain",
    "compile_with_warmup",
    "run_layers",
    "unhooked",
]


P = ParamSpec("P")
R = TypeVar("R")


class WarmedUp(Generic[P, R]):
    """A callable that runs eagerly at first and compiled later; all else is the model's own.

    Attributes that are read or set (``parameters()``, ``in_keys``, ``training``, ...) are those of the model.

    Args:
        model: Function or a module.
        warmup: Number of calls that run eagerly.
        options: Arguments of `torch.compile`.
    """

    _own = ("_calls", "_compiled", "_model", "_options", "_warmup")

    def __init__(self, model: Callable[P, R], warmup: int, options: dict[str, Any]) -> None:
        vars(self).update(_model=model, _warmup=warmup, _options=options, _calls=0, _compiled=None)
        if isinstance(model, FunctionType):
            update_wrapper(self, model, updated=())

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        """Bound to an object, as a function in a class is; a module in a class stays itself."""
        return self if owner is None or not isinstance(self._model, FunctionType) else MethodType(self, owner)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._compiled is not None:
            return self._compiled(*args, **kwargs)
        if self._calls < self._warmup:
            out = self._model(*args, **kwargs)
            vars(self)["_calls"] += 1
            return out
        compiled = vars(self)["_compiled"] = torch.compile(self._model, **self._options)
        return compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in WarmedUp._own or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # copy and pickle look attributes up before __init__
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") and name.endswith("__"):
            vars(self)[name] = value  # __name__, __wrapped__ and __doc__ of a function
        else:
            setattr(self._model, name, value)

    def __repr__(self) -> str:
        state = "compiled" if self._compiled is not None else f"{self._calls} of {self._warmup} warm-up calls"
        return f"compile_with_warmup({self._model!r}, {state})"


@overload
def compile_with_warmup(model: Callable[P, R], *, warmup: int = 1, **compile_kwargs: Any) -> WarmedUp[P, R]: ...
@overload
def compile_with_warmup(
    model: None = None, *, warmup: int = 1, **compile_kwargs: Any
) -> Callable[[Callable[P, R]], WarmedUp[P, R]]: ...
def compile_with_warmup(model: Any = None, *, warmup: int = 1, **compile_kwargs: Any) -> Any:
    """Compile a function or a module after its first `warmup` calls.

    The first calls settle what compilation depends on (lazily created state, shapes), and keep the seconds that
    it takes out of the first measurements. Both forms return the same results, up to rounding. The result is no
    `torch.nn.Module`: within a module, where its parameters would not be found, compile the outer one.

    Args:
        model: Function or module to compile; if None, a decorator is returned.
        warmup: Number of calls that run eagerly; 0 compiles at the first call.
        compile_kwargs: Arguments of `torch.compile`: ``mode``, ``fullgraph``, ``dynamic``, ``backend``, ...

    Raises:
        ArgumentError: If `warmup` is no integer or negative, or `model` cannot be called.

    Example:
        >>> @compile_with_warmup(warmup=2)
        ... def double(x):
        ...     return 2 * x
        >>> double(torch.ones(2))
        tensor([2., 2.])
        >>> net = compile_with_warmup(torch.nn.Linear(3, 1), warmup=3)
        >>> len(list(net.parameters()))
        2
    """
    warmup = as_integer(warmup, "compile_with_warmup", "warmup", least=0)
    if model is None:
        return partial(compile_with_warmup, warmup=warmup, **compile_kwargs)
    if not callable(model):
        raise ArgumentError(
            f"compile_with_warmup got {type(model).__name__}, which cannot be called: pass a function or a module"
        )
    return WarmedUp(model, warmup, compile_kwargs)


def run_layers(layers: nn.Sequential, x: Tensor) -> Tensor:
    """Compute ``layers(x)`` of a plain `torch.nn.Sequential`, several microseconds faster.

    A layer of a class that is not known here, one with hooks, and a compiled one are called as they are; so are all of
    them while anything is hooked onto every module, or the call is being compiled.

    Args:
        layers: Sequence of modules with one input and one output.
        x: Input of the first layer.

    Example:
        >>> layers = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
        >>> x = torch.ones(1, 3)
        >>> bool((run_layers(layers, x) == layers(x)).all())
        True
    """
    if torch.compiler.is_compiling() or _module._has_any_global_hook():
        for layer in layers:
            x = layer(x)
        return x
    ours = False  # whether `x` is an intermediate result of this loop
    for layer in layers._modules.values():
        kind, own = type(layer), layer.__dict__
        if kind not in _KNOWN or (  # `changed` written out: its call takes as long as a small layer
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
            or "forward" in own
            or own.get("_compiled_call_impl") is not None
        ):
            x, ours = layer(x), False  # pyright: ignore[reportOptionalCall]
        elif kind is nn.Linear:
            parameters = own["_parameters"]  # reading them as attributes costs half of a small product
            x, ours = linear(x, parameters["weight"], parameters["bias"]), True
        elif ours and kind in _IN_PLACE and not x.requires_grad and not torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]  # documented
            # Memory that is new costs as much as half of the function. A traced graph must not depend on requires_grad.
            x = _IN_PLACE[kind](x)
        else:
            x, ours = layer.forward(x), False  # pyright: ignore[reportOptionalMemberAccess]
    return x


#: layers whose call does nothing but `forward`; a subclass, also a parametrized one, is another type
_KNOWN = frozenset({nn.Linear, nn.Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Sigmoid, nn.LayerNorm})
#: of these, functions that need no other memory than their input's
_IN_PLACE = {nn.Tanh: torch.tanh_, nn.ReLU: torch.relu_, nn.Sigmoid: torch.sigmoid_}


def changed(own: dict[str, Any]) -> bool:
    """Whether a module was given hooks, a compiled call or another `forward`."""
    return bool(
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or own.get("_compiled_call_impl") is not None
    )


def plain_network(network: Any) -> Callable[..., Any]:
    """`network` itself, or a cheaper way to call it that returns the same."""
    kind = type(network)
    if getattr(kind, "forward", None) is not nn.Sequential.forward or kind.__call__ is not nn.Module.__call__:
        return network

    def call(x: Tensor) -> Tensor:
        return network(x) if changed(network.__dict__) else run_layers(network, x)

    return call


# Draws and scores in one call where a distribution offers it; tensordict's own look-up, so that both forms of
# a policy take the same branch. Absent from tensordict 0.14, which always draws first and scores then.
_joint = getattr(_probabilistic, "_get_joint_sample_and_log_prob", lambda _: None)


class TensorFunction:
    """A plain function with the keys of its arguments and results.

    Args:
        fn: Function of the tensors under `in_keys` in order that returns a tuple of those under `out_keys` in order.
        in_keys: Keys that are read.
        out_keys: Keys that are written.

    Example:
        >>> import torch
        >>> double = TensorFunction(lambda x: (2 * x,), ["observation"], ["action"])
        >>> double(torch.ones(2))
        (tensor([2., 2.]),)
    """

    __slots__ = ("fn", "in_keys", "out_keys")

    def __init__(
        self,
        fn: Callable[..., tuple[Tensor, ...]],
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey],
    ) -> None:
        self.fn = fn
        self.in_keys: list[NestedKey] = [unwrap(key) for key in in_keys]
        self.out_keys: list[NestedKey] = [unwrap(key) for key in out_keys]

    def __call__(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        return self.fn(*leaves)

    def __repr__(self) -> str:
        return f"TensorFunction({self.in_keys} -> {self.out_keys})"


class DistributionFunction:
    """A stochastic policy as a function from observations to its action distribution.

    Args:
        fn: Function that takes the tensors under `in_keys` in order, returns a `torch.distributions.Distribution`.
        in_keys: Keys that are read.
    """

    __slots__ = ("fn", "in_keys")

    def __init__(self, fn: Callable[..., Distribution], in_keys: Sequence[NestedKey]) -> None:
        self.fn = fn
        self.in_keys: list[NestedKey] = [unwrap(key) for key in in_keys]

    def __call__(self, *leaves: Tensor) -> Distribution:
        return self.fn(*leaves)


def as_function(module: Any) -> LoweredModule | None:
    """Return the plain form of a TensorDict module, or None if it has none.

    Args:
        module: Module with ``in_keys`` and ``out_keys``. A method ``lowered()`` of its class is called first;
            of the classes of `tensordict.nn`, `TensorDictModule`, `TensorDictSequential` and their probabilistic
            forms are known. A subclass that overrides ``forward``, a module with hooks or an own ``forward``, and a
            compiled one have none. What is changed after this call (a hook, another network) the form does not see.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> module = TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["action"])
        >>> as_function(module)
        TensorFunction(['observation'] -> ['action'])
        >>> as_function(lambda td: td) is None
        True
    """
    if not unhooked(module):
        return None
    if _offers(module, "lowered"):
        return module.lowered()
    forward = getattr(type(module), "forward", None)
    if forward in (ProbabilisticTensorDictSequential.forward, TensorDictSequential.forward):
        return _lower_parts(module)
    if forward is ProbabilisticTensorDictModule.forward:
        return _lower_probabilistic(module)
    if forward is TensorDictModule.forward:
        return _lower_plain(module)
    return None


def as_distribution_function(actor: Any) -> DistributionFunction | None:
    """Return the plain form of ``actor.get_dist``, or None if it has none.

    Args:
        actor: `ProbabilisticTensorDictSequential` whose last module holds the distribution, or anything with
            a method ``lowered_distribution()``.
    """
    if _offers(actor, "lowered_distribution"):
        return actor.lowered_distribution()
    if type(actor) is not ProbabilisticTensorDictSequential or not unhooked(actor):
        return None
    return lower_actor_distribution(actor)


def lower_actor_distribution(actor: ProbabilisticTensorDictSequential) -> DistributionFunction | None:
    """Lower the distribution of a sequence that ends in one probabilistic module."""
    *body, head = _parts(actor)
    if not isinstance(head, ProbabilisticTensorDictModule) or not unhooked(head):
        return None
    if any(isinstance(part, ProbabilisticTensorDictModule) for part in body):
        return None
    lowered = [as_function(part) for part in body]
    build = _distribution_builder(head)
    if any(part is None for part in lowered) or build is None:
        return None
    params = chain([part for part in lowered if part is not None], out_keys=list(head.in_keys))
    if params is None:
        return None
    return DistributionFunction(lambda *leaves: build(*params(*leaves)), params.in_keys)


def as_tensor_env(env: Any) -> LeafEnv | None:
    """Return the leaf form of an environment, or None if it has none."""
    return env.lowered() if _offers(env, "lowered") else None


def _offers(component: Any, method: str) -> bool:
    """Whether the class has a method; a wrapper that only passes attributes on, as `torch.compile` gives, has none."""
    return callable(getattr(type(component), method, None))


def unhooked(module: Any) -> bool:
    """Whether a module's call is that of its class: no hook, no own ``forward``, not compiled."""
    return not isinstance(module, nn.Module) or not changed(vars(module))


def chain(parts: Sequence[LoweredModule], out_keys: Sequence[NestedKey] | None = None) -> TensorFunction | None:
    """One function for several in a row, each reading what those before it wrote or what was put in.

    Args:
        parts: Functions in the order in which they run.
        out_keys: Keys of the results that are returned; all that are written, in order of first writing, if None.

    Returns:
        None if `out_keys` asks for something that is neither read nor written.
    """
    slots: dict[NestedKey, int] = {}
    inputs: list[NestedKey] = []
    written: list[NestedKey] = []
    plan: list[tuple[Callable[..., tuple[Tensor, ...]], list[int], list[int]]] = []
    for part in parts:
        for key in part.in_keys:
            if key not in slots:
                slots[key] = len(slots)
                inputs.append(key)
        for key in part.out_keys:
            slots.setdefault(key, len(slots))
            if key not in written:
                written.append(key)
        fn = part.fn if isinstance(part, TensorFunction) else part
        plan.append((fn, [slots[k] for k in part.in_keys], [slots[k] for k in part.out_keys]))
    results = [unwrap(key) for key in out_keys] if out_keys is not None else written
    if any(key not in slots for key in results):
        return None
    if len(parts) == 1 and results == list(parts[0].out_keys):
        return TensorFunction(plan[0][0], inputs, results)
    return TensorFunction(
        _runner(plan, [slots[k] for k in inputs], [slots[k] for k in results], len(slots)), inputs, results
    )


def _runner(
    plan: Sequence[tuple[Callable[..., tuple[Tensor, ...]], list[int], list[int]]],
    given: Sequence[int],
    wanted: Sequence[int],
    size: int,
) -> Callable[..., tuple[Tensor, ...]]:
    def run(*leaves: Tensor) -> tuple[Tensor, ...]:
        cells: list[Any] = [None] * size
        for slot, leaf in zip(given, leaves, strict=True):
            cells[slot] = leaf
        for fn, reads, writes in plan:
            for slot, value in zip(writes, fn(*[cells[i] for i in reads]), strict=True):
                cells[slot] = value
        return tuple([cells[i] for i in wanted])

    return run


def _parts(sequence: TensorDictSequential) -> list[Any]:
    inner = sequence.module
    return list(inner.values() if isinstance(inner, nn.ModuleDict) else inner)


def _plain_outputs(module: Any) -> bool:
    """Whether a module writes all its `out_keys` into its argument."""
    in_place = getattr(module, "inplace", True)
    return in_place in (True, None) and list(module.out_keys) == list(module.out_keys_source)


def _lower_parts(sequence: TensorDictSequential) -> TensorFunction | None:
    if not _plain_outputs(sequence) or getattr(sequence, "partial_tolerant", False):
        return None
    lowered: list[LoweredModule] = []
    for part in _parts(sequence):
        one = as_function(part)
        if one is None:
            return None
        lowered.append(one)
    return chain(lowered) if lowered else None


def _lower_plain(module: TensorDictModule) -> TensorFunction | None:
    overridden = type(module)._call_module is not TensorDictModule._call_module
    if overridden or getattr(module, "method", None) is not None or not _plain_outputs(module):
        return None
    return _plain(module)


def _plain(module: TensorDictModule) -> TensorFunction | None:
    network = plain_network(module.module)
    names: Sequence[str] | None = getattr(module, "_kwargs", None)
    keys = [unwrap(key) for key in module.out_keys]
    if "_" in keys or any(isinstance(key, tuple) and "_" in as_tuple(key) for key in keys):
        return None
    count = len(keys)

    def call(*leaves: Tensor) -> tuple[Tensor, ...]:
        out = network(*leaves) if names is None else network(**dict(zip(names, leaves, strict=True)))
        if type(out) is not tuple:
            out = tuple(out[key] for key in keys) if isinstance(out, dict) else (out,)
        if len(out) != count:
            raise ContractError(
                f"{type(module.module).__name__} returned {len(out)} outputs for the {count} out_keys {keys}"
            )
        return out

    return TensorFunction(call, module.in_keys, keys)


def _distribution_builder(head: Any) -> Callable[..., Distribution] | None:
    if type(head).get_dist is not ProbabilisticTensorDictModule.get_dist:
        return None
    make: Any = head.distribution_class
    names: list[str] = [as_tuple(key)[-1] for key in head.dist_keys]
    fixed: dict[str, Any] = dict(head.distribution_kwargs or {})

    def build(*params: Tensor) -> Distribution:
        return make(**dict(zip(names, params, strict=True)), **fixed)

    return build


def _lower_probabilistic(head: Any) -> TensorFunction | None:
    build = _distribution_builder(head)
    keys = list(head.out_keys)
    owns_generator = getattr(head, "_generator", None) is not None or getattr(head, "_generator_key", None) is not None
    if build is None or owns_generator or head.num_samples is not None or "_" in keys:
        return None
    if head.return_log_prob and len(head.log_prob_keys) != 1:
        return None
    if not head.return_log_prob:

        def draw(*params: Tensor) -> tuple[Tensor, ...]:
            out: Any = head._dist_sample(build(*params), interaction_type=interaction_type())
            return out if isinstance(out, tuple) else (out,)

        return TensorFunction(draw, head.in_keys, keys)

    def draw_and_score(*params: Tensor) -> tuple[Tensor, ...]:
        dist = build(*params)
        how = interaction_type() or head.default_interaction_type
        both: Any = _joint(dist) if how is InteractionType.RANDOM else None
        if both is not None:
            sample, log_prob = both(())
            return (*sample, log_prob) if isinstance(sample, tuple) else (sample, log_prob)
        out: Any = head._dist_sample(dist, interaction_type=interaction_type())
        samples = out if isinstance(out, tuple) else (out,)
        return (*samples, dist.log_prob(*samples))

    return TensorFunction(draw_and_score, head.in_keys, [*head.dist_sample_keys, *head.log_prob_keys])
