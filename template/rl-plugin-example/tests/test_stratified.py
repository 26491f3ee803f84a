"""The conformance check of the sampler, and values by hand."""

import torch
from rl.testing import check_sampler

from rl_plugin_example.stratified import StratifiedSampler


def test_the_sampler_keeps_the_protocol():
    check_sampler(StratifiedSampler)


def test_each_part_gives_one_row():
    index, _ = StratifiedSampler().sample(range(1000), 10, generator=torch.Generator().manual_seed(0))
    assert (index // 100).tolist() == list(range(10))


def test_rows_are_equally_likely():
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([StratifiedSampler().sample(range(7), 3, generator=generator)[0] for _ in range(7000)])
    assert (drawn.bincount(minlength=7) / 3000 - 1).abs().max() < 0.1
