"""Contracts: which entries a component reads and writes, and the check of several in a row."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.contract._contract import Contract, Key, MissingKey, missing_key_message, missing_keys_message
    from rl.core.contract._explain import Explanation, KeyUse, check_pipeline, contract_of, explain

__all__ = [
    "Contract",
    "Explanation",
    "Key",
    "KeyUse",
    "MissingKey",
    "check_pipeline",
    "contract_of",
    "explain",
    "missing_key_message",
    "missing_keys_message",
]

__getattr__, __dir__ = lazy_exports(__name__)
