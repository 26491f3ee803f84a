"""What the recipes of on-policy algorithms share: settings, networks and the loop."""
