"""Networks, planner and losses of the recipe tdmpc2, from the specs of an environment."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
)
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NEXT, REWARD, TERMINATED
from rl.modules import TDMPC2MLP, ProbabilisticActor, SymLogTwoHotCategorical, TanhNormal, TDMPC2Actor, TDMPC2Planner
from rl.objectives import SoftUpdate, TDMPC2Loss
from rl.trainers.world_models import ModelInputs, UnitActions

__all__ = ["PlanningPolicy", "TDMPC2Losses", "tdmpc2_policy"]

BINS = 101
PLAN = "plan"
UNIT = "unit_action"

SIZES = {
    "tiny": (128, 128, 64, 2, 2),
    "1M": (256, 384, 128, 2, 2),
    "5M": (256, 512, 512, 2, 5),
    "19M": (1024, 1024, 768, 3, 5),
    "48M": (1792, 1792, 768, 4, 5),
    "317M": (4096, 4096, 1376, 5, 8),
}
"""Widths of encoder, heads and latent state, layers of the encoder, and critics; tiny is our own."""


class PlanningPolicy(TensorDictModuleBase):
    """Policy that plans in a latent space; it carries its plan from step to step.

    Reads the observations and ``plan``, writes the action and ``("next", "plan")``.

    Args:
        inputs: Observations as the encoder reads them.
        actions: Actions as the model reads them.
        planner: Planner, which reads ``vector`` and ``plan``.
    """

    def __init__(self, inputs: ModelInputs, actions: UnitActions, planner: TDMPC2Planner) -> None:
        super().__init__()
        self.inputs, self.actions, self.planner = inputs, actions, planner
        self.in_keys: list[Any] = [*inputs.keys, PLAN]
        self.out_keys: list[Any] = [actions.key, (NEXT, PLAN)]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the first action of a plan, and the plan."""
        (vector,) = self.inputs(*(tensordict.get(key) for key in self.inputs.keys))
        td = TensorDict({"vector": vector, PLAN: tensordict.get(PLAN)}, batch_size=tensordict.batch_size)
        self.planner(td)
        tensordict.set(self.actions.key, self.actions.to_env(td.get(UNIT)))
        return tensordict.set((NEXT, PLAN), td.get((NEXT, PLAN)))


def tdmpc2_policy(config: Any, env: Env) -> PlanningPolicy:
    """Create the untrained policy, with the networks of the model.

    Raises:
        SpecError: If the action is no vector of bounded floats, or an observation is an image.
    """
    inputs = ModelInputs(env, config.observation_layout)
    actions = UnitActions(env, config.recipe, discrete=False)
    if inputs.image_shape is not None:
        raise SpecError(f"{config.recipe} reads vectors, and {type(env).__name__} has an image: train dreamer-v3")
    encoder_width, width, latent, layers, critics = SIZES[config.size]
    both: list[Any] = ["latent", UNIT]
    cells = [width, width]
    inner = latent + actions.width

    def head(net: nn.Module, reads: list[Any], name: str, kind: Any) -> Any:
        last = ProbabilisticTensorDictModule({"logits": f"{name}_logits"}, [name], distribution_class=kind)
        return ProbabilisticTensorDictSequential(TensorDictModule(net, reads, [f"{name}_logits"]), last)

    def network(inputs: int, outputs: int, **options: Any) -> TDMPC2MLP:
        return TDMPC2MLP(inputs, outputs, cells, **options)

    encoder = TDMPC2MLP(inputs.vector_dim, latent, max(layers - 1, 1) * [encoder_width], sim_norm=8)
    actor = ProbabilisticActor(
        TensorDictModule(TDMPC2Actor(latent, actions.width, cells), ["latent"], ["loc", "scale"]),
        ["loc", "scale"],
        distribution_class=TanhNormal,
    )
    values = [
        head(network(inner, BINS, dropout=0.01, zero_last=True), both, "value", SymLogTwoHotCategorical)
        for _ in range(critics)
    ]
    planner = TDMPC2Planner(
        TensorDictModule(encoder, ["vector"], ["latent"]),
        TensorDictModule(network(inner, latent, sim_norm=8), both, [(NEXT, "latent")]),
        head(network(inner, BINS, zero_last=True), both, "reward", SymLogTwoHotCategorical),
        values,
        actor,
        actions.width,
        terminated_model=head(network(latent, 1), ["latent"], "ended", _bernoulli),
        planning_horizon=config.planning_horizon,
        num_candidates=config.num_candidates,
        num_elites=config.num_elites,
        num_policy_plans=config.num_policy_plans,
        optim_steps=config.optim_steps or None,
        gamma=config.gamma,
        action_key=UNIT,
    )
    planner.qvalue_network.eval()  # without dropout, except in the losses
    return PlanningPolicy(inputs, actions, planner).to(config.device)


