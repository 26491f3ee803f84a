"""Settings of the recipes for data sets. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import check, one_of, positive

__all__ = ["OfflineConfig"]


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(RunConfig):
    """Learning from a data set; the environment is used for evaluations alone.

    Args:
        dataset: what to learn from, SOURCE:NAME, such as minari:mujoco/hopper/expert-v0; see ``rl dataset``.
        total_frames: gradient steps; other numbers of frames (eval_every, log_every, checkpoint_every) are also those
            of gradient steps.
        minibatch_size: transitions of one gradient step.
        learning_rate: of Adam.
        hidden: widths of the hidden layers of all networks.
        activation: relu or tanh.
        target_tau: the target networks move this far towards the trained ones after each gradient step.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> OfflineConfig(env="Pendulum-v1", dataset="minari:pendulum/medium-v0").minibatch_size
        256
    """

    env: str = "Pendulum-v1"
    dataset: str = ""
    total_frames: int = 50_000
    minibatch_size: int = 256
    learning_rate: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    target_tau: float = 0.005
    max_grad_norm: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (positive, "above 0")
        unset = (lambda given: not given, "left out: the data set is what it is")
        check(
            self,
            {
                "minibatch_size": above_zero,
                "learning_rate": above_zero,
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("relu", "tanh"),
                "target_tau": (lambda tau: 0 < tau <= 1, "in (0, 1]"),
                "max_grad_norm": (lambda norm: norm >= 0, "0 or more"),
                **dict.fromkeys(("normalize_observation", "normalize_reward", "clip_actions", "atari"), unset),
                "frame_stack": (lambda n: n == 1, "1: the data set is what it is"),
                "workers": (lambda n: n == 0, "0: nothing is collected"),
            },
        )
