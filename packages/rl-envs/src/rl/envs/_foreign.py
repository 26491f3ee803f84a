"""Arguments of TorchRL's environments and transforms that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import Needless, foreign_arguments

_PROCESS = "use ParallelEnv: environments of a SerialEnv are in this process"
_RESET: Needless = ("unused: a partial reset is read from '_reset'", None)
_RAY = "not available yet: the module runs in the process of the environment"
_ENV: dict[str, Needless] = {
    "run_type_checks": ("use debug=True or check_env_specs(env)", False),
    "allow_done_after_reset": ("not available yet: a reset starts an episode", False),
    "spec_locked": ("unused: specs are assigned, not changed in place", ...),
    "auto_reset": ("not available yet: use GymWrapper for simulators that reset by themselves", False),
}
env = foreign_arguments(needless=_ENV)
gym_env = foreign_arguments(
    needless={
        **_ENV,
        "batch_size": ("unused: it is that of the simulator; use num_envs=", None),
        "convert_actions_to_numpy": ("unused: a simulator gets NumPy arrays", True),
        "num_workers": ("use num_envs= with vectorization='async'", None, 1),
        "native_autoreset": ("unused: the last observation of an episode is under 'next' in every mode", None, False),
    },
    replaced={"missing_obs_value": "unused: every reset has an observation"},
)
dm_control = foreign_arguments(
    needless={
        **_ENV,
        "batch_size": ("unused: the environment has no batch; use SerialEnv(n, make)", None),
        "num_workers": ("use ParallelEnv(n, make)", None, 1),
        "convert_actions_to_numpy": ("unused: a simulator gets NumPy arrays", True),
        "native_autoreset": ("unused: the last observation of an episode is under 'next'", None, False),
    },
)
open_spiel = foreign_arguments(
    needless={
        **_ENV,
        "batch_size": ("unused: the environment has no batch; use SerialEnv(n, make)", None),
    },
)
pettingzoo = foreign_arguments(
    needless={
        **_ENV,
        "batch_size": ("unused: the environment has no batch; use SerialEnv(n, make)", None),
    },
)
vmas = foreign_arguments(
    needless={
        **_ENV,
        "batch_size": ("unused: it is [num_envs]", None),
    },
)
unity = foreign_arguments(
    needless={
        **_ENV,
        "batch_size": ("unused: the environment has no batch; use ParallelEnv(n, make)", None),
    },
)
isaac_lab = foreign_arguments(
    needless={
        **{name: rule for name, rule in _ENV.items() if name != "allow_done_after_reset"},
        "batch_size": ("unused: it is [num_envs]", None),
        "device": ("unused: it is that of the simulator", None),
        "allow_done_after_reset": ("unused: a reset starts an episode", ...),
        "native_autoreset": ("unused: the simulator's own resets are used in every case", True, False),
        "native_autoreset_obs_mode": ("use compute_final_obs=True in the configuration of Isaac Lab", None),
    },
)
transformed_env = foreign_arguments(
    needless={
        **_ENV,
        "cache_specs": ("unused: specs are computed once for each transform", ...),
        "auto_unwrap": ("unused: transforms of an inner TransformedEnv become part of the chain", ...),
        "device": ("use the device of the environment inside", None),
        "batch_size": ("unused: it is that of the environment inside", None),
    },
)
_BATCH: dict[str, Needless] = {
    "policy_proof": ("unused: every result has memory of its own", ...),
    "allow_step_when_done": ("not available yet: reset what is done before its next step", False),
    "serial_for_single": ("unused: one environment may be used by itself", ...),
    "non_blocking": ("unused: transfers wait where they have to", ...),
}
serial_env = foreign_arguments(
    needless={
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
)
parallel_env = foreign_arguments(
    needless={
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
)
async_env_pool = foreign_arguments(
    needless={
        "exchange": ("use shared_memory=", "queue", "shm", "auto"),
        "num_workers": ("unused: every environment has a worker of its own", None),
        "cpu_affinity": ("not available yet: the system chooses the cores", None),
    }
)
pendulum = foreign_arguments(
    needless={"td_params": ("use keyword arguments, such as PendulumEnv(g=9.81)", None)},
)
primer = foreign_arguments(
    needless={
        "reset_key": _RESET,
        "expand_specs": ("unused: specs are for one element, and the environment adds its batch", None),
        "single_default_value": ("not available yet: use numbers or tensors as default_value", False),
        "call_before_env_reset": ("not available yet: entries are written after the reset", False),
    }
)
reward_sum = foreign_arguments(
    needless={
        "reset_keys": _RESET,
        "reward_spec": ("not available yet: sums are part of observation_spec", False),
    }
)
vec_norm = foreign_arguments(
    needless={
        "shapes": ("unused: shapes are those of the specs", None),
        "new_api": ("unused: there is one VecNorm", ...),
    }
)
end_of_life = foreign_arguments(
    replaced={"eol_attribute": "use lives_key=, with GymEnv(..., info_keys=['lives'])"},
)
select = foreign_arguments(
    needless={
        "keep_rewards": ("unused: rewards stay", True),
        "keep_dones": ("unused: done flags stay", True),
    }
)
exclude = foreign_arguments(
    needless={"inverse": ("not available yet: it removes what the environment writes", False)},
)
batch_size = foreign_arguments(
    needless={
        "reset_func": ("use reshape_fn=, or a transform of your own", None),
        "env_kwarg": ("unused: functions get the data alone", False),
    }
)
device_cast = foreign_arguments(
    needless={
        "in_keys": ("unused: every entry moves", None),
        "out_keys": ("unused: every entry moves", None),
        "in_keys_inv": ("unused: every entry moves", None),
        "out_keys_inv": ("unused: every entry moves", None),
    }
)
rollout = foreign_arguments(
    needless={"trust_policy": ("unused: what a policy returns is checked where it is cheap", False)},
)
register_gym = foreign_arguments(
    needless={
        "backend": ("unused: environments are registered with Gymnasium", None, "gymnasium"),
        "to_numpy": ("unused: Gymnasium's environments return NumPy arrays", True),
        "autoreset": ("not available: Gymnasium dropped it", None, False),
        "apply_api_compatibility": ("not available: Gymnasium dropped it", False),
    }
)
unsqueeze = foreign_arguments(replaced={"unsqueeze_dim": "use dim="})
action_projection = foreign_arguments(
    needless={"include_forward": ("not available yet: a call on a batch maps nothing", False)},
)
flatten_action = foreign_arguments(
    needless={
        "action_shape": ("unused: it is that of the environment's spec", None),
        "in_keys": ("unused: a batch has the flat action already", None),
        "out_keys": ("unused: a batch has the flat action already", None),
    }
)
unary = foreign_arguments(
    needless={"use_raw_nontensor": ("not available yet: functions get tensors", False)},
)
target_return = foreign_arguments(needless={"reset_key": _RESET})
timer = foreign_arguments(
    needless={"time_key": ("use out_keys=, which names all three", "time")},
)
hashed = foreign_arguments(
    needless={"use_raw_nontensor": ("not available yet: functions get texts and tensors", False)},
)
module_transform = foreign_arguments(
    needless={"use_ray_service": (_RAY, False), **dict.fromkeys(("num_gpus", "num_cpus", "actor_name"), (_RAY, None))}
)
