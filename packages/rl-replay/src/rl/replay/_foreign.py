"""Arguments of TorchRL's buffers, storages, samplers and writers that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import Needless, foreign_arguments

__all__ = [
    "buffer",
    "compressed_list_storage",
    "fixed_writer",
    "hindsight_buffer",
    "lazy_tensor_storage",
    "list_storage",
    "memmap_storage",
    "prioritized_buffer",
    "prioritized_slice_sampler",
    "slice_sampler",
    "slice_sampler_without_replacement",
    "tensor_storage",
    "writer",
]

_COMPILABLE: Needless = ("needless: nothing has to be switched for torch.compile", None, False, True)
_SERVICE = "use RayReplayBuffer(...)"
_SPEED: Needless = ("needless: the bounds of trajectories are always kept", False, True)

_BUFFER: dict[str, Needless] = {
    "delayed_init": ("needless: a storage is allocated by the first batch", None, False, True),
    "service_backend": (_SERVICE, "direct", None),
    "service_backend_options": (_SERVICE, None),
    "transport": (_SERVICE, "auto"),
    "transport_options": (_SERVICE, None),
    "use_ray_service": (_SERVICE, False),
}
_SAMPLED_BUFFER: dict[str, Needless] = {
    **_BUFFER,
    "transform_factory": ("use transform=", None),
    "checkpointer": ("needless: dumps and loads write one safetensors file", None),
    "compilable": _COMPILABLE,
}
buffer = foreign_arguments(needless=_SAMPLED_BUFFER)
hindsight_buffer = foreign_arguments(
    needless={
        **_SAMPLED_BUFFER,
        "shared": ("not available yet: episodes are known to one process", None, False),
        "sample_unit": ("use TensorDictReplayBuffer(sample_unit=...)", None),
        "consume_after_n_samples": ("use sampler=ConsumingSampler(n)", None),
    }
)
prioritized_buffer = foreign_arguments(
    needless={
        **_BUFFER,
        "shared": ("not available yet: priorities belong to one process", None, False),
        "sync": ("not available yet: priorities are always updated at once", True),
        "sampler": ("use ReplayBuffer(sampler=...)", None),
        "consume_after_n_samples": ("use ReplayBuffer(consume_after_n_samples=...)", None),
    }
)
lazy_tensor_storage = foreign_arguments(
    needless={
        "compilable": _COMPILABLE,
        "consolidated": ("needless: each entry is one tensor", False, True),
        "shared_init": ("use ReplayBuffer(shared=True)", None, False),
        "cleanup_memmap": ("use LazyMemmapStorage(auto_cleanup=...)", True),
    }
)
memmap_storage = foreign_arguments(
    needless={
        "compilable": _COMPILABLE,
        "shared_init": ("use ReplayBuffer(shared=True)", None, False),
    }
)
list_storage = foreign_arguments(
    needless={"compilable": _COMPILABLE, "device": ("needless: rows stay on the device they come on", None)}
)
compressed_list_storage = foreign_arguments(
    needless={"compilable": _COMPILABLE, "device": ("needless: rows are on the CPU", "cpu", None)}
)
tensor_storage = foreign_arguments(
    needless={
        "compilable": _COMPILABLE,
        "max_size": ("needless: the storage is as large as its data", None),
        "device": ("use data.to(device)", None),
    },
    replaced={"storage": "use data="},
)
fixed_writer = foreign_arguments(needless={"compilable": _COMPILABLE})
writer = foreign_arguments(
    needless={
        "compilable": _COMPILABLE,
    }
)
slice_sampler = foreign_arguments(
    needless={
        "end_keys": ("not available yet: use one end_key=, or a traj_key=", None),
        "step_key": ("not available yet: use end_key= or traj_key=", "step_count"),
        "fragmented": ("not available yet: trajectories are stored in one piece", False),
        "ends": ("use end_key= and an entry of the batch", None),
        "trajectories": ("use traj_key= and an entry of the batch", None),
        "cache_values": _SPEED,
        "compile": _SPEED,
        "use_gpu": _SPEED,
    }
)
prioritized_slice_sampler = foreign_arguments(
    needless={
        "end_keys": ("not available yet: use one end_key=, or a traj_key=", None),
        "ends": ("use end_key= and an entry of the batch", None),
        "trajectories": ("use traj_key= and an entry of the batch", None),
        "cache_values": _SPEED,
        "compile": _SPEED,
        "max_pending": ("needless: priorities are always updated at once", 64),
    }
)
slice_sampler_without_replacement = foreign_arguments(
    needless={
        "end_keys": ("not available yet: use one end_key=, or a traj_key=", None),
        "ends": ("use end_key= and an entry of the batch", None),
        "trajectories": ("use traj_key= and an entry of the batch", None),
        "compile": _SPEED,
        "use_gpu": _SPEED,
    }
)
