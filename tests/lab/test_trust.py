"""Verdicts follow from the arrays and rules there are; nothing that was computed is lost, or kept past its time."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_toy import add_up, draw_numbers, toy_study
from typer.testing import CliRunner, Result

from torchtangent.lab import cli, provenance, recipes, report
from torchtangent.lab.claims import Claim, digits, judge, show
from torchtangent.lab.data import DataError
from torchtangent.lab.judging import part_keys, verdicts
from torchtangent.lab.provenance import sources
from torchtangent.lab.recipes import registry
from torchtangent.lab.rules import AtMost, Increasing, Rule
from torchtangent.lab.runner import Context, reproduce
from torchtangent.lab.study import Arrays, Panel, Part, Study, Table

Use = Callable[[Study], None]
Invoke = Callable[..., Result]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes a study the only one that there is."""

    def only(study: Study) -> None:
        monkeypatch.setattr(recipes, "registry", lambda: {study.key: study})

    only(toy_study())
    return only


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def broken(context: Context) -> Mapping[str, Any]:
    raise ArithmeticError("not today")


def reasons(study: Study, run: Any) -> list[str]:
    return [finding.reason for finding in verdicts(study, run)]


def test_verdicts_are_by_the_rule_of_now(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    study = toy_study()
    reproduce(study, "smoke", tmp_path)
    first = replace(study.claims[0], rule=AtMost(4.0))
    use(replace(study, claims=(first, *study.claims[1:])))
    (claim, *_) = json.loads(invoke("claims", "--runs", tmp_path, "--json").output)
    assert (claim["rule"], claim["verdict"]) == ("at most 4", "did not hold")
    assert "0 held, 2 did not hold, 1 not tested" in invoke("claims", "toy2000", "--runs", tmp_path).output
    assert ">2 did not hold</span>" in report.build([tmp_path])


def test_verdicts_need_their_arrays(tmp_path: Path) -> None:
    study = toy_study()
    run = reproduce(study, "smoke", tmp_path).run
    before = verdicts(study, run)
    (run.folder / "claims.json").write_text("[")
    assert verdicts(study, run) == before
    path = run.folder / "parts" / "numbers.npz"
    path.write_bytes(path.read_bytes()[:-7])
    assert reasons(study, run)[0] == "the arrays of numbers are damaged, or what they were made from has changed"
    assert reasons(study, run)[1] == ""


@pytest.mark.parametrize("fresh", [True, False])
def test_arrays_stay_until_new_ones_are_there(tmp_path: Path, fresh: bool) -> None:
    run = reproduce(toy_study(), "smoke", tmp_path).run
    before = {path: path.read_bytes() for path in (run.folder / "parts").iterdir()}
    failing = replace(toy_study(), parts=(Part("numbers", broken), toy_study().parts[1]))
    outcome = reproduce(failing, "smoke", tmp_path, fresh=fresh)
    assert list(outcome.failed) == ["numbers", "total"]
    assert {path: path.read_bytes() for path in (run.folder / "parts").iterdir()} == before
    assert [finding.reason for finding in outcome.findings[:2]] == 2 * ["the part numbers failed"]


def test_arrays_of_another_version_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = toy_study()
    reproduce(study, "smoke", tmp_path)
    assert reasons(toy_study(seed=1), reproduce(study, "smoke", tmp_path).run)[0] == "made with another configuration"
    monkeypatch.setattr("inspect.getsource", lambda module: "something = 2")
    outcome = reproduce(study, "smoke", tmp_path, only=["Fig1"])
    assert [finding.reason for finding in outcome.findings] == [
        "",
        "made by another version of the code",
        "needs the paper scale",
    ]


def test_a_failure_is_not_a_want_of_data(tmp_path: Path) -> None:
    study = toy_study()
    by_hand = replace(study, parts=(Part("numbers", broken, by_hand="Photographs"), study.parts[1]))
    assert reproduce(by_hand, "smoke", tmp_path, only=["Fig1"]).findings[0].reason == "the part numbers failed"

    def absent(context: Context) -> Mapping[str, Any]:
        raise DataError("photographs.txt belongs into the data folder")

    by_hand = replace(study, parts=(Part("numbers", absent, by_hand="Photographs"), study.parts[1]))
    assert reproduce(by_hand, "smoke", tmp_path, only=["Fig1"]).findings[0].reason == "needs Photographs"


def test_an_exit_is_a_failure(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    use(toy_study(total=lambda context: sys.exit(0)))
    result = invoke("reproduce", "toy2000", "--out", tmp_path)
    assert result.exit_code == 1
    assert "the part ended its process (exit code 0)" in result.output
    assert "1 held" in result.output
    assert "why not tested: the part total failed: 1, needs the paper scale: 1" in result.output
    assert "the part total failed" in invoke("claims", "toy2000", "--runs", tmp_path).output
    assert "the part total failed" in report.build([tmp_path])


def test_what_needs_new_arrays_is_computed_again(tmp_path: Path) -> None:
    drawn = [1.0]

    def numbers(context: Context) -> Mapping[str, Any]:
        return {"x": np.array(drawn)}

    study = toy_study(numbers=numbers)
    reproduce(study, "smoke", tmp_path)
    assert reproduce(study, "smoke", tmp_path, only=["Fig1"], fresh=True).computed == ["numbers"]
    assert reproduce(study, "smoke", tmp_path).computed == []
    drawn.append(2.0)
    run = reproduce(study, "smoke", tmp_path, only=["Fig1"], fresh=True).run
    assert reasons(study, run)[1].endswith("or what they were made from has changed")
    assert reproduce(study, "smoke", tmp_path).computed == ["total"]
    assert float(run.load(["total"])["total"]) == 3.0


def test_what_needs_that_has_no_verdict_either(tmp_path: Path) -> None:
    drawn = [1.0]

    def numbers(context: Context) -> Mapping[str, Any]:
        return {"x": np.array(drawn)}

    def double(context: Context) -> Mapping[str, Any]:
        return {"twice": 2 * context.arrays("total")["total"]}

    study = toy_study(numbers=numbers)
    study = replace(
        study,
        configuration=lambda scale: {"numbers": {}, "total": {}, "twice": {}},
        parts=(*study.parts, Part("twice", double, needs=("total",))),
        entries=(study.entries[0], replace(study.entries[1], parts=("twice",))),
        claims=(study.claims[0], replace(study.claims[1], measure=lambda arrays: float(arrays["twice"]))),
    )
    reproduce(study, "smoke", tmp_path)
    drawn.append(2.0)
    run = reproduce(study, "smoke", tmp_path, only=["Fig1"], fresh=True).run
    changed = "the arrays of twice are damaged, or what they were made from has changed"
    assert reasons(study, run) == ["", changed]
    assert reproduce(study, "smoke", tmp_path).computed == ["total", "twice"]
    assert reasons(study, run) == ["", ""]
    (run.folder / "parts" / "numbers.json").unlink()
    assert reasons(study, run) == ["not run", changed]


def test_a_part_may_write_to_its_configuration(tmp_path: Path) -> None:
    def careless(context: Context) -> Mapping[str, Any]:
        context.config["list"].append(3)
        return {"x": 0.0}

    study = replace(
        toy_study(numbers=careless), configuration=lambda scale, config={"numbers": {"list": []}, "total": {}}: config
    )
    outcome = reproduce(study, "smoke", tmp_path)
    record = outcome.run.record("numbers")
    assert record is not None
    assert record.config == {"list": []}
    assert reproduce(study, "smoke", tmp_path).kept == ["numbers", "total"]


def test_files_that_nobody_vouches_for_are_compared(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    file = tmp_path / "data" / "lists" / "a.txt"
    file.parent.mkdir(parents=True)

    def numbers(context: Context) -> Mapping[str, Any]:
        context.checksums["lists/a.txt"] = f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}, not checked"
        return {"x": np.zeros(len(file.read_text()))}

    use(toy_study(numbers=numbers))
    for text, said in (("one", " s"), ("one", "kept, from data that no published checksum"), ("three", " s")):
        file.write_text(text)
        result = invoke("reproduce", "toy2000", "--out", tmp_path, "--data", tmp_path / "data")
        (line,) = [line for line in result.output.splitlines() if "✓ numbers" in line]
        assert said in line


def test_arguments_of_a_part_count() -> None:
    def code(run: Any) -> str | None:
        study = toy_study(numbers=run)
        return part_keys(study, study.configuration("smoke"))["numbers"].code

    codes = [code(run) for run in (draw_numbers, partial(draw_numbers), partial(draw_numbers, 1), partial(add_up, a=1))]
    assert len(set(codes[:1] + codes[2:])) == 3
    assert codes[0] == codes[1]
    assert "lab_toy" in sources(partial(partial(json.dumps), default=draw_numbers))


def test_code_that_is_imported_late_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somebodys_else"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "late.py").write_text("raise RuntimeError('read, not run')\n")
    (package / "recipe.py").write_text("def run(context):\n    from somebodys_else.late import f\n    return f()\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = sources(importlib.import_module("somebodys_else.recipe").run)
    assert found["somebodys_else.late"] == "raise RuntimeError('read, not run')\n"
    assert "somebodys_else.late" not in sys.modules


def test_code_of_the_lab_that_a_part_uses_counts() -> None:
    part = registry()["ortiz2021"].part("sizes-LeNet")
    found = {name for name in sources(part.run) if not name.startswith("torchtangent.lab.recipes")}
    assert found >= {"torchtangent.lab.ensemble", "torchtangent.lab.wide", "torchtangent.lab.models.plain"}
    assert not found & {"torchtangent.lab.runner", "torchtangent.lab.study", "torchtangent.lab.claims"}


def test_changes_anywhere_in_the_library_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "library" / "lab").mkdir(parents=True)
    for file in ("library/kernel.py", "library/lab/provenance.py"):
        (tmp_path / file).write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "library" / "lab" / "provenance.py"))
    clean = provenance.commit.__wrapped__()
    assert clean is not None
    (tmp_path / "library" / "kernel.py").write_text("changed = 1\n")
    assert provenance.commit.__wrapped__() == f"{clean}+"


