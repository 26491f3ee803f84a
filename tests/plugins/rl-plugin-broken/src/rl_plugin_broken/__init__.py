"""A plugin that is broken on purpose."""
