"""ClipPPOLoss against the same arithmetic in plain PyTorch: forward and backward on 64 samples, 17-64-64-6 networks.

Both sides alternate in one process on one thread; medians of CPU time of the thread and of wall time, and their ratio.

    python benchmarks/ppo_loss.py [--rounds 200]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn import functional

from rl.objectives import ClipPPOLoss


class DiagonalNormal(Independent):
    """A normal distribution per dimension, scored as one."""

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__(Normal(loc, scale), 1)


class Head(nn.Module):
    """Two outputs: mean, and a standard deviation that depends on the state."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = self.net(x).chunk(2, -1)
        return loc, functional.softplus(scale) + 1e-4


def mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def plain(
    actor: nn.Module, critic: nn.Module, batch: list[Tensor], clip: float = 0.2, entropy_coeff: float = 0.01
) -> dict[str, Tensor]:
    """What the loss computes, diagnostics included, on tensors."""
    observation, action, old_log_prob, advantage, target = batch
    dist = DiagonalNormal(*actor(observation))
    log_ratio = dist.log_prob(action) - old_log_prob
    advantage = advantage.squeeze(-1)
    ratio = log_ratio.exp()
    objective = -(ratio * advantage).minimum(ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    value = critic(observation)
    value_loss = functional.smooth_l1_loss(value, target)
    entropy = dist.entropy()
    entropy_loss = -entropy_coeff * entropy.mean()
    with torch.no_grad():
        flat = log_ratio.detach()
        out = {
            "entropy": entropy.mean(),
            "kl_approx": (flat.expm1() - flat).mean(),
            "ESS": (2 * torch.logsumexp(flat, 0) - torch.logsumexp(2 * flat, 0)).exp() / len(flat),
            "explained_variance": 1 - (target - value).var(correction=0) / target.var(correction=0).clamp_min(1e-8),
            "clip_fraction": ((flat.exp() - 1).abs() > clip).float().mean(),
        }
    return {"loss_objective": objective, "loss_critic": value_loss, "loss_entropy": entropy_loss, **out}


def backward(out: Mapping[str, Tensor] | TensorDictBase) -> None:
    (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy, value = Head(mlp(12)), mlp(1)
    body = TensorDictModule(policy, in_keys=["observation"], out_keys=["loc", "scale"])
    head = ProbabilisticTensorDictModule(
        ["loc", "scale"], ["action"], distribution_class=DiagonalNormal, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(body, head)
    critic = TensorDictModule(value, in_keys=["observation"], out_keys=["state_value"])
    loss = ClipPPOLoss(actor, critic)
    batch = actor(TensorDict(observation=torch.randn(64, 17), batch_size=[64])).detach()
    batch["action_log_prob"] += 0.1 * torch.randn(64)
    batch["advantage"], batch["value_target"] = torch.randn(64, 1), torch.randn(64, 1)
    tensors = [batch[key] for key in ("observation", "action", "action_log_prob", "advantage", "value_target")]

    sides = {
        "plain forward": lambda: plain(policy, value, tensors),
        "loss forward": lambda: loss(batch),
        "plain forward + backward": lambda: backward(plain(policy, value, tensors)),
        "loss forward + backward": lambda: backward(loss(batch)),
    }
    ours, theirs = loss(batch), plain(policy, value, tensors)
    for key, expected in theirs.items():
        torch.testing.assert_close(ours[key], expected)
    times = {name: ([], []) for name in sides}
    for done in range(rounds + 20):
        for name, run in sides.items():
            loss.zero_grad()
            cpu, wall = time.thread_time(), time.perf_counter()
            for _ in range(5):
                run()
            if done >= 20:
                times[name][0].append((time.thread_time() - cpu) / 5 * 1e6)
                times[name][1].append((time.perf_counter() - wall) / 5 * 1e6)
    medians = {name: [statistics.median(x) for x in both] for name, both in times.items()}
    for name, (cpu, wall) in medians.items():
        print(f"{name:26} {cpu:8.0f} us CPU {wall:8.0f} us wall")
    for what in ("forward", "forward + backward"):
        cpu, wall = (
            ours / theirs for ours, theirs in zip(medians[f"loss {what}"], medians[f"plain {what}"], strict=True)
        )
        print(f"ratio of {what}: {cpu:.2f} CPU, {wall:.2f} wall (goal for forward + backward: at most 1.5)")


if __name__ == "__main__":
    main()
