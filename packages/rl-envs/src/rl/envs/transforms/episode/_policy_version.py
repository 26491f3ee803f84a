"""`PolicyVersion`: the version of the policy that took a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs import Unbounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["PolicyVersion"]


class PolicyVersion(Transform):
    """Writes the version of the policy next to each step; `increment_version` after each update of the weights.

    Writes ``policy_version``, int64 ``[*B]``, at the root (the version that acts) and under ``next``.

    Args:
        version_type: ``"int"`` or ``int``: an integer, 0 at first.

    Raises:
        SpecError: if the type is another.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> version = PolicyVersion()
        >>> env = TransformedEnv(PendulumEnv(), version)
        >>> version.increment_version()
        >>> env.rollout(3)["policy_version"].tolist()
        [1, 1, 1]
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, version_type: str | type[int] = "int") -> None:
        super().__init__(out_keys=["policy_version"])
        if version_type not in ("int", int):
            raise SpecError(
                f"PolicyVersion: version_type must be 'int', got {version_type!r}: versions are compared as integers"
            )
        self._version = torch.zeros((), dtype=torch.int64)

    @property
    def version(self) -> int:
        """The version of the policy."""
        return int(self._version)

    def increment_version(self) -> None:
        """Count an update of the weights."""
        self._version = self._version + 1

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return self._write(root)

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        return self._write(outcome)

    def _write(self, entries: Any) -> Any:
        entries["policy_version"] = self._version.expand(self._batch).clone()
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Add the version to the observation."""
        self._batch = specs.batch_size
        if specs.device is not None:
            self.to(specs.device)
        specs.add("observation", "policy_version", Unbounded((), dtype=torch.int64, device=specs.device), self)

    def state_dict(self) -> dict[str, Any]:
        """Return the version."""
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._version = torch.full_like(self._version, int(state["version"]))
