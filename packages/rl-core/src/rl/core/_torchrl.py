"""Names of TorchRL: what to use or to read instead of those that we do not have.

One table for the messages at run time, for docs/coming-from-torchrl.md and for ``rl migrate``. Arguments are answered
where their class is defined, by `rl.core.arguments.foreign_arguments`.
"""

from __future__ import annotations

MODULES = {
    "collectors": ("rl.collectors",),
    "data": ("rl.core", "rl.core.specs", "rl.replay"),
    "envs": ("rl.envs", "rl.core"),
    "modules": ("rl.modules",),
    "objectives": (
        "rl.objectives",
        "rl.objectives.value",
        "rl.objectives.value.functional",
        "rl.objectives.functional",
    ),
    "_utils": ("rl.core",),
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
        "VideoRecorder PixelRenderTransform TensorDictRecorder render_policy"
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
    f"weights are shared or sent by a weight updater; see {_HOWTO}weights.md": (
        "WeightSyncScheme WeightStrategy SharedMemWeightSyncScheme MultiProcessWeightSyncScheme"
        " NoWeightSyncScheme RayWeightSyncScheme RPCWeightSyncScheme DistributedWeightSyncScheme"
        " TransportBackend RemoteModuleWeightUpdater"
    ),
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
        "GPWorldModel RBFController MCTSForest Tree TensorDictMap"
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
