"""Networks, distributions, actors, critics and exploration, all with keys that they state."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core import ExplorationType, exploration_type, set_exploration_type
    from rl.core.backends import Backend
    from rl.core.recurrent import recurrent_mode, set_recurrent_mode
    from rl.modules.__about__ import __version__
    from rl.modules.distributions._delta import Delta
    from rl.modules.distributions._discrete import (
        Categorical,
        MaskedCategorical,
        MaskedOneHotCategorical,
        OneHotCategorical,
    )
    from rl.modules.distributions._normal import IndependentNormal
    from rl.modules.distributions._ordinal import OneHotOrdinal, Ordinal
    from rl.modules.distributions._params import NormalParamExtractor
    from rl.modules.distributions._safe_tanh import safeatanh, safetanh
    from rl.modules.distributions._tanh_delta import TanhDelta
    from rl.modules.distributions._tanh_normal import TanhNormal
    from rl.modules.distributions._truncated_normal import TruncatedNormal
    from rl.modules.explore._egreedy import EGreedyModule
    from rl.modules.explore._gaussian import AdditiveGaussianModule
    from rl.modules.explore._gsde import LazygSDEModule, gSDEModule
    from rl.modules.explore._ou import OrnsteinUhlenbeckProcessModule
    from rl.modules.explore._set_spec import set_exploration_modules_spec_from_env
    from rl.modules.imitation._act_model import ACTModel
    from rl.modules.imitation._decision_transformer import DecisionTransformer, DTConfig
    from rl.modules.imitation._diffusion_actor import DiffusionActor
    from rl.modules.imitation._dt_actor import DTActor, OnlineDTActor
    from rl.modules.imitation._dt_inference import DecisionTransformerInferenceWrapper
    from rl.modules.layers._batch_renorm import BatchRenorm1d
    from rl.modules.layers._consistent_dropout import ConsistentDropout, ConsistentDropoutModule
    from rl.modules.layers._noisy import NoisyLazyLinear, NoisyLinear, reset_noise
    from rl.modules.multi_agent._base import MultiAgentNetBase
    from rl.modules.multi_agent._conv import MultiAgentConvNet
    from rl.modules.multi_agent._mixer import Mixer
    from rl.modules.multi_agent._mlp import MultiAgentMLP
    from rl.modules.multi_agent._qmix import QMixer
    from rl.modules.multi_agent._vdn import VDNMixer
    from rl.modules.nets._conv import Conv3dNet, ConvNet, SquashDims
    from rl.modules.nets._ddpg import DdpgCnnActor, DdpgCnnQNet, DdpgMlpActor, DdpgMlpQNet
    from rl.modules.nets._distributional import DistributionalDQNnet
    from rl.modules.nets._dueling import DuelingCnnDQNet, DuelingMlpDQNet
    from rl.modules.nets._heads import CategoricalHead, NormalHead
    from rl.modules.nets._impala import ImpalaNet
    from rl.modules.nets._init import orthogonal_init
    from rl.modules.nets._mlp import MLP
    from rl.modules.normalize._base import ValueNorm
    from rl.modules.normalize._pop_art import PopArtValueNorm
    from rl.modules.normalize._running import RunningValueNorm
    from rl.modules.policy._actor import Actor, ProbabilisticActor
    from rl.modules.policy._distributional import (
        DistributionalQValueActor,
        DistributionalQValueModule,
        QuantileQValueActor,
        QuantileQValueModule,
    )
    from rl.modules.policy._multi_step import MultiStepActorWrapper
    from rl.modules.policy._qvalue import QValueActor, QValueModule
    from rl.modules.policy._safe import (
        SafeModule,
        SafeProbabilisticModule,
        SafeProbabilisticTensorDictSequential,
        SafeSequential,
    )
    from rl.modules.policy._shared import ActorCriticOperator, ActorCriticWrapper, ActorValueOperator
    from rl.modules.policy._tanh import TanhModule
    from rl.modules.policy._value import ValueOperator
    from rl.modules.policy._vmap import VmapModule
    from rl.modules.recurrent._precision import get_recurrent_matmul_precision, set_recurrent_matmul_precision
    from rl.modules.recurrent.backends._pad import PadBackend
    from rl.modules.recurrent.backends._scan import ScanBackend
    from rl.modules.recurrent.cells._cells import GRU, LSTM, GRUCell, LSTMCell
    from rl.modules.recurrent.modules._modules import GRUModule, LSTMModule
    from rl.modules.value_transforms._functional import signed_hyperbolic, signed_parabolic, symexp, symlog
    from rl.modules.value_transforms._transforms import (
        ComposeValueTransform,
        IdentityValueTransform,
        SignedHyperbolicValueTransform,
        SymLogValueTransform,
        ValueTransform,
    )

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "ACTModel",
    "Actor",
    "ActorCriticOperator",
    "ActorCriticWrapper",
    "ActorValueOperator",
    "AdditiveGaussianModule",
    "Backend",
    "BatchRenorm1d",
    "Categorical",
    "CategoricalHead",
    "ComposeValueTransform",
    "ConsistentDropout",
    "ConsistentDropoutModule",
    "Conv3dNet",
    "ConvNet",
    "DTActor",
    "DTConfig",
    "DdpgCnnActor",
    "DdpgCnnQNet",
    "DdpgMlpActor",
    "DdpgMlpQNet",
    "DecisionTransformer",
    "DecisionTransformerInferenceWrapper",
    "Delta",
    "DiffusionActor",
    "DistributionalDQNnet",
    "DistributionalQValueActor",
    "DistributionalQValueModule",
    "DuelingCnnDQNet",
    "DuelingMlpDQNet",
    "EGreedyModule",
    "ExplorationType",
    "GRUCell",
    "GRUModule",
    "IdentityValueTransform",
    "ImpalaNet",
    "IndependentNormal",
    "LSTMCell",
    "LSTMModule",
    "LazygSDEModule",
    "MaskedCategorical",
    "MaskedOneHotCategorical",
    "Mixer",
    "MultiAgentConvNet",
    "MultiAgentMLP",
    "MultiAgentNetBase",
    "MultiStepActorWrapper",
    "NoisyLazyLinear",
    "NoisyLinear",
    "NormalHead",
    "NormalParamExtractor",
    "OneHotCategorical",
    "OneHotOrdinal",
    "OnlineDTActor",
    "Ordinal",
    "OrnsteinUhlenbeckProcessModule",
    "PadBackend",
    "PopArtValueNorm",
    "ProbabilisticActor",
    "QMixer",
    "QValueActor",
    "QValueModule",
    "QuantileQValueActor",
    "QuantileQValueModule",
    "RunningValueNorm",
    "SafeModule",
    "SafeProbabilisticModule",
    "SafeProbabilisticTensorDictSequential",
    "SafeSequential",
    "ScanBackend",
    "SignedHyperbolicValueTransform",
    "SquashDims",
    "SymLogValueTransform",
    "TanhDelta",
    "TanhModule",
    "TanhNormal",
    "TruncatedNormal",
    "VDNMixer",
    "ValueNorm",
    "ValueOperator",
    "ValueTransform",
    "VmapModule",
    "__version__",
    "exploration_type",
    "gSDEModule",
    "get_recurrent_matmul_precision",
    "orthogonal_init",
    "recurrent_mode",
    "reset_noise",
    "safeatanh",
    "safetanh",
    "set_exploration_modules_spec_from_env",
    "set_exploration_type",
    "set_recurrent_matmul_precision",
    "set_recurrent_mode",
    "signed_hyperbolic",
    "signed_parabolic",
    "symexp",
    "symlog",
]

__getattr__, __dir__ = lazy_exports(__name__)
