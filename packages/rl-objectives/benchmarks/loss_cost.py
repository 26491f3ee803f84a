"""Losses against the same arithmetic in plain PyTorch: forward and backward, batches of 64 and 256, 2 x 256 networks.

The plain form is written here with the same networks, targets and outputs. Both run interleaved in one process on one
thread; medians of CPU time of the thread, in microseconds, and ratios of CPU time, of wall time in brackets.

    python benchmarks/loss_cost.py [--rounds 31] [--only QRDQNLoss]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peers import interleave, ratio, row, table
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.objectives import (
    A2CLoss,
    DistributionalDQNLoss,
    DQNLoss,
    ImpalaLoss,
    KLPENPPOLoss,
    LossModule,
    QRDQNLoss,
    ReinforceLoss,
    RNDLoss,
)

FEATURES, ACTIONS, ATOMS, GAMMA, STEPS = 17, 6, 51, 0.99, 16
Out = dict[str, Tensor]
Case = tuple[LossModule, Callable[[TensorDict], Out]]


def mlp(*outputs: int) -> nn.Sequential:
    last = nn.Linear(256, torch.Size(outputs).numel())
    layers = [nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), last]
    return nn.Sequential(*layers, *([nn.Unflatten(-1, outputs)] if len(outputs) > 1 else []))


def module(network: nn.Module, key: str) -> TensorDictModule:
    return TensorDictModule(network, in_keys=["observation"], out_keys=[key])


def actor_critic() -> tuple[nn.Module, nn.Module, ProbabilisticTensorDictSequential, TensorDictModule]:
    policy, value = mlp(ACTIONS), mlp(1)
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    return (
        policy,
        value,
        ProbabilisticTensorDictSequential(module(policy, "logits"), head),
        module(value, "state_value"),
    )


def make_batch(rows: int) -> TensorDict:
    """Sequences of 16 steps, flat for all losses but IMPALA's."""
    flag = torch.rand(rows, 1) < 0.05
    after = {"observation": torch.randn(rows, FEATURES), "reward": torch.randn(rows, 1), "done": flag}
    logits = torch.randn(rows, ACTIONS)
    action = Categorical(logits=logits).sample()
    names = ("advantage", "value_target")
    return TensorDict(
        {
            "observation": torch.randn(rows, FEATURES),
            "logits": logits,
            "action": action,
            "action_log_prob": Categorical(logits=logits).log_prob(action),
            **{name: torch.randn(rows, 1) for name in names},
            "next": {**after, "terminated": flag.clone()},
        },
        batch_size=[rows],
    )


def outcome(td: TensorDict) -> tuple[Tensor, Tensor, Tensor]:
    return td["next", "observation"], td["next", "reward"], GAMMA * ~td["next", "terminated"]


def q_out(elements: Tensor, error: Tensor, predicted: Tensor, target: Tensor) -> Out:
    return {
        "loss": elements.mean(),
        "td_error": error.mean(),
        "pred_value": predicted.detach().mean(),
        "target_value": target.mean(),
    }


def dqn() -> Case:
    loss = DQNLoss(module(mlp(ACTIONS), "action_value"), gamma=GAMMA)
    online, fixed = loss.value_network.module, loss.target_value_network.module

    def plain(td: TensorDict) -> Out:
        predicted = online(td["observation"]).gather(-1, td["action"].unsqueeze(-1))
        following, reward, discount = outcome(td)
        with torch.no_grad():
            target = reward + discount * fixed(following).amax(-1, keepdim=True)
        return q_out(
            F.mse_loss(predicted, target, reduction="none"), (predicted.detach() - target).abs(), predicted, target
        )

    return loss, plain


def c51() -> Case:
    support = torch.linspace(-10, 10, ATOMS)
    loss = DistributionalDQNLoss(module(mlp(ATOMS, ACTIONS), "action_value"), support=support, gamma=GAMMA)
    online, fixed = loss.value_network.module, loss.target_value_network.module

    def plain(td: TensorDict) -> Out:
        following, reward, discount = outcome(td)
        rows = torch.arange(len(td))
        log_p = online(td["observation"])[rows, :, td["action"]].log_softmax(-1)
        with torch.no_grad():
            p = fixed(following).softmax(-2)
            p = p[rows, :, (p * support.unsqueeze(-1)).sum(-2).argmax(-1)]
            b = ((reward + discount * support).clamp(-10, 10) + 10) * ((ATOMS - 1) / 20)
            low = b.floor()
            index, share = low.long(), b - low
            m = torch.zeros_like(p).scatter_add_(-1, index, p * (1 - share))
            m.scatter_add_(-1, (index + 1).clamp_max(ATOMS - 1), p * share)
        cross = -(m * log_p).sum(-1)
        error = cross.detach() + torch.special.xlogy(m, m).sum(-1)
        return q_out(cross, error, log_p.detach().exp() @ support, m @ support)

    return loss, plain


def qr_dqn() -> Case:
    loss = QRDQNLoss(module(mlp(ACTIONS, ATOMS), "action_value"), gamma=GAMMA)
    online, fixed = loss.value_network.module, loss.target_value_network.module
    level = (torch.arange(ATOMS) + 0.5).unsqueeze(-1) / ATOMS

    def plain(td: TensorDict) -> Out:
        following, reward, discount = outcome(td)
        rows = torch.arange(len(td))
        theta = online(td["observation"])[rows, td["action"]]
        with torch.no_grad():
            quantiles = fixed(following)
            target = reward + discount * quantiles[rows, quantiles.mean(-1).argmax(-1)]
        error = target.unsqueeze(-2) - theta.unsqueeze(-1)
        huber = F.huber_loss(error, torch.zeros_like(error), reduction="none")
        elements = ((level - (error.detach() < 0).float()).abs() * huber).mean(-1).sum(-1)
        mean, aim = theta.detach().mean(-1), target.mean(-1)
        return q_out(elements, (mean - aim).abs(), mean, aim)

    return loss, plain


