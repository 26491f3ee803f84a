"""One step of a `ProbabilisticActor`, as collectors run it, costs at most 2.5 times its network and the formulas.

A tanh-normal policy with two hidden layers of 64 units samples an action for one observation and scores it, without
gradients. By hand: the network, the sample and the log-probability in plain PyTorch. Collectors and losses call the
function of `rl.core.as_function`; a call with a TensorDict adds tensordict's four nested module calls. Microseconds,
the least of many short interleaved runs, on one thread.

    python benchmarks/actor_step.py
"""

from __future__ import annotations

import math
from functools import partial

import torch
from bench_policy import microseconds
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from rl.core.tensor_functions import as_function
from rl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, set_exploration_type

OBSERVATIONS, ACTIONS, GOAL = 17, 6, 2.5
CONSTANT = ACTIONS * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))


def by_hand(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    loc, scale = net(x)
    noise = torch.randn_like(loc)
    raw = loc + noise * scale
    stretch = 2 * (raw + softplus(-2 * raw))  # minus log(1 - tanh(x)^2), less its constant
    return raw.tanh(), (stretch - 0.5 * noise.square() - scale.log()).sum(-1) - CONSTANT


def main() -> None:
    torch.set_num_threads(1)
    net = nn.Sequential(MLP(OBSERVATIONS, 2 * ACTIONS, [64, 64]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        ["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    plain, x = as_function(actor), torch.randn(1, OBSERVATIONS)
    assert plain is not None
    td = TensorDict(observation=x, batch_size=[1])
    sides = {
        "network": partial(net, x),
        "by hand": partial(by_hand, net, x),
        "actor, lowered": partial(plain, x),
        "actor, TensorDict": partial(actor, td),
    }
    with torch.no_grad(), set_exploration_type("random"):
        torch.manual_seed(0)
        expected = by_hand(net, x)
        torch.manual_seed(0)
        actor(td)
        torch.testing.assert_close((td["action"], td["action_log_prob"]), expected, rtol=1e-4, atol=1e-4)
        found = microseconds(sides)
    for name, value in found.items():
        print(f"{name:20} {value:7.1f} us  {value / found['by hand']:5.2f} x by hand")
    print(f"goal: {GOAL} x by hand")


if __name__ == "__main__":
    main()
