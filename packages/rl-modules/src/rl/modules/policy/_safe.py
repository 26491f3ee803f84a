"""`SafeModule` and its relatives: TensorDict modules with a spec of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Composite, TensorSpec
from rl.modules._keys import key_list, parts
from rl.modules.policy._fit import spec_by_key

__all__ = ["SafeModule", "SafeProbabilisticModule", "SafeProbabilisticTensorDictSequential", "SafeSequential"]


class SafeModule(TensorDictModule):
    """A `tensordict.nn.TensorDictModule` with a spec of its output.

    Args:
        module: function of the entries under `in_keys` that returns those under `out_keys`.
        in_keys: keys read.
        out_keys: keys written.
        spec: of the first out key, or a composite with specs under out keys.
        safe: project the output onto the spec, see `rl.core.specs.TensorSpec.project`.
        kwargs: further arguments of the base class.

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
        self.spec = _by_key(self, spec, safe=safe)


class SafeProbabilisticModule(ProbabilisticTensorDictModule):
    """A `tensordict.nn.ProbabilisticTensorDictModule` with a spec of what it samples.

    Args:
        in_keys: parameters of the distribution.
        out_keys: of the sample.
        spec: of the first out key, or a composite with specs under out keys.
        safe: project the sample onto the spec, see `rl.core.specs.TensorSpec.project`.
        kwargs: further arguments of the base class.

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
        self.spec = _by_key(self, spec, safe=safe)


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


def _by_key(module: Any, spec: TensorSpec | None, *, safe: bool) -> Composite | None:
    """The spec as a composite with the out keys of a module; with `safe` they are projected after each call."""
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
