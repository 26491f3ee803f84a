"""The rules of a Markov decision process on TensorDicts: the next root, done flags, partial resets.

A *level* is where done flags stand: ``()`` for the root, ``("agents",)`` for flags under ``agents``. Each level has
up to three flags, ``done = terminated | truncated``, and a mask ``_reset`` of the same shape beside them.
"""

from rl.core.mdp._done_flags import FLAGS, complete_done, done_levels
from rl.core.mdp._exploration import ExplorationType, exploration_type, set_exploration_type
from rl.core.mdp._partial_reset import merge_reset, reset_masks, where_reset
from rl.core.mdp._step_mdp import StepMDP, step_mdp

__all__ = [
    "FLAGS",
    "ExplorationType",
    "StepMDP",
    "complete_done",
    "done_levels",
    "exploration_type",
    "merge_reset",
    "reset_masks",
    "set_exploration_type",
    "step_mdp",
    "where_reset",
]
