"""Platforms: a device, the backend that kernels for it are printed by, and how they are tuned, run and timed there."""
