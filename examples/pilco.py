"""PILCO (Deisenroth and Rasmussen 2011) on Pendulum-v1, which begins at any angle: Gaussian processes as the model.

The model predicts a normal distribution of the next observation from one of the observation, in closed form, so that
the gradient of the expected reward passes through the imagined steps into the policy, and nothing is sampled.
"""

from __future__ import annotations

import argparse
import math

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.envs import FrameSkipTransform, ImaginedEnv, PendulumEnv

NUM_ENVS = 16  # episodes of a trial, of which the first STARTS are imagined
STARTS = 4
STEPS = 32  # of an episode, two frames of the simulator each
MAX_POINTS = 80  # of the Gaussian processes
NUM_CENTERS = 20
FIT_STEPS, POLICY_STEPS = 60, 20
LEARNING_RATE = 0.05
NOISE = 1e-4  # variance of all, in units of the data


def gp_moments(
    mean: Tensor, cov: Tensor, inputs: Tensor, beta: Tensor, scale: Tensor, signal: Tensor, inverse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, covariance, and covariance with the input, of Gaussian processes at a normal input.

    Deisenroth and Rasmussen, eq. 14 to 23, with a squared exponential kernel.

    Args:
        mean: Mean of the input, ``[B, d]``.
        cov: Its covariance, ``[B, d, d]``.
        inputs: Points of the data, ``[n, d]``.
        beta: Weights of the points, ``[e, n]`` for `e` outputs.
        scale: Length scales, ``[e, d]``.
        signal: Variances of the functions, ``[e]``.
        inverse: Inverse covariances of the data, ``[e, n, n]``; None if the functions are certain.

    Returns:
        ``[B, e]``, ``[B, e, e]`` and ``[B, d, e]``.
    """
    eye = torch.eye(mean.shape[-1], dtype=mean.dtype)
    away = (inputs - mean.unsqueeze(-2)).unsqueeze(-3)  # [B, 1, n, d]
    inverse_scale = (1 / scale).unsqueeze(-2)  # [e, 1, d]
    near = away * inverse_scale  # [B, e, n, d]
    # Means: products of kernel and input density, integrated.
    spread = inverse_scale.mT * cov.unsqueeze(-3) * inverse_scale + eye  # [B, e, d, d]
    solved = torch.linalg.solve(spread, near.mT).mT
    kernel = signal.unsqueeze(-1) * (-0.5 * (near * solved).sum(-1)).exp() / spread.det().sqrt().unsqueeze(-1)
    weighted = kernel * beta  # [B, e, n]
    out = weighted.sum(-1)
    across = cov @ torch.einsum("ben,bend->bde", weighted, solved * inverse_scale)
    # Second moments of each pair of outputs: E[f_i f_j] = beta_i^T L_ij beta_j.
    log_kernel = signal.log().unsqueeze(-1) - 0.5 * near.square().sum(-1)  # [B, e, n]
    narrow = away * inverse_scale.square()
    first, second = narrow.unsqueeze(-3), narrow.unsqueeze(-4)  # outputs i and j: [B, e, 1, n, d], [B, 1, e, n, d]
    both = (scale.pow(-2).unsqueeze(1) + scale.pow(-2)).unsqueeze(-2)  # [e, e, 1, d]
    wide = cov.unsqueeze(-3).unsqueeze(-3) * both + eye
    half = torch.linalg.solve(wide, cov.unsqueeze(-3).unsqueeze(-3).expand_as(wide)) / 2  # [B, e, e, d, d]
    one, other = first @ half, second @ half
    # The exponent (a + b)^T Q (a + b) and both kernels, as one product of wider vectors.
    left = (one * first).sum(-1) + log_kernel.unsqueeze(-2)
    right = (other * second).sum(-1) + log_kernel.unsqueeze(-3)
    ones = torch.ones_like(left)
    rows = torch.cat((2 * one, torch.stack((left, ones), -1)), -1)
    columns = torch.cat((second.expand_as(other), torch.stack((ones, right), -1)), -1)
    pairs = (rows @ columns.mT).exp() / wide.det().sqrt().unsqueeze(-1).unsqueeze(-1)  # [B, e, e, n, n]
    second_moment = ((pairs @ beta.unsqueeze(-1)).squeeze(-1) * beta.unsqueeze(-2)).sum(-1)
    if inverse is not None:  # the functions themselves are uncertain
        own = pairs.diagonal(dim1=1, dim2=2).movedim(-1, 1)
        second_moment = second_moment + torch.diag_embed(signal - (own * inverse).sum((-2, -1)))
    return out, second_moment - out.unsqueeze(-1) * out.unsqueeze(-2), across


class RBFController(nn.Module):
    """Policy of radial basis functions, of which a sine keeps the action in its bounds.

    Args:
        observation_dim: Width of the observation.
        num_centers: Number of radial basis functions.
        max_action: Bound of the action, which is one number.
    """

    def __init__(self, observation_dim: int, num_centers: int, max_action: float) -> None:
        super().__init__()
        options = {"dtype": torch.float64}
        self.centers = nn.Parameter(torch.randn(num_centers, observation_dim, **options))
        self.weights = nn.Parameter(0.1 * torch.randn(1, num_centers, **options))
        self.log_scale = nn.Parameter(torch.zeros(1, observation_dim, **options))
        self.max_action = max_action

    def forward(self, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean ``[B, 1]``, variance ``[B, 1, 1]`` and covariance with the observation ``[B, o, 1]``."""
        unit = torch.ones(1, dtype=mean.dtype)
        middle, var, across = gp_moments(mean, cov, self.centers, self.weights, self.log_scale.exp(), unit, None)
        width = (-var / 2).exp()
        action = self.max_action * width[..., 0] * middle.sin()
        square = self.max_action**2 * (1 - (-2 * var).exp() * (2 * middle).cos().unsqueeze(-1)) / 2
        slope = self.max_action * width * middle.cos().unsqueeze(-1)  # of the mean: Stein's lemma
        return action, square - action.square().unsqueeze(-1), across * slope


class GPWorldModel(nn.Module):
    """Gaussian processes of the change of the observation, one for each entry, with moments in closed form."""

    def fit(self, inputs: Tensor, change: Tensor) -> None:
        """Learn scales and noise by the marginal likelihood of ``[n, o + a]`` and ``[n, o]``."""
        self.inputs, outputs = inputs, change.shape[-1]
        start = inputs.std(0).clamp_min(1e-2).log().expand(outputs, -1)
        parts = torch.stack((change.var(0), 0.01 * change.var(0)), -1).clamp_min(NOISE).log()
        log_scale, log_var = start.clone().requires_grad_(), parts.clone().requires_grad_()
        optimizer = torch.optim.Adam([log_scale, log_var], lr=0.1)

        def covariance() -> Tensor:
            signal, noise = log_var.exp().unsqueeze(-1).unbind(-2)
            points = inputs / log_scale.exp().unsqueeze(-2)
            kernel = signal.unsqueeze(-1) * (-0.5 * torch.cdist(points, points).square()).exp()
            return kernel + (noise + NOISE).unsqueeze(-1) * torch.eye(len(inputs), dtype=inputs.dtype)

        for _ in range(FIT_STEPS):
            lower = torch.linalg.cholesky(covariance())
            white = torch.linalg.solve_triangular(lower, change.mT.unsqueeze(-1), upper=False)
            loss = white.square().sum() / 2 + lower.diagonal(dim1=-2, dim2=-1).log().sum()
            # Scales far from those of the data, and a noise of 0, would overfit few points.
            loss = loss + (((log_scale - start) / 3) ** 8).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            self.inverse = covariance().inverse()
            self.scale, self.signal = log_scale.exp(), log_var[:, 0].exp()
            self.beta = torch.einsum("enm,me->en", self.inverse, change)

    def forward(self, mean: Tensor, cov: Tensor, action: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean ``[B, o]`` and covariance ``[B, o, o]`` of the next observation."""
        act, var, across = action
        joint = torch.cat((mean, act), -1)
        both = torch.cat((torch.cat((cov, across), -1), torch.cat((across.mT, var), -1)), -2)
        change, spread, shared = gp_moments(joint, both, self.inputs, self.beta, self.scale, self.signal, self.inverse)
        shared = shared[..., : mean.shape[-1], :]
        out = cov + spread + shared + shared.mT
        return mean + change, (out + out.mT) / 2


def expected_reward(mean: Tensor, cov: Tensor) -> Tensor:
    """Return the mean ``[B, 1]`` of ``exp(-(x - goal)^T W (x - goal) / 2)``: 1 where the pole stands still on top."""
    goal = torch.tensor([1.0, 0, 0], dtype=mean.dtype)
    weight = torch.diag(torch.tensor([1.0, 1.0, 0.05], dtype=mean.dtype))
    wide = torch.eye(3, dtype=mean.dtype) + cov @ weight
    away = mean - goal
    distance = (away * (weight @ torch.linalg.solve(wide, away.unsqueeze(-1))).squeeze(-1)).sum(-1)
    return ((-distance / 2).exp() / wide.det().sqrt()).unsqueeze(-1)


def main(total_frames: int, seed: int) -> float:
    """Train, and return the mean return of the last episodes."""
    torch.manual_seed(seed)
    pendulum = PendulumEnv(batch_size=[NUM_ENVS], seed=seed).to(torch.float64)
    env = pendulum.append_transform(FrameSkipTransform(2))
    model, controller = GPWorldModel(), RBFController(3, NUM_CENTERS, max_action=2.0)

    def imagine(observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, cov = observation["mean"], observation["var"]
        mean, cov = model(mean, cov, controller(mean, cov))
        return mean, cov, expected_reward(mean, cov)

    keys = [("next", "observation", "mean"), ("next", "observation", "var"), ("next", "reward")]
    imagined = ImaginedEnv(TensorDictModule(imagine, ["observation"], keys), pendulum, batch_size=[STARTS])
    policy = TensorDictModule(
        lambda x: controller(x, x.new_zeros(*x.shape, x.shape[-1]))[0], ["observation"], ["action"]
    )
    expected_action = TensorDictModule(lambda x: controller(x["mean"], x["var"])[0], ["observation"], ["action"])
    optimizer = torch.optim.Adam(controller.parameters(), lr=LEARNING_RATE)

    inputs, changes, frames, returns = [], [], 0, math.nan
    while True:
        with torch.no_grad():  # a rollout without a policy takes random actions
            steps = env.rollout(STEPS, policy if frames else None, break_when_any_done=False)
        frames += steps.numel()
        returns = steps["next", "reward"].sum(1).mean().item()
        print(f"{frames:>8} frames  mean return {returns:8.1f}", flush=True)
        if frames >= total_frames:
            break
        flat = steps.reshape(-1)
        inputs.append(torch.cat((flat["observation"], flat["action"]), -1))
        changes.append(flat["next", "observation"] - flat["observation"])
        chosen = torch.randperm(sum(map(len, inputs)))[:MAX_POINTS]
        model.fit(torch.cat(inputs)[chosen], torch.cat(changes)[chosen])
        starts = steps[:STARTS, 0].select("observation")
        for _ in range(POLICY_STEPS):
            reward = imagined.rollout(STEPS, expected_action, tensordict=starts)["next", "reward"].mean()
            optimizer.zero_grad()
            (-reward).backward()
            optimizer.step()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=2_048)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
