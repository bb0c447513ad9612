"""The page in a real browser: it draws, and its script runs without an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from example_run import blocked_run, example_run
from page_parts import read_page

from longstride.report import render_report

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"


def _browser() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if found is None:
        pytest.fail(
            "no browser was found: install Debian's (apt-get install chromium fonts-dejavu-core), "
            "or set CHROMIUM to the path of a Chromium or Chrome binary"
        )
    return found


def _run(tmp_path: Path, html: str, *arguments: str) -> str:
    page = tmp_path / "report.html"
    page.write_text(html, encoding="utf-8")
    command = [_browser(), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *arguments,
               page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _pixels(path: Path) -> tuple[int, int, bytes]:
    """Width, height and RGB bytes of an 8-bit PNG without interlacing."""
    data = path.read_bytes()
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    depth, kind, interlaced = data[24], data[25], data[28]
    assert (depth, interlaced) == (8, 0) and kind in (2, 6)
    step, at, packed = 3 if kind == 2 else 4, 8, b""
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += size + 12
    return width, height, _unfilter(zlib.decompress(packed), width * step, step)


def _unfilter(raw: bytes, stride: int, step: int) -> bytes:
    out, above = bytearray(), bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for i in range(stride) if kind else ():
            left = line[i - step] if i >= step else 0
            corner = above[i - step] if i >= step else 0
            line[i] = (line[i] + _predicted(kind, left, above[i], corner)) & 255
        out += line
        above = line
    return bytes(out)


def _predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        guess = left + up - corner
        return min((left, up, corner), key=lambda v: abs(guess - v))
    return (0, left, up, (left + up) // 2)[kind]


def _screenshot(tmp_path: Path, html: str, *arguments: str) -> tuple[float, float]:
    """Mean brightness (0 to 255) and share of bytes that differ from the background."""
    shot = tmp_path / "shot.png"
    _run(tmp_path, html, f"--screenshot={shot}", "--window-size=1000,700", *arguments)
    width, height, pixels = _pixels(shot)
    assert (width, height) == (1000, 700)
    background = max(set(pixels[::97]), key=pixels[::97].count)
    return sum(pixels) / len(pixels), 1 - pixels.count(background) / len(pixels)


@pytest.mark.parametrize("make", [example_run, blocked_run])
def test_the_script_runs_to_its_end_without_an_error(tmp_path, make):
    dom = read_page(_run(tmp_path, render_report(make()), "--dump-dom"))
    root = dom.all("html")[0]
    assert root.attributes.get("data-error") is None
    assert root.attributes.get("data-ready") == "yes"


def test_hovering_every_kind_of_mark_shows_its_details(tmp_path):
    """A second script plays the mouse, for which the page's policy has to go."""
    probe = """
    const out = [];
    for (const css of [".node", ".bar", "svg.chart", ".round", ".forest-row", ".tokens b"]) {
      const node = document.querySelector(css), box = node.getBoundingClientRect();
      const at = {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + 5};
      node.dispatchEvent(new MouseEvent("mouseenter", at));
      node.dispatchEvent(new MouseEvent("mousemove", at));
      out.push(css + "=" + document.getElementById("tip").textContent);
      node.dispatchEvent(new MouseEvent("mouseleave", at));
    }
    document.body.dataset.probe = out.join("|");
    """
    html = re.sub("<meta http-equiv[^>]*>", "", render_report(example_run()))
    html = html.replace("</body>", f"<script>{probe}</script></body>")
    dom = read_page(_run(tmp_path, html, "--dump-dom"))
    shown = dict(s.split("=", 1) for s in dom.all("body")[0].attributes["data-probe"].split("|"))
    assert "root/prerequisites" in shown[".node"]
    assert "root/prerequisites" in shown[".bar"]
    assert shown["svg.chart"].startswith("pretrain · step") and "loss" in shown["svg.chart"]
    assert "round 1: expand" in shown[".round"]
    assert "All problems" in shown[".forest-row"]
    assert "importance weight" in shown[".tokens b"]


def test_the_screenshot_is_light_by_default_and_not_blank(tmp_path):
    brightness, drawn = _screenshot(tmp_path, render_report(example_run()))
    assert brightness > 200
    assert 0.03 < drawn < 0.9


def test_the_page_is_dark_for_a_reader_who_prefers_dark(tmp_path):
    brightness, drawn = _screenshot(tmp_path, render_report(example_run()), DARK)
    assert brightness < 80
    assert drawn > 0.03