def nothing(arrays: Arrays) -> Any:
    return {}


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (lambda arrays: arrays["gone"], "KeyError: .*array 'gone' is in none of"),
        (lambda arrays: np.zeros(3), "TypeError: "),
        (nothing, "ValueError: the claim measured nothing"),
    ],
)
def test_a_claim_that_raises_costs_only_itself(
    tmp_path: Path, use: Use, invoke: Invoke, measure: Callable[[Arrays], Any], said: str
) -> None:
    study = toy_study()
    use(replace(study, claims=(replace(study.claims[0], measure=measure), *study.claims[1:])))
    for command in (["reproduce", "toy2000", "--out", tmp_path], ["judge", tmp_path]):
        result = invoke(*command)
        assert result.exit_code == 1
        assert "0 held, 1 did not hold, 2 not tested" in result.output
        assert "✗ claim TY-Fig1, 'five': the measure raised " in result.output
    (claim, *_) = json.loads(invoke("claims", "--runs", tmp_path, "--json").output)
    assert claim["verdict"] == "not tested at this scale"
    assert re.match(f"the measure raised {said}", claim["reason"])


def test_a_plot_that_raises_leaves_the_page(tmp_path: Path, use: Use) -> None:
    def fail(arrays: Arrays) -> Any:
        raise ZeroDivisionError("by <zero>")

    study = toy_study()
    first = replace(
        study.entries[0],
        setup="{numbers[gone]} numbers.",
        panels=(Panel(fail, "numbers"),),
        tables=(Table("Numbers", ("a",), fail),),
    )
    study = replace(study, entries=(first, study.entries[1]))
    use(study)
    reproduce(study, "smoke", tmp_path)
    page = report.build([tmp_path])
    for what in (
        "plot 1 (ZeroDivisionError: by &lt;zero&gt;)",
        "the table &#39;Numbers&#39; (Zero",
        "what is run (KeyError",
    ):
        assert what in page
    assert "Added." in page


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*paths: Any) -> None:
        raise OSError("disk full")

    reproduce(toy_study(), "smoke", tmp_path)
    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        report.write([tmp_path], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"


def test_a_folder_in_use_is_left_alone(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    run = reproduce(toy_study(), "smoke", tmp_path).run
    with run.alone():
        for command in (["reproduce", "toy2000", "--out", tmp_path], ["judge", tmp_path]):
            result = invoke(*command)
            assert result.exit_code == 1
            assert "another process works in" in result.output
        assert invoke("claims", "--runs", tmp_path).exit_code == 0


def test_two_runs_of_one_kind_are_said(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    for name in "ab":
        reproduce(toy_study(), "smoke", tmp_path / name)
    said = "toy2000 was run at smoke scale in several places"
    assert said in " ".join(invoke("claims", "--runs", tmp_path).output.split())
    assert said not in " ".join(invoke("claims", "--runs", tmp_path / "a", "--runs", tmp_path / "a").output.split())


def test_a_table_of_nothing_is_not_written(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("as it was")
    result = invoke("claims", "--markdown", "--into", readme, "--runs", tmp_path)
    assert result.exit_code == 1
    assert "say with --runs where they are" in " ".join(result.output.split())
    assert readme.read_text() == "as it was"
    assert invoke("claims", "--markdown", "--json", "--runs", tmp_path).exit_code == 2


def test_brackets_are_no_markup(tmp_path: Path, use: Use, invoke: Invoke) -> None:
    use(replace(toy_study(), title="Toys [/] and [red]", reference="[1]"))
    out = tmp_path / "[bold]"
    assert "Toys [/] and [red]" in invoke("list").output
    result = invoke("reproduce", "toy2000", "--out", out)
    assert "Toys [/] and [red]" in result.output
    assert "[bold]" in result.output
    assert "[bold]" in invoke("report", out, "--out", out / "page.html").output


@pytest.mark.parametrize(
    ("rule", "measured", "shown"),
    [
        (AtMost(0.25), 0.2503, "0.2503"),
        (AtMost(0.25), 0.2497, "0.25"),
        (AtMost(0.25), 0.4, "0.4"),
        (AtMost(1e-10), 1.0004e-10, "1.0004 × 10⁻¹⁰"),
        (AtMost(12345.0), {"a": 1.0, "b": 12345.5}, "a 1, b 12,350"),
        (Increasing("a", "b"), {"a": 0.50001, "b": 0.5}, "a 0.5, b 0.5"),
    ],
)
def test_what_did_not_hold_does_not_look_as_if_it_did(rule: Rule, measured: Any, shown: str) -> None:
    claim = Claim("XX-Fig1", "n", "s", 1.0, lambda arrays: measured, rule)
    finding = judge(claim, Arrays({}), study="xx", scale="smoke", seconds=1.0)
    assert show(finding.measured, digits(rule, finding)) == shown
