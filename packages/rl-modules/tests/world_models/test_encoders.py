"""Encoders, decoders, policies and sizes of world models."""

import pytest
import torch
from torch import nn

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import (
    TDMPC2MLP,
    DreamerActor,
    DreamerV3Actor,
    DreamerV3Encoder,
    DreamerV3ImageDecoder,
    DreamerV3MLP,
    ObsDecoder,
    ObsEncoder,
    RSSMPosteriorV3,
    RSSMPriorV3,
    SimNorm,
    TDMPC2Actor,
    dreamer_v3_size,
    symlog,
)


def count(*modules):
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_the_model_of_a_million_has_the_parameters_of_the_official_one_on_walker():
    size, observation, action = dreamer_v3_size("1M"), 24, 6
    state = 32 * size.classes
    feature = size.deter + state
    encoder = DreamerV3Encoder(observation, units=size.units)
    widths = {"hidden_dim": size.hidden, "rnn_hidden_dim": size.deter, "num_classes": size.classes}
    prior = RSSMPriorV3(action_dim=action, **widths)
    posterior = RSSMPosteriorV3(**widths, obs_embed_dim=encoder.out_features)
    decoder = DreamerV3MLP(feature, observation, 3, size.units)
    reward, going = DreamerV3MLP(feature, 255, 1, size.units), DreamerV3MLP(feature, 1, 1, size.units)
    actor = DreamerV3Actor(feature, action, num_cells=size.units)
    critic = DreamerV3MLP(feature, 255, 3, size.units)
    assert count(encoder, prior, posterior, decoder, reward, going, actor, critic) == 640_867


def test_sizes_are_those_of_the_paper():
    assert [dreamer_v3_size(name).deter for name in ("12M", "25M", "50M", "100M", "200M", "400M")] == [
        2048,
        3072,
        4096,
        6144,
        8192,
        12288,
    ]
    with pytest.raises(ArgumentError, match="'1M'"):
        dreamer_v3_size("XL")


def test_vectors_are_squashed_and_images_are_centred():
    torch.manual_seed(0)
    encoder = DreamerV3Encoder(3, (2, 16, 32), depth=2, units=4, num_layers=1)
    vector = 100 * torch.randn(5, 3)
    pixels = torch.randint(256, (5, 2, 16, 32), dtype=torch.uint8)
    found = encoder(vector, pixels)
    assert found.shape == (5, encoder.out_features) == (5, 4 + 8 * 1 * 2)
    torch.testing.assert_close(found[:, :4], encoder.vector(symlog(vector)))
    torch.testing.assert_close(encoder(vector, pixels / 255), found)
    x = pixels / 255 - 0.5
    for conv, norm in ((encoder.image[4 * i], encoder.image[4 * i + 2]) for i in range(4)):
        x = nn.functional.max_pool2d(nn.functional.conv2d(x, conv.weight, conv.bias, padding=2), 2)
        x = x / (x.square().mean(1, keepdim=True) + 1e-4).sqrt() * norm.weight.view(-1, 1, 1)
        x = x * x.sigmoid()
    torch.testing.assert_close(found[:, 4:], x.flatten(1))
    with pytest.raises(ShapeError, match="vector before image"):
        encoder(vector)
    with pytest.raises(ArgumentError, match="multiples of 16"):
        DreamerV3Encoder(image_shape=(3, 60, 64))
    with pytest.raises(ArgumentError, match="vector_dim or image_shape"):
        DreamerV3Encoder()


def test_an_image_decoder_learns_images():
    torch.manual_seed(0)
    decoder = DreamerV3ImageDecoder(4, 8, (1, 16, 16), depth=4, units=4, num_blocks=4)
    state, belief = torch.randn(2, 3, 4), torch.randn(2, 3, 8)
    target = torch.rand(2, 3, 1, 16, 16).round()
    optimizer = torch.optim.Adam(decoder.parameters(), 0.01)
    errors = []
    for _ in range(60):
        error = (decoder(state, belief) - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.3 * errors[0]
    assert decoder(state, belief).shape == target.shape


def test_heads_start_with_zero_and_scales_are_bounded():
    assert not DreamerV3MLP(4, 255, num_cells=8, outscale=0.0)(torch.randn(3, 4)).any()
    actor = DreamerV3Actor(4, 2, num_cells=8)
    actor.net.output.weight.data *= 1e6
    loc, scale = actor(torch.randn(50, 4))
    assert loc.abs().max() <= 1
    assert scale.min() >= 0.1
    assert scale.max() <= 1
    logits = DreamerV3Actor(4, 5, discrete=True, num_cells=8)(1e6 * torch.randn(50, 4))
    assert logits.exp().min() >= 0.01 / 5 - 1e-6
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(50))


def test_the_first_dreamer_encodes_and_decodes_images_of_its_paper():
    encoder, decoder = ObsEncoder(channels=4, in_channels=3), ObsDecoder(channels=4, latent_dim=7)
    lazy, lazy_decoder = ObsEncoder(channels=4), ObsDecoder(channels=4)
    images = torch.rand(2, 3, 3, 64, 64)
    assert encoder(images).shape == lazy(images).shape == (2, 3, 4 * 8 * 2 * 2)
    torch.testing.assert_close(encoder(images)[1, 2], encoder(images[1, 2]))
    state, belief = torch.randn(2, 3, 4), torch.randn(2, 3, 3)
    assert decoder(state, belief).shape == lazy_decoder(state, belief).shape == images.shape
    assert [conv.in_channels for conv in decoder.decoder[::2]] == [128, 16, 8, 4]
    loc, scale = DreamerActor(2, depth=1, num_cells=8, std_min_val=0.1)(state, belief)
    assert loc.shape == scale.shape == (2, 3, 2)
    assert (scale > 0.1).all()
    with pytest.raises(ArgumentError, match="kernel_sizes"):
        ObsDecoder(kernel_sizes=[4])
    with pytest.raises(ArgumentError, match="num_layers"):
        ObsEncoder(num_layers=0)


def test_simplicial_normalization_is_a_softmax_of_each_group():
    x = torch.randn(3, 16)
    found = SimNorm(8)(x)
    torch.testing.assert_close(found[:, 8:], x[:, 8:].softmax(-1))
    torch.testing.assert_close(found.sum(-1), torch.full((3,), 2.0))
    with pytest.raises(ShapeError, match="pass a multiple"):
        SimNorm(8)(x[:, :9])


def test_networks_of_td_mpc2():
    torch.manual_seed(0)
    critic = TDMPC2MLP(6, 101, [8, 8], dropout=0.01, zero_last=True)
    assert not critic(torch.randn(3, 4), torch.randn(3, 2)).any()
    assert sum(isinstance(layer, nn.Dropout) for layer in critic.net) == 1
    actor = TDMPC2Actor(8, 2, [16])
    for factor, bound in ((1e6, 2.0), (-1e6, -10.0)):
        actor.net.net[-1].bias.data = torch.full((4,), factor)
        torch.testing.assert_close(actor(torch.randn(3, 8))[1].log(), torch.full((3, 2), bound))
