"""Conformance of a whole plugin."""

from __future__ import annotations

__all__ = ["PluginReport", "check_plugin"]


class PluginReport:
    """x."""


def check_plugin(module: str) -> PluginReport:
    """Check."""
    return PluginReport()
