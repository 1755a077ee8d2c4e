"""Runs go on where they were; a failure costs only what depends on it."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_toy import add_up, draw_numbers, toy_study
from threadpoolctl import threadpool_info

from torchtangent.lab import recipes
from torchtangent.lab.claims import Claim
from torchtangent.lab.data import DataError
from torchtangent.lab.judging import part_keys
from torchtangent.lab.provenance import sources
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import read_json
from torchtangent.lab.rules import AtLeast
from torchtangent.lab.runner import Context, Listener, reproduce
from torchtangent.lab.study import Entry, Part, Study
from torchtangent.lab.workers import Apart, Report, silent


def test_a_second_run_keeps_everything(tmp_path: Path) -> None:
    first = reproduce(toy_study(), "smoke", tmp_path)
    second = reproduce(toy_study(), "smoke", tmp_path)
    assert (first.computed, first.kept) == (["numbers", "total"], [])
    assert (second.computed, second.kept) == ([], ["numbers", "total"])
    assert first.findings == second.findings


def test_fresh_computes_again_and_gets_the_same(tmp_path: Path) -> None:
    first = reproduce(toy_study(), "smoke", tmp_path)
    again = reproduce(toy_study(), "smoke", tmp_path, fresh=True)
    assert again.computed == ["numbers", "total"]
    assert [finding.measured for finding in first.findings] == [finding.measured for finding in again.findings]


def test_a_changed_configuration_computes_what_depends_on_it(tmp_path: Path) -> None:
    reproduce(toy_study(seed=0), "smoke", tmp_path)
    assert reproduce(toy_study(seed=1), "smoke", tmp_path).computed == ["numbers", "total"]


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    def interrupted(context: Context) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(toy_study(total=interrupted), "smoke", tmp_path)
    folder = tmp_path / "toy2000" / "smoke"
    assert not (folder / "manifest.json").exists()
    outcome = reproduce(toy_study(), "smoke", tmp_path)
    assert (outcome.computed, outcome.kept) == (["total"], ["numbers"])
    assert read_json(folder / "manifest.json")["complete"]


def test_a_failure_is_reported_and_the_rest_still_judged(tmp_path: Path) -> None:
    def broken(context: Context) -> Mapping[str, Any]:
        raise ArithmeticError("no sum today")

    outcome = reproduce(toy_study(total=broken), "smoke", tmp_path)
    assert list(outcome.failed) == ["total"]
    assert [finding.verdict for finding in outcome.findings] == [
        "held",
        "not tested at this scale",
        "not tested at this scale",
    ]
    manifest = read_json(outcome.run.folder / "manifest.json")
    assert (manifest["complete"], manifest["missing"]) == (False, ["TY-Tab1–2"])


def test_what_needs_a_failed_part_fails_with_it(tmp_path: Path) -> None:
    def broken(context: Context) -> Mapping[str, Any]:
        raise ArithmeticError("no numbers")

    outcome = reproduce(toy_study(numbers=broken), "smoke", tmp_path)
    assert list(outcome.failed) == ["numbers", "total"]
    assert "needs numbers" in str(outcome.failed["total"])


def test_data_that_only_their_owners_give_are_no_failure(tmp_path: Path) -> None:
    study = toy_study()
    asked = replace(study, parts=(Part("numbers", absent, by_hand="Photographs"), study.parts[1]))
    outcome = reproduce(asked, "smoke", tmp_path, only=["Fig1"])
    assert (list(outcome.passed_over), outcome.failed, outcome.computed) == (["numbers"], {}, [])
    assert outcome.findings[0].reason == "needs Photographs"
    broken = replace(study, parts=(Part("numbers", absent), study.parts[1]))
    assert list(reproduce(broken, "smoke", tmp_path, only=["Fig1"]).failed) == ["numbers"]


def absent(context: Context) -> Mapping[str, Any]:
    raise DataError("photographs.txt belongs into the data folder")


def double(context: Context) -> Mapping[str, Any]:
    return {"twice": 2 * context.arrays("total")["total"]}


def chain(numbers: Any, seed: int = 0) -> Study:
    """Three parts, each of which needs the one before, and a claim on the last; data for the first are got by hand."""
    study = toy_study(seed=seed)
    return replace(
        study,
        configuration=lambda scale: study.configuration(scale) | {"twice": {}},
        parts=(
            Part("numbers", numbers, by_hand="Photographs"),
            study.parts[1],
            Part("twice", double, needs=("total",)),
        ),
        entries=[Entry("TY-Fig2", "Twice", "", "", ("twice",))],
        claims=[Claim("TY-Fig2", "large", "It is large.", "large", lambda a: float(a["twice"]), AtLeast(-100.0))],
    )


def test_what_needs_a_part_that_is_passed_over_is_passed_over_with_it(tmp_path: Path) -> None:
    outcome = reproduce(chain(absent), "smoke", tmp_path)
    assert (list(outcome.passed_over), outcome.failed) == (["numbers", "total", "twice"], {})
    assert outcome.findings[0].reason == "needs Photographs"


@pytest.mark.parametrize("jobs", [1, 2])
def test_old_arrays_do_not_stand_in_for_a_part_that_is_passed_over(tmp_path: Path, jobs: int) -> None:
    assert reproduce(chain(draw_numbers), "smoke", tmp_path, jobs=jobs).findings[0].verdict == "held"
    outcome = reproduce(chain(absent, seed=1), "smoke", tmp_path, jobs=jobs)
    assert (list(outcome.passed_over), outcome.computed) == (["numbers", "total", "twice"], [])
    (finding,) = outcome.findings
    assert (finding.verdict, finding.reason) == ("not tested at this scale", "made with another configuration")


def test_only_runs_an_entry_and_what_it_needs(tmp_path: Path) -> None:
    first = reproduce(toy_study(), "smoke", tmp_path, only=["Fig1"])
    assert first.computed == ["numbers"]
    assert [finding.id for finding in first.asked] == ["TY-Fig1"]
    assert len(first.findings) == 3
    assert reproduce(toy_study(), "smoke", tmp_path, only=["ty-tab1-2"]).computed == ["total"]
    with pytest.raises(ValueError, match="TY-Fig1, TY-Tab1–2"):
        reproduce(toy_study(), "smoke", tmp_path, only=["Fig9"])


def test_changed_code_is_run_again_unless_reuse_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproduce(toy_study(), "smoke", tmp_path)
    monkeypatch.setattr("inspect.getsource", lambda module: "something = 2")
    assert reproduce(toy_study(), "smoke", tmp_path, reuse=True).kept == ["numbers", "total"]
    assert reproduce(toy_study(), "smoke", tmp_path).computed == ["numbers", "total"]


def test_a_part_may_only_read_what_it_says_it_needs(tmp_path: Path) -> None:
    def nosy(context: Context) -> Mapping[str, Any]:
        return {"y": context.arrays("total")["total"]}

    outcome = reproduce(toy_study(numbers=nosy), "smoke", tmp_path)
    assert "does not list it in `needs`" in str(outcome.failed["numbers"])


def test_records_say_where_numbers_come_from(tmp_path: Path) -> None:
    def with_data(context: Context) -> Mapping[str, Any]:
        context.data("digits")
        return draw_numbers(context)

    outcome = reproduce(toy_study(numbers=with_data, total=add_up), "smoke", tmp_path)
    record = outcome.run.record("numbers")
    assert record is not None
    assert set(record.provenance) >= {"commit", "torchtangent", "python", "torch", "device", "finished"}
    assert record.config == {"seed": 0, "count": 5}
    assert record.data["scikit-learn digits"].startswith("md5 ")
    assert str(Path.home()) not in (outcome.run.folder / "parts" / "numbers.json").read_text()


def late(context: Context) -> Mapping[str, Any]:
    """Wait until another part runs too; so it is seen that they do so side by side."""
    folder = context.run.folder
    (folder / f"{context.part.name}.begun").touch()
    for _ in context.track(range(1200)):
        if len(list(folder.glob("*.begun"))) == 2:
            return {"process": os.getpid()}
        time.sleep(0.05)
    raise TimeoutError("alone for a minute")


def die(context: Context) -> Mapping[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def raise_unusual(context: Context) -> Mapping[str, Any]:
    class OfItsOwn(Exception):
        pass

    raise OfItsOwn("cannot travel")


def study_of(**parts: Any) -> Study:
    """Parts without claims, an entry each."""
    return replace(
        toy_study(),
        configuration=lambda scale: {name: {} for name in parts},
        parts=[Part(name, run) for name, run in parts.items()],
        entries=[Entry(f"TY-{name}", name, "", "", (name,)) for name in parts],
        claims=[],
    )


def test_jobs_run_side_by_side_and_what_is_needed_comes_first(tmp_path: Path) -> None:
    outcome = reproduce(study_of(a=late, b=late), "smoke", tmp_path, jobs=2)
    assert (sorted(outcome.computed), outcome.failed) == (["a", "b"], {})
    processes = {int(outcome.run.load([name])["process"]) for name in "ab"}
    assert len(processes) == 2
    assert os.getpid() not in processes
    alone = reproduce(toy_study(), "smoke", tmp_path / "alone")
    apart = reproduce(toy_study(), "smoke", tmp_path / "apart", jobs=2)
    assert apart.computed == ["numbers", "total"]
    assert [f.measured for f in apart.findings] == [f.measured for f in alone.findings]
    record = apart.run.record("numbers")
    assert record is not None
    assert record.provenance["device"].endswith("shared by up to 2 parts")


def test_a_job_that_dies_or_fails_costs_only_its_own_part(tmp_path: Path) -> None:
    study = study_of(stuck=lambda context: {}, dead=die, odd=raise_unusual, fine=draw_nothing)
    outcome = reproduce(study, "smoke", tmp_path, jobs=2)
    assert "Can't pickle" in str(outcome.failed["stuck"])
    assert outcome.computed == ["fine"]
    assert "its process died (exit code -9)" in str(outcome.failed["dead"])
    assert "its process died" in outcome.run.failed("dead").read_text()
    assert str(outcome.failed["odd"]) == "OfItsOwn: cannot travel"


def draw_nothing(context: Context) -> Mapping[str, Any]:
    return {"x": 0.0}


class Impatient(Listener):
    """Interrupts at the first step of a part."""

    def stepped(self, part: Part, done: int, total: int | None) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_jobs(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce(study_of(a=late), "smoke", tmp_path, jobs=2, listener=Impatient())
    assert not multiprocessing.active_children()
    assert not (tmp_path / "toy2000" / "smoke" / "parts" / "a.json").exists()


def test_there_is_at_least_one_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs=0"):
        reproduce(toy_study(), "smoke", tmp_path, jobs=0)


def die_while_it_sends(report: Report) -> Any:
    """What it returns is more than a pipe holds, so it waits there for its reader until it is killed."""
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return bytes(2**20)


def test_a_job_may_die_while_it_sends() -> None:
    workers = Apart(1, 0.5)
    workers.start("a", die_while_it_sends, silent)
    for process in multiprocessing.active_children():
        process.join()
    ((name, error),) = workers.ended()
    assert name == "a"
    assert "its process died (exit code -9)" in str(error)


def say_shares(report: Report) -> Any:
    return os.environ["TORCHTANGENT_MEMORY"], {pool["num_threads"] for pool in threadpool_info()}


def test_jobs_share_threads_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHTANGENT_MEMORY", raising=False)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "2")
    workers = Apart(2, 0.5)
    workers.start("a", say_shares, silent)
    assert workers.ended() == [("a", ("0.25", {1}))]


def wait_in_silence(context: Context) -> Mapping[str, Any]:
    print("begun", flush=True)
    time.sleep(60)
    return {}


def test_jobs_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = "from test_runner import *; reproduce(study_of(a=wait_in_silence), 'smoke', Path(sys.argv[1]), jobs=2)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        parent.kill()
        parent.communicate(timeout=30)  # returns when no process is left that could write


def test_code_that_a_part_uses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a helper of the same study makes its arrays old; one of another study does not."""
    study = registry()["george2018"]
    config = study.configuration("smoke")
    before = part_keys(study, config)
    original = inspect.getsource

    def edited(path: str) -> Any:
        return lambda module: original(module) + ("# changed" if module.__name__.endswith(path) else "")

    changed = {}
    for path in ("george2018.training", "george2022.scaled"):
        monkeypatch.setattr(inspect, "getsource", edited(path))
        now = part_keys(study, config)
        changed[path] = [name for name, key in now.items() if key.code != before[name].code]
        assert all(key.digest == before[name].digest for name, key in now.items())
    assert changed["george2018.training"]
    assert not changed["george2022.scaled"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: {"claims": [replace(s.claims[0], id="TY-Fig9")]}, "belongs to 'TY-Fig9', which is no entry"),
        (lambda s: {"entries": [replace(s.entries[0], parts=("nubers",))]}, "looks at 'nubers', which is no part"),
        (lambda s: {"parts": s.parts[::-1]}, "part 'total' needs 'numbers', which is no part before it"),
        (lambda s: {"parts": [*s.parts, s.parts[0]]}, "part 'numbers' is there twice"),
        (lambda s: {"parts": [*s.parts, replace(s.parts[0], name="../x")]}, "part '../x' cannot name a file"),
        (lambda s: {"claims": [*s.claims, s.claims[0]]}, "claim 'five' of 'TY-Fig1' is there twice"),
        (
            lambda s: {"entries": [*s.entries, replace(s.entries[0], id="ty–fig1")]},
            "entry 'ty–fig1' cannot be told from another",
        ),
    ],
)
def test_a_study_that_does_not_fit_together(change: Any, said: str) -> None:
    study = toy_study()
    with pytest.raises(ValueError, match=f"The study 'toy2000' does not fit together: .*{said}"):
        replace(study, **change(study))


