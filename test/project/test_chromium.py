"""Pages are drawn by Chromium, with an error where there is none."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "chromium.py"
browse = runpy.run_path(str(SCRIPT))["browse"]

PAGE = "<html><body><script>document.body.dataset.sum = 20 + 22</script></body></html>"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    return path


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_page_runs_its_scripts_and_its_picture_has_the_size_asked_for(page, tmp_path):
    picture = tmp_path / "page.png"
    assert 'data-sum="42"' in browse(page, ["--dump-dom"])
    browse(page, [f"--screenshot={picture}", "--window-size=120,80"])
    header = picture.read_bytes()[16:24]
    assert (int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) == (120, 80)


def test_without_chromium_the_error_names_the_programs_that_were_looked_for(page, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="none of chromium, chromium-browser"):
        browse(page, [])
