"""Arguments of TorchRL's specs, buffers, modules, losses and estimators that are ignored at some values or replaced."""

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
_MULTI_CATEGORICAL: Table = {
    "remove_singleton": ("use Categorical(n) for one choice without a dimension of its own", False)
}
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
_SAFE = "not available yet: use spec.project(action)"
_RESTARTS = "unused: a Collector, or the transform of make_tensordict_primer(), restarts the state at each episode"
_STRICT = "unused: shapes never broadcast", True
_ACTOR: Table = {
    "safe": (_SAFE, False),
    "inplace": ("not available yet: the batch is always updated in place", True),
}
_PROBABILISTIC_ACTOR: Table = {
    "safe": (_SAFE, False),
    "partial_tolerant": ("not available yet: all inputs have to be there", False),
    "cache_dist": ("unused: a distribution is built for each call", ...),
    "generator": ("not available yet: use torch.manual_seed", None),
    "log_prob_keys": ("use log_prob_key=", None),
}
_Q_VALUE_MODULE: Table = {
    "var_nums": ("use group_sizes=", None),
    "safe": ("unused: the chosen action is always one of the spec", ...),
    "strict_shape": _STRICT,
}
_Q_VALUE_ACTOR: Table = {
    "safe": ("unused: the chosen action is always one of the spec", ...),
    "action_key": ("use a QValueModule with out_keys=", None),
    "var_nums": ("use a QValueModule with group_sizes=", None),
    "chosen_action_value_key": ("use a QValueModule with out_keys=", None),
    "strict_shape": _STRICT,
}
_EXPLORER: Table = {
    "safe": ("unused: explored actions are always projected into the spec", ...),
}
_ORNSTEIN_UHLENBECK: Table = {
    "safe": ("unused: explored actions are always projected into the spec", ...),
    "is_init_key": (_RESTARTS, "is_init"),
}
_MULTI_STEP_ACTOR: Table = {
    "init_key": (_RESTARTS, "is_init", None),
}
_MLP: Table = {
    "single_bias_last_layer": ("not available yet: use bias_last_layer=False and add one parameter", False),
}
_MULTI_AGENT_NET: Table = {
    "use_td_params": ("unused: parameters are those of a torch.nn.Module", ...),
    "centralised": ("use centralized=",),
}
_CONV_NET: Table = {
    "squeeze_output": ("unused: the default aggregator flattens the last three dimensions", False),
}
_RECURRENT_LAYER: Table = {
    "use_scan": ("unused: the layers of this package always scan", ...),
}
_RECURRENT_MODULE: Table = {
    "python_based": ("unused: use recurrent_backend='scan', which handles resets and compiles", ...),
}
_KEYS = "use set_keys(advantage=..., value_target=..., value=...)"
_CHUNKS = "not available yet: networks see the entire batch at once; split it along its first dimension"
_ESTIMATOR: Table = {
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
_MULTI_AGENT_GAE: Table = {
    **_ESTIMATOR,
    "agent_dim": ("unused: it is the last but one", -2),
}
_TD_ESTIMATOR: Table = {
    **_ESTIMATOR,
    "average_rewards": ("not available yet: use normalized rewards in the batch", False),
}
_VTRACE: Table = {
    **_ESTIMATOR,
    "average_adv": ("not available yet: normalise the advantage of the batch afterwards", False),
}
_NETWORKS: Table = {
    "functional": ("unused: a loss always holds the networks themselves", ...),
    "deactivate_vmap": ("unused: networks never run under vmap", ...),
    "scalar_output_mode": ("use reduction=", None),
}
_POLICY: Table = {
    **_NETWORKS,
    "gamma": ("use make_value_estimator(..., gamma=...) or an estimator of its own", None),
    "advantage_key": (_KEYS, None),
    "value_target_key": (_KEYS, None),
    "value_key": (_KEYS, None),
    "actor": ("use actor_network=", None),
    "critic": ("use critic_network=", None),
}
_ADVANTAGE_NORM: Table = {
    "advantage_norm": ("not available yet: divide the advantage of the batch by its scale before the loss", None)
}
_COEFFICIENTS: Table = {
    "entropy_coef": ("use entropy_coeff=", None),
    "critic_coef": ("use critic_coeff=", None),
}
_IMPALA_LOSS: Table = {
    **{name: why for name, why in _POLICY.items() if name != "gamma"},
    **_COEFFICIENTS,
}
_A2C_LOSS: Table = {
    **_POLICY,
    **_COEFFICIENTS,
    **_ADVANTAGE_NORM,
}
_PPO_LOSS: Table = {
    **_POLICY,
    **_COEFFICIENTS,
    "log_explained_variance": ("use diagnostics=False", True),
    **_ADVANTAGE_NORM,
    "delay_actor": ("not available yet: use a copy of the actor", False),
    "max_importance_ratio": ("not available yet: use ClipPPOLoss(clip_epsilon=...)", None),
}
_DQN_LOSS: Table = {
    **_NETWORKS,
    "priority_key": ("use set_keys(priority=...)", None),
    "use_prioritized_weights": ("unused: 'priority_weight' counts if the batch has it", "auto", True),
}
_RND_LOSS: Table = {
    **_NETWORKS,
    "obs_rms": ("use a VecNorm or a RunningValueNorm before the loss, which normalizes what it reads", None),
    "obs_clip": ("unused: it is of obs_rms; clip what the loss reads", ...),
    "update_fraction": ("not available yet: give the loss a part of the batch", 1.0, 1),
}
_OFF_POLICY: Table = {
    **_NETWORKS,
    "separate_losses": ("not available yet: gradients of a shared network are summed; use two networks", False),
    "priority_key": ("use set_keys(priority=...)", None),
    "use_prioritized_weights": ("unused: 'priority_weight' counts if the batch has it", "auto", True),
    "gSDE": ("not available yet: the actor explores by its own distribution", False),
    "skip_done_states": ("unused: the value of a terminal state is never part of a target", ...),
}
_UPDATE: Table = {
    "loss_module": ("use loss=",),
}
_ROLLING: Table = {
    "rolling_gamma": ("not available yet: a tensor gamma is always that of each step", None, True),
}
_DISTANCE_LOSS: Table = {
    "strict_shape": ("unused: shapes always have to agree, values are [*B, 1]", ...),
}

ARGUMENTS: dict[str, Table] = {
    "rl.core.Bounded": _INTERVAL,
    "rl.core.MultiCategorical": _MULTI_CATEGORICAL,
    "rl.core.MultiOneHot": _ONE_HOT,
    "rl.core.NonTensor": _NON_TENSOR,
    "rl.core.OneHot": _ONE_HOT,
    "rl.core.Unbounded": _INTERVAL,
    "rl.core.check_env_specs": _CHECK_ENV_SPECS,
    "rl.core.make_composite_from_td": {"dynamic_shape": ("not available yet: a spec has one shape", False)},
    "rl.modules.Actor": _ACTOR,
    "rl.modules.AdditiveGaussianModule": _EXPLORER,
    "rl.modules.Conv3dNet": _CONV_NET,
    "rl.modules.ConvNet": _CONV_NET,
    "rl.modules.DistributionalQValueActor": _Q_VALUE_ACTOR,
    "rl.modules.DistributionalQValueModule": _Q_VALUE_MODULE,
    "rl.modules.EGreedyModule": _EXPLORER,
    "rl.modules.GRU": _RECURRENT_LAYER,
    "rl.modules.GRUModule": _RECURRENT_MODULE,
    "rl.modules.LSTM": _RECURRENT_LAYER,
    "rl.modules.LSTMModule": _RECURRENT_MODULE,
    "rl.modules.MLP": _MLP,
    "rl.modules.MultiAgentConvNet": _MULTI_AGENT_NET,
    "rl.modules.MultiAgentMLP": _MULTI_AGENT_NET,
    "rl.modules.MultiStepActorWrapper": _MULTI_STEP_ACTOR,
    "rl.modules.OrnsteinUhlenbeckProcessModule": _ORNSTEIN_UHLENBECK,
    "rl.modules.ProbabilisticActor": _PROBABILISTIC_ACTOR,
    "rl.modules.QValueActor": _Q_VALUE_ACTOR,
    "rl.modules.QValueModule": _Q_VALUE_MODULE,
    "rl.modules.QuantileQValueActor": _Q_VALUE_ACTOR,
    "rl.modules.QuantileQValueModule": _Q_VALUE_MODULE,
    "rl.objectives.A2CLoss": _A2C_LOSS,
    "rl.objectives.CrossQLoss": _OFF_POLICY,
    "rl.objectives.DDPGLoss": _OFF_POLICY,
    "rl.objectives.DQNLoss": _DQN_LOSS,
    "rl.objectives.DTLoss": _NETWORKS,
    "rl.objectives.DiscreteSACLoss": _OFF_POLICY,
    "rl.objectives.DistributionalDQNLoss": _DQN_LOSS,
    "rl.objectives.GAE": _ESTIMATOR,
    "rl.objectives.HardUpdate": _UPDATE,
    "rl.objectives.IQLLoss": _OFF_POLICY,
    "rl.objectives.ImpalaLoss": _IMPALA_LOSS,
    "rl.objectives.MAPPOLoss": _PPO_LOSS,
    "rl.objectives.MultiAgentGAE": _MULTI_AGENT_GAE,
    "rl.objectives.OnlineDTLoss": _NETWORKS,
    "rl.objectives.PPOLoss": _PPO_LOSS,
    "rl.objectives.QMixerLoss": _DQN_LOSS,
    "rl.objectives.QRDQNLoss": _DQN_LOSS,
    "rl.objectives.REDQLoss": _OFF_POLICY,
    "rl.objectives.RNDLoss": _RND_LOSS,
    "rl.objectives.ReinforceLoss": _POLICY,
    "rl.objectives.SACLoss": _OFF_POLICY,
    "rl.objectives.SoftUpdate": _UPDATE,
    "rl.objectives.TD3Loss": _OFF_POLICY,
    "rl.objectives.TDEstimatorBase": _TD_ESTIMATOR,
    "rl.objectives.TDLambdaEstimator": _TD_ESTIMATOR,
    "rl.objectives.TQCLoss": _OFF_POLICY,
    "rl.objectives.VTrace": _VTRACE,
    "rl.objectives.ValueEstimatorBase": _ESTIMATOR,
    "rl.objectives.distance_loss": _DISTANCE_LOSS,
    "rl.objectives.td1_advantage_estimate": _ROLLING,
    "rl.objectives.td1_return_estimate": _ROLLING,
    "rl.objectives.td_lambda_advantage_estimate": _ROLLING,
    "rl.objectives.td_lambda_return_estimate": _ROLLING,
    "rl.objectives.vec_td1_advantage_estimate": _ROLLING,
    "rl.objectives.vec_td1_return_estimate": _ROLLING,
    "rl.objectives.vec_td_lambda_advantage_estimate": _ROLLING,
    "rl.objectives.vec_td_lambda_return_estimate": _ROLLING,
    "rl.replay.AtariDQNExperienceReplay": _DATASET,
    "rl.replay.CompressedListStorage": _COMPRESSED_LIST_STORAGE,
    "rl.replay.D4RLExperienceReplay": _DATASET,
    "rl.replay.GenDGRLExperienceReplay": _DATASET,
    "rl.replay.HERReplayBuffer": _HINDSIGHT_BUFFER,
    "rl.replay.ImmutableDatasetWriter": _WRITER,
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
    "rl.replay.TensorDictMaxValueWriter": _WRITER,
    "rl.replay.TensorDictPrioritizedReplayBuffer": _PRIORITIZED_BUFFER,
    "rl.replay.TensorDictReplayBuffer": _SAMPLED_BUFFER,
    "rl.replay.TensorStorage": _TENSOR_STORAGE,
}
"""Table by class or function: its package and qualified name."""
