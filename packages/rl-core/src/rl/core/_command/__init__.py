"""What the command `rl` is built of: parser, tables, output."""
