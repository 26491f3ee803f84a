"""Arguments of TorchRL's collector that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import foreign_arguments

__all__ = ["collector"]

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
        "use_buffers": ("needless: every batch is fresh memory", None),
        "trust_policy": ("needless: a policy is never copied or wrapped", None),
        "no_cuda_sync": ("needless: a collector waits only where it has to", False),
        "weight_sync_schemes": (_WEIGHTS, None),
        "weight_recv_schemes": (_WEIGHTS, None),
        "auto_register_policy_transforms": ("needless: recurrent states need no transforms", None),
        "compact_obs": ("not available yet: the next observations are always part of a batch", False),
    }
)
