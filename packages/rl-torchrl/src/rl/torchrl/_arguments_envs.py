"""Arguments of TorchRL's collectors, environments and transforms that are ignored at some values, or replaced."""

from __future__ import annotations

from rl.torchrl._names import Table

_PROCESSES = "use MultiCollector(..., sync=): a Collector works in this process"
_WEIGHTS = "use update_policy_weights_(), which sends the weights by itself, as a new version"
_COLLECTOR: Table = {
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
_MULTI: Table = {
    "num_sub_threads": ("use num_threads=", 1),
    "collector_class": ("use policy_factory= and functions of environments: a worker has a Collector", None),
    "init_fn": ("use functions that create the environments, and do it there", None),
    "cat_results": ("use MultiSyncCollector(...): here a batch is that of one worker",),
    "preemptive_threshold": ("use MultiSyncCollector(...): here no worker waits for another",),
}
_VERSIONS = "use update_policy_weights_(): versions count from 0"
_SERVER = "unused: the policy is called in this process"
_ENVS = "use env_backend="
_AFFINITY = "not available yet: the system chooses the cores"
_ASYNC_BATCHED: Table = {
    "policy_version": (_VERSIONS, 0),
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
_CONNECTS = "unused: a client connects by itself, and takes requests of any layout"
_COUNTED = "unused: stats() always counts"
_INFERENCE_SERVER: Table = {
    "model": ("use policy=",),
    "transport": (_CONNECTS, ...),
    "transport_options": (_CONNECTS, ...),
    "request_spec": (_CONNECTS, ...),
    "response_spec": (_CONNECTS, ...),
    "num_clients": (_CONNECTS, ...),
    "collate_fn": ("unused: requests of equal keys, shapes and dtypes are stacked", None),
    "policy_device": ("use device=",),
    "output_device": ("unused: a reply is on the device of its request", None),
    "collect_stats": (_COUNTED, ...),
    "stats_window_size": (_COUNTED, ...),
    "weight_sync": (_WEIGHTS, None),
    "weight_sync_model_id": (_WEIGHTS, "policy"),
    "server_config": ("use service_backend=, max_batch_size=, min_batch_size= and timeout=", None),
    "device_config": ("use device=", None),
    "shutdown_event": ("use shutdown()", None),
    "policy_version": (_VERSIONS, 0),
    "policy_version_key": ("use rename_key_ of the replies", "policy_version"),
}
_RAY_COLLECTOR: Table = {
    "update_after_each_batch": ("use update_at_each_batch=: an actor takes new weights before a batch", False),
    "max_weight_update_interval": ("use update_at_each_batch=, or update_policy_weights_()", -1),
    "use_env_creator": ("unused: functions are sent to the actors as they are", ...),
    "no_cuda_sync": ("unused: a collector waits only where it has to", ...),
    "weight_sync_schemes": (_WEIGHTS, None),
    "weight_recv_schemes": (_WEIGHTS, None),
}
_GETTER = "use update_weights(weights), or a subclass of WeightUpdaterBase that overrides update_weights"
_SENT = "unused: the collector sends the weights of its policy"
_WEIGHT_UPDATER: Table = {
    "weight_getter": (_GETTER, None),
    "get_server_weights": (_GETTER, None),
    "policy_weights": (_SENT, ...),
    "remote_collectors": ("unused: it is that to which weight_updater= was passed", ...),
    "max_interval": ("use update_at_each_batch=, or update_weights()", 0),
}
_EPISODES = "unused: complete episodes are run, without a collector"
_RAY = "not available yet: evaluations run in this process or in another one, not in Ray"
_EVALUATOR: Table = {
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
_SPLIT: Table = {
    "rollout_tensordict": ("use the first argument, without its name",),
}
_PROCESS = "use ParallelEnv: environments of a SerialEnv are in this process"
_RESET = ("unused: a partial reset is read from '_reset'", None)
_NO_ACTOR = "not available yet: the module runs in the process of the environment"
_ENV: Table = {
    "run_type_checks": ("use debug=True or check_env_specs(env)", False),
    "allow_done_after_reset": ("not available yet: a reset starts an episode", False),
    "spec_locked": ("unused: specs are assigned, not changed in place", ...),
    "auto_reset": ("not available yet: use GymWrapper for simulators that reset by themselves", False),
}
_GYM_ENV: Table = {
    **_ENV,
    "batch_size": ("unused: it is that of the simulator; use num_envs=", None),
    "convert_actions_to_numpy": ("unused: a simulator gets NumPy arrays", True),
    "num_workers": ("use num_envs= with vectorization='async'", None, 1),
    "native_autoreset": ("unused: the last observation of an episode is under 'next' in every mode", None, False),
    "missing_obs_value": ("unused: every reset has an observation",),
}
_SINGLE_ENV: Table = {
    **_ENV,
    "batch_size": ("unused: the environment has no batch; use SerialEnv(n, make)", None),
}
_DM_CONTROL: Table = {
    **_SINGLE_ENV,
    "num_workers": ("use ParallelEnv(n, make)", None, 1),
    "convert_actions_to_numpy": ("unused: a simulator gets NumPy arrays", True),
    "native_autoreset": ("unused: the last observation of an episode is under 'next'", None, False),
}
_VMAS: Table = {
    **_ENV,
    "batch_size": ("unused: it is [num_envs]", None),
}
_UNITY: Table = {
    **_ENV,
    "batch_size": ("unused: the environment has no batch; use ParallelEnv(n, make)", None),
}
_ISAAC_LAB: Table = {
    **{name: rule for name, rule in _ENV.items() if name != "allow_done_after_reset"},
    "batch_size": ("unused: it is [num_envs]", None),
    "device": ("unused: it is that of the simulator", None),
    "allow_done_after_reset": ("unused: a reset starts an episode", ...),
    "native_autoreset": ("unused: the simulator's own resets are used in every case", True, False),
    "native_autoreset_obs_mode": ("use compute_final_obs=True in the configuration of Isaac Lab", None),
}
_TRANSFORMED_ENV: Table = {
    **_ENV,
    "cache_specs": ("unused: specs are computed once for each transform", ...),
    "auto_unwrap": ("unused: transforms of an inner TransformedEnv become part of the chain", ...),
    "device": ("use the device of the environment inside", None),
    "batch_size": ("unused: it is that of the environment inside", None),
}
_BATCH: Table = {
    "policy_proof": ("unused: every result has memory of its own", ...),
    "allow_step_when_done": ("not available yet: reset what is done before its next step", False),
    "serial_for_single": ("unused: one environment may be used by itself", ...),
    "non_blocking": ("unused: transfers wait where they have to", ...),
}
_SERIAL_ENV: Table = {
    **_BATCH,
    "pin_memory": (_PROCESS, False),
    "share_individual_td": (_PROCESS, None, True, False),
    "shared_memory": (_PROCESS, True, False),
    "use_shared_mem": (_PROCESS, ...),
    "memmap": (_PROCESS, False, True),
    "device": ("use the device of the environments inside", None),
    "num_threads": ("use torch.set_num_threads", None),
    "num_sub_threads": (_PROCESS, 1),
    "mp_start_method": (_PROCESS, None),
    "use_buffers": ("unused: every result has memory of its own", ...),
    "metadata_from_workers": (_PROCESS, False, True),
    "consolidate": (_PROCESS, True, False),
    "daemon": (_PROCESS, False, True),
    "shutdown_timeout": (_PROCESS, 10.0),
}
_PARALLEL_ENV: Table = {
    **_BATCH,
    "pin_memory": ("unused: call to(device) on the result", ...),
    "share_individual_td": ("unused: each entry is one tensor in shared memory", ...),
    "memmap": ("unused: shared memory is a nameless file", ...),
    "num_sub_threads": ("use num_threads=", 1),
    "use_buffers": ("unused: shared_memory= says where data is exchanged", ...),
    "use_shared_mem": ("use shared_memory=", True, None),
    "metadata_from_workers": ("unused: specs are those of the workers", ...),
    "consolidate": ("unused: results are in shared memory", ...),
}
_ASYNC_ENV_POOL: Table = {
    "exchange": ("use shared_memory=", "queue", "shm", "auto"),
    "num_workers": ("unused: every environment has a worker of its own", None),
    "cpu_affinity": ("not available yet: the system chooses the cores", None),
}
_PENDULUM: Table = {
    "td_params": ("use keyword arguments, such as PendulumEnv(g=9.81)", None),
}
_PRIMER: Table = {
    "reset_key": _RESET,
    "expand_specs": ("unused: specs are for one element, and the environment adds its batch", None),
    "single_default_value": ("not available yet: use numbers or tensors as default_value", False),
    "call_before_env_reset": ("not available yet: entries are written after the reset", False),
}
_REWARD_SUM: Table = {
    "reset_keys": _RESET,
    "reward_spec": ("not available yet: sums are part of observation_spec", False),
}
_VEC_NORM: Table = {
    "shapes": ("unused: shapes are those of the specs", None),
    "new_api": ("unused: there is one VecNorm", ...),
}
_END_OF_LIFE: Table = {
    "eol_attribute": ("use lives_key=, with GymEnv(..., info_keys=['lives'])",),
}
_SELECT: Table = {
    "keep_rewards": ("unused: rewards stay", True),
    "keep_dones": ("unused: done flags stay", True),
}
_EXCLUDE: Table = {
    "inverse": ("not available yet: it removes what the environment writes", False),
}
_BATCH_SIZE: Table = {
    "reset_func": ("use reshape_fn=, or a transform of your own", None),
    "env_kwarg": ("unused: functions get the data alone", False),
}
_DEVICE_CAST: Table = {
    "in_keys": ("unused: every entry moves", None),
    "out_keys": ("unused: every entry moves", None),
    "in_keys_inv": ("unused: every entry moves", None),
    "out_keys_inv": ("unused: every entry moves", None),
}
_ROLLOUT: Table = {
    "trust_policy": ("unused: what a policy returns is checked where it is cheap", False),
}
_REGISTER_GYM: Table = {
    "backend": ("unused: environments are registered with Gymnasium", None, "gymnasium"),
    "to_numpy": ("unused: Gymnasium's environments return NumPy arrays", True),
    "autoreset": ("unused: Gymnasium dropped it", None, False),
    "apply_api_compatibility": ("unused: Gymnasium dropped it", False),
}
_UNSQUEEZE: Table = {
    "unsqueeze_dim": ("use dim=",),
}
_ACTION_PROJECTION: Table = {
    "include_forward": ("not available yet: a call on a batch maps nothing", False),
}
_FLATTEN_ACTION: Table = {
    "action_shape": ("unused: it is that of the environment's spec", None),
    "in_keys": ("unused: a batch has the flat action already", None),
    "out_keys": ("unused: a batch has the flat action already", None),
}
_UNARY: Table = {
    "use_raw_nontensor": ("not available yet: functions get tensors", False),
}
_TARGET_RETURN: Table = {
    "reset_key": _RESET,
}
_TIMER: Table = {
    "time_key": ("use out_keys=, which names all three", "time"),
}
_HASHED: Table = {
    "use_raw_nontensor": ("not available yet: functions get texts and tensors", False),
}
_MODULE_TRANSFORM: Table = {
    "use_ray_service": (_NO_ACTOR, False),
    **dict.fromkeys(("num_gpus", "num_cpus", "actor_name"), (_NO_ACTOR, None)),
}

ARGUMENTS: dict[str, Table] = {
    "rl.collectors.AsyncBatchedCollector": _ASYNC_BATCHED,
    "rl.collectors.Collector": _COLLECTOR,
    "rl.collectors.Evaluator": _EVALUATOR,
    "rl.collectors.InferenceServer": _INFERENCE_SERVER,
    "rl.collectors.MultiBase": _MULTI,
    "rl.collectors.RayCollector": _RAY_COLLECTOR,
    "rl.collectors.WeightUpdaterBase": _WEIGHT_UPDATER,
    "rl.collectors.split_trajectories": _SPLIT,
    "rl.envs.AsyncEnvPool": _ASYNC_ENV_POOL,
    "rl.envs.BatchSizeTransform": _BATCH_SIZE,
    "rl.envs.DMControlEnv": _DM_CONTROL,
    "rl.envs.DMControlWrapper": _DM_CONTROL,
    "rl.envs.DeviceCastTransform": _DEVICE_CAST,
    "rl.envs.DiscreteActionProjection": _ACTION_PROJECTION,
    "rl.envs.EndOfLifeTransform": _END_OF_LIFE,
    "rl.envs.EnvBase": _ENV,
    "rl.envs.EnvBase.register_gym": _REGISTER_GYM,
    "rl.envs.EnvBase.rollout": _ROLLOUT,
    "rl.envs.ExcludeTransform": _EXCLUDE,
    "rl.envs.FlattenAction": _FLATTEN_ACTION,
    "rl.envs.GymEnv": _GYM_ENV,
    "rl.envs.GymWrapper": _GYM_ENV,
    "rl.envs.Hash": _HASHED,
    "rl.envs.IsaacLabWrapper": _ISAAC_LAB,
    "rl.envs.ModuleTransform": _MODULE_TRANSFORM,
    "rl.envs.OpenSpielWrapper": _SINGLE_ENV,
    "rl.envs.ParallelEnv": _PARALLEL_ENV,
    "rl.envs.PendulumEnv": _PENDULUM,
    "rl.envs.PettingZooEnv": _SINGLE_ENV,
    "rl.envs.PettingZooWrapper": _SINGLE_ENV,
    "rl.envs.RewardSum": _REWARD_SUM,
    "rl.envs.SelectTransform": _SELECT,
    "rl.envs.SerialEnv": _SERIAL_ENV,
    "rl.envs.TargetReturn": _TARGET_RETURN,
    "rl.envs.TensorDictPrimer": _PRIMER,
    "rl.envs.Timer": _TIMER,
    "rl.envs.TransformedEnv": _TRANSFORMED_ENV,
    "rl.envs.UnaryTransform": _UNARY,
    "rl.envs.UnityMLAgentsEnv": _UNITY,
    "rl.envs.UnityMLAgentsWrapper": _UNITY,
    "rl.envs.UnsqueezeTransform": _UNSQUEEZE,
    "rl.envs.VecNorm": _VEC_NORM,
    "rl.envs.VmasEnv": _VMAS,
    "rl.envs.VmasWrapper": _VMAS,
}
"""Table by class or function: its package and qualified name."""
