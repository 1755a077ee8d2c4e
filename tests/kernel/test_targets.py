"""Targets go to columns and come back as they were, for every form that they may have."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchtangent as tt
from torchtangent.kernel.targets import Form, as_columns, form_of, numbers

LIKE = torch.empty(0, dtype=torch.float64)
FORMS = {
    "one output": ((4,), (4, 4), Form(4, 1)),
    "many targets": ((4, 5), (4, 4), Form(4, 1, 5)),
    "an output with axes": ((4, 5), (4, 4, 1, 1), Form(4, 1, 5)),
    "outputs": ((4, 3), (4, 4, 3, 3), Form(4, 3)),
    "outputs of a matrix": ((4, 3), (12, 12), Form(4, 3)),
    "many targets of outputs": ((4, 3, 5), (12, 12), Form(4, 3, 5)),
    "one target with an axis": ((4, 3, 1), (4, 4, 3, 3), Form(4, 3, 1)),
}


@pytest.mark.parametrize(("shape", "kernel", "form"), FORMS.values(), ids=FORMS)
def test_there_and_back(shape: tuple[int, ...], kernel: tuple[int, ...], form: Form) -> None:
    y = torch.randn(shape, dtype=torch.float64)
    columns, found = as_columns(y.requires_grad_(), kernel, LIKE)
    assert found == form
    assert found.shape == shape
    assert columns.shape == (4 * form.outputs, form.targets or 1)
    assert not columns.requires_grad
    for n in range(4):  # row n·C + c
        for c in range(form.outputs):
            expected = y[n] if form.outputs == 1 else y[n, c]
            assert torch.equal(columns[n * form.outputs + c], expected.reshape(-1))
            assert torch.equal(found.by_sample(columns)[n, c], expected.reshape(-1))
    assert torch.equal(found.restore(columns), y)
    assert torch.equal(found.restore(columns[: 2 * form.outputs]), y[:2])  # of other samples
    assert found.each(columns.sum(0)).shape == (() if form.targets is None else (form.targets,))
    array, _ = as_columns(y.detach().permute(*range(len(shape))[::-1]).numpy().T, kernel, LIKE)
    assert torch.equal(array, columns)


def test_classes_have_no_axis_of_outputs() -> None:
    assert form_of(torch.zeros(4), (12, 12), classes=True) == Form(4, 3)
    assert form_of(torch.zeros(4, 5), (4, 4, 3, 3), classes=True) == Form(4, 3, 5)


@pytest.mark.parametrize("shape", [(), (3,), (4,), (3, 4), (4, 2), (4, 3, 5, 1), (4, 3, 0)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError,
        match=r"A kernel \(4, 4, 3, 3\) of 4 samples with 3 outputs needs g of shape \(4, 3\), or \(4, 3, K\)",
    ) as error:
        as_columns(torch.zeros(shape), (4, 4, 3, 3), LIKE, "g")
    assert "lasses" not in str(error.value)
    with pytest.raises(ValueError, match=r"4 samples with 1 output needs y of shape \(4,\), or \(4, K\)"):
        form_of(torch.zeros(5), (4, 4))


def test_one_sample_of_a_matrix_gets_advice() -> None:
    """A row may as well be a column that lies, so it is not guessed."""
    with pytest.raises(
        ValueError, match=r"\. If this is one sample with 3 outputs, pass the kernel as \(1, 1, 3, 3\)\.$"
    ):
        form_of(torch.zeros(1, 3), (3, 3))
    assert form_of(torch.zeros(1, 3), (1, 1, 3, 3)) == Form(1, 3)


def test_classes_instead_of_numbers_get_advice() -> None:
    for kernel in ((4, 4, 3, 3), (12, 12)):
        with pytest.raises(ValueError, match=r"got \(4,\)\. Classes are passed one-hot, F\.one_hot\(g, 3\), or so\.$"):
            as_columns(torch.tensor([0, 2, 1, 1]), kernel, LIKE, "g", instead=", or so")


def test_what_holds_no_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"labels should be numbers .* this list holds others.*return_inverse=True"):
        numbers(["cat", "dog"], "labels")
    assert not numbers(torch.ones(2, requires_grad=True), "labels").requires_grad


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    g = torch.zeros(4, 3, 2)
    g[2:, 1, 1] = value
    with pytest.raises(ValueError, match="g has NaN or infinity, first in sample 2"):
        as_columns(g, (12, 12), LIKE, "g")


def test_classes_that_are_taken_as_numbers_are_told() -> None:
    K, y = torch.eye(6), torch.tensor([0, 2, 1, 1, 0, 2])
    with pytest.warns(
        UserWarning, match=r"y holds the integers 0 to 2, .* F\.one_hot\(y\), or to tt\.predict\.classify"
    ):
        tt.predict.ridge(K, y, ridge=1.0)
    with pytest.warns(UserWarning, match="g holds the integers 0 to 2"):
        tt.alignment.of_kernel(K, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fine in (y.float(), y % 2, y + 1, y > 0, torch.nn.functional.one_hot(y)):
            tt.predict.ridge(K, fine, ridge=1.0)
        tt.predict.classify(K, y, ridge=1.0)


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_lists_are_not_rounded_to_the_default_dtype(default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        assert numbers([0.1, 16777217.0], "y").tolist() == [0.1, 16777217.0]
        J = torch.randn(100, 5, dtype=torch.float64)
        tt.alignment.of_kernel(J @ J.T, torch.randn(100, dtype=torch.float64))
    finally:
        torch.set_default_dtype(torch.float32)
