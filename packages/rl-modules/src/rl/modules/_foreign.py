"""Arguments of TorchRL's modules that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import foreign_arguments, module_arguments

_SAFE = "not available yet: use spec.project(action)"
_RESTARTS = "unused: a Collector, or the transform of make_tensordict_primer(), restarts the state at each episode"
_STRICT = "unused: shapes never broadcast", True

actor = foreign_arguments(
    needless={"safe": (_SAFE, False), "inplace": ("not available yet: the batch is always updated in place", True)}
)
probabilistic_actor = foreign_arguments(
    needless={
        "safe": (_SAFE, False),
        "partial_tolerant": ("not available yet: all inputs have to be there", False),
        "cache_dist": ("unused: a distribution is built for each call", ...),
        "generator": ("not available yet: use torch.manual_seed", None),
        "log_prob_keys": ("use log_prob_key=", None),
    }
)
q_value_module = foreign_arguments(
    needless={
        "var_nums": ("use group_sizes=", None),
        "safe": ("unused: the chosen action is always one of the spec", ...),
        "strict_shape": _STRICT,
    }
)
q_value_actor = foreign_arguments(
    needless={
        "safe": ("unused: the chosen action is always one of the spec", ...),
        "action_key": ("use a QValueModule with out_keys=", None),
        "var_nums": ("use a QValueModule with group_sizes=", None),
        "chosen_action_value_key": ("use a QValueModule with out_keys=", None),
        "strict_shape": _STRICT,
    }
)
explorer = module_arguments(
    {
        "safe": ("unused: explored actions are always projected into the spec", ...),
    }
)
ornstein_uhlenbeck = module_arguments(
    {
        "safe": ("unused: explored actions are always projected into the spec", ...),
        "is_init_key": (_RESTARTS, "is_init"),
    }
)
dt_inference = module_arguments({})
multi_step_actor = foreign_arguments(needless={"init_key": (_RESTARTS, "is_init", None)})
mlp = foreign_arguments(
    needless={"single_bias_last_layer": ("not available yet: use bias_last_layer=False and add one parameter", False)}
)
multi_agent_net = foreign_arguments(
    needless={"use_td_params": ("unused: parameters are those of a torch.nn.Module", ...)},
    replaced={"centralised": "use centralized="},
)
mixer = module_arguments({})
conv_net = foreign_arguments(
    needless={"squeeze_output": ("unused: the default aggregator flattens the last three dimensions", False)}
)
recurrent_layer = foreign_arguments(needless={"use_scan": ("unused: the layers of this package always scan", ...)})
recurrent_module = foreign_arguments(
    needless={"python_based": ("unused: use recurrent_backend='scan', which handles resets and compiles", ...)}
)
