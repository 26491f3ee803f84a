"""What all losses have in common: keyword calls, one compiled graph, one-element batches."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Categorical

from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import as_tuple
from rl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    DistributionalDQNLoss,
    DQNLoss,
    ImpalaLoss,
    KLPENPPOLoss,
    LossModule,
    PPOLoss,
    QRDQNLoss,
    ReinforceLoss,
    RNDLoss,
    compile_with_warmup,
)


def actor():
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    return ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(4, 3), ["observation"], ["logits"]), head)


def critic():
    return TensorDictModule(nn.Linear(4, 1), ["observation"], ["state_value"])


def q(*shape):
    outputs = torch.Size(shape).numel()
    net = nn.Sequential(nn.Linear(4, outputs), nn.Unflatten(-1, shape))
    return TensorDictModule(net, ["observation"], ["action_value"])


LOSSES = {
    "PPOLoss": lambda: PPOLoss(actor(), critic()),
    "ClipPPOLoss": lambda: ClipPPOLoss(actor(), critic(), clip_value=0.2),
    "KLPENPPOLoss": lambda: KLPENPPOLoss(actor(), critic()).eval(),
    "A2CLoss": lambda: A2CLoss(actor(), critic()),
    "ReinforceLoss": lambda: ReinforceLoss(actor(), critic()),
    "ImpalaLoss": lambda: ImpalaLoss(actor(), critic()),
    "DQNLoss": lambda: DQNLoss(q(3), double_dqn=True),
    "DistributionalDQNLoss": lambda: DistributionalDQNLoss(q(5, 3), support=torch.linspace(-2, 2, 5), double_dqn=True),
    "QRDQNLoss": lambda: QRDQNLoss(q(3, 5), double_dqn=True),
    "RNDLoss": lambda: RNDLoss(nn.Linear(4, 2), nn.Linear(4, 2)),
}
every = pytest.mark.parametrize("name", LOSSES)


def make(name, size=(2, 6)):
    torch.manual_seed(0)
    loss = LOSSES[name]()
    batch = actor()(TensorDict(observation=torch.randn(*size, 4), batch_size=size)).detach()
    batch.update({key: torch.randn(*size, 1) for key in ("advantage", "value_target", "state_value")})
    flag = torch.zeros(*size, 1, dtype=torch.bool)
    after = {"observation": torch.randn(*size, 4), "reward": torch.randn(*size, 1), "done": flag, "terminated": flag}
    return loss, batch.set("next", after)


def gradients(loss, out):
    losses = [value for key, value in out.items() if key.startswith("loss")]
    return torch.autograd.grad(sum(losses), list(loss.parameters()))


@every
def test_one_graph(name):
    torch.compiler.reset()
    loss, batch = make(name)
    expected = loss(batch)
    found = torch.compile(loss, fullgraph=True, backend="eager")(batch)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(loss, found), gradients(loss, loss(batch)))
    warm = compile_with_warmup(loss, warmup=1, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(warm(batch), expected)


def test_all_losses_compile_in_one_process():
    torch.compiler.reset()
    for name in LOSSES:  # more than graphs of one code object are allowed
        loss, batch = make(name)
        torch.compile(loss, fullgraph=True, backend="eager")(batch)


@every
def test_tensors_by_keyword(name):
    loss, batch = make(name)
    expected = loss(batch.clone())
    tensors = {"_".join(as_tuple(key)): batch[key] for key in loss.in_keys}
    found = loss(**tensors)
    assert len(found) == len(loss.out_keys)
    torch.testing.assert_close(dict(zip(loss.out_keys, found, strict=True)), dict(expected.items()))
    torch.testing.assert_close(loss(tensordict=batch.clone()), expected)
    with pytest.raises(ArgumentError, match=f"{name} reads no 'rewards'; it reads "):
        loss(**tensors, rewards=torch.ones(2, 6, 1))
    with pytest.raises(ArgumentError, match=f"{name} got a batch and"):
        loss(batch, **tensors)
    with pytest.raises(ArgumentError, match=f"{name} got no batch"):
        loss()
    first, *others = tensors
    if others:
        with pytest.raises(ContractError, match=f"{name} reads"):
            loss(**{first: tensors[first]})


def test_optional_entries_by_keyword_and_a_single_output():
    loss, batch = make("DQNLoss", (7,))
    tensors = {"_".join(as_tuple(key)): batch[key] for key in loss.in_keys}
    weight = torch.rand(7)
    batch["priority_weight"] = weight
    torch.testing.assert_close(loss(**tensors, priority_weight=weight), tuple(loss(batch).values()))

    class Single(LossModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(1, 1)
            self.derive_early()

        def _derive(self):
            return Contract((Key("x", (1,)),), (Key("loss", (), batched=False),))

        def forward(self, tensordict):
            return TensorDict(loss=self.net(self.read(tensordict)[0]["x"]).mean())

    assert Single()(x=torch.ones(3, 1)).shape == ()


@every
def test_batches_of_one_element_and_zero_advantages(name):
    loss, batch = make(name, (1, 1))
    batch["advantage"].zero_()
    out = loss(batch)
    assert all(value.isfinite() for key, value in out.items() if key.startswith("loss"))
    assert all(grad.isfinite().all() for grad in gradients(loss, out))
