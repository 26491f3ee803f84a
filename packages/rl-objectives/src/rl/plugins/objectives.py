"""Components of rl-objectives, as data, and its linear recurrence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rl.core.component import Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import LinearRecurrence


@hookimpl
def rl_components() -> Iterator[Component]:
    """List losses and value estimators."""
    losses = (
        ("ppo", "PPOLoss", "Policy gradient on the probability ratio, without a clip."),
        ("ppo-clip", "ClipPPOLoss", "Proximal policy optimization with a clipped probability ratio."),
        ("a2c", "A2CLoss", "Advantage actor-critic: policy gradient with a critic and an entropy bonus."),
        ("reinforce", "ReinforceLoss", "REINFORCE with a critic as baseline."),
        ("dqn", "DQNLoss", "Deep Q-learning, optionally double, with a target network."),
        ("ddpg", "DDPGLoss", "Deep deterministic policy gradient."),
        ("td3", "TD3Loss", "Twin delayed deterministic policy gradient, with noise on the target policy."),
        ("sac", "SACLoss", "Soft actor-critic, with an automatic temperature."),
        ("discrete-sac", "DiscreteSACLoss", "Soft actor-critic for discrete actions."),
        ("redq", "REDQLoss", "Soft actor-critic with many critics and a random subset in the target."),
        ("tqc", "TQCLoss", "Soft actor-critic with truncated mixtures of quantiles."),
        ("crossq", "CrossQLoss", "Soft actor-critic with batch normalization and without target networks."),
        ("ppo-kl", "KLPENPPOLoss", "Proximal policy optimization with a penalty on the divergence of the policies."),
        ("impala", "ImpalaLoss", "V-trace actor-critic: off-policy policy gradient, for steps of an older policy."),
        ("rnd", "RNDLoss", "Random network distillation: a predictor of random features, whose error is a reward."),
        ("c51", "DistributionalDQNLoss", "Distributional Q-learning with fixed atoms."),
        ("mappo", "MAPPOLoss", "Proximal policy optimization of agents with a centralized critic."),
        ("ippo", "IPPOLoss", "Proximal policy optimization of independent agents."),
        ("qmixer", "QMixerLoss", "Q-learning of a team through a mixer of the agents' values: QMIX, VDN."),
        ("bc", "BCLoss", "Behavior cloning."),
        ("td3-bc", "TD3BCLoss", "TD3 with behavior cloning, for a dataset."),
        ("iql", "IQLLoss", "Implicit Q-learning, for a dataset."),
        ("discrete-iql", "DiscreteIQLLoss", "Implicit Q-learning for discrete actions."),
        ("cql", "CQLLoss", "Conservative Q-learning, for a dataset."),
        ("discrete-cql", "DiscreteCQLLoss", "Conservative Q-learning for discrete actions."),
        ("dt", "DTLoss", "Decision transformer: actions of a dataset for their return-to-go."),
        ("online-dt", "OnlineDTLoss", "Online decision transformer: likelihood of actions, with an entropy bonus."),
        ("gail", "GAILLoss", "Generative adversarial imitation: a discriminator of expert and policy."),
        ("diffusion-bc", "DiffusionBCLoss", "Behavior cloning with a diffusion policy."),
        ("act", "ACTLoss", "Behavior cloning of chunks of actions."),
        ("dreamer-model", "DreamerModelLoss", "World model with Gaussian states: divergence, reconstruction, reward."),
        ("dreamer-actor", "DreamerActorLoss", "Actor in imagination, whose gradient passes through the model."),
        ("dreamer-value", "DreamerValueLoss", "Critic of imagined states."),
        ("dreamer-v3-model", "DreamerV3ModelLoss", "World model with categorical states, as in DreamerV3."),
        ("dreamer-v3-actor", "DreamerV3ActorLoss", "Policy gradient in imagination, with scaled advantages."),
        ("dreamer-v3-value", "DreamerV3ValueLoss", "Critic over bins, in imagination and in replay."),
        (
            "world-model",
            "WorldModelLoss",
            "Parts of a world model, and likelihood of an ensemble.",
        ),
        ("tdmpc2", "TDMPC2Loss", "World model without decoder, critics and policy for planning."),
        ("qr-dqn", "QRDQNLoss", "Distributional Q-learning with quantile regression."),
    )
    for name, attribute, summary in losses:
        yield Component(kind="loss", name=name, target=f"rl.objectives:{attribute}", summary=summary)
    estimators = (
        ("gae", "GAE", "Generalized advantage estimation."),
        ("multi-agent-gae", "MultiAgentGAE", "Generalized advantage estimation for each agent of a group."),
        ("td0", "TD0Estimator", "One reward, then the value of the next state."),
        ("td1", "TD1Estimator", "All rewards to the end of the episode or batch."),
        ("td-lambda", "TDLambdaEstimator", "The mean of n-step returns, weighted by powers of lambda."),
        ("vtrace", "VTrace", "Returns of the actor as it is, from steps that an older one took."),
    )
    for name, attribute, summary in estimators:
        yield Component(kind="estimator", name=name, target=f"rl.objectives.value:{attribute}", summary=summary)


@hookimpl(trylast=True)
def rl_linear_recurrence(device: torch.device, dtype: torch.dtype) -> LinearRecurrence | None:  # noqa: ARG001 - answers for all
    """Return the plain PyTorch scan, for every device and dtype."""
    from rl.objectives.functional._recurrence import torch_recurrence

    return torch_recurrence
