"""One policy, or several, for the requests of threads and processes."""

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    interaction_type,
    set_interaction_type,
)
from torch import nn

from rl.collectors import Collector, InferenceServer, MultiSyncCollector
from rl.core.errors import ArgumentError, RLError, WorkerError, WorkerTimeoutError
from rl.testing import CountingEnv

PLACES = pytest.mark.parametrize("backend", ["thread", "process"])
FORK = multiprocessing.get_context("fork")


def linear(value=None):
    net = nn.Linear(3, 2)
    if value is not None:
        nn.init.constant_(net.weight, value)
        nn.init.zeros_(net.bias)
    return TensorDictModule(net, ["observation"], ["action"])


def request(value=1.0, **others):
    return TensorDict({"observation": torch.full((3,), float(value)), **others})


def elsewhere(client):
    """The client as another process has it: it connects to the server."""
    return pickle.loads(pickle.dumps(client))


class Gate:
    """Policy that waits in its first call, and keeps the sizes of its batches; a negative observation is an error."""

    def __init__(self):
        self.entered, self.opened, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, data):
        self.entered.set()
        assert self.opened.wait(60)
        self.sizes.append(data.shape[0])
        if (data["observation"] < 0).any():
            raise ValueError("it broke")
        return data.set("action", data["observation"][:, :1] * 2)


@PLACES
def test_replies_equal_those_of_the_policy_itself(backend):
    policy = linear()
    inputs = [request(number, id=torch.tensor([number])) for number in range(20)]
    with InferenceServer(policy, service_backend=backend) as server:
        for client in (server.client(), elsewhere(server.client())):
            replies = [client(one) for one in inputs[:3]]
            replies += [future.result(60) for future in [client.submit(one) for one in inputs[3:]]]
            for sent, reply in zip(inputs, replies, strict=True):
                torch.testing.assert_close(reply["action"], policy(sent.copy())["action"])
                assert "action" not in sent
                assert reply["observation"] is sent["observation"]
                assert torch.equal(reply["id"], sent["id"])
                assert reply["policy_version"].shape == ()
                assert not reply["action"].requires_grad
        assert server.stats()["requests"] == 40


def ask(client, queue, count):
    try:
        queue.put([client(request(number))["action"].tolist() for number in range(count)])
    except WorkerError as error:
        queue.put(error)


