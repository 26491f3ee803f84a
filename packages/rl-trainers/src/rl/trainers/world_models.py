"""Parts of recipes with a world model: observations and actions as it has them, the policy in it, sequences."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import one_hot

from rl.core import State
from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import IS_INIT, NEXT, key_str
from rl.core.mdp import ExplorationType, exploration_type
from rl.core.specs import Bounded, OneHot
from rl.envs import WorldModelEnv
from rl.modules import EnsembleDynamics
from rl.trainers._named import import_attribute
from rl.trainers._storage import atomic_path
from rl.trainers.actions import is_choice, mask_key
from rl.trainers.actors import bounded_action, vector_of
from rl.trainers.networks import action_of, described, observations_of, readings_of

__all__ = [
    "ACTION_BEFORE",
    "LatentPolicy",
    "ModelInputs",
    "UnitActions",
    "arrivals",
    "draw_imagination",
    "ensemble",
    "model_env",
]

ACTION_BEFORE = "action_before"
"""Key under which a policy carries the action of the step before, as the world model reads it."""


class ModelInputs(nn.Module):
    """Observations of an environment as the world model reads them: one vector, one image, or both.

    Vectors and one-hot indices are concatenated; an image has its channels first.

    Args:
        env: Environment, whose specs decide.
        layout: Reading of observations with two or more dimensions, a name of `rl.trainers.config.LAYOUTS`.

    Attributes:
        keys: Keys of the observations.
        vector_dim: Width of the vector; 0 without one.
        image_shape: Channels, height and width of the image; None without one.

    Raises:
        SpecError: If there are several images.
    """

    def __init__(self, env: Env, layout: str = "auto") -> None:
        super().__init__()
        batch = len(env.batch_size)
        specs = observations_of(env)
        self._readings = list(readings_of(env, layout).values())
        self.keys: list[Any] = list(specs)
        shapes = [tuple(spec.shape[batch:]) for spec in specs.values()]
        self._dims = [len(shape) for shape in shapes]
        self._classes = [int(getattr(spec, "n", 0)) for spec in specs.values()]
        images = [i for i, how in enumerate(self._readings) if how.startswith("channels")]
        if len(images) > 1:
            raise SpecError(
                f"a world model reads one image, {type(env).__name__} has {len(images)}: join them with a transform, or"
                " leave some out"
            )
        self.image_shape: tuple[int, int, int] | None = None
        if images:
            shape = shapes[images[0]]
            last = self._readings[images[0]] == "channels-last"
            self.image_shape = (shape[2], shape[0], shape[1]) if last else (shape[0], shape[1], shape[2])
        self.vector_dim = sum(
            count if how == "index" else math.prod(shape)
            for how, count, shape in zip(self._readings, self._classes, shapes, strict=True)
            if not how.startswith("channels")
        )

    @property
    def out_keys(self) -> list[Any]:
        """Keys of what is returned, below ``next`` in sequences: ``vector`` and ``pixels``."""
        return [*(["vector"] if self.vector_dim else []), *(["pixels"] if self.image_shape else [])]

    def forward(self, *observations: Tensor) -> tuple[Tensor, ...]:
        """Return the vector ``[*B, n]``, the image ``[*B, C, H, W]``, or both."""
        vectors: list[Tensor] = []
        images: list[Tensor] = []
        for x, how, dims, count in zip(observations, self._readings, self._dims, self._classes, strict=True):
            if how.startswith("channels"):
                images.append(x.movedim(-1, -3) if how == "channels-last" else x)
            elif how == "index":
                vectors.append(one_hot(x.long(), count).float())
            else:
                vectors.append((x.flatten(-dims) if dims > 1 else x if dims else x.unsqueeze(-1)).float())
        return (*([torch.cat(vectors, -1)] if vectors else []), *images)


class UnitActions(nn.Module):
    """Actions of an environment as the world model reads them: one-hot vectors of choices, or vectors in [-1, 1].

    Args:
        env: Environment, whose action is one choice, or a vector of bounded floats.
        recipe: Name for messages.
        discrete: Whether choices are accepted.

    Attributes:
        width: Width of the vector.
        discrete: Whether the action is a choice.

    Raises:
        SpecError: If the action is of another kind, or masked.
    """

    low: Tensor
    reach: Tensor

    def __init__(self, env: Env, recipe: str, *, discrete: bool = True) -> None:
        super().__init__()
        key, spec = action_of(env)
        if mask_key(env) is not None:
            raise SpecError(f"{recipe} imagines actions without a mask, and {type(env).__name__} has one: train dqn")
        self.discrete = is_choice(spec)
        self.key: Any = key
        floats = type(spec) is Bounded and spec.dtype.is_floating_point and len(spec.shape) == 1
        bounded = floats and bool((spec.low.isfinite() & spec.high.isfinite()).all())
        if not (bounded or (self.discrete and discrete)):
            choice = "one choice (Categorical, OneHot) or " if discrete else ""
            raise SpecError(
                f"{recipe} trains {choice}a vector of bounded floats; {key_str(key)} of {type(env).__name__} is"
                f" {described(spec)}"
            )
        self._hot, self._dtype = type(spec) is OneHot, spec.dtype
        choice: Any = spec
        self.width = int(choice.n) if self.discrete else spec.shape[0]
        low, high = (torch.zeros(1), torch.ones(1)) if self.discrete else (spec.low, spec.high)
        self.register_buffer("low", low.clone(), persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)

    def to_env(self, unit: Tensor) -> Tensor:
        """Return the environment's action of vectors ``[*B, width]``."""
        if self.discrete:
            return unit.to(self._dtype) if self._hot else unit.argmax(-1).to(self._dtype)
        return ((unit.clamp(-1, 1) + 1) * self.reach + self.low).to(self._dtype)

    def to_unit(self, action: Tensor) -> Tensor:
        """Return the vectors ``[*B, width]`` float32 of actions of the environment."""
        if self.discrete:
            return action.float() if self._hot else one_hot(action.long(), self.width).float()
        return ((action - self.low) / self.reach.clamp_min(1e-12) - 1).float()


