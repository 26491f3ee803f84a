"""Evaluation of policies, in this process or beside it."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.collectors.evaluation._evaluator import Evaluator

__all__ = ["Evaluator"]

__getattr__, __dir__ = lazy_exports(__name__)
