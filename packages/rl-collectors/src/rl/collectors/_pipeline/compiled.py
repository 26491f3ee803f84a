"""Compiled policies, and policies in CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict.nn import CudaGraphModule

from rl.core.errors import SpecError
from rl.core.lowering import Lowered, lower

__all__ = ["accelerated"]

_GRAPHS = ("reduce-overhead", "max-autotune")


def accelerated(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """Return the policy as it is called in the loop: compiled, recorded in a CUDA graph, or itself.

    Args:
        policy: the policy.
        compile_policy: True, or the arguments of `torch.compile`.
        cudagraph_policy: True, or the arguments of `tensordict.nn.CudaGraphModule`.

    Raises:
        SpecError: if there is no policy, both are given, there is no CUDA device for a graph, or the mode of
            `torch.compile` records CUDA graphs, whose outputs are overwritten.
    """
    compiles, records = _options(compile_policy, "compile_policy"), _options(cudagraph_policy, "cudagraph_policy")
    if compiles is None and records is None:
        return policy
    if policy is None:
        raise SpecError("compile_policy and cudagraph_policy need a policy: random actions cannot be compiled")
    if records is not None:
        if compiles is not None:
            raise SpecError("a collector takes compile_policy or cudagraph_policy, got both")
        if not torch.cuda.is_available():
            raise SpecError("cudagraph_policy needs a CUDA device, and there is none: use compile_policy instead")
        return CudaGraphModule(policy, **records)
    if (compiles or {}).get("mode") in _GRAPHS:
        raise SpecError(
            f"compile_policy with mode {(compiles or {})['mode']!r} records CUDA graphs, which overwrite outputs that"
            " the collector keeps: use cudagraph_policy=True, or another mode"
        )
    return _Compiled(policy, compiles or {})


def _options(value: Any, name: str) -> dict[str, Any] | None:
    if value is None or value is False:
        return None
    if value is True:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} must be a bool or a dict of arguments, got {value!r:.100}")
    return dict(value)


class _Compiled:
    """Policy whose TensorDict form and leaf form are compiled."""

    def __init__(self, policy: Any, options: Mapping[str, Any]) -> None:
        self._policy, self._options = policy, options
        self._call = torch.compile(policy, **options)

    def __call__(self, tensordict: Any) -> Any:
        return self._call(tensordict)

    def lowered(self) -> Lowered | None:
        """The compiled leaf form, or None if the policy has none."""
        plain = lower(self._policy)
        if plain is None:
            return None
        return Lowered(torch.compile(getattr(plain, "fn", plain), **self._options), plain.in_keys, plain.out_keys)
