"""Every hook that the toolkit calls; each name and each argument here is public API of rl-core.

A plugin implements what it likes of them, marked with `hookimpl`. pluggy passes an implementation only the
arguments that it names, so a new hook or a new argument is a minor release.

Order of calls: an implementation marked ``@hookimpl(tryfirst=True)``, then those without a mark, then
``@hookimpl(trylast=True)``. Accelerators have no mark, plain PyTorch has ``trylast``. Among plugins with one mark the
one that was registered last is called first: ours are registered first, then third parties by the names of their
distributions. In a *first result* hook None means "not me", and the first other answer ends the round.

A plugin that raises, or returns an object that lacks a member of the hook's protocol, does not end the round: it is
named in a `BrokenPluginWarning`, and the next one is called. Raise an error of `rl.core.errors` to reject on purpose:
it reaches the caller as it is. Hook wrappers are rejected.

`rl doctor` shows all candidates for each device in the order of calls, and the attributes ``name`` and ``why`` of the
selected answer where it has them; ``why`` is a sentence such as "AVX2 library".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pluggy

from rl.core.component import Command, Component

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import LinearRecurrence, LoweredModule, PriorityTree, RecurrentBackend, RowGather
    from rl.core.policy_program import PolicyProgram

__all__ = [
    "hookimpl",
    "hookspec",
    "rl_commands",
    "rl_components",
    "rl_linear_recurrence",
    "rl_notes",
    "rl_policy_step",
    "rl_priority_tree",
    "rl_recurrent_backend",
    "rl_row_gather",
]

hookspec = pluggy.HookspecMarker("rl")
hookimpl = pluggy.HookimplMarker("rl")


@hookspec
def rl_components() -> Iterable[Component]:
    """List what a distribution offers, as data.

    Called once for each plugin, by the registry, when anything is looked up for the first time. Import
    nothing heavy here: targets are strings. All components of a plugin are taken, or none of them.

    Example:
        >>> @hookimpl
        ... def rl_components():
        ...     yield Component(kind="loss", name="ppo-clip", target="rl.objectives:ClipPPOLoss")
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def rl_priority_tree(capacity: int, device: torch.device, dtype: torch.dtype) -> PriorityTree | None:
    """Offer a priority tree for prioritized replay, or None to let the next plugin answer.

    Called for a sampler that is constructed without a named back end. An
    accelerator answers without a mark for the devices and types that it supports; the pure-torch tree is
    ``trylast`` and answers for everything.

    Args:
        capacity: Number of leaves, at least 1.
        device: Device of the priorities.
        dtype: Dtype of the priorities; `torch.float32` or `torch.float64`.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def rl_linear_recurrence(device: torch.device, dtype: torch.dtype) -> LinearRecurrence | None:
    """Offer the reverse scan ``x_t = d_t + c_t * x_{t+1}``, or None to let the next plugin answer.

    Called for return estimators. The pure-torch scan is ``trylast`` and
    answers for everything.

    Args:
        device: Device of the tensors.
        dtype: Dtype of the tensors.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def rl_recurrent_backend(
    cell: Literal["lstm", "gru"], name: str | None, device: torch.device
) -> RecurrentBackend | None:
    """Offer a recurrence that resets inside sequences, or None to let the next plugin answer.

    Called for recurrent modules when they meet a batch of sequences.

    Args:
        cell: ``"lstm"`` or ``"gru"``.
        name: Back end that was asked for, ``"pad"``, ``"scan"``, ``"triton"``, ...; answer only if it is
            yours. None asks for the best one; answer if yours runs on `device` and is worth it there.
        device: Device of weights and data.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def rl_row_gather(tensors: Sequence[torch.Tensor]) -> RowGather | None:
    """Offer to copy rows of these tensors, or None to let the next plugin answer.

    Called for a storage that has just allocated or taken over its memory. An accelerator
    answers for memory that it can read; rl-replay's own, in plain torch, is ``trylast`` and answers for everything.

    Args:
        tensors: ``[capacity, ...]`` each, on one device, at least one.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def rl_policy_step(
    program: PolicyProgram, plain: LoweredModule, name: str, device: torch.device
) -> LoweredModule | None:
    """Offer to compute the steps of a policy, or None to let the next plugin answer.

    Called for a collector that was given ``policy_backend=``. What the back end cannot compute
    it rejects with a `rl.core.errors.UnsupportedError`, whose message the collector shows; single calls that it cannot
    compute it passes on to `plain`. A back end may have a method ``prepare(steps)``, which announces the number of
    calls that follow, for random numbers in one block.

    Args:
        program: The policy as a list of operations.
        plain: The policy in torch: the same keys, and the same values up to rounding.
        name: Back end that was asked for, ``"native"``, ...; answer only if it is yours.
        device: Device of the policy.
    """
    raise NotImplementedError


@hookspec
def rl_commands(registry: Any) -> Command | Iterable[Command]:
    """Offer subcommands of ``rl``.

    Called by `rl.core.cli` each time the command runs, ``rl --help`` included: import nothing heavy here,
    targets are strings. All answers are taken; of two commands of one name the plugin that is listed first
    in ``rl plugins`` keeps it and the other is named in a warning.

    Args:
        registry: `rl.core.registry.Registry` of installed plugins.
    """
    raise NotImplementedError


@hookspec
def rl_notes() -> Iterable[str]:
    """Say what keeps a plugin from doing all that it could on this machine, and what to do about it.

    Called by ``rl doctor``, which lists the answers as notes; return nothing, or an empty list, if all is well. A
    library that is not compiled is such a thing: its hooks pass without a reason. Answer a list, not a
    generator, so that a failure is seen as the plugin's own; import nothing heavy here.

    Example:
        >>> @hookimpl
        ... def rl_notes():
        ...     return ["no compiled library was found; to build it, run `python -m rl.example.build`"]
    """
    raise NotImplementedError
