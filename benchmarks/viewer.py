"""The page of runs in headless Chromium: when a long run is shown, and the work of scrolling it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from tests.browser.chromium import Chromium
from tests.viewer.sample_runs import make_long

from benchmarks.common import Figure, journal_path
from treadle import open_journal

STEPS = {10_000: 2_499, 100_000: 24_999}
"""The steps of a run by the number of its events."""
FRAMES = 200
ROUNDS = 5
_PAINTED = """
new MutationObserver((_, watcher) => {
  if (!document.querySelector(".block")) return;
  watcher.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.paintedAt = performance.now(); }));
}).observe(document, {childList: true, subtree: true});
"""
_WAIT = "new Promise(done => { const look = () => { (%s) ? done(%s) : setTimeout(look, 20); }; look(); })"
_MOVES = {
    "scrolled by 200 pixels": "box.scrollTop += 200",
    "jumped over": "box.scrollTop = (box.scrollHeight - 900) * ((frame * 37) % 101) / 101",
}
_SCROLL = """
new Promise(done => {
  const box = document.querySelector(".transcript");
  let frame = 0;
  const next = () => { %s; frame += 1; frame < %d ? requestAnimationFrame(next) : done(0); };
  requestAnimationFrame(next);
})
"""


async def measure() -> list[Figure]:
    """Measure runs of 10,000 and of 100,000 events, on all cores, as a browser and a server have them."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with journal_path() as path:
        with open_journal(path) as journal:
            runs = {events: (await make_long(journal, steps)).run_id for events, steps in STEPS.items()}
        return await asyncio.to_thread(_measure_runs, path, runs)


def _measure_runs(path: Path, runs: dict[int, str]) -> list[Figure]:
    command = [sys.executable, "-m", "treadle", "view", str(path), "--no-open", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    url = json.loads(server.stdout.readline())["url"]
    figures = []
    for events, run_id in runs.items():
        figures += _measure_run(f"{url}&/run/{run_id}", events)
    server.terminate()
    server.wait()
    return figures


def _measure_run(url: str, events: int) -> list[Figure]:
    browser = Chromium()
    browser.send("Page.addScriptToEvaluateOnNewDocument", source=_PAINTED)
    browser.send("Performance.enable", timeDomain="threadTicks")
    painted = []
    for _ in range(ROUNDS):
        browser.open(url, 1440, 900)
        painted.append(browser.evaluate(_WAIT % ("window.paintedAt", "window.paintedAt")))
    figures = [
        Figure(
            f"first paint of a run of {events:,} events, ms",
            median(painted),
            "<= 1000",
            f"median of {ROUNDS}",
        )
    ]
    browser.evaluate(_WAIT % ("document.querySelector('.run[data-loaded=true]')", "1"))
    for name, move in _MOVES.items():
        before = _busy(browser)
        browser.evaluate(_SCROLL % (move, FRAMES))
        work = 1000 * (_busy(browser) - before) / FRAMES
        figures.append(
            Figure(
                f"processor time of a frame, {events:,} events {name}, ms",
                work,
                "<= 16.7",
                "60 frames a second",
            )
        )
    browser.close()
    return figures


def _busy(browser: Chromium) -> float:
    """Return the processor time of the page's main thread in seconds."""
    found = browser.send("Performance.getMetrics")["metrics"]
    return float(next(item["value"] for item in found if item["name"] == "TaskDuration"))
