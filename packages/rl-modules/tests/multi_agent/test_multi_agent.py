"""Networks of several agents: who sees what, with whose parameters; mixers."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import (
    MLP,
    ConvNet,
    GRUModule,
    LSTMModule,
    MultiAgentConvNet,
    MultiAgentMLP,
    QMixer,
    VDNMixer,
    orthogonal_init,
    set_recurrent_mode,
)

CASES = [(c, s) for c in (False, True) for s in (False, True)]


def nets(centralized, share_params):
    options = {"centralized": centralized, "share_params": share_params}
    yield MultiAgentMLP(4, 2, 3, depth=1, num_cells=8, **options), (4,)
    yield MultiAgentConvNet(3, in_features=2, num_cells=[4, 4], kernel_sizes=3, **options), (2, 9, 9)


@pytest.mark.parametrize(("centralized", "share_params"), CASES)
def test_an_output_depends_on_the_inputs_that_the_agent_sees(centralized, share_params):
    for net, shape in nets(centralized, share_params):
        x = torch.randn(5, 3, *shape, requires_grad=True)
        out = net(x)
        assert out.shape[:2] == (5, 3)
        for agent in range(3):
            (grad,) = torch.autograd.grad(out[:, agent].square().sum(), x, retain_graph=True)
            seen = grad.flatten(2).abs().sum(-1).gt(0).all(0)
            assert seen.tolist() == ([True] * 3 if centralized else [agent == other for other in range(3)])


@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_separate_parameters_are_separate_networks(batch):
    net = MultiAgentMLP(4, 2, 3, centralized=False, share_params=False, num_cells=[8, 8])
    x = torch.randn(*batch, 3, 4)
    for agent in range(3):
        alone = MLP(4, 2, num_cells=[8, 8])
        for mine, layer in zip([m for m in alone if isinstance(m, nn.Linear)], list(net.net)[::2], strict=True):
            mine.weight.data, mine.bias.data = layer.weight[agent].T, layer.bias[agent, 0]
        torch.testing.assert_close(net(x)[..., agent, :], alone(x[..., agent, :]))


def test_separate_convolutions_are_separate_networks():
    net = MultiAgentConvNet(3, centralized=False, share_params=False, in_features=2, num_cells=[4, 6], kernel_sizes=3)
    x = torch.randn(5, 3, 2, 9, 9)
    for agent in range(3):
        alone = ConvNet(2, num_cells=[4, 6], kernel_sizes=3, strides=2)
        for mine, layer in zip(alone, net.net, strict=True):
            if isinstance(mine, nn.Conv2d):
                mine.weight.data = layer.weight.chunk(3)[agent]
                mine.bias.data = layer.bias.chunk(3)[agent]
        torch.testing.assert_close(net(x)[:, agent], alone(x[:, agent]))


@pytest.mark.parametrize("centralized", [False, True])
def test_separate_and_shared_parameters_agree_where_they_are_equal(centralized):
    shared = MultiAgentMLP(4, 2, 3, centralized=centralized, share_params=True, num_cells=[8])
    separate = MultiAgentMLP(4, 2, 3, centralized=centralized, share_params=False, num_cells=[8])
    for one, many in zip(list(shared.net)[::2], list(separate.net)[::2], strict=True):
        many.weight.data[:], many.bias.data[:] = one.weight.T, one.bias
    x = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(separate(x), shared(x))


def test_permuted_agents_have_permuted_outputs_with_shared_parameters():
    net, x, order = MultiAgentMLP(4, 2, 3, centralized=False, share_params=True), torch.randn(5, 3, 4), [2, 0, 1]
    torch.testing.assert_close(net(x[:, order]), net(x)[:, order])


def test_widths_are_found_out_and_norms_are_separate():
    net = MultiAgentMLP(None, 2, 3, centralized=True, share_params=False, num_cells=[8], norm_class=nn.LayerNorm)
    assert net(torch.zeros(5, 3, 4), torch.zeros(5, 3, 1)).shape == (5, 3, 2)
    assert net.net[0].in_features == 15
    assert sum(p.numel() for p in net.parameters()) == 3 * (15 * 8 + 8 + 2 * 8 + 8 * 2 + 2)
    orthogonal_init(net, gain=2.0)
    torch.testing.assert_close(net.net[0].weight[1].T @ net.net[0].weight[1], 4 * torch.eye(8))
    MultiAgentMLP(None, 2, 3, centralized=False, share_params=True)(torch.zeros(5, 3, 4))


def test_wrong_inputs_are_refused():
    net = MultiAgentMLP(4, 2, 3, centralized=False, share_params=True)
    with pytest.raises(ShapeError, match=r"expects inputs \[\*B, n_agents=3, features=4\], got \(5, 2, 4\)"):
        net(torch.zeros(5, 2, 4))
    with pytest.raises(ArgumentError, match="needs in_features"):
        MultiAgentConvNet(3, centralized=False, share_params=False)
    with pytest.raises(ShapeError, match=r"expects a state \[5, 7\] beside the values, got \(5, 6\)"):
        QMixer((7,), 8, 3)(torch.zeros(5, 3, 1), torch.zeros(5, 6))
    with pytest.raises(ShapeError, match=r"expects values \[\*B, 3, 1\], got \(5, 3\)"):
        VDNMixer(3)(torch.zeros(5, 3))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(5, 3, 4, dtype=torch.int64)], r"floating-point inputs, got torch.int64 \(5, 3, 4\): convert"),
        ([torch.zeros(5, 3, 2), torch.zeros(3, 2)], r"inputs \[.*features=4\], got \(5, 3, 2\), \(3, 2\)"),
        ([torch.zeros(5, 3, 2), torch.zeros(6, 3, 2)], r"inputs \[.*features=4\], got \(5, 3, 2\), \(6, 3, 2\)"),
        ([torch.zeros(()), torch.zeros(())], r"inputs \[.*features=4\], got \(\), \(\)"),
        ([], "MultiAgentMLP got no input"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(inputs, message):
    with pytest.raises(ShapeError, match=message):
        MultiAgentMLP(4, 2, 3, centralized=False, share_params=True)(*inputs)


def test_images_of_other_sizes_and_of_integers_are_refused():
    net = MultiAgentConvNet(3, centralized=False, share_params=True, num_cells=[4], kernel_sizes=3)
    with pytest.raises(ShapeError, match=r"expects inputs .*, got \(5, 3, 1, 9, 9\), \(5, 3, 1, 9, 8\)"):
        net(torch.zeros(5, 3, 1, 9, 9), torch.zeros(5, 3, 1, 9, 8))
    with pytest.raises(ShapeError, match=r"MultiAgentConvNet expects .* got torch.uint8 .*: scale them, as by x / 255"):
        net(torch.zeros(5, 3, 3, 9, 9, dtype=torch.uint8))
    assert net(torch.zeros(5, 3, 1, 9, 9), torch.zeros(5, 3, 2, 9, 9)).shape[:2] == (5, 3)


@pytest.mark.parametrize("options", [{"centralized": "yes"}, {"centralized": None}, {"share_params": "no"}])
@pytest.mark.parametrize("kind", [lambda **kw: MultiAgentMLP(4, 2, 3, **kw), lambda **kw: MultiAgentConvNet(3, **kw)])
def test_switches_are_bools(kind, options):
    ((name, value),) = options.items()
    with pytest.raises(ArgumentError, match=f"MultiAgent.*: {name} must be True or False, got {value!r}"):
        kind(**{"centralized": False, "share_params": True, **options})


@pytest.mark.parametrize(("centralized", "share_params"), CASES)
def test_another_width_is_refused_in_the_shapes_of_the_input(centralized, share_params):
    for (net, shape), (wrong, expected) in zip(
        nets(centralized, share_params), [((6,), "features=4"), ((3, 9, 9), "channels=2, height, width")], strict=True
    ):
        with pytest.raises(ShapeError) as caught:
            net(torch.zeros(5, 3, *wrong))
        assert str(caught.value).endswith(f"expects inputs [*B, n_agents=3, {expected}], got {(5, 3, *wrong)}")
        assert net(torch.zeros(5, 3, *shape)).shape[:2] == (5, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"state_shape": 8},
            r"QMixer got state_shape=8; it is the sizes of the state without the batch, such as \(8,\)",
        ),
        ({"state_shape": ()}, r"QMixer got state_shape=\(\); it is the sizes"),
        ({"state_shape": (-1,)}, "QMixer: state_shape must be at least 1, got -1"),
        ({"state_shape": (8,), "mixing_embed_dim": 0}, "QMixer: mixing_embed_dim must be at least 1, got 0"),
    ],
)
def test_sizes_of_a_mixer_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        QMixer(n_agents=3, **options)


def test_qmix_is_monotonic_in_the_value_of_each_agent():
    mixer = QMixer(state_shape=(2, 3), mixing_embed_dim=16, n_agents=4)
    values, state = torch.randn(64, 4, 1, requires_grad=True), torch.randn(64, 2, 3)
    (grad,) = torch.autograd.grad(mixer(values, state).sum(), values)
    assert (grad >= 0).all()
    assert (grad > 0).any(0).all()


def test_qmix_is_the_formula_of_the_paper():
    mixer = QMixer(state_shape=(5,), mixing_embed_dim=8, n_agents=3)
    values, state = torch.randn(3, 1), torch.randn(5)
    first, last = mixer.first_weight(state).reshape(3, 8).abs(), mixer.last_weight(state).abs()
    hidden = nn.functional.elu(values[:, 0] @ first + mixer.first_bias(state))
    torch.testing.assert_close(mixer(values, state), (hidden @ last + mixer.last_bias(state).squeeze()).reshape(1))


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
@pytest.mark.parametrize("sequences", [False, True])
def test_recurrent_agents_are_copies_of_one_module(kind, sequences):
    names = ["h", "c"] if kind is LSTMModule else ["h"]
    keys = {"in_keys": ["x", *names], "out_keys": ["out", *[("next", name) for name in names]]}
    team = kind(4, 5, num_layers=2, n_agents=3, **keys)
    cell = {"lstm": team.network} if kind is LSTMModule else {"gru": team.network}
    alone = kind(**cell, **keys)
    td = TensorDict(x=torch.randn(2, 7, 3, 4), is_init=torch.rand(2, 7, 1) < 0.3, batch_size=[2, 7])
    for state in team.states:
        assert state.shape == (3, 2, 5)
        td[state.name] = torch.randn(2, 7, 3, 2, 5)
    with set_recurrent_mode(sequences):
        out = team(td.clone())
        for agent in range(3):
            one = td.clone()
            for name in ("x", *names):
                one[name] = td[name][:, :, agent]
            one = alone(one)
            torch.testing.assert_close(out["out"][:, :, agent], one["out"])
            for name in names:
                torch.testing.assert_close(out["next", name][:, :, agent], one["next", name])
    with pytest.raises(ShapeError, match=r"n_agents=3 after the batch \[2, 7\]"):
        team(td.clone().set("x", torch.randn(2, 7, 2, 4)))


@pytest.mark.parametrize("net", [MultiAgentMLP, MultiAgentConvNet])
def test_the_older_spelling_of_centralized_is_answered(net):
    with pytest.raises(ArgumentError, match="'centralised': use centralized="):
        net(3, 2, 2, centralised=True, share_params=True)
