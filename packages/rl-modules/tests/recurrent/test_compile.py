"""Recurrent modules in a compiled function: one graph in both modes, and the right gradients."""

import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl.core import set_recurrent_mode
from rl.modules import GRUModule, LSTMModule

each_module = pytest.mark.parametrize("kind", [LSTMModule, GRUModule])


def problem(kind, *size, **options):
    torch.manual_seed(0)
    module = kind(3, 4, 2, in_key="observation", out_key="features", **options)
    td = TensorDict(observation=torch.randn(*size, 3), is_init=torch.rand(*size, 1) < 0.3, batch_size=size)
    for state in module.states:
        td[state.name] = torch.randn(*size, *state.shape)

    def loss(td):
        out = module(td)
        total = out["features"].square().sum()
        for state in module.states:
            total = total + out["next"][state.name].sin().sum()
        return total

    return module, td, loss


def compare(module, td, loss, mode, backend):
    torch.compiler.reset()
    compiled = torch.compile(set_recurrent_mode(mode)(loss), fullgraph=True, backend=backend)
    weights = list(module.parameters())
    got = torch.autograd.grad(compiled(td.clone()), weights)
    want = torch.autograd.grad(set_recurrent_mode(mode)(loss)(td.clone()), weights)
    assert_close(got, want)
    torch.compiler.reset()


@each_module
@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_module_is_one_graph_with_its_gradients(kind, mode, recompute):
    compare(*problem(kind, 3, 5, recurrent_recompute=recompute), mode, "aot_eager")


@pytest.mark.slow
@each_module
def test_the_gradients_of_compiled_kernels_are_right(kind):
    compare(*problem(kind, 3, 5), True, "inductor")


@each_module
def test_a_batch_without_states_that_has_to_have_them_fails_in_the_graph_too(kind):
    module, td, _ = problem(kind, 3, 5)
    td = td.select("observation", "is_init")
    torch.compiler.reset()

    def features(observation, is_init):
        with set_recurrent_mode(True):
            return module(TensorDict(observation=observation, is_init=is_init, batch_size=[3, 5]))["features"]

    compiled = torch.compile(features, fullgraph=True, backend="aot_eager")
    td["is_init"][:, 0] = True
    assert_close(compiled(td["observation"], td["is_init"]), features(td["observation"], td["is_init"]))
    td["is_init"][1, 0] = False
    with pytest.raises(RuntimeError, match="need stored states"):
        compiled(td["observation"], td["is_init"])
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, where a graph breaks
def test_flat_batches_and_padding_run_outside_of_the_graph():
    for size, options in (((15,), {}), ((3, 5), {"recurrent_backend": "pad"})):
        _, td, loss = problem(GRUModule, *size, **options)
        torch.compiler.reset()
        compiled = torch.compile(set_recurrent_mode(True)(loss), backend="eager")
        assert_close(compiled(td.clone()), set_recurrent_mode(True)(loss)(td.clone()))
    torch.compiler.reset()
