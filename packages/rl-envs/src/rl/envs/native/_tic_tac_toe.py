"""`TicTacToeEnv`: a game of two players with a mask of legal actions, in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.interfaces import Leaves
from rl.core.specs import Binary, Bounded, Categorical, Composite, Unbounded
from rl.envs.native._base import NativeEnv, action_index, discrete_action

__all__ = ["TicTacToeEnv"]

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToeEnv(NativeEnv):
    """Tic-tac-toe; the players take turns, and one policy plays both sides.

    Reads ``action`` (a cell, row by row: one-hot ``[*B, 9]``, or int64 ``[*B]``), ``board`` and ``turn``. Writes:

    - ``board`` (int64 ``[*B, 3, 3]``): 1 for the first player's stones, -1 for the second's, 0 for free cells.
    - ``turn`` (int64 ``[*B, 1]``): 0 or 1, the player to move.
    - ``observation`` (float32 ``[*B, 9]``): the board, with 1 for stones of the player to move.
    - ``action_mask`` (bool ``[*B, 9]``): the free cells; see `ActionMask`.
    - ``("player0", "reward")`` and ``("player1", "reward")`` (float32 ``[*B, 1]``): 1 to the winner and -1 to the
      loser at the end, otherwise 0.

    An episode terminates with three in a row, with a full board, or with a stone on an occupied cell, which loses.

    Args:
        batch_size: number of games in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: accepted as by other environments; the game has no chance.
        categorical_action_encoding: actions are numbers instead of one-hot vectors.

    Example:
        >>> env = TicTacToeEnv(categorical_action_encoding=True)
        >>> moves = iter([0, 3, 1, 4, 2])
        >>> data = env.rollout(9, lambda td: td.set("action", torch.tensor(next(moves))))
        >>> data["next", "player0", "reward"].flatten()
        tensor([0., 0., 0., 0., 1.])
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 9

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed)
        self._categorical = categorical_action_encoding
        self._lines = torch.tensor(LINES, device=self._generator.device)
        board, turn = Bounded(-1, 1, shape=(3, 3), dtype=torch.int64), Categorical(2, shape=(1,))
        self.observation_spec = Composite(
            board=board,
            turn=turn,
            observation=Bounded(-1, 1, shape=(9,)),
            action_mask=Binary(9, dtype=torch.bool),
        )
        self.state_spec = Composite(board=board.clone(), turn=turn.clone())
        self.reward_spec = Composite(player0=Composite(reward=Unbounded(1)), player1=Composite(reward=Unbounded(1)))
        self.action_spec = discrete_action(9, categorical=categorical_action_encoding)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        flags = self._flags()
        cells = torch.zeros((*self.batch_size, 9), dtype=torch.int64, device=self._generator.device)
        return {**self._observe(cells, torch.zeros_like(flags["done"], dtype=torch.int64)), **flags}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["board"].flatten(-2), state["turn"])

    def _step_leaves(self, root: Leaves) -> Leaves:
        cells, turn = root["board"].flatten(-2), root["turn"]
        cell = action_index(root["action"], categorical=self._categorical).unsqueeze(-1)
        stone = 1 - 2 * turn
        illegal = (cells.gather(-1, cell) != 0).squeeze(-1)
        cells = torch.where(illegal.unsqueeze(-1), cells, cells.scatter(-1, cell, stone))
        wins = ((cells[..., self._lines].sum(-1) * stone) == 3).any(-1) & ~illegal
        over = illegal | wins | (cells != 0).all(-1)
        first = (wins.long() - illegal.long()).unsqueeze(-1) * stone
        rewards: Leaves = {("player0", "reward"): first.float(), ("player1", "reward"): (-first).float()}
        return {**self._observe(cells, 1 - turn), **rewards, **self._flags(over)}

    @staticmethod
    def _observe(cells: Tensor, turn: Tensor) -> Leaves:
        return {
            "board": cells.unflatten(-1, (3, 3)),
            "turn": turn,
            "observation": (cells * (1 - 2 * turn)).float(),
            "action_mask": cells == 0,
        }
