"""Policy losses against plain loops, finite differences and invariances."""

import itertools
import math

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, ShapeError, UnknownNameError
from rl.core.testing import check_loss
from rl.llm import (
    CISPO,
    GMPO,
    SAPO,
    CISPOLoss,
    Correction,
    DAPOLoss,
    DistillationLoss,
    DrGRPOLoss,
    GRPOLoss,
    GSPOLoss,
    PolicyLoss,
    PPOClip,
    Reinforce,
    RLOOLoss,
    TokenScorer,
    TVMask,
)
from rl.llm.functional import NORMALIZERS, RATIOS, Sequences, kl_estimate, token_weights
from rl.llm.surrogates import check_choices

# Most batches here are off-policy on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*in the first batch the log-ratio")

SURROGATES = {
    "ppo": PPOClip(),
    "clip-higher": PPOClip(0.2, 0.28),
    "dual": PPOClip(0.1, 0.15, dual=1.3),
    "unclipped": PPOClip(None, None),
    "cispo": CISPO(high=1.2, low=0.9),
    "sapo": SAPO(),
    "gmpo": GMPO(log_clip=0.2),
    "tv": TVMask(threshold=0.1, penalty=0.05),
    "reinforce": Reinforce(),
}


def fits(ratio, surrogate, normalizer):
    try:
        check_choices(ratio, surrogate, normalizer, "test")
    except ArgumentError:
        return False
    return True


CHOICES = [
    (ratio, name, normalizer)
    for ratio, name, normalizer in itertools.product(RATIOS, SURROGATES, NORMALIZERS)
    if fits(ratio, SURROGATES[name], normalizer)
]
every_choice = pytest.mark.parametrize(("ratio", "name", "normalizer"), CHOICES)


def rows_of(td, policy):
    """Lists of Python floats of the trained tokens of each sequence."""
    out = []
    for row in range(td.batch_size[0]):
        where = td["masks", "all_assistant_mask"][row].nonzero().flatten().tolist()
        out.append(
            {
                "lp": [policy.log_prob[row, t].item() for t in where],
                "old": [td["log_probs", "full"][row, t].item() for t in where],
                "A": td["advantage"][row].item(),
                "group": td["group"][row].item(),
                "where": where,
            }
        )
    return out


def clip(value, low, high):
    return min(max(value, low), high)


def surrogate_of_token(name, lp, x, old, advantage):
    """Loss of a token, its derivative by the log-ratio x, and by its own log-probability."""
    s, r = SURROGATES[name], math.exp(x)
    if isinstance(s, Reinforce):
        return -advantage * lp, 0.0, -advantage
    if isinstance(s, CISPO):
        weight = clip(r, s.low, s.high)
        return -weight * advantage * lp, 0.0, -weight * advantage
    if isinstance(s, SAPO):
        tau = s.tau_positive if advantage > 0 else s.tau_negative
        sigmoid = 1 / (1 + math.exp(-tau * (r - 1)))
        return -sigmoid * 4 / tau * advantage, -4 * sigmoid * (1 - sigmoid) * advantage * r, 0.0
    if isinstance(s, TVMask):
        moved = math.exp(lp) - math.exp(old)
        outside = (moved > s.threshold and advantage > 0) or (moved < -s.threshold and advantage < 0)
        kept = 0.0 if outside else r * advantage
        return -kept + s.penalty * x**2, -kept + 2 * s.penalty * x, 0.0
    low = -math.inf if s.low is None else 1 - s.low
    high = math.inf if s.high is None else 1 + s.high
    cut = clip(r, low, high) * advantage
    value = min(r * advantage, cut)
    slope = r * advantage if r * advantage <= cut else 0.0
    if s.dual is not None and advantage < 0 and value < s.dual * advantage:
        value, slope = s.dual * advantage, 0.0
    return -value, -slope, 0.0


