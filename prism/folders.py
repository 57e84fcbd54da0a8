"""Where prism keeps things on the user's machine."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """Where prism keeps what it may compute again: PRISM_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("PRISM_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("prism"))
