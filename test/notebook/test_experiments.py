"""Experiments: what is deleted, kept, restored and reclaimed, and what they print."""

from __future__ import annotations

import gc
import re
import textwrap

import pytest
import torch
from support.python_process import run_python

from pytorch_memlab import IPyExperiments, IPyExperimentsCPU, IPyExperimentsPytorch, simulate
from pytorch_memlab.errors import UsageError
from pytorch_memlab.profiles.cells import FinishedExperiment, GPUState, MemoryState
from pytorch_memlab.render.experiment_report import finish_text

MB = 2**20


@pytest.fixture
def names(shell):
    shell.user_ns.update(
        IPyExperiments=IPyExperiments,
        IPyExperimentsCPU=IPyExperimentsCPU,
        IPyExperimentsPytorch=IPyExperimentsPytorch,
        torch=torch,
        MB=MB,
    )
    yield shell.user_ns
    for value in list(shell.user_ns.values()):
        if isinstance(value, IPyExperiments):
            value.finish()


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine


def masked(text: str) -> str:
    """Printed text with everything that differs from run to run taken out."""
    text = re.sub(r" *[\d.]+ [KMGT]?B", " SIZE", text)
    text = re.sub(r"\(-?[\d.]+%\)", "(SHARE)", text)
    return re.sub(r"\d\d:\d\d:\d\d", "TIME", text)


def test_the_whole_report_of_an_experiment_on_the_cpu(run, names, capsys):
    run("exp = IPyExperiments(backend='cpu')")
    run("x1 = bytearray(50 * MB)\nx2 = 2\nconsumed = 3")
    run("exp.keep_var_names('consumed', 'reclaimed')")
    assert masked(capsys.readouterr().out) == textwrap.dedent(
        """\
        *** Loading backend: cpu

        *** Starting experiment...

        *** Current state:
        Gen RAM Free SIZE | Proc size SIZE


        """
    )
    run("final = exp.finish()")
    printed = capsys.readouterr().out
    assert masked(printed) == textwrap.dedent(
        """\

        *** Finishing experiment...

        *** Deleting the following local variables:
        ['x1', 'x2']

        *** Keeping the following local variables:
        ['consumed']

        *** No such variables, which were to be kept:
        ['reclaimed']

        *** RAM consumed during the experiment:
        Gen: SIZE

        *** RAM reclaimed at the end of the experiment:
        Gen: SIZE (SHARE)

        *** Elapsed wallclock time:
        TIME

        *** Current state:
        Gen RAM Free SIZE | Proc size SIZE


        """
    )
    consumed, reclaimed, available = names["final"]
    assert consumed.keys() == reclaimed.keys() == available.keys() == {"gen_ram", "gpu_ram"}
    assert abs(consumed["gen_ram"] - 50 * MB) < 2 * MB
    assert abs(reclaimed["gen_ram"] - 50 * MB) < 2 * MB
    assert available["gen_ram"] > 0
    assert "x1" not in names
    assert names["consumed"] == 3


def test_on_a_gpu_bytes_are_the_allocators(run, names, gpu, capsys):
    run("exp = IPyExperiments()")
    printed = capsys.readouterr().out
    assert re.search(
        r"^GPU RAM Free +24\.0 GB \| Used [\d.]+ M?B \| Util [\d.]+% \| Total 24\.0 GB$",
        printed,
        re.MULTILINE,
    )
    run("big = torch.empty(100 * MB, dtype=torch.uint8, device='cuda'); kept = big[:1].clone()")
    run("stats = exp.get_stats()")
    assert [one["gpu_ram"] for one in names["stats"]][:2] == [100 * MB + 512, 0]
    run("exp.keep_var_names('kept')")
    run("final = exp.finish()")
    assert "GPU: 100.0 MB\n" in capsys.readouterr().out
    consumed, reclaimed, available = names["final"]
    assert consumed["gpu_ram"] == 100 * MB + 512
    assert reclaimed["gpu_ram"] == 100 * MB
    assert available["gpu_ram"] == torch.cuda.mem_get_info()[0]
    assert torch.cuda.memory_allocated() == 512
    assert names["exp"].data.gpu == (100 * MB + 512, 100 * MB, available["gpu_ram"])


