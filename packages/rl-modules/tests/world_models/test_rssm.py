"""Recurrent state-space models: equations, rollouts along sequences, and the scan against the loop."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.specs import Bounded
from rl.modules import (
    BlockGRU,
    BlockLinear,
    RMSNorm,
    RSSMPosterior,
    RSSMPosteriorV3,
    RSSMPrior,
    RSSMPriorV3,
    RSSMRollout,
    RSSMRolloutV3,
)
from rl.modules.models import model_based

SPEC = Bounded(-1, 1, (2,))
READS = ["state", "belief", "action"]
SEEN = [("next", "belief"), ("next", "encoded_latents")]


def below_next(*names):
    return [name if name == "_" else ("next", name) for name in names]


def gaussian(*, noise=False, lazy=False, **options):
    torch.manual_seed(0)
    more = (["prior_noise"], ["posterior_noise"]) if noise else ([], [])
    widths = {} if lazy else {"rnn_hidden_dim": 6, "obs_embed_dim": 5}
    prior = RSSMPrior(SPEC, 8, 6, 3, action_dim=None if lazy else 2)
    out = below_next("prior_mean", "prior_std", "prior_state", "belief")
    posterior = RSSMPosterior(8, 3, **widths)
    return RSSMRollout(
        TensorDictModule(prior, [*READS, *more[0]], out),
        TensorDictModule(posterior, [*SEEN, *more[1]], below_next("posterior_mean", "posterior_std", "state")),
        **options,
    )


def categorical(*, noise=False, **options):
    torch.manual_seed(0)
    more = (["prior_noise"], ["posterior_noise"]) if noise else ([], [])
    prior = RSSMPriorV3(action_dim=2, hidden_dim=8, rnn_hidden_dim=6, num_categoricals=3, num_classes=4, num_blocks=2)
    posterior = RSSMPosteriorV3(8, 3, 4, rnn_hidden_dim=6, obs_embed_dim=5)
    return RSSMRolloutV3(
        TensorDictModule(prior, [*READS, *more[0]], below_next("prior_logits", "_", "belief")),
        TensorDictModule(posterior, [*SEEN, *more[1]], below_next("posterior_logits", "state")),
        **options,
    )


KINDS = {"gaussian": (gaussian, (3,)), "categorical": (categorical, (3, 4))}
every = pytest.mark.parametrize("kind", KINDS)


def batch(kind, size=(4, 7), dtype=torch.float32, resets=True):
    torch.manual_seed(1)
    shape = KINDS[kind][1]
    width = torch.Size(shape).numel()
    data = {"state": torch.randn(*size, width), "belief": torch.randn(*size, 6), "action": 3 * torch.randn(*size, 2)}
    data = {key: value.to(dtype) for key, value in data.items()}
    for name in ("prior_noise", "posterior_noise"):
        data[name] = torch.empty(*size, *shape, dtype=dtype).exponential_()
    if resets:
        data["is_init"] = torch.rand(*size, 1) < 0.3
    after = TensorDict(encoded_latents=torch.randn(*size, 5, dtype=dtype), batch_size=size)
    return TensorDict({**data, "next": after}, batch_size=size)


def differentiable(td):
    return {key: leaf for key, leaf in td.items(True, True) if leaf.requires_grad}


def gradients(module, out):
    total = sum(
        (leaf * torch.linspace(-1, 1, leaf.numel()).view_as(leaf)).sum() for leaf in differentiable(out).values()
    )
    return torch.autograd.grad(total, list(module.parameters()), allow_unused=True)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("size", [(4, 7), (7,), (2, 2, 1)])
@every
def test_the_scan_is_the_loop_forward_and_backward(kind, size, resets):
    make, _ = KINDS[kind]
    loop, scan, td = make(), make(use_scan=True), batch(kind, size, resets=resets)
    found = []
    for module in (loop, scan):
        torch.manual_seed(2)  # both draw the same noise
        out = module(td.clone())
        found.append((out, gradients(module, out)))
    (first, first_grads), (second, second_grads) = found
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    assert len(differentiable(first)) == len(differentiable(second)) >= 4
    torch.testing.assert_close(second, first, atol=1e-5, rtol=1e-5)
    for one, other in zip(second_grads, first_grads, strict=True):
        # of the largest element: small ones are sums of large numbers that cancel
        torch.testing.assert_close(one, other, atol=1e-5 * max(1.0, float(other.abs().max())), rtol=1e-5)


@every
def test_inputs_have_the_same_gradient_and_a_second_backward_pass_too(kind):
    make, _ = KINDS[kind]
    found = []
    for scan in (False, True):
        module, td = make(noise=True, use_scan=scan).double(), batch(kind, dtype=torch.float64)
        leaves = [td["state"], td["belief"], td["action"], td["next", "encoded_latents"]]
        for leaf in leaves:
            leaf.requires_grad_()
        total = sum(leaf.square().sum() for leaf in differentiable(module(td)).values())
        grads = torch.autograd.grad(total, leaves, retain_graph=True)
        total.backward(retain_graph=True)
        once = [parameter.grad.clone() for parameter in module.parameters()]
        total.backward()
        torch.testing.assert_close([one.grad for one in module.parameters()], [2 * one for one in once])
        found.append((grads, once))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
@every
def test_compiled_rollouts_are_the_eager_ones(kind, scan):
    torch.compiler.reset()
    make, _ = KINDS[kind]
    module, td = make(noise=True, use_scan=scan), batch(kind, (2, 3))
    expected = module(td.clone())
    found = torch.compile(module, backend="aot_eager")(td.clone())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(module, found), gradients(module, expected), atol=1e-5, rtol=1e-5)


def test_a_compiled_step_is_the_step():
    torch.compiler.reset()
    module, td = gaussian(noise=True, compile_step=True, compile_backend="eager"), batch("gaussian", (2, 3))
    torch.testing.assert_close(module(td.clone()), gaussian(noise=True)(td.clone()))


@every
def test_states_go_from_step_to_step_and_restart_in_the_middle(kind):
    make, _ = KINDS[kind]
    module, td = make(noise=True, use_scan=True), batch(kind, (1, 6), resets=False)
    td["is_init"] = torch.tensor([False, False, False, True, False, False]).view(1, 6, 1)
    out = module(td.clone())
    prior, posterior = module.rssm_prior.module, module.rssm_posterior.module
    state, belief = td["state"][0, 0], td["belief"][0, 0]
    for t in range(6):
        action = td["action"][0, t]
        if t == 3:
            state, belief = torch.zeros_like(state), torch.zeros_like(belief)
            action = torch.zeros_like(action) if kind == "categorical" else action
        torch.testing.assert_close(out["state"][0, t], state)
        torch.testing.assert_close(out["belief"][0, t], belief)
        *_, belief = prior(state, belief, action, td["prior_noise"][0, t])
        *_, state = posterior(belief, td["next", "encoded_latents"][0, t], td["posterior_noise"][0, t])
        torch.testing.assert_close(out["next", "belief"][0, t], belief)
        torch.testing.assert_close(out["next", "state"][0, t], state)


def test_pitfall_3_the_action_before_a_first_step_is_reset():
    module, td = categorical(noise=True), batch("categorical", (2, 4), resets=False)
    td["is_init"] = torch.zeros(2, 4, 1, dtype=torch.bool)
    td["is_init"][:, 2] = True
    for scan in (False, True):
        module.use_scan = scan
        first = module(td.clone())
        other = td.clone()
        other["action"][:, 2] = 9.0
        torch.testing.assert_close(module(other)["next"], first["next"])
        assert not first["action"][:, 2].any()


def test_widths_are_found_out_at_the_first_call_of_either_form():
    for scan in (False, True):
        module = gaussian(lazy=True, use_scan=scan)
        module(batch("gaussian"))
        shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        assert shapes == {name: parameter.shape for name, parameter in gaussian().named_parameters()}


def test_the_gaussian_step_is_that_of_torch_layers():
    prior, posterior = RSSMPrior(SPEC, 8, 6, 3, action_dim=2), RSSMPosterior(8, 3, rnn_hidden_dim=6, obs_embed_dim=5)
    state, belief, action, seen = torch.randn(4, 3), torch.randn(4, 6), torch.randn(4, 2), torch.randn(4, 5)
    cell = nn.GRUCell(8, 6)
    cell.load_state_dict(prior.rnn.state_dict())
    weight, bias = prior.action_state_projector[0].parameters()
    hidden = nn.functional.elu(torch.cat((state, action), -1) @ weight.T + bias)
    after = cell(hidden, belief)
    mean, std, sample, found = prior(state, belief, action, torch.ones(4, 3))
    torch.testing.assert_close(found, after)
    raw = prior.rnn_to_prior_projector[2](nn.functional.elu(prior.rnn_to_prior_projector[0](after)))
    torch.testing.assert_close(mean, raw[:, :3])
    torch.testing.assert_close(std, nn.functional.softplus(raw[:, 3:]).clamp_min(0.1))
    torch.testing.assert_close(sample, mean + std)
    mean, std, _ = posterior(after, seen, torch.zeros(4, 3))
    raw = nn.Sequential(*posterior.obs_rnn_to_post_projector[:3])(torch.cat((after, seen), -1))
    torch.testing.assert_close(mean, raw[:, :3])
    torch.testing.assert_close(std, nn.functional.softplus(raw[:, 3:]).clamp_min(0.1))


def test_a_block_layer_is_a_dense_one_with_a_mask():
    layer = BlockLinear(6, 9, 3).double()
    dense = torch.block_diag(*layer.weight)
    x = torch.randn(4, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ dense + layer.bias)


def test_the_block_gru_is_the_equation_with_dense_masks():
    torch.manual_seed(0)
    core = BlockGRU(5, 2, 4, 6, num_blocks=2, num_layers=1).double()
    state, belief, action = (torch.randn(3, width, dtype=torch.float64) for width in (5, 6, 2))
    action = 4 * action
    scaled = action / action.abs().clamp_min(1)
    projected = core.belief_projection(belief), core.state_projection(state), core.action_projection(scaled)
    shared = torch.cat(projected, -1)
    weight, gate_weight = core.hidden_layers[0].weight, core.gates.weight
    hidden = []
    for block in range(2):
        x = torch.cat((belief[:, 3 * block : 3 * block + 3], shared), -1)
        hidden.append(x @ weight[block])
    hidden = torch.cat(hidden, -1) + core.hidden_layers[0].bias
    hidden = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-4).sqrt()
    hidden = hidden * hidden.sigmoid()
    expected = []
    for block in range(2):
        bias = core.gates.bias[9 * block : 9 * block + 9]
        gates = hidden[:, 3 * block : 3 * block + 3] @ gate_weight[block] + bias
        reset, candidate, update = gates.split(3, -1)
        update = (update - 1).sigmoid()
        old = belief[:, 3 * block : 3 * block + 3]
        expected.append(update * (reset.sigmoid() * candidate).tanh() + (1 - update) * old)
    torch.testing.assert_close(core(state, belief, core.embed(action)), torch.cat(expected, -1))


def test_the_scale_of_actions_has_no_gradient():
    core = BlockGRU(5, 2, 4, 6, num_blocks=2)
    action = torch.tensor([[4.0, 0.5]], requires_grad=True)
    core.action_projection = nn.Identity()
    torch.testing.assert_close(core.embed(action), torch.tensor([[1.0, 0.5]]))
    torch.testing.assert_close(torch.autograd.grad(core.embed(action).sum(), action)[0], torch.tensor([[0.25, 1.0]]))


def test_pitfall_3_weights_of_blocks_have_the_fan_in_of_the_layer_and_the_norm_has_no_offset():
    torch.manual_seed(0)
    for layer in (BlockLinear(512, 512, 8), RSSMPosteriorV3(8, 2, 64, rnn_hidden_dim=256, obs_embed_dim=256)._first):
        assert layer.weight.std().item() == pytest.approx(1 / 512**0.5, rel=0.03)
    norm = RMSNorm(4)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    x = torch.randn(3, 4) + 5
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt())
    image = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(RMSNorm(4, dim=-3)(image), norm(image.movedim(1, -1)).movedim(-1, 1))


def test_samples_of_the_categorical_state_are_mixed_and_logits_are_not():
    prior = RSSMPriorV3(action_dim=1, hidden_dim=8, rnn_hidden_dim=8, num_categoricals=1, num_classes=2, unimix=0.5)
    output = prior.rnn_to_prior_projector[1]
    output.weight.data.zero_()
    output.bias.data = torch.tensor([0.0, 50.0])
    torch.manual_seed(0)
    logits, state, _ = prior(torch.zeros(4000, 2), torch.zeros(4000, 8), torch.zeros(4000, 1))
    assert logits[0, 0].tolist() == [0.0, 50.0]
    assert abs(state[:, 0].mean().item() - 0.25) < 0.03


def test_misuse_is_refused_with_the_remedy():
    plain = TensorDictModule(nn.Identity(), READS, below_next("prior_mean", "prior_std", "belief"))
    good = gaussian().rssm_posterior
    with pytest.raises(ContractError, match="use_scan=False takes any module"):
        RSSMRollout(plain, good, use_scan=True)
    with pytest.raises(ContractError, match="reads state, belief and action"):
        RSSMRollout(TensorDictModule(nn.Identity(), ["state"], ["x"]), good)
    with pytest.raises(ContractError, match="neither module writes"):
        RSSMRollout(TensorDictModule(nn.Identity(), READS, ["x"]), good)
    for module in (gaussian(), gaussian(use_scan=True)):
        with pytest.raises(ContractError, match="RSSMRollout reads"):
            module(batch("gaussian").exclude("action"))
        with pytest.raises(ShapeError, match="last dimension is time"):
            module(batch("gaussian")[0, 0])
    with pytest.raises(ArgumentError, match="action_spec or action_dim"):
        RSSMPriorV3()
    with pytest.raises(ArgumentError, match="pass multiples"):
        RSSMPriorV3(action_dim=1, rnn_hidden_dim=9)
    with pytest.raises(ArgumentError, match="rnn_hidden_dim and obs_embed_dim"):
        RSSMPosteriorV3()


def test_the_path_of_torchrl_has_the_same_objects():
    assert model_based.RSSMRollout is RSSMRollout
    assert model_based.RSSMPrior is RSSMPrior
