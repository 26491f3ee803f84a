"""The arithmetic of losses as functions of tensors, elementwise; returns are in `rl.objectives.value.functional`."""

from __future__ import annotations

from rl.objectives.functional._policy_gradient import clipped_surrogate, policy_gradient, surrogate

__all__ = ["clipped_surrogate", "policy_gradient", "surrogate"]
