"""Decision transformers: against torch's own layers, what each output depends on, and acting step by step."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.specs import Bounded
from rl.modules import (
    DecisionTransformer,
    DecisionTransformerInferenceWrapper,
    DTActor,
    DTConfig,
    OnlineDTActor,
    ProbabilisticActor,
    TanhDelta,
    TanhNormal,
)
from rl.testing import check_module

SMALL = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 32}
STATE, ACTION, STEPS = 3, 2, 6
KEYS = ["observation", "action", "return_to_go"]


def sequences(*batch):
    return [torch.randn(*batch, STEPS, width) for width in (STATE, ACTION, 1)]


def reference(net, observation, action, return_to_go):
    """The same transformer from `torch.nn.TransformerEncoderLayer`, for one sequence."""
    config = net.config
    rows = []
    for step in range(len(observation)):
        rows += [
            net.embed_return(return_to_go[step]),
            net.embed_state(observation[step]),
            net.embed_action(action[step]),
        ]
    x = (net.embed_ln(torch.stack(rows)) + net.positions[: len(rows)]).unsqueeze(0)
    mask = nn.Transformer.generate_square_subsequent_mask(len(rows))
    for block in net.blocks:
        layer = nn.TransformerEncoderLayer(
            config.n_embd, config.n_head, config.n_inner, 0.0, config.activation, batch_first=True, norm_first=True
        )
        pairs = [
            (layer.self_attn.in_proj_weight, block.query_key_value.weight),
            (layer.self_attn.in_proj_bias, block.query_key_value.bias),
        ]
        mine = [layer.self_attn.out_proj, layer.linear1, layer.linear2, layer.norm1, layer.norm2]
        theirs = [block.attended, block.hidden, block.out, block.attention_ln, block.hidden_ln]
        pairs += [(getattr(a, n), getattr(b, n)) for a, b in zip(mine, theirs, strict=True) for n in ("weight", "bias")]
        with torch.no_grad():
            for to, source in pairs:
                to.copy_(source)
        x = layer(x, src_mask=mask)
    return net.last_ln(x)[0, 1::3]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_it_is_the_transformer_of_torch(activation):
    torch.manual_seed(0)
    net = DecisionTransformer(STATE, ACTION, {**SMALL, "activation": activation}).eval()
    inputs = sequences(2, 3)
    found = net(*inputs)
    assert found.shape == (2, 3, STEPS, 16)
    expected = reference(net, *[one[1, 2] for one in inputs])
    torch.testing.assert_close(found[1, 2], expected, rtol=1e-4, atol=1e-5)


def test_an_output_depends_on_what_is_known_at_its_step():
    torch.manual_seed(0)
    net = DecisionTransformer(STATE, ACTION, SMALL).eval()
    inputs = [one.requires_grad_() for one in sequences()]
    at = 3
    gradients = torch.autograd.grad(net(*inputs)[at].square().sum(), inputs)
    for gradient, last in zip(gradients, (at, at - 1, at), strict=True):
        reached = gradient.abs().sum(-1) > 0
        assert reached.tolist() == [step <= last for step in range(STEPS)]


def test_dropout_is_for_training():
    torch.manual_seed(0)
    net = DecisionTransformer(STATE, ACTION, {**SMALL, "attn_pdrop": 0.5, "resid_pdrop": 0.0})
    inputs = sequences(2)
    assert not torch.equal(net(*inputs), net(*inputs))
    net.eval()
    assert torch.equal(net(*inputs), net(*inputs))


def test_bad_input_is_refused():
    with pytest.raises(ArgumentError, match="n_embd=10, which n_head=4 does not divide"):
        DTConfig(n_embd=10)
    with pytest.raises(ArgumentError, match=r"activation must be .*, got 'elu'"):
        DTConfig(activation="elu")
    with pytest.raises(ArgumentError, match=r"resid_pdrop must be at least 0 and below 1, got 1.5"):
        DTConfig(resid_pdrop=1.5)
    with pytest.raises(ArgumentError, match="or a mapping of its fields"):
        DTActor(STATE, ACTION, {"width": 3})
    net = DecisionTransformer(STATE, ACTION, {**SMALL, "n_positions": 12})
    observation, action, return_to_go = sequences(2)
    with pytest.raises(ShapeError, match="6 steps, which are 18 tokens, and has n_positions=12"):
        net(observation, action, return_to_go)
    with pytest.raises(ShapeError, match=r"action \[2, 5, 2\], expected \[2, 6, 2\]"):
        net(observation, action[:, 1:], return_to_go)
    with pytest.raises(ShapeError, match=r"return_to_go \[2, 6\], expected \[2, 6, 1\]"):
        net(observation, action, return_to_go.squeeze(-1))


def actor_of(kind, spec=None):
    if kind == "plain":
        return TensorDictModule(DTActor(STATE, ACTION, SMALL), KEYS, ["action"])
    if kind == "delta":
        net = TensorDictModule(DTActor(STATE, ACTION, SMALL), KEYS, ["param"])
        return ProbabilisticActor(net, ["param"], spec=spec, distribution_class=TanhDelta)
    net = TensorDictModule(OnlineDTActor(STATE, ACTION, SMALL), KEYS, ["loc", "scale"])
    return ProbabilisticActor(net, ["loc", "scale"], spec=spec, distribution_class=TanhNormal)


@pytest.mark.parametrize("kind", ["plain", "delta", "normal"])
def test_step_by_step_is_the_sequence(kind):
    """Before the window is full the steps see all steps so far, then the last three."""
    torch.manual_seed(0)
    policy = actor_of(kind, Bounded(-1, 1, (ACTION,))).eval()
    actor = DecisionTransformerInferenceWrapper(policy, inference_context=3, spec=Bounded(-1, 1, (ACTION,)))
    observation, _, return_to_go = sequences(4)
    td = TensorDict({state.name: state.start((4,)) for state in actor.states}, batch_size=[4])
    taken = []
    with torch.no_grad():
        for step in range(STEPS):
            td["observation"], td["return_to_go"] = observation[:, step], return_to_go[:, step]
            out = actor(td)
            taken.append(out["action"])
            first = max(0, step - 2)
            actions = torch.stack([*taken[:-1], torch.full((4, ACTION), 9.0)], 1)[:, first:]  # the last is not read
            whole = TensorDict(
                observation=observation[:, first : step + 1],
                action=actions,
                return_to_go=return_to_go[:, first : step + 1],
                batch_size=[4, step + 1 - first],
            )
            torch.testing.assert_close(taken[-1], policy(whole)["action"][:, -1])
            td = TensorDict({state.name: out["next", *state.name] for state in actor.states}, batch_size=[4])


def test_sequences_are_read_without_states():
    torch.manual_seed(0)
    policy = actor_of("plain").eval()
    actor = DecisionTransformerInferenceWrapper(policy, inference_context=4)
    actor.set_tensor_keys(
        observation="observation_cat", action="action_cat", return_to_go="rtg_cat", out_action="action"
    )
    observation, action, return_to_go = sequences(2)
    td = TensorDict(observation_cat=observation, action_cat=action, rtg_cat=return_to_go, batch_size=[2])
    renamed = TensorDictModule(policy.module, ["observation_cat", "action_cat", "rtg_cat"], ["action"])
    actor.policy = renamed
    out = actor(td)
    before = torch.cat((action[:, 3:], torch.zeros(2, 1, ACTION)), 1)  # action[t] is the one before observation[t]
    expected = policy.module(observation[:, 2:], before, return_to_go[:, 2:])[:, -1]
    torch.testing.assert_close(out["action"], expected)
    assert out["rtg_cat"].shape == (2, 1)
    assert td["rtg_cat"].shape == (2, STEPS, 1)
    assert "action" not in td.keys()


def test_acting_conforms_and_refuses():
    actor = DecisionTransformerInferenceWrapper(actor_of("normal").eval(), inference_context=3)
    td = TensorDict({state.name: state.start((5,)) for state in actor.states}, batch_size=[5])
    td["observation"], td["return_to_go"] = torch.randn(5, STATE), torch.randn(5, 1)
    td["context", "steps"] = torch.tensor([[0], [1], [2], [3], [3]])
    assert check_module(actor, td).not_exercised == []
    with pytest.raises(ContractError, match=r"reads 'return_to_go'.*RewardSum"):
        actor(td.exclude("return_to_go"))
    with pytest.raises(ArgumentError, match="contains a DecisionTransformer"):
        DecisionTransformerInferenceWrapper(TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"]))
    with pytest.raises(ContractError, match="has no key reward"):
        actor.set_tensor_keys(reward="r")
    with pytest.raises(ContractError, match=r"reads 'move' of the policy"):
        actor.set_tensor_keys(out_action="move")


def test_the_deviation_is_bounded():
    net = OnlineDTActor(STATE, ACTION, SMALL).eval()
    with torch.no_grad():
        net.action_layer_logstd.bias.fill_(1e3)
        assert torch.allclose(net(*sequences(2))[1], torch.tensor(2.0).exp())
        net.action_layer_logstd.bias.fill_(-1e3)
        assert torch.allclose(net(*sequences(2))[1], torch.tensor(-5.0).exp())
