"""Chunked log-probabilities and entropies: values, gradients, memory; the scorer of a causal model."""

from importlib.util import find_spec

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rl.core.errors import ArgumentError, ShapeError
from rl.core.testing import check_module
from rl.llm import TokenScorer, linear_log_probs, log_probs_of_logits, token_positions

CHUNKS = [(1, 1), (3, 4), (100, 100), (2, 7)]


def reference(logits, tokens, temperature=1.0):
    log_p = (logits / temperature).log_softmax(-1)
    entropy = -(log_p.exp() * log_p.masked_fill(log_p == -float("inf"), 0)).sum(-1)
    return log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), entropy


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_of_logits(chunk, temperature):
    torch.manual_seed(0)
    logits = (30 * torch.randn(2, 5, 11, dtype=torch.float64)).requires_grad_()
    tokens = torch.randint(11, (2, 5))
    found = log_probs_of_logits(logits, tokens, temperature=temperature, chunk=chunk)
    expected = reference(logits, tokens, temperature)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(f.sum(), logits, retain_graph=True)[0] for f in found]
    wanted = [torch.autograd.grad(f.sum(), logits, retain_graph=True)[0] for f in expected]
    torch.testing.assert_close(grads, wanted)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_of_an_output_layer(chunk, bias):
    torch.manual_seed(0)
    kind = {"dtype": torch.float64, "requires_grad": True}
    hidden, weight = torch.randn(2, 5, 3, **kind), torch.randn(11, 3, **kind)
    inputs = [hidden, weight, *([torch.randn(11, **kind)] if bias else [])]
    tokens = torch.randint(11, (2, 5))
    found = linear_log_probs(hidden, weight, tokens, bias=inputs[2] if bias else None, temperature=0.9, chunk=chunk)
    expected = reference(nn.functional.linear(*inputs), tokens, 0.9)
    torch.testing.assert_close(found, expected)
    scale = torch.randn(2, 2, 5, dtype=torch.float64)
    grads = torch.autograd.grad((torch.stack(found) * scale).sum(), inputs)
    torch.testing.assert_close(grads, torch.autograd.grad((torch.stack(expected) * scale).sum(), inputs))


def test_finite_differences():
    torch.manual_seed(0)
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda x: log_probs_of_logits(x, tokens, chunk=(2, 2)), logits)


