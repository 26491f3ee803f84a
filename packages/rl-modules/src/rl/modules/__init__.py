"""Networks, distributions, actors, critics and exploration, all with keys that they state."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core import ExplorationType, exploration_type, set_exploration_type
    from rl.core.backends import Backend
    from rl.core.recurrent import recurrent_mode, set_recurrent_mode
    from rl.modules.__about__ import __version__
    from rl.modules.distributions._base import NormalParamExtractor
    from rl.modules.distributions._bounded import TanhDelta, TanhNormal, TruncatedNormal, safeatanh, safetanh
    from rl.modules.distributions._discrete import (
        Categorical,
        IndependentBernoulli,
        IndependentCategorical,
        MaskedCategorical,
        MaskedOneHotCategorical,
        OneHotCategorical,
        OneHotOrdinal,
        Ordinal,
    )
    from rl.modules.distributions._normal import Delta, IndependentNormal
    from rl.modules.explore._egreedy import EGreedyModule
    from rl.modules.explore._gsde import LazygSDEModule, gSDEModule
    from rl.modules.explore._noise import (
        AdditiveGaussianModule,
        OrnsteinUhlenbeckProcessModule,
        set_exploration_modules_spec_from_env,
    )
    from rl.modules.imitation._action_chunks import ACTModel, DiffusionActor
    from rl.modules.imitation._decision_transformer import (
        DecisionTransformer,
        DecisionTransformerInferenceWrapper,
        DTActor,
        DTConfig,
        OnlineDTActor,
    )
    from rl.modules.layers import (
        BatchRenorm1d,
        ConsistentDropout,
        ConsistentDropoutModule,
        NoisyLazyLinear,
        NoisyLinear,
        reset_noise,
    )
    from rl.modules.multi_agent import Mixer, MultiAgentConvNet, MultiAgentMLP, MultiAgentNetBase, QMixer, VDNMixer
    from rl.modules.nets._conv import Conv3dNet, ConvNet, ImageEncoder, SquashDims
    from rl.modules.nets._heads import (
        CategoricalHead,
        DdpgCnnActor,
        DdpgCnnQNet,
        DdpgMlpActor,
        DdpgMlpQNet,
        DistributionalDQNnet,
        DuelingCnnDQNet,
        DuelingMlpDQNet,
        ImpalaNet,
        NormalHead,
    )
    from rl.modules.nets._mlp import MLP, orthogonal_init
    from rl.modules.normalize import PopArtValueNorm, RunningValueNorm, ValueNorm
    from rl.modules.planners._mpc import (
        CEMPlanner,
        MPCPlannerBase,
        MPPIPlanner,
    )
    from rl.modules.planners._scores import MCTSScore, PUCTScore, UCBScore
    from rl.modules.planners._tdmpc2 import (
        TDMPC2Planner,
    )
    from rl.modules.policy._actor import (
        Actor,
        ActorCriticOperator,
        ActorCriticWrapper,
        ActorValueOperator,
        ProbabilisticActor,
        ValueOperator,
    )
    from rl.modules.policy._heads import MultiStepActorWrapper, VmapModule
    from rl.modules.policy._qvalue import (
        DistributionalQValueActor,
        DistributionalQValueModule,
        QuantileQValueActor,
        QuantileQValueModule,
        QValueActor,
        QValueModule,
    )
    from rl.modules.policy._safe import (
        SafeModule,
        SafeProbabilisticModule,
        SafeProbabilisticTensorDictSequential,
        SafeSequential,
        TanhModule,
    )
    from rl.modules.recurrent._layout import get_recurrent_matmul_precision, set_recurrent_matmul_precision
    from rl.modules.recurrent._pad import PadBackend
    from rl.modules.recurrent.backends import ScanBackend
    from rl.modules.recurrent.cells import GRU, LSTM, GRUCell, LSTMCell
    from rl.modules.recurrent.modules import GRUModule, LSTMModule
    from rl.modules.value_transforms import (
        ComposeValueTransform,
        IdentityValueTransform,
        SignedHyperbolicValueTransform,
        SymLogValueTransform,
        ValueTransform,
        signed_hyperbolic,
        signed_parabolic,
        symexp,
        symlog,
    )
    from rl.modules.world_models._encoders import (
        DreamerActor,
        DreamerV3Actor,
        DreamerV3Encoder,
        DreamerV3ImageDecoder,
        DreamerV3Size,
        ObsDecoder,
        ObsEncoder,
        dreamer_v3_size,
    )
    from rl.modules.world_models._layers import (
        BlockLinear,
        DreamerV3MLP,
        RMSNorm,
    )
    from rl.modules.world_models._models import (
        EnsembleDynamics,
        WorldModel,
        WorldModelWrapper,
    )
    from rl.modules.world_models._rollout import (
        RSSMRollout,
        RSSMRolloutV3,
    )
    from rl.modules.world_models._rssm import (
        BlockGRU,
        RSSMPosterior,
        RSSMPosteriorV3,
        RSSMPrior,
        RSSMPriorV3,
    )
    from rl.modules.world_models._tdmpc2 import TDMPC2MLP, SimNorm, TDMPC2Actor
    from rl.modules.world_models._two_hot import (
        SquaredError,
        SymExpTwoHot,
        SymLogTwoHotCategorical,
        TwoHotCategorical,
        straight_through,
        symexp_bins,
        two_hot_cross_entropy,
        two_hot_decode,
        two_hot_encode,
        unimix_logits,
    )

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "TDMPC2MLP",
    "ACTModel",
    "Actor",
    "ActorCriticOperator",
    "ActorCriticWrapper",
    "ActorValueOperator",
    "AdditiveGaussianModule",
    "Backend",
    "BatchRenorm1d",
    "BlockGRU",
    "BlockLinear",
    "CEMPlanner",
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
    "DreamerActor",
    "DreamerV3Actor",
    "DreamerV3Encoder",
    "DreamerV3ImageDecoder",
    "DreamerV3MLP",
    "DreamerV3Size",
    "DuelingCnnDQNet",
    "DuelingMlpDQNet",
    "EGreedyModule",
    "EnsembleDynamics",
    "ExplorationType",
    "GRUCell",
    "GRUModule",
    "IdentityValueTransform",
    "ImageEncoder",
    "ImpalaNet",
    "IndependentBernoulli",
    "IndependentCategorical",
    "IndependentNormal",
    "LSTMCell",
    "LSTMModule",
    "LazygSDEModule",
    "MCTSScore",
    "MPCPlannerBase",
    "MPPIPlanner",
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
    "ObsDecoder",
    "ObsEncoder",
    "OneHotCategorical",
    "OneHotOrdinal",
    "OnlineDTActor",
    "Ordinal",
    "OrnsteinUhlenbeckProcessModule",
    "PUCTScore",
    "PadBackend",
    "PopArtValueNorm",
    "ProbabilisticActor",
    "QMixer",
    "QValueActor",
    "QValueModule",
    "QuantileQValueActor",
    "QuantileQValueModule",
    "RMSNorm",
    "RSSMPosterior",
    "RSSMPosteriorV3",
    "RSSMPrior",
    "RSSMPriorV3",
    "RSSMRollout",
    "RSSMRolloutV3",
    "RunningValueNorm",
    "SafeModule",
    "SafeProbabilisticModule",
    "SafeProbabilisticTensorDictSequential",
    "SafeSequential",
    "ScanBackend",
    "SignedHyperbolicValueTransform",
    "SimNorm",
    "SquaredError",
    "SquashDims",
    "SymExpTwoHot",
    "SymLogTwoHotCategorical",
    "SymLogValueTransform",
    "TDMPC2Actor",
    "TDMPC2Planner",
    "TanhDelta",
    "TanhModule",
    "TanhNormal",
    "TruncatedNormal",
    "TwoHotCategorical",
    "UCBScore",
    "VDNMixer",
    "ValueNorm",
    "ValueOperator",
    "ValueTransform",
    "VmapModule",
    "WorldModel",
    "WorldModelWrapper",
    "__version__",
    "dreamer_v3_size",
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
    "straight_through",
    "symexp",
    "symexp_bins",
    "symlog",
    "two_hot_cross_entropy",
    "two_hot_decode",
    "two_hot_encode",
    "unimix_logits",
]

__getattr__, __dir__ = lazy_exports(__name__)
