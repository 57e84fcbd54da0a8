"""The `prism` command. Light to import: each command loads what it needs when it runs."""

from prism.cli.app import main

__all__ = ["main"]
