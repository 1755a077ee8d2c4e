"""What every test shares: one thread per worker, a fixed seed, and shape checks where they are asked for.

With `TORCHTANGENT_SHAPES=1` every annotated function of the library checks its shapes (where beartype is installed).
That takes several times as long, so each test then runs for its first case only; `make test` runs both.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import install_import_hook

ELSEWHERE = {"test_examples.py", "test_out.py", "test_store.py"}
SHAPES = bool(os.environ.get("TORCHTANGENT_SHAPES")) and importlib.util.find_spec("beartype") is not None
if SHAPES:
    install_import_hook("torchtangent", "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist share the cores, so each gets one thread."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With shape checks, the first case of each test, and none of the lab or that runs mostly in other processes."""
    if not SHAPES:
        return
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()
    chosen = [
        item for item in items if item in first and item.path.name not in ELSEWHERE and item.path.parent.name != "lab"
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


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
