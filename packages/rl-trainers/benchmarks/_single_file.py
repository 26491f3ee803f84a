"""PPO and DQN as one loop in plain PyTorch and Gymnasium, in the form of CleanRL's single-file scripts.

Huang et al., "CleanRL: high-quality single-file implementations of deep reinforcement learning algorithms", 2022. The
loops here are written from the description of the algorithms; they log nothing and evaluate nothing.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812 - its usual name


def make_envs(env: str, seed: int) -> tuple[Any, Any]:
    """One environment as a vector, which starts the next episode in the step that ends one; first observation."""

    def make() -> Any:
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env))

    envs = gymnasium.vector.SyncVectorEnv([make], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    envs.action_space.seed(seed)
    return envs, envs.reset(seed=seed)[0]


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Actor and critic."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = self._mlp(observations, actions, 0.01), self._mlp(observations, 1, 1.0)

    @staticmethod
    def _mlp(n_in: int, n_out: int, gain: float) -> nn.Sequential:
        hidden = [orthogonal(nn.Linear(n_in, 64), 2**0.5), orthogonal(nn.Linear(64, 64), 2**0.5)]
        return nn.Sequential(hidden[0], nn.Tanh(), hidden[1], nn.Tanh(), orthogonal(nn.Linear(64, n_out), gain))

    def act(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log-probability, the entropy, and the value."""
        dist = Categorical(logits=self.actor(x))
        chosen = dist.sample() if action is None else action
        return chosen, dist.log_prob(chosen), dist.entropy(), self.critic(x)


def gae(rewards: Tensor, values: Tensor, ends: Tensor, value: Tensor, ended: Tensor) -> Tensor:
    """Generalized advantage estimates of steps ``[T, 1]``; `value` and `ended` are those after the last one."""
    advantages, last, steps = torch.zeros_like(rewards), torch.zeros(1), len(rewards)
    for t in reversed(range(steps)):
        alive = 1 - (ended if t == steps - 1 else ends[t + 1])
        after = value if t == steps - 1 else values[t + 1]
        last = rewards[t] + 0.99 * after * alive - values[t] + 0.99 * 0.95 * alive * last
        advantages[t] = last
    return advantages


def ppo(
    env: str, seed: int, frames: int, steps: int = 2048, epochs: int = 10, minibatch: int = 64, rate: float = 3e-4
) -> None:
    """Train with clipped PPO."""
    torch.manual_seed(seed)
    envs, observation = make_envs(env, seed)
    width, choices = envs.single_observation_space.shape[0], envs.single_action_space.n
    agent = Agent(width, choices)
    optimizer = torch.optim.Adam(agent.parameters(), lr=rate, eps=1e-5)
    seen, taken = torch.zeros(steps, 1, width), torch.zeros(steps, 1)
    log_probs, rewards, ends, values = (torch.zeros(steps, 1) for _ in range(4))
    following, ended = torch.tensor(observation, dtype=torch.float32), torch.zeros(1)
    for _ in range(frames // steps):
        for t in range(steps):
            seen[t], ends[t] = following, ended
            with torch.no_grad():
                action, log_prob, _, value = agent.act(following)
            taken[t], log_probs[t], values[t] = action, log_prob, value.flatten()
            observation, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[t] = torch.tensor(reward, dtype=torch.float32)
            following = torch.tensor(observation, dtype=torch.float32)
            ended = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
        with torch.no_grad():
            value = agent.critic(following).flatten()
        advantages = gae(rewards, values, ends, value, ended)
        returns = (advantages + values).flatten()
        x, action, old = seen.reshape(-1, width), taken.flatten(), log_probs.flatten()
        advantage_of = advantages.flatten()
        for _ in range(epochs):
            order = np.random.permutation(steps)
            for start in range(0, steps, minibatch):
                rows = order[start : start + minibatch]
                _, log_prob, entropy, value = agent.act(x[rows], action[rows])
                ratio = (log_prob - old[rows]).exp()
                with torch.no_grad():
                    ((ratio - 1) - ratio.log()).mean(), ((ratio - 1).abs() > 0.2).float().mean().item()
                advantage = advantage_of[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                objective = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
                loss = objective - 0.0 * entropy.mean() + 0.5 * F.mse_loss(value.flatten(), returns[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    envs.close()


def dqn(
    env: str,
    seed: int,
    frames: int,
    *,
    rate: float,
    buffer_size: int,
    batch_size: int,
    learning_starts: int,
    train_every: int,
    target_every: int,
    epsilon_frames: int,
) -> None:
    """Train with deep Q-learning, one gradient step for each `train_every` frames."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    envs, observation = make_envs(env, seed)
    width, choices = envs.single_observation_space.shape[0], int(envs.single_action_space.n)

    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, choices))

    online, fixed = make(), make()
    fixed.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=rate)
    seen, following = (np.zeros((buffer_size, width), np.float32) for _ in range(2))
    taken, rewards, ends = np.zeros(buffer_size, np.int64), np.zeros(buffer_size, np.float32), np.zeros(buffer_size)
    for step in range(frames):
        if rng.random() < max(0.05, 1 - 0.95 * step / epsilon_frames):
            action = envs.action_space.sample()
        else:
            with torch.no_grad():
                action = online(torch.tensor(observation, dtype=torch.float32)).argmax(1).numpy()
        after, reward, terminated, truncated, infos = envs.step(action)
        real = after.copy()
        if truncated[0]:
            real[0] = infos["final_obs"][0]
        row = step % buffer_size
        seen[row], following[row], taken[row], rewards[row] = observation[0], real[0], action[0], reward[0]
        ends[row] = terminated[0]
        observation = after
        if step >= learning_starts and step % train_every == 0:
            rows = rng.integers(min(step + 1, buffer_size), size=batch_size)
            x, y = torch.from_numpy(seen[rows]), torch.from_numpy(following[rows])
            with torch.no_grad():
                best = fixed(y).amax(1)
                alive = torch.from_numpy(1 - ends[rows]).float()
                target = torch.from_numpy(rewards[rows]) + 0.99 * alive * best
            value = online(x).gather(1, torch.from_numpy(taken[rows]).unsqueeze(1)).squeeze(1)
            loss = F.smooth_l1_loss(value, target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), 10.0)
            optimizer.step()
        if step % target_every == 0:
            fixed.load_state_dict(online.state_dict())
    envs.close()