def _bernoulli(logits: Tensor) -> Distribution:
    return Bernoulli(logits=logits, validate_args=False)


class TDMPC2Losses(nn.Module):
    """Losses of TD-MPC2 for collected steps ``[B, T]``.

    Args:
        config: Settings: `gamma` and `entropy_coeff`.
        policy: Policy of `tdmpc2_policy`, whose networks are trained.
    """

    latents = ()
    """Latent states that the buffer keeps of each step: none, as sequences are unrolled from an observation."""
    context = 0
    """Steps of a sampled sequence before those that are learned from."""
    newest_first = False
    """Whether sequences that were collected since the last sample come first."""
    random_start = True
    """Whether the first actions are random, and as many updates follow them as they would have had."""
    outputs = {  # noqa: RUF012 - read, never written
        "loss_consistency": "loss_consistency",
        "loss_reward": "loss_reward",
        "loss_critic": "loss_value",
        "loss_actor": "loss_actor",
        "loss_terminated": "loss_terminated",
        "value_scale": "value_scale",
        "entropy": "entropy",
    }

    def __init__(self, config: Any, policy: PlanningPolicy) -> None:
        super().__init__()
        self.inputs, self.actions, planner = policy.inputs, policy.actions, policy.planner
        self.loss = TDMPC2Loss(
            planner.encoder,
            planner.dynamics,
            planner.reward_model,
            planner.qvalue_network,
            planner.actor_network,
            terminated_model=planner.terminated_model,
            num_qvalue_nets=len(planner.qvalue_network),
            gamma=config.gamma,
            entropy_bonus=config.entropy_coeff,
        )
        self.loss.set_keys(action=UNIT)
        self.updater = SoftUpdate(self.loss, tau=config.tau)
        self.to(config.device)

    def forward(self, rows: TensorDictBase) -> TensorDictBase:
        """Compute what is minimized, and metrics, of steps ``[B, T]`` of one episode each."""
        (before,) = self.inputs(*(rows.get(key) for key in self.inputs.keys))
        (after,) = self.inputs(*(rows.get((NEXT, key)) for key in self.inputs.keys))
        size = rows.batch_size
        outcome = {"vector": after, REWARD: rows.get((NEXT, REWARD)), TERMINATED: rows.get((NEXT, TERMINATED))}
        batch = TensorDict(
            {
                "vector": before,
                UNIT: self.actions.to_unit(rows.get(self.actions.key)),
                NEXT: TensorDict(outcome, batch_size=size),
                "collector": TensorDict({"mask": rows.get(("collector", "mask"))}, batch_size=size),
            },
            batch_size=size,
        )
        self.loss.qvalue_network.train()
        out = self.loss(batch)
        self.loss.qvalue_network.eval()
        return out

    def optimizers(self, config: Any) -> list[torch.optim.Optimizer]:
        """Return the optimizers of the model and of the policy network."""
        encoder, actor = ({id(one) for one in net.parameters()} for net in (self.loss.encoder, self.loss.actor_network))
        trained = [one for one in self.loss.parameters() if one.requires_grad]
        rate = config.learning_rate
        groups = [
            {"params": [one for one in trained if id(one) in encoder], "lr": 0.3 * rate},
            {"params": [one for one in trained if id(one) not in encoder | actor]},
        ]
        policy = [one for one in trained if id(one) in actor]
        return [
            torch.optim.Adam(groups, lr=rate, fused=True),
            torch.optim.Adam(policy, lr=rate, eps=1e-5, fused=True),
        ]

    def moved(self) -> None:
        """Move the target critics, after a gradient step."""
        self.updater.step()