@pytest.mark.parametrize(
    ("backend", "method"),
    [("thread", "fork"), ("process", "fork"), pytest.param("thread", "spawn", marks=pytest.mark.slow)],
)
def test_processes_are_served(backend, method):
    policy = linear(0.5)
    context = multiprocessing.get_context(method)
    count = 1 if method == "spawn" else 2
    with InferenceServer(policy, service_backend=backend) as server:
        client = server.client()
        client(request())  # the parent's connection is not that of the processes
        queue = context.Queue()
        workers = [context.Process(target=ask, args=(client, queue, 5)) for _ in range(count)]
        for worker in workers:
            worker.start()
        answers = [queue.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join(60)
        assert answers == [[[1.5 * number] * 2 for number in range(5)]] * count
        assert client(request(2))["action"].tolist() == [3.0, 3.0]


def test_a_fork_asks_the_server_of_its_parent_and_cannot_change_the_weights():
    def ask_the_parent(queue):
        ask(server.client(), queue, 2)
        try:
            server.update_policy_weights_(linear(5.0))
        except WorkerError as error:
            queue.put(error)

    with InferenceServer(linear(1.0)) as server:
        queue = FORK.Queue()
        fork = FORK.Process(target=ask_the_parent, args=(queue,))
        fork.start()
        assert queue.get(timeout=60) == [[0, 0], [3, 3]]
        assert "the server has ended (its thread is not in this process)" in str(queue.get(timeout=60))
        fork.join(60)
        assert server.client()(request())["action"].tolist() == [3, 3]


def test_requests_that_wait_are_one_batch():
    policy = Gate()
    with InferenceServer(policy, max_batch_size=4) as server:
        client, other = server.client(), elsewhere(server.client())
        first = client.submit(request(0))
        assert policy.entered.wait(60)
        later = [client.submit(request(number)) for number in range(1, 6)]
        policy.opened.set()
        assert first.result(60)["action"].tolist() == [0]
        assert [future.result(60)["action"].item() for future in later] == [2, 4, 6, 8, 10]
        assert policy.sizes == [1, 4, 1]
        assert server.stats() == {"requests": 6, "batches": 3, "avg_batch_size": 2.0}
        assert other(request(7))["action"].tolist() == [14]


def test_a_batch_waits_for_the_least_number_of_requests():
    policy = Gate()
    policy.opened.set()
    with InferenceServer(policy, min_batch_size=3, timeout=30) as server:
        client = server.client()
        futures = [client.submit(request(number)) for number in range(2)]
        time.sleep(0.05)
        assert not policy.entered.is_set()
        futures.append(client.submit(request(2)))
        assert [future.result(60)["action"].item() for future in futures] == [0, 2, 4]
    assert policy.sizes == [3]
    with InferenceServer(policy, min_batch_size=3, timeout=0.02) as server:
        assert server.client()(request(2))["action"].item() == 4  # no longer than `timeout`


def test_requests_of_other_shapes_and_groups_are_batches_of_their_own():
    seen = []

    def policy(data):
        seen.append((data.batch_size, data["agents"].batch_size if "agents" in data.keys() else None))
        return data.set("action", data["observation"].sum(-1))

    with InferenceServer(policy, min_batch_size=9, timeout=0.3) as server:
        for client in (server.client(), elsewhere(server.client())):
            agents = TensorDict({"x": torch.ones(2, 5)}, [2])
            sent = [
                request(1),
                TensorDict({"observation": torch.ones(4, 3)}, [4]),
                request(2, agents=agents),
                request(3),
                TensorDict({"observation": torch.ones(7)}),
            ]
            replies = [future.result(60) for future in [client.submit(one) for one in sent]]
            assert [reply["action"].tolist() for reply in replies] == [3, [3] * 4, 6, 9, 7]
            assert replies[2]["agents"].batch_size == (2,)
            assert [size for size, _ in seen] == [(2,), (1, 4), (1,), (1,)]
            assert seen[2][1] == (1, 2)
            seen.clear()


def test_an_entry_that_is_changed_in_place_is_returned():
    def policy(data):
        data["observation"].add_(1)

    with InferenceServer(policy) as server:
        sent = request(1)
        assert elsewhere(server.client())(sent)["observation"].tolist() == [2, 2, 2]
        assert sent["observation"].tolist() == [1, 1, 1]


def test_an_error_reaches_the_request_that_causes_it():
    policy = Gate()
    with InferenceServer(policy) as server:
        for client in (server.client(), elsewhere(server.client())):
            policy.opened.clear()
            policy.entered.clear()
            futures = [client.submit(request(5))]
            assert policy.entered.wait(60)
            futures += [client.submit(request(number)) for number in (1, -1, 2)]
            policy.opened.set()
            with pytest.raises(WorkerError, match=r"policy 'policy' raised ValueError: it broke\n\nTraceback"):
                futures[2].result(60)
            assert [futures[index].result(60)["action"].item() for index in (0, 1, 3)] == [10, 2, 4]
            with pytest.raises(WorkerError, match="it broke") as caught:
                client(request(-1))
            assert not caught.value.ended


def test_what_cannot_be_sent_is_refused():
    with InferenceServer(linear()) as server:
        client = server.client()
        with pytest.raises(ArgumentError, match="'name' is NonTensorData, expected a tensor"):
            client(request(name="a"))
        with pytest.raises(ArgumentError, match="model_id must be 'policy', got 'critic'"):
            client(request(), model_id="critic")
        with pytest.raises(WorkerError, match="KeyError"):
            client(TensorDict({"x": torch.ones(3)}))
        assert client(request())["action"].shape == (2,)

    def texts(data):
        return data.set("note", "text")

    with InferenceServer(texts) as server, pytest.raises(WorkerError, match="expected a tensor"):
        server.client()(request())


def test_a_deadline_names_policy_and_time_and_the_request_is_dropped():
    policy = Gate()
    with InferenceServer(policy) as server:
        for client in (server.client(timeout=0.05), elsewhere(server.client(timeout=0.05))):
            policy.opened.clear()
            policy.entered.clear()
            policy.sizes.clear()
            first = client.submit(request(1), timeout=60)
            assert policy.entered.wait(60)
            with pytest.raises(WorkerTimeoutError, match=r"no reply of policy 'policy' within 0\.05 s"):
                client(request(2))
            late = client.submit(request(3))
            time.sleep(0.1)
            policy.opened.set()
            assert first.result(60)["action"].item() == 2
            with pytest.raises(WorkerTimeoutError, match=r"no reply of policy 'policy' within 0\.05 s"):
                late.result(60)
            assert client(request(4), timeout=60)["action"].item() == 8
            assert policy.sizes == [1, 1]  # neither 2 nor 3 was computed


def test_a_client_has_a_limited_number_of_requests():
    policy = Gate()
    with InferenceServer(policy) as server:
        for client in (server.client(max_inflight=2), elsewhere(server.client(max_inflight=2))):
            policy.opened.clear()
            futures = [client.submit(request(number)) for number in range(2)]
            with pytest.raises(WorkerTimeoutError, match=r"2 requests had no reply within 0\.05 s"):
                client.submit(request(2), timeout=0.05)
            with ThreadPoolExecutor(1) as pool:
                third = pool.submit(client, request(3))
                time.sleep(0.05)
                assert not third.done()
                policy.opened.set()
                assert third.result(60)["action"].item() == 6
            assert [future.result(60)["action"].item() for future in futures] == [0, 2]


@PLACES
def test_new_weights_are_versions(backend):
    policy = linear(1.0)
    with InferenceServer(policy, service_backend=backend) as server:
        clients = server.client(), elsewhere(server.client())

        def replies():
            found = [client(request()) for client in clients]
            return [(one["action"][0].item(), one["policy_version"].item()) for one in found]

        assert replies() == [(3.0, 0)] * 2
        server.update_policy_weights_(linear(2.0))
        assert replies() == [(6.0, 1)] * 2
        server.update_policy_weights_(weights=linear(3.0).state_dict())
        assert replies() == [(9.0, 2)] * 2
        server.update_policy_weights_(weights_dict={"policy": TensorDict.from_module(linear(4.0))})
        assert replies() == [(12.0, 3)] * 2
        with torch.no_grad():
            policy.module.weight.fill_(5.0)
        server.update_policy_weights_()
        assert replies() == [(15.0, 4)] * 2
        with pytest.raises(ArgumentError, match="do not fit the policy 'policy' of the server"):
            server.update_policy_weights_(nn.Linear(1, 1))
        assert server.policy_version == server.get_policy_version("policy") == 4


def test_a_batch_has_the_weights_of_one_version():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            first = self.one.expand(x.shape[:-1]).clone()
            time.sleep(0.002)
            return first, self.other.expand(x.shape[:-1]).clone()

    policy = TensorDictModule(Both(), ["observation"], ["one", "other"])
    with InferenceServer(policy) as server:
        client = server.client()
        futures = []
        for number in range(1, 40):
            futures.append(client.submit(request()))
            values = {"module.one": torch.tensor(float(number)), "module.other": torch.tensor(float(number))}
            server.update_policy_weights_(values)
        for future in futures:
            reply = future.result(60)
            assert reply["one"].item() == reply["other"].item() == reply["policy_version"].item()


@PLACES
def test_several_policies_are_served(backend):
    policies = {"small": linear(1.0), "large": linear(10.0)}
    with InferenceServer(policies, service_backend=backend) as server:
        client = elsewhere(server.client())
        found = [client(request(), model_id=name)["action"][0].item() for name in ("small", "large")]
        assert found == [3.0, 30.0]
        with pytest.raises(ArgumentError, match="model_id must be 'small' or 'large', got None"):
            client(request())
        large = server.client("large")
        server.update_policy_weights_(linear(20.0), model_id="large")
        reply = large(request())
        assert (reply["action"][0].item(), reply["policy_version"].item()) == (60.0, 1)
        assert large(request(), model_id="small")["policy_version"].item() == 0
        server.update_policy_weights_()
        assert [server.get_policy_version(name) for name in policies] == [1, 2]
        with pytest.raises(ArgumentError, match="no model_id, one of small, large"):
            server.update_policy_weights_(linear())
        with pytest.raises(ArgumentError, match=r"models \['other'\]: there are small, large"):
            server.update_policy_weights_(linear(), model_id="other")


def test_the_exploration_type_is_that_of_the_caller():
    class Which(nn.Module):
        def forward(self, x):
            kinds = [None, *InteractionType]
            return torch.full(x.shape[:-1], kinds.index(interaction_type()))

    kinds = [None, *InteractionType]
    with InferenceServer(TensorDictModule(Which(), ["observation"], ["kind"])) as server:
        for client in (server.client(), elsewhere(server.client())):
            for kind in kinds:
                with set_interaction_type(kind):
                    assert kinds[client(request())["kind"]] == kind
    assert interaction_type() is None


def test_draws_are_independent():
    draw = ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"], out_keys=["action"], distribution_class=torch.distributions.Normal
    )
    with InferenceServer(draw, min_batch_size=50, timeout=1.0) as server, set_interaction_type("random"):
        client = server.client()
        sent = TensorDict({"loc": torch.zeros(()), "scale": torch.ones(())})
        drawn = torch.stack([future.result(60)["action"] for future in [client.submit(sent) for _ in range(50)]])
    assert drawn.unique().numel() == 50
    assert drawn.mean().abs() < 1


