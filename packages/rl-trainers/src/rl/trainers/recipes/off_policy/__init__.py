"""What the recipes of off-policy actor-critic algorithms share: settings, networks and the loop."""
