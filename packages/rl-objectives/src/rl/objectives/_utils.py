"""Helpers of training loops: networks and parameters without gradient, optimizers as one, the distance of a loss."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Optimizer

from rl.core.errors import SpecError
from rl.objectives import _foreign
from rl.objectives.functional._regression import check_distance, distance

__all__ = ["distance_loss", "group_optimizers", "hold_out_net", "hold_out_params"]

O = TypeVar("O", bound=Optimizer)  # noqa: E741 - a type


@contextmanager
def hold_out_net(network: nn.Module) -> Generator[nn.Module]:
    """Context in which a network passes gradients on to its inputs, and gets none for its own parameters.

    Args:
        network: its parameters have ``requires_grad=False`` inside, and what they had before afterwards.

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
    """Context that gives parameters as constants: detached tensors of the same memory.

    Args:
        parameters: tensors, or a TensorDict of them; gives a list, or a TensorDict.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> with hold_out_params(net.parameters()) as constants:
        ...     [one.requires_grad for one in constants]
        [False, False]
    """
    yield parameters.detach() if isinstance(parameters, TensorDictBase) else [one.detach() for one in parameters]


def group_optimizers(*optimizers: O) -> O:
    """One optimizer for the parameters of several, with the options and the state of each.

    Args:
        optimizers: of one class, with different parameters. Use the result in their place, not next to them.

    Raises:
        SpecError: if there is none, their classes differ, or a parameter appears twice.

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
        raise SpecError(f"group_optimizers takes optimizers of one class, got {names}: keep the others apart")
    groups = [dict(group) for one in optimizers for group in one.param_groups]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    if len(held) != len({*held}):
        raise SpecError("group_optimizers got a parameter in two optimizers: it would be updated twice; keep one")
    joint = kinds[0](groups)  # pyright: ignore[reportCallIssue] - the options of each group are in it
    for one in optimizers:
        joint.state.update(one.state)
    return joint


@_foreign.distance_loss
def distance_loss(v1: Tensor, v2: Tensor, loss_function: str) -> Tensor:
    """Distance per element, as losses of values take it; `rl.objectives.functional.distance` under its name in TorchRL.

    Args:
        v1: prediction, any shape.
        v2: target, same shape.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.

    Raises:
        ShapeError: if the shapes differ.
        SpecError: if the distance is unknown, or the target has no floating-point type.

    Example:
        >>> import torch
        >>> distance_loss(torch.tensor([3.0]), torch.tensor([1.0]), "l2")
        tensor([4.])
    """
    return distance(v1, v2, check_distance(loss_function, "distance_loss"))
