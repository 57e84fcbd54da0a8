"""Backends: the tile program that every backend prints, and what a backend must be able to do."""
