"""`lower`: the lowered form of modules, distributions and environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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

from rl.core.errors import ContractError
from rl.core.interfaces import LeafEnv, LoweredModule
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.lowering._fast_sequential import changed, plain_network, run_layers

__all__ = [
    "Lowered",
    "LoweredDistribution",
    "chain",
    "lower",
    "lower_distribution",
    "lower_env",
    "run_layers",
    "unhooked",
]

# Draws and scores in one call where a distribution offers it; tensordict's own look-up, so that both forms of
# a policy take the same branch. Absent from tensordict 0.14, which always draws first and scores then.
_joint = getattr(_probabilistic, "_get_joint_sample_and_log_prob", lambda _: None)


class Lowered:
    """A plain function with the keys of its arguments and results.

    Args:
        fn: takes the tensors under `in_keys` in order, returns a tuple of those under `out_keys` in order.
        in_keys: what is read.
        out_keys: what is written.

    Example:
        >>> import torch
        >>> double = Lowered(lambda x: (2 * x,), ["observation"], ["action"])
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
        return f"Lowered({self.in_keys} -> {self.out_keys})"


class LoweredDistribution:
    """A stochastic policy as a function from observations to its action distribution.

    Args:
        fn: takes the tensors under `in_keys` in order, returns a `torch.distributions.Distribution`.
        in_keys: what is read.
    """

    __slots__ = ("fn", "in_keys")

    def __init__(self, fn: Callable[..., Distribution], in_keys: Sequence[NestedKey]) -> None:
        self.fn = fn
        self.in_keys: list[NestedKey] = [unwrap(key) for key in in_keys]

    def __call__(self, *leaves: Tensor) -> Distribution:
        return self.fn(*leaves)


def lower(module: Any) -> LoweredModule | None:
    """The plain form of a TensorDict module, or None if it has none.

    Args:
        module: anything with ``in_keys`` and ``out_keys``. A method ``lowered()`` of its class is called first;
            of the classes of `tensordict.nn`, `TensorDictModule`, `TensorDictSequential` and their probabilistic
            forms are known. A subclass that overrides ``forward``, a module with hooks or an own ``forward``, and a
            compiled one have none. What is changed after this call (a hook, another network) the form does not see.

    Example:
        >>> import torch
        >>> from tensordict.nn import TensorDictModule
        >>> module = TensorDictModule(torch.nn.Identity(), in_keys=["observation"], out_keys=["action"])
        >>> lower(module)
        Lowered(['observation'] -> ['action'])
        >>> lower(lambda td: td) is None
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


def lower_distribution(actor: Any) -> LoweredDistribution | None:
    """The plain form of ``actor.get_dist``, or None if it has none.

    Args:
        actor: a `ProbabilisticTensorDictSequential` whose last module holds the distribution, or anything with
            a method ``lowered_distribution()``.
    """
    if _offers(actor, "lowered_distribution"):
        return actor.lowered_distribution()
    if type(actor) is not ProbabilisticTensorDictSequential or not unhooked(actor):
        return None
    return lower_actor_distribution(actor)


def lower_actor_distribution(actor: ProbabilisticTensorDictSequential) -> LoweredDistribution | None:
    """What `lower_distribution` does for a sequence that ends in one probabilistic module."""
    *body, head = _parts(actor)
    if not isinstance(head, ProbabilisticTensorDictModule) or not unhooked(head):
        return None
    if any(isinstance(part, ProbabilisticTensorDictModule) for part in body):
        return None
    lowered = [lower(part) for part in body]
    build = _distribution_builder(head)
    if any(part is None for part in lowered) or build is None:
        return None
    params = chain([part for part in lowered if part is not None], out_keys=list(head.in_keys))
    if params is None:
        return None
    return LoweredDistribution(lambda *leaves: build(*params(*leaves)), params.in_keys)


def lower_env(env: Any) -> LeafEnv | None:
    """The leaf form of an environment, or None if it has none."""
    return env.lowered() if _offers(env, "lowered") else None


def _offers(component: Any, method: str) -> bool:
    """Whether the class has a method; a wrapper that only passes attributes on, as `torch.compile` gives, has none."""
    return callable(getattr(type(component), method, None))


def unhooked(module: Any) -> bool:
    """Whether a module's call is that of its class: no hook, no own ``forward``, not compiled."""
    return not isinstance(module, nn.Module) or not changed(vars(module))


def chain(parts: Sequence[LoweredModule], out_keys: Sequence[NestedKey] | None = None) -> Lowered | None:
    """One function for several in a row, each reading what those before it wrote or what was put in.

    Args:
        parts: in the order in which they run.
        out_keys: which results to hand out; all that are written, in order of first writing, if None.

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
        fn = part.fn if isinstance(part, Lowered) else part
        plan.append((fn, [slots[k] for k in part.in_keys], [slots[k] for k in part.out_keys]))
    results = [unwrap(key) for key in out_keys] if out_keys is not None else written
    if any(key not in slots for key in results):
        return None
    if len(parts) == 1 and results == list(parts[0].out_keys):
        return Lowered(plan[0][0], inputs, results)
    return Lowered(_runner(plan, [slots[k] for k in inputs], [slots[k] for k in results], len(slots)), inputs, results)


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


def _lower_parts(sequence: TensorDictSequential) -> Lowered | None:
    if not _plain_outputs(sequence) or getattr(sequence, "partial_tolerant", False):
        return None
    lowered: list[LoweredModule] = []
    for part in _parts(sequence):
        one = lower(part)
        if one is None:
            return None
        lowered.append(one)
    return chain(lowered) if lowered else None


def _lower_plain(module: TensorDictModule) -> Lowered | None:
    overridden = type(module)._call_module is not TensorDictModule._call_module
    if overridden or getattr(module, "method", None) is not None or not _plain_outputs(module):
        return None
    return _plain(module)


def _plain(module: TensorDictModule) -> Lowered | None:
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

    return Lowered(call, module.in_keys, keys)


def _distribution_builder(head: Any) -> Callable[..., Distribution] | None:
    if type(head).get_dist is not ProbabilisticTensorDictModule.get_dist:
        return None
    make: Any = head.distribution_class
    names: list[str] = [as_tuple(key)[-1] for key in head.dist_keys]
    fixed: dict[str, Any] = dict(head.distribution_kwargs or {})

    def build(*params: Tensor) -> Distribution:
        return make(**dict(zip(names, params, strict=True)), **fixed)

    return build


def _lower_probabilistic(head: Any) -> Lowered | None:
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

        return Lowered(draw, head.in_keys, keys)

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

    return Lowered(draw_and_score, head.in_keys, [*head.dist_sample_keys, *head.log_prob_keys])
