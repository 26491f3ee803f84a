"""Segments, rollouts and their batches: round trips over random segmentations, equal losses of all views."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from rl.core.errors import ArgumentError, ShapeError
from rl.llm import (
    ROLES,
    DAPOLoss,
    GRPOLoss,
    GSPOLoss,
    LogProbs,
    Masks,
    Rollout,
    Segment,
    SFTLoss,
    Text,
    Tokens,
    TokenScorer,
    nested,
    packed,
    padded,
)

OFF_POLICY = pytest.mark.filterwarnings("ignore:.*in the first batch the log-ratio")
SEGMENTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), min_size=1, max_size=5), st.sampled_from(ROLES), st.booleans(), st.integers(0, 9)
    ),
    min_size=1,
    max_size=6,
)


def segment(tokens, role, sampled, version):
    if not sampled:
        return Segment.given(tokens, role=role)
    return Segment.sampled(tokens, [-0.1 * (1 + token) for token in tokens], version=version, role=role)


@given(SEGMENTS)
@settings(max_examples=60, deadline=None)
def test_a_rollout_returns_its_segments(descriptions):
    segments = [segment(*one) for one in descriptions]
    rollout = Rollout.of(segments)
    found = rollout.segments()
    assert [(s.tokens.tolist(), s.role, int(s.version)) for s in found] == [
        (tokens, role, version if sampled else -1) for tokens, role, sampled, version in descriptions
    ]
    assert [s.mask.tolist() for s in found] == [s.mask.tolist() for s in segments]
    torch.testing.assert_close(torch.cat([s.log_prob for s in found]), rollout.log_prob)
    assert torch.cat([rollout.prompt, rollout.response]).tolist() == rollout.tokens.tolist()
    assert not rollout.mask[: len(rollout.prompt)].any()


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.sampled_from(["right", "left"]))
@settings(max_examples=40, deadline=None)
def test_batches_hold_the_tokens_of_the_rollouts(descriptions, side):
    rollouts = [Rollout.of([segment(*one) for one in ones]) for ones in descriptions]
    score = torch.arange(len(rollouts), dtype=torch.float32).unsqueeze(-1)
    wide = padded(rollouts, pad_token=9, side=side, advantage=score)
    row = packed(rollouts, advantage=score)
    attention = wide["masks", "all_attention_mask"]
    for key, name in (
        (("tokens", "full"), "tokens"),
        (("masks", "all_assistant_mask"), "mask"),
        (("log_probs", "full"), "log_prob"),
        ("policy_version", "version"),
    ):
        expected = torch.cat([getattr(one, name) for one in rollouts])
        assert torch.equal(wide[key][attention], expected)
        assert torch.equal(row[key][0], expected)
    assert wide["tokens", "full"][~attention].eq(9).all()
    assert not wide["masks", "all_assistant_mask"][~attention].any()
    expected = torch.cat([torch.full((len(one.tokens), 1), float(i)) for i, one in enumerate(rollouts)])
    assert torch.equal(row["advantage"][0], expected)


def some_rollouts():
    torch.manual_seed(0)
    rollouts = []
    for length in (3, 1, 4, 2):
        turn = Segment.sampled(torch.randint(7, (length,)), -torch.rand(length), version=length)
        tool = Segment.given([5, 1], role="tool")
        rollouts.append(Rollout.of([Segment.given([1, 2], role="user"), turn, tool, turn]))
    return rollouts


@OFF_POLICY
@pytest.mark.parametrize("make", [lambda p: GRPOLoss(p, kl_to_ref_coeff=None), DAPOLoss, GSPOLoss, SFTLoss])
def test_padded_packed_and_nested_batches_have_equal_losses_and_gradients(make):
    rollouts, advantage = some_rollouts(), torch.randn(4, 1, dtype=torch.float64)
    torch.manual_seed(0)
    loss = make(TokenScorer(nn.Embedding(7, 7, dtype=torch.float64)))
    views = [
        padded(rollouts, advantage=advantage),
        padded(rollouts, side="left", pad_token=6, advantage=advantage),
        packed(rollouts, advantage=advantage),
        packed(rollouts, row_tokens=14, pad_token=6, advantage=advantage),
        nested(rollouts, advantage=advantage),
    ]
    outs = [loss(view) for view in views]
    grads = [torch.autograd.grad(out[loss.out_keys[0]], list(loss.parameters()))[0] for out in outs]
    for out, grad in zip(outs[1:], grads[1:], strict=True):
        torch.testing.assert_close(out, outs[0], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(grad, grads[0], rtol=1e-12, atol=1e-14)


@OFF_POLICY
@pytest.mark.parametrize("view", [padded, nested, partial(packed, row_tokens=14)])
def test_micro_batches_of_each_view_add_up(view):
    rollouts, advantage = some_rollouts(), torch.randn(4, 1, dtype=torch.float64)
    loss = DAPOLoss(TokenScorer(nn.Embedding(7, 7, dtype=torch.float64)))
    batch = view(rollouts, advantage=advantage)
    parts = [loss(one)["loss_objective"] for one in loss.normalize(batch).split(1)]
    torch.testing.assert_close(sum(parts), loss(batch)["loss_objective"], rtol=1e-12, atol=1e-14)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(9, 20))
@settings(max_examples=50, deadline=None)
def test_rows_hold_each_rollout_once_and_whole(sizes, row_tokens):
    rollouts = [Rollout.of([Segment.given(range(i, i + size), role="user")]) for i, size in enumerate(sizes)]
    batch = packed(rollouts, row_tokens=row_tokens)
    index, tokens = batch["tokens", "sequence"], batch["tokens", "full"]
    assert index.shape[1] <= row_tokens
    assert torch.equal(batch["masks", "all_attention_mask"], index >= 0)
    for i, one in enumerate(rollouts):
        rows, where = (index == i).nonzero(as_tuple=True)
        assert len(rows.unique()) == 1
        assert where.tolist() == list(range(int(where[0]), int(where[0]) + len(one.tokens)))
        assert tokens[index == i].tolist() == one.tokens.tolist()
    full = row_tokens - (index >= 0).sum(-1)
    assert (full < 9).sum() >= len(index) - 1  # at most one row has space for every rollout


def test_a_rollout_grows_without_changing_its_tokens():
    first = Rollout.of([Segment.given([1, 2], role="user")])
    second = first.append(Segment.sampled([3, 4], [-0.1, -0.2], version=7), Segment.given([5], role="tool"))
    assert second.tokens.tolist() == [1, 2, 3, 4, 5]
    assert second.version.tolist() == [-1, -1, 7, 7, -1]
    assert first.tokens.tolist() == [1, 2]


def test_a_response_of_two_policies_has_two_versions():
    rollout = Rollout.of([Segment.sampled([3], [-0.1], version=4), Segment.sampled([4], [-0.2], version=5)])
    assert padded([rollout])["policy_version"].tolist() == [[4, 5]]


class Letters:
    """Tokenizer of letters; `encode` is not called."""

    chat_template, eos_token_id = None, None

    def decode(self, token_ids):
        return "".join("abcdefg"[token] for token in token_ids)


def test_text_is_a_view_of_the_tokens():
    rollout = Rollout.of([Segment.given([1, 2], role="user"), Segment.sampled([3, 0], [-0.1, -0.2], version=0)])
    text = Text.of(rollout, Letters())
    assert (text.prompt, text.response, text.full) == ("bc", "da", "bcda")
    tokens, masks, log_probs = Tokens.of(rollout), Masks.of(rollout), LogProbs.of(rollout)
    assert (tokens.prompt.tolist(), tokens.response.tolist(), tokens.full.tolist()) == ([1, 2], [3, 0], [1, 2, 3, 0])
    assert masks.all_assistant_mask.tolist() == [False, False, True, True]
    assert masks.all_attention_mask.all()
    torch.testing.assert_close(log_probs.response, torch.tensor([-0.1, -0.2]))
    with pytest.raises(ArgumentError, match="part must be"):
        rollout.text(Letters(), part="answer")


def test_batches_store_and_index_as_tensordicts():
    batch = padded(some_rollouts(), advantage=torch.zeros(4, 1))
    assert isinstance(batch, TensorDict)
    assert batch[torch.tensor([2, 0])]["tokens", "full"].shape == batch["tokens", "full"][:2].shape


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Segment.given("text", role="user"), ArgumentError),
        (lambda: Segment.given([1.5], role="user"), ShapeError),
        (lambda: Segment.given([1], role="person"), ArgumentError),
        (lambda: Segment.sampled([1, 2], [-0.1], version=0), ShapeError),
        (lambda: Segment.sampled([1], [-0.1], version=-1), ArgumentError),
        (lambda: Rollout.of([Segment.given([], role="user")]), ArgumentError),
        (lambda: padded([]), ArgumentError),
        (lambda: padded(some_rollouts(), side="top"), ArgumentError),
        (lambda: padded(some_rollouts(), advantage=torch.zeros(4)), ShapeError),
        (lambda: packed(some_rollouts(), advantage=torch.zeros(3, 1)), ShapeError),
        (lambda: packed(some_rollouts(), row_tokens=3), ArgumentError),
    ],
)
def test_refusals(call, error):
    with pytest.raises(error):
        call()
