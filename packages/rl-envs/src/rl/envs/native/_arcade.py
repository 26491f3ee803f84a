"""Games on a board in torch, batched: `SnakeEnv`, `BreakoutEnv`, `Game2048Env` and `DoorKeyEnv`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError
from rl.core.interfaces import Leaves
from rl.core.specs import Binary, Bounded, Categorical, Composite, TensorSpec
from rl.envs.native._base import NativeEnv, action_index, discrete_action
from rl.envs.native._games import MOVES, transitions

MOST_CELLS = 32_767  # counted in int16

# Boards are flat, row by row. A step of thousands of copies is bound by memory and by what torch vectorizes: on the
# CPU, `bool()` and `scatter` cost a tenth of a comparison of the board with a number.


def choose(candidates: Tensor, number: Tensor) -> Tensor:
    """Return a candidate of each row, chosen uniformly.

    Args:
        candidates: Mask bool ``[*B, n]``, n at most `MOST_CELLS`.
        number: Uniform numbers in [0, 1), ``[*B]``.

    Returns:
        Index int64 ``[*B]``; the last where there is no candidate.
    """
    order = candidates.cumsum(-1, dtype=torch.int16)
    rank = (number * order[..., -1]).to(torch.int16).unsqueeze(-1)
    found = torch.searchsorted(order, rank, right=True).squeeze(-1)
    return found.clamp_max(candidates.shape[-1] - 1)


def _written_spec(observation: TensorSpec, state: Composite) -> Composite:
    """Return the spec of what is written: the observation, and the state."""
    written = Composite(observation=observation)
    written.update(state)
    return written


class _Board(NativeEnv):
    """Part of games on a board of cells with discrete actions.

    A subclass has `_SIZE`, the size by default, `_LEAST` rows and columns and a number of `_ACTIONS`; `_build` creates
    its tables and specs.

    Args:
        batch_size: Number of games in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of chance; nondeterministic if None.
        size: Rows and columns; those of the class if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.
    """

    _SIZE: ClassVar[tuple[int, int]]
    _LEAST: ClassVar[int]
    _ACTIONS: ClassVar[int]

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        size: tuple[int, int] | None = None,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed)
        name = type(self).__name__
        rows, columns = self._SIZE if size is None else size
        self.size = (
            as_integer(rows, name, "size[0]", least=self._LEAST),
            as_integer(columns, name, "size[1]", least=self._LEAST),
        )
        self.cells = rows * columns
        if self.cells > MOST_CELLS:
            raise ArgumentError(f"{name}: a board has at most {MOST_CELLS} cells, got size={size}")
        self._categorical = categorical_action_encoding
        self._numbers = torch.arange(self.cells, device=self._generator.device)
        self.action_spec = discrete_action(self._ACTIONS, categorical=categorical_action_encoding)
        self._build()

    def _build(self) -> None:
        """Create the tables and specs of the game."""

    def _action(self, root: Leaves) -> Tensor:
        return action_index(root["action"], categorical=self._categorical)

    def _integers(self, low: int, high: int) -> Tensor:
        """Uniform integers of [low, high), ``[*B]``."""
        return (self._rand() * (high - low)).long() + low

    def _at(self, cell: Tensor) -> Tensor:
        """Mask bool ``[*B, cells]`` of `cell` ``[*B, n]``, the numbers of some cells of each board."""
        planes = torch.zeros((*cell.shape[:-1], self.cells), dtype=torch.bool, device=cell.device)
        return planes.scatter_(-1, cell, True)  # noqa: FBT003  the value to write


class SnakeEnv(_Board):
    """Snake: eat, grow, and run neither into the edge nor into yourself.

    Reads ``action`` (up, right, down, left: one-hot ``[*B, 4]``, or int64 ``[*B]``; a move back into the neck goes
    straight on), and the state: ``body`` (int16 ``[*B, rows * columns]``: for how many more steps the snake occupies
    a cell; the head has its length), ``head``, ``food`` (int64 ``[*B]``, row * columns + column) and ``heading`` (int64
    ``[*B]``, as actions). Writes the new state, ``observation`` (bool ``[*B, 4 * rows * columns]``: planes of head,
    body, tail and food, which ``unflatten(-1, (4, rows, columns))`` separates) and ``reward`` ``[*B, 1]``: 1 for food,
    -1 at a crash, otherwise 0. An episode terminates at a crash, and when the snake fills the board.

    Args:
        batch_size: Number of games in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the cells of the food; nondeterministic if None.
        size: Rows and columns, at least 4 each; 8 x 8 if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

    Raises:
        ArgumentError: If `size` is too small or too large.

    Example:
        >>> env = SnakeEnv(categorical_action_encoding=True)
        >>> env.rollout(100, lambda td: td.set("action", torch.tensor(0)))["next", "reward"].sum() <= 0
        tensor(True)
    """

    _SIZE, _LEAST, _ACTIONS = (8, 8), 4, 4

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 500

    def _build(self) -> None:
        table = transitions(*self.size, set())
        # A move off the board leads to the cell of its start, which the snake's own neck or head occupies.
        self._table = torch.tensor(table, device=self._generator.device)
        cell = Categorical(self.cells)
        state = Composite(
            body=Bounded(0, self.cells, shape=(self.cells,), dtype=torch.int16),
            head=cell,
            food=cell.clone(),
            heading=Categorical(4),
        )
        self.observation_spec = _written_spec(Binary(4 * self.cells, dtype=torch.bool), state)
        self.state_spec = state.clone()

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        rows, columns = self.size
        # Three cells long in the middle, heading right.
        head = torch.full(self.batch_size, rows // 2 * columns + columns // 2, device=self._generator.device)
        distance = head.unsqueeze(-1) - self._numbers
        body = torch.where((distance >= 0) & (distance < 3), 3 - distance, 0).to(torch.int16)
        food = choose(body == 0, self._rand())
        return {**self._observe(body, head, food, torch.ones_like(head)), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["body"], state["head"], state["food"], state["heading"])

    def _step_leaves(self, root: Leaves) -> Leaves:
        move, heading, head, body = self._action(root), root["heading"], root["head"], root["body"]
        heading = torch.where((move - heading).abs() == 2, heading, move)
        target = self._table.take(head * 4 + heading)
        eats = target == root["food"]
        length = body.gather(-1, head.unsqueeze(-1)) + eats.unsqueeze(-1)
        body = (body - (~eats).short().unsqueeze(-1)).clamp_min(0)
        crash = body.gather(-1, target.unsqueeze(-1)).squeeze(-1) > 0
        body = body.scatter(-1, target.unsqueeze(-1), length)
        full = length.squeeze(-1) >= self.cells
        food = torch.where(eats, choose(~body.bool(), self._rand()), root["food"])
        reward = (eats.float() - crash.float()).unsqueeze(-1)
        return {**self._observe(body, target, food, heading), "reward": reward, **self._flags(crash | full)}

    def _observe(self, body: Tensor, head: Tensor, food: Tensor, heading: Tensor) -> Leaves:
        stays = (body - 1).clamp_min(0).bool()  # in the next step
        occupied = body.bool()
        planes = torch.cat([self._at(head.unsqueeze(-1)), occupied, occupied ^ stays, self._at(food.unsqueeze(-1))], -1)
        return {"observation": planes, "body": body, "head": head, "food": food, "heading": heading}


class BreakoutEnv(_Board):
    """Breakout on a small board: return the ball with the paddle, and clear the bricks.

    The ball moves one cell diagonally in a step and turns at the sides, the ceiling and at bricks, which it removes;
    after the last one three new rows appear. The paddle is three cells of the last row. A ball that it meets goes
    up; if the paddle moved in this step, the ball leaves in the paddle's direction.

    Reads ``action`` (stay, left, right: one-hot ``[*B, 3]``, or int64 ``[*B]``), and the state: ``bricks`` (bool
    ``[*B, rows * columns]``), ``ball`` and ``before`` (int64 ``[*B, 2]``: row and column now and a step ago),
    ``velocity`` (int64 ``[*B, 2]``, each 1 or -1) and ``paddle`` (int64 ``[*B]``, column of its
    middle). Writes the new state,
    ``observation`` (bool ``[*B, 4 * rows * columns]``: planes of paddle, ball, the ball before and bricks) and
    ``reward`` ``[*B, 1]``: 1 for a brick. An episode terminates when the ball passes the paddle.

    Args:
        batch_size: Number of games in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the first column and direction of the ball; nondeterministic if None.
        size: Rows and columns, at least 7 each; 10 x 10 if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

    Raises:
        ArgumentError: If `size` is too small or too large.

    Example:
        >>> env = BreakoutEnv(seed=0)
        >>> env.rollout(1000)["next", "terminated"].sum().item()
        1
    """

    _SIZE, _LEAST, _ACTIONS = (10, 10), 7, 3

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 500

    def _build(self) -> None:
        rows, columns = self.size
        row = self._numbers // columns
        self._wall = (row >= 1) & (row <= 3)
        self._moves = torch.tensor([0, -1, 1], device=self._generator.device)
        self._width = torch.tensor([-1, 0, 1], device=self._generator.device)
        place = Bounded(torch.zeros(2), torch.tensor([rows - 1, columns - 1]), dtype=torch.int64)
        state = Composite(
            bricks=Binary(self.cells, dtype=torch.bool),
            ball=place,
            before=place.clone(),
            velocity=Bounded(-1, 1, shape=(2,), dtype=torch.int64),
            paddle=Categorical(columns),
        )
        self.observation_spec = _written_spec(Binary(4 * self.cells, dtype=torch.bool), state)
        self.state_spec = state.clone()

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        _, columns = self.size
        column, side = self._integers(0, columns), self._integers(0, 2) * 2 - 1
        ball = torch.stack([torch.full_like(column, 4), column], -1)
        velocity = torch.stack([torch.ones_like(side), side], -1)
        bricks = self._wall.expand(*self.batch_size, self.cells).clone()
        paddle = torch.full_like(column, columns // 2)
        return {**self._observe(bricks, ball, ball.clone(), velocity, paddle), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(*(state[key] for key in ("bricks", "ball", "before", "velocity", "paddle")))

    def _step_leaves(self, root: Leaves) -> Leaves:
        rows, columns = self.size
        move = self._moves.take(self._action(root))
        paddle = (root["paddle"] + move).clamp(1, columns - 2)
        before, bricks = root["ball"], root["bricks"]
        (row, column), (down, side) = before.unbind(-1), root["velocity"].unbind(-1)
        side = torch.where((column + side < 0) | (column + side >= columns), -side, side)
        down = torch.where(row + down < 0, -down, down)
        next_row, next_column = (row + down).clamp_max(rows - 1), column + side
        target = next_row * columns + next_column
        hit = bricks.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        low = next_row == rows - 1
        caught = low & ((next_column - paddle).abs() <= 1)
        # At a brick or the paddle the ball turns before it enters the cell, and waits a step where it is.
        turns = hit | caught
        side = torch.where(caught & (move != 0), move, side)
        down = torch.where(turns, -down, down)
        ball = torch.where(turns.unsqueeze(-1), before, torch.stack([next_row, next_column], -1))
        bricks = bricks.scatter(-1, target.unsqueeze(-1), False)  # noqa: FBT003  the value to write
        bricks = bricks | (self._wall & ~bricks.sum(-1, keepdim=True).bool())
        velocity = torch.stack([down, side], -1)
        leaves = self._observe(bricks, ball, before.clone(), velocity, paddle)
        return {**leaves, "reward": hit.float().unsqueeze(-1), **self._flags(low & ~caught)}

    def _observe(self, bricks: Tensor, ball: Tensor, before: Tensor, velocity: Tensor, paddle: Tensor) -> Leaves:
        rows, columns = self.size
        row, column = ball.unbind(-1)
        old_row, old_column = before.unbind(-1)
        planes = [
            self._at((rows - 1) * columns + paddle.unsqueeze(-1) + self._width),
            self._at((row * columns + column).unsqueeze(-1)),
            self._at((old_row * columns + old_column).unsqueeze(-1)),
            bricks,
        ]
        return {
            "observation": torch.cat(planes, -1),
            "bricks": bricks,
            "ball": ball,
            "before": before,
            "velocity": velocity,
            "paddle": paddle,
        }


@cache
def slides() -> tuple[Tensor, Tensor]:
    """Return for each row of 2048 the row after a move to the left, and the score of the move.

    A row of four tiles is a number of 16 bits, 4 for each exponent, the leftmost lowest. Tiles merge once in a move,
    from the left; two of 2**15 do not merge.

    Returns:
        Rows int32 ``[65536]``, scores float32 ``[65536]``.
    """
    codes = torch.arange(1 << 16, dtype=torch.int32)
    row = torch.stack([(codes >> (4 * i)) & 15 for i in range(4)], -1)
    score = torch.zeros(1 << 16)

    def compact(row: Tensor) -> Tensor:
        # A stable sort by "empty" moves the tiles to the left.
        return row.gather(-1, (row == 0).to(torch.uint8).sort(dim=-1, stable=True).indices)

    row = compact(row)
    for i in range(3):
        merges = (row[:, i] == row[:, i + 1]) & (row[:, i] > 0) & (row[:, i] < 15)
        row[:, i] += merges.int()
        score += torch.where(merges, torch.exp2(row[:, i].float()), 0.0)
        row[:, i + 1] = torch.where(merges, 0, row[:, i + 1])
        row = compact(row)
    return torch.stack([row[:, i] << (4 * i) for i in range(4)]).sum(0, dtype=torch.int32), score


class Game2048Env(_Board):
    """The game 2048: slide the tiles of a board of 4 x 4, where equal ones merge into their sum.

    After a move a 2 appears on a free cell, or with probability 0.1 a 4. A move that changes nothing is not legal: the
    board stays, without a new tile.

    Reads ``action`` (up, right, down, left: one-hot ``[*B, 4]``, or int64 ``[*B]``) and ``board`` (int64
    ``[*B, 4, 4]``: exponents of the tiles, 0 for free cells). Writes the new ``board``, ``observation`` (bool
    ``[*B, 256]``: for each cell, row by row, the exponent as a one-hot vector of 16), ``action_mask`` (bool
    ``[*B, 4]``: the legal moves; see `ActionMask`) and ``reward`` ``[*B, 1]``: the sum of the tiles that merging made.
    An episode terminates without a legal move.

    Args:
        batch_size: Number of games in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the new tiles; nondeterministic if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

    Example:
        >>> env = Game2048Env(categorical_action_encoding=True)
        >>> root = env.reset()
        >>> root["board"] = torch.tensor([[1, 1, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
        >>> step = env.step(root.set("action", torch.tensor(3)))
        >>> step["next", "board"][0, :2], step["next", "reward"]
        (tensor([2, 3]), tensor([12.]))
    """

    _SIZE, _LEAST, _ACTIONS = (4, 4), 4, 4

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 5000

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed, categorical_action_encoding=categorical_action_encoding)
        device = self._generator.device
        self._slides, self._scores = (table.to(device) for table in slides())
        board = torch.arange(16).view(4, 4)
        # Cells in the order in which a move to the left would see them, for each move, and the way back.
        views = torch.stack([board.T, board.flip(1), board.T.flip(1), board]).flatten(1)
        self._views, self._back = views.to(device), views.argsort(-1).to(device)
        self._shifts = torch.arange(0, 16, 4, dtype=torch.int32, device=device)
        # Numbers of the rows as a product of matrices, which is exact: they have 16 bits, and floats hold 24.
        weights = torch.zeros(16, 4, 4, 4).scatter_(
            0, views.view(1, 4, 4, 4), 16.0 ** torch.arange(4).expand(1, 4, 4, 4)
        )
        self._weights = weights.sum(-1).flatten(1).to(device)
        self._places = torch.arange(0, 256, 16, device=device)
        board_spec = Bounded(0, 15, shape=(4, 4), dtype=torch.int64)
        self.observation_spec = Composite(
            board=board_spec,
            observation=Binary(256, dtype=torch.bool),
            action_mask=Binary(4, dtype=torch.bool),
        )
        self.state_spec = Composite(board=board_spec.clone())

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        empty = torch.zeros((*self.batch_size, 16), dtype=torch.int64, device=self._generator.device)
        return {**self._observe(self._spawn(self._spawn(empty))), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["board"].flatten(-2))

    def _spawn(self, cells: Tensor) -> Tensor:
        """Return the boards with a new tile."""
        cell = choose(~cells.bool(), self._rand()).unsqueeze(-1)
        return cells.scatter(-1, cell, (self._rand(1) < 0.1).long() + 1)

    def _rows(self, cells: Tensor) -> Tensor:
        """Return the rows of each board as each move sees them, numbers int64 ``[*B, 4 moves, 4 rows]``."""
        return (cells.float() @ self._weights).long().unflatten(-1, (4, 4))

    def _step_leaves(self, root: Leaves) -> Leaves:
        cells, move = root["board"].flatten(-2), self._action(root)
        view = move[..., None, None].expand(*move.shape, 1, 4)
        rows = self._rows(cells).gather(-2, view).squeeze(-2)
        after = self._slides.take(rows)
        score = self._scores.take(rows).sum(-1, keepdim=True)
        moved = ((after.unsqueeze(-1) >> self._shifts) & 15).long().flatten(-2).gather(-1, self._back[move])
        legal = (after != rows).any(-1, keepdim=True)
        cells = torch.where(legal, self._spawn(moved), cells)
        leaves = self._observe(cells)
        return {**leaves, "reward": score, **self._flags(~leaves["action_mask"].any(-1))}

    def _observe(self, cells: Tensor) -> Leaves:
        rows = self._rows(cells)
        one_hot = torch.zeros((*cells.shape[:-1], 256), dtype=torch.bool, device=cells.device)
        one_hot.scatter_(-1, cells + self._places, True)  # noqa: FBT003  the value to write
        return {
            "board": cells.unflatten(-1, (4, 4)),
            "observation": one_hot,
            "action_mask": (self._slides.take(rows) - rows).bool().any(-1),
        }


FLOOR, WALL, KEY, DOOR, OPEN_DOOR, EXIT = range(6)


class DoorKeyEnv(_Board):
    """Two rooms and a locked door: find the key, open the door, and go to the exit in the other room.

    The agent sees the cells before it, through walls. A wall parts the rooms at a random column, with the door in a
    random row; agent, heading and key are random in the left room, the exit is in the last corner of the right one.

    Reads ``action`` (turn left, turn right, forward, pick up, open: one-hot ``[*B, 5]``, or int64 ``[*B]``), and the
    state: ``map`` (uint8 ``[*B, rows * columns]``: 0 floor, 1 wall, 2 key, 3 closed door, 4 open door, 5 exit),
    ``cell`` (int64 ``[*B]``, row * columns + column), ``heading`` (int64 ``[*B]``: up, right, down, left) and
    ``carries`` (bool ``[*B, 1]``). Writes the new state, ``observation`` (bool ``[*B, 6 * view * view + 1]``: for each
    seen cell, row by row and the row of the agent last, its content as a one-hot vector of 6, and whether the agent
    carries the key) and ``reward`` ``[*B, 1]``: 1 at the exit, otherwise 0. An episode terminates at the exit.

    Args:
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the rooms; nondeterministic if None.
        size: Rows and columns with the walls around the rooms, at least 5 each; 6 x 6 if None.
        view: Rows and columns that the agent sees, an odd number.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.

    Raises:
        ArgumentError: If `size` is too small or too large, or `view` is even.

    Example:
        >>> env = DoorKeyEnv(seed=0)
        >>> env.reset()["map"].unflatten(-1, (6, 6))[:2, :2]
        tensor([[1, 1],
                [1, 0]], dtype=torch.uint8)
    """

    _SIZE, _LEAST, _ACTIONS = (6, 6), 5, 5

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 200

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        size: tuple[int, int] | None = None,
        view: int = 5,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed, size=size, categorical_action_encoding=categorical_action_encoding)
        self.view = as_integer(view, "DoorKeyEnv", "view", least=3)
        if view % 2 == 0:
            raise ArgumentError(f"DoorKeyEnv: view is the odd number of cells across that the agent sees, got {view}")
        rows, columns = self.size
        device = self._generator.device
        row, column = self._numbers // columns, self._numbers % columns
        self._row, self._column = row, column
        self._outside = (row == 0) | (row == rows - 1) | (column == 0) | (column == columns - 1)
        self._exit = (rows - 2) * columns + columns - 2
        self._table = torch.tensor(transitions(rows, columns, set()), device=device)
        self._seen = _seen(rows, columns, view).to(device)
        self._places = torch.arange(0, 6 * view * view, 6, device=device)
        state = Composite(
            map=Bounded(0, EXIT, shape=(self.cells,), dtype=torch.uint8),
            cell=Categorical(self.cells),
            heading=Categorical(4),
            carries=Binary(1, dtype=torch.bool),
        )
        self.observation_spec = _written_spec(Binary(6 * view * view + 1, dtype=torch.bool), state)
        self.state_spec = state.clone()

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        rows, columns = self.size
        parting = self._integers(2, columns - 2)
        door = self._integers(1, rows - 1) * columns + parting
        parting = parting.unsqueeze(-1)
        walls = (self._outside | (self._column == parting)).to(torch.uint8)  # WALL is 1
        left = (self._column < parting) & ~self._outside
        cell = choose(left, self._rand())
        key = choose(left & ~self._at(cell.unsqueeze(-1)), self._rand())
        map_ = torch.where(self._at(door.unsqueeze(-1)), DOOR, walls)
        map_ = torch.where(self._at(key.unsqueeze(-1)), KEY, map_)
        map_ = torch.where(self._numbers == self._exit, EXIT, map_)
        carries = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self._generator.device)
        return {**self._observe(map_, cell, self._integers(0, 4), carries), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["map"], state["cell"], state["heading"], state["carries"])

    def _step_leaves(self, root: Leaves) -> Leaves:
        action, map_, cell, carries = self._action(root), root["map"], root["cell"], root["carries"]
        turn = (action == 1).long() - (action == 0).long()
        heading = (root["heading"] + turn) % 4
        before = self._table.take(cell * 4 + heading)
        content = map_.gather(-1, before.unsqueeze(-1)).squeeze(-1)
        free = (content == FLOOR) | (content >= OPEN_DOOR)
        cell = torch.where((action == 2) & free, before, cell)
        takes = (action == 3) & (content == KEY)
        opens = (action == 4) & (content == DOOR) & carries.squeeze(-1)
        changed = torch.where(takes, FLOOR, torch.where(opens, OPEN_DOOR, content))
        map_ = map_.scatter(-1, before.unsqueeze(-1), changed.unsqueeze(-1))
        over = cell == self._exit
        leaves = self._observe(map_, cell, heading, carries | takes.unsqueeze(-1))
        return {**leaves, "reward": over.float().unsqueeze(-1), **self._flags(over)}

    def _observe(self, map_: Tensor, cell: Tensor, heading: Tensor, carries: Tensor) -> Leaves:
        seen = map_.gather(-1, self._seen[cell * 4 + heading])
        one_hot = torch.zeros((*cell.shape, 6 * self.view * self.view + 1), dtype=torch.bool, device=cell.device)
        one_hot.scatter_(-1, seen + self._places, True)  # noqa: FBT003  the value to write
        one_hot[..., -1:] = carries
        return {
            "observation": one_hot,
            "map": map_,
            "cell": cell,
            "heading": heading,
            "carries": carries,
        }


def _seen(rows: int, columns: int, view: int) -> Tensor:
    """Return the cells that the agent sees, for each of its cells and headings, ``[cells * 4, view * view]``.

    Cells off the map are the first one, which is a wall.
    """
    ahead, aside = torch.arange(view - 1, -1, -1), torch.arange(view) - view // 2
    seen = torch.zeros(rows, columns, 4, view, view, dtype=torch.int64)
    for heading, (down, right) in enumerate(MOVES):
        # The direction to the right of (down, right) is (right, -down).
        row = ahead[:, None] * down + aside * right + torch.arange(rows)[:, None, None, None]
        column = ahead[:, None] * right - aside * down + torch.arange(columns)[:, None, None]
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        seen[:, :, heading] = torch.where(inside, row * columns + column, 0)
    return seen.view(-1, view * view)
