"""MAPPO on VMAS ``balance``, 64 environments: frames per second beside TorchRL's recipe.

TorchRL's side is its example ``sota-implementations/multiagent/mappo_ippo.py`` without loggers and configuration:
collector, generalized advantage estimation, replay buffer without replacement, clipped loss. Networks, batches, epochs
and learning rate are the same; ours also writes metrics and checkpoints and evaluates once. Needs ``torchrl`` and
``vmas``.
Run: ``python mappo_vs_torchrl.py [repetitions] [frames] [width of the hidden layers]``.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from _sides import compare
from torch import nn

FRAMES = 64_000
ENVS, STEPS, EPOCHS, MINIBATCH = 64, 100, 10, 800
HIDDEN = [256, 256]
RATE, GAMMA, LAMBDA, CLIP, NORM = 3e-4, 0.99, 0.9, 0.2, 5.0


def ours(seed: int, frames: int = FRAMES) -> None:
    from rl.trainers import MAPPOConfig, train_mappo

    config = MAPPOConfig(
        env="vmas/balance",
        total_frames=frames,
        seed=seed,
        num_envs=ENVS,
        frames_per_batch=ENVS * STEPS,
        epochs=EPOCHS,
        minibatch_size=MINIBATCH,
        learning_rate=RATE,
        gamma=GAMMA,
        lmbda=LAMBDA,
        clip_epsilon=CLIP,
        max_grad_norm=NORM,
        num_cells=tuple(HIDDEN),
        state_independent_std=False,
        eval_every=10**9,
        eval_episodes=1,
        final_eval_episodes=1,
        loggers=("csv",),
    )
    with tempfile.TemporaryDirectory() as folder:
        train_mappo(config, out=f"{folder}/run", display="none")


def torchrl(seed: int, frames: int = FRAMES) -> None:
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
    from torchrl.envs import RewardSum, TransformedEnv, VmasEnv
    from torchrl.modules import MultiAgentMLP, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss, ValueEstimators

    torch.manual_seed(seed)
    env = VmasEnv("balance", num_envs=ENVS, continuous_actions=True, max_steps=STEPS, seed=seed)
    env = TransformedEnv(env, RewardSum(in_keys=[env.reward_key], out_keys=[("agents", "episode_reward")]))
    width, agents = env.observation_spec["agents", "observation"].shape[-1], env.n_agents
    net = MultiAgentMLP(
        width,
        2 * env.full_action_spec[env.action_key].shape[-1],
        agents,
        centralized=False,
        share_params=True,
        num_cells=HIDDEN,
        activation_class=nn.Tanh,
        depth=2,
    )
    body = TensorDictModule(
        nn.Sequential(net, NormalParamExtractor()),
        in_keys=[("agents", "observation")],
        out_keys=[("agents", "loc"), ("agents", "scale")],
    )
    unbatched = env.full_action_spec_unbatched[env.action_key].space
    policy = ProbabilisticActor(
        body,
        spec=env.full_action_spec_unbatched,
        in_keys=[("agents", "loc"), ("agents", "scale")],
        out_keys=[env.action_key],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": unbatched.low, "high": unbatched.high},
        return_log_prob=True,
    )
    critic = ValueOperator(
        MultiAgentMLP(
            width, 1, agents, centralized=True, share_params=True, num_cells=HIDDEN, activation_class=nn.Tanh, depth=2
        ),
        in_keys=[("agents", "observation")],
        out_keys=[("agents", "state_value")],
    )
    collector = Collector(env, policy, frames_per_batch=ENVS * STEPS, total_frames=frames)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ENVS * STEPS), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    loss = ClipPPOLoss(policy, critic, clip_epsilon=CLIP, entropy_coeff=0.0, normalize_advantage=True)
    loss.set_keys(
        reward=env.reward_key,
        action=env.action_key,
        done=("agents", "done"),
        terminated=("agents", "terminated"),
        value=("agents", "state_value"),
    )
    loss.make_value_estimator(ValueEstimators.GAE, gamma=GAMMA, lmbda=LAMBDA)
    optimizer = torch.optim.Adam(loss.parameters(), RATE)
    for data in collector:
        for name in ("done", "terminated"):
            flag = data["next", name].unsqueeze(-1).expand(data["next", *env.reward_key].shape)
            data["next", "agents", name] = flag
        with torch.no_grad():
            loss.value_estimator(
                data, params=loss.critic_network_params, target_params=loss.target_critic_network_params
            )
        buffer.extend(data.reshape(-1))
        for _ in range(EPOCHS):
            for _ in range(ENVS * STEPS // MINIBATCH):
                out = loss(buffer.sample())
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), NORM)
                optimizer.step()
                optimizer.zero_grad()
    collector.shutdown()


def main(repetitions: int = 3, frames: int = FRAMES, width: int = 256) -> None:
    HIDDEN[:] = [width, width]
    found = compare({"ours": ours, "torchrl": torchrl}, frames, repetitions, ENVS * STEPS)
    for name in ("ours", "torchrl"):
        print(f"{name}: {frames / found[f'{name}_wall_seconds']:.0f} frames per second")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
