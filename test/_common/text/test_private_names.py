"""Names of files in private files: none has a folder outside the working folder."""

from __future__ import annotations

import os

import pytest
import torch

import pytorch_memlab
from pytorch_memlab._common.text import shared_paths


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder below the home."""
    (tmp_path / "our work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "our work")
    return tmp_path / "our work"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("{here}/train.py", "./train.py"),
        ("{here}/deep/er/net.py", "./deep/er/net.py"),
        (
            "{here}/.venv/lib/python3.12/site-packages/x.py",
            "./.venv/lib/python3.12/site-packages/x.py",
        ),
        ("{here}", "our work"),
        ("{here} 2/train.py", "train.py"),
        ("/home/some one/secret/train.py", "train.py"),
        ("~/secret/train.py", "train.py"),
        ("../secret/train.py", "train.py"),
        ("a/../../secret/train.py", "train.py"),
        ("C:\\Users\\some one\\train.py", "train.py"),
        ("//server/share/train.py", "train.py"),
        ("/srv/secret/", "secret"),
        ("/v/lib/python3.12/site-packages/a/b.py", "site-packages/a/b.py"),
        ("/usr/lib/python3/dist-packages/a/b.py", "dist-packages/a/b.py"),
        ("/v/lib/python3.12/json/decoder.py", "lib/python3.12/json/decoder.py"),
        ("C:\\v\\Lib\\site-packages\\a\\b.py", "site-packages/a/b.py"),
        (os.path.join(os.path.dirname(torch.__file__), "_ops.py"), "site-packages/torch/_ops.py"),
        (pytorch_memlab.__file__, "site-packages/pytorch_memlab/__init__.py"),
        ("train.py", "train.py"),
        ("./train.py", "./train.py"),
        ("<stdin>", "<stdin>"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("In[3]", "In[3]"),
        ("", ""),
    ],
)
def test_a_name(path, name, folder):
    assert shared_paths.private(path.replace("{here}", str(folder))) == name
    with shared_paths.private_names():
        assert shared_paths.stored(path.replace("{here}", str(folder))) == name


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("at {here}/train.py:12", "at train.py:12"),
        ("at /srv/our secret/train.py:12", "at train.py:12"),
        (
            "left as it was (2 paths): /srv/secret/a b.pt, ~/b.pt",
            "left as it was (2 paths): a b.pt, b.pt",
        ),
        ("cannot read '/srv/secret/x y/z.pt'", "cannot read 'z.pt'"),
        ("C:\\Users\\some one\\x.pt (once)", "x.pt (once)"),
        ("2 GB/s, 1 / 2 of 3 / 4, and/or", "2 GB/s, 1 / 2 of 3 / 4, and/or"),
        ("model.layer at net.py:3", "model.layer at net.py:3"),
        ("https://example.org/a", "https://example.org/a"),
    ],
)
def test_a_text(text, private, folder):
    assert shared_paths.private_text(text.replace("{here}", str(folder))) == private
