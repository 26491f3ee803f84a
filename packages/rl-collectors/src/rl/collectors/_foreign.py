"""Arguments of TorchRL's collector that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import foreign_arguments

__all__ = ["collector"]

_PROCESSES = "not available yet: a Collector works in this process"
_WEIGHTS = "not available yet: use update_policy_weights_() where the policy is another object"
_WHOLE = "not available yet: use split_trajectories(batch)"
_BUFFER = "not available yet: use buffer.extend(batch) in the loop"

collector = foreign_arguments(
    needless={
        "policy_factory": (_PROCESSES, None),
        "backend": (_PROCESSES, None),
        "backend_options": (_PROCESSES, None),
        "num_collectors": (_PROCESSES, None),
        "sync": (_PROCESSES, None),
        "worker_idx": (_PROCESSES, None),
        "interruptor": (_PROCESSES, None),
        "policy_device": ("use device=", None),
        "env_device": ("use the device of the environment", None),
        "create_env_kwargs": ("use functools.partial(make, ...)", None),
        "max_frames_per_traj": ("use TransformedEnv(env, StepCounter(max_steps=...))", None, 0, -1),
        "split_trajs": (_WHOLE, None, False),
        "trajs_per_batch": (_WHOLE, None),
        "trajs_per_write": (_WHOLE, None),
        "traj_format": (_WHOLE, None),
        "return_same_td": ("needless: every batch is fresh memory", False),
        "reset_when_done": ("not available yet: what is done is always reset", True),
        "use_buffers": ("needless: every batch is fresh memory", None),
        "replay_buffer": (_BUFFER, None),
        "extend_buffer": (_BUFFER, True),
        "trust_policy": ("needless: a policy is never copied or wrapped", None),
        "compile_policy": ("use torch.compile(policy)", None, False),
        "cudagraph_policy": ("use tensordict.nn.CudaGraphModule(policy)", None, False),
        "no_cuda_sync": ("needless: a collector waits only where it has to", False),
        "weight_sync_schemes": (_WEIGHTS, None),
        "weight_recv_schemes": (_WEIGHTS, None),
        "track_policy_version": (_WEIGHTS, False),
        "auto_register_policy_transforms": ("needless: recurrent states need no transforms", None),
        "pre_collect_hook": ("use a loop over collect()", None),
        "post_collect_hook": ("use postproc=", None),
        "compact_obs": ("not available yet: the next observations are always part of a batch", False),
    }
)
