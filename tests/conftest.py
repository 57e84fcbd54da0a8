"""Options and settings of the whole suite. Helpers of one area live beside its tests."""

from __future__ import annotations

import os
import sys
import tempfile

import pytest
from hypothesis import settings

# Two workers share two cores: a library that starts a thread for each core in each worker only slows all of them.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Child processes, of which there are many, would compile all of prism anew, each, and workers the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same draws on every run and no time limit per example: a loaded machine must not fail a test.
settings.register_profile("prism", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "prism"))


# Studies and compiled kernels of earlier runs must not decide what a test sees.
_cache = tempfile.TemporaryDirectory(prefix="prism-tests-")
os.environ["PRISM_CACHE_DIR"] = _cache.name


def pytest_unconfigure() -> None:
    _cache.cleanup()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow: needs --run-slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