def oracle(ratio, name, normalizer, rows, max_tokens):
    """Loss and its gradient by the log-probability of each token, in plain loops."""
    total, lengths = 0.0, [len(row["lp"]) for row in rows]
    tokens_of_prompt = {}
    for row, length in zip(rows, lengths, strict=True):
        tokens_of_prompt[row["group"]] = tokens_of_prompt.get(row["group"], 0) + length
    grads = []
    for row, length in zip(rows, lengths, strict=True):
        weight = {
            "tokens": 1 / sum(lengths),
            "sequence": 1 / (length * len(rows)),
            "constant": 1 / (len(rows) * max_tokens),
            "prompt": 1 / (tokens_of_prompt[row["group"]] * len(tokens_of_prompt)),
        }[normalizer]
        x = [lp - old for lp, old in zip(row["lp"], row["old"], strict=True)]
        grad, advantage = [0.0] * length, row["A"]
        if name == "gmpo":
            bound = SURROGATES[name].log_clip
            cut = [min(v, bound) if advantage > 0 else max(v, -bound) for v in x]
            mean = math.exp(sum(cut) / length)
            total += weight * length * -mean * advantage
            grads.append([weight * -mean * advantage * (c == v) for c, v in zip(cut, x, strict=True)])
            continue
        level = {"token": x, "product": [sum(x)] * length}.get(ratio, [sum(x) / length] * length)
        for t in range(length):
            value, by_x, by_lp = surrogate_of_token(name, row["lp"][t], level[t], row["old"][t], advantage)
            total += weight * value
            grad[t] += weight * by_lp
            for u in range(length):
                own = {"token": u == t, "sequence_token": u == t, "sequence": 1 / length, "product": 1.0}[ratio]
                grad[u] += weight * by_x * own
        grads.append(grad)
    return total, grads


@every_choice
def test_value_and_gradient_are_those_of_plain_loops(ratio, name, normalizer, data):
    td, policy = data
    loss = PolicyLoss(policy, SURROGATES[name], ratio=ratio, normalizer=normalizer, max_tokens=9)
    value = loss(td)["loss_objective"]
    rows = rows_of(td, policy)
    expected, grads = oracle(ratio, name, normalizer, rows, 9)
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    (found,) = torch.autograd.grad(value, policy.log_prob)
    wanted = torch.zeros_like(found)
    for row, one in enumerate(rows):
        wanted[row, one["where"]] = torch.tensor(grads[row], dtype=found.dtype)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("ratio", "name", "normalizer"),
    [one for one in CHOICES if one[0] != "sequence_token" and one[1] != "cispo"],  # a part of theirs is detached
)
def test_finite_differences(ratio, name, normalizer, data):
    td, policy = data
    loss = PolicyLoss(policy, SURROGATES[name], ratio=ratio, normalizer=normalizer, max_tokens=9)

    def value(log_prob):
        return torch.func.functional_call(loss, {"actor_network.log_prob": log_prob}, (td,))["loss_objective"]

    assert torch.autograd.gradcheck(value, policy.log_prob.detach().clone().requires_grad_(), eps=1e-7)


@every_choice
def test_on_policy_gradients_are_those_of_reinforce(ratio, name, normalizer, data):
    td, policy = data
    mask = td["masks", "all_assistant_mask"]
    with torch.no_grad():
        policy.log_prob.copy_(td["log_probs", "full"].where(mask, 0))

    def gradient(surrogate, level):
        loss = PolicyLoss(policy, surrogate, ratio=level, normalizer=normalizer, max_tokens=9)
        return torch.autograd.grad(loss(td)["loss_objective"], policy.log_prob)[0]

    wanted = gradient(Reinforce(), "token")
    if ratio == "product":  # the whole response is one action: its length is not divided out
        wanted = wanted * mask.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient(SURROGATES[name], ratio), wanted, rtol=1e-12, atol=1e-15)


def full(policy, name, ratio, normalizer):
    return PolicyLoss(
        policy,
        SURROGATES[name],
        ratio=ratio,
        normalizer=normalizer,
        max_tokens=9,
        kl_to_ref_coeff=0.1,
        entropy_coeff=0.01,
        correction=Correction("token", cap=1.5, reject="geometric", low=0.9, high=1.1, drift=0.3),
    )


def total(out):
    return sum(value for key, value in out.items() if key.startswith("loss"))


