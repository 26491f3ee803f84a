"""Distributions in TorchRL's spelling; they need rl-modules."""

from __future__ import annotations

import pytest
import torch

from rl.core.errors import ArgumentError

modules = pytest.importorskip("rl.modules")

from rl.torchrl.modules import MaskedCategorical, MaskedOneHotCategorical  # noqa: E402  # after the skip


@pytest.mark.parametrize("name", ["logits", "probs"])
def test_indices_allow_what_they_name(name):
    parameters = torch.tensor([[0.5, 1.0, 2.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    indices = torch.tensor([[0, 3, -1], [2, 1, 0]])
    mask = torch.tensor([[True, False, False, True], [True, True, True, False]])
    ours = modules.MaskedCategorical(**{name: parameters}, mask=mask)
    for cls in (MaskedCategorical, MaskedOneHotCategorical):
        dist = cls(**{name: parameters}, indices=indices, padding_value=-1, neg_inf=-10.0)
        torch.testing.assert_close(dist.probs, ours.probs)
        value = torch.tensor([1, 3])
        value = value if cls is MaskedCategorical else torch.nn.functional.one_hot(value, 4)
        assert dist.log_prob(value).tolist() == [-10.0, -10.0]


def test_a_mask_or_indices_are_given():
    for given in ({}, {"mask": torch.ones(3, dtype=torch.bool), "indices": torch.tensor([0])}):
        with pytest.raises(ArgumentError, match="a mask or some indices must be provided, but not both"):
            MaskedCategorical(torch.zeros(3), **given)
