"""Names of TorchRL: what to use or to read instead of those that we do not have, and what is said about arguments.

One table for the messages at run time, for docs/coming-from-torchrl.md, for ``rl migrate`` and for the modules below
`rl.torchrl`. rl-core asks `instead_of` and `arguments_of`, entry points of the group ``rl.foreign``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

Table = dict[str, tuple[str, *tuple[object, ...]]]
"""By argument: what to use in its place, then the values at which it is ignored; ``...`` is any value."""

TREE = {
    "": (
        "_utils checkpoint collectors data envs modules objectives record render services testing trainers "
        "weight_update"
    ),
    "collectors": "collectors distributed llm utils weight_update",
    "collectors.distributed": "default_configs generic ray ray_eval_worker rpc sync utils",
    "collectors.llm": "base ray_collector utils weight_update",
    "collectors.llm.weight_update": "vllm vllm_v2",
    "data": "datasets llm map postprocs replay_buffers tensor_specs utils video vla",
    "data.datasets": "atari_dqn common d4rl d4rl_infos gen_dgrl lerobot minari_data openml openx roboset utils vd4rl",
    "data.llm": "dataset history prompt reward topk utils",
    "data.map": "hash query tdstorage tree utils",
    "data.postprocs": "postprocs",
    "data.replay_buffers": (
        "checkpointers her offline_to_online query ray_buffer replay_buffers sample_units samplers scheduler "
        "storages utils writers"
    ),
    "data.replay_buffers.replay_buffers": (
        "base deprecated ensemble prioritized prioritized_tensordict remote tensordict"
    ),
    "data.replay_buffers.samplers": (
        "base ensemble llm prioritized prioritized_slice random slice slice_without_replacement staleness"
    ),
    "data.replay_buffers.storages": "base ensemble list store tensor utils",
    "data.replay_buffers.writers": "base ensemble max_value round_robin",
    "data.vla": "containers metadata preprocessing schema tokenizers",
    "envs": (
        "async_envs batched_envs common custom env_creator gym_like libs llm model_based transforms utils vec_envs"
    ),
    "envs.custom": "chess llm mujoco pendulum tictactoeenv trading vla",
    "envs.custom.mujoco": "ant base cube_bowl hopper humanoid satellite walker",
    "envs.libs": (
        "brax dm_control envpool genesis gym habitat isaac_lab isaacgym jax_utils jumanji libero meltingpot "
        "mjlab mujoco_playground openml openspiel pettingzoo procgen robohive safety_gymnasium smacv2 "
        "unity_mlagents utils vmas"
    ),
    "envs.llm": "chat datasets envs libs reward transforms",
    "envs.llm.datasets": "countdown gsm8k ifeval math",
    "envs.llm.libs": "mlgym",
    "envs.llm.reward": "countdown gsm8k ifeval math",
    "envs.llm.transforms": "browser dataloading format kl policy_version reason tokenizer tools",
    "envs.model_based": "common dreamer imagined world_model_env",
    "envs.transforms": (
        "functional gym_transforms mean_action_selector module r3m ray_service rb_transforms rnd transforms "
        "utils vc1 vecnorm vip"
    ),
    "modules": (
        "distributions functional inference_server llm mcts models planners tensordict_module utils "
        "value_norm value_transforms vla"
    ),
    "modules.distributions": "continuous discrete truncated_normal utils",
    "modules.llm": "backends policies trl_interop utils",
    "modules.llm.backends": "sglang vllm",
    "modules.llm.backends.sglang": "base sglang_server sglang_utils",
    "modules.llm.backends.vllm": "base vllm_async vllm_plugin vllm_sync vllm_utils",
    "modules.llm.policies": "common sglang_wrapper transformers_wrapper vllm_wrapper",
    "modules.mcts": "scores",
    "modules.models": (
        "act batchrenorm cross_group_critic decision_transformer dreamer_v3 exploration gp llm model_based "
        "models multiagent rbf_controller utils"
    ),
    "modules.planners": "cem common mppi",
    "modules.tensordict_module": "actors common exploration probabilistic rnn sequence world_models",
    "modules.utils": "mappings utils",
    "modules.vla": "common models wrappers",
    "objectives": (
        "a2c act bc common cql crossq ddpg decision_transformer deprecated diffusion_bc dqn dreamer "
        "dreamer_v3 functional gail iql llm multiagent pilco ppo redq reinforce rnd sac td3 td3_bc tqc utils "
        "value world_model_loss"
    ),
    "objectives.llm": "distillation grpo sft",
    "objectives.multiagent": "mappo qmixer",
    "objectives.value": "advantages functional utils",
    "record": "loggers recorder",
    "record.loggers": "common csv mlflow monitoring process ray tensorboard trackio utils wandb",
    "render": "artifacts backends checkpoint cli config env import_utils mujoco_wasm notebook policy rollout video",
    "render.backends": "base env mujoco null pixels",
    "services": "base ray_service",
    "testing": (
        "assertions dist_utils env_creators env_helper gym_helpers llm_mocks mocking_classes modules "
        "mp_helpers ray_helpers utils"
    ),
    "trainers": "algorithms helpers trainers",
    "trainers.algorithms": "a2c configs cql ddpg dqn iql offline_to_online on_policy ppo reinforce sac td3",
    "trainers.algorithms.configs": (
        "collectors common data envs envs_libs hooks logging modules objectives trainers transforms utils "
        "weight_sync_schemes weight_update"
    ),
    "trainers.helpers": "collectors envs logger losses models replay_buffer trainers",
    "weight_update": "llm utils weight_sync_schemes",
    "weight_update.llm": "sglang_nccl vllm_double_buffer vllm_nccl",
}
"""Modules of TorchRL 0.14 by the package that holds them, without private ones."""


@cache
def _modules() -> frozenset[str]:
    return frozenset(f"{parent}.{name}".lstrip(".") for parent, names in TREE.items() for name in names.split())


def is_module(path: str) -> bool:
    """Whether a dotted path below `torchrl` is a module of TorchRL.

    Example:
        >>> is_module("envs.libs.gym"), is_module("envs.GymEnv")
        (True, False)
    """
    return path in _modules()


MODULES = {
    "collectors": ("rl.collectors",),
    "data": ("rl.core", "rl.core.specs", "rl.replay"),
    "envs": ("rl.envs", "rl.core"),
    "modules": ("rl.modules", "rl.collectors"),
    "objectives": (
        "rl.objectives",
        "rl.objectives.value",
        "rl.objectives.value.functional",
        "rl.objectives.functional",
    ),
    "_utils": ("rl.core", "rl.core.profiling"),
}
"""Our modules by the package of TorchRL whose names they have."""

RENAMED = {
    "BinaryDiscreteTensorSpec": "rl.core.specs.Binary",
    "BoundedTensorSpec": "rl.core.specs.Bounded",
    "CompositeSpec": "rl.core.specs.Composite",
    "DiscreteTensorSpec": "rl.core.specs.Categorical",
    "LazyStackedTensorSpec": "rl.core.specs.Stacked",
    "MultiDiscreteTensorSpec": "rl.core.specs.MultiCategorical",
    "MultiOneHotDiscreteTensorSpec": "rl.core.specs.MultiOneHot",
    "MultiSyncDataCollector": "rl.collectors.MultiSyncCollector",
    "MultiaSyncDataCollector": "rl.collectors.MultiAsyncCollector",
    "NonTensorSpec": "rl.core.specs.NonTensor",
    "OneHotDiscreteTensorSpec": "rl.core.specs.OneHot",
    "SyncDataCollector": "rl.collectors.Collector",
    "UnboundedContinuousTensorSpec": "rl.core.specs.UnboundedContinuous",
    "UnboundedDiscreteTensorSpec": "rl.core.specs.UnboundedDiscrete",
    "env_creator": "rl.envs.EnvCreator",
}
"""Names of TorchRL, older ones among them, with another name here and the same meaning."""

ANOTHER_MEANING = frozenset(
    [
        "ChessEnv",
        "Evaluator",
        "HERReplayBuffer",
        "LazyStackStorage",
        "Logger",
        "MujocoEnv",
        "PolicyAgeFilter",
        "SuccessReward",
        "WorldModelEnv",
        "load_checkpoint",
    ]
)
"""Names that exist here with another meaning; docs/coming-from-torchrl.md has a table of them."""

SAME_VALUES = frozenset(
    [
        "actor",
        "centralised",
        "critic",
        "critic_coef",
        "entropy_coef",
        "loss_module",
        "maximum",
        "minimum",
        "num_sub_threads",
        "storage",
        "unsqueeze_dim",
        "use_shared_mem",
    ]
)
"""Arguments with another name here and the same values, which `foreign_arguments` answers with ``use NAME=``."""

SUBCLASSES = {
    "EnvBase": "EnvBase: specs are written without the batch, and it is no nn.Module; see docs/howto/environment.md",
    "LossModule": "LossModule: a loss has a contract in place of tensor_keys; see docs/howto/losses.md",
    "Transform": "Transform: it has transform_specs and is no nn.Module; see docs/howto/transforms.md",
}
"""Classes that are used as there, but inherited from in another way."""

_HOWTO = "docs/howto/"
_NOT_YET = "it is not available; docs/coming-from-torchrl.md lists what is not"

_INSTEAD = {
    "specs are in rl.core, rarer ones in rl.core.specs; see docs/specs.md": (
        "Binary Bounded BoundedContinuous BoundedDiscrete Categorical Choice Composite MultiCategorical"
        " MultiOneHot NonTensor OneHot Stacked StackedComposite TensorSpec Unbounded UnboundedContinuous"
        " UnboundedDiscrete"
    ),
    "use rl.core.step_mdp": "step_mdp",
    "use it from rl.core": "ExplorationType exploration_type set_exploration_type",
    "use rl.core.specs.make_composite_from_td": "make_composite_from_td",
    "use it from rl.replay": "BurnInTransform MultiStepTransform RandomCropTensorDict Reward2GoTransform",
    "use it from rl.modules": "symexp symlog two_hot_cross_entropy two_hot_decode two_hot_encode",
    "use it from rl.objectives.functional, where it returns one number for each step": (
        "categorical_kl_balanced categorical_kl_terms"
    ),
    "use it from rl.envs": "RandomPolicy get_primers_from_module",
    "use rl.modules.TanhNormal, or the function safetanh": "SafeTanhTransform",
    "use rl.core.interfaces.Storage, or a class of rl.replay.storages": "Storage",
    "use rl.core.interfaces.Writer, or a class of rl.replay.writers": "Writer",
    "use rl.trainers.Logger, whose methods may differ; see docs/coming-from-torchrl.md": "Logger",
    "use rl.trainers.CSVLogger, or `rl train --loggers csv`": "CSVLogger",
    "use rl.trainers.TensorBoardLogger, or `rl train --loggers tensorboard`": "TensorboardLogger",
    "use it from rl.trainers": "get_logger generate_exp_name WandbLogger TrackioLogger",
    "use rl.trainers.MLflowLogger, or `rl train --loggers mlflow`": "MLFlowLogger",
    "write a logger of your own, as docs/plugins.md shows": "ProcessLogger RayLogger LoggerMonitor",
    f"use `rl eval RUN --video FILE`, or video_key= of rl.collectors.Evaluator; see {_HOWTO}training.md": (
        "render_policy"
    ),
    f"write the loop as lines of your own; see {_HOWTO}own-loop.md": (
        "Trainer TrainerHookBase BatchSubSampler ClearCudaCache CountFramesLog DefaultOptimizationStepper"
        " EarlyStopping LRSchedulerHook LogScalar LogTiming LogValidationReward OptimizationStepper"
        " OptimizerHook ReplayBufferTrainer RewardNormalizer SelectKeys TargetNetUpdaterHook UTDRHook"
        " UpdateWeights ValueEstimatorHook"
    ),
    "use `rl train --precision bf16`": "MixedPrecisionOptimizationStepper",
    f"use rl.trainers.Checkpoint; see {_HOWTO}own-loop.md": "Checkpoint",
    f"put a frozen network into a function, which is a transform; see {_HOWTO}transforms.md": (
        "R3MTransform VIPTransform VIPRewardTransform VC1Transform"
    ),
    "use rl.envs.VecNorm": "VecNormV2 RunningMeanStd",
    "use rl.envs.GymEnv: Gymnasium is the only back end": "set_gym_backend gym_backend",
    f"use rl.envs.EnvBase; see {_HOWTO}environment.md": "GymLikeEnv EnvMetaData",
    f"use `rl plugins --all`, which lists environments; see {_HOWTO}simulators/index.md": "get_available_libraries",
    "use rl.collectors.MultiAsyncCollector with one environment": "AsyncCollector",
    "use rl.core.interfaces.Collector": "BaseCollector",
    f"use update_policy_weights_() of a collector or server, which sends weights by itself; see {_HOWTO}weights.md": (
        "WeightSyncScheme WeightStrategy SharedMemWeightSyncScheme MultiProcessWeightSyncScheme"
        " NoWeightSyncScheme RayWeightSyncScheme RPCWeightSyncScheme DistributedWeightSyncScheme"
        " TransportBackend RemoteModuleWeightUpdater"
    ),
    f"use client() of rl.collectors.InferenceServer, a policy that connects by itself; see {_HOWTO}scaling.md": (
        "PolicyClientModule InferenceTransport ThreadingTransport SlotTransport MPTransport SharedMemoryTransport"
        " RayTransport MonarchTransport"
    ),
    "use rl.collectors.InferenceServer with service_backend='process'": "ProcessInferenceServer",
    "use the arguments of rl.collectors.InferenceServer": "InferenceServerConfig InferenceDeviceConfig",
    "use rl.modules.EGreedyModule": "EGreedyWrapper",
    "use rl.modules.AdditiveGaussianModule": "AdditiveGaussianWrapper",
    "use rl.modules.OrnsteinUhlenbeckProcessModule": "OrnsteinUhlenbeckProcessWrapper",
    "use rl.modules.NormalParamExtractor after the network": "NormalParamWrapper",
    "use rl.modules.QValueModule": "QValueHook DistributionalQValueHook",
    "call make_tensordict_primer of the module, as of rl.modules.LSTMModule": "get_env_transforms_from_module",
    "use rl.objectives.SoftUpdate or rl.objectives.HardUpdate": "TargetNetUpdater",
    "use rl.objectives.TD0Estimator": "TD0Estimate next_state_value",
    "use rl.objectives.TD1Estimator": "TD1Estimate",
    "use rl.objectives.TDLambdaEstimator": "TDLambdaEstimate",
    f"use the function of that name in rl.replay; see {_HOWTO}replay.md": (
        "Trajectory TrajectoryPredicate filter_trajectories iter_trajectories traj find_start_stop_traj"
    ),
    f"use dumps and loads of a buffer, one safetensors file; see {_HOWTO}replay.md": (
        "TED2Flat TED2Nested Flat2TED Nested2TED H5Split H5Combine StorageCheckpointerBase"
        " TensorStorageCheckpointer ListStorageCheckpointer FlatStorageCheckpointer"
        " NestedStorageCheckpointer H5StorageCheckpointer"
    ),
    f"data sets are in rl.replay.datasets, and load_dataset takes a name; see {_HOWTO}offline.md": (
        "AtariDQNExperienceReplay BaseDatasetExperienceReplay D4RLExperienceReplay GenDGRLExperienceReplay"
        " load_dataset LeRobotExperienceReplay MinariExperienceReplay OpenMLExperienceReplay"
        " OpenXExperienceReplay register_dataset RobosetExperienceReplay VD4RLExperienceReplay"
    ),
    f"use it from rl.llm; see {_HOWTO}llm.md": (
        "History ChatHistory Text Tokens Masks LogProbs LLMWrapperBase TransformersWrapper"
        " RemoteTransformersWrapper vLLMWrapper SGLangWrapper ChatEnv DatasetChatEnv LLMEnv GSM8KEnv MATHEnv"
        " CountdownEnv IFEvalEnv GSM8KRewardParser MATHRewardParser CountdownRewardParser IfEvalScorer"
        " DataLoadingPrimer TemplateTransform IncrementalTokenizer AddThinkingPrompt PythonInterpreter ToolCall"
        " ToolRegistry JSONCallParser XMLBlockParser KLRewardTransform RetrieveKL RetrieveLogProb GRPOLoss"
        " CISPOLoss MCAdvantage SFTLoss DistillationLoss LLMCollector"
    ),
    "use rl.llm.DAPOLoss": "DAPO",
    "use rl.llm.RetrieveKL": "KLComputation",
    "use rl.llm.ChatTemplate": "add_chat_template",
    "use padded, packed or nested of rl.llm": "as_padded_tensor as_nested_tensor",
    "use `rl train grpo`, or rl.llm.train_llm": "GRPOTrainer",
    f"{_HOWTO}llm-names.md says what to use": (
        "ContentBase AsyncVLLM AsyncSGLang RLvLLMEngine RLSGLangEngine LocalLLMWrapper RayLLMWorker"
        " make_async_vllm_engine make_vllm_worker stateless_init_process_group"
        " stateless_init_process_group_async get_open_port wait_for_server make_gsm8k_env GSM8KPrepareQuestion"
        " IFEvalData IFEvalScoreData RayDataLoadingPrimer PythonExecutorService MCPToolTransform"
        " SimpleToolTransform ExecuteToolsInOrder ToolService GRPOLossOutput DAPOLossOutput CISPOLossOutput"
        " LLMLossOutput SFTLossOutput DistillationLossOutput RayMCAdvantage MCAdvantageSelector"
        " k3_kl_token_estimate RayLLMCollector VLLMWeightSyncScheme VLLMWeightSender VLLMWeightReceiver"
        " VLLMCollectiveTransport VLLMDoubleBufferSyncScheme VLLMDoubleBufferTransport"
        " VLLMDoubleBufferWeightSender VLLMDoubleBufferWeightReceiver SGLangWeightSyncScheme SGLangWeightSender"
        " SGLangCollectiveTransport get_model_metadata get_sglang_model_metadata vLLMUpdater vLLMUpdaterV2"
        " AdaptiveKLController ConstantKLController PairwiseDataset PromptData PromptTensorDictTokenizer"
        " RewardData TensorDictTokenizer TokenizedDatasetLoader TopKRewardSelector HFRewardModelWrapper"
    ),
    _NOT_YET: (
        "GPWorldModel RBFController TensorDictMap"
        " QueryModule EXP3Score UCB1TunedScore FinancialRegimeEnv GenesisEnv"
        " GenesisWrapper HabitatEnv IsaacGymEnv IsaacGymWrapper LiberoEnv LiberoWrapper MJLabEnv"
        " MJLabWrapper MeltingpotEnv MeltingpotWrapper OpenMLEnv ProcgenEnv ProcgenWrapper RoboHiveEnv"
        " SMACv2Env SMACv2Wrapper SatelliteEnv ToyVLAEnv LLMHashingEnv LLMMaskedCategorical"
        " LMHeadActorValueOperator Tokenizer"
        " ActionTokenizerBase BinaryToDecimal"
        " CompressedListStorageCheckpointer DEFAULT_DONE_KEYS DEVICE_TYPING DensifyReward HashToInt"
        " PromptGroupSampler RandomProjectionHash RobotDatasetMetadata SipHash StorageEnsembleCheckpointer"
        " StoreStorage TensorMap UniformActionTokenizer VideoClipRef VocabTailActionTokenizer"
        " check_no_exclusive_keys clear_video_decoder_cache consolidate_spec contains_lazy_spec"
        " create_infinite_iterator get_dataloader set_video_decoder_cache_size validate_vla_tensordict"
        " ActionTokenizerTransform CartesianSolver CubeBowlEnv DecodeVideoTransform HumanoidMacroAction"
        " MacroAction MacroPrimitive MacroPrimitiveTransform MeanActionSelector"
        " MujocoPlaygroundAgentMapping MujocoPlaygroundAgentSpec MultiAction MultiThreadedEnvWrapper"
        " RobotMacroAction RobotMacroActionMode SatelliteAttitudeTransform"
        " SatelliteMacroAction TargetMacroAction URScriptPrimitive URScriptPrimitiveTransform"
        " default_info_dict_reader get_env_metadata make_tensordict"
        " terminated_or_truncated CrossCriticGroupSpec CrossGroupCritic"
        " LeRobotPolicyWrapper MCTSScores RecurrentMatmulPrecision"
        " RecurrentMatmulPrecisionUserMode ReparamGradientStrategy Squeeze2dLayer SqueezeLayer"
        " TinyVLA VLAWrapperBase canonicalize_rnn_subset distributions_maps AUTO_LOSS_MASK_KEYS"
        " ExponentialQuadraticCost add_random_module"
        " default_value_kwargs mask_batch"
        " MLGymWrapper make_mlgym BrowserTransform TorchRLBufferDataset RolloutFromModel"
    ),
}
"""What to do, and the names of TorchRL to which it applies; packages that have a name do not ask."""


def instead_of(name: str) -> str | None:
    """Return what to use or to read instead of a name of TorchRL; None for any other name.

    Example:
        >>> instead_of("TargetNetUpdater")
        'use rl.objectives.SoftUpdate or rl.objectives.HardUpdate'
        >>> instead_of("GymEnv") is None
        True
    """
    if name in RENAMED:
        return f"use {RENAMED[name]}"
    return next((remedy for remedy, names in _INSTEAD.items() if name in names.split()), None)


_TABLES = {
    "rl.collectors": "envs",
    "rl.core": "learning",
    "rl.envs": "envs",
    "rl.modules": "learning",
    "rl.objectives": "learning",
    "rl.replay": "learning",
}
"""Module ``_arguments_*`` of each package that has arguments in the tables."""


def arguments_of(owner: str) -> Mapping[str, tuple[str, *tuple[object, ...]]]:
    """Return what is said about arguments of TorchRL that a class or function does not have.

    Args:
        owner: Package and qualified name, such as ``rl.envs.EnvBase.rollout``.

    Example:
        >>> arguments_of("rl.objectives.SoftUpdate")
        {'loss_module': ('use loss=',)}
        >>> arguments_of("acme.Loss")
        {}
    """
    part = _TABLES.get(".".join(owner.split(".")[:2]))
    return import_module(f"rl.torchrl._arguments_{part}").ARGUMENTS.get(owner, {}) if part else {}
