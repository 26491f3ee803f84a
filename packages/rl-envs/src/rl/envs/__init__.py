"""Reinforcement-learning environments and transforms on TensorDict."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.mdp import step_mdp
    from rl.envs.__about__ import __version__
    from rl.envs._groups import MarlGroupMapType, check_marl_grouping
    from rl.envs.base._adapter import EnvAdapter, as_env
    from rl.envs.base._base import EnvBase
    from rl.envs.base._check_env import check_env
    from rl.envs.base._checks import check_env_specs
    from rl.envs.base._leaf import LeafCalls, LeafEnvBase
    from rl.envs.base._random_policy import RandomPolicy
    from rl.envs.batched._async_pool import AsyncEnvPool, ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
    from rl.envs.batched._env_creator import EnvCreator
    from rl.envs.batched._parallel import ParallelEnv
    from rl.envs.batched._serial import SerialEnv
    from rl.envs.brax._wrapper import BraxEnv, BraxWrapper
    from rl.envs.chess._chess import ChessEnv
    from rl.envs.dm_control._wrapper import DMControlEnv, DMControlWrapper
    from rl.envs.envpool._wrapper import EnvPoolEnv, MultiThreadedEnv
    from rl.envs.gym._as_gymnasium import as_gymnasium, register_gym_env
    from rl.envs.gym._spaces import register_gym_spec_conversion
    from rl.envs.gym._wrapper import GymEnv, GymWrapper
    from rl.envs.gymnax._wrapper import GymnaxEnv, GymnaxWrapper
    from rl.envs.isaac_lab._env import IsaacLabEnv, isaac_lab_env
    from rl.envs.isaac_lab._wrapper import IsaacLabWrapper
    from rl.envs.jumanji._wrapper import JumanjiEnv, JumanjiWrapper
    from rl.envs.metaworld._wrapper import MetaWorldEnv, MetaWorldWrapper
    from rl.envs.mo_gymnasium._wrapper import MOGymEnv, MOGymWrapper
    from rl.envs.mujoco._base import MujocoEnv
    from rl.envs.mujoco._tasks import AntEnv, HalfCheetahEnv, HopperEnv, HumanoidEnv, Walker2dEnv
    from rl.envs.mujoco_playground._wrapper import MujocoPlaygroundEnv, MujocoPlaygroundWrapper
    from rl.envs.native._acrobot import AcrobotEnv
    from rl.envs.native._bandit import BanditEnv
    from rl.envs.native._cartpole import CartPoleEnv
    from rl.envs.native._grid_world import GridWorldEnv
    from rl.envs.native._mountain_car import MountainCarEnv
    from rl.envs.native._pendulum import PendulumEnv
    from rl.envs.native._tic_tac_toe import TicTacToeEnv
    from rl.envs.open_spiel._wrapper import OpenSpielEnv, OpenSpielWrapper
    from rl.envs.pettingzoo._wrapper import PettingZooEnv, PettingZooWrapper
    from rl.envs.safety_gymnasium._wrapper import SafetyGymnasiumEnv, SafetyGymnasiumWrapper
    from rl.envs.transforms._base import Transform
    from rl.envs.transforms._compose import Compose
    from rl.envs.transforms._module import ModuleTransform
    from rl.envs.transforms._transformed_env import TransformedEnv
    from rl.envs.transforms.action._action_chunk_transform import ActionChunkTransform
    from rl.envs.transforms.action._action_discretizer import ActionDiscretizer
    from rl.envs.transforms.action._action_mask import ActionMask
    from rl.envs.transforms.action._action_scaling import ActionScaling
    from rl.envs.transforms.action._discrete_action_projection import DiscreteActionProjection
    from rl.envs.transforms.action._flatten_action import FlattenAction
    from rl.envs.transforms.autoreset._auto_reset import AutoResetEnv, AutoResetTransform
    from rl.envs.transforms.autoreset._vec_gym import VecGymEnvTransform
    from rl.envs.transforms.device._device_cast_transform import DeviceCastTransform
    from rl.envs.transforms.device._double_to_float import DoubleToFloat
    from rl.envs.transforms.device._dtype_cast_transform import DTypeCastTransform
    from rl.envs.transforms.device._pin_memory_transform import PinMemoryTransform
    from rl.envs.transforms.episode._conditional_policy_switch import ConditionalPolicySwitch
    from rl.envs.transforms.episode._conditional_skip import ConditionalSkip
    from rl.envs.transforms.episode._end_of_life import EndOfLifeTransform
    from rl.envs.transforms.episode._frame_skip import FrameSkipTransform
    from rl.envs.transforms.episode._init_tracker import InitTracker
    from rl.envs.transforms.episode._noop_reset import NoopResetEnv
    from rl.envs.transforms.episode._policy_version import PolicyVersion
    from rl.envs.transforms.episode._random_truncation import RandomTruncationTransform
    from rl.envs.transforms.episode._step_counter import StepCounter
    from rl.envs.transforms.episode._terminate import TerminateTransform
    from rl.envs.transforms.episode._timer import Timer
    from rl.envs.transforms.episode._traj_counter import TrajCounter
    from rl.envs.transforms.image._center_crop import CenterCrop
    from rl.envs.transforms.image._crop import Crop
    from rl.envs.transforms.image._gray_scale import GrayScale
    from rl.envs.transforms.image._resize import Resize
    from rl.envs.transforms.image._to_tensor_image import ToTensorImage
    from rl.envs.transforms.keys._exclude_transform import ExcludeTransform
    from rl.envs.transforms.keys._flatten_tensordict import FlattenTensorDict
    from rl.envs.transforms.keys._remove_empty_specs import RemoveEmptySpecs
    from rl.envs.transforms.keys._rename_transform import RenameTransform
    from rl.envs.transforms.keys._select_transform import SelectTransform
    from rl.envs.transforms.normalize._observation_norm import ObservationNorm
    from rl.envs.transforms.normalize._reward_norm import RewardNorm
    from rl.envs.transforms.normalize._vec_norm import VecNorm
    from rl.envs.transforms.observation._cat_frames import CatFrames, cat_frames
    from rl.envs.transforms.observation._clip_transform import ClipTransform
    from rl.envs.transforms.observation._finite_tensordict_check import FiniteTensorDictCheck
    from rl.envs.transforms.observation._hash import Hash
    from rl.envs.transforms.observation._next_observation_delta import NextObservationDelta
    from rl.envs.transforms.observation._next_state_reconstructor import NextStateReconstructor
    from rl.envs.transforms.observation._observation_transform import ObservationTransform
    from rl.envs.transforms.observation._time_max_pool import TimeMaxPool
    from rl.envs.transforms.observation._unary_transform import UnaryTransform
    from rl.envs.transforms.recurrent._primer import TensorDictPrimer, get_primers_from_module, gSDENoise
    from rl.envs.transforms.reward._binarize_reward import BinarizeReward
    from rl.envs.transforms.reward._linearise_rewards import LineariseRewards
    from rl.envs.transforms.reward._reward_clipping import RewardClipping
    from rl.envs.transforms.reward._reward_scaling import RewardScaling
    from rl.envs.transforms.reward._reward_sum import RewardSum
    from rl.envs.transforms.reward._rnd_transform import RNDTransform
    from rl.envs.transforms.reward._sign_transform import SignTransform
    from rl.envs.transforms.reward._success_reward import SuccessReward
    from rl.envs.transforms.reward._target_return import TargetReturn
    from rl.envs.transforms.shape._batch_size import BatchSizeTransform
    from rl.envs.transforms.shape._cat_tensors import CatTensors
    from rl.envs.transforms.shape._expand_as import ExpandAs
    from rl.envs.transforms.shape._flatten_observation import FlattenObservation
    from rl.envs.transforms.shape._permute_transform import PermuteTransform
    from rl.envs.transforms.shape._squeeze_transform import SqueezeTransform
    from rl.envs.transforms.shape._stack import Stack
    from rl.envs.transforms.shape._unsqueeze_transform import UnsqueezeTransform
    from rl.envs.unity_mlagents._wrapper import UnityMLAgentsEnv, UnityMLAgentsWrapper
    from rl.envs.vmas._wrapper import VmasEnv, VmasWrapper

__all__ = [
    "AcrobotEnv",
    "ActionChunkTransform",
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
    "DoubleToFloat",
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
    "ModuleTransform",
    "MountainCarEnv",
    "MujocoEnv",
    "MujocoPlaygroundEnv",
    "MujocoPlaygroundWrapper",
    "MultiThreadedEnv",
    "NextObservationDelta",
    "NextStateReconstructor",
    "NoopResetEnv",
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
    "SqueezeTransform",
    "Stack",
    "StepCounter",
    "SuccessReward",
    "TargetReturn",
    "TensorDictPrimer",
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
    "VmasEnv",
    "VmasWrapper",
    "Walker2dEnv",
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
