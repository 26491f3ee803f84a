"""World models: recurrent state-space models, encoders, decoders, and what their heads predict."""