def recurrent():
    modules = pytest.importorskip("rl.modules")
    cell = modules.GRUModule(input_size=1, hidden_size=4, in_key="observation", out_key="embed")
    choose = TensorDictModule(lambda x: (x.sum(-1) > 0).long(), ["embed"], ["action"])
    return TensorDictSequential(cell, choose)


def test_a_client_is_the_policy_of_a_collector_and_recurrent_states_travel():
    torch.manual_seed(0)
    policy = recurrent()
    with InferenceServer(policy) as server:
        for client in (server.client(), elsewhere(server.client())):
            served = Collector(CountingEnv(), client, frames_per_batch=12).collect()
            direct = Collector(CountingEnv(), policy, frames_per_batch=12).collect()
            assert (served["policy_version"] == 0).all()
            names = {*direct.keys(include_nested=True, leaves_only=True)}
            assert {*served.keys(include_nested=True, leaves_only=True)} == names | {"policy_version"}
            for key in names:
                torch.testing.assert_close(served[key], direct[key])
        with MultiSyncCollector([CountingEnv] * 2, server.client(), frames_per_batch=24) as workers:
            batch = workers.collect()
        for row in batch:
            torch.testing.assert_close(row["embed"], direct["embed"])


# ---- ends


def test_a_killed_client_stops_no_other():
    with InferenceServer(linear(1.0)) as server:
        client = server.client()
        queue = FORK.Queue()
        killed = FORK.Process(target=ask, args=(client, queue, 10_000_000))
        killed.start()
        while server.stats()["requests"] < 5:
            time.sleep(0.01)
        other = elsewhere(client)
        os.kill(killed.pid, signal.SIGKILL)
        killed.join(60)
        assert other(request(), timeout=60)["action"].tolist() == [3, 3]
        assert client(request(), timeout=60)["action"].tolist() == [3, 3]


