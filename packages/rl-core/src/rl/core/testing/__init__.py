"""The conformance kit: plain functions that check what a component promises. See the single functions."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.testing._contract import check_contract
    from rl.core.testing._toy_env import CountingEnv

__all__ = ["CountingEnv", "check_contract"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {"rl.core.testing._contract": ["check_contract"], "rl.core.testing._toy_env": ["CountingEnv"]},
)
