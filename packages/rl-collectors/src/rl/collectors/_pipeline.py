"""Arguments, devices, compilation and states of collectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import CudaGraphModule
from torch import nn

from rl.core import check_pipeline
from rl.core.arguments import as_integer
from rl.core.backends import policy_step
from rl.core.env_specs import stack_faults
from rl.core.errors import ArgumentError, CheckpointError, SpecError, UnsupportedError
from rl.core.interfaces import Env, missing_env_members
from rl.core.keys import DONE, TRAJ_IDS, TRUNCATED, key_str, leaf_keys
from rl.core.state import unpack
from rl.core.tensor_functions import TensorFunction, as_function


def make_env(create_env_fn: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Return the environment that was passed, or that the function creates.

    Args:
        create_env_fn: An environment, or a function.
        kwargs: Arguments of the function.

    Raises:
        ArgumentError: If it is not one, or there are arguments and no function.
        SpecError: If it is a batch of environments whose entries cannot be stacked.
    """
    env = create_env_fn
    if isinstance(env, type) or (callable(env) and not isinstance(env, Env)):
        env = create_env_fn(**(kwargs or {}))
    elif kwargs:
        raise ArgumentError(
            f"create_env_kwargs needs a function that creates the environment, got {type(env).__name__}: pass the"
            " function as create_env_fn"
        )
    if lacking := missing_env_members(env):
        raise ArgumentError(
            f"create_env_fn returned {type(env).__name__}, expected an environment or a function that creates one"
            f" (rl.core.interfaces.Env; it lacks {', '.join(lacking)})"
        )
    if faults := stack_faults(env):
        lines = "\n".join(f"  {key_str(key)}: {fault}" for key, fault in faults.items())
        raise SpecError(
            f"no tensor can hold these entries of all environments of {type(env).__name__}:\n{lines}\nCollect from"
            " those of each kind with a collector of their own, or give them the same entries with transforms inside"
        )
    return env


def make_policy(policy: Any, factory: Any) -> Any:
    """Return the policy that was passed, or that the function creates.

    Raises:
        ArgumentError: If both were passed, or it is not callable.
    """
    if factory is not None:
        if policy is not None:
            raise ArgumentError("a collector takes a policy or a policy_factory, got both")
        policy = factory()
    if isinstance(policy, type):
        raise ArgumentError(f"policy is the class {policy.__name__}: pass an object, {policy.__name__}(...)")
    if policy is not None and not callable(policy):
        raise ArgumentError(
            f"policy is {type(policy).__name__}, expected a TensorDict module or a function from TensorDict to"
            " TensorDict; leave it out for random actions"
        )
    return policy


def as_total_frames(value: Any, owner: str) -> int:
    """Return `total_frames` as an integer; -1 for no end."""
    return -1 if value == -1 else as_integer(value, owner, "total_frames", 1)


def as_random_frames(value: Any, owner: str) -> int:
    """Return `init_random_frames` as an integer; None and -1 are 0."""
    return 0 if value in (None, -1) else as_integer(value, owner, "init_random_frames", 0)