def with_bigram(td):
    """The batch without what a policy that is computed from tokens makes different: its entries are finite."""
    return td.apply(lambda x: x.nan_to_num(0.0, 0.0, 0.0) if x.is_floating_point() else x)


@every_choice
def test_padding_changes_nothing(ratio, name, normalizer, data, bigram):
    td, _ = data
    loss = full(bigram, name, ratio, normalizer)
    wide = td.clone()
    for key in (("tokens", "full"), *((k, "full") for k in ("log_probs", "old_log_probs", "ref_log_probs"))):
        garbage = torch.full((6, 3), 3) if key[0] == "tokens" else torch.full((6, 3), float("nan"), dtype=torch.float64)
        wide[key] = torch.cat([garbage, td[key], garbage], -1)
    for key in ("all_attention_mask", "all_assistant_mask"):
        wide["masks", key] = torch.nn.functional.pad(td["masks", key], (3, 3))
    assert_same(loss, td, loss, wide)


def assert_same(loss, td, other, td2):
    one, two = loss(td), other(td2)
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
    for p, q in zip(
        torch.autograd.grad(total(one), list(loss.parameters())),
        torch.autograd.grad(total(two), list(other.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


@every_choice
def test_permutation_changes_nothing(ratio, name, normalizer, data, bigram):
    td, _ = data
    loss = full(bigram, name, ratio, normalizer)
    assert_same(loss, td, loss, td[torch.tensor([3, 1, 5, 0, 4, 2])])


def packed(td):
    """The batch as one row without padding, with values of sequences at each token."""
    keep = td["masks", "all_attention_mask"]
    rows = torch.arange(td.batch_size[0]).unsqueeze(-1).expand(keep.shape)
    row = TensorDict({}, batch_size=[1])
    for key in td.keys(include_nested=True, leaves_only=True):
        value = td[key]
        wide = value.unsqueeze(1).expand(*keep.shape, 1) if value.shape[1] == 1 else value
        row[key] = wide[keep].unsqueeze(0)
    return row.set(("tokens", "sequence"), rows[keep].unsqueeze(0))


@every_choice
def test_packing_changes_nothing(ratio, name, normalizer, data, bigram):
    td, _ = data
    loss = full(bigram, name, ratio, normalizer)
    assert_same(loss, td, loss, packed(td))


@every_choice
def test_micro_batches_add_up_to_the_step(ratio, name, normalizer, data, bigram):
    td, _ = data
    loss = full(bigram, name, ratio, normalizer)
    step = loss.normalize(td)
    whole = total(loss(td))
    parts = [total(loss(micro)) for micro in step.split(1)]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-14)
    wanted = torch.autograd.grad(whole, list(loss.parameters()))
    found = [torch.autograd.grad(part, list(loss.parameters())) for part in parts]
    torch.testing.assert_close(sum(one[0] for one in found), wanted[0], rtol=1e-12, atol=1e-14)
    assert "token_weight" not in td


def test_the_choices_that_do_not_fit_are_refused_with_the_reason(data):
    _, policy = data
    assert len(CHOICES) == 9 * 4 - 3 + 3 * 4  # token with all but GMPO's three, three levels with PPO's four
    cases = {
        ("sequence", "ppo", "tokens"): "would weight sequences by their length",
        ("sequence_token", "ppo", "constant"): "would weight sequences by their length",
        ("product", "ppo", "prompt"): "would weight sequences by their length",
        ("sequence", "cispo", "sequence"): "weights the gradient of each token by its own ratio",
        ("sequence", "reinforce", "sequence"): "weights the gradient of each token by its own ratio",
        ("token", "gmpo", "tokens"): "would weight sequences by their length",
    }
    for (ratio, name, normalizer), reason in cases.items():
        with pytest.raises(ArgumentError, match=reason):
            PolicyLoss(policy, SURROGATES[name], ratio=ratio, normalizer=normalizer)
    with pytest.raises(ArgumentError, match="needs max_tokens"):
        PolicyLoss(policy, PPOClip(), ratio="token", normalizer="constant")
    with pytest.raises(ArgumentError, match="ratio must be 'token', 'sequence'"):
        PolicyLoss(policy, PPOClip(), ratio="word", normalizer="tokens")
    with pytest.raises(ArgumentError, match="surrogate must be a Surrogate"):
        PolicyLoss(policy, "ppo", ratio="token", normalizer="tokens")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PPOClip(low=1.0),
        lambda: PPOClip(dual=1.1),
        lambda: CISPO(high=0.28),
        lambda: CISPO(low=1.2),
        lambda: SAPO(tau_positive=0),
        lambda: GMPO(log_clip=0),
        lambda: TVMask(threshold=2),
        lambda: Correction("word"),
        lambda: Correction(low=0.5),
        lambda: Correction(cap=0),
        lambda: Correction(reject="token", low=2, high=1),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(ArgumentError):
        make()


def preset(name, policy, **options):
    return {
        "GRPOLoss": lambda: GRPOLoss(policy, **options),
        "DAPOLoss": lambda: DAPOLoss(policy, **options),
        "DrGRPOLoss": lambda: DrGRPOLoss(policy, 9, **options),
        "GSPOLoss": lambda: GSPOLoss(policy, **options),
        "GSPO-token": lambda: GSPOLoss(policy, token_gradient=True, **options),
        "CISPOLoss": lambda: CISPOLoss(policy, **options),
        "RLOOLoss": lambda: RLOOLoss(policy, **options),
        "DistillationLoss": lambda: DistillationLoss(policy, **options),
    }[name]()


@pytest.mark.parametrize(
    ("name", "surrogate", "ratio", "normalizer", "kl"),
    [
        ("GRPOLoss", PPOClip(0.2, 0.2), "token", "sequence", 0.04),
        ("DAPOLoss", PPOClip(0.2, 0.28), "token", "tokens", None),
        ("DrGRPOLoss", PPOClip(0.2, 0.2), "token", "constant", None),
        ("GSPOLoss", PPOClip(3e-4, 4e-4), "sequence", "sequence", None),
        ("GSPO-token", PPOClip(3e-4, 4e-4), "sequence_token", "sequence", None),
        ("CISPOLoss", CISPO(5.0), "token", "tokens", None),
        ("RLOOLoss", PPOClip(0.2, 0.2), "product", "sequence", None),
        ("DistillationLoss", PPOClip(None, None), "token", "tokens", None),
    ],
)
def test_presets_have_the_published_settings_and_keep_the_promises_of_losses(
    name, surrogate, ratio, normalizer, kl, make_batch
):
    td, policy = make_batch(dtype=torch.float32)
    loss = preset(name, policy)
    assert (loss.surrogate, loss.ratio, loss.normalizer, loss.kl_to_ref_coeff) == (surrogate, ratio, normalizer, kl)
    td = with_bigram(td)
    check_loss(preset(name, TokenScorer(torch.nn.Embedding(7, 7))), td)
    with_all = preset(name, TokenScorer(torch.nn.Embedding(7, 7)), correction=Correction(reject="sequence", high=3.0))
    frozen = [("log_probs", "full"), ("old_log_probs", "full")]
    check_loss(with_all, td, frozen=[*frozen, *(["advantage"] if name != "DistillationLoss" else [])])


# --- each of the known faults of other libraries --------------------------------------------------------------------


def test_cispo_keeps_the_gradient_of_a_token_beyond_the_cap(data):
    """TorchRL 0.14.1 had no gradient there, and r A grad log p inside."""
    td, policy = data
    mask = td["masks", "all_assistant_mask"]
    old = td["log_probs", "full"].where(mask, 0)
    with torch.no_grad():
        policy.log_prob.copy_(old + 3.0)
    loss = CISPOLoss(policy, high=5.0)
    (found,) = torch.autograd.grad(loss(td)["loss_objective"], policy.log_prob)
    expected = (-5.0 * td["advantage"] / mask.sum()).expand(mask.shape).where(mask, 0)
    torch.testing.assert_close(found, expected)


def test_divergence_and_clip_fractions_ignore_padding_and_prompts(data):
    """TorchRL set masked positions to 0 and averaged over all of them."""
    td, policy = data
    out = GRPOLoss(policy)(td)
    mask = td["masks", "all_assistant_mask"]
    x = (policy.log_prob - td["ref_log_probs", "full"])[mask]
    torch.testing.assert_close(out["kl"], ((-x).exp() - 1 + x).mean().detach())
    r = (policy.log_prob - td["log_probs", "full"])[mask].exp()
    advantage = td["advantage"].expand(mask.shape)[mask]
    low, high = (r < 0.8) & (advantage < 0), (r > 1.2) & (advantage > 0)
    assert out["clip_ratio/low_mean"].item() == pytest.approx(low.double().mean().item())
    assert out["clip_ratio/high_mean"].item() == pytest.approx(high.double().mean().item())
    assert out["clip_ratio/region_mean"].item() == pytest.approx((low | high).double().mean().item())
    assert low.any()
    assert high.any()


def test_dapo_weights_all_tokens_of_the_step_equally(data):
    """TorchRL's DAPO had GRPO's mean of each micro-batch; TRL divided by the tokens of the generation batch."""
    td, policy = data
    step = DAPOLoss(policy).normalize(td)
    mask = td["masks", "all_assistant_mask"]
    assert step["token_weight"][mask].tolist() == [1 / mask.sum().item()] * int(mask.sum())
    assert step["token_weight"][~mask].eq(0).all()


def test_bounds_of_cispo_are_absolute():
    """TRL's epsilon of 0.2 cut every weight to 0.2."""
    with pytest.raises(ArgumentError, match=r"CISPO: high must be at least 1, got 0\.2"):
        CISPO(high=0.2)


def test_gspo_weights_sequences_equally(data):
    """TRL's default loss type weights sequences by their length."""
    td, policy = data
    loss = GSPOLoss(policy)
    mask = td["masks", "all_assistant_mask"]
    with torch.no_grad():
        policy.log_prob.copy_(td["log_probs", "full"].where(mask, 0))
    (found,) = torch.autograd.grad(loss(td)["loss_objective"], policy.log_prob)
    torch.testing.assert_close(found.sum(-1), -td["advantage"].squeeze(-1) / 6)


def test_sequence_mask_and_truncation_bound_what_they_promise():
    """OpenRLHF's comment promises clamped coefficients, its code multiplies unclamped ones."""
    log_weight = torch.tensor([[1.0, 1.0], [0.1, -0.1]])
    sequences = Sequences(torch.ones(2, 2, dtype=torch.bool))
    cut = Correction("sequence", cap=2.0, reject="geometric", low=0.5, high=10.0).weights(log_weight, sequences)
    torch.testing.assert_close(cut, torch.tensor([[2.0, 2.0], [1.0, 1.0]]))


def test_constant_normalizer_is_not_the_padded_width(data):
    """verl divided by the padded width, and not by the batch."""
    td, policy = data
    weights = DrGRPOLoss(policy, 100).normalize(td)["token_weight"]
    assert weights[td["masks", "all_assistant_mask"]].unique().tolist() == pytest.approx([1 / 600])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", [DAPOLoss, lambda p: DAPOLoss(p, correction=Correction())])
def test_drift_of_trainer_and_sampler_is_reported_and_warned_of(form, data):
    """Micro-batches of another size change log-probabilities: the first ratio is not 1 (verl)."""
    td, policy = data
    mask, key = td["masks", "all_assistant_mask"], "log_probs" if form is DAPOLoss else "old_log_probs"
    drift = (policy.log_prob - td[key, "full"])[mask].abs().max().item()
    loss = form(policy)
    with torch.no_grad():
        loss(td)  # no update
    with pytest.warns(UserWarning, match=f"in the first batch the log-ratio of a token is {drift:.3g}"):
        assert loss(td)["log_ratio/max_abs"].item() == pytest.approx(drift)
    loss(td)  # later batches may be off-policy
    same = td.clone()
    same[key, "full"] = policy.log_prob.detach() + 0.09
    assert form(policy)(same)["log_ratio/max_abs"].item() == pytest.approx(0.09)


def test_a_loss_is_mapped_over_parameters(data):
    td, policy = data
    loss = DAPOLoss(policy)

    def value(log_prob):
        return torch.func.functional_call(loss, {"actor_network.log_prob": log_prob}, (td,))["loss_objective"]

    some = policy.log_prob.detach() + 0.1 * torch.randn(3, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(value)(some), torch.stack([value(one) for one in some]))


def test_outputs_can_be_selected(data):
    td, policy = data
    loss = DAPOLoss(policy)
    everything = loss(td)
    assert loss.select_out_keys("loss_objective", "ESS") is loss
    assert loss.out_keys == [*loss(td).keys()] == ["loss_objective", "ESS"]
    with pytest.raises(UnknownNameError, match="DAPOLoss returns no 'kl'; it returns 'loss_objective'"):
        loss.select_out_keys("kl")
    assert [*loss.reset_out_keys()(td).keys()] == [*everything.keys()]


# --- divergence, corrections, distillation --------------------------------------------------------------------------


def test_estimators_of_the_divergence_by_enumeration():
    """Expectations over a vocabulary of five: k1 and k3 are unbiased, the gradient of k2 is that of the divergence."""
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64).log_softmax(-1)
    log_prob = logits.log_softmax(-1)
    p = log_prob.detach().exp()
    exact = (log_prob.exp() * (log_prob - reference)).sum()
    (gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    found = {name: kl_estimate(log_prob, reference, name) for name in ("k1", "k2", "k3", "k1+", "k3+")}
    for name in ("k1", "k3", "k1+", "k3+"):
        torch.testing.assert_close((p * found[name]).sum(), exact)
    for name in ("k2", "k1+", "k3+"):
        (by,) = torch.autograd.grad((p * found[name]).sum(), logits, retain_graph=True)
        torch.testing.assert_close(by, gradient)
    (by,) = torch.autograd.grad((p * found["k1"]).sum(), logits, retain_graph=True)
    torch.testing.assert_close(by, torch.zeros_like(by))


def test_divergence_with_the_ratio_has_the_gradient_of_the_divergence(data, free_policy):
    """TRL since 1.10: k3 times the ratio, which samples of the older policy estimate without bias."""
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference, log_prob = torch.randn(5, dtype=torch.float64).log_softmax(-1), logits.log_softmax(-1)
    exact = (log_prob.exp() * (log_prob - reference)).sum()
    (gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    p = log_prob.detach().exp()
    estimate = (p * kl_estimate(log_prob, reference, "k3") * (log_prob - log_prob.detach()).exp()).sum()
    torch.testing.assert_close(torch.autograd.grad(estimate, logits)[0], gradient)
    td, policy = data
    out = GRPOLoss(policy, kl_importance=True)(td)
    mask = td["masks", "all_assistant_mask"]
    x = (policy.log_prob - td["ref_log_probs", "full"])[mask].detach()
    r = (policy.log_prob - td["log_probs", "full"])[mask].exp().detach()
    torch.testing.assert_close(out["kl"], (((-x).exp() - 1 + x) * r).mean())


def test_weights_of_tokens_correct_the_expectation_under_another_sampler():
    """Enumerated over a vocabulary of five: truncated importance sampling is nearer to the exact gradient than none."""
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64)
    policy, sampler = logits.log_softmax(-1), (logits + 0.5 * torch.randn(5, dtype=torch.float64)).log_softmax(-1)
    advantage = torch.randn(5, dtype=torch.float64)
    gradient = torch.eye(5, dtype=torch.float64) - policy.exp()  # of log pi by logits
    exact = (policy.exp() * advantage) @ gradient
    sequences = Sequences(torch.ones(5, 1, dtype=torch.bool))

    def error(correction):
        weights = 1.0 if correction is None else correction.weights((policy - sampler).unsqueeze(-1), sequences)[:, 0]
        return ((sampler.exp() * weights * advantage) @ gradient - exact).norm()

    assert error(Correction("token", cap=None)) < 1e-12
    assert error(Correction("token", cap=2.0)) < error(None)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Correction("token", cap=2.0), lambda w: [min(x, 2.0) for x in w]),
        (
            Correction("token", cap=None, reject="token", low=0.5, high=1.5),
            lambda w: [x * (0.5 <= x <= 1.5) for x in w],
        ),
        (Correction("sequence", cap=2.0), lambda w: [min(math.prod(w), 2.0)] * len(w)),
        (
            Correction("sequence", cap=None, reject="sequence", high=3.0),
            lambda w: [math.prod(w) * (math.prod(w) <= 3.0)] * len(w),
        ),
        (
            Correction(None, reject="geometric", low=0.8, high=1.25),
            lambda w: [float(0.8 <= math.prod(w) ** (1 / len(w)) <= 1.25)] * len(w),
        ),
    ],
)
def test_corrections_are_those_of_plain_loops(correction, expected, data):
    td, policy = data
    loss = PolicyLoss(policy, Reinforce(), ratio="token", normalizer="tokens", correction=correction)
    out, wanted, used = loss(td), 0.0, []
    mask = td["masks", "all_assistant_mask"]
    for row in range(6):
        where = mask[row]
        w = (td["old_log_probs", "full"] - td["log_probs", "full"])[row, where].exp().tolist()
        weights = expected(w)
        used += weights
        lps = policy.log_prob[row, where].tolist()
        wanted -= (
            sum(x * lp * td["advantage"][row].item() for x, lp in zip(weights, lps, strict=True)) / mask.sum().item()
        )
    assert out["loss_objective"].item() == pytest.approx(wanted, rel=1e-12)
    assert out["sampling/importance_sampling_ratio/mean"].item() == pytest.approx(sum(used) / len(used))
    assert out["sampling/importance_sampling_ratio/max"].item() == pytest.approx(max(used))
    assert out["sampling/importance_sampling_ratio/min"].item() == pytest.approx(min(used))
    assert out["sampling/rejected_mean"].item() == pytest.approx(used.count(0) / len(used))


