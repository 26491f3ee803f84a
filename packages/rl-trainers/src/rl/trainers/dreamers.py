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

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NEXT
from rl.core.specs import Bounded
from rl.modules import (
    MLP,
    DreamerActor,
    DreamerV3Actor,
    DreamerV3Encoder,
    DreamerV3ImageDecoder,
    DreamerV3MLP,
    IndependentNormal,
    ObsDecoder,
    ObsEncoder,
    OneHotCategorical,
    ProbabilisticActor,
    RSSMPosterior,
    RSSMPosteriorV3,
    RSSMPrior,
    RSSMPriorV3,
    RSSMRollout,
    RSSMRolloutV3,
    SquaredError,
    TanhNormal,
    TwoHotCategorical,
    WorldModel,
    dreamer_v3_size,
)
from rl.objectives import (
    DreamerActorLoss,
    DreamerModelLoss,
    DreamerV3ActorLoss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    DreamerValueLoss,
    LaProp,
    SoftUpdate,
)
from rl.trainers.world_models import LatentPolicy, ModelInputs, UnitActions, arrivals

__all__ = ["DreamerLosses", "DreamerV3Losses", "dreamer_policy", "dreamer_v3_policy", "widths_of"]

ROOT: list[Any] = ["state", "belief"]
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

    Attributes:
        newest: States of the last call ``[B, T]``, and as ``before`` the steps that begin in them.
    """

    context = 1
    """Steps of a sampled sequence before those that are learned from."""
    latents = ("state", "belief")
    """Latent states that the buffer keeps of each step, in bfloat16."""
    newest_first = True
    """Whether sequences that were collected since the last sample come first, the "online queue" of the paper."""
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

    def forward(self, rows: TensorDictBase) -> dict[str, Any]:
        """Compute what is minimized, and metrics, of steps ``[B, T + 1]``."""
        batch = arrivals(rows, self.inputs, self.actions)
        model, states = self.model_loss(batch)
        self.newest = batch.select("before").update(states.select(*ROOT).detach())
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
        latents = _predict(self.model_loss.world_model, batch, seen)
        decoder: Any = self.model_loss.decoder[-1]
        predicted = decoder.get_dist(latents).mean
        real = batch.get((NEXT, "pixels"))
        return (real / 255 if real.dtype is torch.uint8 else real), predicted.reshape(real.shape)


class _Centred(nn.Module):
    """Pixels of an image around 0, as Dreamer encodes and predicts them."""

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels / 255 if pixels.dtype is torch.uint8 else pixels) - 0.5


def dreamer_policy(config: Any, env: Env) -> LatentPolicy:
    """Create the untrained policy of Dreamer, with encoder, prior and posterior.

    Raises:
        SpecError: If the action is no vector of bounded floats, or the observation is neither a vector nor an image of
            64 x 64.
    """
    inputs = ModelInputs(env, config.observation_layout)
    actions = UnitActions(env, config.recipe, discrete=False)
    image, vector = inputs.image_shape, inputs.vector_dim
    if (image is not None and (vector or image[1:] != (64, 64))) or not (image or vector):
        raise SpecError(
            f"{config.recipe} reads vectors, or an image of 64 x 64 alone; {type(env).__name__} has an image of {image}"
            f" and {vector} other numbers: train dreamer-v3, or resize the image with a transform"
        )
    state, belief, cells = config.state_dim, config.belief_dim, config.num_cells
    elu: Any = nn.ELU
    encoder: nn.Module
    if image is None:
        encoder, width = MLP(vector, cells, depth=2, num_cells=cells, activation_class=elu), cells
    else:
        encoder, width = nn.Sequential(_Centred(), ObsEncoder(in_channels=image[0])), 1024
    spec = Bounded(-1, 1, (actions.width,))
    prior = RSSMPrior(spec, belief, belief, state, action_dim=actions.width)
    posterior = RSSMPosterior(belief, state, rnn_hidden_dim=belief, obs_embed_dim=width)
    net = DreamerActor(actions.width, depth=4, num_cells=cells)
    net(torch.zeros(1, state), torch.zeros(1, belief))  # its first layer is as wide as its first input
    actor = ProbabilisticActor(
        TensorDictModule(net, ROOT, ["loc", "scale"]), ["loc", "scale"], distribution_class=TanhNormal
    )
    noise = config.exploration_noise
    return LatentPolicy(inputs, actions, encoder, prior, posterior, actor, state, belief, noise).to(config.device)


class DreamerLosses(nn.Module):
    """Losses of Dreamer for collected steps ``[B, T + 1]``: model, actor and critic.

    Args:
        config: Settings: `horizon`, `gamma` and `num_cells`.
        policy: Policy of `dreamer_policy`, whose networks are trained.
    """

    context, latents, newest_first, random_start = 1, ("state", "belief"), False, False
    outputs = {  # noqa: RUF012 - read, never written
        "loss_model": "loss_model",
        "loss_actor": "loss_actor",
        "loss_critic": "loss_value",
        "reconstruction": "part_loss_model_reco",
        "reward_loss": "part_loss_model_reward",
        "divergence": "part_loss_model_kl",
        "imagined_return": "imagined_return",
    }

    def __init__(self, config: Any, policy: LatentPolicy) -> None:
        super().__init__()
        self.inputs, self.actions = policy.inputs, policy.actions
        width, cells = policy.state_dim + policy.belief_dim, config.num_cells
        (key,) = self.inputs.out_keys
        self.key = key

        def network(outputs: int, depth: int) -> _Joined:
            return _Joined(MLP(width, outputs, depth=depth, num_cells=cells, activation_class=nn.ELU))

        image = self.inputs.image_shape
        decoder = (
            network(self.inputs.vector_dim, 3) if image is None else ObsDecoder(latent_dim=width, out_channels=image[0])
        )
        encode = TensorDictModule(policy.encoder, [(NEXT, key)], [(NEXT, "encoded_latents")])
        prior_out: list[Any] = [(NEXT, "prior_mean"), (NEXT, "prior_std"), "_", (NEXT, "belief")]
        posterior_out: list[Any] = [(NEXT, "posterior_mean"), (NEXT, "posterior_std"), (NEXT, "state")]
        rollout = RSSMRollout(
            TensorDictModule(policy.prior, [*ROOT, "action"], prior_out),
            TensorDictModule(policy.posterior, [(NEXT, "belief"), (NEXT, "encoded_latents")], posterior_out),
            use_scan=True,
        )
        reward = TensorDictModule(network(1, 2), AFTER, [(NEXT, "reward")])
        self.decoder = TensorDictModule(decoder, AFTER, [(NEXT, "reco")])
        self.model_loss = DreamerModelLoss(TensorDictSequential(encode, rollout, self.decoder, reward))
        self.model_loss.set_keys(pixels="target", reco_pixels="reco")
        imagined_out: list[Any] = ["_", "_", (NEXT, "state"), (NEXT, "belief")]
        imagined = WorldModel(encode, TensorDictModule(policy.prior, [*ROOT, "action"], imagined_out), reward)
        value = TensorDictModule(network(1, 3), ROOT, ["state_value"])
        self.actor_loss = DreamerActorLoss(
            policy.actor, value, imagined, imagination_horizon=config.horizon, gamma=config.gamma
        )
        self.value_loss = DreamerValueLoss(value, gamma=config.gamma)
        self.to(config.device)

    def forward(self, rows: TensorDictBase) -> dict[str, Any]:
        """Compute what is minimized, and metrics."""
        batch = arrivals(rows, self.inputs, self.actions)
        seen = batch.get((NEXT, self.key))
        batch.set((NEXT, "target"), seen if self.key == "vector" else _Centred()(seen))
        model, states = self.model_loss(batch)
        self.newest = batch.select("before").update(states.get(NEXT).select(*ROOT))
        actor, imagined = self.actor_loss(states.get(NEXT).select(*ROOT))
        value, _ = self.value_loss(imagined)
        parts = dict(model.items())
        return {
            **{name.replace("loss_", "part_loss_", 1): one.detach() for name, one in parts.items()},
            "loss_model": torch.stack([*parts.values()]).sum(),
            "imagined_return": imagined.get("lambda_target").mean(),
            **dict(actor.items()),
            **dict(value.items()),
        }

    def optimizers(self, config: Any) -> list[torch.optim.Optimizer]:
        """Return an optimizer of the model, one of the actor and one of the critic."""
        slow = config.behaviour_learning_rate
        pairs = ((self.model_loss, config.learning_rate), (self.actor_loss, slow), (self.value_loss, slow))
        return [torch.optim.Adam(part.parameters(), lr=rate, eps=1e-7, fused=True) for part, rate in pairs]

    def moved(self) -> None:
        """Do nothing: Dreamer has no target network."""

    @torch.no_grad()
    def imagined_images(self, rows: TensorDictBase, seen: int) -> tuple[Tensor, Tensor] | None:
        """Return real and predicted images, see `DreamerV3Losses.imagined_images`."""
        if self.inputs.image_shape is None:
            return None
        batch = arrivals(rows, self.inputs, self.actions)
        latents = _predict(self.model_loss.world_model, batch, seen)
        predicted = self.decoder(latents).get((NEXT, "reco"))
        return _Centred()(batch.get((NEXT, "pixels"))) + 0.5, (predicted + 0.5).clamp(0, 1)


class _Joined(nn.Module):
    """A network that reads state and belief as one vector."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *latent: Tensor) -> Tensor:
        return self.net(torch.cat(latent, -1))


def _predict(world_model: Any, batch: TensorDictBase, seen: int) -> TensorDictBase:
    """Return the states ``[B, T]`` under ``next``: posterior ones of `seen` steps, then those of the prior alone."""
    found = world_model(batch[:, :seen].copy())
    latents = [found.select(*AFTER)]
    state, belief = (found.get(key)[:, -1] for key in AFTER)
    prior: Any = world_model[1].rssm_prior.module
    for action in batch.get("action")[:, seen:].unbind(1):
        state, belief = prior(state, belief, action)[-2:]
        after = TensorDict({"state": state, "belief": belief}, batch_size=state.shape[:-1])
        latents.append(TensorDict({NEXT: after}, batch_size=after.batch_size).unsqueeze(1))
    return TensorDict.cat(latents, 1)
