"""What the recipes of deep Q-learning share: settings, networks and the loop."""