def test_a_configuration_without_a_part(tmp_path: Path) -> None:
    study = replace(toy_study(), configuration=lambda scale: {"numbers": {"seed": 0, "count": 5}})
    with pytest.raises(ValueError, match="The configuration of 'toy2000' has no section for total"):
        reproduce(study, "smoke", tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_traceback_of_a_part_that_failed_is_kept(tmp_path: Path, jobs: int) -> None:
    broken = reproduce(toy_study(numbers=nothing), "smoke", tmp_path, jobs=jobs)
    assert "a part returns a dict of arrays, this one a NoneType" in str(broken.failed["numbers"])
    path = broken.run.failed("numbers")
    assert path.read_text().startswith("Traceback")
    mended = reproduce(toy_study(), "smoke", tmp_path)
    assert mended.computed == ["numbers", "total"]
    assert not path.exists()


def nothing(context: Context) -> Any:
    """A part that forgot to return its arrays."""


def test_studies_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        value = "theirs.recipe:STUDY"

        def __init__(self, key: str) -> None:
            self.key = key

        def load(self) -> Study:
            return replace(toy_study(), key=self.key)

    for key in ("theirs2026", "george2018"):
        monkeypatch.setattr(recipes, "entry_points", lambda group, key=key: [Point(key)])
        if key == "theirs2026":
            assert list(registry.__wrapped__())[-1] == key
        else:
            with pytest.warns(UserWarning, match=r"theirs\.recipe:STUDY .*another study has the key 'george2018'"):
                assert registry.__wrapped__() == registry()


def test_code_of_one_s_own_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of modules of which nothing but a number is imported."""
    package = tmp_path / "somebodys"
    (package / "more").mkdir(parents=True)
    for name in ("__init__", "more/__init__", "unused"):
        (package / f"{name}.py").write_text("")
    (package / "helper.py").write_text("import json\nRIDGE = 1.0\n")
    (package / "more" / "deep.py").write_text("from .. import helper\n")
    (package / "recipe.py").write_text(
        "from torchtangent.lab.study import Part\nfrom somebodys.helper import RIDGE\nfrom .more.deep import helper\n"
        "def run(context):\n    return {'x': RIDGE}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = importlib.import_module("somebodys.recipe")
    found = sources(recipe.run)
    assert set(found) >= {"somebodys.recipe", "somebodys.helper", "somebodys.more.deep"}
    assert all(name.startswith("somebodys") for name in found)


def test_a_study_that_cannot_be_loaded_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        value = "theirs.recipe:STUDY"

        def __init__(self, study: Any) -> None:
            self.study = study

        def load(self) -> Any:
            if self.study is None:
                raise ImportError("No module named 'theirs'")
            return self.study

    for study, said in ((None, "ImportError"), ("a string", "TypeError: it is a str, not a Study")):
        monkeypatch.setattr(recipes, "entry_points", lambda group, study=study: [Broken(study)])
        with pytest.warns(
            UserWarning, match=rf"The study theirs\.recipe:STUDY cannot be loaded and is left out: {said}"
        ):
            assert "george2018" in registry.__wrapped__()
