"""Places where an `InferenceServer` computes: a thread, a process, an actor of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl.collectors._connections import LOCAL, Contact, Model, end_error
from rl.collectors._pipeline import device_of_policy, make_policy
from rl.collectors._serving import ServedPolicy, Service
from rl.collectors.weights import SharedWeights
from rl.core.errors import ArgumentError, WorkerError
from rl.core.recurrent import states_of
from rl.core.workers import WorkerGroup, import_ray, packed, start_ray, unpacked


class Host:
    """Policies and their service, in the process that computes: that of the server, a worker process, or an actor.

    Args:
        policies: The policies by name; functions that create them if `factory`.
        factory: See `policies`.
        device: Device of the policies; that of their parameters if None.
        stores: Shared memory of the weights by name, if there is any.
        host: Address of the network interface to listen on.
        settings: Further arguments of `Service`.
    """

    commands = ()

    def __init__(
        self,
        policies: Mapping[str, Any],
        *,
        factory: bool,
        device: torch.device | str | None,
        settings: Mapping[str, Any],
        stores: Mapping[str, SharedWeights] | None = None,
        host: str = LOCAL,
    ) -> None:
        created = {name: make_policy(*((None, one) if factory else (one, None))) for name, one in policies.items()}
        self.policies = {
            name: ServedPolicy(policy, policy, device_of_policy(policy, device)) for name, policy in created.items()
        }
        for name, store in (stores or {}).items():
            if self._state(name):
                self.policies[name].follow(store)
        self.service = Service(self.policies, host=host, **settings)

    def _state(self, name: str) -> dict[str, Tensor]:
        policy = self.policies[name].policy
        return policy.state_dict() if isinstance(policy, nn.Module) else {}

    def begin(self) -> tuple[Contact, dict[str, dict[str, Tensor]]]:
        """Return where clients connect to, and the weights of each policy as meta tensors."""
        models = {name: _model_of(served.policy) for name, served in self.policies.items()}
        contact = Contact(self.service.address, self.service.secret, models)
        names = {
            name: {key: torch.empty_like(value, device="meta") for key, value in self._state(name).items()}
            for name in self.policies
        }
        return contact, names

    def load(self, name: str, weights: Any, version: int) -> None:
        """Load weights between two batches."""
        self.service.load(name, unpacked(weights), version)

    def stats(self) -> dict[str, float]:
        """Return the counts of the service."""
        return self.service.stats()

    def close(self) -> None:
        """End the service."""
        self.service.close()


def _model_of(policy: Any) -> Model:
    keys = (getattr(policy, name, None) for name in ("in_keys", "out_keys"))
    reads, writes = (None if found is None else tuple(found) for found in keys)
    return Model(reads, writes, states_of(policy))


class Here:
    """A `Host` in this process, whose service is a thread."""

    def __init__(self, policies: Mapping[str, Any], parts: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        self.host = Host(policies, **parts)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host."""
        return getattr(self.host, method)(*args)

    def map_weights(self, names: Mapping[str, Any]) -> None:
        """Nothing: the weights are in this process."""

    def publish(self, name: str, weights: Any, version: int) -> None:
        """Load weights between two batches."""
        self.host.load(name, weights, version)

    def close(self) -> None:
        """End the service."""
        self.host.close()


class Process:
    """A `Host` in a process, whose weights are in shared memory."""

    def __init__(self, policies: Mapping[str, Any], parts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._stores = {name: SharedWeights(readers=1) for name in policies}
        make = partial(Host, policies, stores=self._stores, **parts)
        self._group = WorkerGroup([make], owner="InferenceServer", **options)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host."""
        return self._group.call(0, method, *args)

    def map_weights(self, names: Mapping[str, Any]) -> None:
        """Map the memory of the weights, where there are any."""
        for name, store in self._stores.items():
            if names[name]:
                store.map(names[name])

    def publish(self, name: str, weights: Any, version: int) -> None:
        """Write weights to the shared memory."""
        self._stores[name].publish(weights, version)

    def close(self) -> None:
        """End the process."""
        self._group.close()
        for store in self._stores.values():
            store.close()


class Actor:
    """A `Host` in an actor of Ray, whose weights are in the object store."""

    def __init__(self, policies: Mapping[str, Any], parts: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._ray = ray = import_ray("InferenceServer", "rl-collectors[ray]")
        try:
            ray.cloudpickle.dumps(policies)
        except Exception as error:  # whatever an object raises
            raise ArgumentError(
                f"InferenceServer: the policy cannot be sent to an actor ({error}): pass policy_factory=, a function"
                " that holds no open files or locks"
            ) from error
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            start_ray(ray, options.get("ray_init_config"), "InferenceServer")

        class ActorHost(Host):
            def __init__(self, *args: Any, **parts: Any) -> None:
                super().__init__(*args, host=ray.util.get_node_ip_address(), **parts)

        resources = {"num_cpus": 1, **options.get("remote_config", {})}
        self._actor = ray.remote(**resources)(ActorHost).remote(policies, **parts)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host."""
        ray = self._ray
        try:
            return ray.get(getattr(self._actor, method).remote(*args))
        except ray.exceptions.RayActorError as error:
            raise end_error(str(error).strip().splitlines()[-1]) from error
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(f"InferenceServer: the actor raised {error}") from error

    def map_weights(self, names: Mapping[str, Any]) -> None:
        """Nothing: weights are sent."""

    def publish(self, name: str, weights: Any, version: int) -> None:
        """Send weights."""
        self.call("load", name, packed(dict(weights)), version)

    def close(self) -> None:
        """End the actor, and Ray if it was started for it."""
        with suppress(Exception):  # one that has ended needs no end; `kill` alone does not wait for it
            self._ray.wait([self._actor.close.remote()], timeout=10.0)
            self._ray.kill(self._actor)
        if self._owns_ray:
            self._ray.shutdown()
