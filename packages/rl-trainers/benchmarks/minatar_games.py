"""Registers the games of MinAtar with Gymnasium; MinAtar's own entry point is for Gymnasium below 1.0."""

from minatar.gym import register_envs

register_envs()
