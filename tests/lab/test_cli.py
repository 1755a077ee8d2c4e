"""The command line, as a user types it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_toy import toy_study
from typer.testing import CliRunner

from torchtangent.lab import cli, ledger, recipes, results
from torchtangent.lab.claims import Finding
from torchtangent.lab.recipes import registry
from torchtangent.lab.runner import Context


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "registry", lambda: {"toy2000": toy_study()})


def test_the_versions(runner: CliRunner) -> None:
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("torchtangent 0.")


@pytest.mark.parametrize("command", ["list", "reproduce", "judge", "report", "claims"])
def test_help_teaches(runner: CliRunner, command: str) -> None:
    result = runner.invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert command in runner.invoke(cli.app, ["--help"]).output


AS_MODULES = """
import runpy, sys

def run(module):
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        print("END", end.code)

sys.argv[1:] = ["--help"]
sys.modules["typer"] = None  # as where it is not installed
run("torchtangent")
del sys.modules["typer"]
run("torchtangent")
del sys.modules["torchtangent.lab.cli"]  # a module that is run should not be imported before
run("torchtangent.lab.cli")
"""


def test_the_command_is_also_a_module_that_says_what_to_install() -> None:
    """As `python -m` runs it in a fresh process; in the same one for all, since importing torch takes seconds."""
    done = subprocess.run([sys.executable, "-c", AS_MODULES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    bare, package, module = re.findall(r"(.*?)END (.*?)\n", done.stdout, flags=re.DOTALL)
    assert bare == ("", "The lab needs typer: pip install 'torchtangent[lab]'")
    for said, code in (package, module):
        assert "Usage: torchtangent" in said
        assert code == "0"


@pytest.mark.parametrize("columns", ["80", "200"])
def test_list_shows_every_entry(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = runner.invoke(cli.app, ["list"])
    assert result.exit_code == 0
    for study in registry().values():
        for entry in study.entries:
            assert entry.id in result.output


def test_reproduce_runs_one_entry(runner: CliRunner, tmp_path: Path) -> None:
    arguments = ["reproduce", "george2023", "--only", "Fig2.1", "--only", "A.4", "--out", str(tmp_path)]
    result = runner.invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert "gaussians" in result.output
    assert "5 claims: 4 held, 1 did not hold, 0 not tested" in result.output  # those of the two entries
    claims = json.loads((tmp_path / "george2023" / "smoke" / "claims.json").read_text())
    assert len(claims) == len(registry()["george2023"].claims)
    page = tmp_path / "report" / "index.html"
    assert runner.invoke(cli.app, ["report", str(tmp_path), "--out", str(page)]).exit_code == 0
    assert "TG-Fig2.1" in page.read_text()


@pytest.mark.usefixtures("toy")
def test_judge_writes_the_verdicts_again(runner: CliRunner, tmp_path: Path) -> None:
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    path = tmp_path / "toy2000" / "smoke" / "claims.json"
    before = path.read_text()
    path.write_text("[]")
    assert runner.invoke(cli.app, ["judge", str(tmp_path)]).exit_code == 0
    assert path.read_text() == before


@pytest.mark.usefixtures("toy")
def test_judge_writes_nothing_where_only_a_link_leads(runner: CliRunner, tmp_path: Path) -> None:
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path / "theirs")])
    path = tmp_path / "theirs" / "toy2000" / "smoke" / "claims.json"
    path.write_text("[]")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "theirs")
    result = runner.invoke(cli.app, ["judge", str(tmp_path / "mine")])
    assert "left as it is" in result.output
    assert path.read_text() == "[]"


def test_committed_verdicts_are_those_of_the_committed_arrays(runner: CliRunner, tmp_path: Path) -> None:
    committed = Path(__file__).parents[2] / "results"
    shutil.copytree(committed, tmp_path / "results")
    assert runner.invoke(cli.app, ["judge", str(tmp_path / "results")]).exit_code == 0
    for path in sorted(committed.rglob("claims.json")):
        pair = (path, tmp_path / "results" / path.relative_to(committed))
        for then, now in zip(*([Finding.from_json(f) for f in json.loads(p.read_text())] for p in pair), strict=True):
            assert replace(now, measured=None) == replace(then, measured=None)
            if then.measured is None:
                assert now.measured is None
            else:  # fits and sums round as the machine's libraries do
                assert now.measured == pytest.approx(then.measured, rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.usefixtures("toy")
def test_reproduce_all_then_claims(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    table = runner.invoke(cli.app, ["claims", "toy2000", "--runs", str(tmp_path)])
    assert "There are five." in table.output
    assert "not tested (needs the paper scale)" in table.output
    assert "1 held, 1 did not hold, 1 not tested" in table.output
    listed = json.loads(runner.invoke(cli.app, ["claims", "toy2000", "--runs", str(tmp_path), "--json"]).output)
    assert [claim["verdict"] for claim in listed] == ["held", "did not hold", "not tested at this scale"]
    few = runner.invoke(cli.app, ["claims", "toy2000", "--runs", str(tmp_path), "--not-held"]).output
    assert few.count("published") == 1
    assert "smoke scale  did not hold" in few
    assert "1 held, 1 did not hold, 1 not tested" in few


@pytest.mark.usefixtures("toy")
def test_claims_without_a_run_are_not_tested(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(cli.app, ["claims", "toy2000", "--runs", str(tmp_path)])
    assert result.exit_code == 0
    assert "0 held, 0 did not hold, 3 not tested" in result.output


@pytest.mark.usefixtures("toy")
def test_claims_of_all_studies_are_counted(runner: CliRunner, tmp_path: Path) -> None:
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    result = runner.invoke(cli.app, ["claims", "--runs", str(tmp_path)])
    cells = [re.split(r"\s{2,}", line.strip()) for line in result.output.splitlines()]
    assert cells[:2] == [list(ledger.COLUMNS[:-1]), ["toy2000", "3", "1", "1", "1", "0"]]
    assert cells[3:5] == [["study", "why not tested"], ["toy2000", "needs the paper scale: 1"]]
    other = runner.invoke(cli.app, ["claims", "--runs", str(tmp_path), "--scale", "paper"])
    assert re.split(r"\s{2,}", other.output.splitlines()[1].strip())[1:5] == ["3", "0", "0", "3"]


@pytest.mark.usefixtures("toy")
def test_a_claim_has_a_line_for_each_scale(runner: CliRunner, tmp_path: Path) -> None:
    for scale in ("smoke", "paper"):
        runner.invoke(cli.app, ["reproduce", "toy2000", "--scale", scale, "--out", str(tmp_path / scale)])
    folders = ["--runs", str(tmp_path / "smoke"), "--runs", str(tmp_path / "paper")]
    lines = runner.invoke(cli.app, ["claims", "toy2000", *folders]).output.splitlines()
    at = next(i for i, line in enumerate(lines) if "There are five." in line)
    said = [" ".join(line.split()) for line in lines[at : at + 5]]
    assert said[:2] == ["TY-Fig1 There are five.", "published 5"]
    assert said[2:] == ["holds if 5 up to a relative 10⁻⁹", "paper scale held 5", "smoke scale held 5"]


@pytest.mark.usefixtures("toy")
def test_a_claim_is_read_in_a_narrow_terminal(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    lines = runner.invoke(cli.app, ["claims", "toy2000", "--runs", str(tmp_path)]).output.splitlines()
    assert "TY-Tab1–2  At full size it is zero." in [line.rstrip() for line in lines]


@pytest.mark.usefixtures("toy")
def test_markdown_goes_into_a_file(runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner.invoke(cli.app, ["reproduce", "--all", "--out", "results"])
    runner.invoke(cli.app, ["reproduce", "--all", "--scale", "paper", "--out", "runs"])
    printed = runner.invoke(cli.app, ["claims", "--markdown"]).output
    assert "| toy2000 | 3 | 1 | 1 | 1 | 0 | needs the paper scale: 1 |" in printed  # of results alone
    readme = tmp_path / "README.md"
    readme.write_text(f"Über\n{ledger.BEGIN}\nold\n{ledger.END}\nend\n", encoding="utf-8")
    assert runner.invoke(cli.app, ["claims", "--markdown", "--into", "README.md"]).exit_code == 0
    assert readme.read_text(encoding="utf-8") == f"Über\n{printed}end\n"


@pytest.mark.usefixtures("toy")
def test_a_file_without_marks_is_exit_code_2(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("no marks")
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    arguments = ["claims", "--markdown", "--runs", str(tmp_path), "--into", str(tmp_path / "a.md")]
    result = runner.invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert "no place for the table" in result.output
    assert (tmp_path / "a.md").read_text() == "no marks"


def test_a_failing_part_is_exit_code_1(runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: Context) -> dict[str, float]:
        raise ArithmeticError("no sum today")

    monkeypatch.setattr(recipes, "registry", lambda: {"toy2000": toy_study(total=broken)})
    result = runner.invoke(cli.app, ["reproduce", "toy2000", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "no sum today" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce"], "--all"),
        (["reproduce", "george2023", "--all"], "--all"),
        (["reproduce", "nobody1900"], "george2023"),
        (["reproduce", "george2023", "--only", "Fig99"], "TG-Fig2.1"),
        (["reproduce", "george2023", "--scale", "huge"], "smoke"),
        (["reproduce", "george2023", "--device", "bogus"], "--device bogus"),
        (["claims", "--into", "README.md"], "--markdown"),
        (["claims", "--runs", "nope"], "there is no folder nope"),
        (["judge", "nope"], "there is no folder nope"),
        (["report", "nope"], "there is no folder nope"),
        (["judge", "george2018"], "such as runs/george2018"),
        (["judge", "mine.py"], "say --recipe mine.py"),
        (["report", __file__], f"say --recipe {__file__}"),
    ],
)
def test_a_wrong_command_is_exit_code_2(runner: CliRunner, arguments: list[str], message: str) -> None:
    result = runner.invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_missing_data_says_which_file_belongs_where(runner: CliRunner, tmp_path: Path) -> None:
    arguments = ["reproduce", "george2023", "--scale", "paper", "--only", "Fig3.1", "--data", str(tmp_path / "data")]
    result = runner.invoke(cli.app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "MNIST/raw/train-images-idx3-ubyte is not in the data folder" in " ".join(result.output.split())
    assert "MNIST/raw/t10k-labels-idx1-ubyte" in result.output


def test_missing_data_are_said_once(runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_cifar(context: Context) -> Mapping[str, Any]:
        return {"x": context.data("cifar10").x_test}

    monkeypatch.delenv("TORCHTANGENT_DATA", raising=False)
    study = toy_study(numbers=with_cifar)
    parts = (study.parts[0], replace(study.parts[0], name="more"), study.parts[1])
    entries = (replace(study.entries[0], parts=("numbers", "more")), study.entries[1])
    config = {"numbers": {}, "more": {}, "total": {}}
    study = replace(study, parts=parts, entries=entries, configuration=lambda scale: config)
    monkeypatch.setattr(recipes, "registry", lambda: {"toy2000": study})
    result = runner.invoke(cli.app, ["reproduce", "toy2000", "--scale", "paper", "--out", str(tmp_path)])
    words = " ".join(result.output.split())
    assert result.exit_code == 1
    assert words.count("no data folder: give one with --data") == 1
    assert words.count("cifar-10-batches-bin/test_batch.bin") == 1
    assert "more needs the same files as numbers" in words
    assert "not begun, because a part they need failed: total" in words
    assert "Error:" not in words


def test_an_interrupted_run_says_how_to_go_on(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(context: Context) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "registry", lambda: {"toy2000": toy_study(total=interrupted)})
    result = runner.invoke(cli.app, ["reproduce", "toy2000", "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert "interrupted; run the same command to resume" in result.output


@pytest.mark.parametrize("command", ["report", "judge"])
def test_a_folder_without_runs_is_exit_code_1(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in ([command], [command, str(tmp_path)]):
        result = runner.invoke(cli.app, arguments)
        assert result.exit_code == 1
        assert "no results in" in result.output
        assert "make some with `torchtangent reproduce`" in result.output
    assert not list(tmp_path.iterdir())  # nothing is left behind


@pytest.mark.usefixtures("toy")
def test_what_cannot_be_written_is_said_without_a_traceback(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path / "runs")])

    def refused(path: Path, write: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(results, "replace_file", refused)
    for arguments, said in (
        (["reproduce", "--all", "--out", str(tmp_path / "file" / "runs")], "choose another folder with --out"),
        (["report", str(tmp_path / "runs"), "--out", str(tmp_path / "file" / "a.html")], "another file with --out"),
        (["judge", str(tmp_path / "runs")], "Permission denied"),
    ):
        result = runner.invoke(cli.app, arguments)
        assert result.exit_code == 1
        assert said in result.output
        assert "Traceback" not in result.output


@pytest.mark.usefixtures("toy")
def test_messages_are_not_broken_where_the_terminal_ends(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    assert f"next: torchtangent report {tmp_path} (each" in result.output  # to be copied


@pytest.mark.usefixtures("toy")
def test_report_says_what_it_draws(runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.invoke(cli.app, ["reproduce", "--all", "--out", str(tmp_path)])
    result = runner.invoke(cli.app, ["report", str(tmp_path), "--out", str(tmp_path / "index.html")])
    assert result.output.splitlines()[0] == "drawing toy2000 …"
