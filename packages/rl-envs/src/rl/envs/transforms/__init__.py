"""Transforms of the entries that an environment writes and reads."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms._atari import atari
    from rl.envs.transforms._base import Transform
    from rl.envs.transforms._module import ModuleTransform
    from rl.envs.transforms._specs import Specs
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

__all__ = [
    "ActionChunkTransform",
    "ActionClipping",
    "ActionDiscretizer",
    "ActionMask",
    "ActionScaling",
    "AutoResetEnv",
    "AutoResetTransform",
    "BatchSizeTransform",
    "BinarizeReward",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "ClipTransform",
    "Compose",
    "ConditionalPolicySwitch",
    "ConditionalSkip",
    "Crop",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DiscreteActionProjection",
    "DoubleToFloat",
    "EndOfLifeTransform",
    "ExcludeTransform",
    "ExpandAs",
    "FiniteTensorDictCheck",
    "FlattenAction",
    "FlattenObservation",
    "FlattenTensorDict",
    "FrameSkipTransform",
    "GrayScale",
    "Hash",
    "InitTracker",
    "LineariseRewards",
    "ModuleTransform",
    "NextObservationDelta",
    "NextStateReconstructor",
    "NoopResetEnv",
    "ObservationIndices",
    "ObservationNorm",
    "ObservationTransform",
    "PermuteTransform",
    "PinMemoryTransform",
    "PixelRenderTransform",
    "PolicyVersion",
    "RNDTransform",
    "RandomTruncationTransform",
    "RemoveEmptySpecs",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "RewardNorm",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "SignTransform",
    "Specs",
    "SqueezeTransform",
    "Stack",
    "StepCounter",
    "SuccessReward",
    "TargetReturn",
    "TeamReward",
    "TensorDictPrimer",
    "TensorDictRecorder",
    "TerminateTransform",
    "TimeMaxPool",
    "Timer",
    "ToTensorImage",
    "TrajCounter",
    "Transform",
    "TransformedEnv",
    "UnaryTransform",
    "UnsqueezeTransform",
    "VecGymEnvTransform",
    "VecNorm",
    "VideoRecorder",
    "atari",
    "cat_frames",
    "gSDENoise",
    "get_primers_from_module",
]

__getattr__, __dir__ = lazy_exports(__name__)
