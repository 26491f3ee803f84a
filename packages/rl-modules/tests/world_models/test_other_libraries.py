"""Parts of world models against numbers of TorchRL and sheeprl on the same weights, see `dreamer_fixtures.py`."""

import json
from pathlib import Path

import pytest
import torch

from rl.core.specs import Bounded
from rl.modules import (
    RSSMPosterior,
    RSSMPrior,
    RSSMPriorV3,
    TwoHotCategorical,
    symexp,
    symexp_bins,
    symlog,
    two_hot_cross_entropy,
    two_hot_decode,
)

DATA = json.loads((Path(__file__).parent / "dreamer.json").read_text())
close = torch.testing.assert_close


def loaded(module, weights):
    """The module with the weights of the other library, which has the same names."""
    return module.load_state_dict({name: torch.tensor(weight) for name, weight in weights.items()}), module


def test_symlog_and_symexp_are_those_of_torchrl():
    data = DATA["symlog"]
    x = torch.tensor(data["x"])
    close(symlog(x), torch.tensor(data["symlog"]))
    close(symexp(x.clamp(-9, 9)), torch.tensor(data["symexp"]))


@pytest.mark.parametrize("library", ["torchrl", "sheeprl"])
def test_two_hot_means_and_losses_are_those_of_both(library):
    data = DATA["two_hot"]
    logits, x = torch.tensor(data["logits"]), torch.tensor(data["x"])
    bins = symexp_bins(logits.shape[-1])
    close(two_hot_decode(logits, bins).flatten(), torch.tensor(data[library]["mean"]), rtol=1e-4, atol=1e-3)
    close(two_hot_cross_entropy(logits, x, bins).flatten(), torch.tensor(data[library]["loss"]))
    close(-TwoHotCategorical(logits).log_prob(x.unsqueeze(-1)), torch.tensor(data[library]["loss"]))


def test_the_recurrent_model_of_dreamer_is_that_of_torchrl():
    data = DATA["rssm"]
    _, prior = loaded(RSSMPrior(Bounded(-1, 1, (2,)), 4, 4, 3, action_dim=2), data["prior"])
    _, posterior = loaded(RSSMPosterior(4, 3, rnn_hidden_dim=4, obs_embed_dim=5), data["posterior"])
    state, belief, action, embedding, noise = map(torch.tensor, data["inputs"])
    before = prior(state, belief, action, noise)
    for ours, theirs in zip(before, data["prior_out"], strict=True):
        close(ours, torch.tensor(theirs))
    for ours, theirs in zip(posterior(before[3], embedding, noise), data["posterior_out"], strict=True):
        close(ours, torch.tensor(theirs))


def test_the_block_recurrence_of_dreamer_v3_is_that_of_torchrl():
    """Actions beyond 1 are scaled, and the gates have the same order."""
    data = DATA["block_gru"]
    prior = RSSMPriorV3(action_dim=2, hidden_dim=4, rnn_hidden_dim=8, num_categoricals=2, num_classes=3, num_blocks=2)
    loaded(prior.rnn, data["weights"])
    state, belief, action = map(torch.tensor, data["inputs"])
    close(prior.recur(state, belief, prior.embed(action)), torch.tensor(data["out"]))
