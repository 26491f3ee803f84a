"""Reinforcement-learning environments and transforms on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.mdp import step_mdp
    from rl.envs.__about__ import __version__
    from rl.envs._groups import MarlGroupMapType, check_marl_grouping
    from rl.envs.base._base import EnvBase
    from rl.envs.base._check_env import check_env
    from rl.envs.base._checks import check_env_specs
    from rl.envs.base._leaf import EnvAdapter, LeafCalls, LeafEnvBase, as_env
    from rl.envs.base._rollout import RandomPolicy
    from rl.envs.batched._async_pool import AsyncEnvPool, ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
    from rl.envs.batched._parallel import ParallelEnv
    from rl.envs.batched._serial import EnvCreator, SerialEnv
    from rl.envs.brax import BraxEnv, BraxWrapper
    from rl.envs.chess import ChessEnv
    from rl.envs.dm_control import DMControlEnv, DMControlWrapper
    from rl.envs.envpool import EnvPoolEnv, MultiThreadedEnv
    from rl.envs.gym._as_gymnasium import as_gymnasium, register_gym_env
    from rl.envs.gym._spaces import register_gym_spec_conversion
    from rl.envs.gym._wrapper import GymEnv, GymWrapper
    from rl.envs.gymnax import GymnaxEnv, GymnaxWrapper
    from rl.envs.isaac_lab import IsaacLabEnv, IsaacLabWrapper, isaac_lab_env
    from rl.envs.jumanji import JumanjiEnv, JumanjiWrapper
    from rl.envs.metaworld import MetaWorldEnv, MetaWorldWrapper
    from rl.envs.mo_gymnasium import MOGymEnv, MOGymWrapper
    from rl.envs.model_based import DreamerDecoder, DreamerEnv, ImaginedEnv, ModelBasedEnvBase, WorldModelEnv
    from rl.envs.mujoco import AntEnv, HalfCheetahEnv, HopperEnv, HumanoidEnv, MujocoEnv, Walker2dEnv
    from rl.envs.mujoco_playground import MujocoPlaygroundEnv, MujocoPlaygroundWrapper
    from rl.envs.native._arcade import BreakoutEnv, DoorKeyEnv, Game2048Env, SnakeEnv
    from rl.envs.native._classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv, PendulumEnv
    from rl.envs.native._games import BanditEnv, GridWorldEnv, PixelGridWorldEnv, TicTacToeEnv
    from rl.envs.open_spiel import OpenSpielEnv, OpenSpielWrapper
    from rl.envs.pettingzoo import PettingZooEnv, PettingZooWrapper
    from rl.envs.safety_gymnasium import SafetyGymnasiumEnv, SafetyGymnasiumWrapper
    from rl.envs.transforms._base import Transform
    from rl.envs.transforms._module import ModuleTransform
    from rl.envs.transforms._transformed_env import Compose, TransformedEnv
    from rl.envs.transforms.action import (
        ActionChunkTransform,
        ActionClipping,
        ActionDiscretizer,
        ActionMask,
        ActionScaling,
        DiscreteActionProjection,
        FlattenAction,
    )
    from rl.envs.transforms.autoreset import AutoResetEnv, AutoResetTransform, VecGymEnvTransform
    from rl.envs.transforms.device import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, PinMemoryTransform
    from rl.envs.transforms.episode._control import (
        ConditionalPolicySwitch,
        ConditionalSkip,
        EndOfLifeTransform,
        FrameSkipTransform,
        NoopResetEnv,
        RandomTruncationTransform,
        TerminateTransform,
    )
    from rl.envs.transforms.episode._counters import InitTracker, PolicyVersion, StepCounter, Timer, TrajCounter
    from rl.envs.transforms.image import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
    from rl.envs.transforms.keys import (
        ExcludeTransform,
        FlattenTensorDict,
        RemoveEmptySpecs,
        RenameTransform,
        SelectTransform,
    )
    from rl.envs.transforms.normalize import ObservationNorm, RewardNorm, VecNorm
    from rl.envs.transforms.observation import (
        CatFrames,
        ClipTransform,
        FiniteTensorDictCheck,
        Hash,
        NextObservationDelta,
        NextStateReconstructor,
        ObservationIndices,
        ObservationTransform,
        TimeMaxPool,
        UnaryTransform,
        cat_frames,
    )
    from rl.envs.transforms.recording import PixelRenderTransform, TensorDictRecorder, VideoRecorder
    from rl.envs.transforms.recurrent import TensorDictPrimer, get_primers_from_module, gSDENoise
    from rl.envs.transforms.reward import (
        BinarizeReward,
        LineariseRewards,
        RewardClipping,
        RewardScaling,
        RewardSum,
        RNDTransform,
        SignTransform,
        SuccessReward,
        TargetReturn,
        TeamReward,
    )
    from rl.envs.transforms.shape import (
        BatchSizeTransform,
        CatTensors,
        ExpandAs,
        FlattenObservation,
        PermuteTransform,
        SqueezeTransform,
        Stack,
        UnsqueezeTransform,
    )
    from rl.envs.unity_mlagents import UnityMLAgentsEnv, UnityMLAgentsWrapper
    from rl.envs.vmas import VmasEnv, VmasWrapper

__all__ = [
    "AcrobotEnv",
    "ActionChunkTransform",
    "ActionClipping",
    "ActionDiscretizer",
    "ActionMask",
    "ActionScaling",
    "AntEnv",
    "AsyncEnvPool",
    "AutoResetEnv",
    "AutoResetTransform",
    "BanditEnv",
    "BatchSizeTransform",
    "BinarizeReward",
    "BraxEnv",
    "BraxWrapper",
    "BreakoutEnv",
    "CartPoleEnv",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "ChessEnv",
    "ClipTransform",
    "Compose",
    "ConditionalPolicySwitch",
    "ConditionalSkip",
    "Crop",
    "DMControlEnv",
    "DMControlWrapper",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DiscreteActionProjection",
    "DoorKeyEnv",
    "DoubleToFloat",
    "DreamerDecoder",
    "DreamerEnv",
    "EndOfLifeTransform",
    "EnvAdapter",
    "EnvBase",
    "EnvCreator",
    "EnvPoolEnv",
    "ExcludeTransform",
    "ExpandAs",
    "FiniteTensorDictCheck",
    "FlattenAction",
    "FlattenObservation",
    "FlattenTensorDict",
    "FrameSkipTransform",
    "Game2048Env",
    "GrayScale",
    "GridWorldEnv",
    "GymEnv",
    "GymWrapper",
    "GymnaxEnv",
    "GymnaxWrapper",
    "HalfCheetahEnv",
    "Hash",
    "HopperEnv",
    "HumanoidEnv",
    "ImaginedEnv",
    "InitTracker",
    "IsaacLabEnv",
    "IsaacLabWrapper",
    "JumanjiEnv",
    "JumanjiWrapper",
    "LeafCalls",
    "LeafEnvBase",
    "LineariseRewards",
    "MOGymEnv",
    "MOGymWrapper",
    "MarlGroupMapType",
    "MetaWorldEnv",
    "MetaWorldWrapper",
    "ModelBasedEnvBase",
    "ModuleTransform",
    "MountainCarEnv",
    "MujocoEnv",
    "MujocoPlaygroundEnv",
    "MujocoPlaygroundWrapper",
    "MultiThreadedEnv",
    "NextObservationDelta",
    "NextStateReconstructor",
    "NoopResetEnv",
    "ObservationIndices",
    "ObservationNorm",
    "ObservationTransform",
    "OpenSpielEnv",
    "OpenSpielWrapper",
    "ParallelEnv",
    "PendulumEnv",
    "PermuteTransform",
    "PettingZooEnv",
    "PettingZooWrapper",
    "PinMemoryTransform",
    "PixelGridWorldEnv",
    "PixelRenderTransform",
    "PolicyVersion",
    "ProcessorAsyncEnvPool",
    "RNDTransform",
    "RandomPolicy",
    "RandomTruncationTransform",
    "RemoveEmptySpecs",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "RewardNorm",
    "RewardScaling",
    "RewardSum",
    "SafetyGymnasiumEnv",
    "SafetyGymnasiumWrapper",
    "SelectTransform",
    "SerialEnv",
    "SignTransform",
    "SnakeEnv",
    "SqueezeTransform",
    "Stack",
    "StepCounter",
    "SuccessReward",
    "TargetReturn",
    "TeamReward",
    "TensorDictPrimer",
    "TensorDictRecorder",
    "TerminateTransform",
    "ThreadingAsyncEnvPool",
    "TicTacToeEnv",
    "TimeMaxPool",
    "Timer",
    "ToTensorImage",
    "TrajCounter",
    "Transform",
    "TransformedEnv",
    "UnaryTransform",
    "UnityMLAgentsEnv",
    "UnityMLAgentsWrapper",
    "UnsqueezeTransform",
    "VecGymEnvTransform",
    "VecNorm",
    "VideoRecorder",
    "VmasEnv",
    "VmasWrapper",
    "Walker2dEnv",
    "WorldModelEnv",
    "__version__",
    "as_env",
    "as_gymnasium",
    "cat_frames",
    "check_env",
    "check_env_specs",
    "check_marl_grouping",
    "gSDENoise",
    "get_primers_from_module",
    "isaac_lab_env",
    "register_gym_env",
    "register_gym_spec_conversion",
    "step_mdp",
]

__getattr__, __dir__ = lazy_exports(__name__)
