"""Selection of the implementation behind a hook, the reason for it, and one warning about a slower choice.

A package that has a plain-torch path asks for something faster with `select` and keeps the `Backend` it returns.
A plugin that could answer but lacks something reports it with `report_missing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl.core import registry
from rl.core.errors import BackendError, SlowBackendWarning, UnsupportedError, issue_warning
from rl.core.registry import Answer
from rl.core.settings import settings

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import LoweredModule

__all__ = [
    "AUTO",
    "NATIVE",
    "Accelerator",
    "Backend",
    "missing_native",
    "policy_step",
    "report_missing",
    "select",
    "warn_slow",
]

AUTO = "auto"
"""Name that selects the first implementation that answers."""

_warned: set[str] = set()


@dataclass(frozen=True)
class Backend:
    """The selected implementation and the reason for the selection.

    Args:
        name: ``"native"``, ``"torch"``, ``"scan"``, or the name that a plugin's implementation gives itself.
        distribution: Package that it comes from.
        why: Reason, as a sentence.

    Example:
        >>> str(Backend("torch", "rl-replay", "asked for by name"))
        'torch of rl-replay: asked for by name'
    """

    name: str
    distribution: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution}: {self.why}"


@dataclass(frozen=True)
class Accelerator:
    """A back end that another distribution brings, for the message that it is absent.

    Args:
        distribution: Distribution that has it.
        install: Command that installs it.
        device: Type of device that it needs.
    """

    distribution: str
    install: str
    device: str


NATIVE = Accelerator("rl-native", "pip install rl-native", "cpu")


def select(
    owner: str,
    hook: str,
    arguments: Mapping[str, Any],
    *,
    where: str,
    fallback: str,
    name: str = AUTO,
    kind: str | None = None,
    accelerators: Mapping[str, Accelerator] | None = None,
) -> tuple[Any, Backend, Answer]:
    """Ask a hook for an implementation.

    Args:
        owner: Component that needs it, for messages.
        hook: Name of the hook.
        arguments: Arguments of the hook.
        where: Device, dtype or cell that it is for, for messages.
        fallback: Distribution whose implementation answers for everything.
        name: Name of one implementation, or `AUTO` for the first that answers.
        kind: Kind of the components that list such back ends by name.
        accelerators: Back ends of other distributions by name.

    Returns:
        The implementation, its `Backend`, and the registry's answer.

    Raises:
        BackendError: If none answers, or not the one that was asked for; with the command that installs it.

    Example:
        >>> import torch
        >>> cpu = {"device": torch.device("cpu"), "dtype": torch.int8}
        >>> select("GAE", "rl_linear_recurrence", cpu, where="cpu", fallback="rl-objectives", name="fpga")
        Traceback (most recent call last):
        ...
        rl.core.errors.BackendError: GAE: back end 'fpga' does not answer for cpu (known here: ...
    """
    known = accelerators or {}
    found = registry.default().answer(hook, **arguments)
    if name != AUTO and not _has_name(found, name, known):
        answers = registry.default().answers(hook, **arguments)
        found = next((answer for answer in answers if _has_name(answer, name, known)), None)
        if found is None:
            raise BackendError(_absent(owner, hook, arguments, where, name, kind, known))
    if found is None:
        raise BackendError(
            f"{owner}: no installed plugin answers {hook} for {where}{_problems(hook)}. {fallback} does: is it"
            " installed, and not left out by RL_PLUGINS_DISABLE?"
        )
    detail = getattr(found.value, "why", "")
    reason = "asked for by name" if name != AUTO else f"the first that answers for {where}"
    why = f"{reason}{f' ({detail})' if detail else ''}"
    return found.value, Backend(_name(found), found.plugin.distribution, why), found


def policy_step(policy: Any, name: str, device: torch.device) -> LoweredModule:
    """Return the lowered form of a policy that a back end computes.

    Args:
        policy: TensorDict module.
        name: Name of the back end, such as ``"native"``.
        device: Device of the parameters.

    Raises:
        UnsupportedError: If the back end cannot compute this policy, with the reason.
        BackendError: If there is no back end of this name for the device.
    """
    from rl.core.policy_program import describe_policy  # imports tensordict, as does the next
    from rl.core.tensor_functions import as_function

    plain = as_function(policy)
    if plain is None:
        raise UnsupportedError(f"{getattr(policy, '__name__', type(policy).__name__)} has no lowered form")
    answer = registry.default().answer(
        "rl_policy_step", program=describe_policy(policy), plain=plain, name=name, device=device
    )
    if answer is None:
        raise BackendError(f"no installed back end {name!r} computes policies on {device}; see `rl doctor`")
    return answer.value


def missing_native(owner: str, hook: str, *, install: str = NATIVE.install) -> str:
    """Why rl-native did not answer `hook`, where something slower was selected.

    Raises:
        BackendError: If ``RL_NATIVE`` is ``require``.
    """
    mode = settings().native
    if mode == "off":
        return "RL_NATIVE=off"
    reason = _missing(Accelerator(NATIVE.distribution, install, NATIVE.device), hook)
    if mode == "require":
        raise BackendError(f"{owner}: RL_NATIVE=require, and {reason}")
    return reason


def report_missing(reason: str, instead: str) -> None:
    """Report that a plugin's implementation cannot be used here: a warning, once; none with ``RL_NATIVE=off``.

    Args:
        reason: Sentence that says what is missing and how to install it.
        instead: Sentence that says what is used instead.

    Raises:
        BackendError: If ``RL_NATIVE`` is ``require``.
    """
    mode = settings().native
    if mode == "require":
        raise BackendError(f"RL_NATIVE is require, but {reason}")
    if mode != "off":
        warn_slow(f"{reason}. {instead}")


def warn_slow(message: str) -> None:
    """Issue a `SlowBackendWarning`, once for each message in a process."""
    if message not in _warned:
        _warned.add(message)
        issue_warning(message, SlowBackendWarning)


def _name(answer: Answer) -> str:
    return getattr(answer.value, "name", None) or answer.plugin.name


def _has_name(answer: Answer | None, name: str, known: Mapping[str, Accelerator]) -> bool:
    if answer is None:
        return False
    return _name(answer) == name or (name in known and answer.plugin.distribution == known[name].distribution)


def _absent(
    owner: str,
    hook: str,
    arguments: Mapping[str, Any],
    where: str,
    name: str,
    kind: str | None,
    known: Mapping[str, Accelerator],
) -> str:
    every = {**arguments, "name": None} if "name" in arguments else arguments
    names = {_name(answer) for answer in registry.default().answers(hook, **every)}
    if kind is not None:
        names |= {component.name for component in registry.default().components(kind)}
    remedy = "`rl doctor` shows the back ends of each device"
    if name in known:
        device = arguments["device"].type
        remedy = "" if device == known[name].device else f"it needs a device of type {known[name].device!r}; "
        remedy += _missing(known[name], hook)
    return (
        f"{owner}: back end {name!r} does not answer for {where} (known here: {', '.join([AUTO, *sorted(names)])});"
        f" {remedy}"
    )


def _problems(hook: str) -> str:
    plugins = registry.default().plugins
    found = [f"{p.id}: {problem}" for p in plugins for problem in p.problems if problem.startswith(hook)]
    found += [f"{p.id} is {p.state}: {p.reason}" for p in plugins if p.state != "loaded"]
    return f" ({'; '.join(found)})" if found else ""


def _missing(accelerator: Accelerator, hook: str) -> str:
    """Why a distribution does not answer a hook: it is absent, or the reasons that its plugins give."""
    plugins = [p for p in registry.default().plugins if p.distribution == accelerator.distribution]
    if not plugins:
        return f"{accelerator.distribution} is not installed: `{accelerator.install}`"
    reasons = [f"{p.id} is {p.state}: {p.reason}" for p in plugins if p.state != "loaded"]
    reasons += [problem for p in plugins for problem in p.problems if problem.startswith(hook)]
    for answer in registry.default().answers("rl_notes"):
        if answer.plugin.distribution == accelerator.distribution:
            reasons += answer.value
    return (
        f"{accelerator.distribution} is installed but does not answer: {'; '.join(reasons) or '`rl doctor` says why'}"
    )
