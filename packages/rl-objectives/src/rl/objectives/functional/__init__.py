"""Arithmetic of losses and value estimators as functions of tensors.

Losses are elementwise: every tensor is ``[*B]`` or ``[*B, ...]`` of one shape, and nothing broadcasts.

Returns and advantages take ``[*B, T, F]`` with time in `time_dim`; `F` is usually 1. ``gamma`` and ``lmbda`` are
numbers, tensors without dimensions, or tensors of that shape. ``done`` cuts the accumulation; ``terminated`` cuts the
bootstrap, so that a truncated step still adds the value of the state that it reached. The last step of a batch is cut
too, and bootstraps unless it is terminated.

`reward2go`, `vtrace_advantage_estimate` and functions that start with ``vec_`` use the back end behind the hook
`rl_linear_recurrence`; the others are the same formulas as a loop over time. All are differentiable.
"""

from __future__ import annotations

from rl.objectives.functional._advantages import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
    vtrace_advantage_estimate,
)
from rl.objectives.functional._offline import (
    ReturnScale,
    advantage_weight,
    conservative_gap,
    discriminator_loss,
    distillation_error,
    expectile_loss,
    imitation_reward,
    scale_by_returns,
    style_divergence,
)
from rl.objectives.functional._policy_gradient import (
    adapted_penalty,
    clipped_surrogate,
    expected_soft_value,
    penalized_surrogate,
    policy_gradient,
    smoothed_action,
    soft_value,
    surrogate,
    temperature_loss,
    truncated_quantiles,
)
from rl.objectives.functional._q_learning import (
    categorical_divergence,
    distance,
    greedy_value,
    project_distribution,
    quantile_huber,
    reduce,
)
from rl.objectives.functional._returns import (
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
from rl.objectives.functional._world_models import (
    PercentileScale,
    categorical_kl_balanced,
    categorical_kl_terms,
    critic_regression,
    decayed_mean,
    episode_discount,
    imagination_weight,
    lambda_return,
    normal_kl,
    reinforce_objective,
)

__all__ = [
    "PercentileScale",
    "ReturnScale",
    "adapted_penalty",
    "advantage_weight",
    "categorical_divergence",
    "categorical_kl_balanced",
    "categorical_kl_terms",
    "clipped_surrogate",
    "conservative_gap",
    "critic_regression",
    "decayed_mean",
    "discriminator_loss",
    "distance",
    "distillation_error",
    "episode_discount",
    "expected_soft_value",
    "expectile_loss",
    "generalized_advantage_estimate",
    "greedy_value",
    "imagination_weight",
    "imitation_reward",
    "lambda_return",
    "normal_kl",
    "penalized_surrogate",
    "policy_gradient",
    "project_distribution",
    "quantile_huber",
    "reduce",
    "reinforce_objective",
    "reward2go",
    "scale_by_returns",
    "smoothed_action",
    "soft_value",
    "style_divergence",
    "surrogate",
    "td0_advantage_estimate",
    "td0_return_estimate",
    "td1_advantage_estimate",
    "td1_return_estimate",
    "td_lambda_advantage_estimate",
    "td_lambda_return_estimate",
    "temperature_loss",
    "truncated_quantiles",
    "vec_generalized_advantage_estimate",
    "vec_td1_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td_lambda_advantage_estimate",
    "vec_td_lambda_return_estimate",
    "vtrace_advantage_estimate",
]
