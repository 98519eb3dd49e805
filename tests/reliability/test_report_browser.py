"""The report in a real browser: no complaints, every picture visible, sorting works, nothing sticks out on a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cnf_cli.report.page import render
from tests.unit import report_kit

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0"]
# Runs in the page after everything else and leaves what it saw as JSON in an own element.
PROBE = """
<script>
addEventListener("load", () => {
  const column = (table) => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const worst = document.querySelector("table[aria-label='Worst instances']");
  const seen = { before: column(worst) };
  const head = worst.tHead.rows[0].cells[1];
  head.click(); seen.up = column(worst); seen.upLabel = head.getAttribute("aria-sort");
  head.click(); seen.down = column(worst); seen.downLabel = head.getAttribute("aria-sort");
  worst.tHead.rows[0].cells[0].dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  seen.byName = column(worst);
  const shown = (image) => Math.round(image.getBoundingClientRect().width);
  seen.images = [...document.images].map((image) => [image.complete, image.naturalWidth, shown(image)]);
  seen.page = [document.documentElement.scrollWidth, innerWidth];
  seen.background = getComputedStyle(document.body).backgroundColor;
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
</script>
"""


def browse(folder: Path, html: str, width: int, *more: str) -> tuple[dict[str, Any], str]:
    """What the probe saw in a window of that width, and what the browser said."""
    page = folder / "report.html"
    page.write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / f'profile-{width}'}", f"--window-size={width},1200"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", *more, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page did not load: {done.stderr[-2000:]}"
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), done.stderr


@pytest.fixture(scope="module")
def html() -> str:
    return render(report_kit.page())


def test_report_on_a_desk(tmp_path: Path, html: str) -> None:
    """No console messages, all pictures drawn, and a click sorts by number, another one the other way round."""
    seen, log = browse(tmp_path, html, 1200)
    assert "CONSOLE" not in log, log
    assert len(seen["images"]) == 3
    assert all(done and natural > 0 and shown > 300 for done, natural, shown in seen["images"])
    assert seen["before"] == ["instance 7", "instance 11", "instance 3"]
    assert (seen["up"], seen["upLabel"]) == (["instance 7", "instance 11", "instance 3"], "ascending")
    assert (seen["down"], seen["downLabel"]) == (["instance 3", "instance 11", "instance 7"], "descending")
    assert seen["byName"] == ["instance 11", "instance 3", "instance 7"]


def test_report_on_a_phone_in_the_dark(tmp_path: Path, html: str) -> None:
    """In the narrowest window the page is not wider than it; pictures scroll at a readable size; dark mode is dark."""
    seen, _ = browse(tmp_path, html, 390, "--blink-settings=preferredColorScheme=0")
    scrolled, wide = seen["page"]
    assert wide <= 500  # chromium has no narrower window than that
    assert scrolled <= wide
    assert all(shown == 608 for _, _, shown in seen["images"])
    assert sum(map(int, re.findall(r"\d+", seen["background"])[:3])) < 150


def test_console_errors_would_be_noticed(tmp_path: Path, html: str) -> None:
    """A page that asks for something from outside, or fails in a script, is caught by the first test."""
    broken = html.replace("</header>", '</header><img src="https://example.invalid/x.png" alt="x">')
    _, log = browse(tmp_path, broken, 1200)
    assert "CONSOLE" in log
