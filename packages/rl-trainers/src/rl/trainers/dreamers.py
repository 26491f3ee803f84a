"""Networks and losses of the recipes dreamer-v3 and dreamer, from the specs of an environment."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution

from rl.core.interfaces import Env
from rl.core.keys import NEXT
from rl.modules import (
    DreamerV3Actor,
    DreamerV3Encoder,
    DreamerV3ImageDecoder,
    DreamerV3MLP,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    SquaredError,
    TwoHotCategorical,
    WorldModel,
    dreamer_v3_size,
)
from rl.objectives import DreamerV3ActorLoss, DreamerV3ModelLoss, DreamerV3ValueLoss, LaProp, SoftUpdate
from rl.trainers.world_models import LatentPolicy, ModelInputs, UnitActions, arrivals

__all__ = ["DreamerV3Losses", "dreamer_v3_policy", "widths_of"]

ROOT = ["state", "belief"]
AFTER: list[Any] = [(NEXT, "state"), (NEXT, "belief")]
CATEGORICALS = 32
BINS = 255


def widths_of(size: str) -> tuple[int, int, int, int, int]:
    """Widths of belief and hidden layers, classes, depth of convolutions and units of heads, of a size.

    ``"tiny"`` is our own, for two processors; the others are those of the paper.

    Example:
        >>> widths_of("tiny"), widths_of("1M")
        ((128, 64, 4, 4, 64), (512, 64, 4, 4, 64))
    """
    if size == "tiny":
        return 128, 64, 4, 4, 64
    one = dreamer_v3_size(size)
    return one.deter, one.hidden, one.classes, one.depth, one.units


def dreamer_v3_policy(config: Any, env: Env) -> LatentPolicy:
    """Create the untrained policy, with encoder, prior and posterior.

    Raises:
        SpecError: If the action is neither one choice nor a vector of bounded floats, or an image does not fit.
    """
    inputs, actions = ModelInputs(env, config.observation_layout), UnitActions(env, config.recipe)
    deter, hidden, classes, depth, units = widths_of(config.size)
    state = CATEGORICALS * classes
    encoder = DreamerV3Encoder(inputs.vector_dim, inputs.image_shape, depth=depth, units=units)
    widths: Any = {"hidden_dim": hidden, "rnn_hidden_dim": deter, "num_classes": classes}
    net = DreamerV3Actor(state + deter, actions.width, discrete=actions.discrete, num_cells=units)
    parameters: list[Any] = ["logits"] if actions.discrete else ["loc", "scale"]
    actor = ProbabilisticActor(
        TensorDictModule(net, ROOT, parameters),
        parameters,
        distribution_class=OneHotCategorical if actions.discrete else IndependentNormal,
    )
    prior = RSSMPriorV3(action_dim=actions.width, **widths)
    posterior = RSSMPosteriorV3(**widths, obs_embed_dim=encoder.out_features)
    return LatentPolicy(inputs, actions, encoder, prior, posterior, actor, state, deter).to(config.device)


def _head(net: Any, reads: list[Any], parameter: str, name: str, sample: Any, kind: Any) -> Any:
    last = ProbabilisticTensorDictModule({parameter: name}, [sample], distribution_class=kind)
    return ProbabilisticTensorDictSequential(TensorDictModule(net, reads, [name]), last)


def _symlog_error(loc: Tensor) -> Distribution:
    return SquaredError(loc, symlog=True)


def _image_error(loc: Tensor) -> Distribution:
    return SquaredError(loc, 3)


def _bernoulli(logits: Tensor) -> Distribution:
    return Bernoulli(logits=logits, validate_args=False)


class DreamerV3Losses(nn.Module):
    """Losses of DreamerV3 for collected steps: model, actor, critic, and critic of replayed states.

    Reads steps ``[B, T + 1]`` as `rl.trainers.world_models.arrivals` does.

    Args:
        config: Settings: `size`, `horizon` and `gamma`.
        policy: Policy of `dreamer_v3_policy`, whose networks are trained.
    """

    context = 1
    """Steps of a sampled sequence before those that are learned from."""
    latents = ("state", "belief")
    """Latent states that the buffer keeps of each step, in bfloat16."""
    random_start = False
    """Whether the first actions are random."""
    outputs = {  # noqa: RUF012 - read, never written
        "loss_model": "loss_model",
        "loss_actor": "loss_actor",
        "loss_critic": "loss_value",
        "reconstruction": "part_loss_model_reco",
        "reward_loss": "part_loss_model_reward",
        "divergence": "part_loss_model_dynamic",
        "imagined_return": "imagined_return",
        "return_scale": "return_scale",
        "entropy": "entropy",
    }

    def __init__(self, config: Any, policy: LatentPolicy) -> None:
        super().__init__()
        _, _, _, depth, units = widths_of(config.size)
        self.inputs, self.actions = policy.inputs, policy.actions
        state, belief = policy.state_dim, policy.belief_dim

        def network(outputs: int, layers: int, outscale: float = 1.0) -> DreamerV3MLP:
            return DreamerV3MLP(state + belief, outputs, layers, units, outscale)

        decoders: list[Any] = []
        if self.inputs.vector_dim:
            net = network(self.inputs.vector_dim, 3)
            decoders.append(_head(net, AFTER, "loc", "vector_loc", (NEXT, "vector"), _symlog_error))
        if self.inputs.image_shape is not None:
            net = DreamerV3ImageDecoder(state, belief, self.inputs.image_shape, depth=depth, units=units)
            decoders.append(_head(net, AFTER, "loc", "pixels_loc", (NEXT, "pixels"), _image_error))
        read: list[Any] = [(NEXT, key) for key in self.inputs.out_keys]
        encode = TensorDictModule(policy.encoder, read, [(NEXT, "encoded_latents")])
        prior_out: list[Any] = [(NEXT, "prior_logits"), "_", (NEXT, "belief")]
        posterior_out: list[Any] = [(NEXT, "posterior_logits"), (NEXT, "state")]
        rollout = RSSMRolloutV3(
            TensorDictModule(policy.prior, [*ROOT, "action"], prior_out),
            TensorDictModule(policy.posterior, [(NEXT, "belief"), (NEXT, "encoded_latents")], posterior_out),
            use_scan=True,
        )
        reward, going, critic = network(BINS, 1, 0.0), network(1, 1), network(BINS, 3, 0.0)
        self.model_loss = DreamerV3ModelLoss(
            TensorDictSequential(encode, rollout),
            decoders,
            _head(reward, AFTER, "logits", "reward_logits", (NEXT, "reward"), TwoHotCategorical),
            _head(going, AFTER, "logits", "going_logits", "going", _bernoulli),
            continue_target_scale=config.gamma,
        )
        imagined_out: list[Any] = ["_", (NEXT, "state"), (NEXT, "belief")]
        imagined = WorldModel(
            encode,
            TensorDictModule(policy.prior, [*ROOT, "action"], imagined_out),
            TensorDictModule(lambda *latent: TwoHotCategorical(reward(*latent)).mean, AFTER, [(NEXT, "reward")]),
        )
        value = _head(critic, ROOT, "logits", "value_logits", "state_value", TwoHotCategorical)
        self.actor_loss = DreamerV3ActorLoss(
            policy.actor,
            value,
            imagined,
            continuation_model=_head(going, ROOT, "logits", "going_logits", "going", _bernoulli),
            imagination_horizon=config.horizon,
            entropy_bonus=config.entropy_coeff,
        )
        self.value_loss = DreamerV3ValueLoss(value, gamma=config.gamma)
        self.updater = SoftUpdate(self.value_loss, tau=0.02)
        self.to(config.device)

    def forward(self, rows: TensorDictBase) -> dict[str, Tensor]:
        """Compute what is minimized, and metrics, of steps ``[B, T + 1]``."""
        batch = arrivals(rows, self.inputs, self.actions)
        model, states = self.model_loss(batch)
        actor, imagined = self.actor_loss(states)
        value, _ = self.value_loss(imagined)
        states.set("bootstrap", imagined.get("lambda_target")[:, 0].reshape(*batch.batch_size, 1))
        replay = self.value_loss.replay_value_loss(states)
        parts = dict(model.items())
        total = torch.stack([one for name, one in parts.items() if name.startswith("loss")]).sum()
        # one name that begins with loss for each sum: the others are parts of it
        metrics = {name: one.detach() for name, one in parts.items()}
        return {
            **{name.replace("loss_", "part_loss_", 1): one for name, one in metrics.items()},
            "loss_model": total,
            **dict(actor.items()),
            **dict(value.items()),
            **dict(replay.items()),
        }

    def optimizers(self, config: Any) -> list[torch.optim.Optimizer]:
        """Return one optimizer of all networks, as published."""
        trained = [one for one in self.parameters() if one.requires_grad]
        return [LaProp(trained, lr=config.learning_rate, warmup=config.warmup)]

    def moved(self) -> None:
        """Move the slow critic, after a gradient step."""
        self.updater.step()

    @torch.no_grad()
    def imagined_images(self, rows: TensorDictBase, seen: int) -> tuple[Tensor, Tensor] | None:
        """Return real and predicted images ``[B, T, C, H, W]`` in [0, 1]: observed for `seen` steps, then imagined.

        None without images.
        """
        if self.inputs.image_shape is None:
            return None
        batch = arrivals(rows, self.inputs, self.actions)
        world_model, decoder = self.model_loss.world_model, self.model_loss.decoder[-1]
        found = world_model(batch[:, :seen].copy())
        latents = [found.select(*AFTER)]
        state, belief = (found.get(key)[:, -1] for key in AFTER)
        prior: Any = world_model[1].rssm_prior.module
        for step in range(seen, batch.shape[1]):
            _, state, belief = prior(state, belief, batch.get("action")[:, step])
            after = TensorDict({"state": state, "belief": belief}, batch_size=state.shape[:-1])
            latents.append(TensorDict({NEXT: after}, batch_size=after.shape).unsqueeze(1))
        predicted = decoder.get_dist(torch.cat(latents, 1)).mean
        real = batch.get((NEXT, "pixels"))
        return (real / 255 if real.dtype is torch.uint8 else real), predicted.reshape(real.shape)
