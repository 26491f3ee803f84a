"""Fast calls of networks, for `rl.core.lowering`."""
