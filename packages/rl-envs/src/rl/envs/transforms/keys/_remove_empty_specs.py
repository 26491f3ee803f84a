"""`RemoveEmptySpecs`: specs without empty groups."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl.core.specs import Composite
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["RemoveEmptySpecs"]


class RemoveEmptySpecs(Transform):
    """Removes groups without entries from the specs; data without entries need nothing.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), RemoveEmptySpecs()).rollout(1).batch_size
        torch.Size([1])
    """

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the batch as it is."""
        return tensordict

    def transform_specs(self, specs: Specs) -> None:
        """Rebuild each spec from its leaves."""
        for name in ("observation", "action", "reward", "state"):
            spec: Composite = getattr(specs, name)
            out = Composite({}, device=spec.device)
            for key in leaf_keys(spec):
                out[key] = spec[key]
            setattr(specs, name, out)
