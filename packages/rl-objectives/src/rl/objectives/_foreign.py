"""Arguments of TorchRL that are ignored at their default value, or rejected with a replacement."""

from __future__ import annotations

from rl.core.arguments import Needless, foreign_arguments, module_arguments

_KEYS = "use set_keys(advantage=..., value_target=..., value=...)"
_CHUNKS = "not available yet: networks see the entire batch at once; split it along its first dimension"

_ESTIMATOR: dict[str, Needless] = {
    "vectorized": ("unused: every return is one scan over time", ...),
    "skip_existing": (
        "not available yet: values are always computed; use value_network=None to take those of the batch",
        None,
        False,
    ),
    "advantage_key": (_KEYS, None),
    "value_target_key": (_KEYS, None),
    "value_key": (_KEYS, None),
    "deactivate_vmap": ("unused: networks never run under vmap", ...),
    "auto_reset_env": ("unused: the terminal observation is always under 'next'", ...),
    "value_chunk_size": (_CHUNKS, None),
    "num_chunks": (_CHUNKS, None),
    "num_chunk": (_CHUNKS, None),
    "value_chunk_dim": (_CHUNKS, 0),
    "shifted_budget": ("unused: shifted=True also evaluates every truncated state", ...),
    "group_key": ("use one estimator for each group, with set_keys", None),
}
estimator = module_arguments(_ESTIMATOR)
multi_agent_gae = module_arguments({**_ESTIMATOR, "agent_dim": ("unused: it is the last but one", -2)})
td_estimator = module_arguments(
    {
        **_ESTIMATOR,
        "average_rewards": ("not available yet: use normalized rewards in the batch", False),
    }
)
vtrace = module_arguments(
    {
        **_ESTIMATOR,
        "average_adv": ("not available yet: normalise the advantage of the batch afterwards", False),
    }
)

_NETWORKS: dict[str, Needless] = {
    "functional": ("unused: a loss always holds the networks themselves", ...),
    "deactivate_vmap": ("unused: networks never run under vmap", ...),
    "scalar_output_mode": ("use reduction=", None),
}
_POLICY: dict[str, Needless] = {
    **_NETWORKS,
    "gamma": ("use make_value_estimator(..., gamma=...) or an estimator of its own", None),
    "advantage_key": (_KEYS, None),
    "value_target_key": (_KEYS, None),
    "value_key": (_KEYS, None),
    "actor": ("use actor_network=", None),
    "critic": ("use critic_network=", None),
}
_ADVANTAGE_NORM: dict[str, Needless] = {
    "advantage_norm": ("not available yet: divide the advantage of the batch by its scale before the loss", None)
}
_COEFFICIENTS: dict[str, Needless] = {
    "entropy_coef": ("use entropy_coeff=", None),
    "critic_coef": ("use critic_coeff=", None),
}
impala_loss = module_arguments({**{name: why for name, why in _POLICY.items() if name != "gamma"}, **_COEFFICIENTS})
reinforce_loss = module_arguments(_POLICY)
a2c_loss = module_arguments({**_POLICY, **_COEFFICIENTS, **_ADVANTAGE_NORM})
ppo_loss = module_arguments(
    {
        **_POLICY,
        **_COEFFICIENTS,
        "log_explained_variance": ("use diagnostics=False", True),
        **_ADVANTAGE_NORM,
        "delay_actor": ("not available yet: use a copy of the actor", False),
        "max_importance_ratio": ("not available yet: use ClipPPOLoss(clip_epsilon=...)", None),
    }
)
dqn_loss = module_arguments(
    {
        **_NETWORKS,
        "priority_key": ("use set_keys(priority=...)", None),
        "use_prioritized_weights": ("unused: 'priority_weight' counts if the batch has it", "auto", True),
    }
)
dt_loss = module_arguments(_NETWORKS)
rnd_loss = module_arguments(
    {
        **_NETWORKS,
        "obs_rms": ("use a VecNorm or a RunningValueNorm before the loss, which normalizes what it reads", None),
        "obs_clip": ("unused: it is of obs_rms; clip what the loss reads", ...),
        "update_fraction": ("not available yet: give the loss a part of the batch", 1.0, 1),
    }
)
_OFF_POLICY: dict[str, Needless] = {
    **_NETWORKS,
    "separate_losses": ("not available yet: gradients of a shared network are summed; use two networks", False),
    "priority_key": ("use set_keys(priority=...)", None),
    "use_prioritized_weights": ("unused: 'priority_weight' counts if the batch has it", "auto", True),
    "gSDE": ("not available yet: the actor explores by its own distribution", False),
    "skip_done_states": ("unused: the value of a terminal state is never part of a target", ...),
}
off_policy_loss = module_arguments(_OFF_POLICY)
update = foreign_arguments(replaced={"loss_module": "use loss="})
rolling = foreign_arguments(
    needless={"rolling_gamma": ("not available yet: a tensor gamma is always that of each step", None, True)}
)
distance_loss = foreign_arguments(
    needless={"strict_shape": ("unused: shapes always have to agree, values are [*B, 1]", ...)}
)
