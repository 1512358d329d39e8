"""Forks end, speak and fail as processes of Python do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.python_process import SERVER, ForkedPython, run_python

SCRIPT = """\
import atexit, sys, threading, time, torch
atexit.register(print, "bye")
class Last:
    def __del__(self):
        print("deleted last", torch.__name__)
last = Last()
print(sys.argv, sys.path[0], __name__, __file__, sorted(globals()), input())
print(sys.stdin, sys.stdout, sys.stderr, sys.stderr.errors, file=sys.stderr)
threading.Thread(target=lambda: (time.sleep(0.1), print("last"))).start()
def fail():
    raise ValueError(3)
fail()
"""


def both(*arguments, **options):
    command = [sys.executable, *arguments]
    plain = subprocess.run(command, capture_output=True, text=True, **options)
    return plain, run_python(arguments, **options)


@pytest.mark.parametrize("start", [["script.py"], ["-m", "script"]], ids=" ".join)
def test_a_script_or_module_that_fails(tmp_path, start):
    (tmp_path / "script.py").write_text(SCRIPT)
    plain, fork = both(*start, "--option", cwd=tmp_path, input="typed\n")
    assert "ValueError: 3" in plain.stderr
    assert plain.stdout.endswith("typed\nlast\nbye\ndeleted last torch\n")
    assert vars(fork) == vars(plain)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('x')", 1),
        ("raise KeyboardInterrupt", -2),
        ("os.abort()", -6),
        ("import ctypes; ctypes.CDLL(None).puts(b'C keeps this until the end')", 0),
    ],
)
def test_each_way_to_end(end, code):
    plain, fork = both("-c", f"import os, sys\n{end}")
    assert fork.returncode == code
    assert vars(fork) == vars(plain)


def test_what_python_reads_when_it_starts_is_refused():
    with pytest.raises(ValueError, match="PYTHONHASHSEED"):
        run_python(["-c", ""], env={"PYTHONHASHSEED": "5"})


def test_forks_run_beside_each_other_and_are_told_apart(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        slow = ForkedPython(["-c", "import time; print('begun', flush=True); time.sleep(60)"], file)
        quick = ForkedPython(["-c", "import sys, torch; print(torch.ones(2)); sys.exit(3)"], file)
        assert quick.wait() == 3
        assert quick.poll() == 3
        assert slow.poll() is None
        slow.kill()
        assert slow.wait() == -9
    assert "tensor([1., 1.])" in (tmp_path / "out").read_text()


def test_forks_of_a_process_have_its_state_of_that_time_and_end_as_new_ones():
    text = f"""\
import os, sys
sys.path.append({str(SERVER.parents[1])!r})
from support.python_process import forks_are_of_this, run_python
os.seen = "before"
forks_are_of_this()
os.seen = "after"
for program in ("import os, sys; print(os.seen, __name__); sys.exit(3)", "raise ValueError('no')"):
    done = run_python(["-c", program])
    print([done.returncode, done.stdout, done.stderr.count("ValueError: no")])
"""
    done = run_python(["-c", text])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[3, 'before __main__\\n', 0]\n[1, '', 1]\n"


STATE = """\
import gc, json, signal, sys, threading
hooks = [sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook]
state = [f"{hook.__module__}.{hook.__qualname__}" for hook in hooks]
state += [repr(finder) for finder in sys.meta_path]
state += [signal.getsignal(number).__class__.__name__ for number in (signal.SIGINT, signal.SIGTERM)]
state += [len(gc.callbacks), gc.get_threshold(), sys.gettrace(), threading.active_count()]
changed = [
    f"{name}.{key}"
    for name, module in list(sys.modules.items())
    if not name.startswith("pytorch_memlab")
    for key, value in list(vars(module).items())
    if str(getattr(value, "__module__", "")).startswith("pytorch_memlab")
]
here = [name for name in sys.modules if name.partition(".")[0] == "pytorch_memlab"]
print(json.dumps([len(here) > 300, changed, state], default=repr))
"""


def test_importing_the_package_changes_nothing_else():
    is_there, changed, state = json.loads(run_python(["-c", STATE]).stdout)
    assert (is_there, changed) == (True, [])

    without = run_python(["-c", STATE], imports_package=True)
    assert json.loads(without.stdout) == [False, [], state]
