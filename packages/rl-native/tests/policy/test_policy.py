"""Steps of policies in C against the same layers in torch, and their bits with each instruction set."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch import nn

from rl.core.backends import policy_step
from rl.core.errors import UnsupportedError
from rl.core.policy_program import PolicyProgram, ProgramBuilder, Register, describe_policy
from rl.core.tensor_functions import TensorFunction, as_function
from rl.native._library import ISAS, library, use_isa  # instruction sets are no public choice
from rl.native._policy import NativePolicy
from rl.testing import check_policy_step

pytestmark = pytest.mark.skipif(library() is None, reason="the library is not built")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def step_of(net):
    return policy_step(TensorDictModule(net, ["observation"], ["action"]), "native", CPU)


def near(found, wanted, tolerance=1e-6):
    return bool(((found.double() - wanted.double()).abs() <= tolerance * (1 + wanted.double().abs())).all())


def test_it_conforms_to_the_hook():
    policy = TensorDictModule(nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3)), ["observation"], ["action"])
    check_policy_step(policy_step(policy, "native", CPU), as_function(policy), [torch.randn(12, 5)], tolerance=1e-6)


ACTIVATIONS = {
    "tanh": nn.Tanh(),
    "relu": nn.ReLU(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "elu": nn.ELU(0.7),
    "leaky": nn.LeakyReLU(0.2),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU("tanh"),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_equal_torch_over_the_real_line(activation):
    layer = ACTIVATIONS[activation]
    eye = nn.Linear(8, 8, bias=False)
    eye.weight.copy_(torch.eye(8))
    x = torch.cat((torch.linspace(-30, 30, 1600), torch.logspace(-12, 0, 448))).view(-1, 8)
    (found,) = step_of(nn.Sequential(eye, layer))(x)
    assert near(found, layer(x.double()).float())


@pytest.mark.parametrize("rows", [1, 2, 5, 16, 256])
@pytest.mark.parametrize("seed", range(6))
def test_random_networks_equal_torch(rows, seed):
    torch.manual_seed(seed)
    widths = torch.randint(1, 70, (4,)).tolist()
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b, bias=seed % 2 == 0)]
        layers += [nn.LayerNorm(b, elementwise_affine=seed % 3 != 0)] if seed % 2 else []
        layers += [list(ACTIVATIONS.values())[seed]]
    net = nn.Sequential(*layers)
    x = torch.randn(rows, widths[0])
    wanted = copy.deepcopy(net).double()(x.double())
    (found,) = step_of(net)(x)
    assert near(found, wanted.float())


def test_a_layer_that_is_used_twice_is_computed_twice():
    act, same = nn.Tanh(), nn.Linear(5, 5)
    net, x = nn.Sequential(same, act, same, act), torch.randn(6, 5)
    assert near(step_of(net)(x)[0], net(x))


def test_each_instruction_set_returns_the_same_bits():
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Linear(13, 37), nn.LayerNorm(37), nn.Tanh(), nn.Linear(37, 70), nn.SiLU(), nn.Linear(70, 33), nn.ELU()),
        *(nn.Linear(33, 21), nn.GELU(), nn.Linear(21, 6), nn.Sigmoid()),
    )
    found = {}
    builder = ProgramBuilder()
    known = {"observation": Register()}
    (params,) = builder.network(net, known["observation"])
    loc, raw, scale, action, score = Register(3), Register(3), Register(3), Register(3), Register(0)
    builder.add("split", [params], [loc, raw])
    builder.add("scale", [raw], [scale], mapping="softplus", shift=0.5, plus=0.01)
    ends = [lambda: torch.full((3,), -2.0), lambda: torch.full((3,), 1.0)]
    builder.add("tanh_normal", [loc, scale], [action, score], ends, how=InteractionType.RANDOM)
    outputs = {"loc": loc, "scale": scale, "action": action, "score": score}
    program = PolicyProgram(tuple(builder.operations), known, outputs)
    plain = TensorFunction(lambda x: (x,) * 4, ["observation"], list(outputs))
    x = 3 * torch.randn(200, 13)
    try:
        for isa in ISAS:
            use_isa(isa)
            torch.manual_seed(1)
            found[isa] = NativePolicy(program, plain)(x)
    finally:
        use_isa(None)
    first = found[ISAS[0]]
    assert all(torch.equal(a, b) for other in found.values() for a, b in zip(other, first, strict=True))
    assert not torch.equal(first[0], first[2])


def test_a_row_depends_on_no_other_row():
    net = nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 5))
    step, x = step_of(net), torch.randn(64, 9)
    (whole,) = step(x)
    for row in (0, 17, 63):
        assert torch.equal(step(x[row : row + 1])[0][0], whole[row])
        assert torch.equal(step(x[row])[0], whole[row])  # without a batch


def test_new_values_of_the_parameters_are_seen():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    step, x = step_of(net), torch.randn(7, 3)
    step(x)
    net[0].weight.mul_(2)
    assert near(step(x)[0], net(x))
    net[2].bias.data = torch.randn(2)  # other memory
    assert near(step(x)[0], net(x))
    net[2].weight = nn.Parameter(torch.randn(2, 4))
    assert near(step(x)[0], net(x))


def test_calls_of_another_form_are_left_to_torch(monkeypatch):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    step, x = step_of(net), torch.randn(5, 3)
    asked = []
    monkeypatch.setattr(step, "_plain", lambda *leaves: asked.append(leaves) or (net(*leaves),))
    step(x)
    assert not asked
    assert near(step(x.t().contiguous().t())[0], net(x))  # transposed memory is copied
    assert not asked
    step(torch.randn(300, 3))
    with torch.enable_grad():
        assert step(x)[0].requires_grad
    with set_interaction_type(InteractionType.MEAN):
        step(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        step(torch.randn(5, 4))
    net.double()
    with pytest.raises(RuntimeError, match="dtype"):
        step(x)
    step(x.double())
    assert len(asked) == 6


def test_several_steps_in_one_block_return_the_same_numbers():
    builder, x, sigma = ProgramBuilder(), torch.randn(5, 3), torch.ones(())
    inputs, action = {"observation": Register(3)}, Register(3)
    builder.add("noise", [inputs["observation"]], [action], [lambda: sigma, lambda: None, lambda: None], one_sigma=True)
    plain = TensorFunction(lambda x: (x,), ["observation"], ["action"])
    found = []
    for blocks in ((1,) * 12, (12,), (5, 7)):
        step = NativePolicy(PolicyProgram(tuple(builder.operations), inputs, {"action": action}), plain)
        torch.manual_seed(3)
        rows = []
        for block in blocks:
            step.prepare(block)
            rows += [step(x)[0] for _ in range(block)]
        found.append((torch.stack(rows), torch.rand(1)))
    for rows, following in found[1:]:
        assert torch.equal(rows, found[0][0])
        assert torch.equal(following, found[0][1])


def test_normal_numbers_are_normal():
    builder, x = ProgramBuilder(), torch.zeros(250, 40)
    inputs, action = {"observation": Register(40)}, Register(40)
    sigma = torch.ones(())
    builder.add("noise", [inputs["observation"]], [action], [lambda: sigma, lambda: None, lambda: None], one_sigma=True)
    plain = TensorFunction(lambda x: (x,), ["observation"], ["action"])
    step = NativePolicy(PolicyProgram(tuple(builder.operations), inputs, {"action": action}), plain)
    torch.manual_seed(0)
    uniform = torch.rand(100, 10_000)
    torch.manual_seed(0)
    step.prepare(100)
    found = torch.stack([step(x)[0] for _ in range(100)]).view(100, -1)
    exact = torch.special.ndtri(uniform.double() + 2**-25)
    assert near(found, exact)
    assert abs(float(found.double().std()) - 1) < 5 / math.sqrt(2e6)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Softplus()), "Softplus is no known layer"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "BatchNorm1d is no known layer"),
        (nn.Linear(3, 2, dtype=torch.float64), "a parameter is not contiguous float32"),
        (torch.sin, "sin is a function"),
        (nn.ReLU(), "before any layer of known width"),
    ],
)
def test_other_policies_are_rejected_with_the_reason(net, why):
    policy = TensorDictModule(net, ["observation"], ["action"])
    with pytest.raises(UnsupportedError, match=why):
        policy_step(policy, "native", CPU)


def test_a_layer_with_a_hook_is_rejected():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    net[1].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="Tanh has hooks"):
        describe_policy(TensorDictModule(net, ["observation"], ["action"]))
