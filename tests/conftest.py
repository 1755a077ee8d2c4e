"""What every test shares: shape checks on, one thread per worker, a fixed seed."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import install_import_hook

# Every annotated function of the library checks its shapes while the tests run (where beartype is installed).
if importlib.util.find_spec("beartype"):
    install_import_hook("torchtangent", "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist share the cores, so each gets one thread."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same global random state."""
    torch.manual_seed(0)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Warnings of the library are no errors here: the case may well need a slow fallback."""
    import torchtangent as tt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tt.TangentWarning)
        yield
