"""Checks of what answers the hooks: priority trees, recurrences, recurrent back ends, copies of rows."""
