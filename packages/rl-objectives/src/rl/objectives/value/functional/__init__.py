"""Returns and advantages as functions of tensors.

Shapes: everything is ``[*B, T, F]`` with time in `time_dim`, all of one shape; `F` is usually 1. ``gamma`` and
``lmbda`` are numbers, tensors without dimensions, or one value per element in that same shape. Nothing broadcasts.

Ends: ``done`` cuts the accumulation, ``terminated`` cuts the bootstrap, which is the reading under which a truncated
step still counts the value of the state that it reached. The last step of the batch is cut too, and bootstraps unless
it is terminated.

The functions whose names start with ``vec_``, `reward2go` and `vtrace_advantage_estimate` go through the back end of
`rl_linear_recurrence`; the others are the same formulas as a loop over time, to read and to compare with. Both are
differentiable.
"""

from __future__ import annotations

from rl.objectives.functional._gae import generalized_advantage_estimate, vec_generalized_advantage_estimate
from rl.objectives.functional._td import (
    reward2go,
    td0_advantage_estimate,
    td0_return_estimate,
    td1_advantage_estimate,
    td1_return_estimate,
    td_lambda_advantage_estimate,
    td_lambda_return_estimate,
    vec_td1_advantage_estimate,
    vec_td1_return_estimate,
    vec_td_lambda_advantage_estimate,
    vec_td_lambda_return_estimate,
)
from rl.objectives.functional._vtrace import vtrace_advantage_estimate

__all__ = [
    "generalized_advantage_estimate",
    "reward2go",
    "td0_advantage_estimate",
    "td0_return_estimate",
    "td1_advantage_estimate",
    "td1_return_estimate",
    "td_lambda_advantage_estimate",
    "td_lambda_return_estimate",
    "vec_generalized_advantage_estimate",
    "vec_td1_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td_lambda_advantage_estimate",
    "vec_td_lambda_return_estimate",
    "vtrace_advantage_estimate",
]