def rounding_messages(total_frames: int, batch: int) -> list[str]:
    """Return the message that `total_frames` is rounded up to full batches of `batch` frames, or no message."""
    whole = -(-total_frames // batch) * batch
    if total_frames < 0 or whole == total_frames:
        return []
    return [
        f"total_frames={total_frames} is no multiple of the {batch} frames of a batch: {whole} frames will be collected"
    ]


def check_fit(env: Env, recurrent: Any, policy: Any, init_random_frames: int) -> None:
    """Check that environment and policy write what the other reads.

    Raises:
        ContractError: If one reads a key that nothing writes.
        ArgumentError: If random frames would have the log-probability of another action.
    """
    if isinstance(policy, torch.nn.Module) or hasattr(policy, "in_keys"):
        check_pipeline(env, recurrent, policy)
    scores = [key for key in getattr(policy, "out_keys", None) or () if str(key).rstrip("')").endswith("log_prob")]
    if init_random_frames and scores:
        raise ArgumentError(
            f"init_random_frames={init_random_frames} with a policy that writes {scores[0]!r}: that would be the"
            " log-probability of another action than the one taken; build the actor with return_log_prob=False, or"
            " collect no random frames"
        )


def check_collector_key(env: Env, policy: Any) -> None:
    """Reject an entry with the name of the group of trajectory ids.

    Raises:
        SpecError: If the environment or the policy writes one.
    """
    name = TRAJ_IDS[0]
    specs = (env.observation_spec, env.full_action_spec, env.full_done_spec)
    writes = [key for spec in specs for key in leaf_keys(spec)]
    owner = name_of(env) if name in writes else name_of(policy)
    if name in (*writes, *(getattr(policy, "out_keys", None) or ())):
        raise SpecError(
            f"{owner} writes an entry {name!r}, which is the group of the collector's {key_str(TRAJ_IDS)}: rename it,"
            " an observation with RenameTransform"
        )


def check_flags(env: Env, *, set_truncated: bool, limit: int | None) -> None:
    """Check that the flags that a setting writes are there, and that flags are bool.

    Raises:
        SpecError: If they are not.
    """
    flags = leaf_keys(env.full_done_spec)
    for wanted, switch in ((set_truncated, "set_truncated=True"), (limit, f"max_frames_per_traj={limit}")):
        if wanted and not {DONE, TRUNCATED} <= {*flags}:
            raise SpecError(
                f"{switch} needs {TRUNCATED!r} at the root of {type(env).__name__}'s done specs, which hold"
                f" {flags}: add it there, or leave the setting out"
            )
    if not flags:
        raise SpecError(f"{type(env).__name__}.full_done_spec is empty: an environment writes at least {DONE!r}")
    for key in flags:
        dtype = env.full_done_spec[key].dtype
        if dtype is not torch.bool:
            raise SpecError(
                f"{type(env).__name__}.full_done_spec has {key_str(key)} as {dtype}, expected torch.bool: write"
                " flags that are true or false"
            )


def name_of(thing: object) -> str:
    """Return the name of a function, or of the class of an object, for messages."""
    return getattr(thing, "__name__", type(thing).__name__)


_GRAPHS = ("reduce-overhead", "max-autotune")


def accelerate(
    policy: Any,
    compile_policy: Any,
    cudagraph_policy: Any,
    backend: str | None = None,
    device: torch.device | None = None,
) -> Any:
    """Return the policy as it is called in the loop: compiled, recorded in a CUDA graph, of a back end, or itself.

    Args:
        policy: The policy.
        compile_policy: True, or the arguments of `torch.compile`.
        cudagraph_policy: True, or the arguments of `tensordict.nn.CudaGraphModule`.
        backend: Name of a back end, or None.
        device: Device of the policy; None if it is unknown.

    Raises:
        ArgumentError: If there is no policy, two are given, there is no CUDA device for a graph, or the mode of
            `torch.compile` records CUDA graphs, whose outputs are overwritten.
    """
    compiles, records = _options(compile_policy, "compile_policy"), _options(cudagraph_policy, "cudagraph_policy")
    if compiles is None and records is None and backend is None:
        return policy
    if policy is None:
        raise ArgumentError("compile_policy and cudagraph_policy need a policy: random actions cannot be compiled")
    if backend is not None:
        if compiles is not None or records is not None:
            raise ArgumentError("a collector takes policy_backend or a policy that is compiled or recorded, got both")
        return BackedPolicy(policy, backend, device)
    if records is not None:
        if compiles is not None:
            raise ArgumentError("a collector takes compile_policy or cudagraph_policy, got both")
        if not torch.cuda.is_available():
            raise ArgumentError("cudagraph_policy needs a CUDA device, and there is none: use compile_policy instead")
        return CudaGraphModule(policy, **records)
    if (compiles or {}).get("mode") in _GRAPHS:
        raise ArgumentError(
            f"compile_policy with mode {(compiles or {})['mode']!r} records CUDA graphs, which overwrite outputs that"
            " the collector keeps: use cudagraph_policy=True, or another mode"
        )
    return _Compiled(policy, compiles or {})


def _options(value: Any, name: str) -> dict[str, Any] | None:
    if value is None or value is False:
        return None
    if value is True:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} must be a bool or a dict of arguments, got {value!r:.100}")
    return dict(value)


class _Compiled:
    """Policy whose TensorDict form and leaf form are compiled."""

    def __init__(self, policy: Any, options: Mapping[str, Any]) -> None:
        self._policy, self._options = policy, options
        self._call = torch.compile(policy, **options)

    def __call__(self, tensordict: Any) -> Any:
        return self._call(tensordict)

    def lowered(self) -> TensorFunction | None:
        """Return the compiled leaf form, or None if the policy has none."""
        plain = as_function(self._policy)
        if plain is None:
            return None
        return TensorFunction(
            torch.compile(getattr(plain, "fn", plain), **self._options), plain.in_keys, plain.out_keys
        )


