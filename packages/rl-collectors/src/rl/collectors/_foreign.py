"""Arguments of TorchRL's collector that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import foreign_arguments

_PROCESSES = "use MultiCollector(..., sync=): a Collector works in this process"
_WEIGHTS = "not available yet: use update_policy_weights_() where the policy is another object"

collector = foreign_arguments(
    needless={
        "backend": (_PROCESSES, None),
        "backend_options": (_PROCESSES, None),
        "num_collectors": (_PROCESSES, None),
        "sync": (_PROCESSES, None),
        "worker_idx": (_PROCESSES, None),
        "trajs_per_write": ("use trajs_per_batch=", None),
        "reset_when_done": ("not available yet: what is done is always reset", True),
        "use_buffers": ("unused: every batch is fresh memory", ...),
        "trust_policy": ("unused: a policy is never copied or wrapped", ...),
        "no_cuda_sync": ("unused: a collector waits only where it has to", ...),
        "weight_sync_schemes": (_WEIGHTS, None),
        "weight_recv_schemes": (_WEIGHTS, None),
        "auto_register_policy_transforms": ("unused: recurrent states need no transforms", ...),
        "compact_obs": ("not available yet: the next observations are always part of a batch", False),
    }
)

multi = foreign_arguments(
    needless={
        "num_sub_threads": ("use num_threads=", 1),
        "collector_class": ("use policy_factory= and functions of environments: a worker has a Collector", None),
        "init_fn": ("do it in the functions that create the environments", None),
    },
    replaced={
        "cat_results": "a batch is that of one worker",
        "preemptive_threshold": "no worker waits for another",
    },
)

_SERVER = "unused: the policy is called in this process"
_ENVS = "use env_backend="
_AFFINITY = "not available yet: the system chooses the cores"

async_batched = foreign_arguments(
    needless={
        "policy_version": ("use update_policy_weights_(): versions count from 0", 0),
        "policy_version_key": ("use postproc= to rename policy_version", "policy_version"),
        "trajs_per_batch": ("use yield_completed_trajectories=True", None),
        "server_timeout": ("use min_batch_size=: the policy is called once that many environments wait", None),
        "transport": (_SERVER, None),
        "backend": (_ENVS, None),
        "env_exchange": ("unused: processes share memory", "auto"),
        "envs_per_worker": ("use functions that return a SerialEnv", 1),
        "transition_chunk_size": ("unused: steps are gathered in one piece for a batch", ...),
        "policy_backend": (_SERVER, None),
        "weight_sync": (_WEIGHTS, None),
        "weight_sync_model_id": (_WEIGHTS, "policy"),
        "verbose": ("not available yet: nothing is logged", False),
        "worker_affinity": (_AFFINITY, None),
        "driver_affinity": (_AFFINITY, None),
        "server_config": (_SERVER, None),
        "device_config": ("use device=", None),
    }
)

ray = foreign_arguments(
    needless={
        "update_after_each_batch": ("use update_at_each_batch=: an actor takes new weights before a batch", False),
        "max_weight_update_interval": ("use update_at_each_batch=, or update_policy_weights_()", -1),
        "use_env_creator": ("unused: functions are sent to the actors as they are", ...),
        "no_cuda_sync": ("unused: a collector waits only where it has to", ...),
        "weight_sync_schemes": (_WEIGHTS, None),
        "weight_recv_schemes": (_WEIGHTS, None),
    }
)

_GETTER = "use update_weights(weights), or a subclass of WeightUpdaterBase that overrides update_weights"
_SENT = "unused: the collector sends the weights of its policy"

weight_updater = foreign_arguments(
    needless={
        "weight_getter": (_GETTER, None),
        "get_server_weights": (_GETTER, None),
        "policy_weights": (_SENT, ...),
        "remote_collectors": ("unused: it is that to which weight_updater= was passed", ...),
        "max_interval": ("use update_at_each_batch=, or update_weights()", 0),
    }
)

_EPISODES = "unused: complete episodes are run, without a collector"
_RAY = "not available yet: evaluations run in this process or in another one, not in Ray"

evaluator = foreign_arguments(
    needless={
        "frames_per_batch": (_EPISODES, ...),
        "collector_cls": (_EPISODES, None),
        "collector_kwargs": (_EPISODES, None),
        "weight_sync_schemes": ("use trigger_eval(weights)", None),
        "reward_keys": ("use reward_key=", "reward", ("next", "reward")),
        "done_keys": ("unused: the end flags of the environment end an episode", "done", ("next", "done")),
        "device": ("use the device of the policy and of the environment", None),
        "dump_video": ("use video_key=", True),
        "init_fn": (_RAY, None),
        "num_gpus": (_RAY, 1),
        "ray_kwargs": (_RAY, None),
    }
)

split = foreign_arguments(replaced={"rollout_tensordict": "use the first argument, without its name"})
