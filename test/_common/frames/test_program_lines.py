"""Files of the program are told from those of libraries."""

from __future__ import annotations

from pytorch_memlab._common.frames.program_lines import folder_names


def test_a_folder_behind_a_link_has_both_names(tmp_path):
    real = tmp_path / "real" / "site-packages"
    real.mkdir(parents=True)
    (tmp_path / "venv").symlink_to(tmp_path / "real")
    linked = tmp_path / "venv" / "site-packages"
    assert folder_names(str(linked), str(real)) == (f"{linked}/", f"{real.resolve()}/")
    assert str(linked / "torch" / "nn.py").startswith(folder_names(str(linked)))
