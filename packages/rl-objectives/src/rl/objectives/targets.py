"""Target networks and their updates."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from inspect import signature
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl.core.arguments import as_integer, as_number, foreign_arguments
from rl.core.errors import ArgumentError, ShapeError, issue_warning

__all__ = ["HardUpdate", "SoftUpdate"]


M = TypeVar("M", bound=nn.Module)


def _tensors(module: nn.Module, owner: str) -> list[Tensor]:
    """Return the parameters and buffers; raise if one has no shape yet."""
    found = [*module.parameters(), *module.buffers()]
    if any(map(is_lazy, found)):
        raise ArgumentError(
            f"{owner} got a network whose parameters have no shape yet, so it cannot be copied: call the network once"
            " on a batch before"
        )
    return found


def make_target(module: M, owner: str) -> M:
    """Return a copy that nothing trains.

    Args:
        module: Network to copy.
        owner: Name of the caller in messages.

    Raises:
        ArgumentError: If parameters have no shape yet.

    Example:
        >>> target = make_target(nn.Linear(2, 1), "DQNLoss")
        >>> any(p.requires_grad for p in target.parameters())
        False
    """
    _tensors(module, owner)
    return deepcopy(module).requires_grad_(requires_grad=False)


#: training calls of a loss before a warning that nothing moves its target networks
UNMOVED_CALLS = 10


class TargetWatch:
    """Warns once about a loss that is trained while its target networks stay as they are.

    Attributes:
        over: Whether nothing is left to watch: an updater was made, a warning was given, or there is no target network.
    """

    def __init__(self) -> None:
        self.over = False
        self._calls = 0
        self._first: list[tuple[int, int]] = []

    def count(self, loss: nn.Module) -> None:
        """Count a call of `loss`, if it is one of training."""
        if not (loss.training and torch.is_grad_enabled()):
            return
        self._calls += 1
        if self._calls == 1:
            self._first = _versions(loss)
            self.over = not self._first
        elif self._calls == UNMOVED_CALLS:
            self.over = True
            if self._first == _versions(loss):  # else something other than an updater has moved or replaced them
                names = ", ".join(name for name, _, _ in _pairs(loss))
                owner = type(loss).__name__
                takes = [name for name in signature(type(loss)).parameters if name.startswith("delay_")]
                delays = ", ".join(f"{name}=False" for name in takes if getattr(loss, name, True))
                without = f". Without a target network ({delays}) none is needed" if delays else ""
                issue_warning(
                    f"{owner} was called {UNMOVED_CALLS} times in training, and nothing has moved {names}:"
                    " create SoftUpdate(loss, tau=0.005) or HardUpdate(loss) and call its step after each step of the"
                    f" optimizer{without}",
                    UserWarning,
                )


def _versions(loss: nn.Module) -> list[tuple[int, int]]:
    """Return identity and version of the tensors of target networks, which tell whether one was changed or replaced."""
    tensors = (one for _, target, _ in _pairs(loss) for one in (*target.parameters(), *target.buffers()))
    return [(id(one), one._version) for one in tensors]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public name


class _Update:
    """Finds the pairs ``NAME`` and ``target_NAME`` among the direct children of a loss."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        self._tensors()
        for part in loss.modules():
            watch = getattr(part, "_target_watch", None)
            if isinstance(watch, TargetWatch):
                watch.over = True

    def _tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors of all target networks, and of their trained networks."""
        followed: list[Tensor] = []
        targets: list[Tensor] = []
        for name, target, source in _pairs(self._loss):
            copies, originals = (_tensors(one, type(self).__name__) for one in (target, source))
            if [one.shape for one in copies] != [one.shape for one in originals]:
                raise ShapeError(
                    f"{type(self).__name__}: {name.removeprefix('target_')} and {name} of {type(self._loss).__name__}"
                    " differ in the shapes of their parameters or buffers: after another network was put into a loss,"
                    " create its target again, or create a new loss"
                )
            targets += copies
            followed += originals
        if not targets:
            raise ArgumentError(
                f"{type(self).__name__} found no target network in {type(self._loss).__name__}: build the loss with"
                " delay_value=True, or leave the updater out"
            )
        return targets, followed


def _pairs(module: nn.Module) -> list[tuple[str, nn.Module, nn.Module]]:
    """Return name, target and trained network of each pair, also of losses inside of others."""
    found: list[tuple[str, nn.Module, nn.Module]] = []
    waiting = [module]
    while waiting:  # a loop: networks have many parts, and updates are called at each step
        children = dict(waiting.pop().named_children())
        for name, child in children.items():
            source = children.get(name.removeprefix("target_"))
            if name.startswith("target_") and source is not None:
                found.append((name, child, source))
            else:
                waiting.append(child)
    return found


@final
@foreign_arguments()
class SoftUpdate(_Update):
    """Moves target networks a little towards the trained ones at each `step`.

    ``target <- (1 - tau) * target + tau * trained``, Lillicrap et al., "Continuous control with deep reinforcement
    learning", 2016, algorithm 1. Floating-point buffers move as parameters do, integer buffers are copied.

    Args:
        loss: A module with children ``NAME`` and ``target_NAME``, or with such losses inside.
        eps: Share of the target network, ``1 - tau``, in [0, 1].
        tau: Share of the trained network, in [0, 1]. Pass one of the two.

    Raises:
        ArgumentError: If `loss` has no target network, or its parameters have no shape yet.
        ShapeError: here and in `step`, if trained and target network differ in shape.
        ArgumentError: Unless one of `eps` and `tau` is given, in [0, 1].

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.objectives import DQNLoss
        >>> net = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action_value"])
        >>> updater = SoftUpdate(DQNLoss(net), tau=0.005)
        >>> updater.step()
    """

    def __init__(self, loss: nn.Module, *, eps: float | None = None, tau: float | None = None) -> None:
        if (eps is None) == (tau is None):
            raise ArgumentError(f"SoftUpdate takes either eps or tau = 1 - eps, got eps={eps} and tau={tau}")
        if tau is None:
            self.eps = eps
        else:
            self.tau = tau
        super().__init__(loss)

    @property
    def tau(self) -> float:
        """Share of the trained network; it may be assigned."""
        return self._tau

    @tau.setter
    def tau(self, value: float) -> None:
        self._tau = as_number(value, "SoftUpdate", "tau", least=0, most=1)

    @property
    def eps(self) -> float:
        """Share of the target network, ``1 - tau``; it may be assigned."""
        return 1 - self._tau

    @eps.setter
    def eps(self, value: float | None) -> None:
        self._tau = 1 - as_number(value, "SoftUpdate", "eps", least=0, most=1)

    @torch.no_grad()
    def step(self) -> None:
        """Move the targets once."""
        targets, followed = self._tensors()
        floats = [i for i, t in enumerate(targets) if t.is_floating_point() or t.is_complex()]
        moved, towards = [targets[i] for i in floats], [followed[i] for i in floats]
        torch._foreach_lerp_(moved, towards, self._tau)  # pyright: ignore[reportPrivateImportUsage] - no public name
        if len(floats) < len(targets):
            for target, source in zip(targets, followed, strict=True):
                if not (target.is_floating_point() or target.is_complex()):
                    target.copy_(source)


@final
@foreign_arguments()
class HardUpdate(_Update):
    """Copies the trained networks to the targets at every n-th call of `step`.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, algorithm 1.

    Args:
        loss: A module with children ``NAME`` and ``target_NAME``.
        value_network_update_interval: Number of calls of `step` from one copy to the next, at least 1.

    Raises:
        ArgumentError: If `loss` has no target network, or its parameters have no shape yet.
        ShapeError: here and in `step`, if trained and target network differ in shape.
        ArgumentError: If the interval is not an integer of at least 1.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.objectives import DQNLoss
        >>> net = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action_value"])
        >>> updater = HardUpdate(DQNLoss(net), value_network_update_interval=500)
        >>> updater.step()
    """

    def __init__(self, loss: nn.Module, *, value_network_update_interval: int = 1000) -> None:
        self.value_network_update_interval = value_network_update_interval
        self._calls = 0
        super().__init__(loss)

    @property
    def value_network_update_interval(self) -> int:
        """Number of calls of `step` from one copy to the next; it may be assigned."""
        return self._interval

    @value_network_update_interval.setter
    def value_network_update_interval(self, value: int) -> None:
        self._interval = as_integer(value, "HardUpdate", "value_network_update_interval", least=1)

    @torch.no_grad()
    def step(self) -> None:
        """Count the call; copy at the end of an interval."""
        self._calls += 1
        if self._calls % self.value_network_update_interval == 0:
            targets, followed = self._tensors()
            torch._foreach_copy_(targets, followed)  # pyright: ignore[reportPrivateImportUsage] - no public name

    def state_dict(self) -> dict[str, Any]:
        """Return the number of calls of `step`."""
        return {"calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of calls."""
        self._calls = int(state["calls"])
