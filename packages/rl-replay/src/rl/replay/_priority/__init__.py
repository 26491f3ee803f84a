"""Priority trees in plain torch, their selection, and the validation of priorities."""