class LatentPolicy(TensorDictModuleBase):
    """Policy that acts on the posterior state of a recurrent state-space model, which it carries from step to step.

    Reads the observations, ``state``, ``belief`` and ``action_before``, which are zero at the first step of an episode;
    writes the action, and these three under ``next``.

    Args:
        inputs: Observations as the encoder reads them.
        actions: Actions as the model reads them.
        encoder: Network from `inputs` to features.
        prior: `RSSMPrior` or `RSSMPriorV3`.
        posterior: `RSSMPosterior` or `RSSMPosteriorV3`.
        actor: Policy on ``state`` and ``belief``, which writes ``action``.
        state_dim: Width of the state.
        belief_dim: Width of the belief.
        noise: Standard deviation of normal noise on sampled actions.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        actions: UnitActions,
        encoder: nn.Module,
        prior: Any,
        posterior: Any,
        actor: Any,
        state_dim: int,
        belief_dim: int,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.inputs, self.actions, self.encoder = inputs, actions, encoder
        self.prior, self.posterior, self.actor = prior, posterior, actor
        self.state_dim, self.belief_dim, self.noise = state_dim, belief_dim, noise
        self.in_keys: list[Any] = [*inputs.keys, *(state.name for state in self.states)]
        self.out_keys: list[Any] = [actions.key, *((NEXT, state.name) for state in self.states)]

    @property
    def states(self) -> tuple[State, ...]:
        """What is carried from step to step."""
        sizes = {"state": self.state_dim, "belief": self.belief_dim, ACTION_BEFORE: self.actions.width}
        return tuple(State(name, (size,), owner="LatentPolicy") for name, size in sizes.items())

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write an action and the latent state, from which the next step goes on."""
        seen = self.encoder(*self.inputs(*(tensordict.get(key) for key in self.inputs.keys)))
        before = self.prior.embed(tensordict.get(ACTION_BEFORE))
        belief = self.prior.recur(tensordict.get("state"), tensordict.get("belief"), before)
        state = self.posterior(belief, seen)[-1]
        latent = TensorDict({"state": state, "belief": belief}, batch_size=belief.shape[:-1])
        unit = self.actor(latent).get("action").float()
        if self.noise and exploration_type() is not ExplorationType.DETERMINISTIC:
            unit = (unit + self.noise * torch.randn_like(unit)).clamp(-1, 1)
        tensordict.set(self.actions.key, self.actions.to_env(unit))
        for key, value in (("state", state), ("belief", belief), (ACTION_BEFORE, unit)):
            tensordict.set((NEXT, key), value)
        return tensordict


