"""Parts of the command `rl`: parser, tables, output, doctor."""
