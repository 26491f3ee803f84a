"""What the recipes for data sets share: settings, the loop."""
