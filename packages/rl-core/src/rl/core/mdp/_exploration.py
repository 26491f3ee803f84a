"""Exploration mode: the context managers of tensordict, under the names used here."""

from __future__ import annotations

from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn import set_interaction_type as set_exploration_type
from tensordict.nn.probabilistic import interaction_type as exploration_type  # not in `nn` of tensordict 0.14

__all__ = ["ExplorationType", "exploration_type", "set_exploration_type"]
