"""Devices and drivers that the kernels support."""
