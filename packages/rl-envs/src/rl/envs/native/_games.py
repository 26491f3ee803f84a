"""`BanditEnv`: a multi-armed bandit in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError
from rl.core.interfaces import Leaves
from rl.core.specs import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
from rl.envs.native._base import NativeEnv, action_index, discrete_action


class BanditEnv(NativeEnv):
    """Bandit with normally distributed rewards: the testbed of Sutton and Barto, "Reinforcement Learning", sec. 2.3.

    Each episode draws the mean reward of every arm from a standard normal distribution, or uses `means`. Reads
    ``action`` (one-hot ``[*B, arms]``, or int64 ``[*B]``) and ``means`` ``[*B, arms]``. Writes ``observation``
    ``[*B, 1]`` (zero: there is nothing to see), ``means`` (not for the policy) and ``reward`` ``[*B, 1]``, the mean of
    the arm plus noise. Episodes do not end: append `StepCounter(max_steps=1000)` for the testbed's length; trainers
    read it from `max_episode_steps`.

    Args:
        batch_size: Number of bandits in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of means and noise; nondeterministic if None.
        arms: Number of arms.
        means: Mean reward of each arm; drawn at each reset if None.
        std: Standard deviation of the noise.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

    Raises:
        ArgumentError: If there are fewer than two arms, not one mean for each, or `std` is negative.

    Example:
        >>> env = BanditEnv(arms=2, means=[0.0, 1.0], std=0.0, categorical_action_encoding=True)
        >>> env.rollout(2, lambda td: td.set("action", torch.tensor(1)))["next", "reward"].flatten()
        tensor([1., 1.])
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 1000

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        arms: int = 10,
        means: Sequence[float] | None = None,
        std: float = 1.0,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed)
        if arms < 2 or (means is not None and len(means) != arms):
            count = "no means" if means is None else f"{len(means)} means"
            raise ArgumentError(f"BanditEnv takes at least two arms and one mean for each, got arms={arms} and {count}")
        self.arms, self.std = arms, as_number(std, "BanditEnv", "std", least=0)
        self._means = None if means is None else torch.tensor(means, dtype=torch.float32, device=self._generator.device)
        self._categorical = categorical_action_encoding
        self.observation_spec = Composite(observation=Unbounded(1), means=Unbounded(arms))
        self.state_spec = Composite(means=Unbounded(arms))
        self.action_spec = discrete_action(arms, categorical=categorical_action_encoding)

    def _normal(self, *shape: int) -> Tensor:
        generator = self._generator
        return torch.randn((*self.batch_size, *shape), generator=generator, device=generator.device)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        fixed = self._means
        means = self._normal(self.arms) if fixed is None else fixed.expand(*self.batch_size, self.arms).clone()
        return {"means": means, "observation": torch.zeros_like(means[..., :1]), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return {"means": state["means"], "observation": torch.zeros_like(state["means"][..., :1])}

    def _step_leaves(self, root: Leaves) -> Leaves:
        means = root["means"]
        arm = action_index(root["action"], categorical=self._categorical).unsqueeze(-1)
        reward = means.gather(-1, arm) + self.std * self._normal(1)
        return {"means": means.clone(), "observation": torch.zeros_like(reward), "reward": reward, **self._flags()}


MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class GridWorldEnv(NativeEnv):
    """Grid of cells with walls and one goal; moves off the grid or into a wall leave the agent where it is.

    Reads ``action`` (up, right, down, left: one-hot ``[*B, 4]``, or int64 ``[*B]``) and ``cell`` (int64 ``[*B]``,
    row * columns + column). Writes the new ``cell``, ``observation`` (one-hot of the cell, bool
    ``[*B, rows * columns]``), ``reward`` ``[*B, 1]`` and the done flags: an episode terminates at the goal.

    Args:
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of start cells and slips; nondeterministic if None.
        size: Rows and columns.
        start: Row and column of the start; a random free cell if None.
        goal: Row and column of the goal; the last cell if None.
        walls: Row and column of each wall.
        slip: Probability that the move is a random one of the four.
        rewards: Rewards of a step that does not reach the goal, and of the step that does.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

    Raises:
        ArgumentError: If a cell lies outside the grid, or start or goal is a wall.

    Example:
        >>> env = GridWorldEnv(size=(2, 2), start=(0, 0), categorical_action_encoding=True)
        >>> data = env.rollout(2, lambda td: td.set("action", torch.tensor(1 if td["cell"] == 0 else 2)))
        >>> data["next", "reward"].flatten()
        tensor([-1.,  0.])
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 200

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        size: tuple[int, int] = (5, 5),
        start: tuple[int, int] | None = (0, 0),
        goal: tuple[int, int] | None = None,
        walls: Sequence[tuple[int, int]] = (),
        slip: float = 0.0,
        rewards: tuple[float, float] = (-1.0, 0.0),
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed)
        rows, columns = size
        goal = (rows - 1, columns - 1) if goal is None else goal
        for name, cells in {"start": [start] if start else [], "goal": [goal], "walls": walls}.items():
            for row, column in cells:
                if not (0 <= row < rows and 0 <= column < columns):
                    raise ArgumentError(
                        f"GridWorldEnv: {name} has {(row, column)}, outside the {rows} x {columns} grid"
                    )
                if name != "walls" and (row, column) in walls:
                    raise ArgumentError(f"GridWorldEnv: {name} {(row, column)} is a wall")
        slip = as_number(slip, "GridWorldEnv", "slip", least=0, most=1)
        where: Any = self._generator.device
        self.size, self.slip, self.rewards = size, slip, rewards
        self._goal = goal[0] * columns + goal[1]
        free = [
            row * columns + column
            for row in range(rows)
            for column in range(columns)
            if (row, column) not in walls and (row, column) != goal
        ]
        starts = free if start is None else [start[0] * columns + start[1]]
        self._starts = torch.tensor(starts, device=where)
        self._table = torch.tensor(transitions(rows, columns, set(walls)), device=where)
        self._categorical = categorical_action_encoding
        cell = Categorical(rows * columns)
        self.observation_spec = Composite(observation=OneHot(rows * columns, dtype=torch.bool), cell=cell)
        self.state_spec = Composite(cell=cell.clone())
        self.action_spec = discrete_action(4, categorical=categorical_action_encoding)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        cell = self._starts.take((self._rand() * len(self._starts)).long())
        return {**self._observe(cell), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["cell"])

    def _step_leaves(self, root: Leaves) -> Leaves:
        move = action_index(root["action"], categorical=self._categorical)
        if self.slip:
            move = torch.where(self._rand() < self.slip, (self._rand() * 4).long(), move)
        cell = self._table.take(root["cell"] * len(MOVES) + move)
        over = cell == self._goal
        step, goal = self.rewards
        reward = torch.where(over, goal, step).unsqueeze(-1)
        return {**self._observe(cell), "reward": reward, **self._flags(over)}

    def _observe(self, cell: Tensor) -> Leaves:
        one_hot = torch.nn.functional.one_hot(cell, self.size[0] * self.size[1])
        return {"cell": cell, "observation": one_hot.bool()}


class PixelGridWorldEnv(GridWorldEnv):
    """`GridWorldEnv` seen from above: the agent is red, the goal green, walls are gray; a start is any free cell.

    Writes ``observation``, an image of bytes ``[*B, 3, rows * scale, columns * scale]``, in place of the one-hot cell;
    all else is as in `GridWorldEnv`. By default the image has 16 x 16 pixels, and only the goal has a reward.

    Args:
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of start cells and slips; nondeterministic if None.
        size: Rows and columns.
        walls: Row and column of each wall.
        rewards: Rewards of a step that does not reach the goal, and of the step that does.
        scale: Height and width of a cell in pixels.
        options: Further arguments of `GridWorldEnv`: `start`, `goal`, `slip` and `categorical_action_encoding`.

    Raises:
        ArgumentError: If a cell lies outside the grid, start or goal is a wall, or `scale` is below 1.

    Example:
        >>> env = PixelGridWorldEnv(start=(0, 0))
        >>> env.reset()["observation"][:, ::4, ::4].float().argmax(0)  # red where it is 0, green where it is 1
        tensor([[0, 0, 0, 0],
                [0, 0, 0, 0],
                [0, 0, 0, 0],
                [0, 0, 0, 1]])
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 50

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        size: tuple[int, int] = (4, 4),
        walls: Sequence[tuple[int, int]] = ((1, 1), (2, 1)),
        rewards: tuple[float, float] = (0.0, 1.0),
        scale: int = 4,
        **options: Any,
    ) -> None:
        scale = as_integer(scale, "PixelGridWorldEnv", "scale", least=1)
        rows, columns = size
        super().__init__(batch_size, device, seed, size=size, walls=walls, rewards=rewards, **options)
        # One image for each place of the agent, [cells, 3, height, width].
        cells = torch.zeros(rows * columns, 3, rows * columns, dtype=torch.uint8)
        for row, column in walls:
            cells[:, :, row * columns + column] = 128
        cells[:, 1, self._goal] = 255
        cells[:, 0].fill_diagonal_(255)
        images = cells.view(-1, 3, rows, columns).repeat_interleave(scale, 2).repeat_interleave(scale, 3)
        self._images = images.to(self._starts.device)
        spec = Bounded(0, 255, shape=tuple(images.shape[1:]), dtype=torch.uint8)
        self.observation_spec = Composite(observation=spec, cell=Categorical(rows * columns))

    def _observe(self, cell: Tensor) -> Leaves:
        return {
            "cell": cell,
            "observation": self._images.index_select(0, cell.flatten()).view(*cell.shape, *self._images.shape[1:]),
        }


def transitions(rows: int, columns: int, walls: set[tuple[int, int]]) -> list[list[int]]:
    """Return the next cell for each cell and move."""

    def after(row: int, column: int, move: tuple[int, int]) -> int:
        r, c = row + move[0], column + move[1]
        free = 0 <= r < rows and 0 <= c < columns and (r, c) not in walls
        return r * columns + c if free else row * columns + column

    return [[after(row, column, move) for move in MOVES] for row in range(rows) for column in range(columns)]


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
        batch_size: Number of games in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Accepted as by other environments; the game has no chance.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

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
