"""`InferenceServer` in an actor of a local cluster; `-m slow` runs it where Ray is installed."""

import os
import signal
import warnings

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import InferenceServer
from rl.core.errors import ArgumentError, MissingExtraError, WorkerError

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def linear(value=1.0):
    net = nn.Linear(3, 2)
    nn.init.constant_(net.weight, value)
    nn.init.zeros_(net.bias)
    return TensorDictModule(net, ["observation"], ["action"])


def request():
    return TensorDict({"observation": torch.ones(3)})


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address="local", num_cpus=3, log_to_driver=False, include_dashboard=False)
    yield ray
    ray.shutdown()


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-collectors\[ray\]"'):
        InferenceServer(linear(), service_backend="ray").start()


@pytest.mark.slow
def test_tasks_of_a_cluster_are_served(ray):
    with InferenceServer(linear(), service_backend="ray", service_backend_options={"remote_config": {}}) as server:
        client = server.client()

        @ray.remote
        def ask(client, data):  # a task imports no functions of this file
            return [client(data, timeout=60)["action"].tolist() for _ in range(3)]

        assert ray.get([ask.remote(client, request()) for _ in range(2)]) == [[[3.0, 3.0]] * 3] * 2
        assert server.stats()["requests"] == 6
        server.update_policy_weights_(linear(2.0))
        reply = client(request(), timeout=60)
        assert (reply["action"][0].item(), reply["policy_version"].item()) == (6.0, 1)
        with pytest.raises(ArgumentError, match="do not fit"):
            server.update_policy_weights_(nn.Linear(1, 1))
        with pytest.raises(WorkerError, match="KeyError"):
            client(TensorDict({"x": torch.ones(3)}), timeout=60)
    with pytest.raises(WorkerError, match="the server has ended"):
        client(request(), timeout=60)


@pytest.mark.slow
def test_the_end_of_an_actor_is_seen(ray):
    def make():
        return TensorDictModule(lambda x: torch.full(x.shape[:-1], os.getpid()), ["observation"], ["pid"])

    with InferenceServer(policy_factory=make, service_backend="ray") as server:
        client = server.client()
        os.kill(client(request(), timeout=60)["pid"].item(), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(WorkerError, match="the server has ended") as caught:
                client(request(), timeout=60)
        assert caught.value.ended
        with pytest.raises(WorkerError, match="the server has ended"):
            server.stats()


@pytest.mark.slow
def test_a_policy_that_fails_is_named(ray):
    def make():
        raise ValueError("no policy")

    with pytest.raises(WorkerError, match="no policy"):
        InferenceServer(policy_factory=make, service_backend="ray").start()
