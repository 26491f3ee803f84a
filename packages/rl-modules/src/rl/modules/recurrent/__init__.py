"""Recurrent cells, modules and back ends."""
