"""`SafeModule` and its relatives: TensorDict modules with a spec of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    dispatch,
)
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs import Bounded, Composite, TensorSpec
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list, parts
from rl.modules.policy._fit import bounds, spec_by_key


class SafeModule(TensorDictModule):
    """A `tensordict.nn.TensorDictModule` with a spec of its output.

    Args:
        module: Function of the entries under `in_keys` that returns those under `out_keys`.
        in_keys: Keys read.
        out_keys: Keys written.
        spec: Spec of the first out key, or a composite with specs under out keys.
        safe: Whether the output is projected onto the spec, see `rl.core.specs.TensorSpec.project`.
        kwargs: Further arguments of the base class.

    Raises:
        SpecError: if `safe` is true and no out key has a spec; in the call, if shape or dtype are not the spec's.

    Example:
        >>> import torch
        >>> from rl.core.specs import Bounded
        >>> from tensordict import TensorDict
        >>> double = SafeModule(lambda x: 2 * x, ["x"], ["y"], spec=Bounded(-1.0, 1.0, (2,)), safe=True)
        >>> double(TensorDict(x=torch.tensor([0.2, 3.0])))["y"]
        tensor([0.4000, 1.0000])
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey],
        spec: TensorSpec | None = None,
        *,
        safe: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(module, key_list(in_keys), key_list(out_keys), **kwargs)
        self.spec = _specs_by_key(self, spec, safe=safe)


