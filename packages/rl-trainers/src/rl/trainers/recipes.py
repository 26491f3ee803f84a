"""The former location of the algorithms, kept for one series: their names are in `rl.trainers`."""

from __future__ import annotations

from typing import Any

import rl.trainers


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(rl.trainers, name)