def arrivals(rows: TensorDictBase, inputs: ModelInputs, actions: UnitActions) -> TensorDictBase:
    """Convert collected steps to the sequences that a world model learns from.

    A collected step has an observation and the action *after* it. In the result, row `t` has an observation and the
    action *before* it (0 at the first step of an episode), the reward and the flags of arriving there; the observation
    after the last step of an episode has a row of its own, so that what terminates is seen. The first collected step is
    only context: its action and its reward belong to the arrival at the second one.

    Args:
        rows: Collected steps ``[B, T + 1]``, with ``state`` and ``belief`` before each, and ``is_init``.
        inputs: Observations as the encoder reads them.
        actions: Actions as the model reads them.

    Returns:
        Sequences ``[B, T]``: ``state``, ``belief`` of the first row, ``action``, ``is_init``, ``before``, and under
        ``next`` ``vector`` or ``pixels``, ``reward``, ``done`` and ``terminated``. ``before`` is the number of the
        collected step that begins in the state of the row, 0 without one.
    """
    done: Tensor = rows.get((NEXT, "done"))[:, 1:, 0]
    size = done.shape
    count = torch.arange(size[0], device=done.device).unsqueeze(-1)
    # Of each step there are two candidates, its own observation and the one after it; the latter counts at ends only.
    candidates = torch.stack((torch.ones_like(done), done), -1).flatten(1)
    chosen = candidates.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, : size[1]]
    step, last = chosen // 2, chosen % 2 == 1
    ends = bool(last.any())

    def pick(own: Tensor, after: Tensor) -> Tensor:
        if not ends:
            return own
        return torch.where(last.view(*size, *[1] * (own.ndim - 2)), after[count, step], own[count, step])

    unit = actions.to_unit(rows.get(actions.key))
    is_init, reward = rows.get(IS_INIT)[:, 1:], rows.get((NEXT, "reward"))
    never = torch.zeros_like(is_init)
    goes_on = ~last & ~done[count, step] & (step + 2 < rows.shape[1])
    out = TensorDict(
        {
            "before": torch.where(goes_on, step + 2, 0),
            "action": pick(unit[:, :-1].masked_fill(is_init, 0), unit[:, 1:]),
            IS_INIT: pick(is_init, never),
            **{key: rows.get(key)[:, 1:2].float().expand(*size, -1) for key in ("state", "belief")},
        },
        batch_size=size,
    )
    after = {
        "reward": pick(reward[:, :-1].masked_fill(is_init, 0), reward[:, 1:]),
        **{key: pick(never, rows.get((NEXT, key))[:, 1:]) for key in ("done", "terminated")},
    }
    own = inputs(*(rows.get(key)[:, 1:] for key in inputs.keys))
    following = inputs(*(rows.get((NEXT, key))[:, 1:] for key in inputs.keys)) if ends else own
    after |= {key: pick(a, b) for key, a, b in zip(inputs.out_keys, own, following, strict=True)}
    return out.set(NEXT, TensorDict(after, batch_size=size))


def draw_imagination(path: Path, real: Tensor, imagined: Tensor, seen: int) -> None:
    """Write a picture of real images above the imagined ones and their difference, time to the right.

    A white line separates the steps whose images the model saw from those that it imagined.

    Args:
        path: The file, ``.png``.
        real: Images ``[n, T, C, H, W]`` in [0, 1].
        imagined: Images of the model, same shape.
        seen: Number of steps that it saw.
    """
    from matplotlib.image import imsave

    rows = torch.stack((real, imagined, (real - imagined).abs()), 1).flatten(0, 1).cpu()  # [3 n, T, C, H, W]
    rows = rows[:, :, :3] if rows.shape[2] >= 3 else rows[:, :, :1].expand(-1, -1, 3, -1, -1)
    scale = max(1, 32 // rows.shape[-1])  # so that images of a few pixels are seen
    rows = rows.repeat_interleave(scale, -2).repeat_interleave(scale, -1)
    line = torch.ones(*rows.shape[:1], *rows.shape[2:4], 2)
    parts = [part.movedim(1, -2).flatten(-2) for part in (rows[:, :seen], rows[:, seen:])]
    whole = torch.cat((parts[0], line, parts[1]), -1)  # [3 n, 3, H, T W + 2]
    pixels = whole.movedim(1, -1).flatten(0, 1).mul(255).round().to(torch.uint8)
    with atomic_path(path) as temporary:
        imsave(temporary, pixels.numpy())


def ensemble(config: Any, env: Env) -> EnsembleDynamics:
    """Create the untrained ensemble of the dynamics of an environment.

    Raises:
        SpecError: If the observation is no vector, or the action no vector of bounded floats.
    """
    key, width = vector_of(config, env)
    action, spec = bounded_action(config, env)
    return EnsembleDynamics(
        width,
        spec.shape[-1],
        num_members=config.num_members,
        num_elites=config.num_elites,
        num_cells=config.model_num_cells,
        observation_key=key,
        action_key=action,
    ).to(config.device)


def model_env(config: Any, env: Env, model: EnsembleDynamics) -> WorldModelEnv:
    """Create the environment of an ensemble, which takes batches of any size.

    Raises:
        UnknownComponentError: If there is no such function as `config.termination`.
    """
    ends = import_attribute(config.termination, "termination") if config.termination else None
    return WorldModelEnv(model, env, batch_size=(), device=config.device, termination=ends)