def test_a_sequence_that_the_policy_left_is_dropped_if_its_advantage_is_negative(data):
    td, policy = data
    mask = td["masks", "all_assistant_mask"]
    with torch.no_grad():
        policy.log_prob.copy_(td["log_probs", "full"].where(mask, 0) - 0.6)
    loss = PolicyLoss(policy, Reinforce(), ratio="token", normalizer="tokens", correction=Correction(None, drift=0.5))
    (found,) = torch.autograd.grad(loss(td)["loss_objective"], policy.log_prob)
    negative = td["advantage"].squeeze(-1) < 0
    assert found[negative].eq(0).all()
    assert found[~negative][mask[~negative]].ne(0).all()


def test_without_a_correction_the_ratio_is_against_the_sampler(data):
    td, policy = data
    assert ("old_log_probs", "full") not in DAPOLoss(policy).in_keys
    with_correction = DAPOLoss(policy, correction=Correction(None, reject="token", high=1e9))
    assert ("old_log_probs", "full") in with_correction.in_keys
    r = with_correction(td)["log_ratio/max_abs"]
    mask = td["masks", "all_assistant_mask"]
    assert r.item() == pytest.approx((policy.log_prob - td["old_log_probs", "full"])[mask].abs().max().item())


def test_distillation_has_the_gradient_of_the_reverse_divergence():
    """Enumerated: one position, each token of the vocabulary in proportion to the probability of the sampler."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 5, dtype=torch.float64)
    teacher = torch.randn(5, dtype=torch.float64).log_softmax(-1)
    sampler = torch.randn(5, dtype=torch.float64).log_softmax(-1)
    log_prob = model(torch.tensor(0)).log_softmax(-1)
    (exact,) = torch.autograd.grad((log_prob.exp() * (log_prob - teacher)).sum(), model.weight)
    tokens = torch.stack([torch.zeros(5, dtype=torch.int64), torch.arange(5)], -1)
    mask = torch.tensor([[False, True]]).expand(5, 2)
    zero = torch.zeros(5, dtype=torch.float64)
    td = TensorDict(
        {
            "tokens": {"full": tokens},
            "masks": {"all_assistant_mask": mask},
            "log_probs": {"full": torch.stack([zero, sampler], -1)},
            "teacher_log_probs": {"full": torch.stack([zero, teacher], -1)},
            "token_weight": torch.stack([zero, sampler.exp()], -1),  # the expectation under the sampler
        },
        batch_size=[5],
    )
    out = DistillationLoss(TokenScorer(model))(td)
    (found,) = torch.autograd.grad(out["loss_objective"], model.weight)
    torch.testing.assert_close(found, exact)


# --- keys, shapes, edges --------------------------------------------------------------------------------------------


def test_keys_can_be_named(data, free_policy):
    td, policy = data
    loss = DAPOLoss(policy)
    expected = loss(td)["loss_objective"]
    renamed = td.clone().rename_key_("advantage", "gain")
    loss.set_keys(advantage="gain")
    assert "gain" in loss.in_keys
    assert loss.tensor_keys.advantage == "gain"
    torch.testing.assert_close(loss(renamed)["loss_objective"], expected)
    with pytest.raises(UnknownNameError, match=r"has no key 'advantages'.*did you mean 'advantage'"):
        loss.set_keys(advantages="gain")
    with pytest.raises(ContractError, match="reads 'gain'"):
        loss(td)


def test_advantages_of_tokens(data):
    td, policy = data
    expected = DAPOLoss(policy)(td)
    wide = td.clone()
    wide["advantage"] = td["advantage"].unsqueeze(1).expand(6, 8, 1).clone()
    wide["advantage"][:, 0] = float("nan")  # of the prompt
    torch.testing.assert_close(DAPOLoss(policy)(wide), expected)
    wide["advantage"] = td["advantage"].expand(6, 8)
    with pytest.raises(ShapeError, match="one for each token"):
        DAPOLoss(policy)(wide)


def test_a_policy_without_log_probabilities_or_entropies_is_refused():
    model = torch.nn.Embedding(5, 5)
    with pytest.raises(ContractError, match="entropy_coeff needs a policy that writes"):
        DAPOLoss(TokenScorer(model, entropy=False), entropy_coeff=0.1)
    assert "entropy" not in DAPOLoss(TokenScorer(model, entropy=False)).out_keys

    class Silent(torch.nn.Module):
        in_keys, out_keys = ("tokens",), ("action",)

    with pytest.raises(ContractError, match="actor_network must write"):
        DAPOLoss(Silent())


def test_a_batch_without_trained_tokens_has_a_loss_of_0(data, bigram):
    td, _ = data
    td["masks", "all_assistant_mask"] = torch.zeros_like(td["masks", "all_assistant_mask"])
    out = full(bigram, "ppo", "token", "sequence")(td)
    assert total(out) == 0
    assert all(value.isfinite().all() for value in out.values())


def test_sequences_without_trained_tokens_do_not_count(data, free_policy):
    """Truncated responses are masked out (DAPO)."""
    td, policy = data
    short = td.clone()
    short["masks", "all_assistant_mask"][2] = False
    found = GRPOLoss(policy)(short)
    kept = torch.tensor([0, 1, 3, 4, 5])
    policy2 = free_policy(policy.log_prob.detach()[kept], policy.entropy.detach()[kept])
    torch.testing.assert_close(found, GRPOLoss(policy2)(td[kept]))


def test_half_precision_log_probabilities_are_summed_in_single_precision(make_batch, free_policy):
    td, policy = make_batch(dtype=torch.float32)
    half = free_policy(policy.log_prob.detach().bfloat16(), policy.entropy.detach().bfloat16())
    out = DAPOLoss(half)(td)
    assert out["loss_objective"].dtype == torch.float32
    same = free_policy(half.log_prob.detach().float(), half.entropy.detach().float())
    torch.testing.assert_close(out, DAPOLoss(same)(td))


def test_prompt_normalizer_averages_over_prompts():
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    prompt = torch.tensor([[7, 7], [7, 7], [3, 3]])
    weights = token_weights(mask, "prompt", prompt=prompt)
    torch.testing.assert_close(weights, torch.tensor([[1 / 6, 1 / 6], [1 / 6, 0], [1 / 4, 1 / 4]], dtype=torch.float64))
