"""Helpers of training loops: networks without gradient, optimizers as one, step sizes, the distance of a loss."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, final

from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Optimizer

from rl.core.arguments import as_number, foreign_arguments
from rl.core.errors import ArgumentError
from rl.objectives.functional._q_learning import check_distance, distance

O = TypeVar("O", bound=Optimizer)  # noqa: E741 - a type


@contextmanager
def hold_out_net(network: nn.Module) -> Generator[nn.Module]:
    """Hold out a network in a context: it passes gradients on to its inputs, and its parameters get none.

    Args:
        network: Network whose parameters have ``requires_grad=False`` inside, and what they had before afterwards.

    Example:
        >>> import torch
        >>> critic, action = nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
        >>> with hold_out_net(critic):
        ...     critic(action).sum().backward()
        >>> critic.weight.grad is None, action.grad is None, critic.weight.requires_grad
        (True, False, True)
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad = False
    try:
        yield network
    finally:
        for parameter in trained:
            parameter.requires_grad = True


@contextmanager
def hold_out_params(parameters: Iterable[Tensor] | TensorDictBase) -> Generator[list[Tensor] | TensorDictBase]:
    """Hold out parameters in a context, which gives them as constants: detached tensors of the same memory.

    Args:
        parameters: Tensors, or a TensorDict of them; the context is a list, or a TensorDict.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> with hold_out_params(net.parameters()) as constants:
        ...     [one.requires_grad for one in constants]
        [False, False]
    """
    yield parameters.detach() if isinstance(parameters, TensorDictBase) else [one.detach() for one in parameters]


def group_optimizers(*optimizers: O) -> O:
    """Build one optimizer for the parameters of several, with the options and the state of each.

    Args:
        optimizers: Optimizers of one class, with different parameters. Use the result in their place, not next to them.

    Raises:
        ArgumentError: If there is none, their classes differ, or a parameter appears twice.

    Example:
        >>> import torch
        >>> actor, critic = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> joint = group_optimizers(
        ...     torch.optim.Adam(actor.parameters(), lr=1e-4), torch.optim.Adam(critic.parameters(), lr=1e-3)
        ... )
        >>> [group["lr"] for group in joint.param_groups]
        [0.0001, 0.001]
    """
    kinds = list(dict.fromkeys(type(one) for one in optimizers))
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise ArgumentError(f"group_optimizers takes optimizers of one class, got {names}: keep the others apart")
    groups = [dict(group) for one in optimizers for group in one.param_groups]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    if len(held) != len({*held}):
        raise ArgumentError("group_optimizers got a parameter in two optimizers: it would be updated twice; keep one")
    joint = kinds[0](groups)  # pyright: ignore[reportCallIssue] - the options of each group are in it
    for one in optimizers:
        joint.state.update(one.state)
    return joint


@foreign_arguments()
def distance_loss(v1: Tensor, v2: Tensor, loss_function: str) -> Tensor:
    """Return the distance per element: `rl.objectives.functional.distance` under its name in TorchRL.

    Args:
        v1: Prediction, any shape.
        v2: Target, same shape.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.

    Raises:
        ShapeError: If the shapes differ.
        ArgumentError: If the distance is unknown, or the target has no floating-point type.

    Example:
        >>> import torch
        >>> distance_loss(torch.tensor([3.0]), torch.tensor([1.0]), "l2")
        tensor([4.])
    """
    return distance(v1, v2, check_distance(loss_function, "distance_loss"))


@final
class KLAdaptiveLR:
    """Step sizes of an optimizer that follow the divergence of the policy's updates.

    Rudin et al., "Learning to walk in minutes using massively parallel deep reinforcement learning", 2022; rsl_rl:
    after an update with a divergence above ``2 * target_kl`` the step size is divided by `factor`, and
    multiplied by it below ``target_kl / 2``. A divergence of 0, of a policy that did not move, changes nothing.

    Args:
        optimizer: Optimizer whose parameter groups change.
        target_kl: Divergence of an update that is meant, above 0, nats.
        factor: Change of the step size, above 1.
        min_lr: Smallest step size, above 0.
        max_lr: Largest step size.

    Raises:
        ArgumentError: If an argument is out of its range, or in `step` a divergence is not finite.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.004)
        >>> schedule = KLAdaptiveLR(optimizer, target_kl=0.01, factor=2.0)
        >>> for kl in (0.05, 0.015, 0.001):  # as `ClipPPOLoss` writes ``kl_approx``
        ...     schedule.step(kl)
        ...     print(schedule.get_last_lr())
        [0.002]
        [0.002]
        [0.004]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        target_kl: float,
        *,
        factor: float = 1.5,
        min_lr: float = 1e-5,
        max_lr: float = 1e-2,
    ) -> None:
        self.optimizer = optimizer
        self.target_kl = as_number(target_kl, "KLAdaptiveLR", "target_kl", above=0)
        self.factor = as_number(factor, "KLAdaptiveLR", "factor", above=1)
        self.min_lr = as_number(min_lr, "KLAdaptiveLR", "min_lr", above=0)
        self.max_lr = as_number(max_lr, "KLAdaptiveLR", "max_lr", least=self.min_lr)
        self.last_kl: float | None = None

    def step(self, kl: float | Tensor) -> None:
        """Set the step sizes after an update with the mean divergence `kl`."""
        kl = float(kl)
        if not math.isfinite(kl):
            raise ArgumentError(f"KLAdaptiveLR got a divergence of {kl}; the update before has failed")
        self.last_kl = kl
        if kl > 2 * self.target_kl:
            scale = 1 / self.factor
        elif 0 < kl < self.target_kl / 2:
            scale = self.factor
        else:  # also step sizes out of the range stay as they are
            return
        rates = [min(self.max_lr, max(self.min_lr, rate * scale)) for rate in self.get_last_lr()]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # a compiled or captured step of the optimizer reads it
            else:
                group["lr"] = rate

    def get_last_lr(self) -> list[float]:
        """Return the step size of each parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the last divergence; the step sizes are part of the optimizer's state."""
        return {"last_kl": self.last_kl}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.last_kl = state["last_kl"]