def diagnostics(log_ratio: Tensor, entropy: Tensor, value: Tensor, target: Tensor) -> Out:
    with torch.no_grad():
        return {
            "entropy": entropy.mean(),
            "kl_approx": (log_ratio.expm1() - log_ratio).mean(),
            "ESS": (2 * log_ratio.logsumexp(0) - (2 * log_ratio).logsumexp(0)).exp() / len(log_ratio),
            "explained_variance": 1 - (target - value).var(correction=0) / target.var(correction=0).clamp_min(1e-8),
        }


def kl_pen() -> Case:
    policy, value, actor, critic = actor_critic()
    loss = KLPENPPOLoss(actor, critic).eval()

    def plain(td: TensorDict) -> Out:
        dist, target = Categorical(logits=policy(td["observation"])), td["value_target"]
        log_ratio = dist.log_prob(td["action"]) - td["action_log_prob"]
        kl = kl_divergence(Categorical(logits=td["logits"]), dist)
        entropy, values = dist.entropy(), value(td["observation"])
        return {
            "loss_objective": (kl - log_ratio.exp() * td["advantage"].squeeze(-1)).mean(),
            "loss_critic": F.smooth_l1_loss(values, target),
            "loss_entropy": -0.01 * entropy.mean(),
            **diagnostics(log_ratio, entropy, values, target),
            "kl": kl.detach().mean(),
        }

    return loss, plain


def a2c() -> Case:
    policy, value, actor, critic = actor_critic()

    def plain(td: TensorDict) -> Out:
        dist = Categorical(logits=policy(td["observation"]))
        entropy = dist.entropy()
        return {
            "loss_objective": -(dist.log_prob(td["action"]) * td["advantage"].squeeze(-1)).mean(),
            "loss_critic": F.smooth_l1_loss(value(td["observation"]), td["value_target"]),
            "loss_entropy": -0.01 * entropy.mean(),
            "entropy": entropy.detach().mean(),
        }

    return A2CLoss(actor, critic), plain


def reinforce() -> Case:
    policy, value, actor, critic = actor_critic()

    def plain(td: TensorDict) -> Out:
        dist = Categorical(logits=policy(td["observation"]))
        return {
            "loss_actor": -(dist.log_prob(td["action"]) * td["advantage"].squeeze(-1)).mean(),
            "loss_value": F.smooth_l1_loss(value(td["observation"]), td["value_target"]),
        }

    return ReinforceLoss(actor, critic), plain


def impala() -> Case:
    policy, value, actor, critic = actor_critic()

    def plain(td: TensorDict) -> Out:
        following, reward, discount = outcome(td)
        dist = Categorical(logits=policy(td["observation"]))
        log_pi, values, entropy = dist.log_prob(td["action"]), value(td["observation"]), dist.entropy()
        with torch.no_grad():
            after = value(following)
            ratio = (log_pi - td["action_log_prob"]).exp().unsqueeze(-1).clamp_max(1.0)
            delta = ratio * (reward + discount * after - values)
            trace = GAMMA * ~td["next", "done"] * ratio
            found = [torch.zeros_like(delta[:, 0])]
            for t in reversed(range(STEPS)):
                found += [delta[:, t] + trace[:, t] * found[-1]]
            beyond = torch.stack(found[:0:-1], 1)
            next_beyond = torch.cat((beyond[:, 1:], torch.zeros_like(beyond[:, :1])), 1)
            advantage = delta + trace * next_beyond
            target = beyond + values
        return {
            "loss_objective": -(log_pi * advantage.squeeze(-1)).mean(),
            "loss_critic": 0.5 * F.mse_loss(values, target),
            "loss_entropy": -0.01 * entropy.mean(),
            "entropy": entropy.detach().mean(),
        }

    return ImpalaLoss(actor, critic, gamma=GAMMA), plain


def rnd() -> Case:
    predictor, fixed = mlp(64), mlp(64)

    def plain(td: TensorDict) -> Out:
        with torch.no_grad():
            target = fixed(td["next", "observation"])
        error = (predictor(td["next", "observation"]) - target).square().mean(-1)
        return {"loss_predictor": error.mean(), "intrinsic_reward": error.detach().mean()}

    return RNDLoss(predictor, fixed), plain


CASES = (dqn, c51, qr_dqn, kl_pen, a2c, reinforce, impala, rnd)


def run(function: Callable[[TensorDict], Any], batch: TensorDict, names: list[str]) -> None:
    out = function(batch)
    torch.stack([out[key] for key in names]).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", help="name of one loss")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table(["loss", "batch", "plain CPU", "loss CPU", "ratio"])
    for make in CASES:
        torch.manual_seed(0)
        loss, plain = make()
        name = type(loss).__name__
        if arguments.only not in (None, name):
            continue
        for rows in (64, 256):
            batch = make_batch(rows)
            if make is impala:
                batch = batch.reshape(-1, STEPS)
            ours, theirs = loss(batch), plain(batch)
            for key, expected in theirs.items():
                torch.testing.assert_close(ours[key], expected, rtol=1e-4, atol=1e-5)
            names = [key for key in theirs if key.startswith("loss")]
            sides = {
                side: partial(run, function, batch, names) for side, function in (("plain", plain), ("loss", loss))
            }
            found = interleave(sides, arguments.rounds, 0.05)
            cells = [name, str(rows), *(f"{found[side][0]:,.0f}" for side in ("plain", "loss"))]
            print(row([*cells, ratio(found, "loss", "plain")]))


if __name__ == "__main__":
    main()