def test_several_gpus_are_followed_at_once(run, names, capsys):
    with simulate("24GiB", count=2):
        run("exp = IPyExperimentsPytorch()")
        run("a = torch.empty(MB, device='cuda:0'); b = torch.empty(2 * MB, device='cuda:1')")
        run("torch.cuda.set_device(1)")
        run("final = exp.finish()")
        consumed, reclaimed, _ = names["final"]
        assert consumed["gpu_ram"] == reclaimed["gpu_ram"] == 8 * MB
        assert (consumed["gpu_ram_0"], consumed["gpu_ram_1"]) == (4 * MB, 8 * MB)
        printed = capsys.readouterr().out
        assert "GPU 0: 4.0 MB\nGPU 1: 8.0 MB\n" in printed
        assert "GPU 0: 4.0 MB (100.00%)\nGPU 1: 8.0 MB (100.00%)\n" in printed
        assert printed.count("\nGPU 1 RAM Free") == 2


def test_a_second_finish_only_gives_the_numbers_again(run, names, capsys):
    run("exp = IPyExperimentsCPU(); x = 1")
    run("first = exp.finish()")
    capsys.readouterr()
    run("later = 2")
    run("second = exp.finish()")
    assert capsys.readouterr().out == ""
    assert names["first"] == names["second"]
    assert names["later"] == 2


def test_a_context_deletes_its_own_variables_alone(run, names, capsys):
    run("x1 = 1")
    run(
        "with IPyExperiments('cpu') as exp:\n"
        "    x1 = 10\n    x2 = 20\n    x3 = 30\n    exp.keep_var_names('x3')"
    )
    printed = capsys.readouterr().out
    assert "*** Deleting the following local variables:\n['x2']\n" in printed
    assert "*** Variables from before that cells assigned, now kept:\n['x1']\n" in printed
    assert (names["x1"], names["x3"]) == (10, 30)
    assert "x2" not in names
    assert isinstance(names["exp"], IPyExperiments)


REBINDING = """
x1 = 10
same = 5
for looped in range(3): pass
import math as imported
touch()
"""


@pytest.mark.parametrize("policy", ["keep", "delete", "restore"])
def test_rebound_names_are_found_from_the_source(run, names, capsys, policy):
    run("x1 = 1; same = 5; looped = 'before'; imported = None; counter = 0; before = 1")
    run("def touch():\n    global counter\n    counter += 1")
    run(f"before = 2; exp = IPyExperiments('cpu', rebound={policy!r}); new = 1")
    run(REBINDING)
    capsys.readouterr()
    run("done = exp.finish()")
    verb = {"keep": "kept", "delete": "deleted", "restore": "restored"}[policy]
    assert (
        f"*** Variables from before that cells assigned, now {verb}:\n"
        "['imported', 'looped', 'same', 'x1']\n"
    ) in capsys.readouterr().out
    assert names["counter"] == 1
    assert names["before"] == 2
    values = {name: names.get(name) for name in ("x1", "same", "looped", "imported")}
    import math

    assert (
        values
        == {
            "keep": {"x1": 10, "same": 5, "looped": 2, "imported": math},
            "delete": dict.fromkeys(values),
            "restore": {"x1": 1, "same": 5, "looped": "before", "imported": None},
        }[policy]
    )


POLICY = "exp = IPyExperiments('cpu', rebound='delete')"


