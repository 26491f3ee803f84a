"""Checks of back ends: priority trees, recurrences, recurrent networks, row gathers."""