def test_half_precision_is_summed_in_single_precision():
    torch.manual_seed(0)
    logits = torch.randn(1, 4, 5000).bfloat16().requires_grad_()
    tokens = torch.randint(5000, (1, 4))
    log_prob, entropy = log_probs_of_logits(logits, tokens)
    assert log_prob.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close((log_prob, entropy), reference(logits.float(), tokens), rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(log_prob.sum(), logits)
    assert grad.dtype == torch.bfloat16


def test_entries_that_are_masked_out_have_no_part():
    logits = torch.tensor([[-float("inf"), 0.0, 0.0, -float("inf")]], requires_grad=True)
    log_prob, entropy = log_probs_of_logits(logits, torch.tensor([2]), chunk=(1, 1))
    torch.testing.assert_close(entropy.exp(), torch.tensor([2.0]))
    (grad,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)
    torch.testing.assert_close(grad, torch.tensor([[0.0, -0.5, 0.5, 0.0]]))


class Sizes(TorchDispatchMode):
    """Number of elements of the largest tensor that an operator returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, torch.Tensor):
                self.largest = max(self.largest, one.numel())
        return out


def test_no_tensor_of_the_size_of_all_logits_exists_with_an_output_layer():
    rows, width, vocabulary = 64, 4, 512
    hidden = torch.randn(1, rows, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    with Sizes() as sizes:
        log_prob, entropy = linear_log_probs(hidden, weight, torch.zeros(1, rows, dtype=torch.int64), chunk=(8, 128))
        (log_prob.sum() + entropy.sum()).backward()
    assert sizes.largest == vocabulary * width < rows * vocabulary  # the gradient of the weight; chunks have 8 * 128


def test_no_copy_of_the_logits_is_kept_for_the_gradient():
    saved = []
    logits = torch.randn(1, 64, 512, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        log_probs_of_logits(logits, torch.zeros(1, 64, dtype=torch.int64), chunk=(8, 128))
    own = {logits.untyped_storage().data_ptr()}
    assert sum(x.numel() for x in saved if x.untyped_storage().data_ptr() not in own) == 3 * 64
    with Sizes() as sizes, torch.no_grad():
        log_probs_of_logits(logits, torch.zeros(1, 64, dtype=torch.int64), chunk=(8, 128))
    assert sizes.largest == logits.numel()  # a view
    assert sizes.largest >= 8 * 128


class Causal(nn.Module):
    """One layer of causal attention with absolute positions; sequences are separated where positions start again."""

    def __init__(self, vocabulary=7, width=8, *, head=True):
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.head = head

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        steps = torch.arange(input_ids.shape[1])
        if position_ids is None:
            position_ids = steps.expand(input_ids.shape)
        x = self.embedding(input_ids) + self.position(position_ids)
        forbidden = steps.unsqueeze(-1) < steps  # the future
        forbidden = forbidden.expand(len(input_ids), -1, -1).clone()
        if attention_mask is None:
            start = (position_ids == 0).cumsum(-1)
            forbidden |= start.unsqueeze(-1) != start.unsqueeze(-2)
        else:
            forbidden |= ~attention_mask.bool().unsqueeze(-2)
        forbidden &= ~torch.eye(len(steps), dtype=torch.bool)
        out, _ = self.attention(x, x, x, attn_mask=forbidden.repeat_interleave(2, 0), need_weights=False)
        return self.lm_head(out) if self.head else out


def sequences():
    torch.manual_seed(0)
    return [torch.randint(7, (n,)) for n in (5, 2, 4)]


def padded(ones, left):
    width = max(map(len, ones)) + 2
    tokens = torch.full((len(ones), width), 6)
    mask = torch.zeros(len(ones), width, dtype=torch.bool)
    for row, one in enumerate(ones):
        where = slice(width - len(one), width) if left else slice(0, len(one))
        tokens[row, where], mask[row, where] = one, True
    return TensorDict({"tokens": {"full": tokens}, "masks": {"all_attention_mask": mask}}, batch_size=[len(ones)])


@pytest.mark.parametrize("form", ["right", "left", "packed"])
@pytest.mark.parametrize("layer", [True, False])
def test_padding_and_packing_change_nothing_with_absolute_positions(form, layer):
    """Left padding without position ids shifts positions (TRL #6800)."""
    torch.manual_seed(0)
    model = Causal(head=not layer).double()
    scorer = TokenScorer(model, model.lm_head if layer else None, chunk=(3, 4))
    ones = sequences()
    expected = [scorer(TensorDict({"tokens": {"full": one.unsqueeze(0)}}, batch_size=[1])) for one in ones]
    if form == "packed":
        index = torch.cat([torch.full((len(one),), i) for i, one in enumerate(ones)])
        td = TensorDict({"tokens": {"full": torch.cat(ones)[None], "sequence": index[None]}}, batch_size=[1])
        mask = torch.ones(1, len(index), dtype=torch.bool)
    else:
        td = padded(ones, form == "left")
        mask = td["masks", "all_attention_mask"]
    out = scorer(td)
    for key in (("log_probs", "full"), ("entropy", "full")):
        torch.testing.assert_close(out[key][mask], torch.cat([one[key][0] for one in expected]))
        assert out[key][~mask].eq(0).all()
    assert all(one["log_probs", "full"][0, 0] == 0 for one in expected)


def test_log_probabilities_are_those_of_the_token_given_those_before():
    torch.manual_seed(0)
    model, tokens = Causal().double(), torch.randint(7, (1, 5))
    out = TokenScorer(model, temperature=2.0)(TensorDict({"tokens": {"full": tokens}}, batch_size=[1]))
    logits = model(tokens)
    for t in range(1, 5):
        expected = (logits[0, t - 1] / 2).log_softmax(-1)[tokens[0, t]]
        torch.testing.assert_close(out["log_probs", "full"][0, t], expected)


def test_contract_and_refusals():
    td = padded(sequences(), left=True)
    check_module(TokenScorer(Causal()), td)
    check_module(TokenScorer(Causal(), entropy=False), td)
    with pytest.raises(ShapeError, match="logits must be"):
        log_probs_of_logits(torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(ShapeError, match="hidden must be"):
        linear_log_probs(torch.zeros(2, 3), torch.zeros(4, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="temperature must be above 0"):
        TokenScorer(Causal(), temperature=0)
    with pytest.raises(ShapeError, match="the model must return"):
        TokenScorer(nn.Flatten())(
            TensorDict({"tokens": {"full": torch.zeros(2, 3, dtype=torch.int64)}}, batch_size=[2])
        )


def test_positions_start_at_the_first_token():
    mask = torch.tensor([[False, False, True, True], [True, True, False, False]])
    assert token_positions(mask).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    index = torch.tensor([[9, 0, 0, 1], [0, 1, 5, 5]])
    assert token_positions(mask, index).tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["gpt2", "llama"])  # absolute and rotary positions
@pytest.mark.parametrize("form", ["left", "packed", "head"])
def test_models_of_hugging_face_score_padded_and_packed_rows_as_single_ones(name, form):
    import transformers

    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=7, n_positions=32, n_embd=8, n_layer=2, n_head=2)
        model = transformers.GPT2LMHeadModel(config).double().eval()
        inner = model.transformer
    else:
        sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=7, **sizes)).double().eval()
        inner = model.model
    ones, scorer = sequences(), TokenScorer(model)
    expected = [scorer(TensorDict({"tokens": {"full": one.unsqueeze(0)}}, batch_size=[1])) for one in ones]
    td = padded(ones, left=True)
    mask = td["masks", "all_attention_mask"]
    if form == "packed":
        index = torch.cat([torch.full((len(one),), i) for i, one in enumerate(ones)])
        td = TensorDict({"tokens": {"full": torch.cat(ones)[None], "sequence": index[None]}}, batch_size=[1])
        mask = torch.ones(1, len(index), dtype=torch.bool)
    out = (TokenScorer(inner, model.lm_head, chunk=(3, 4)) if form == "head" else scorer)(td)
    for key in (("log_probs", "full"), ("entropy", "full")):
        torch.testing.assert_close(out[key][mask], torch.cat([one[key][0] for one in expected]))