def test_a_client_that_stops_in_the_middle_of_a_request_or_never_reads_stops_no_other():
    policy = TensorDictModule(lambda x: x[..., None].expand(*x.shape, 1000), ["observation"], ["action"])
    with InferenceServer(policy) as server:
        whole = elsewhere(server.client())
        deaf = elsewhere(server.client(max_inflight=3000))
        deaf(request())
        # no public name: the socket of a client, and a client that reads nothing
        half = whole._connected()._socket
        half.sendall(struct.pack("!Q", 1000) + b"x" * 10)
        other = elsewhere(server.client())
        assert other(request(), timeout=60)["action"].shape == (3, 1000)
        silent = socket.create_connection(server.client()._contact.address)
        silent.sendall(struct.pack("!Q", 32) + server.client()._contact.secret)
        message = pickle.dumps((1, "policy", None, (), {}, {"observation": torch.ones(3).numpy()}, None, None))
        silent.settimeout(5)
        for _ in range(2000):
            silent.sendall(struct.pack("!Q", len(message)) + message)
        assert other(request(), timeout=60)["action"].shape == (3, 1000)
        silent.close()
        assert other(request(), timeout=60)["action"].shape == (3, 1000)


def test_nothing_is_unpickled_without_the_secret():
    class Bomb:
        def __reduce__(self):
            return os.abort, ()

    with InferenceServer(linear()) as server:
        client = server.client()
        for message in (pickle.dumps(Bomb()), b"x" * 32):
            with socket.create_connection(client._contact.address, timeout=60) as stranger:  # no public name
                stranger.sendall(struct.pack("!Q", len(message)) + message)
                assert stranger.recv(1) == b""
        assert client(request())["action"].shape == (2,)


def test_clients_of_a_killed_server_fail_at_once():
    class Stuck:
        def __call__(self, data):
            if data["observation"].sum() > 0:
                time.sleep(60)
            return data.set("pid", torch.full(data.shape, os.getpid()))

    server = InferenceServer(Stuck(), service_backend="process", service_backend_options={"shutdown_timeout": 0.1})
    with server:
        client = server.client()
        pid = client(request(0))["pid"].item()
        waiting = client.submit(request(1))
        other = elsewhere(client)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="the server has ended") as caught:
            waiting.result(60)
        assert caught.value.ended
        for one in (client, other):
            with pytest.raises(WorkerError, match="the server has ended"):
                one(request(0))
        with pytest.raises(WorkerError, match=r"worker 0 has ended \(signal SIGKILL"):
            server.stats()


