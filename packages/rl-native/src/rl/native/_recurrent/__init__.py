"""Time loops of recurrent layers in C."""