class BackedPolicy:
    """Policy whose leaf form is computed by a back end, or by PyTorch if the back end cannot.

    Args:
        policy: The policy.
        name: Name of the back end.
        device: Device of the policy; the CPU if None.

    Raises:
        BackendError: If there is no such back end for the device.
    """

    why: str
    """The back end in use, and the reason."""

    def __init__(self, policy: Any, name: str, device: torch.device | None) -> None:
        self._policy = policy
        try:
            self._step: Any = policy_step(policy, name, torch.device("cpu") if device is None else device)
        except UnsupportedError as error:
            self._step, self.why = as_function(policy), f"torch, as {name} cannot compute this policy: {error}"
        else:
            self.why = f"{name}: {getattr(self._step, 'why', 'asked for by name')}"

    def __call__(self, tensordict: Any) -> Any:
        return self._policy(tensordict)

    def lowered(self) -> Any:
        """Return the leaf form, or None if the policy has none."""
        return self._step

    def prepare(self, steps: int) -> None:
        """Announce the number of steps that follow."""
        announce = getattr(self._step, "prepare", None)
        if announce is not None:
            announce(steps)


@dataclass(frozen=True)
class Devices:
    """Devices of a collector.

    Args:
        env: Device of the environment.
        policy: Device of the policy if that is another one, else None.
        storing: Device to which batches are moved, or None.
    """

    env: torch.device
    policy: torch.device | None
    storing: torch.device | None

    @classmethod
    def of(cls, env: Any, policy: torch.device | None, storing: torch.device | str | None) -> Devices:
        """Return the devices of an environment, of a policy (None if it is unknown) and of batches."""
        env_device = device_of_env(env)
        policy_device = None if policy is None or policy == concrete(env_device) else policy
        return cls(env_device, policy_device, None if storing is None else torch.device(storing))


def device_of_env(env: Any) -> torch.device:
    """Return the device of the environment's action specs."""
    spec = env.full_action_spec
    for key in leaf_keys(spec):
        if spec[key].device is not None:
            return spec[key].device
    return torch.device("cpu")


def move_env(env: Any, device: torch.device | str | None) -> Any:
    """Return the environment, moved with ``env.to(device)`` if it is elsewhere.

    Raises:
        ArgumentError: If it is elsewhere and has no ``to``.
    """
    if device is None or concrete(torch.device(device)) == concrete(device_of_env(env)):
        return env
    if not callable(getattr(env, "to", None)):
        raise ArgumentError(
            f"{type(env).__name__} is on {device_of_env(env)} and has no to(device), the collector was given {device}"
            " for it: create it there, or name the device of the policy with policy_device= alone"
        )
    return env.to(device)


def device_of_policy(policy: Any, device: torch.device | str | None) -> torch.device | None:
    """Return the device of the policy; None if it is unknown.

    Args:
        policy: Module with parameters, or any function.
        device: Device of the policy; that of its parameters if None.

    Raises:
        ArgumentError: If the parameters are elsewhere.
    """
    parameter = next(policy.parameters(), None) if isinstance(policy, nn.Module) else None
    own = None if parameter is None else parameter.device
    target = own if device is None else concrete(torch.device(device))
    if own is not None and target != own:
        raise ArgumentError(
            f"the policy's parameters are on {own} and the collector was given device={device}: call"
            f" policy.to({str(device)!r}) first; the collector never copies a policy"
        )
    return target


def concrete(device: torch.device) -> torch.device:
    """Return the device with its index, such as ``cuda:0`` for ``cuda``."""
    return device if device.type == "cpu" or ":" in str(device) else torch.empty(0, device=device).device


_FIELDS = ("frames", "free_id", "ids", "root", "root_keys", "next_keys", "env")
_LATER = {"policy_version": 0, "trajectories": None}  # absent in states of earlier versions


def unpack_state(
    state: Mapping[str, Any], batch_size: torch.Size, env_device: torch.device, storing: torch.device
) -> dict[str, Any]:
    """Return the fields of a state, copied; the environment's own as it is.

    Args:
        state: State of a collector, on any device; its file has it on the CPU.
        batch_size: Batch size of the environments.
        env_device: Device of the environment, which reads the root and numbers the trajectories.
        storing: Device of the batches, to which the saved trajectories are added.

    Raises:
        CheckpointError: If it is not the state of a collector, or of another batch size.
    """
    lacking = [name for name in _FIELDS if name not in state]
    if lacking:
        raise CheckpointError(
            f"this is no state of a collector: it lacks {', '.join(lacking)} (it has"
            f" {', '.join(map(str, state)) or 'nothing'}); pass what Collector.state_dict() returned"
        )
    known = {name: state[name] for name in _FIELDS if name != "env"}
    later = {name: state.get(name, value) for name, value in _LATER.items()}
    found = unpack(known | later | {"trajectories": None}, "Collector", env_device)
    found["trajectories"] = unpack(later["trajectories"], "Collector", storing)
    ids = found["ids"]
    if ids is not None and ids.shape != batch_size:
        raise CheckpointError(
            f"the state was taken with environments of batch size {tuple(ids.shape)}, this collector has"
            f" {tuple(batch_size)}: load it into a collector with the same number of environments"
        )
    return {**found, "env": state["env"]}
