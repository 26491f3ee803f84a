"""One update of soft actor-critic costs at most 1.1 times the same by hand, and is cheaper than Stable-Baselines3's.

An update is the losses of actor, twin critics and temperature for a batch of 256, their gradients, Adam and the target
networks; networks have two hidden layers of 256 units. By hand: the formulas in plain PyTorch, with both critics in one
batched matrix product, fused Adam and one fused pass over the targets. Stable-Baselines3 trains on the same batch, with
its own optimizers. Medians of CPU time of the thread, in milliseconds, interleaved on one thread.

    python benchmarks/sac_update.py [--rounds 21]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from peers import interleave, ratio, row, table
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from rl.objectives import SACLoss, SoftUpdate

OBSERVATIONS, ACTIONS, ROWS, GAMMA, TAU, RATE, GOAL = 17, 6, 256, 0.99, 0.005, 3e-4, 1.1
CONSTANT = ACTIONS * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
kernels: Any = torch  # those on many tensors have no public names


class Gaussian(nn.Module):
    """Mean and standard deviation, whose logarithm is clamped."""

    def __init__(self) -> None:
        super().__init__()
        self.body = MLP(OBSERVATIONS, 2 * ACTIONS, [256, 256], activation_class=nn.ReLU)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = self.body(observation).chunk(2, -1)
        return loc, log_scale.clamp(-20, 2).exp()


def make_batch() -> TensorDict:
    ended = torch.rand(ROWS, 1) < 0.05
    after = {
        "observation": torch.randn(ROWS, OBSERVATIONS),
        "reward": torch.randn(ROWS, 1),
        "done": ended,
        "terminated": ended.clone(),
    }
    action = torch.rand(ROWS, ACTIONS) * 2 - 1
    return TensorDict(observation=torch.randn(ROWS, OBSERVATIONS), action=action, next=after, batch_size=[ROWS])


def ours(batch: TensorDict, make_adam: Callable[[Any], torch.optim.Adam]) -> tuple[SACLoss, Callable[[], Any]]:
    actor = ProbabilisticActor(
        TensorDictModule(Gaussian(), ["observation"], ["loc", "scale"]),
        ["loc", "scale"],
        distribution_class=TanhNormal,
    )
    net = MLP(OBSERVATIONS + ACTIONS, 1, [256, 256], activation_class=nn.ReLU)
    loss = SACLoss(actor, ValueOperator(net, ["observation", "action"]), loss_function="l2", gamma=GAMMA)
    optimizer, updater = make_adam(loss.parameters()), SoftUpdate(loss, tau=TAU)

    def update() -> Any:
        out = loss(batch)
        (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        updater.step()
        return out

    return loss, update


def values(weights: list[Tensor], observation: Tensor, action: Tensor) -> Tensor:
    """Values by critic ``[2, B, 1]``; `weights` are matrices ``[2, in, out]`` and vectors ``[2, 1, out]`` in turn."""
    x = torch.cat([observation, action], -1).expand(2, -1, -1)
    for i in range(0, len(weights), 2):
        x = torch.baddbmm(weights[i + 1], x, weights[i])
        x = x.relu() if i < len(weights) - 2 else x
    return x


def by_hand(
    batch: TensorDict, loss: SACLoss, make_adam: Callable[[Any], torch.optim.Adam]
) -> Callable[[], dict[str, Tensor]]:
    """The same update, from the parameters that `loss` has now."""
    body = MLP(OBSERVATIONS, 2 * ACTIONS, [256, 256], activation_class=nn.ReLU)
    body.load_state_dict(loss.actor_network[0].module.body.state_dict())
    stacked = [
        torch.stack(pair) for pair in zip(*(one.parameters() for one in loss.qvalue_network.members), strict=True)
    ]
    critics = [(one.mT if one.ndim == 3 else one.unsqueeze(1)).detach().clone().requires_grad_() for one in stacked]
    targets, log_alpha = [one.detach().clone() for one in critics], torch.zeros((), requires_grad=True)
    optimizer = make_adam([*body.parameters(), *critics, log_alpha])
    observation, action, after = batch["observation"], batch["action"], batch["next"]

    def act(x: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_scale = body(x).chunk(2, -1)
        log_scale = log_scale.clamp(-20, 2)
        noise = torch.randn_like(loc)
        raw = loc + noise * log_scale.exp()
        stretch = 2 * (raw + F.softplus(-2 * raw))
        return raw.tanh(), (stretch - 0.5 * noise.square() - log_scale).sum(-1, keepdim=True) - CONSTANT

    def update() -> dict[str, Tensor]:
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            chosen, log_prob = act(after["observation"])
            following = values(targets, after["observation"], chosen).amin(0) - alpha * log_prob
            target = after["reward"] + GAMMA * ~after["terminated"] * following
        error = values(critics, observation, action) - target
        chosen, log_prob = act(observation)
        best = values([one.detach() for one in critics], observation, chosen).amin(0)
        out = {
            "loss_qvalue": error.square().mean((1, 2)).sum(),
            "loss_actor": (alpha * log_prob - best).mean(),
            "loss_alpha": -log_alpha * (log_prob.detach() - ACTIONS).mean(),
        }
        (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            kernels._foreach_lerp_(targets, critics, TAU)
        return out

    return update


def stable_baselines(batch: TensorDict) -> Callable[[], Any] | None:
    try:
        import gymnasium
        from stable_baselines3 import SAC
        from stable_baselines3.common.logger import configure
        from stable_baselines3.common.type_aliases import ReplayBufferSamples
    except ImportError:
        return None

    class Spaces(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-9, 9, (OBSERVATIONS,))
        action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,))

    model = SAC("MlpPolicy", Spaces(), device="cpu", buffer_size=1, learning_rate=RATE, gamma=GAMMA, tau=TAU)
    model.set_logger(configure(format_strings=[]))
    after = batch["next"]
    ended = after["terminated"].float()
    rows = ReplayBufferSamples(batch["observation"], batch["action"], after["observation"], ended, after["reward"])
    assert model.replay_buffer is not None
    model.replay_buffer.sample = lambda *_, **__: rows
    return lambda: model.train(gradient_steps=1, batch_size=ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = make_batch()

    def make_adam(parameters: Any) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=RATE, fused=True)

    loss, update = ours(batch, make_adam)
    plain = by_hand(batch, loss, make_adam)
    for _ in range(3):  # the same numbers, also after updates
        torch.manual_seed(1)
        found = update()
        torch.manual_seed(1)
        for key, expected in plain().items():
            torch.testing.assert_close(found[key], expected, rtol=1e-3, atol=1e-3)
    sides: dict[str, Any] = {"by hand": plain, "ours": update}
    theirs = stable_baselines(batch)
    if theirs is not None:
        sides["SB3"] = theirs
    times = interleave(sides, arguments.rounds, 0.1)
    table(["by hand", "ours", "SB3", "ours / by hand", "ours / SB3"])
    cells = [f"{times[side][0] / 1e3:.2f}" if side in times else "not installed" for side in ("by hand", "ours", "SB3")]
    print(row([*cells, ratio(times, "ours", "by hand"), ratio(times, "ours", "SB3")]))
    print(f"\ngoal: {GOAL} by hand")


if __name__ == "__main__":
    main()
