"""A program under ``pytorch-memlab run`` is what it would be under Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipapp

import pytest
from support.run_command import NOTICE, ROOT, command, python

from pytorch_memlab.cli.main import main

PROBE = """\
import __main__, os, pickle, sys

class Here:
    size: int = 1

def show(x):
    print(x)

if __name__ == "__main__":
    show(sys.argv)
    show(sys.path[0])
    show(sys.modules["__main__"] is __main__ and vars(__main__) is globals())
    show(type(pickle.loads(pickle.dumps(Here()))) is Here)
    show(Here.__annotations__)
    show([(k, str(v).partition(" object at")[0]) for k, v in sorted(globals().items())
          if k.startswith("__") and k not in ("__spec__", "__main__")])
    show(__spec__ and (__spec__.name, __spec__.origin))
    show(sorted(set(globals())))
"""


@pytest.mark.parametrize(
    "how",
    [
        ["folder/script.py", "a", "-m", "--gpu", "b"],
        ["link.py"],
        ["-m", "folder.script", "-c", "x"],
        ["-m", "folder"],
    ],
    ids=["script", "link", "module", "package"],
)
def test_main_argv_and_path_are_as_python_has_them(how, write, tmp_path):
    (tmp_path / "folder").mkdir()
    write(PROBE, "folder/script.py")
    write(PROBE, "folder/__main__.py")
    write("", "folder/__init__.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "folder" / "script.py")

    plain, ours = python(*how), command("-o", "out.txt", *how)

    assert plain.stdout.count("\n") == 8
    assert ours.stdout == plain.stdout


@pytest.mark.parametrize("name", ["folder", "link", "app.pyz"])
def test_a_folder_and_an_archive_are_run_by_their_main(name, write, tmp_path):
    (tmp_path / "folder").mkdir()
    write(PROBE + "    import beside\n", "folder/__main__.py")
    write("print('imported')", "folder/beside.py")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    zipapp.create_archive(tmp_path / "folder", tmp_path / "app.pyz")

    plain = subprocess.run([sys.executable, name, "a"], capture_output=True, text=True, check=True)

    assert plain.stdout.count("\n") == 9
    assert command("-o", "out.txt", name, "a").stdout == plain.stdout


@pytest.mark.parametrize("name", ["package", "package.inner"])
def test_packages_around_a_module_see_the_arguments_of_the_program(name, write, tmp_path):
    (tmp_path / "package").mkdir()
    write("import sys\nprint(sys.argv)\nARGS = sys.argv[1:]\n", "package/__init__.py")
    for module in ("__main__", "inner"):
        write("from package import ARGS\nprint(ARGS)\n", f"package/{module}.py")

    plain = python("-m", name, "--steps", "3")

    assert plain.stdout.splitlines() == ["['-m', '--steps', '3']", "['--steps', '3']"]
    assert command("-o", "out.txt", "-m", name, "--steps", "3").stdout == plain.stdout


FAILING = """\
import torch

def outer():
    kept = torch.ones(256)
    inner(kept)

def inner(x):
    try:
        x @ torch.ones(3)
    except RuntimeError as error:
        raise ValueError("no product") from error

outer()
"""


def test_an_exception_shows_the_table_first_then_pythons_own_traceback(write):
    name = write(FAILING)
    plain, ours = python(name), command("-f", "outer", "-c", "hits", name)

    assert (plain.returncode, ours.returncode) == (1, 1)
    assert ours.stderr == NOTICE + plain.stderr
    assert ours.stdout.startswith("## outer\n")


def test_an_exception_of_a_module_and_a_hook_of_the_script(write):
    name = write(
        """\
        import sys, traceback

        def hook(kind, error, trace):
            print([frame.name for frame in traceback.extract_tb(trace)], file=sys.stderr)

        sys.excepthook = hook
        {}["key"]
        """
    )

    assert command("-m", name.removesuffix(".py")).stderr == f"{NOTICE}['<module>']\n"
    assert command(name).stderr == NOTICE + python(name).stderr


def test_a_program_that_empties_the_path_has_its_report_and_its_own_error(write):
    used = "import sys, torch\nx = torch.ones(4, device='cuda')  # 宽\n"
    name = write(used + "sys.path.clear()\nraise ValueError(sys.path)\n")

    # A process that forks for tests has imported what the report needs.
    ours = subprocess.run(
        [sys.executable, "-m", "pytorch_memlab", "run", name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert ours.stderr.startswith(NOTICE + "Traceback")
    assert ours.stderr.endswith("\nValueError: []\n")
    assert ours.stdout.startswith("peak 512 B on cuda:0")


def test_out_of_memory_shows_the_table_first(write):
    done = command(
        "--gpu",
        "1GiB",
        "-c",
        "delta",
        write(
            """\
            import torch

            def fill():
                kept = torch.empty(1 << 19, dtype=torch.uint8, device="cuda")
                torch.empty(1 << 31, dtype=torch.uint8, device="cuda")

            fill()
            """
        ),
    )

    assert done.returncode == 1
    assert "512.00K    4      kept = " in done.stdout
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in done.stderr
    assert "pytorch_memlab" not in done.stderr


def test_syntax_errors_are_shown_as_python_shows_them(write):
    name = write("x = 1\ny = (\n")
    plain, ours = python(name), command(name)

    assert (plain.returncode, ours.returncode) == (1, 1)
    assert ours.stderr == plain.stderr
    assert ours.stdout == ""


@pytest.mark.parametrize("argument", ["", "3", "'stopped'", "None"])
def test_system_exit(argument, write):
    name = write(f"import sys\ndef f():\n    sys.exit({argument})\nf()\n")
    plain, ours = python(name), command("-c", "hits", name)

    assert ours.returncode == plain.returncode
    assert ours.stderr == NOTICE + plain.stderr
    assert ours.stdout.startswith("## f\n")


def test_keyboard_interrupt(write):
    name = write("def f():\n    raise KeyboardInterrupt\nf()\n")
    plain, ours = python(name), command("-c", "hits", name)

    assert ours.returncode == plain.returncode == -signal.SIGINT
    assert ours.stderr == NOTICE + plain.stderr
    assert ours.stdout.startswith("## f\n")


def test_threads_and_exit_handlers_of_the_script_are_profiled_before_the_table(write):
    done = command(
        "-f",
        "work",
        "-c",
        "hits",
        write(
            """\
            import atexit, os, threading, time, torch, warnings

            def work():
                torch.ones(1).cuda()

            def later():
                time.sleep(0.2)
                work()

            atexit.register(work)
            threading.Thread(target=later).start()
            work()
            warnings.simplefilter("ignore")  # Python 3.12 warns where a process with threads forks
            if os.fork() == 0:
                raise SystemExit
            os.wait()
            """
        ),
    )

    assert done.stderr == NOTICE
    assert done.stdout.count("## ") == 1
    assert "   3    4      torch.ones(1).cuda()\n" in done.stdout


def test_everything_is_given_back(write, capsys):
    before = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook, sys.gettrace()

    with pytest.raises(ZeroDivisionError):
        main(["run", "--all", write("import sys\nsys.path.append('x')\nsys.argv = []\n1 / 0\n")])

    assert before == (sys.argv, sys.path, sys.modules["__main__"], sys.excepthook, sys.gettrace())
    assert "## <module>" in capsys.readouterr().out
