"""The recipe ``ppo``: proximal policy optimization, in the loop of `on_policy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import ADVANTAGE, VALUE_TARGET, NestedKey
from rl.objectives import ClipPPOLoss, compile_with_warmup
from rl.objectives.value import GAE
from rl.trainers._build.optimizer import adam
from rl.trainers._report.display import DisplayMode
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.on_policy._networks import on_policy_actor
from rl.trainers.recipes.on_policy._train import Learner, train_on_policy
from rl.trainers.recipes.ppo._config import PPO, PPOConfig

__all__ = ["PPOLearner", "ppo_policy", "train_ppo"]


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
    return train_on_policy(PPO, config, PPOLearner, out=out, resume=resume, display=display, should_stop=should_stop)


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
OUTPUTS = {
    "loss_actor": "loss_objective",
    "loss_critic": "loss_critic",
    "entropy": "entropy",
    "kl": "kl_approx",
    "clip_fraction": "clip_fraction",
}


#: of `target_kl`, at which an update stops; the share of Stable-Baselines3 and Spinning Up
FAR = 1.5


class PPOLearner(Learner):
    """Epochs of minibatches over one batch: of single steps, or of sequences for a recurrent policy.

    Args:
        config: settings.
        env: not read.
        actor: the policy.
        critic: of the environment's rewards.
        more: parameters that are trained with those of the loss.
    """

    def __init__(
        self,
        config: PPOConfig,
        env: Env,  # noqa: ARG002 - for subclasses
        actor: Any,
        critic: Any,
        *,
        more: Iterable[Tensor] = (),
    ) -> None:
        self._settings = config
        estimate = self._make_estimator(critic)
        settings: dict[str, Any] = {
            "clip_epsilon": config.clip,
            "clip_value": config.clip_value or None,
            "entropy_coeff": config.entropy_weight,
            "loss_critic_type": "l2",
            "normalize_advantage": config.normalize_advantage,
        }
        loss = self._make_loss(actor, critic, diagnostics=False, **settings)
        last = self._make_loss(actor, critic, **settings)  # called in the last epoch only
        self._loss_with_diagnostics: Any = compile_with_warmup(last) if config.compile else last
        super().__init__(
            config,
            loss,
            adam([*loss.parameters(), *more], config.learning_rate),
            weights={"loss_objective": 1.0, "loss_critic": config.value_weight}
            | ({"loss_entropy": 1.0} if config.entropy_weight else {}),
            outputs=OUTPUTS,
            estimate=estimate,
        )
        self.metrics = METRICS
        self._keys: list[NestedKey] = [*loss.in_keys]
        # dimensions of a sequence, which stays whole
        self._row = () if config.policy == "mlp" else (config.sequence_length,)
        self._size = config.minibatch_size // prod(self._row)

    def _make_estimator(self, critic: Any) -> Any:
        config = self._settings
        return GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic)

    def _make_loss(self, actor: Any, critic: Any, **settings: Any) -> Any:
        return ClipPPOLoss(actor, critic, **settings)

    def anneal(self, progress: float) -> None:
        """Set learning rate and clip range for the share of the run that is done."""
        super().anneal(progress)
        if self._settings.anneal_clip:
            clip = self._settings.clip * (1 - progress)
            for module in (*self._loss.modules(), *self._loss_with_diagnostics.modules()):
                if isinstance(module, ClipPPOLoss):
                    module.clip_epsilon = clip

    def __call__(self, batch: TensorDictBase) -> Callable[[], dict[str, float]]:
        """Take all gradient steps; returns what gives the mean figures of the last epoch."""
        rows = {key: self._rows(batch.get(key), batch.ndim) for key in self._keys}
        seen: list[tuple[TensorDictBase, Tensor]] = []
        for epoch in range(1, self._settings.epochs + 1):
            last = epoch == self._settings.epochs or self._settings.target_kl > 0  # any may be
            loss = self._loss_with_diagnostics if last else self._loss
            steps: list[tuple[TensorDictBase, Tensor]] = []
            stopped = False
            for minibatch in self._minibatches(rows):
                out = self._forward(loss, minibatch)
                if self._is_far(out):
                    stopped = True
                    break
                step = self._step(out, minibatch)
                if last:
                    steps.append(step)
            seen = steps or seen
            if stopped:
                break
        return lambda: self._figures(seen) | self._diagnostics(rows)

    def _is_far(self, out: TensorDictBase) -> bool:
        """Whether the policy has moved too far for another step."""
        limit = FAR * self._settings.target_kl
        return limit > 0 and float(out.get("kl_approx")) > limit

    def _rows(self, leaf: Tensor, batch_dims: int) -> Tensor:
        return leaf.reshape(-1, *self._row, *leaf.shape[batch_dims:])

    def _minibatches(self, rows: Mapping[NestedKey, Tensor]) -> Iterator[TensorDict]:
        """Shuffled rows, cut into pieces; a last piece below half a minibatch joins the one before."""
        size, total = self._size, next(iter(rows.values())).shape[0]
        order = torch.randperm(total).to(self._settings.device, non_blocking=True)  # pageable: read when it returns
        shuffled = {key: leaf.index_select(0, order) for key, leaf in rows.items()}
        count = max(1, round(total / size))
        for i in range(count):
            end = (i + 1) * size if i < count - 1 else total
            piece: dict[Any, Any] = {key: leaf[i * size : end] for key, leaf in shuffled.items()}
            yield TensorDict(piece, batch_size=[end - i * size, *self._row])

    def _diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:
        """Figures of the batch."""
        residual = rows[ADVANTAGE].var() / rows[VALUE_TARGET].var().clamp_min(1e-12)  # target - value is the advantage
        return {"explained_variance": 1 - float(residual)}


ppo_policy = on_policy_actor
