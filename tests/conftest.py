"""What every test shares: one thread per worker, a fixed seed, and shape checks where they are asked for.

With `TORCHTANGENT_SHAPES=1` every annotated function of the library checks its shapes (where beartype is installed).
That takes several times as long, so each test then runs for its first case only, and not at all where it says nothing
new about shapes; `make test` runs both.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from jaxtyping import install_import_hook

if TYPE_CHECKING:
    from cases import Case

SHAPES = bool(os.environ.get("TORCHTANGENT_SHAPES")) and importlib.util.find_spec("beartype") is not None
if SHAPES:
    install_import_hook("torchtangent", "beartype.beartype")

# The lab, and what runs mostly in other processes.
collect_ignore = ["lab", "test_examples.py", "kernel/test_out.py", "kernel/test_store.py"] if SHAPES else []

# Statistics and training of hundreds of calls with the same shapes, compilers, and other processes.
SAME_SHAPES = {
    "test_a_compiled_model",
    "test_compile",
    "test_importing_leaves_the_compiler_alone",
    "test_noise_directions_freeze",
    "test_nystrom_error_from_few_columns",
    "test_projection_error_is_known_and_falls",
    "test_projections_are_unbiased",
    "test_sampled_converges_at_one_over_root_s",
    "test_sampled_curvature_is_unbiased",
    "test_sampled_representations_are_unbiased",
    "test_top_eigenpairs_of_many_samples",
    "test_two_ranks_are_one_process_on_the_joint_batch",
}


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist share the cores, so each gets one thread."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With shape checks, the first case of each test."""
    if not SHAPES:
        return
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    chosen = {item for item in first.values() if item.name.partition("[")[0] not in SAME_SHAPES}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same global random state."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes 1 ms to note a traceback for absent devices
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def silence(request: pytest.FixtureRequest, case: Case) -> None:
    """A case of the zoo that needs no slow fallback must not warn: its warnings stay errors."""
    if case.may_warn:
        request.getfixturevalue("quiet")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Warnings of the library are no errors here: the case may well need a slow fallback."""
    import torchtangent as tt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tt.TangentWarning)
        yield