@pytest.mark.parametrize("magic", ["", "%%time", "%%capture out", "%%capture out\n%%time"])
def test_the_beginning_cell_counts_from_the_experiments_line_on_under_magics_too(run, names, magic):
    run("a = 1; b = 1")
    run(f"{magic}\na = 2; {POLICY}\nb = 2")
    run("exp.finish()")
    assert names["a"] == 2
    assert "b" not in names


@pytest.mark.parametrize(
    "listening",
    [
        "from pytorch_memlab import IPyGPULogger; logger = IPyGPULogger(); _ = logger.start()",
        "%load_ext pytorch_memlab\n%imu_start",
        "other = IPyExperimentsCPU()",
    ],
)
def test_beside_another_listener_what_stands_before_the_experiment_counts_no_more(
    shell, run, names, listening
):
    run("data = b = 0")
    run(listening)
    run("data = 1\nwith IPyExperiments('cpu', rebound='delete'):\n    b = 2")
    assert names.get("data") == 1
    assert "b" not in names
    if "logger" in names:
        names["logger"].stop()
    run("%unload_ext pytorch_memlab")


def test_a_cell_that_goes_to_no_history_counts_by_its_own_lines(shell, run, names):
    run("a = b = 1")
    run("pass\npass\npass\na = 2")
    shell.run_cell(f"b = 2\n{POLICY}", store_history=False)
    run("exp.finish()")
    assert (names.get("a"), names.get("b")) == (2, 2)


def test_what_line_magics_assign_counts(run, names):
    run("%load_ext pytorch_memlab")
    run("a = b = 1")
    run("exp = IPyExperiments('cpu', rebound='restore')")
    run("%time a = 2")
    run("%mlrun -q b = 3")
    assert (names["a"], names["b"]) == (2, 3)
    run("exp.finish()")
    assert (names["a"], names["b"]) == (1, 1)


def test_a_function_of_the_cell_may_begin_it(run, names):
    run("a = 1; b = 1")
    run(f"def begin():\n    {POLICY}\n    return exp\na = 2; exp = begin()\nb = 2")
    run("exp.finish()")
    assert names["a"] == 2
    assert "begin" in names
    assert "b" not in names


def test_of_a_cell_whose_thread_begins_it_nothing_counts(run, names):
    run("a = 1")
    run(
        "import threading\na = 2\nmade = []\n"
        "def begin(): made.append(IPyExperiments('cpu', rebound='delete'))\n"
        "thread = threading.Thread(target=begin); thread.start(); thread.join(); exp = made.pop()"
    )
    run("exp.finish()")
    assert names["a"] == 2


