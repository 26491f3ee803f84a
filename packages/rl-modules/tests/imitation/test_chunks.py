"""The action chunking transformer, and the diffusion policy against its formulas written out."""

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, set_interaction_type
from torch import nn

from rl.core.errors import ArgumentError, ShapeError, SpecError
from rl.core.specs import Bounded
from rl.modules import ACTModel, DiffusionActor
from rl.testing import check_module

OBS, ACT, CHUNK = 3, 2, 4


def model(**settings):
    sizes = {"hidden_dim": 16, "nheads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "latent_dim": 5}
    return ACTModel(OBS, ACT, CHUNK, **{**sizes, **settings})


def test_without_a_demonstration_the_style_is_zero():
    torch.manual_seed(0)
    net = model().eval()
    observation, chunk = torch.randn(6, 2, OBS), torch.randn(6, 2, CHUNK, ACT)
    action, mean, log_variance = net(observation)
    assert action.shape == (6, 2, CHUNK, ACT)
    assert not mean.any()
    assert not log_variance.any()
    with torch.no_grad():
        net.to_style.weight.zero_()
        net.to_style.bias.copy_(torch.tensor([0.0] * 5 + [-100.0] * 5))  # a demonstration that says: style 0
    torch.testing.assert_close(net(observation, chunk)[0], action)


def test_the_plan_depends_on_the_demonstration_through_the_style_alone():
    torch.manual_seed(0)
    net = model().eval()
    observation = torch.randn(OBS)
    chunk = torch.randn(CHUNK, ACT, requires_grad=True)
    action, mean, _ = net(observation, chunk)
    assert torch.autograd.grad(action.sum(), chunk, retain_graph=True)[0].abs().sum() > 0
    reached = torch.autograd.grad(mean.sum(), chunk)[0].abs().sum(-1) > 0
    assert reached.all()
    with torch.no_grad():
        net.from_style.weight.zero_()
    action, _, _ = net(observation, chunk)
    assert torch.autograd.grad(action.sum(), chunk)[0].abs().sum() == 0


def test_a_style_is_sampled_around_its_mean():
    torch.manual_seed(0)
    net = model(latent_dim=1).eval()
    seen = []
    net.from_style.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    _, mean, log_variance = net(torch.zeros(20_000, OBS), torch.zeros(20_000, CHUNK, ACT))
    style = torch.cat(seen)
    assert abs(style.mean() - mean[0]) < 0.05
    assert abs(style.std() - (log_variance[0] / 2).exp()) < 0.05


def test_bad_input_is_refused():
    with pytest.raises(ArgumentError, match="hidden_dim=18; it is even, and nheads=4 divides it"):
        model(hidden_dim=18, nheads=4)
    with pytest.raises(ShapeError, match=r"action_chunk \[2, 3, 2\], expected \[2, 4, 2\]"):
        model()(torch.zeros(2, OBS), torch.zeros(2, 3, ACT))
    with pytest.raises(ShapeError, match=r"observation \[2, 2\], expected \[\*B, 3\]"):
        model()(torch.zeros(2, 2))
    for options in ({"num_steps": 0}, {"sampling_steps": 200}, {"beta_end": 1.5}):
        with pytest.raises(ArgumentError, match="DiffusionActor"):
            DiffusionActor(ACT, OBS, **options)
    with pytest.raises(SpecError, match="DiffusionActor"):
        DiffusionActor(ACT, OBS, spec=Bounded(-1, 1, (3,)))
    with pytest.raises(ShapeError, match="a chunk of 4 actions"):
        DiffusionActor(ACT, OBS, chunk_size=CHUNK).module.add_noise(torch.zeros(5, ACT), torch.zeros(5).long())


class Known(nn.Module):
    """The noise of data that is the point `target`: what a perfect network would predict."""

    def __init__(self, kept, target):
        super().__init__()
        self.kept, self.target, self.steps = kept, target, []

    def forward(self, x):
        step = int(x[0, -1])
        self.steps.append(step)
        kept = self.kept[step]
        return (x[..., : self.target.numel()] - kept.sqrt() * self.target) / (1 - kept).sqrt()


@pytest.mark.parametrize("sampling_steps", [None, 1, 5, 10])
def test_a_perfect_network_gives_the_action(sampling_steps):
    target = torch.tensor([0.3, -0.6])
    actor = DiffusionActor(ACT, score_network=nn.Identity(), num_steps=10, sampling_steps=sampling_steps)
    actor.module.score_network = known = Known(actor.module.kept, target)
    found = actor(TensorDict(observation=torch.randn(5, OBS), batch_size=[5]))["action"]
    torch.testing.assert_close(found, target.expand(5, ACT))
    assert known.steps[0] == 9
    assert len(known.steps) == (10 if sampling_steps is None else sampling_steps)
    assert known.steps == sorted(known.steps, reverse=True)


def test_denoising_is_the_formula_of_the_paper():
    """Algorithm 2 of Ho et al., 2020, with the variance beta-tilde, written with alpha as there."""
    torch.manual_seed(0)
    actor = DiffusionActor(ACT, OBS, num_steps=7, num_cells=(8,))
    net, observation = actor.module.score_network, torch.randn(4, OBS)
    beta = torch.linspace(1e-3, 0.1, 7)
    alpha, bar = 1 - beta, (1 - beta).cumprod(0)
    torch.manual_seed(1)
    x = torch.randn(4, ACT)
    for t in range(6, -1, -1):
        noise = net(torch.cat((x, observation, torch.full((4, 1), float(t))), -1))
        x = (x - beta[t] / (1 - bar[t]).sqrt() * noise) / alpha[t].sqrt()
        if t:
            x = x + ((1 - bar[t - 1]) / (1 - bar[t]) * beta[t]).sqrt() * torch.randn(4, ACT)
    torch.manual_seed(1)
    with set_interaction_type(InteractionType.RANDOM):
        found = actor(TensorDict(observation=observation, batch_size=[4]))["action"]
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-5)


