"""Chess."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.chess._chess import ChessEnv

__all__ = ["ChessEnv"]

__getattr__, __dir__ = lazy_exports(__name__)