def serve_until_killed(pipe):
    with InferenceServer(linear()) as server:
        helper = FORK.Process(target=time.sleep, args=(60,), daemon=True)  # has copies of the server's sockets
        client = server.client()
        pipe.send(elsewhere(client))
        pipe.recv()
        helper.start()
        pipe.send(helper.pid)
        time.sleep(60)


def test_the_end_of_a_server_is_seen_though_its_process_has_forks():
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=serve_until_killed, args=(theirs,))
    process.start()
    client = ours.recv()
    client(request())
    ours.send(None)
    helper = ours.recv()
    try:
        process.kill()
        with pytest.raises(WorkerError, match="the server has ended"):
            client(request(), timeout=20)
    finally:
        os.kill(helper, signal.SIGKILL)
        process.join(60)


@PLACES
def test_requests_that_wait_at_a_shutdown_fail(backend):
    with InferenceServer(linear(), service_backend=backend, min_batch_size=5, timeout=60) as server:
        clients = server.client(), elsewhere(server.client())
        futures = [client.submit(request()) for client in clients]
        time.sleep(0.1)
    for future in futures:
        with pytest.raises(WorkerError, match="the server has ended") as caught:
            future.result(60)
        assert caught.value.ended
    for client in clients:
        with pytest.raises(WorkerError, match="the server has ended"):
            client(request())


@PLACES
def test_nothing_is_left(backend):
    before = {*threading.enumerate()}
    server = InferenceServer(linear(), service_backend=backend)
    for _ in range(2):
        server.start()
        client = elsewhere(server.client())
        client(request())
        with pytest.raises(RLError, match="was called before"):
            server.start()
        server.shutdown()
        server.shutdown()
    with pytest.raises(RLError, match="is not running"):
        server.client()
    server.start()
    elsewhere(server.client())(request())
    del server, client
    gc.collect()
    limit = time.monotonic() + 20
    while {*threading.enumerate()} - before and time.monotonic() < limit:
        time.sleep(0.01)
    assert not {*threading.enumerate()} - before
    assert not multiprocessing.active_children()


@PLACES
def test_ctrl_c_in_a_request_leaves_the_server_as_it_was(backend):
    class Slow:
        def __call__(self, data):
            time.sleep(data["observation"].max().item())
            return data.set("action", data["observation"])

    with InferenceServer(Slow(), service_backend=backend) as server:
        client = server.client()
        client(request(0))
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            client(request(1))
        assert client(request(0), timeout=60)["action"].tolist() == [0, 0, 0]


def test_a_policy_is_created_where_it_is_served():
    def make():
        return TensorDictModule(lambda x: torch.full(x.shape[:-1], os.getpid()), ["observation"], ["pid"])

    with InferenceServer(policy_factory=make, service_backend="process") as server:
        assert server.client()(request())["pid"].item() != os.getpid()
        with pytest.raises(ArgumentError, match="has no weights for 'policy'"):
            server.update_policy_weights_()

    def fails():
        raise ValueError("no policy")

    with pytest.raises(WorkerError, match="no policy"):
        InferenceServer(policy_factory=fails, service_backend="process").start()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policy": None}, "takes a policy or a policy_factory"),
        ({"policy_factory": linear}, "takes a policy or a policy_factory"),
        ({"policy": 3}, "takes a policy, or policies by name"),
        ({"policy": {}}, "takes a policy, or policies by name"),
        ({"service_backend": "cloud"}, "service_backend must be 'thread', 'process' or 'ray', got 'cloud'"),
        ({"service_backend_options": {"num_threads": 2}}, "options num_threads; 'thread' has none"),
        ({"max_batch_size": 0}, "max_batch_size must be at least 1"),
        ({"min_batch_size": 2, "max_batch_size": 1}, "max_batch_size must be at least 2"),
        ({"timeout": -1}, "timeout must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        InferenceServer(**{"policy": linear(), **arguments})


@pytest.mark.parametrize(("arguments", "words"), [({"timeout": 0}, "timeout"), ({"max_inflight": 0}, "max_inflight")])
def test_wrong_limits_of_a_client_are_refused(arguments, words):
    with InferenceServer(linear()) as server, pytest.raises(ArgumentError, match=f"InferenceClient: {words} must be"):
        server.client(**arguments)
