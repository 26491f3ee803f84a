"""Tic-tac-toe by self-play with proximal policy optimization: ``python self_play.py --total-frames 200000``."""

from __future__ import annotations

import argparse

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.collectors import Collector
from rl.core import ExplorationType, set_exploration_type
from rl.envs import TicTacToeEnv
from rl.modules import MLP, Categorical, ProbabilisticActor, ValueOperator
from rl.objectives import ClipPPOLoss
from rl.objectives.value.functional import vec_generalized_advantage_estimate

GAMES = 64  # played at the same time
FRAMES_PER_BATCH = 2048
EPOCHS = 8
MINIBATCH_SIZE = 256
LEARNING_RATE = 1e-3
GAMMA, LAMBDA = 1.0, 0.8
CHANCE = 0.25  # share of random moves, without which both sides soon repeat the same few games


class Moves(nn.Module):
    """Probabilities of the legal moves ``[*B, 9]``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = MLP(9, 9, num_cells=[128, 128])

    def forward(self, observation: Tensor, legal: Tensor) -> Tensor:
        chosen = self.net(observation).masked_fill(~legal, -torch.inf).softmax(-1)
        return (1 - CHANCE) * chosen + CHANCE * legal / legal.sum(-1, keepdim=True)


def estimate(batch: TensorDictBase, critic: ValueOperator) -> None:
    """Write advantages and value targets for the player who moves.

    One network plays both sides, so that values and rewards of consecutive moves belong to different players. In the
    eyes of the first player they are one sequence: ``side`` is 1 where that player moves and -1 where the other does.
    """
    side = 1.0 - 2.0 * batch["turn"]
    critic(batch)
    after = critic(TensorDict(observation=batch["next", "observation"], batch_size=batch.batch_size))["state_value"]
    advantage, target = vec_generalized_advantage_estimate(
        GAMMA,
        LAMBDA,
        batch["state_value"] * side,
        after * -side,  # it is the other player's turn
        batch["next", "player0", "reward"],
        batch["next", "done"],
        batch["next", "terminated"],
    )
    batch["advantage"], batch["value_target"] = advantage * side, target * side


@torch.no_grad()
def against_random(policy: nn.Module, games: int = 512) -> tuple[float, float, float]:
    """Shares of games that the policy wins, draws and loses against random moves; it begins in every other game."""
    env = TicTacToeEnv([games], categorical_action_encoding=True)
    td, mine = env.reset(), torch.arange(games) % 2
    score, open_ = torch.zeros(games), torch.ones(games, dtype=torch.bool)
    for ply in range(9):
        move = policy(td.clone())["action"]
        chance: Tensor = torch.multinomial(td["action_mask"].float().clamp_min(1e-9), 1).squeeze(-1)
        td["action"] = torch.where(mine == ply % 2, move, chance)
        after = env.step(td)["next"]
        reward = torch.where(mine == 0, after["player0", "reward"][:, 0], after["player1", "reward"][:, 0])
        score, open_ = score + reward * open_, open_ & ~after["done"][:, 0]
        td = after.exclude("player0", "player1")
    return (score > 0).float().mean().item(), (score == 0).float().mean().item(), (score < 0).float().mean().item()


def main(total_frames: int, seed: int) -> float:
    """Train, and return the share of games lost against random moves."""
    torch.manual_seed(seed)
    env = TicTacToeEnv([GAMES], categorical_action_encoding=True)
    actor = ProbabilisticActor(
        TensorDictModule(Moves(), in_keys=["observation", "action_mask"], out_keys=["probs"]),
        in_keys=["probs"],
        spec=env.action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(9, 1, num_cells=[128, 128]), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01, loss_critic_type="l2", normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)
    frames, lost = 0, 1.0
    for batch in Collector(env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=total_frames):  # [games, time]
        frames += batch.numel()
        with torch.no_grad():
            estimate(batch, critic)
        moves = batch.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(moves)).split(MINIBATCH_SIZE):
                out = loss(moves[rows])
                optimizer.zero_grad()
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                optimizer.step()
        with set_exploration_type(ExplorationType.MODE):
            won, drawn, lost = against_random(actor)
        print(f"{frames:>8} frames  won {won:.2f}  drawn {drawn:.2f}  lost {lost:.2f}", flush=True)
    return lost


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
