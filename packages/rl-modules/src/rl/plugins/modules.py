"""Components of rl-modules, as data, and its recurrent back ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rl.core.component import Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import RecurrentBackend

_MODULES = (
    ("mlp", "MLP", "Linear layers with activations between them"),
    ("convnet", "ConvNet", "Convolutions on pixels, flattened to features"),
    ("multi-agent-mlp", "MultiAgentMLP", "Linear layers for each of several agents"),
    ("multi-agent-convnet", "MultiAgentConvNet", "Convolutions for each of several agents"),
    ("qmixer", "QMixer", "Values of agents to that of the team, monotonically"),
    ("vdn-mixer", "VDNMixer", "Values of agents to that of the team, as their sum"),
    ("dueling-mlp", "DuelingMlpDQNet", "Dueling network on vectors"),
    ("dueling-cnn", "DuelingCnnDQNet", "Dueling network on pixels"),
    ("distributional-dqn-net", "DistributionalDQNnet", "Log-softmax over the atoms of returns"),
    ("convnet-3d", "Conv3dNet", "Convolutions on volumes, flattened to features"),
    ("image-encoder", "ImageEncoder", "Convolutions on images of any size, with channels first or last"),
    ("impala", "ImpalaNet", "Deep residual network on pixels"),
    ("ddpg-mlp-actor", "DdpgMlpActor", "Deterministic policy on vectors, as in DDPG"),
    ("ddpg-mlp-q-net", "DdpgMlpQNet", "Action value on vectors, as in DDPG"),
    ("ddpg-cnn-actor", "DdpgCnnActor", "Deterministic policy on pixels, as in DDPG"),
    ("ddpg-cnn-q-net", "DdpgCnnQNet", "Action value on pixels, as in DDPG"),
    ("batch-renorm", "BatchRenorm1d", "Batch normalization that agrees in training and evaluation"),
    ("consistent-dropout", "ConsistentDropoutModule", "Dropout with one mask in an episode"),
    ("noisy-linear", "NoisyLinear", "Linear layer with noisy weights"),
    ("categorical-head", "CategoricalHead", "Features to logits"),
    ("normal-head", "NormalHead", "Features to mean and standard deviation"),
    ("normal-param-extractor", "NormalParamExtractor", "Splits features into mean and standard deviation"),
    ("actor", "Actor", "Policy that computes its action"),
    ("probabilistic-actor", "ProbabilisticActor", "Policy that draws its action from a distribution"),
    ("value-operator", "ValueOperator", "Value of a state, or of a state and an action"),
    ("q-value-actor", "QValueActor", "Values of all actions, and the choice of the best"),
    ("q-value-module", "QValueModule", "Action values to the best action"),
    ("distributional-q-value-actor", "DistributionalQValueActor", "Distribution of each action's return over atoms"),
    ("distributional-q-value-module", "DistributionalQValueModule", "Probabilities of atoms to the best action"),
    ("quantile-q-value-actor", "QuantileQValueActor", "Quantiles of each action's return, and the best mean"),
    ("quantile-q-value-module", "QuantileQValueModule", "Quantiles of returns to the best action"),
    ("tanh", "TanhModule", "Entries squashed into bounds"),
    ("vmap", "VmapModule", "A module over one more batch dimension"),
    ("multi-step-actor", "MultiStepActorWrapper", "Actions of a plan, one by one"),
    ("actor-value-operator", "ActorValueOperator", "Policy and state value on one trunk"),
    ("actor-critic-operator", "ActorCriticOperator", "Policy and action value on one trunk"),
    ("actor-critic-wrapper", "ActorCriticWrapper", "Policy and critic as one module"),
    ("egreedy", "EGreedyModule", "Random actions with a falling probability"),
    ("additive-gaussian", "AdditiveGaussianModule", "Falling normal noise on continuous actions"),
    ("ornstein-uhlenbeck", "OrnsteinUhlenbeckProcessModule", "Correlated noise on continuous actions"),
    ("gsde", "gSDEModule", "Noise on actions as a function of the features"),
    ("pop-art-value-norm", "PopArtValueNorm", "Values normalized by a moving average, with preserved outputs"),
    ("running-value-norm", "RunningValueNorm", "Values normalized by all targets so far"),
    ("symlog", "SymLogValueTransform", "Values on a symmetric logarithmic scale"),
    ("signed-hyperbolic", "SignedHyperbolicValueTransform", "Values on a square root scale"),
    ("act-model", "ACTModel", "Action chunking transformer"),
    ("decision-transformer", "DecisionTransformer", "Causal transformer over returns-to-go, states and actions"),
    ("dt-actor", "DTActor", "Network of a decision transformer's deterministic policy"),
    ("online-dt-actor", "OnlineDTActor", "Network of a decision transformer's stochastic policy"),
    ("dt-inference", "DecisionTransformerInferenceWrapper", "Acts with a decision transformer, step by step"),
    ("diffusion-actor", "DiffusionActor", "Policy that denoises random actions"),
    ("lstm", "LSTMModule", "LSTM on named entries, step by step or sequences"),
    ("gru", "GRUModule", "GRU on named entries, step by step or sequences"),
    ("rssm-prior", "RSSMPrior", "Prior of a recurrent state-space model with Gaussian states"),
    ("rssm-posterior", "RSSMPosterior", "Posterior of a recurrent state-space model with Gaussian states"),
    ("rssm-rollout", "RSSMRollout", "Posterior states of a recurrent state-space model along sequences"),
    ("rssm-prior-v3", "RSSMPriorV3", "Prior of DreamerV3, with categorical states"),
    ("rssm-posterior-v3", "RSSMPosteriorV3", "Posterior of DreamerV3, with categorical states"),
    ("rssm-rollout-v3", "RSSMRolloutV3", "Posterior states of DreamerV3 along sequences"),
    ("obs-encoder", "ObsEncoder", "Convolutional encoder of Dreamer"),
    ("obs-decoder", "ObsDecoder", "Convolutional decoder of Dreamer"),
    ("dreamer-actor", "DreamerActor", "Policy network of Dreamer"),
    ("dreamer-v3-mlp", "DreamerV3MLP", "Multi-layer perceptron of DreamerV3's heads"),
    ("dreamer-v3-encoder", "DreamerV3Encoder", "Encoder of DreamerV3, of vectors, images, or both"),
    ("dreamer-v3-image-decoder", "DreamerV3ImageDecoder", "Decoder of images of DreamerV3"),
    ("dreamer-v3-actor", "DreamerV3Actor", "Policy network of DreamerV3"),
    ("sym-exp-two-hot", "SymExpTwoHot", "Numbers as categoricals over exponentially spaced bins"),
    ("sim-norm", "SimNorm", "Softmax over each group of features"),
    ("tdmpc2-mlp", "TDMPC2MLP", "Multi-layer perceptron of TD-MPC2"),
    ("tdmpc2-actor", "TDMPC2Actor", "Policy network of TD-MPC2"),
    ("world-model", "WorldModel", "Encoder, dynamics and heads as one world model"),
    ("world-model-wrapper", "WorldModelWrapper", "Transition model and reward model as one world model"),
    ("ensemble-dynamics", "EnsembleDynamics", "Ensemble of probabilistic dynamics, with elites"),
    ("cem-planner", "CEMPlanner", "Planner of the cross-entropy method"),
    ("mppi-planner", "MPPIPlanner", "Planner of path integral control"),
    ("tdmpc2-planner", "TDMPC2Planner", "Planner in a latent space, with plans of a policy"),
)
_BACKENDS = (
    ("scan", "ScanBackend", "Loop over time as one operator, which compiles without a graph break"),
    ("pad", "PadBackend", "Segments between resets, padded, through torch's own LSTM and GRU"),
)


@hookimpl
def rl_components() -> Iterator[Component]:
    """Networks, policies, critics, exploration and recurrences."""
    for name, attribute, summary in _MODULES:
        yield Component(kind="module", name=name, target=f"rl.modules:{attribute}", summary=summary)
    for name, attribute, summary in _BACKENDS:
        yield Component(kind="recurrent_backend", name=name, target=f"rl.modules:{attribute}", summary=summary)


@hookimpl(trylast=True)
def rl_recurrent_backend(cell: str, name: str | None, device: torch.device) -> RecurrentBackend | None:
    """``scan`` for every device, ``pad`` by name; without a name, the faster one of both for each size."""
    del device
    if cell not in ("lstm", "gru") or name not in ("scan", "pad", None):
        return None
    if name is None:
        from rl.modules.recurrent.backends import PlainBackend

        return PlainBackend()
    from rl.modules.recurrent._pad import PadBackend
    from rl.modules.recurrent.backends import ScanBackend

    return PadBackend() if name == "pad" else ScanBackend()
