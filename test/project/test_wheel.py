"""The wheel holds every module, and importing any of them is silent."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import pytorch_memlab
from pytorch_memlab.simulation.compiled import torch_compile
assert pytorch_memlab.__file__.startswith(sys.prefix), pytorch_memlab.__file__
names = [found.name for found in pkgutil.walk_packages(pytorch_memlab.__path__, "pytorch_memlab.")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # callbacks of a library that is not here
        assert name == f"pytorch_memlab.integrations.{error.name}", error
    except ImportError as error:  # private names of the compiler
        assert name.startswith("pytorch_memlab.simulation.compiled."), error
        assert torch_compile.RELEASE < torch_compile._FIRST, error
sys.stderr.write("\\n".join(["pytorch_memlab", *names]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run([sys.executable, "-m", "pip", *command], check=True)
    (built,) = folder.glob("pytorch_memlab-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel in it, and what the wheel depends on."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout[:-1])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Behind our own, so that a copy of the package there cannot stand in for a missing module.
    dependencies = [path for path in sys.path if "site-packages" in path]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    return python


def modules_of_the_source_tree():
    files = (ROOT / "pytorch_memlab").rglob("*.py")
    parts = (file.relative_to(ROOT).with_suffix("").parts for file in files)
    return sorted(".".join(p).removesuffix(".__init__") for p in parts)


def test_every_module_is_in_the_wheel_and_imports_in_silence(installed, tmp_path):
    done = subprocess.run(
        [
            installed,
            "-E",
            "-W",
            "error::DeprecationWarning:pytorch_memlab",
            "-c",
            IMPORT_EVERYTHING,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert sorted(done.stderr.splitlines()) == modules_of_the_source_tree()


def test_the_wheel_is_typed_licensed_and_has_its_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("/entry_points.txt"))
        commands = archive.read(entry_points).decode()

    assert "pytorch_memlab/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names} == {
        "pytorch_memlab",
        names[-1].partition("/")[0],
    }
    assert commands == (
        "[console_scripts]\npytorch-memlab = pytorch_memlab.cli.main:entry\n\n"
        "[pytest11]\nmemlab = pytorch_memlab.pytest_plugin\n"
    )


def test_pytest_finds_the_plugin_of_the_wheel(wheel, installed, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith("entry_points.txt"))
        assert "[pytest11]\nmemlab = pytorch_memlab.pytest_plugin\n" in archive.read(name).decode()
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\ndef test_nothing_is_loaded():\n"
        "    loaded = [one for one in sys.modules if one.startswith('pytorch_memlab')]\n"
        "    assert {one.removeprefix('pytorch_memlab').lstrip('.') for one in loaded} == {\n"
        "        '', '_common', '_common.process', '_common.process.version', '_common.text',\n"
        "        '_common.text.displayed', 'pytest_memlab',\n"
        "        'pytest_memlab.selection', 'pytest_plugin'}\n"
        "    assert not {'torch', 'numpy', 'pandas'} & sys.modules.keys()\n"
    )
    command = [installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].startswith("1 passed in "), done.stdout + done.stderr
