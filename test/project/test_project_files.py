"""The project's files name the same versions and commands: workflows, pre-commit, citation."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in GITHUB.glob("workflows/*.yml")}
JOBS = WORKFLOWS["tests"]["jobs"]
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def tried_pythons():
    """The releases of Python that the classifiers name."""
    found = (re.fullmatch(r".*:: Python :: (3\.\d+)", one) for one in PROJECT["classifiers"])
    return [one[1] for one in found if one]


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def all_jobs():
    return [(name, job) for one in WORKFLOWS.values() for name, job in one["jobs"].items()]


def make_targets():
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))


def test_the_matrix_has_every_python_of_the_classifiers():
    assert JOBS["readme"]["strategy"]["matrix"]["python"] == tried_pythons()
    assert "continue-on-error" not in JOBS["readme"]


def test_the_oldest_python_and_torch_are_those_of_the_package():
    oldest, newest = JOBS["torch"]["strategy"]["matrix"]["include"]
    (torch,) = (one for one in PROJECT["dependencies"] if one.startswith("torch>="))
    assert PROJECT["requires-python"] == f">={tried_pythons()[0]}"
    assert oldest == {
        "python": tried_pythons()[0],
        "torch": torch.removeprefix("torch>=") + ".*",
    }
    assert newest["torch"] == "newest"
    assert newest["python"] in tried_pythons()


def test_a_fresh_clone_is_tested_with_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    shown = re.findall(r"^\$ (make [\w-]+)", readme, re.MULTILINE)
    assert commands(JOBS["readme"]) == shown == ["make demo", "make test"]


def test_lint_runs_what_a_change_must_pass():
    assert commands(JOBS["lint"]) == ["make lint"]
    assert re.findall(r"^make .*", (ROOT / ".ci" / "run").read_text(), re.MULTILINE) == [
        "make test",
        "make lint",
    ]


def test_the_nightly_takes_the_nightly_build_of_torch_each_day():
    nightly = WORKFLOWS["nightly"]
    when = nightly[True]  # YAML 1.1 reads `on` as true
    assert re.fullmatch(r"\d+ \d+ \* \* \*", when["schedule"][0]["cron"])
    first, *_, last = commands(nightly["jobs"]["torch-nightly"])
    assert "--pre torch" in first
    assert "/whl/nightly/" in first
    assert last == commands(JOBS["torch"])[-1]


@pytest.mark.parametrize(("name", "job"), all_jobs())
def test_a_job_ends_in_time_and_its_actions_are_pinned(name, job):
    assert 0 < job["timeout-minutes"] <= 60
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used
    assert all(PINNED.fullmatch(one) for one in used)


@pytest.mark.parametrize(("name", "job"), all_jobs())
def test_commands_of_a_job_are_shell_and_their_targets_exist(name, job):
    bash = shutil.which("bash")
    for command in commands(job):
        plain = re.sub(r"\$\{\{.*?\}\}", "value", command)
        subprocess.run([bash, "-n", "-c", plain], check=True)
        assert set(re.findall(r"^make ([\w-]+)", plain, re.MULTILINE)) <= make_targets()


@pytest.mark.parametrize(("name", "job"), all_jobs())
def test_extras_that_a_job_installs_exist(name, job):
    for command in commands(job):
        for extras in re.findall(r"'\.\[(.*?)\]'", command):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def hooks():
    """The hooks of pre-commit by their ids."""
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    return {hook["id"]: hook for hook in repo["hooks"]}


def test_hooks_take_the_versions_of_make_lint():
    pinned = set((ROOT / "constraints.txt").read_text().splitlines())
    packages = {one for hook in hooks().values() for one in hook.get("additional_dependencies", ())}
    assert packages
    assert packages <= pinned


def test_hooks_of_ruff_do_what_make_lint_checks():
    makefile = (ROOT / "Makefile").read_text()
    for name in ("ruff check", "ruff format"):
        assert f"$(PY) -m {name}" in makefile
        assert hooks()[name.replace(" ", "-")]["entry"].startswith(name)
    assert hooks()["lint"]["entry"] == "make lint"
    assert hooks()["lint"]["stages"] == ["pre-push"]


def test_the_citation_has_the_version_and_the_day_of_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (citation["version"], citation["date-released"]) == newest.groups()
    assert citation["version"] == PROJECT["version"]


@pytest.mark.parametrize(
    "path", sorted(GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")), ids=lambda path: path.stem
)
def test_a_form_of_an_issue_asks_for_each_thing_once(path):
    form = yaml.safe_load(path.read_text())
    assert form.keys() == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(field["attributes"]["description"].endswith(".") for field in form["body"])


def test_the_source_distribution_has_every_file_that_the_tests_read():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name).exists() for name in included)
    always = {"pyproject.toml", "README.md", "LICENSE", ".gitignore"}
    named = set(re.findall(r'ROOT / "([\w.-]+)"', "".join(sources_of_tests()))) - {
        "build",
        ".cache",
    }
    assert {"CITATION.cff", "Makefile", "demo.ipynb"} <= named
    assert named <= {*included, *always}


def sources_of_tests():
    """The text of every test file."""
    return [path.read_text(encoding="utf-8") for path in (ROOT / "test").rglob("*.py")]