def test_what_a_script_leaves_is_reclaimed_although_ipython_keeps_its_namespace(
    run, names, gpu, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text("import torch\nmade = torch.ones(2**20, device='cuda')\n")
    run("exp = IPyExperiments()")
    run(f"%run {script}")
    run("made = None")
    assert torch.cuda.memory_allocated() == 4 * MB
    run("exp.finish()")
    assert torch.cuda.memory_allocated() == 0


def test_sizes_stand_in_seven_places(run, names, gpu, capsys):
    run("exp = IPyExperiments()")
    printed = capsys.readouterr().out
    assert "\nGPU RAM Free 24.0 GB | Used 0.0 B" in printed
    assert re.search(r"\nGen RAM Free (?=.{7} \|)( ?\d\.\d|\d\d\.\d|\d{3}\.\d) GB \| Proc", printed)


def test_the_last_result_and_aliases_of_a_variable_go_with_it(run, names, gpu):
    run("old = torch.empty(1, device='cuda')")
    run("exp = IPyExperiments()")
    base = torch.cuda.memory_allocated()
    run("big = torch.empty(MB, device='cuda')")
    run("big")
    run("torch.empty(MB, device='cuda')")
    run("small = 20; old_alias = old")
    run("exp.finish()")
    assert torch.cuda.memory_allocated() == base
    assert names["old"].numel() == 1


def test_equal_objects_of_other_variables_stay(run, names):
    run("y = 20; word = 'text'")
    run("exp = IPyExperimentsCPU(); x2 = 20; other = word")
    run("exp.finish()")
    assert (names["y"], names["word"]) == (20, "text")
    assert "x2" not in names


def test_deleting_its_variable_finishes_it(run, names, capsys):
    run("exp = IPyExperimentsCPU(); x = 1")
    capsys.readouterr()
    run("del exp")
    assert "['x']" in capsys.readouterr().out
    assert "x" not in names


def test_deleting_it_finishes_it_even_while_a_traceback_holds_it(run, names, capsys):
    run("exp = IPyExperimentsCPU(); x = 1")
    run("def fail(held): 1 / 0\nfail(exp)")
    capsys.readouterr()
    run("del exp")
    assert "['fail', 'x']" in capsys.readouterr().out
    run("y = 2")
    gc.collect()
    assert names["y"] == 2
    assert capsys.readouterr().out == ""


def test_the_same_name_again_finishes_the_first_one_first(run, names, capsys):
    run("exp = IPyExperimentsCPU(); x = 1")
    capsys.readouterr()
    run("exp = IPyExperimentsCPU(); y = 2")
    printed = capsys.readouterr().out
    assert printed.index("*** Finishing experiment") < printed.index("*** Starting experiment")
    assert printed.count("*** Finishing experiment") == 1
    assert "x" not in names
    run("exp.finish()")
    assert "['y']" in capsys.readouterr().out


def test_after_running_out_of_memory_everything_is_reclaimed(run, names, capsys):
    with simulate("1GiB"):
        run("exp = IPyExperiments()")
        base = torch.cuda.memory_allocated()
        run(
            "def grow():\n"
            "    held = []\n"
            "    while True:\n"
            "        held.append(torch.empty(100 * MB, dtype=torch.uint8, device='cuda'))\n"
        )
        assert isinstance(run("grow()").error_in_exec, torch.OutOfMemoryError)
        assert torch.cuda.memory_allocated() >= base + 800 * MB
        run("final = exp.finish()")
        assert torch.cuda.memory_allocated() == base
        consumed, reclaimed, _ = names["final"]
        assert consumed["gpu_ram"] == reclaimed["gpu_ram"] >= 800 * MB
        assert run("%tb").success
        run("x = torch.empty(900 * MB, dtype=torch.uint8, device='cuda')")
        assert names["x"].numel() == 900 * MB


def test_an_error_within_a_context_reclaims_and_goes_on(run, names, gpu):
    run(
        "def work():\n"
        "    held = torch.empty(100 * MB, dtype=torch.uint8, device='cuda')\n"
        "    raise torch.OutOfMemoryError('full')"
    )
    run("torch.ones(1, device='cuda').sum()")
    gc.collect()
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    result = run("with IPyExperiments() as exp:\n    x = torch.ones(1, device='cuda')\n    work()")
    assert isinstance(result.error_in_exec, torch.OutOfMemoryError)
    gc.collect()
    assert torch.cuda.memory_allocated() == base
    # What the frames of the error held was consumed, and is reclaimed.
    consumed, reclaimed, _ = names["exp"].get_stats()
    assert consumed["gpu_ram"] == reclaimed["gpu_ram"] == 100 * MB + 512


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_mistyped_is_told_in_one_line(run, names, capsys):
    run("exp = IPyExperiments()")
    run("exp = IPyExperiments('tf')")
    run("exp = IPyExperimentsCPU(rebound='drop')")
    run("exp = IPyExperimentsCPU()")
    printed = capsys.readouterr()
    told = [line for line in (printed.out + printed.err).splitlines() if "Error" in line]
    assert told == [
        (
            "UsageError: backend 'pytorch' needs a CUDA GPU and there is none here: use "
            "IPyExperiments('cpu'), or simulate a GPU with %simulate h100"
        ),
        "UsageError: no backend 'tf': there is cpu, pytorch",
        "UsageError: rebound is one of keep, delete, restore, not 'drop'",
    ]
    run("big = 5; exp.keep_var_names(big)")
    assert "UsageError: keep_var_names takes names, not values" in "".join(capsys.readouterr())


def test_after_it_debug_says_that_there_is_nothing(run, names, capsys):
    run("exp = IPyExperimentsCPU()")
    run("1 / 0")
    run("exp.finish()")
    capsys.readouterr()
    assert run("%debug").success
    assert run("%tb").success
    assert "Traceback (most" not in "".join(capsys.readouterr())


def test_garbage_of_its_own_is_none_of_the_users(run, names, gpu, capsys):
    run("from pytorch_memlab import IPyGPULogger; logger = IPyGPULogger(); _ = logger.start()")
    run("exp = IPyExperiments()")
    run("stats = exp.get_stats(), exp.data")
    run("exp.finish(); logger.stop()")
    assert "Circular ref" not in capsys.readouterr().out


def test_garbage_of_the_user_is_reported(run, names, gpu, capsys):
    run("exp = IPyExperiments()")
    run("for _ in range(5):\n    ring = []; ring.append(ring)\ndel ring")
    run("exp.finish()")
    assert "gc collected during the experiment:\ncleared 5 objects" in capsys.readouterr().out


@pytest.mark.knows_simulation("the host holds the tensors of simulated GPUs")
def test_under_simulation_it_says_what_the_host_holds_besides(run, names, capsys):
    said = "*** Gen contains the tensors of the simulated GPUs\n\n*** Elapsed"
    run("exp = IPyExperimentsCPU(); exp.finish()")
    assert said not in capsys.readouterr().out
    with simulate("24GiB", compute=False):
        run("exp = IPyExperiments(); exp.finish()")
        assert said not in capsys.readouterr().out
    with simulate("24GiB"):
        run("exp = IPyExperiments(); exp.finish()")
        assert said in capsys.readouterr().out


def test_shares_that_are_reclaimed_are_between_0_and_100_percent():
    def state(resident, allocated):
        return MemoryState(0, resident, (GPUState(0, allocated, 0, 1),))

    outcome = FinishedExperiment(
        *([], [], [], [], "kept", 0, 0),
        start=state(100, 100),
        end=state(200, 200),
        after=state(300, 0),
        seconds=0.0,
        host_has_gpus=False,
    )
    text = finish_text(outcome)
    assert "reclaimed at the end of the experiment:\nGen: -100.0 B (0.00%)\n" in text
    assert "\nGPU: 200.0 B (100.00%)\n" in text


def test_its_repr_says_whether_it_runs(run, names):
    run("exp = IPyExperimentsCPU()")
    assert repr(names["exp"]) == "<IPyExperimentsCPU with backend cpu: running>"
    run("exp.finish()")
    reclaimed = r"\S+ (B|KiB|MiB) reclaimed on the host and 0 B on the GPU"
    finished = f"<IPyExperimentsCPU with backend cpu: finished, {reclaimed}>"
    assert re.fullmatch(finished, repr(names["exp"]))


def test_outside_ipython_it_says_what_is_needed():
    with pytest.raises(UsageError, match="needs IPython"):
        IPyExperiments("cpu")


def test_resetting_the_namespace_ends_it_without_a_word(run, names, capsys):
    run("exp = IPyExperimentsCPU(); x = 1")
    capsys.readouterr()
    assert run("%reset -f").success
    assert run("y = 2").success
    assert capsys.readouterr().out == ""


def test_an_experiment_left_open_ends_quietly_with_the_shell():
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('from pytorch_memlab import IPyExperiments', store_history=True)\n"
        "shell.run_cell(\"exp = IPyExperiments('cpu'); x = 1\", store_history=True)\n"
    )
    ended = run_python(["-c", program])
    assert ended.returncode == 0
    assert ended.stderr == ""