class SafeProbabilisticModule(ProbabilisticTensorDictModule):
    """A `tensordict.nn.ProbabilisticTensorDictModule` with a spec of what it samples.

    Args:
        in_keys: Parameters of the distribution.
        out_keys: Keys of the sample.
        spec: Spec of the first out key, or a composite with specs under out keys.
        safe: Whether the sample is projected onto the spec, see `rl.core.specs.TensorSpec.project`.
        kwargs: Further arguments of the base class.

    Raises:
        SpecError: if `safe` is true and no out key has a spec, or together with ``return_log_prob``: the
            log-probability would be that of the sample before it was projected.

    Example:
        >>> import torch
        >>> from rl.core.specs import Bounded
        >>> from tensordict import TensorDict
        >>> head = SafeProbabilisticModule(["param"], ["action"], spec=Bounded(-1.0, 1.0, (2,)), safe=True)
        >>> head(TensorDict(param=torch.tensor([0.5, 3.0])))["action"]
        tensor([0.5000, 1.0000])
    """

    def __init__(
        self,
        in_keys: NestedKey | Sequence[NestedKey] | dict[str, NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        spec: TensorSpec | None = None,
        *,
        safe: bool = False,
        **kwargs: Any,
    ) -> None:
        if safe and kwargs.get("return_log_prob"):
            raise SpecError(
                "SafeProbabilisticModule: safe=True changes samples after they were scored: leave return_log_prob out,"
                " or use a distribution whose samples are in the spec, such as TanhNormal"
            )
        inputs: Any = in_keys if isinstance(in_keys, dict) else key_list(in_keys)
        super().__init__(inputs, None if out_keys is None else key_list(out_keys), **kwargs)
        self.spec = _specs_by_key(self, spec, safe=safe)


class SafeSequential(TensorDictSequential):
    """A `tensordict.nn.TensorDictSequential` with the specs of its parts.

    Example:
        >>> import torch
        >>> from rl.core.specs import Bounded
        >>> half = SafeModule(lambda x: x / 2, ["x"], ["y"], spec=Bounded(-1.0, 1.0, (2,)))
        >>> SafeSequential(half, SafeModule(torch.nn.Identity(), ["y"], ["z"])).spec.keys()
        ['y']
    """

    @property
    def spec(self) -> Composite:
        """The composite specs of the parts as one."""
        merged = Composite()
        for part in parts(self):
            spec = getattr(part, "spec", None)
            if isinstance(spec, Composite):
                merged.update(spec.clone())
        return merged


class SafeProbabilisticTensorDictSequential(ProbabilisticTensorDictSequential, SafeSequential):
    """A `tensordict.nn.ProbabilisticTensorDictSequential` with the specs of its parts.

    The last part is a `SafeProbabilisticModule`, or another module with a distribution; ``get_dist`` returns it.

    Example:
        >>> import torch
        >>> from rl.core.specs import Bounded
        >>> from tensordict import TensorDict
        >>> net = SafeModule(torch.nn.Linear(3, 2), ["observation"], ["param"])
        >>> head = SafeProbabilisticModule(["param"], ["action"], spec=Bounded(-1.0, 1.0, (2,)), safe=True)
        >>> policy = SafeProbabilisticTensorDictSequential(net, head)
        >>> policy.spec.keys()
        ['action']
        >>> td = policy(TensorDict(observation=100 * torch.ones(4, 3), batch_size=[4]))
        >>> bool((td["action"].abs() <= 1).all()), policy.get_dist(td).batch_shape
        (True, torch.Size([4]))
    """


def _specs_by_key(module: Any, spec: TensorSpec | None, *, safe: bool) -> Composite | None:
    """Return the spec as a composite with the out keys of a module; `safe` projects these after each call."""
    keys = key_list(module.out_keys)
    spec = spec_by_key(spec, keys[0])
    if safe:
        if spec is None or not any(key in spec for key in keys):
            names = " or ".join(key_str(key) for key in keys)
            raise SpecError(f"{type(module).__name__}: safe=True needs a spec of {names}, got {spec}")
        module.register_forward_hook(_project)
    return spec


def _project(module: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG001  a hook's arguments
    """Project what a module wrote, or returned when it was called with tensors."""
    keys, spec = key_list(module.out_keys), module.spec
    if isinstance(output, TensorDictBase):
        for key in keys:
            value = output.get(key, None)
            if value is not None and key in spec:
                output.set(key, spec[key].project(value))
        return output
    values = output if isinstance(output, tuple) else (output,)
    projected = tuple(
        spec[key].project(value) if key in spec else value for key, value in zip(keys, values, strict=True)
    )
    return projected if isinstance(output, tuple) else projected[0]


Bound = float | Tensor


class TanhModule(TensorDictModuleBase):
    """Squash entries into bounds: ``low + (high - low) * (tanh(x) + 1) / 2``.

    Args:
        in_keys: Keys of the entries.
        out_keys: Keys of the results, as many; `in_keys` if None.
        spec: `rl.core.specs.Bounded` of the first out key, or specs by out key, which give the bounds.
        low: Lower bound of all entries without a spec; -1 if None.
        high: Upper bound of all entries without a spec; 1 if None.
        clamp: Whether results stay a rounding error away from the bounds, where an inverse of tanh is finite.

    Raises:
        ContractError: in the call, if an entry is absent.
        SpecError: if a spec has no finite bounds.
        ArgumentError: if the numbers of keys differ, `low` is above `high`, or all out keys have a spec and `low` or
            `high` is given, too.

    Example:
        >>> from tensordict import TensorDict
        >>> squash = TanhModule(["action"], low=-2.0, high=2.0)
        >>> squash(TensorDict(action=torch.tensor([0.0, 100.0])))["action"]
        tensor([0., 2.])
    """

    def __init__(
        self,
        in_keys: NestedKey | Sequence[NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | Mapping[NestedKey, TensorSpec] | None = None,
        low: Bound | None = None,
        high: Bound | None = None,
        clamp: bool = False,
    ) -> None:
        super().__init__()
        self.in_keys = key_list(in_keys)
        self.out_keys = key_list(in_keys if out_keys is None else out_keys)
        if len(self.in_keys) != len(self.out_keys):
            raise ArgumentError(
                f"TanhModule writes one entry for each that it reads, got in_keys {self.in_keys} and out_keys"
                f" {self.out_keys}"
            )
        specs = _bounds_by_key(self.out_keys, spec)
        if (low is not None or high is not None) and all(key in specs for key in self.out_keys):
            raise ArgumentError("TanhModule got bounds and a spec for all out_keys: leave one of them out")
        self.clamp = clamp
        for place, key in enumerate(self.out_keys):
            ends: tuple[Bound, Bound] = -1.0 if low is None else low, 1.0 if high is None else high
            if key in specs:
                ends = bounds(specs[key], "TanhModule")
            lower, upper = (torch.as_tensor(end, dtype=torch.get_default_dtype()) for end in ends)
            if not bool((lower <= upper).all()):
                raise ArgumentError(f"TanhModule needs low <= high, got {ends[0]} and {ends[1]} for {key_str(key)}")
            self.register_buffer(f"_middle_{place}", (lower + upper) / 2, persistent=False)
            self.register_buffer(f"_half_{place}", (upper - lower) / 2, persistent=False)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Put TanhModule after the network, in a TensorDictSequential."
        return Contract(
            tuple(Key(key, doc="real numbers", remedy=remedy) for key in self.in_keys),
            tuple(Key(key, doc="numbers within the bounds") for key in self.out_keys),
        )

    @dispatch(auto_batch_size=False)  # pyright: ignore[reportUntypedFunctionDecorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Squash the entries; of tensors in the place of a batch, return the results.

        Raises:
            ContractError: if one is absent.
        """
        leaves = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, key, self)
        for key, value in zip(self.out_keys, self._squash(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not TanhModule or not unhooked(self):
            return None
        return TensorFunction(self._squash, self.in_keys, self.out_keys)

    def _squash(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for place, leaf in enumerate(leaves):
            middle, half = getattr(self, f"_middle_{place}"), getattr(self, f"_half_{place}")
            y = leaf.tanh()
            if self.clamp:
                edge = 1 - torch.finfo(y.dtype).eps
                y = y.clamp(-edge, edge)
            found.append(torch.addcmul(middle.to(y.dtype), y, half.to(y.dtype)))
        return tuple(found)


def _bounds_by_key(keys: Sequence[Any], spec: TensorSpec | Mapping[NestedKey, TensorSpec] | None) -> dict[Any, Bounded]:
    """Return the specs of out keys.

    Raises:
        SpecError: if one has no bounds.
    """
    if spec is None:
        return {}
    by_key = spec if isinstance(spec, Composite | Mapping) else {keys[0]: spec}
    found: dict[Any, Bounded] = {}
    for key in keys:
        one = by_key.get(unwrap(key), None)
        if one is None:
            continue
        if not isinstance(one, Bounded):
            raise SpecError(
                f"TanhModule needs bounds, the spec of {key_str(key)} is {one}: pass low= and high= instead"
            )
        found[key] = one
    return found
