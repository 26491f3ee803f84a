"""Arguments of TorchRL's buffers, storages, samplers and writers that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import Needless, foreign_arguments

_COMPILABLE: Needless = ("unused: nothing has to be switched for torch.compile", ...)
_SERVICE = "use RayReplayBuffer(...)"
_SPEED: Needless = ("unused: the bounds of trajectories are always kept", ...)

_BUFFER: dict[str, Needless] = {
    "delayed_init": ("unused: a storage is allocated by the first batch", ...),
    "service_backend": (_SERVICE, "direct", None),
    "service_backend_options": (_SERVICE, None),
    "transport": (_SERVICE, "auto"),
    "transport_options": (_SERVICE, None),
    "use_ray_service": (_SERVICE, False),
}
_SAMPLED_BUFFER: dict[str, Needless] = {
    **_BUFFER,
    "transform_factory": ("use transform=", None),
    "checkpointer": ("unused: dumps and loads write one safetensors file", None),
    "compilable": _COMPILABLE,
}
buffer = foreign_arguments(needless=_SAMPLED_BUFFER)
hindsight_buffer = foreign_arguments(
    needless={
        **_SAMPLED_BUFFER,
        "shared": ("not available yet: episodes are known to one process", None, False),
        "goal_key": ("use desired_goal_key=", "desired_goal"),
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
        "consolidated": ("unused: each entry is one tensor", ...),
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
_ROWS: dict[str, Needless] = {
    "compilable": _COMPILABLE,
    "device": ("unused: rows stay on the device they come on", None, "auto"),
}
list_storage = foreign_arguments(needless=_ROWS)
lazy_stack_storage = foreign_arguments(
    needless={**_ROWS, "stack_dim": ("use the first dimension: that of the rows", 0)}
)
compressed_list_storage = foreign_arguments(
    needless={"compilable": _COMPILABLE, "device": ("unused: rows are on the CPU", "cpu", None)}
)
_MEMBERS = "use the arguments of the members, which are buffers"
ensemble_buffer = foreign_arguments(
    needless={
        **_SAMPLED_BUFFER,
        "storage": (_MEMBERS, None),
        "sampler": (_MEMBERS, None),
        "writer": (_MEMBERS, None),
        "sample_unit": (_MEMBERS, None),
        "consume_after_n_samples": (_MEMBERS, None),
        "shared": (_MEMBERS, None, False),
        "dim_extend": (_MEMBERS, None),
        "collate_fns": ("use collate_fn=, for the joined sample", None),
    }
)
ensemble_storage = foreign_arguments(needless={"transforms": ("use transform= of the members", None)})
_SLICES = "use sampler=SliceSampler(...)"
_PREPARED = "unused: a data set is prepared once, in this process"
dataset = foreign_arguments(
    needless={
        "num_slices": (_SLICES, None),
        "slice_len": (_SLICES, None),
        "pad": (_SLICES, None),
        "strict_len": (_SLICES, True),
        "strict_length": (_SLICES, True),
        "replacement": ("use sampler=SamplerWithoutReplacement()", None, True),
        "shuffle": ("use sampler=SamplerWithoutReplacement(shuffle=False)", True),
        "num_procs": (_PREPARED, ...),
        "mp_start_method": (_PREPARED, ...),
        "streaming": ("not available yet: a data set is prepared in files", None, False),
        "from_env": ("unused: the file itself is read", ...),
        "direct_download": ("unused: the file itself is downloaded", ...),
        "use_truncated_as_done": ("unused: done is terminated or truncated", True),
        "terminate_on_end": ("not available yet: the last step of an episode is left out", None, False),
        "decode_video": ("not available yet: videos are left out", False),
        "rehydrate": ("not available yet: videos are left out", False),
        "key_map": ("use transform= to rename entries", None),
        "load_from_local_minari": ("use download=False", False),
    },
    replaced={"repo_id": "use dataset_id="},
)
tensor_storage = foreign_arguments(
    needless={
        "compilable": _COMPILABLE,
        "max_size": ("unused: the storage is as large as its data", None),
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
        "ends": ("use end_key= and an entry of the batch", None),
        "trajectories": ("use traj_key= and an entry of the batch", None),
        "cache_values": _SPEED,
        "compile": _SPEED,
        "max_pending": ("unused: priorities are always updated at once", ...),
    }
)
slice_sampler_without_replacement = foreign_arguments(
    needless={
        "ends": ("use end_key= and an entry of the batch", None),
        "trajectories": ("use traj_key= and an entry of the batch", None),
        "cache_values": _SPEED,
        "compile": _SPEED,
        "use_gpu": _SPEED,
    }
)
