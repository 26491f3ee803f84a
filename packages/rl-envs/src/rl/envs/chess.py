"""Chess."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.specs import Binary, Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded
from rl.envs._libraries import import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import flag_spec

__all__ = ["ChessEnv"]


_STEPS = [(1, 0), (0, 1), (1, 1), (1, -1), (-1, 0), (0, -1), (-1, -1), (-1, 1)]
_JUMPS = [(1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2)]


@cache
def _moves() -> tuple[str, ...]:
    """All moves that a piece can make on some board, in UCI notation: those of queens, knights and promoted pawns."""
    found: list[str] = []

    def name(file: int, rank: int) -> str:
        return "abcdefgh"[file] + str(rank + 1)

    for square in range(64):
        file, rank = square % 8, square // 8
        reach = [(file + a * n, rank + b * n) for a, b in _STEPS for n in range(1, 8)]
        reach += [(file + a, rank + b) for a, b in _JUMPS]
        found += [name(file, rank) + name(f, r) for f, r in reach if 0 <= f < 8 and 0 <= r < 8]
    for rank, last in ((6, 7), (1, 0)):
        for file in range(8):
            for to in range(max(0, file - 1), min(8, file + 2)):
                found += [name(file, rank) + name(to, last) + piece for piece in "nbrq"]
    return tuple(sorted(found))


class ChessEnv(LeafEnvBase):
    """Chess; the players take turns, and one policy plays both. Needs ``pip install "rl-envs[chess]"``.

    Reads ``action``, one of the 1968 moves of `moves`: one-hot ``[1968]``, or int64 ``[]``. Writes:

    - ``board`` (int64 ``[8, 8]``): from the first rank and the a-file on; 1 to 6 for white's pawn, knight, bishop,
      rook, queen and king, negative for black's, 0 for empty squares.
    - ``observation`` (float32 ``[13, 8, 8]``): for the player to move, with the board turned for black: six planes of
      own pieces, six of the other's, and one with the square of an en passant capture and rooks that may castle.
    - ``turn`` (int64 ``[1]``): 0 if white moves, 1 if black does.
    - ``clocks`` (int64 ``[2]``): half moves since the last capture or pawn move, and the number of the move.
    - ``action_mask`` (bool ``[1968]``): the legal moves; see `ActionMask`.
    - ``("player0", "reward")``, ``("player1", "reward")`` (float32 ``[1]``): 1 for white or black where it has won and
      -1 where it has lost, otherwise 0.
    - ``done``, ``terminated`` (bool ``[1]``).
    - ``fen`` with `include_fen`: the position, text; also the state, ``reset(td, set_state=True)`` begins there.

    A game ends with mate, stalemate, too few pieces, 75 moves without capture or pawn move, or a position for the fifth
    time; with `claim_draw` after 50 moves or the third time. It has no limit of moves: see `StepCounter`.

    Args:
        fen: Position in which games begin; the usual one if None.
        categorical_action_encoding: Whether to use numbers instead of one-hot vectors.
        include_fen: Whether to write ``fen``, which has no shared memory, no leaf form.
        claim_draw: Whether to end a game where a player may claim a draw.
        device: Device of the tensors; the CPU if None.

    Raises:
        MissingExtraError: If python-chess is not installed.
        ArgumentError: If `fen` is no legal position.
        SpecError: If a move is illegal.

    Example:
        >>> env = ChessEnv(categorical_action_encoding=True)
        >>> root = env.reset()
        >>> int(root["action_mask"].sum()), env.legal_moves()[:3]
        (20, ['a2a3', 'a2a4', 'b1a3'])
        >>> root["action"] = torch.tensor(env.moves.index("e2e4"))
        >>> env.step(root)["next", "board"][3, 4].item()
        1
    """

    def __init__(
        self,
        fen: str | None = None,
        *,
        categorical_action_encoding: bool = False,
        include_fen: bool = False,
        claim_draw: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        self._chess: Any = import_library("chess", needed_by="ChessEnv", extra="chess")
        super().__init__(device=device)
        self._fen = self._chess.STARTING_FEN if fen is None else fen
        self._board = self._position(self._fen)
        self._categorical, self._include_fen, self._claim = categorical_action_encoding, include_fen, claim_draw
        self.moves = list(_moves())
        self._numbers = {move: number for number, move in enumerate(self.moves)}
        count = len(self.moves)
        self.observation_spec = Composite(
            board=Bounded(-6, 6, shape=(8, 8), dtype=torch.int64),
            observation=Bounded(0, 1, shape=(13, 8, 8)),
            turn=Categorical(2, shape=(1,)),
            clocks=Unbounded(2, dtype=torch.int64),
            action_mask=Binary(count, dtype=torch.bool),
        )
        if include_fen:
            self.observation_spec = self.observation_spec.clone().update({"fen": NonTensor()})
            self.state_spec = Composite(fen=NonTensor())
        self.action_spec = Categorical(count) if categorical_action_encoding else OneHot(count, dtype=torch.int64)
        self.reward_spec = Composite(player0=Composite(reward=Unbounded(1)), player1=Composite(reward=Unbounded(1)))
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in ("done", "terminated")})

    def legal_moves(self) -> list[str]:
        """Return the legal moves of the present position, in UCI notation, sorted."""
        return sorted(move.uci() for move in self._board.legal_moves)

    # ---- playing

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        if mask is None or bool(mask.any()):
            self._board = self._position(self._fen)
        return {**self._seen(), **self._over(over=False)}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        fen: Any = state["fen"]
        self._board = self._position(str(getattr(fen, "data", fen)))
        return self._seen()

    def _step_leaves(self, root: Leaves) -> Leaves:
        held = root.get("_step", None)
        result = "*"
        if held is None or bool(held.any()):
            if self._ended() is not None:
                raise RLError(f"{self!r}: the game is over; reset the environment before the next step")
            action = root["action"]
            move = self.moves[int(action if self._categorical else action.argmax(-1))]
            if move not in self.legal_moves():
                raise SpecError(
                    f"{self!r}: the move {move} is illegal in {self._board.fen()}. Choose by the entry 'action_mask',"
                    " for example with the transform ActionMask"
                )
            self._board.push_uci(move)
            outcome = self._ended()
            result = "*" if outcome is None else outcome.result()
        gain = {"1-0": 1.0, "0-1": -1.0}.get(result, 0.0)
        rewards: Leaves = {
            ("player0", "reward"): self._tensor([gain]),
            ("player1", "reward"): self._tensor([-gain]),
        }
        return {**self._seen(), **rewards, **self._over(over=result != "*")}

    def _ended(self) -> Any:
        return self._board.outcome(claim_draw=self._claim)

    def _position(self, fen: str) -> Any:
        try:
            board = self._chess.Board(fen)
        except ValueError as error:
            raise ArgumentError(f"ChessEnv: {fen!r} is no position in FEN: {error}") from error
        if not board.is_valid():
            raise ArgumentError(f"ChessEnv: {fen!r} is no legal position: {board.status()!r}")
        return board

    def _seen(self) -> Leaves:
        board, chess = self._board, self._chess
        squares = torch.zeros(64, dtype=torch.int64)
        for square, piece in board.piece_map().items():
            squares[square] = piece.piece_type if piece.color else -piece.piece_type
        squares = squares.reshape(8, 8)
        own = squares if board.turn else -squares.flip(0)
        kinds = torch.arange(1, 7).reshape(6, 1, 1)
        special = torch.zeros(64)
        for square in chess.SquareSet(board.castling_rights):
            special[square] = 1
        if board.ep_square is not None:
            special[board.ep_square] = 1
        special = special.reshape(8, 8) if board.turn else special.reshape(8, 8).flip(0)
        mask = torch.zeros(len(self.moves), dtype=torch.bool)
        mask[[self._numbers[move.uci()] for move in board.legal_moves]] = True
        leaves: Leaves = {
            "board": squares,
            "observation": torch.cat([own == kinds, own == -kinds, special.unsqueeze(0).bool()]).float(),
            "turn": torch.tensor([0 if board.turn else 1]),
            "clocks": torch.tensor([board.halfmove_clock, board.fullmove_number]),
            "action_mask": mask,
        }
        if self.device is not None:
            leaves = {key: leaf.to(self.device) for key, leaf in leaves.items()}
        if self._include_fen:
            text: Any = board.fen()
            leaves["fen"] = text
        return leaves

    def _over(self, *, over: bool) -> Leaves:
        return {name: torch.tensor([over], device=self.device) for name in ("done", "terminated")}

    def _tensor(self, values: list[float]) -> Tensor:
        return torch.tensor(values, device=self.device)

    # ---- control

    def lowered(self) -> LeafEnv | None:
        """Return the leaf form; None with `include_fen`, which is text."""
        return None if self._include_fen else super().lowered()

    def _set_seed(self, seed: int) -> None:
        """Nothing: the game has no chance."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the moves that led to it."""
        board = self._board
        return {"restorable": True, "fen": board.root().fen(), "moves": [move.uci() for move in board.move_stack]}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`."""
        self._board = self._position(state["fen"])
        for move in state["moves"]:
            self._board.push_uci(move)
        return True

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: the game is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    def __repr__(self) -> str:
        return f"ChessEnv(device={self.device})"
