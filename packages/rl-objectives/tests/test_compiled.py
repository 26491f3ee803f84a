"""Compiled code calls the operators of a back end that can be traced, in one graph, with the right gradients."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

# the operator in a traced graph is compared with the scan, which the graph does not call
from rl.objectives.functional._recurrence import linear_recurrence, scan_recurrence
from rl.objectives.value import GAE, recurrence_backend
from rl.objectives.value.functional import (
    reward2go,
    vec_generalized_advantage_estimate,
    vec_td_lambda_return_estimate,
    vtrace_advantage_estimate,
)

SHAPE = (3, 6, 1)
native = pytest.mark.skipif(
    getattr(recurrence_backend(torch.device("cpu"), torch.float32), "name", "") != "native",
    reason="no back end with operators is installed",
)


class Recorder:
    """A compiler that runs graphs as they are and keeps them."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, _):
        self.graphs.append(graph)
        return graph.forward

    @property
    def operators(self):
        (graph,) = self.graphs
        targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        return [target for target in targets if target.startswith("rl_native.")]


@pytest.fixture(autouse=True)
def afresh():
    torch.compiler.reset()


def make(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(SHAPE, generator=generator, dtype=dtype) for _ in range(3)]
    return *numbers, torch.rand(SHAPE, generator=generator) < 0.3


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_whole_returns_are_operators(dtype):
    value, following, reward, done = make(dtype)

    def every(value, following, reward, done):
        return (
            vec_generalized_advantage_estimate(0.9, 0.8, value, following, reward, done),
            vec_td_lambda_return_estimate(0.9, 0.8, following, reward, done),
            reward2go(reward, done, 0.9),
            vtrace_advantage_estimate(0.9, 0.1 * value, value, value, following, reward, done),
        )

    recorder = Recorder()
    found = torch.compile(every, fullgraph=True, backend=recorder)(value, following, reward, done)
    assert recorder.operators == ["rl_native.gae", "rl_native.td_lambda", "rl_native.td_lambda", "rl_native.vtrace"]
    torch.testing.assert_close(found, every(value, following, reward, done))


@native
def test_two_types_in_one_graph():
    (value, following, reward, done), other = make(), make(torch.float64)

    def both(value, following, reward, done, a, b, c, d):
        args = (0.9, 0.8)
        return (
            vec_generalized_advantage_estimate(*args, value, following, reward, done)[0],
            vec_generalized_advantage_estimate(*args, a, b, c, d)[0],
        )

    recorder = Recorder()
    found = torch.compile(both, fullgraph=True, backend=recorder)(value, following, reward, done, *other)
    assert recorder.operators == ["rl_native.gae", "rl_native.gae"]
    torch.testing.assert_close(found, both(value, following, reward, done, *other))


@native
def test_gae_is_one_graph_with_the_operator():
    torch.manual_seed(0)
    critic = TensorDictModule(nn.Linear(4, 1), in_keys=["observation"], out_keys=["state_value"])
    gae = GAE(value_network=critic)
    _, _, reward, done = make()
    after = TensorDict(observation=torch.randn(3, 6, 4), reward=reward, done=done, terminated=done)
    batch = TensorDict(observation=torch.randn(3, 6, 4), next=after, batch_size=[3, 6])
    recorder = Recorder()
    found = torch.compile(gae, fullgraph=True, backend=recorder)(batch.clone())
    assert recorder.operators == ["rl_native.gae"]
    torch.testing.assert_close(found["advantage"], gae(batch.clone())["advantage"])


def gradients(function, value, following):
    leaves = value.clone().requires_grad_(), following.clone().requires_grad_()
    function(*leaves).square().sum().backward()
    return leaves[0].grad, leaves[1].grad


def test_gradients_of_compiled_code():
    value, following, reward, done = make()

    def function(value, following):
        return vec_generalized_advantage_estimate(0.9, 0.8, value, following, reward, done)[0]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, value, following), gradients(function, value, following))


@native
def test_where_a_gradient_is_needed_the_recurrence_is_the_operator():
    value, following, reward, done = make()
    value.requires_grad_()
    recorder = Recorder()
    torch.compile(
        lambda v: vec_generalized_advantage_estimate(0.9, 0.8, v, following, reward, done)[0],
        fullgraph=True,
        backend=recorder,
    )(value)
    assert recorder.operators == ["rl_native.linear_recurrence"]


def test_a_back_end_that_cannot_be_traced_is_left_out(monkeypatch):
    def opaque(*_):
        raise AssertionError("called while tracing")

    monkeypatch.setattr("rl.objectives.functional._recurrence.recurrence_backend", lambda *_: opaque)
    d, c = torch.randn(2, 5, 1), torch.rand(2, 5, 1)
    compiled = torch.compile(lambda d, c: linear_recurrence(d, c, 1), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(d, c), scan_recurrence(d, c, 1))


@native
def test_results_go_where_they_are_wanted_in_compiled_code_too():
    value, following, reward, done = make()
    out = torch.empty(SHAPE), torch.empty(SHAPE)

    def function(*args):
        vec_generalized_advantage_estimate(0.9, 0.8, *args, out=out)

    torch.compile(function, fullgraph=True, backend="aot_eager")(value, following, reward, done)
    torch.testing.assert_close(out, vec_generalized_advantage_estimate(0.9, 0.8, value, following, reward, done))
