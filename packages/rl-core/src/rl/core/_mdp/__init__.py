"""Done flags and partial resets, for `rl.core.mdp`."""
