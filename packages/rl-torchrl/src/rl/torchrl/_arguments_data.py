"""Arguments of TorchRL's specs, buffers and data sets that are ignored at some values, or replaced."""

from __future__ import annotations

from rl.torchrl._names import Table

_CHECK_ENV_SPECS: Table = {
    "return_contiguous": ("unused: results are compared as they come", ...),
    "check_dtype": ("unused: dtypes always have to agree", True),
    "tensordict": ("not available yet: use a reset without arguments", None),
    "break_when_any_done": ("unused: what is done is reset", ...),
}
_INTERVAL: Table = {
    "domain": ("unused: it follows from the dtype", ...),
    "minimum": ("use low=",),
    "maximum": ("use high=",),
}
_ONE_HOT: Table = {"use_register": ("not available yet: classes are 0 to n - 1", False)}
_NON_TENSOR: Table = {
    "batched": ("not available yet: an encoded value has the shape of the spec", None, False),
    "feature_dims": ("not available yet: all dimensions of a spec are its own", None),
}
_COMPILABLE = ("unused: nothing has to be switched for torch.compile", ...)
_SERVICE = "use RayReplayBuffer(...)"
_SPEED = ("unused: the bounds of trajectories are always kept", ...)
_BUFFER: Table = {
    "delayed_init": ("unused: a storage is allocated by the first batch", ...),
    "service_backend": (_SERVICE, "direct", None),
    "service_backend_options": (_SERVICE, None),
    "transport": (_SERVICE, "auto"),
    "transport_options": (_SERVICE, None),
    "use_ray_service": (_SERVICE, False),
}
_SAMPLED_BUFFER: Table = {
    **_BUFFER,
    "transform_factory": ("use transform=", None),
    "checkpointer": ("unused: dumps and loads write one safetensors file", None),
    "compilable": _COMPILABLE,
}
_HINDSIGHT_BUFFER: Table = {
    **_SAMPLED_BUFFER,
    "shared": ("not available yet: episodes are known to one process", None, False),
    "goal_key": ("use desired_goal_key=", "desired_goal"),
    "sample_unit": ("use TensorDictReplayBuffer(sample_unit=...)", None),
    "consume_after_n_samples": ("use sampler=ConsumingSampler(n)", None),
}
_PRIORITIZED_BUFFER: Table = {
    **_BUFFER,
    "shared": ("not available yet: priorities belong to one process", None, False),
    "sync": ("not available yet: priorities are always updated at once", True),
    "sampler": ("use ReplayBuffer(sampler=...)", None),
    "consume_after_n_samples": ("use ReplayBuffer(consume_after_n_samples=...)", None),
}
_LAZY_TENSOR_STORAGE: Table = {
    "compilable": _COMPILABLE,
    "consolidated": ("unused: each entry is one tensor", ...),
    "shared_init": ("use ReplayBuffer(shared=True)", None, False),
    "cleanup_memmap": ("use LazyMemmapStorage(auto_cleanup=...)", True),
}
_MEMMAP_STORAGE: Table = {
    "compilable": _COMPILABLE,
    "shared_init": ("use ReplayBuffer(shared=True)", None, False),
}
_ROWS: Table = {
    "compilable": _COMPILABLE,
    "device": ("unused: rows stay on the device they come on", None, "auto"),
}
_LAZY_STACK_STORAGE: Table = {
    **_ROWS,
    "stack_dim": ("use the first dimension: that of the rows", 0),
}
_COMPRESSED_LIST_STORAGE: Table = {
    "compilable": _COMPILABLE,
    "device": ("unused: rows are on the CPU", "cpu", None),
}
_MEMBERS = "use the arguments of the members, which are buffers"
_ENSEMBLE_BUFFER: Table = {
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
_ENSEMBLE_STORAGE: Table = {
    "transforms": ("use transform= of the members", None),
}
_SLICES = "use sampler=SliceSampler(...)"
_PREPARED = "unused: a data set is prepared once, in this process"
_DATASET: Table = {
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
    "repo_id": ("use dataset_id=",),
}
_TENSOR_STORAGE: Table = {
    "compilable": _COMPILABLE,
    "max_size": ("unused: the storage is as large as its data", None),
    "device": ("use data.to(device)", None),
    "storage": ("use data=",),
}
_FIXED_WRITER: Table = {
    "compilable": _COMPILABLE,
}
_WRITER: Table = {
    "compilable": _COMPILABLE,
}
_SLICE_SAMPLER: Table = {
    "step_key": ("not available yet: use end_key= or traj_key=", "step_count"),
    "fragmented": ("not available yet: trajectories are stored in one piece", False),
    "ends": ("use end_key= and an entry of the batch", None),
    "trajectories": ("use traj_key= and an entry of the batch", None),
    "cache_values": _SPEED,
    "compile": _SPEED,
    "use_gpu": _SPEED,
}
_PRIORITIZED_SLICE_SAMPLER: Table = {
    "ends": ("use end_key= and an entry of the batch", None),
    "trajectories": ("use traj_key= and an entry of the batch", None),
    "cache_values": _SPEED,
    "compile": _SPEED,
    "max_pending": ("unused: priorities are always updated at once", ...),
}
_SLICE_SAMPLER_WITHOUT_REPLACEMENT: Table = {
    "ends": ("use end_key= and an entry of the batch", None),
    "trajectories": ("use traj_key= and an entry of the batch", None),
    "cache_values": _SPEED,
    "compile": _SPEED,
    "use_gpu": _SPEED,
}

ARGUMENTS: dict[str, Table] = {
    "rl.core.Bounded": _INTERVAL,
    "rl.core.MultiCategorical": {
        "remove_singleton": ("use Categorical(n) for one choice without a dimension of its own", False)
    },
    "rl.core.MultiOneHot": _ONE_HOT,
    "rl.core.NonTensor": _NON_TENSOR,
    "rl.core.OneHot": _ONE_HOT,
    "rl.core.Unbounded": _INTERVAL,
    "rl.core.check_env_specs": _CHECK_ENV_SPECS,
    "rl.core.make_composite_from_td": {"dynamic_shape": ("not available yet: a spec has one shape", False)},
    "rl.replay.AtariDQNExperienceReplay": _DATASET,
    "rl.replay.CompressedListStorage": _COMPRESSED_LIST_STORAGE,
    "rl.replay.D4RLExperienceReplay": _DATASET,
    "rl.replay.GenDGRLExperienceReplay": _DATASET,
    "rl.replay.HERReplayBuffer": _HINDSIGHT_BUFFER,
    "rl.replay.ImmutableDatasetWriter": _FIXED_WRITER,
    "rl.replay.LazyMemmapStorage": _MEMMAP_STORAGE,
    "rl.replay.LazyStackStorage": _LAZY_STACK_STORAGE,
    "rl.replay.LazyTensorStorage": _LAZY_TENSOR_STORAGE,
    "rl.replay.LeRobotExperienceReplay": _DATASET,
    "rl.replay.ListStorage": _ROWS,
    "rl.replay.MinariExperienceReplay": _DATASET,
    "rl.replay.OpenXExperienceReplay": _DATASET,
    "rl.replay.PrioritizedReplayBuffer": _PRIORITIZED_BUFFER,
    "rl.replay.PrioritizedSliceSampler": _PRIORITIZED_SLICE_SAMPLER,
    "rl.replay.ReplayBuffer": _SAMPLED_BUFFER,
    "rl.replay.ReplayBufferEnsemble": _ENSEMBLE_BUFFER,
    "rl.replay.RoundRobinWriter": _WRITER,
    "rl.replay.SliceSampler": _SLICE_SAMPLER,
    "rl.replay.SliceSamplerWithoutReplacement": _SLICE_SAMPLER_WITHOUT_REPLACEMENT,
    "rl.replay.StorageEnsemble": _ENSEMBLE_STORAGE,
    "rl.replay.TensorDictMaxValueWriter": _FIXED_WRITER,
    "rl.replay.TensorDictPrioritizedReplayBuffer": _PRIORITIZED_BUFFER,
    "rl.replay.TensorDictReplayBuffer": _SAMPLED_BUFFER,
    "rl.replay.TensorStorage": _TENSOR_STORAGE,
}
"""Table by class or function: its package and qualified name."""
