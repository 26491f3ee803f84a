"""Settings of a run and of a recipe, their checks, and components that settings name."""
