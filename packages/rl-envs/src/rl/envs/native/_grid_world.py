"""`GridWorldEnv`: a maze of cells in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.interfaces import Leaves
from rl.core.specs import Categorical, Composite, OneHot
from rl.envs.native._base import NativeEnv, action_index, discrete_action

__all__ = ["GridWorldEnv"]

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class GridWorldEnv(NativeEnv):
    """Grid of cells with walls and one goal; moves off the grid or into a wall leave the agent where it is.

    Reads ``action`` (up, right, down, left: one-hot ``[*B, 4]``, or int64 ``[*B]``) and ``cell`` (int64 ``[*B]``,
    row * columns + column). Writes the new ``cell``, ``observation`` (one-hot of the cell, bool
    ``[*B, rows * columns]``), ``reward`` ``[*B, 1]`` and the done flags: an episode terminates at the goal.

    Args:
        batch_size: number of copies in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: seed of start cells and slips; nondeterministic if None.
        size: rows and columns.
        start: row and column of the start; a random free cell if None.
        goal: row and column of the goal; the last cell if None.
        walls: row and column of each wall.
        slip: probability that the move is a random one of the four.
        rewards: of a step that does not reach the goal, and of the step that does.
        categorical_action_encoding: actions are numbers instead of one-hot vectors.

    Raises:
        SpecError: if a cell lies outside the grid, or start or goal is a wall.

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
                    raise SpecError(f"GridWorldEnv: {name} has {(row, column)}, outside the {rows} x {columns} grid")
                if name != "walls" and (row, column) in walls:
                    raise SpecError(f"GridWorldEnv: {name} {(row, column)} is a wall")
        if not 0 <= slip <= 1:
            raise SpecError(f"GridWorldEnv: slip is a probability, got {slip}")
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
        self._table = torch.tensor(_transitions(rows, columns, set(walls)), device=where)
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


def _transitions(rows: int, columns: int, walls: set[tuple[int, int]]) -> list[list[int]]:
    """The next cell for each cell and move."""

    def after(row: int, column: int, move: tuple[int, int]) -> int:
        r, c = row + move[0], column + move[1]
        free = 0 <= r < rows and 0 <= c < columns and (r, c) not in walls
        return r * columns + c if free else row * columns + column

    return [[after(row, column, move) for move in MOVES] for row in range(rows) for column in range(columns)]
