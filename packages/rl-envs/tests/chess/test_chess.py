from __future__ import annotations

import sys

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, MissingExtraError, SpecError
from rl.envs import ActionMask, ChessEnv, SerialEnv, TransformedEnv
from rl.testing import check_env

chess = pytest.importorskip("chess")


def play(env, *moves):
    """The outcome of the last of some moves."""
    root = env.reset()
    for move in moves:
        root["action"] = torch.tensor(env.moves.index(move))
        out = env.step(root)
        root = env.step_mdp(out)
    return out


def test_a_thousand_random_moves_follow_the_rules_of_the_library():
    env = TransformedEnv(ChessEnv(categorical_action_encoding=True), ActionMask())
    torch.manual_seed(0)
    board, ends = chess.Board(), 0
    data = env.rollout(1000, break_when_any_done=False)
    moves = env.base_env.moves
    assert len(moves) == 1968
    pieces = {symbol: kind for kind, symbol in enumerate("PNBRQK", 1)}
    pieces |= {symbol.lower(): -kind for symbol, kind in pieces.items()}
    for step in range(1000):
        now = data[step]
        legal = sorted(move.uci() for move in board.legal_moves)
        assert [moves[i] for i in now["action_mask"].nonzero().flatten()] == legal
        for square, value in enumerate(now["board"].flatten().tolist()):
            piece = board.piece_at(square)
            assert value == (0 if piece is None else pieces[piece.symbol()])
        assert now["turn"].item() == (not board.turn)
        board.push_uci(moves[now["action"].item()])
        outcome = board.outcome()
        assert now["next", "done"].item() == (outcome is not None)
        if outcome is not None:
            ends += 1
            won = {None: 0, True: 1, False: -1}[outcome.winner]
            assert now["next", "player0", "reward"].item() == won
            assert now["next", "player1", "reward"].item() == -won
            board = chess.Board()
    assert ends > 1


def test_mate_ends_a_game():
    out = play(ChessEnv(categorical_action_encoding=True), "f2f3", "e7e5", "g2g4", "d8h4")["next"]
    assert out["terminated"].item()
    assert out["player0", "reward"].item() == -1
    assert out["player1", "reward"].item() == 1


def test_the_observation_is_that_of_the_player_to_move():
    env = ChessEnv(categorical_action_encoding=True)
    white = env.reset()["observation"]
    black = play(env, "e2e4")["next", "observation"]
    assert white[0, 1].sum() == 8  # own pawns on the second rank
    assert black[0, 1].sum() == 8
    assert black[6, 4, 4] == 1  # the pawn that came, seen from the other side
    assert white[12].sum() == 4
    assert black[12].sum() == 5  # and the square of an en passant capture


def test_every_game_begins_in_the_given_position_and_promotions_are_moves():
    env = ChessEnv("8/P6k/8/8/8/8/7K/8 w - - 0 1", categorical_action_encoding=True)
    env.reset()
    assert [move for move in env.legal_moves() if len(move) == 5] == ["a7a8b", "a7a8n", "a7a8q", "a7a8r"]
    assert play(env, "a7a8q")["next", "board"][7, 0].item() == 5


def test_a_position_as_text_is_the_state():
    env = ChessEnv(include_fen=True, categorical_action_encoding=True)
    fen = "8/P6k/8/8/8/8/7K/8 w - - 0 1"
    root = env.reset(TensorDict({"fen": fen}), set_state=True)
    assert root["fen"] == fen
    assert env.reset()["fen"] == chess.STARTING_FEN


def test_a_saved_game_remembers_its_moves():
    env, other = ChessEnv(categorical_action_encoding=True), ChessEnv(categorical_action_encoding=True)
    play(env, *["g1f3", "g8f6", "f3g1", "f6g8"] * 3)
    other.load_state_dict(env.state_dict())
    assert other._board.is_repetition(3)


def test_conformance_and_several_games():
    check_env(lambda: TransformedEnv(ChessEnv(), ActionMask()), steps=30)
    collectors = pytest.importorskip("rl.collectors")
    several = TransformedEnv(SerialEnv(2, lambda: ChessEnv("8/8/8/3qk3/8/3Q4/3K4/8 w - - 0 1")), ActionMask())
    batch = collectors.Collector(several, frames_per_batch=400).collect()
    assert batch["board"].shape == (2, 200, 8, 8)
    assert batch["collector", "traj_ids"].max() > 2


def test_wrong_input_is_refused(monkeypatch):
    env = ChessEnv(categorical_action_encoding=True)
    with pytest.raises(SpecError, match="the move e2e5 is illegal in rnbq"):
        play(env, "e2e5")
    with pytest.raises(ArgumentError, match="is no position in FEN"):
        ChessEnv("nonsense")
    with pytest.raises(ArgumentError, match="is no legal position"):
        ChessEnv("8/8/8/8/8/8/8/K7 w - - 0 1")
    monkeypatch.setitem(sys.modules, "chess", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[chess\]"'):
        ChessEnv()
