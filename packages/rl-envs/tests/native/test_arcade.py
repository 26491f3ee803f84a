"""The games against loops over a single board, move by move."""

from __future__ import annotations

import pytest
import torch

from rl.core.errors import ArgumentError
from rl.envs import BreakoutEnv, DoorKeyEnv, Game2048Env, SnakeEnv, StepCounter, TransformedEnv
from rl.envs.native._arcade import choose, slides  # its tables and chances have closed forms
from rl.testing import check_env

GAMES = [SnakeEnv, BreakoutEnv, Game2048Env, DoorKeyEnv]
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]


def play(env, steps, prefer=None):
    """Return all steps of `env` as single TensorDicts; `prefer` chooses some of the actions, by the root."""
    generator = torch.Generator().manual_seed(0)

    def policy(td):
        action = torch.randint(0, env.action_spec.n, env.batch_size, generator=generator)
        if prefer is not None:
            chosen = torch.rand(env.batch_size, generator=generator) < 0.8
            action = torch.where(chosen, prefer(td), action)
        return td.set("action", action)

    data = TransformedEnv(env, StepCounter(200)).rollout(steps, policy, break_when_any_done=False)
    return data.reshape(-1)


@pytest.mark.parametrize("kind", GAMES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_the_rules_of_environments(kind, batch):
    check_env(lambda: TransformedEnv(kind(batch_size=batch, seed=0), StepCounter(max_steps=7)))
    check_env(lambda: kind(batch_size=batch, seed=0, categorical_action_encoding=True))


@pytest.mark.parametrize("kind", GAMES)
def test_episodes_repeat_with_their_seed_and_continue_from_a_state(kind):
    first, second = (play(kind([4], seed=3, categorical_action_encoding=True), 30) for _ in range(2))
    assert (first == second).all()
    env = kind([120], seed=5)
    start = env.reset(first.select(*env.state_spec.keys()), set_state=True)
    assert torch.equal(start["observation"], first["observation"])


def test_snake_moves_eats_and_crashes_as_in_a_loop():
    rows, columns = 4, 5
    env = SnakeEnv([12], seed=0, size=(rows, columns), categorical_action_encoding=True)

    def towards_food(td):
        (row, column), (goal_row, goal_column) = (
            (cell // columns, cell % columns) for cell in (td["head"], td["food"])
        )
        vertical = torch.where(goal_row < row, 0, 2)
        return torch.where(goal_row != row, vertical, torch.where(goal_column > column, 1, 3))

    eaten = 0
    for step in play(env, 200, towards_food):
        snake = snake_of(step["body"])
        heading, action = step["heading"].item(), step["action"].item()
        heading = heading if abs(heading - action) == 2 else action
        head = divmod(step["head"].item(), columns)
        assert snake[0] == step["head"].item()
        row, column = head[0] + MOVES[heading][0], head[1] + MOVES[heading][1]
        target = row * columns + column
        eats = 0 <= row < rows and 0 <= column < columns and target == step["food"].item()
        rest = snake if eats else snake[:-1]
        crash = not (0 <= row < rows and 0 <= column < columns) or target in rest
        full = eats and len(snake) + 1 == rows * columns
        assert step["next", "reward"].item() == (-1 if crash else int(eats))
        assert step["next", "terminated"].item() == (crash or full)
        if not crash:
            assert snake_of(step["next", "body"]) == [target, *rest]
            head_plane, body, tail, food = step["next", "observation"].unflatten(-1, (4, rows * columns))
            assert head_plane.nonzero().flatten().tolist() == [target]
            assert body.nonzero().flatten().tolist() == sorted([target, *rest])
            assert tail.nonzero().flatten().tolist() == [[target, *rest][-1]]
            assert food.nonzero().flatten().tolist() == [step["next", "food"].item()]
            assert full or step["next", "food"].item() not in [target, *rest]
            assert eats or step["next", "food"] == step["food"]
        eaten += eats
    assert eaten > 100


def snake_of(body):
    """Return the cells of the snake from head to tail."""
    return sorted(body.nonzero().flatten().tolist(), key=lambda cell: -body[cell].item())


def test_a_snake_that_fills_the_board_wins():
    env = SnakeEnv(size=(4, 4), categorical_action_encoding=True)
    path = [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12]  # from the food to the tail
    root = env.reset()
    root["body"] = torch.zeros(16, dtype=torch.int16)
    for age, cell in enumerate(path[1:]):
        root["body"][cell] = 15 - age
    root["head"], root["food"], root["heading"] = torch.tensor(1), torch.tensor(0), torch.tensor(3)
    step = env.step(root.set("action", torch.tensor(3)))
    assert step["next", "reward"].item() == 1
    assert step["next", "terminated"].item()


def test_breakout_is_that_of_a_loop():
    rows, columns = 8, 7
    env = BreakoutEnv([12], seed=0, size=(rows, columns), categorical_action_encoding=True)

    def follow(td):
        aim = td["ball"][..., 1] + td["velocity"][..., 1]
        return torch.where(aim == td["paddle"], 0, torch.where(aim < td["paddle"], 1, 2))

    wall = {(row, column) for row in (1, 2, 3) for column in range(columns)}
    bricks_hit = caught = 0
    for step in play(env, 200, follow):
        bricks = {divmod(cell, columns) for cell in step["bricks"].nonzero().flatten().tolist()}
        (row, column), (down, side) = step["ball"].tolist(), step["velocity"].tolist()
        move = [0, -1, 1][step["action"]]
        paddle = min(max(step["paddle"].item() + move, 1), columns - 2)
        if not 0 <= column + side < columns:
            side = -side
        if row + down < 0:
            down = 1
        target = (row + down, column + side)
        hit, ball, over = target in bricks, target, False
        if hit:
            bricks.remove(target)
            ball, down = (row, column), -down
            if not bricks:
                bricks = wall
        elif target[0] == rows - 1:
            if abs(target[1] - paddle) <= 1:
                ball, down, side = (row, column), -1, move or side
                caught += 1
            else:
                over = True
        bricks_hit += hit
        assert step["next", "reward"].item() == hit
        assert step["next", "terminated"].item() == over
        assert step["next", "ball"].tolist() == list(ball)
        assert step["next", "before"].tolist() == [row, column]
        assert step["next", "velocity"].tolist() == [down, side]
        assert step["next", "paddle"].item() == paddle
        assert {divmod(cell, columns) for cell in step["next", "bricks"].nonzero().flatten().tolist()} == bricks
        planes = step["next", "observation"].unflatten(-1, (4, rows, columns))
        shown = [{tuple(cell) for cell in plane.nonzero().tolist()} for plane in planes]
        assert shown == [{(rows - 1, paddle + i) for i in (-1, 0, 1)}, {ball}, {(row, column)}, bricks]
    assert bricks_hit > 100
    assert caught > 100


def test_three_rows_of_bricks_follow_the_last_brick():
    env = BreakoutEnv(size=(8, 7), categorical_action_encoding=True)
    root = env.reset()
    root["bricks"] = torch.arange(56) == 3 * 7 + 2
    root["ball"], root["before"] = torch.tensor([4, 3]), torch.tensor([5, 4])
    root["velocity"] = torch.tensor([-1, -1])
    step = env.step(root.set("action", torch.tensor(0)))
    assert step["next", "reward"].item() == 1
    assert step["next", "bricks"].nonzero().flatten().tolist() == list(range(7, 28))
    assert step["next", "velocity"].tolist() == [1, -1]


def slide(row):
    """Return a row of exponents after a move to the left, and the score."""
    tiles, merged, score = [tile for tile in row if tile], [], 0
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile < 15:
            tiles.pop(0)
            tile += 1
            score += 2**tile
        merged.append(tile)
    return merged + [0] * (4 - len(merged)), score


def test_all_rows_of_2048_slide_as_in_a_loop():
    after, scores = slides()
    for code in range(0, 1 << 16, 7):
        row, score = slide([(code >> 4 * i) & 15 for i in range(4)])
        assert after[code].item() == sum(tile << 4 * i for i, tile in enumerate(row))
        assert scores[code].item() == score


def test_2048_is_that_of_a_loop():
    env = Game2048Env([12], seed=0, categorical_action_encoding=True)
    ended = 0
    for step in play(env, 200):
        board = step["board"].tolist()
        after, score = moved(board, step["action"].item())
        new = step["next", "board"]
        if after == board:
            assert new.tolist() == board
        else:
            tiles = new - torch.tensor(after)
            assert tiles.sum().item() in (1, 2)
            assert (tiles != 0).sum() == 1
            assert torch.tensor(after)[tiles != 0].item() == 0
        assert step["next", "reward"].item() == score
        legal = [moved(new.tolist(), move)[0] != new.tolist() for move in range(4)]
        assert step["next", "action_mask"].tolist() == legal
        assert step["next", "terminated"].item() == (not any(legal))
        assert torch.equal(step["next", "observation"].unflatten(-1, (4, 4, 16)).int().argmax(-1), new)
        ended += not any(legal)
    assert ended > 0


def moved(board, move):
    """Return the board after a move up, right, down or left, without a new tile, and the score."""
    turn = {0: lambda b: [list(row) for row in zip(*b, strict=True)], 1: lambda b: [row[::-1] for row in b]}
    there = {0: [0], 1: [1], 2: [0, 1], 3: []}[move]
    for step in there:
        board = turn[step](board)
    rows = [slide(row) for row in board]
    board = [row for row, _ in rows]
    for step in reversed(there):
        board = turn[step](board)
    return board, sum(score for _, score in rows)


def test_new_tiles_of_2048_are_fours_in_a_tenth_and_fall_on_all_free_cells():
    board = Game2048Env([20_000], seed=0).reset()["board"].flatten(1)
    assert ((board > 0).sum(-1) == 2).all()
    assert (board == 2).sum().item() / 40_000 == pytest.approx(0.1, abs=0.005)
    assert ((board > 0).float().mean(0) - 1 / 8).abs().max() < 0.01


def test_the_agent_finds_key_and_door_as_in_a_loop():
    rows, columns, view = 5, 7, 3
    env = DoorKeyEnv([12], seed=0, size=(rows, columns), view=view, categorical_action_encoding=True)
    exits = opened = 0

    def useful(td):
        cell, heading = td["cell"], td["heading"]
        ahead = torch.tensor([-columns, 1, columns, -1])[heading] + cell
        content = td["map"].gather(-1, ahead.unsqueeze(-1)).squeeze(-1)
        useful = torch.where(content == 2, 3, 2)
        useful = torch.where((content == 3) & td["carries"].squeeze(-1), 4, useful)
        return torch.where(content == 1, torch.randint(0, 2, cell.shape), useful)

    torch.manual_seed(0)
    for step in play(env, 200, useful):
        map_, heading, action = step["map"].view(rows, columns).clone(), step["heading"].item(), step["action"].item()
        row, column = divmod(step["cell"].item(), columns)
        heading = (heading + (action == 1) - (action == 0)) % 4
        ahead = (row + MOVES[heading][0], column + MOVES[heading][1])
        carries = step["carries"].item()
        content = map_[ahead].item()
        if action == 2 and content in (0, 4, 5):
            row, column = ahead
        if action == 3 and content == 2:
            map_[ahead], carries = 0, True
        if action == 4 and content == 3 and carries:
            map_[ahead], opened = 4, opened + 1
        over = (row, column) == (rows - 2, columns - 2)
        exits += over
        assert torch.equal(step["next", "map"].view(rows, columns), map_)
        assert step["next", "cell"].item() == row * columns + column
        assert step["next", "heading"].item() == heading
        assert step["next", "carries"].item() == carries
        assert step["next", "terminated"].item() == over
        assert step["next", "reward"].item() == over
        *seen, key = step["next", "observation"]
        assert key.item() == carries
        contents = torch.stack(seen).view(view, view, 6).int().argmax(-1).tolist()
        for i in range(view):
            for j in range(view):
                ahead, aside = view - 1 - i, j - view // 2
                down, right = MOVES[heading]
                place = (row + ahead * down + aside * right, column + ahead * right - aside * down)
                inside = 0 <= place[0] < rows and 0 <= place[1] < columns
                assert contents[i][j] == (map_[place].item() if inside else 1)
    assert exits > 0
    assert opened > 0


def test_rooms_have_a_key_a_door_and_an_exit_and_can_be_solved():
    maps = DoorKeyEnv([2_000], seed=0).reset()
    board = maps["map"].view(-1, 6, 6)
    for content in (2, 3, 5):
        assert ((board == content).sum((-1, -2)) == 1).all()
    door = (board == 3).int().flatten(1).argmax(-1)
    parting = door % 6
    assert set(parting.tolist()) == {2, 3}
    assert (door // 6).unique().tolist() == [1, 2, 3, 4]
    key = (board == 2).int().flatten(1).argmax(-1)
    assert (key % 6 < parting).all()
    assert (maps["cell"] % 6 < parting).all()
    assert (maps["cell"] != key).all()


def test_choices_are_uniform():
    candidates = torch.tensor([[False, True, True, False, True], [False] * 5])
    chosen = choose(candidates.repeat(30_000, 1), torch.rand(60_000, generator=torch.Generator().manual_seed(0)))
    assert chosen[1::2].eq(4).all()
    shares = chosen[::2].bincount(minlength=5) / 30_000
    torch.testing.assert_close(shares, torch.tensor([0, 1, 1, 0, 1]) / 3, atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SnakeEnv(size=(3, 8)), r"size\[0\] must be at least 4"),
        (lambda: BreakoutEnv(size=(10, 2)), r"size\[1\] must be at least 7"),
        (lambda: SnakeEnv(size=(200, 200)), "at most 32767 cells"),
        (lambda: DoorKeyEnv(view=4), "odd number"),
        (lambda: DoorKeyEnv(size=(4, 4)), "at least 5"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("kind", GAMES)
def test_steps_after_the_end_stay_within_the_board(kind):
    env = kind([200], seed=0, categorical_action_encoding=True)
    root = env.reset()
    for _ in range(100):
        root = env.step_mdp(env.step(env.rand_action(root)))
        env.observation_spec.assert_is_in(root.select(*env.observation_spec.keys()))
