"""The page in a real browser: everything is there, in both themes, at desktop and telephone width."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from torchtangent.lab.recipes import registry
from torchtangent.lab.results import find_runs

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=5000",
)
DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser; without one the tests are skipped, unless they may not be."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail("REQUIRE_BROWSER=1, but no Chromium was found")
        pytest.skip("no Chromium")
    return found


def browse(chromium: str, path: Path, profile: Path, *more: str) -> str:
    """Open a page in a fresh profile; what the browser prints."""
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *more, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_figures_and_claims_are_in_the_document(chromium: str, page: Path, all_runs: Path, tmp_path: Path) -> None:
    dom = browse(chromium, page, tmp_path, "--dump-dom")
    panels = sum(len(entry.panels) for study in registry().values() for entry in study.entries)
    findings = [finding for run in find_runs(all_runs) for finding in run.read_claims()]
    assert len(re.findall(r'<svg class="plot"', dom)) == panels
    assert len(re.findall(r'<tr class="claim">', dom)) == len(findings)
    assert dom.count("Make it again") == sum(len(study.entries) for study in registry().values())


FILTER = """
<script>onload = () => {
  const form = document.querySelector("#filter");
  form.text.value = "KERNEL ortiz";
  form.verdict.value = "held";
  form.dispatchEvent(new Event("input"));
}</script></body>"""


def test_claims_are_filtered_by_verdict_and_words(chromium: str, page: Path, tmp_path: Path) -> None:
    assert '<form id="filter">' in browse(chromium, page, tmp_path / "policy", "--dump-dom")  # its own script may run
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text())  # lets the test's own script run
    (tmp_path / "filtered.html").write_text(text.replace("</body>", FILTER))
    dom = browse(chromium, tmp_path / "filtered.html", tmp_path / "profile", "--dump-dom")
    ledger = dom.partition('id="ledger"')[2].partition("</section>")[0]
    shown = re.findall(r'<tr class="claim">(.*?)</tr>', ledger, flags=re.DOTALL)
    assert shown
    assert all('data-verdict="held"' in row and "kernel" in row.lower() for row in shown)
    assert ledger.count("<details open") == 1
    assert f"{len(shown)} of " in ledger


def test_both_themes_are_drawn(chromium: str, page: Path, tmp_path: Path) -> None:
    pictures = {}
    for theme, more in {"light": [], "dark": [DARK]}.items():
        target = tmp_path / f"{theme}.png"
        size = "--window-size=1280,4000"
        browse(chromium, page, tmp_path / theme, size, f"--screenshot={target}", *more)
        pictures[theme] = imread(target)[..., :3]
        assert pictures[theme].shape[:2] == (4000, 1280)
    assert pictures["light"][5, 5].min() > 0.9
    assert pictures["dark"][5, 5].max() < 0.2
    for picture in pictures.values():  # something is drawn on the ground all the way down
        ink = np.abs(picture - picture[5, 5]).max(-1) > 0.3
        assert all(block.any() for block in np.array_split(ink, 10))


def test_nothing_is_wider_than_a_telephone(chromium: str, page: Path, tmp_path: Path) -> None:
    """The page in a frame of 360 pixels tells its parent how wide its content came out."""
    text = page.read_text()
    text = re.sub(r"<meta http-equiv=[^>]*>", "", text)  # lets the test's own script run
    probe = "<script>onload = () => parent.postMessage(document.documentElement.scrollWidth, '*')</script></body>"
    (tmp_path / "inner.html").write_text(text.replace("</body>", probe))
    outer = tmp_path / "outer.html"
    listen = "<script>onmessage = (event) => document.body.dataset.width = event.data</script>"
    outer.write_text(
        f'<body>{listen}<iframe src="inner.html" style="width:360px;height:900px;border:0"></iframe></body>'
    )
    dom = browse(chromium, outer, tmp_path / "profile", "--dump-dom", "--window-size=800,1000")
    width = re.search(r'data-width="(\d+)"', dom)
    assert width is not None, dom[:500]
    assert int(width[1]) <= 360
