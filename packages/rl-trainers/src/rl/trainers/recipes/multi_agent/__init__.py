"""What the recipes of several agents share: settings, networks of groups."""
