# ruff: noqa: ANN001, ANN002, ANN201, SLF001
"""Write `dreamer.json` below the tests of rl-modules and rl-objectives: numbers of TorchRL and sheeprl on fixed inputs.

Run once with both installed: ``pip install --no-deps torchrl sheeprl``, then ``python dreamer_fixtures.py``. The tests
read the files alone.
"""

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import torch
from torchrl.data import Bounded
from torchrl.modules.functional import symexp, symlog
from torchrl.modules.models import model_based
from torchrl.objectives import dreamer_v3

PACKAGES = Path(__file__).resolve().parents[2]
VERSIONS = {name: importlib.metadata.version(name) for name in ("torchrl", "sheeprl")}


def sheeprl_file(name):
    """A file of sheeprl's DreamerV3, without the rest of the package, which needs many libraries."""
    functions = ModuleType("sheeprl.utils.utils")
    functions.symlog, functions.symexp = symlog, symexp
    sys.modules["sheeprl.utils.utils"] = functions
    root = Path(importlib.metadata.distribution("sheeprl").locate_file("sheeprl"))
    spec = importlib.util.spec_from_file_location(name, root / f"algos/dreamer_v3_5/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(*shape, scale=1.0):
    return (torch.randn(*shape) * scale * 1000).round() / 1000


def fill(module):
    """Random weights, which are returned."""
    state = module.state_dict()
    for weight in state.values():
        weight.copy_(numbers(*weight.shape, scale=0.5))
    return {name: weight.tolist() for name, weight in state.items()}


def modules():
    loss = sheeprl_file("loss")
    x, logits, values = (
        torch.tensor([-300.0, -1.5, -0.01, 0, 0.2, 3, 1e4]),
        numbers(3, 41),
        torch.tensor([-2.3, 0, 7e3]),
    )
    two_hot = loss.TwoHot(logits)
    bins = two_hot.bins
    pair = {
        "sheeprl": {"mean": two_hot.mean.tolist(), "loss": two_hot.loss(values).tolist()},
        "torchrl": {
            "mean": model_based.two_hot_decode(logits, bins).tolist(),
            "loss": model_based.two_hot_cross_entropy(logits, values, bins).tolist(),
        },
    }
    prior = model_based.RSSMPrior(Bounded(-1, 1, (2,)), hidden_dim=4, rnn_hidden_dim=4, state_dim=3, action_dim=2)
    posterior = model_based.RSSMPosterior(hidden_dim=4, state_dim=3, rnn_hidden_dim=4, obs_embed_dim=5)
    weights = {"prior": fill(prior), "posterior": fill(posterior)}
    state, belief, action, embedding, noise = (numbers(2, n) for n in (3, 4, 2, 5, 3))
    before = prior(state, belief, action, noise)
    after = posterior(before[3], embedding, noise)
    cell = model_based._DreamerV3BlockGRU(
        state_dim=6, action_dim=2, hidden_dim=4, belief_dim=8, num_blocks=2, num_layers=1, norm_eps=1e-4
    )
    cell_weights = fill(cell)
    cell_inputs = [numbers(2, 6), numbers(2, 8), torch.tensor([[0.5, -0.2], [3.0, -1.0]])]
    return {
        "versions": VERSIONS,
        "symlog": {"x": x.tolist(), "symlog": symlog(x).tolist(), "symexp": symexp(x.clamp(-9, 9)).tolist()},
        "two_hot": {"logits": logits.tolist(), "x": values.tolist(), **pair},
        "rssm": {
            **weights,
            "inputs": [one.tolist() for one in (state, belief, action, embedding, noise)],
            "prior_out": [one.tolist() for one in before],
            "posterior_out": [one.tolist() for one in after],
        },
        "block_gru": {
            "weights": cell_weights,
            "inputs": [one.tolist() for one in cell_inputs],
            "out": cell(*cell_inputs).tolist(),
        },
    }


def divergences():
    posterior, prior = (numbers(2, 3, 4).requires_grad_() for _ in range(2))
    dynamics, representation = dreamer_v3.categorical_kl_terms(posterior, prior, free_nats=0.0)
    free = dreamer_v3.categorical_kl_terms(posterior, prior, free_nats=1.0)
    return {
        "posterior": posterior.tolist(),
        "prior": prior.tolist(),
        "terms": [dynamics.item(), representation.item()],
        "terms_free": [one.item() for one in free],
        "prior_grad": torch.autograd.grad(dynamics, prior)[0].tolist(),
        "posterior_grad": torch.autograd.grad(representation, posterior)[0].tolist(),
        "balanced": dreamer_v3.categorical_kl_balanced(posterior, prior, 0.8, 0.0).item(),
        "balanced_free": dreamer_v3.categorical_kl_balanced(posterior, prior, 0.8, 1.0).item(),
    }


def returns():
    loss = sheeprl_file("loss")
    reward, bootstrap = numbers(6, 2), numbers(6, 2)
    last = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])
    terminal = torch.tensor([[0, 0], [0, 0.25], [0, 0], [0, 0.1], [1, 0], [0, 0]])
    found = loss.lambda_return(last, terminal, reward, bootstrap, 0.97, 0.9)
    ends = {"last": last.tolist(), "terminal": terminal.tolist()}
    sequence = [numbers(1, 6, 1), numbers(1, 6, 1)]
    done = torch.tensor([0, 0, 1, 0, 1, 0]).bool().view(1, 6, 1)
    terminated = torch.tensor([0, 0, 0, 0, 1, 0]).bool().view(1, 6, 1)
    target = dreamer_v3._replay_value_target(sequence[0], done, terminated, sequence[1], 333, 0.95)
    flags = {"last": done.int().tolist(), "terminal": terminated.int().tolist()}
    return {
        "sheeprl": {
            "reward": reward.tolist(), "bootstrap": bootstrap.tolist(), **ends, "gamma": 0.97, "lmbda": 0.9,
            "returns": found.tolist(),
        },
        "torchrl": {
            "reward": sequence[0].tolist(), "bootstrap": sequence[1].tolist(), **flags, "gamma": 1 - 1 / 333,
            "lmbda": 0.95, "returns": target.tolist(),
        },
    }  # fmt: skip


def laprop(warmup):
    """Five steps of two tensors, of which the gradients of the first are clipped, without and with a warm-up."""
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(numbers(2, 3)), torch.nn.Parameter(numbers(3, scale=0.01))]
    out = {"lr": 0.01, "warmup": warmup, "weights": [one.tolist() for one in weights], "grads": [], "after": []}
    optimizer = sheeprl_file("optim").LaProp(weights, lr=0.01, warmup=warmup)
    for _ in range(5):
        for one, scale in zip(weights, (5.0, 1.0), strict=True):
            one.grad = numbers(*one.shape, scale=scale)
        optimizer.step()
        out["grads"].append([one.grad.tolist() for one in weights])
        out["after"].append([one.tolist() for one in weights])
    return out


def main():
    torch.manual_seed(0)
    objectives = {"versions": VERSIONS, "kl": divergences(), "returns": returns(), "laprop": [laprop(0), laprop(3)]}
    for package, data in (("rl-modules", modules()), ("rl-objectives", objectives)):
        (PACKAGES / package / "tests/world_models/dreamer.json").write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
