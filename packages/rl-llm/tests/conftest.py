"""Policies and batches of the tests."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.llm import TokenScorer

LENGTHS = (4, 1, 3, 2, 5, 3)  # trained tokens of each sequence
GROUPS = (0, 0, 1, 1, 1, 2)


class FreePolicy(nn.Module):
    """Policy whose log-probabilities and entropies are its parameters."""

    in_keys = (("tokens", "full"),)
    out_keys = (("log_probs", "full"), ("entropy", "full"))

    def __init__(self, log_prob, entropy=None):
        super().__init__()
        self.log_prob = nn.Parameter(log_prob.clone())
        self.entropy = nn.Parameter(torch.rand_like(log_prob) if entropy is None else entropy)

    def forward(self, td):
        return td.set(("log_probs", "full"), self.log_prob * 1).set(("entropy", "full"), self.entropy * 1)


def make_batch(seed=0, width=8, dtype=torch.float64):
    """A batch of six sequences: two tokens of prompt, trained tokens, padding with garbage."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*size):
        return torch.rand(*size, generator=generator, dtype=dtype)

    rows, steps = len(LENGTHS), torch.arange(width)
    lengths = torch.tensor(LENGTHS).unsqueeze(-1)
    mask = (steps >= 2) & (steps < 2 + lengths)
    attention = steps < 2 + lengths
    sampled = -2 * rand(rows, width) - 0.1
    td = TensorDict(
        {
            "tokens": {"full": torch.randint(7, (rows, width), generator=generator)},
            "masks": {"all_attention_mask": attention, "all_assistant_mask": mask},
            "log_probs": {"full": sampled.where(mask, float("nan"))},
            "old_log_probs": {"full": (sampled + 0.4 * rand(rows, width) - 0.2).where(mask, float("inf"))},
            "ref_log_probs": {"full": (sampled + 0.5 * rand(rows, width) - 0.2).where(mask, -float("inf"))},
            "teacher_log_probs": {"full": (sampled + 0.5 * rand(rows, width) - 0.3).where(mask, float("nan"))},
            "advantage": 2 * rand(rows, 1) - 1,
            "group": torch.tensor(GROUPS).unsqueeze(-1),
        },
        batch_size=[rows],
    )
    policy = FreePolicy((sampled + 1.2 * rand(rows, width) - 0.6).clamp(max=-0.01), rand(rows, width))
    return td, policy


@pytest.fixture
def data():
    """Batch of `make_batch`, and a policy."""
    return make_batch()


@pytest.fixture
def bigram():
    """Policy that sees the token before alone: packing and padding need no attention."""
    torch.manual_seed(0)
    return TokenScorer(nn.Embedding(7, 7, dtype=torch.float64))


@pytest.fixture(name="make_batch")
def _make_batch():
    return make_batch


@pytest.fixture
def free_policy():
    """The class `FreePolicy`."""
    return FreePolicy
