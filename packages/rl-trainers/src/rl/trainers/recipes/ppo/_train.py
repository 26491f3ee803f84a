"""The recipe ``ppo``: proximal policy optimization, the whole algorithm on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl.collectors import Collector
from rl.core import check_pipeline
from rl.core.interfaces import Env
from rl.core.keys import ADVANTAGE, STATE_VALUE, VALUE_TARGET, NestedKey
from rl.modules import ProbabilisticActor
from rl.objectives import ClipPPOLoss, compile_with_warmup
from rl.objectives.value import GAE
from rl.trainers._build.actions import ActionDistribution, distribution_of
from rl.trainers._build.device import storing_device
from rl.trainers._build.memory import activation_of, with_memory
from rl.trainers._build.networks import described_observations, network
from rl.trainers._build.optimizer import adam, descend, set_learning_rate
from rl.trainers._evaluate.evaluator import Evaluator
from rl.trainers._report.display import DisplayMode
from rl.trainers._run.run import Run, TrainResult
from rl.trainers.recipes.ppo._config import PPO, PPOConfig

__all__ = ["ppo_networks", "ppo_policy", "train_ppo"]


def train_ppo(
    config: PPOConfig,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    display: DisplayMode = "auto",
    should_stop: Callable[[int], bool] | None = None,
) -> TrainResult:
    """Train with proximal policy optimization.

    Args:
        config: what to train, and how.
        out: the run folder, which must not exist; the next free one under ``runs/`` if None.
        resume: the folder of an earlier run, which continues from its last checkpoint.
        display: ``rich``, ``plain``, ``none``, or ``auto`` for what fits the standard output.
        should_stop: called with the frames so far after each update; true ends the run as Ctrl-C does.

    Raises:
        UnknownComponentError: if there is no such environment.
        SpecError: if the environment's actions do not fit.
        RLError: if the run folder exists, or a loss is not finite.
        CheckpointError: if there is nothing to resume.

    Example:
        >>> import tempfile
        >>> config = PPOConfig(total_frames=256, num_envs=2, frames_per_batch=128, minibatch_size=64,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_ppo(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    run = Run(PPO, config, out=out, resume=resume, display=display, should_stop=should_stop)
    env = run.make_env(config.num_envs)
    actor, critic = ppo_networks(config, env)
    run.note(described_observations(env, config.observation_layout))
    estimate = GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic)
    settings: dict[str, Any] = {
        "clip_epsilon": config.clip,
        "clip_value": config.clip_value or None,
        "entropy_coeff": config.entropy_weight,
        "loss_critic_type": "l2",
        "normalize_advantage": config.normalize_advantage,
    }
    loss = ClipPPOLoss(actor, critic, diagnostics=False, **settings)
    loss_with_diagnostics = ClipPPOLoss(actor, critic, **settings)  # called in the last epoch only
    recurrent = config.policy != "mlp"  # the critic then has a recurrent state as well
    acting = TensorDictSequential(actor, critic) if recurrent else actor
    check_pipeline(env, acting, estimate, loss_with_diagnostics)
    optimizer = adam(loss.parameters(), config.learning_rate)
    collector = Collector(
        env, acting, frames_per_batch=config.frames_per_batch, storing_device=storing_device(config.device)
    )
    called: tuple[Any, Any] = (loss, loss_with_diagnostics)
    if config.compile:
        called = compile_with_warmup(loss), compile_with_warmup(loss_with_diagnostics)
    learn = _Learner(config, *called, optimizer)
    parts = {"policy": actor, "critic": critic, "optimizer": optimizer, "collector": collector}
    evaluator = Evaluator(run.make_env, actor)
    with (
        collector,
        run.training(evaluator=evaluator, parts=parts, metrics=METRICS, phases=("collect", "estimate", "update")),
    ):
        while run.going:
            if config.anneal:
                set_learning_rate(optimizer, config.learning_rate * (1 - run.progress))
            if config.anneal_clip:
                loss.clip_epsilon = loss_with_diagnostics.clip_epsilon = config.clip * (1 - run.progress)
            with run.timed("collect"):
                batch = collector.collect()
            run.record_episodes(batch)
            with run.timed("estimate"), torch.no_grad():
                batch = estimate(batch)
            with run.timed("update"):
                figures = learn(batch)
            run.end_iteration(batch.numel(), figures)
        return run.finish()


METRICS = (
    "loss_actor",
    "loss_critic",
    "entropy",
    "kl",
    "clip_fraction",
    "gradient_norm",
    "explained_variance",
    "learning_rate",
)

#: what a row calls the loss module's outputs
_OUTPUTS = {
    "loss_actor": "loss_objective",
    "loss_critic": "loss_critic",
    "entropy": "entropy",
    "kl": "kl_approx",
    "clip_fraction": "clip_fraction",
}


class _Learner:
    """Epochs of minibatches over one batch: of single steps, or of sequences for a recurrent policy."""

    def __init__(
        self, config: PPOConfig, loss: Any, loss_with_diagnostics: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        self._config, self._optimizer = config, optimizer
        self._loss, self._loss_with_diagnostics = loss, loss_with_diagnostics
        self._parameters = [p for p in loss.parameters() if p.requires_grad]
        self._row = (
            () if config.policy == "mlp" else (config.sequence_length,)
        )  # dimensions of a sequence, which stays whole
        self._size = config.minibatch_size // prod(self._row)

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what gives the mean figures of the last epoch."""
        rows = {key: self._rows(batch.get(key), batch.ndim) for key in self._loss.in_keys}
        seen: list[tuple[TensorDictBase, Tensor]] = []
        for epoch in range(1, self._config.epochs + 1):
            last = epoch == self._config.epochs
            loss = self._loss_with_diagnostics if last else self._loss
            for minibatch in self._minibatches(rows):
                out = loss(minibatch)
                total = out.get("loss_objective") + self._config.value_weight * out.get("loss_critic")
                if self._config.entropy_weight:
                    total = total + out.get("loss_entropy")
                norm = descend(total, self._optimizer, self._parameters, self._config.max_grad_norm)
                if last:
                    seen.append((out, norm))
        return lambda: self._figures(rows, seen)

    def _rows(self, leaf: Tensor, batch_dims: int) -> Tensor:
        return leaf.reshape(-1, *self._row, *leaf.shape[batch_dims:])

    def _minibatches(self, rows: Mapping[NestedKey, Tensor]) -> Iterator[TensorDict]:
        """Shuffled rows, cut into pieces; a last piece below half a minibatch joins the one before."""
        size, total = self._size, next(iter(rows.values())).shape[0]
        order = torch.randperm(total).to(self._config.device)
        shuffled = {key: leaf.index_select(0, order) for key, leaf in rows.items()}
        count = max(1, round(total / size))
        for i in range(count):
            end = (i + 1) * size if i < count - 1 else total
            piece: dict[Any, Any] = {key: leaf[i * size : end] for key, leaf in shuffled.items()}
            yield TensorDict(piece, batch_size=[end - i * size, *self._row])

    def _figures(self, rows: Mapping[NestedKey, Tensor], seen: list[tuple[TensorDictBase, Tensor]]) -> dict[str, float]:
        means = {
            name: float(torch.stack([out.get(key).detach() for out, _ in seen]).mean())
            for name, key in _OUTPUTS.items()
        }
        target = rows[VALUE_TARGET]
        residual = rows[ADVANTAGE].var() / target.var().clamp_min(1e-12)  # target - value is the advantage
        return {
            **means,
            "gradient_norm": float(torch.stack([norm for _, norm in seen]).mean()),
            "explained_variance": 1 - float(residual),
            "learning_rate": self._optimizer.param_groups[0]["lr"],
        }


def ppo_networks(config: PPOConfig, env: Env) -> tuple[ProbabilisticActor, TensorDictModuleBase]:
    """The untrained actor and critic, which share nothing.

    The actor reads observations, and writes ``action`` and ``action_log_prob``; the critic writes ``state_value``.
    `rl.trainers._build.actions.distribution_of` lists the distributions.

    Raises:
        SpecError: if the environment's action is of another kind.
    """
    action = distribution_of(env)
    make = partial(
        network,
        env,
        hidden=config.hidden,
        activation=activation_of(config),
        layout=config.observation_layout,
        device=config.device,
    )
    gains: dict[str, Any] = {"actor": 0.01, "critic": 1.0} if config.ortho_init else {"actor": None, "critic": None}
    act = partial(make, out_features=action.width, last_gain=gains["actor"])
    if len(action.params) == 2:
        act = _with_scale(config, make, action, gains["actor"])
    params: list[Any] = action.params
    actor = ProbabilisticActor(
        with_memory(config, env, act, params),
        in_keys=params,
        out_keys=[action.key],
        spec=action.spec,
        distribution_class=action.kind,
        distribution_kwargs=action.kwargs,
        return_log_prob=True,
    )
    value = partial(make, out_features=1, last_gain=gains["critic"])
    return actor, with_memory(config, env, value, [STATE_VALUE], state="critic_state")


def ppo_policy(config: PPOConfig, env: Env) -> ProbabilisticActor:
    """The untrained policy; see `ppo_networks`.

    Raises:
        SpecError: if the environment's action is of a kind that is not trained.
    """
    return ppo_networks(config, env)[0]


def _with_scale(
    config: PPOConfig, make: Callable[..., nn.Module], action: ActionDistribution, gain: float | None
) -> Callable[..., nn.Module]:
    own, dtype = config.state_independent_scale, action.spec.dtype
    kind = _WithScale if own else _SplitScale
    width = action.width if own else 2 * action.width

    def build(**settings: Any) -> nn.Module:
        body = make(out_features=width, last_gain=gain, **settings)
        return kind(body, action.width, config.init_log_scale, dtype).to(config.device)

    return build


#: limits of the logarithm of a standard deviation
LEAST, MOST = -5.0, 2.0


class _WithScale(nn.Module):
    """A mean from a network, and a standard deviation for each dimension, both of the action's dtype."""

    def __init__(self, mean: nn.Module, width: int, log_scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.mean, self.dtype = mean, dtype
        self.log_scale = nn.Parameter(torch.full((width,), log_scale))

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(*observations).to(self.dtype)
        return mean, self.log_scale.clamp(LEAST, MOST).exp().to(self.dtype).expand_as(mean)


class _SplitScale(nn.Module):
    """Mean and standard deviation from one network, both of the action's dtype."""

    def __init__(self, body: nn.Module, width: int, log_scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.width, self.log_scale, self.dtype = body, width, log_scale, dtype

    def forward(self, *observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = self.body(*observations).split(self.width, -1)
        return mean.to(self.dtype), (raw + self.log_scale).clamp(LEAST, MOST).exp().to(self.dtype)
