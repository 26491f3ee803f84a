"""Keys and parts of TensorDict modules, in our terms: tensordict types them in its own way."""

from __future__ import annotations

from typing import Any

from rl.core.keys import unwrap


def key_list(keys: Any) -> list[Any]:
    """One key or several, each in its shortest form.

    Example:
        >>> key_list(("agents", "action")), key_list(["action", ("reward",)])
        ([('agents', 'action')], ['action', 'reward'])
    """
    return [unwrap(keys)] if isinstance(keys, (str, tuple)) else [unwrap(key) for key in keys]


def parts(sequence: Any) -> list[Any]:
    """Return the modules of a `TensorDictSequential`, in order."""
    inner = sequence.module
    return list(inner.values() if hasattr(inner, "values") else inner)
