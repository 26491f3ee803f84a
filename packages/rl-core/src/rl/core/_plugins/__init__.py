"""Discovery, records and validation of plugins, for `rl.core.registry`."""
