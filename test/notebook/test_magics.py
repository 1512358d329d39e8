"""``%load_ext pytorch_memlab``: %mlrun, %%mlrun, %simulate, %imu_start, %imu_stop."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from support.python_process import run_python

from pytorch_memlab import LineProfiler
from pytorch_memlab.devices import get_device
from pytorch_memlab.notebook.magics import MemlabMagics, end_everything
from pytorch_memlab.notebook.mlrun_options import split_statement
from pytorch_memlab.render.notes import texts
from pytorch_memlab.scopes.peak_tracker import peak_tracker

SEED_CELL = """%%mlrun -f func {options}
import torch
from pytorch_memlab import profile, set_target_gpu
def func():
    net1 = torch.nn.Linear(1024, 1024).cuda(0)
    set_target_gpu(1)
    net2 = torch.nn.Linear(1024, 1024).cuda(1)
    set_target_gpu(0)
    net3 = torch.nn.Linear(1024, 1024).cuda(0)
"""


@pytest.fixture
def magics(shell, run):
    run("%load_ext pytorch_memlab")
    shell.user_ns["torch"] = torch
    yield shell.user_ns
    end_everything()


def told(capsys) -> list[str]:
    printed = capsys.readouterr()
    return [line for line in (printed.out + printed.err).splitlines() if line]


def test_loading_says_nothing_and_the_other_name_says_its_line(run, capsys):
    run("%load_ext pytorch_memlab")
    assert capsys.readouterr().out == ""
    run("%load_ext pytorch_memlab.imu")
    assert capsys.readouterr().out == (
        "Enabling IPython Memory Usage, use %imu_start to begin, %imu_stop to end\n"
    )


def test_everything_may_be_imported_without_hiding_what_ipython_has(shell, run):
    shown = []
    shell.user_ns_hidden["display"] = shell.user_ns["display"] = shown.append
    run("from pytorch_memlab import *")
    assert {"profile", "IPyExperiments", "IPyGPULogger"} <= shell.user_ns.keys()
    run("display(3)")
    assert shown == [3]


def test_the_function_may_be_defined_in_the_cell_that_it_profiles(run, magics, capsys):
    result = run(SEED_CELL.format(options="--simulate h100 --count 2"))
    assert result.success
    assert "No data collected: func did not run while profiled" in str(result.result)
    run("%simulate h100 2")
    capsys.readouterr()
    report = run(SEED_CELL.format(options="") + "func()\n").result.report
    assert [(table.function.qual_name, table.device.name) for table in report.tables] == [
        ("func", "cuda:0"),
        ("func", "cuda:1"),
    ]
    first = report.tables[0]
    assert first.function.source[1] == "    net1 = torch.nn.Linear(1024, 1024).cuda(0)"
    assert [row[0] for row in first.rows.values()] == [
        0,
        *[4 * 2**20 + 4096] * 4,
        2 * (4 * 2**20 + 4096),
    ]


def test_a_line_assigns_and_its_statement_is_taken_as_it_is_written(run, magics):
    run("%simulate 24GiB")
    run("def f(n, word=''):\n    kept = torch.zeros(n).cuda()\n    return n, word")
    result = run('%mlrun -f f -c hits,delta -D x = f(-1 + 1025, "two  words -f g")')
    assert magics["x"] == (1024, "two  words -f g")
    [table] = result.result.report.tables
    assert result.result.report.columns == ("hits", "delta")
    assert list(table.rows.values()) == [(1, 0), (1, 4096), (1, -4096)] or list(
        table.rows.values()
    ) == [(1, 0), (1, 4096), (1, 0)]


def test_methods_classes_and_objects_can_be_named(run, magics):
    run("%simulate 24GiB")
    cell = (
        "class Net:\n    def a(self):\n        return torch.ones(1).cuda()\n"
        "    def b(self):\n        return self.a()\nnet = Net()\nnet.b()"
    )

    def profiled(names: str) -> list[str]:
        result = run(f"%%mlrun {names}\n{cell}")
        return [table.function.qual_name for table in result.result.report.tables]

    assert profiled("-f Net.a") == ["Net.a"]
    assert profiled("-f Net") == ["Net.a", "Net.b"]
    assert profiled("") == ["Net.a", "Net.b"]
    again = run("%mlrun -f net.a -f Net.b net.b()")
    assert {table.function.qual_name for table in again.result.report.tables} == {"Net.a", "Net.b"}


def test_a_cell_without_functions_is_profiled_itself(run, magics):
    run("%simulate 24GiB")
    result = run("%%mlrun\nkept = torch.ones(256, device='cuda')\nmore = kept * 2")
    [table] = result.result.report.tables
    assert table.function.qual_name == "<cell>"
    assert {line: row[0] for line, row in table.rows.items()} == {1: 1024, 2: 2048}
    assert magics["more"].numel() == 256


def test_a_cells_first_line_is_hit_as_often_as_it_runs(run, magics):
    run("%simulate 24GiB")
    for cell, hits in (
        ("a = 3", {1: 1}),
        ("for i in range(3):\n    a = i", {1: 4, 2: 3}),
    ):
        [table] = run(f"%%mlrun -D -c hits\n{cell}").result.report.tables
        assert {line: row[0] for line, row in table.rows.items()} == hits


def test_the_host_may_be_asked_for_beside_a_gpu(run, magics):
    run("%simulate 24GiB")
    [note] = texts(run("%mlrun -g cpu a = 3").result.report.notes)
    assert note.startswith("CPU tensors were measured")


def test_a_function_that_a_statement_brings_is_found_when_it_has_come(run, magics, tmp_path):
    (tmp_path / "brought.py").write_text("def work(t):\n    return t + 1\n")
    sys.path.insert(0, str(tmp_path))
    try:
        run("%simulate 24GiB")
        cell = "%%mlrun -f work\nfrom brought import work\nwork(torch.ones(1).cuda())"
        [table] = run(cell).result.report.tables
    finally:
        sys.path.remove(str(tmp_path))
    assert table.function.source == ("def work(t):", "    return t + 1")


@pytest.mark.knows_simulation("a simulation records requests by itself: a timeline is drawn")
def test_quiet_return_and_dump(run, magics, tmp_path):
    run("%simulate 24GiB")
    run("def f():\n    return torch.ones(256).cuda()")
    for name in ("p.txt", "p.html", "p.json", "profile.log", "profile"):
        assert (
            run(f"%mlrun -q --empty-cache -f f -c hits -D -T {tmp_path / name} f()").result is None
        )
    assert "## f" in (tmp_path / "p.txt").read_text()
    for name in ("profile.log", "profile"):
        assert (tmp_path / name).read_text() == (tmp_path / "p.txt").read_text()
    page = (tmp_path / "p.html").read_text()
    assert "<h1>a notebook</h1>" in page
    assert "<figure" in page
    assert json.loads((tmp_path / "p.json").read_text())["columns"] == ["hits"]
    profiler = run("%mlrun -r -f f f()").result
    assert isinstance(profiler, LineProfiler)
    assert profiler.display(columns=["hits"]).report.tables[0].rows


def test_a_page_has_a_link_below_the_cell(run, magics, tmp_path, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    run("%simulate 24GiB")
    run("def f():\n    return torch.ones(256).cuda()")
    monkeypatch.chdir(tmp_path)
    run("%mlrun -f f -T f.html f()")
    (link,) = shown
    assert "<a href='f.html'" in link._repr_html_()
    assert "<section" in (tmp_path / "f.html").read_text()
    run("%mlrun -f f -T f.txt f()")
    run("%mlrun -q -f f -T f.html f()")
    assert len(shown) == 1


def test_one_device_can_be_measured_alone(run, magics):
    run("%simulate 24GiB 2")
    run("def f():\n    torch.ones(1, device='cuda:0')\n    torch.ones(1, device='cuda:1')")
    for option in ("-g 1", "-g cuda:1", "--gpu 1", "--gpu=1", "--device 1"):
        tables = run(f"%mlrun -f f {option} f()").result.report.tables
        assert [table.device.name for table in tables] == ["cuda:1"]


def test_what_was_measured_until_an_error_is_shown_and_the_error_goes_on(run, magics, capsys):
    run("%simulate 24GiB")
    run("def f():\n    kept = torch.ones(256).cuda()\n    1 / 0")
    result = run("%mlrun -f f f()")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    printed = capsys.readouterr().out
    assert "kept = torch.ones(256).cuda()" in printed
    assert "1.00K" in printed
    assert "mlrun.py" not in printed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%mlrun -f nope fun(3)", "UsageError: no function nope to profile: there is fun"),
        ("%mlrun -f 1+ fun(3)", "UsageError: -f takes the name of a function, not '1+'"),
        ("%mlrun --bogus fun(3)", "UsageError: unrecognized arguments: --bogus"),
        ("%mlrun", "UsageError: %mlrun needs a statement: %mlrun -f func func(10); see %mlrun?"),
        ("%mlrun -D fun(1)", "UsageError: -D leaves out the default columns: name others with -c"),
        ("%mlrun -g 7 fun(1)", "UsageError: no device '7' here: there is cuda:0, and cpu"),
        (
            "%mlrun --gpu H100 fun(1)",
            "UsageError: -g takes a device such as 1 or cuda:1; --simulate H100 simulates one",
        ),
        (
            "%mlrun -T /no/such/x.txt fun(1)",
            "UsageError: cannot write /no/such/x.txt: no such folder, or no right to write there",
        ),
        (
            "%simulate h100 two",
            "UsageError: %simulate takes a GPU and how many of it, not 'two'",
        ),
        (
            "%simulate h100 1 2",
            "UsageError: %simulate takes a GPU and how many of it: %simulate h100 2; or off",
        ),
        ("%imu_start --perv x", "UsageError: unrecognized arguments: --perv x"),
    ],
)
def test_what_is_mistyped_is_told_in_one_line(run, magics, capsys, line, message):
    run("%simulate 24GiB")
    run("def fun(n): return n")
    capsys.readouterr()
    run(line)
    assert told(capsys) == [message]


def test_a_statement_is_taken_as_it_is_written_with_braces_and_dollars(run, magics):
    run("n = 10; name = '$n'")
    assert run("%mlrun -q x = [{n}, '{n}', '$n']").success
    assert magics["x"] == [{10}, "{n}", "$n"]


def test_options_take_quotes_and_values_of_variables(run, magics, tmp_path):
    run("%simulate 24GiB")
    run("def f(): return torch.ones(256).cuda()")
    magics["folder"] = tmp_path
    assert run(f'%mlrun -T "{tmp_path}/my tables.txt" -c "hits, delta" -D -q -f "f" f()').success
    assert "hits" in (tmp_path / "my tables.txt").read_text()
    magics["name"] = "of f.txt"
    assert run("%mlrun -T {folder}/{name.upper().lower()} -q -f f f()").success
    assert (tmp_path / "of f.txt").exists()
    assert run("%mlrun -T $folder/own.txt -q -f f f()").success
    assert (tmp_path / "own.txt").exists()


def test_where_nobody_gets_its_result_it_is_shown_at_once(run, magics, capsys):
    run("%simulate 24GiB")
    run("def f(n): return torch.ones(n).cuda()")
    capsys.readouterr()

    def shown(cell: str) -> int:
        assert run(cell).success
        return capsys.readouterr().out.count("## f\n")

    assert shown("for n in (1, 2):\n    %mlrun -f f f(n)") == 2
    assert shown("%mlrun -f f f(1)\nx = 3") == 1
    assert shown("%%mlrun -q\n%mlrun -f f f(1)") == 1
    assert shown("%%capture\n%mlrun -f f f(1)\nx = 3") == 0
    # Otherwise IPython shows it, or the caller who has it.
    assert shown("%mlrun -f f f(1)") == 1
    assert shown("x = %mlrun -f f f(1)") == 0
    assert shown("x") == 1


def test_help_runs_nothing(run, magics, capsys):
    assert run("%mlrun -h -q ran = 1").result is None
    assert "ran" not in magics
    printed = capsys.readouterr().out
    assert "--dump-profile FILE" in printed
    assert printed.startswith("  %mlrun [-f FUNC]")


def test_a_cell_that_failed_is_measured_no_longer(run, magics):
    run("%simulate 24GiB")
    result = run("%%mlrun\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)  # whose frames stay
    assert peak_tracker(get_device("cuda:0")).segments == []


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("%mlrun f(", "  Cell In[3], line 1\n    f(\n     ^\nSyntaxError: '(' was never closed\n"),
        (
            "%mlrun -f f 1 +",
            "  Cell In[3], line 1\n    1 +\n       ^\nSyntaxError: invalid syntax\n",
        ),
        (
            "%%mlrun\nx = 1\ndef f(:\n    pass",
            "  Cell In[3], line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n",
        ),
    ],
)
def test_a_syntax_error_is_shown_as_in_any_cell(run, magics, capsys, cell, shown):
    run("%simulate 24GiB")
    capsys.readouterr()
    assert isinstance(run(cell).error_in_exec.__cause__, SyntaxError)
    assert "".join(capsys.readouterr()).strip("\n") == shown.strip("\n")


def test_what_awaits_is_told_what_to_do(run, magics, capsys):
    run("async def f(): return 1")
    run("%mlrun -q x = await f()")
    [line] = told(capsys)
    assert line.startswith("UsageError: %mlrun cannot await: decorate the function with @profile")
    assert "x" not in magics


def test_annotations_are_evaluated_unless_a_cell_asked_for_another(run, magics):
    cell = "%%mlrun -q\nclass A:\n    x: int = 3\nkinds = A.__annotations__"
    run(cell)
    assert magics["kinds"] == {"x": int}
    run("from __future__ import annotations")
    run(cell)
    assert magics["kinds"] == {"x": "int"}


def test_a_missing_function_costs_no_numbers_of_the_others(run, magics, capsys):
    run("%simulate 24GiB")
    run("def f(): return torch.ones(256).cuda()")
    capsys.readouterr()
    run("%mlrun -f f -f ff f()")
    lines = told(capsys)
    assert "       1.00K          2.00M    1  def f(): return torch.ones(256).cuda()" in lines
    assert lines[-1] == "UsageError: no function ff to profile: there is f"


def test_a_file_that_cannot_be_written_in_the_end_costs_no_numbers(run, magics, capsys, tmp_path):
    run("%simulate 24GiB")
    run("def f(folder): folder.rmdir(); return torch.ones(256).cuda()")
    magics["folder"] = tmp_path / "gone"
    magics["folder"].mkdir()
    capsys.readouterr()
    result = run("%mlrun -T {folder}/x.txt -f f f(folder)").result
    assert len(result.report.tables) == 1
    path = tmp_path / "gone" / "x.txt"
    assert f"cannot write {path}: No such file or directory" in told(capsys)


def test_own_functions_beside_a_name_that_a_statement_brings_are_there_once(run, magics, tmp_path):
    (tmp_path / "brought_too.py").write_text("def work(t):\n    return t + 1\n")
    cell = (
        "%%mlrun -f work -f late -f own\n"
        "def own(): return torch.ones(1).cuda()\ndef late(): return own()\n"
        "from brought_too import work\nwork(late())"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        run("%simulate 24GiB")
        report = run(cell).result.report
    finally:
        sys.path.remove(str(tmp_path))
    assert [table.function.qual_name for table in report.tables] == ["own", "late", "work"]
    assert not any("did not run" in note for note in texts(report.notes))


def test_a_comment_behind_a_magic_is_one(run, magics, capsys):
    run("%simulate 'a100'  # on a laptop; %simulate off ends it")
    run("%imu_start  # from here on")
    run("%imu_stop  # to here")
    run("%simulate OFF # again")
    lines = [line for line in told(capsys) if "In [" not in line]
    assert lines[0] == "simulating 1 x NVIDIA A100-SXM4-80GB; %simulate off ends it"
    assert lines[-1] == "simulation off"
    assert not any("Error" in line for line in lines)


def test_an_unknown_gpu_lists_the_known_ones(run, magics, capsys):
    run("%simulate h99")
    [line] = told(capsys)
    assert line.startswith("UsageError: unknown GPU 'h99'. ")
    assert ", h100, " in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "statement",
    [
        "torch.ones(1).cuda()",
        # What a build with CUDA says to it.
        "raise RuntimeError('Found no NVIDIA driver on your system.')",
    ],
)
def test_without_a_gpu_it_says_how_to_simulate_one(run, magics, capsys, statement):
    run(f"%mlrun {statement}")
    assert "no GPU here: %simulate h100 simulates one, as does --simulate h100" in told(capsys)


def test_simulate_is_on_for_all_cells_until_it_is_off(run, magics, capsys):
    t4 = "simulating 2 x Tesla T4; %simulate off ends it"
    before = torch.cuda.is_available()
    run("%simulate")
    run("%simulate a100")
    run("%simulate")
    run("x = torch.ones(3, device='cuda'); where = str(x.device)")
    run("%simulate t4 2")
    run("count = torch.cuda.device_count(); name = torch.cuda.get_device_name()")
    run("%simulate off")
    run("%simulate off")
    assert told(capsys) == [
        "no simulation is on: %simulate h100",
        "simulating 1 x NVIDIA A100-SXM4-80GB; %simulate off ends it",
        "simulating 1 x NVIDIA A100-SXM4-80GB; %simulate off ends it",
        f"{t4}. Tensors of the former GPU are CPU tensors now",
        "simulation off",
        "no simulation was on",
    ]
    assert magics["where"] == "cuda:0"
    assert (magics["count"], magics["name"]) == (2, "Tesla T4")
    assert torch.cuda.is_available() is before


def test_the_same_gpu_again_keeps_its_tensors(run, magics, capsys):
    run("%simulate a100")
    run("model = torch.nn.Linear(100, 100).cuda()")
    run("%simulate A100 1")
    run("out = model(torch.ones(1, 100, device='cuda')); where = str(model.weight.device)")
    run("held = torch.cuda.memory_allocated() > 40_000")
    run("%simulate a100 2")
    run("lost = str(model.weight.device)")
    run("del model, out")
    run("%simulate a100 2")
    run("%simulate t4")
    run("%simulate off")

    one = "simulating 1 x NVIDIA A100-SXM4-80GB; %simulate off ends it"
    two = one.replace("1 x", "2 x")
    assert told(capsys) == [
        one,
        f"{one}. It was on already: its tensors stay",
        f"{two}. Tensors of the former GPU are CPU tensors now",
        f"{two}. It was on already: its tensors stay",
        "simulating 1 x Tesla T4; %simulate off ends it",
        "simulation off",
    ]
    assert (magics["where"], magics["held"], magics["lost"]) == ("cuda:0", True, "cpu")


def test_a_mistake_keeps_the_simulation_that_is_on(run, magics, capsys):
    run("%simulate a100")
    run("x = torch.ones(3, device='cuda')")
    run("%simulate a1000")
    run("where = str(x.device)")
    run("%simulate off")

    assert magics["where"] == "cuda:0"


def test_a_simulation_with_other_allocator_settings_is_another(run, magics, capsys, monkeypatch):
    run("%simulate a100")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    run("%simulate a100")
    run("%simulate off")

    assert "It was on already" not in "".join(told(capsys))


def test_unloading_ends_what_the_magics_began(run, magics, capsys):
    run("%simulate a100")
    run("%imu_start")
    capsys.readouterr()
    run("%unload_ext pytorch_memlab")
    assert capsys.readouterr().out == "simulation off\n"
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "NVIDIA A100-SXM4-80GB"
    capsys.readouterr()
    run("x = 1")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["pytorch_memlab", "pytorch_memlab.imu"])
def test_reloading_keeps_the_simulation_and_its_tensors(run, magics, capsys, name):
    run("%load_ext pytorch_memlab.imu")
    run("%simulate a100")
    run("x = torch.ones(256, device='cuda')")
    capsys.readouterr()
    run(f"%reload_ext {name}")
    assert "simulation" not in capsys.readouterr().out
    run("y = x + 1; held = torch.cuda.memory_allocated()")
    assert (magics["y"].is_cuda, magics["held"]) == (True, 2048)
    run("%simulate off")
    run("%unload_ext pytorch_memlab.imu")


def test_imu_answers_and_reports_on_its_own_cell_but_not_on_the_last(run, magics, capsys):
    assert run("%imu_start").result == "IPython Memory Usage started"
    run("x = 1")
    assert run("%imu_stop").result == "IPython Memory Usage stopped"
    lines = [line for line in told(capsys) if line.startswith("In [")]
    assert [line.split(" used ")[0] for line in lines] == ["In [2]", "In [3]"]


def test_help_names_every_option(run, magics, capsys):
    text = MemlabMagics.mlrun.__doc__
    for option in ("-f", "-c", "-D", "-r", "-g", "--gpu", "-q", "-T", "--simulate", "--count"):
        assert f"  {option}" in text or f", {option}" in text


@pytest.mark.parametrize(
    ("line", "options", "statement"),
    [
        ("f(-1)", "", "f(-1)"),
        ("-f g -q  f('a  b')", "-f g -q  ", "f('a  b')"),
        ("-f -g f()", "-f -g ", "f()"),
        ("--simulate h100 x = 1", "--simulate h100 ", "x = 1"),
        ("--simulate=h100 -- -x", "--simulate=h100 ", "-x"),
        ("--gpu 0 x = 1", "--gpu 0 ", "x = 1"),
        ("-T 'a b.txt' f('c d')", "-T 'a b.txt' ", "f('c d')"),
        ('-c "hits, time"  -D f()', '-c "hits, time"  -D ', "f()"),
        ("-q", "-q", ""),
        ("", "", ""),
    ],
)
def test_options_end_where_the_statement_begins(line, options, statement):
    assert split_statement(line) == (options, statement)


def test_the_magics_need_no_more_than_the_extension_loaded():
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(colors='nocolor')\n"
        "shell.run_cell('%load_ext pytorch_memlab')\n"
        "shell.run_cell('%simulate 24GiB')\n"
        "shell.run_cell('%%mlrun -f f -c delta -D\\nimport torch\\n"
        "def f():\\n    return torch.ones(256).cuda()\\nf()')\n"
    )
    ended = run_python(["-c", program])
    assert ended.stderr == ""
    assert "1.00K    3      return torch.ones(256).cuda()" in ended.stdout


def test_a_display_in_the_middle_of_a_cell_is_shown_at_once(run, magics, capsys):
    run("%simulate 24GiB")
    run("from pytorch_memlab import LineProfiler\ndef f(): return torch.ones(1).cuda()")
    run("with LineProfiler(f) as prof:\n    f()")
    capsys.readouterr()
    run("prof.display()\nx = 1")
    assert capsys.readouterr().out.count("## f\n") == 1
    run("x = 1\nprof.display()")
    assert capsys.readouterr().out.count("## f\n") == 1