def test_few_steps_are_the_formula_of_the_paper():
    """Eq. 12 of Song et al., 2021, with sigma 0."""
    torch.manual_seed(0)
    actor = DiffusionActor(ACT, OBS, num_steps=9, sampling_steps=3, num_cells=(8,))
    net, observation = actor.module.score_network, torch.randn(4, OBS)
    bar = (1 - torch.linspace(1e-3, 0.1, 9)).cumprod(0)
    x = torch.zeros(4, ACT)
    for t, then in ((8, bar[4]), (4, bar[0]), (0, torch.tensor(1.0))):
        noise = net(torch.cat((x, observation, torch.full((4, 1), float(t))), -1))
        x = then.sqrt() * (x - (1 - bar[t]).sqrt() * noise) / bar[t].sqrt() + (1 - then).sqrt() * noise
    with set_interaction_type(InteractionType.DETERMINISTIC):
        found = actor(TensorDict(observation=observation, batch_size=[4]))["action"]
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-5)


def test_noise_is_added_to_scaled_actions():
    torch.manual_seed(0)
    spec = Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0]), dtype=torch.float64)
    actor = DiffusionActor(ACT, OBS, spec=spec, chunk_size=CHUNK, num_steps=20)
    action, t = torch.rand(6, CHUNK, ACT, dtype=torch.float64), torch.randint(20, (6,))
    noisy, noise = actor.module.add_noise(action, t)
    kept = (1 - torch.linspace(1e-3, 0.1, 20)).cumprod(0)[t].unsqueeze(-1)
    scaled = torch.stack((action[..., 0] / 2, action[..., 1] * 2 - 1), -1).float().flatten(1)
    torch.testing.assert_close(noisy, kept.sqrt() * scaled + (1 - kept).sqrt() * noise)
    out = actor(TensorDict(observation=torch.randn(6, OBS), batch_size=[6]))["action"]
    assert out.shape == (6, CHUNK, ACT)
    assert out.dtype == torch.float64
    assert bool((out >= spec.low).all() and (out <= spec.high).all())


@pytest.mark.parametrize("sampling_steps", [None, 5])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-4), (torch.bfloat16, 0.1)], ids=str)
def test_a_diffusion_policy_runs_in_the_dtype_of_its_network(dtype, tol, sampling_steps):
    torch.manual_seed(0)
    spec = Bounded(-2.0, 2.0, (ACT,))
    actor = DiffusionActor(ACT, OBS, spec=spec, num_steps=20, sampling_steps=sampling_steps, num_cells=(16,))
    other = copy.deepcopy(actor).to(dtype)
    td = TensorDict(observation=torch.randn(6, OBS), batch_size=[6])
    with set_interaction_type(InteractionType.DETERMINISTIC):
        expected, found = actor(td.clone())["action"], other(td.to(dtype))["action"]
    assert found.dtype is spec.dtype
    torch.testing.assert_close(found, expected, rtol=tol, atol=tol)
    torch.testing.assert_close(other.module.kept.float(), (1 - torch.linspace(1e-3, 0.1, 20)).cumprod(0))
    noisy, noise = other.module.add_noise(td["observation"][:, :ACT], torch.zeros(6).long())
    predicted = other.module.score_network(torch.cat((noisy, td["observation"].to(dtype), noisy[:, :1]), -1))
    assert predicted.dtype is noise.dtype is dtype


def test_acting_conforms_and_explores_by_its_type():
    actor = DiffusionActor(ACT, num_steps=5)
    td = TensorDict(observation=torch.randn(6, OBS), batch_size=[6])
    actor(td.clone())  # the lazy layer takes its width
    assert check_module(actor, td).not_exercised == []
    with set_interaction_type(InteractionType.DETERMINISTIC):
        assert torch.equal(actor(td.clone())["action"], actor(td.clone())["action"])
    with set_interaction_type(InteractionType.RANDOM):
        assert not torch.equal(actor(td.clone())["action"], actor(td.clone())["action"])
