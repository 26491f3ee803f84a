"""Settings of the on-policy recipes. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import POLICIES, check, in_range, one_of, positive

__all__ = ["OnPolicyConfig", "optimizer_rule"]

optimizer_rule = one_of("rmsprop", "adam")
"""Check of a field that names an optimizer."""


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(RunConfig):
    """On-policy algorithm with an actor and a critic, for all kinds of actions.

    Args:
        frames_per_batch: frames collected for each update; `num_envs` divides it.
        learning_rate: of the optimizer.
        anneal: let the learning rate fall linearly to 0 at `total_frames`.
        value_weight: weight of the critic's loss.
        max_grad_norm: gradients of actor and critic together are scaled down to this norm.
        hidden: widths of the hidden layers of actor and critic, as in [64,64].
        activation: tanh, relu, or auto for tanh without and relu with recurrent layers.
        ortho_init: begin with orthogonal weights, with a gain of sqrt(2) in hidden layers, 0.01 in the last one of the
            actor and 1 in that of the critic; otherwise with torch's.
        init_log_scale: logarithm of the standard deviation with which actions of floats are sampled at the beginning.
        state_independent_scale: these standard deviations are parameters of their own; otherwise outputs of the actor's
            network.
        policy: mlp, or with a memory lstm or gru: for environments that hide a part of their state. Actor and critic
            have one each.
        recurrent_size: width of that memory.
        recurrent_layers: its layers, one on the other.
        recurrent_horizon: largest initial memory span of a unit, in steps; the units are spread between 1 and this
            number. Above 1 for tasks with long delays.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> OnPolicyConfig(env="Acrobot-v1").hidden
        (64, 64)
    """

    num_envs: int = 8
    frames_per_batch: int = 1024
    learning_rate: float = 1e-3
    anneal: bool = True
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "auto"
    ortho_init: bool = True
    init_log_scale: float = 0.0
    state_independent_scale: bool = True
    policy: str = "mlp"
    recurrent_size: int = 64
    recurrent_layers: int = 1
    recurrent_horizon: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (positive, "above 0")
        check(
            self,
            {
                "frames_per_batch": (
                    lambda n: n > 0 and n % self.num_envs == 0,
                    f"a multiple of num_envs ({self.num_envs})",
                ),
                "learning_rate": above_zero,
                "value_weight": (lambda w: w >= 0, "0 or more"),
                "max_grad_norm": above_zero,
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("tanh", "relu", "auto"),
                "init_log_scale": in_range(-5, 2),
                "policy": one_of(*POLICIES),
                "recurrent_size": above_zero,
                "recurrent_layers": above_zero,
                "recurrent_horizon": above_zero,
            },
        )
