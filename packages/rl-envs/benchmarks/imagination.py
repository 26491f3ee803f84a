"""Imagination through `DreamerEnv` against a plain loop of the same cells, interleaved, one thread.

1,024 starts, 15 steps, the prior and the heads of DreamerV3 in the size of the argument, and a policy; with gradients.

python packages/rl-envs/benchmarks/imagination.py [1M]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor

from rl.core.specs import Unbounded
from rl.envs import DreamerEnv
from rl.modules import DreamerV3MLP, RSSMPriorV3, dreamer_v3_size

STARTS, STEPS, ACTION, RUNS = 1024, 15, 6, 15
ROOT, AFTER = ["state", "belief"], [("next", "state"), ("next", "belief")]


def sides(name: str) -> dict[str, Callable[[], Tensor]]:
    """Return functions that imagine, and return the mean reward."""
    size = dreamer_v3_size(name)
    state, belief = 32 * size.classes, size.deter
    widths = {"hidden_dim": size.hidden, "rnn_hidden_dim": belief, "num_classes": size.classes}
    prior = RSSMPriorV3(action_dim=ACTION, **widths)
    reward = DreamerV3MLP(state + belief, 1, 1, size.units)
    actor = DreamerV3MLP(state + belief, ACTION, 3, size.units)
    step = TensorDictSequential(
        TensorDictModule(prior, [*ROOT, "action"], ["_", *AFTER]),
        TensorDictModule(reward, AFTER, [("next", "reward")]),
    )
    env = DreamerEnv(step, (state,), (belief,))
    env.action_spec = Unbounded(ACTION)
    policy = TensorDictModule(actor, ROOT, ["action"])
    start = {"state": torch.zeros(STARTS, state), "belief": torch.zeros(STARTS, belief)}

    def plain() -> Tensor:
        one, two = start["state"], start["belief"]
        states: list[Tensor] = []
        beliefs: list[Tensor] = []
        actions: list[Tensor] = []
        rewards: list[Tensor] = []
        for _ in range(STEPS):
            action = actor(one, two)
            _, one, two = prior(one, two, action)
            for rows, row in ((states, one), (beliefs, two), (actions, action), (rewards, reward(one, two))):
                rows.append(row)
        torch.stack(states, 1), torch.stack(beliefs, 1), torch.stack(actions, 1)  # a rollout returns them
        return torch.stack(rewards, 1).mean()

    def rollout() -> Tensor:
        td = TensorDict(start, batch_size=[STARTS])
        return env.rollout(STEPS, policy, tensordict=td)["next", "reward"].mean()

    return {"plain loop": plain, "DreamerEnv.rollout": rollout}


def main() -> None:
    """Print medians of CPU time, and the ratio to the plain loop; forward and backward."""
    torch.set_num_threads(1)
    found = sides(sys.argv[1] if len(sys.argv) > 1 else "1M")
    times: dict[str, list[float]] = {name: [] for name in found}
    for run in range(RUNS + 2):
        for name, imagine in found.items():
            begin = time.process_time()
            imagine().backward()
            if run > 1:
                times[name].append(time.process_time() - begin)
    base = statistics.median(times["plain loop"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:20} {1e3 * median:8.1f} ms   {median / base:.2f} x")


if __name__ == "__main__":
    main()
