"""What one call of a policy costs over its network: by hand, lowered, and as a TensorDict module.

Run: ``python packages/rl-modules/benchmarks/bench_policy.py``. Prints microseconds, the least of many short runs,
all variants in turn, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl.core.specs import OneHot
from rl.core.tensor_functions import as_function
from rl.modules import MLP, OneHotCategorical, ProbabilisticActor, QValueActor, set_exploration_type


def microseconds(variants: dict[str, Callable[[], Any]], calls: int = 50, rounds: int = 150) -> dict[str, float]:
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            for _ in range(calls):
                variant()
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
    return best


def main() -> None:
    torch.set_num_threads(1)
    net, spec = MLP(4, 2, [64, 64]), OneHot(2, dtype=torch.int64)
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        ["logits"],
        spec=spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    q_actor = QValueActor(net, spec=spec)
    plain, plain_q = as_function(actor), as_function(q_actor)

    def by_hand(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs = net(x).log_softmax(-1)
        index = torch.multinomial(log_probs.exp(), 1)
        one_hot = torch.zeros(log_probs.shape, dtype=torch.int64).scatter_(-1, index, 1)
        return one_hot, log_probs.gather(-1, index).squeeze(-1)

    for count in (1, 16):
        x = torch.randn(count, 4)
        td = TensorDict(observation=x, batch_size=[count])
        variants = {
            "network": lambda x=x: net(x),
            "draw and score by hand": lambda x=x: by_hand(x),
            "actor, lowered": lambda x=x: plain(x),
            "actor, TensorDict": lambda td=td: actor(td.copy()),
            "best value, lowered": lambda x=x: plain_q(x),
            "best value, TensorDict": lambda td=td: q_actor(td.copy()),
        }
        with torch.no_grad(), set_exploration_type("random"):
            for name, value in microseconds(variants).items():
                print(f"batch {count:3}  {name:24} {value:7.1f} us")


if __name__ == "__main__":
    main()
