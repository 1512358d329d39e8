"""``pytorch-memlab fit``: its whole output, its exit codes, and what it refuses."""

from __future__ import annotations

import os
import re
import sys

import pytest
from support.fit_command import fitted
from support.python_process import run_python
from support.terminal import Terminal

from pytorch_memlab.cli.main import main
from pytorch_memlab.fitting import comparison

SCRIPT = """
    import sys
    import torch

    size = int(sys.argv[1].partition("=")[2])
    print("starts")
    kept = torch.zeros(size * 2**20, dtype=torch.uint8, device="cuda")
"""

TABLE = """\
script.py --mib=40: run without values
fits on 1 of 2 GPUs; the smallest is 50MiB (50.0 MiB)

GPU                       memory     context        peak        left  fits
30MiB                   30.0 MiB         0 B    40.0 MiB   -10.0 MiB  no
50MiB                   50.0 MiB         0 B    40.0 MiB    10.0 MiB  yes

out of memory at script.py:7 in <module>: kept = torch.zeros(size * 2**20, dtyp…
  asks for 40.0 MiB on 30MiB

peak: the most that PyTorch's allocator takes of the GPU, its cache included;
  left: what is free beside it and the CUDA context, whose size is an estimate
"""


pytestmark = pytest.mark.usefixtures("temporary_folder")


def test_a_table_of_gpus_and_why_the_program_does_not_fit(write, capsys):
    code, out, err = fitted(capsys, "--gpu", "50MiB,30MiB", write(SCRIPT), "--", "--mib=40")
    assert out == TABLE
    assert err == "pytorch-memlab: what the program printed is in FOLDER\n"
    assert code == 0


def test_a_terminal_counts_each_gpu_but_the_last(write, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    main(["fit", "--gpu", "50MiB,60MiB,t4", write(SCRIPT), "--mib=40"])
    lines = sys.stderr.getvalue().splitlines()
    assert [line for line in lines if line.endswith("GPUs")] == [
        "pytorch-memlab: 1 of 3 GPUs",
        "pytorch-memlab: 2 of 3 GPUs",
    ]


def test_what_the_program_printed_is_in_the_folder(write, capsys):
    main(["fit", "--gpu", "50MiB", write(SCRIPT), "--mib=40"])
    folder = capsys.readouterr().err.split()[-1]
    assert os.listdir(folder) == ["50MiB.txt"]
    with open(os.path.join(folder, "50MiB.txt")) as file:
        assert file.read() == "starts\n"


def test_none_fits(write, capsys):
    code, out, _ = fitted(capsys, "--gpu", "20MiB", "--gpu", "30MiB", write(SCRIPT), "--mib=40")
    assert code == 3
    assert out.splitlines()[1] == "fits on none of 2 GPUs"


def test_a_module_and_no_output(write, capsys):
    write("", "package/__init__.py")
    write("import torch\nkept = torch.zeros(2**20, device='cuda')\n", "package/train.py")
    code, out, err = fitted(capsys, "--gpu", "50MiB", "-m", "package.train")
    assert (code, err) == (0, "")
    assert out.startswith("package.train: run without values\nfits on 1 of 1 GPU: 50MiB (50.0 MiB)")


def test_the_error_of_the_program_follows_the_table(write, capsys):
    code, out, err = fitted(capsys, "--gpu", "t4,a100", write(SCRIPT), "--mib")
    assert code == 2
    assert (
        out
        == """\
script.py --mib: run without values
no verdict: the program failed on all 2 GPUs
"""
    )
    assert err.splitlines()[0] == "pytorch-memlab: what the program printed is in FOLDER"
    assert err.splitlines()[2] == "Traceback (most recent call last):"
    assert err.splitlines()[-1] == "ValueError: invalid literal for int() with base 10: ''"


NO_STDERR = [
    "sys.stderr.close()",
    "sys.stderr = None",
    "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",  # a full disk
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("statement", NO_STDERR)
def test_an_error_of_a_program_that_cannot_print_it(statement, write, capsys):
    script = write(f"import os, sys\n{statement}\nraise ValueError('boom')\n")

    code, _, err = fitted(capsys, "--gpu", "t4", script)

    assert (code, err.splitlines()[-1]) == (2, "ValueError: boom")


def test_an_error_after_values_were_read(write, capsys):
    code, out, err = fitted(
        capsys,
        "--gpu",
        "t4",
        write("""
            import torch
            length = int(torch.rand(10_000, device="cuda").sum().item())
            torch.ones(4, device="cuda").split([length])
        """),
    )
    assert code == 2
    assert "dry run: Tensor.item" in out
    assert err.splitlines()[-1] == (
        "pytorch-memlab: the program failed after it read values that a dry run only assumes (the "
        "notes say where): if the error comes from them, pytorch-memlab run computes them"
    )


SPECTRUM = """
    import torch
    x = torch.zeros(2**20, device="cuda")
    spectrum = torch.fft.rfft(x)
"""


def test_without_a_bound_of_what_is_not_counted_it_fits_as_far_as_memory_is_counted(write, capsys):
    path = write(SPECTRUM.replace("torch.fft.rfft(x)", "torch.linalg.svdvals(x.view(1024, -1))"))

    code, out, _ = fitted(capsys, "--gpu", "40MiB,3MiB", path)

    lines = out.splitlines()
    assert code == 0
    assert lines[1:3] == [
        "fits as far as memory is counted on 1 of 2 GPUs; the smallest is 40MiB",
        "  (40.0 MiB)",
    ]
    assert [line.split("  ")[-1] for line in lines[5:7]] == ["no", "as counted"]


def test_memory_that_is_not_counted_may_have_no_room(write, capsys):
    path = write(SPECTRUM)
    code, out, _ = fitted(capsys, "--gpu", "40MiB,100MiB", path)
    lines = out.splitlines()
    assert code == 0
    assert lines[1:6] == [
        "fits on 1 of 2 GPUs; the smallest is 100MiB (100.0 MiB); perhaps on 1 more",
        "",
        "GPU                       memory     context        peak        left  fits",
        "40MiB                   40.0 MiB         0 B   20.0 MiB?    20.0 MiB  perhaps",
        "100MiB                 100.0 MiB         0 B   20.0 MiB?    80.0 MiB  yes",
    ]
    assert lines[7] == "40MiB: perhaps: 20.0 MiB free, up to 64.0 MiB not counted"
    code, out, _ = fitted(capsys, "--gpu", "40MiB", path)
    assert code == 4
    assert out.splitlines()[1] == "may fit on 1 of 1 GPU: 40MiB (40.0 MiB)"


SIZES = """
    import torch
    x = torch.rand(2**20, 8, device="cuda")
    found = x.nonzero()
    chosen = x[x > 2]
"""


# These two have short names: so have the paths in their notes, which are not broken then.
def test_assumed_sizes(write, capsys):
    code, out, _ = fitted(capsys, "--gpu", "t4,150MiB", write(SIZES))
    assert code == 0
    table, _, notes = out.partition("peak: ")
    assert (
        table
        == """\
script.py: run without values
fits on 1 of 2 GPUs; the smallest is t4 (14.76 GiB)

GPU                 memory    context        peak        left  fits assumed at
150MiB           150.0 MiB        0 B  342.0 MiB*  -192.0 MiB  no   line 4 +1
t4               14.76 GiB  135.0 MiB  342.0 MiB*   14.29 GiB  yes  line 4 +1

out of memory at script.py:4 in <module>: found = x.nonzero()
  asks for 128.0 MiB on 150MiB

"""
    )
    assert max(map(len, table.splitlines())) <= 80
    assert (
        "sizes assumed, at most: mask as an index at script.py:5 (once, every element True), "
        "nonzero at script.py:4 (once, every element True): the true peak may be lower; --assume "
        "gives the sizes"
    ) in _words(notes)


def _words(out):
    return re.sub(r"\S+/script\.py", "script.py", " ".join(out.split()))


def test_given_sizes(write, capsys):
    script = write(SIZES)
    given = ["--assume", "nonzero=0.001", "--assume", f"{script}:5=0.01,{script}:3=0.5"]
    code, out, err = fitted(capsys, "--gpu", "150MiB", *given, script)
    assert (code, err) == (0, "")
    words = _words(out)
    assert "150MiB 150.0 MiB 0 B 54.0 MiB* 96.0 MiB yes line 4 +1" in words
    assert "sizes given by --assume: mask as an index at script.py:5 (once, 0.01 of the" in words
    assert "--assume script.py:3=0.5: nothing there assumed a size" in words
    assert "at most" not in words
    code, out, err = fitted(capsys, "--assume", "nonzer=0.001", script)
    assert (code, out) == (2, "")
    message = "assume: there is no op 'nonzer' whose size can be given: did you mean nonzero?"
    assert err == f"pytorch-memlab fit: error: {message}\n"


def test_a_peak_that_does_not_settle(write, capsys):
    code, out, _ = fitted(
        capsys,
        "--gpu",
        "1GiB",
        write("""
            import torch
            weight = torch.zeros(2**18, device="cuda", requires_grad=True)
            optimizer = torch.optim.SGD([weight])
            kept = []
            while True:
                kept.append((weight * 2).sum())
                kept.append(torch.zeros(2**18, device="cuda"))
                weight.sum().backward()
                optimizer.step()
        """),
    )
    assert code == 4
    lines = out.splitlines()
    assert lines[0] == "script.py: 24 steps without values"
    assert lines[4].endswith("so far")
    assert lines[5] == "  so far (24 steps; memory grows)"
    assert (
        "the peak did not repeat within 24 steps: their requests are 4.0 MiB to 26.0 MiB"
        " (--steps N runs N steps)"
    ) in " ".join(out.split())
    assert lines[1] == "fits so far on 1 of 1 GPU: 1GiB (1.00 GiB)"
    grows = "grows by 1.0 MiB a step (kept) at script.py:8 in <module>: kept.append(torch.ze…"
    assert lines[7:9] == [grows, "  out of memory at step 1,022 on 1GiB, if it goes on"]


def test_no_tensor_of_the_program_is_on_a_gpu(write, capsys):
    code, out, _ = fitted(capsys, "--gpu", "1GiB", write("import torch\ntorch.zeros(1)\n"))
    assert code == 2
    assert (
        out
        == """\
script.py: run without values
no verdict: the program created no CUDA tensor: move the model and its inputs to
  the device "cuda"
"""
    )


def test_ctrl_c_shows_what_is_known(write, capsys, monkeypatch):
    compare = comparison.compare_gpus

    def interrupted(*args):
        found = compare(*args)
        yield next(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare_gpus", interrupted)
    code, out, err = fitted(capsys, "--gpu", "50MiB,60MiB,t4", write(SCRIPT), "--mib=40")
    assert code == 130
    assert out.splitlines()[4:7] == [
        "50MiB                   50.0 MiB         0 B    40.0 MiB    10.0 MiB  yes",
        "60MiB                not reached",
        "t4                   not reached",
    ]
    assert err.endswith("pytorch-memlab: interrupted: 1 of 3 GPUs are known\n")


def test_ctrl_c_leaves_no_copies_of_files(write, capsys, temporary_folder):
    script = write(
        """\
        import os, signal, torch

        torch.ones(1, device="cuda")
        os.kill(os.getppid(), signal.SIGINT)
        while True:
            signal.pause()
        """
    )
    code, _, _ = fitted(capsys, "--gpu", "t4", script)
    assert code == 130
    names = [path.name for path in temporary_folder.iterdir() if "memlab" in path.name]
    assert [name for name in names if not name.startswith("pytorch-memlab-fit-")] == []


def test_a_full_disk_is_no_failure_of_the_program(write, temporary_folder):
    limited = (
        "import resource, sys\n"
        "sys.dont_write_bytecode = True\n"  # half a file of byte code would stay
        "import torch._dynamo\n"
        "from pytorch_memlab.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["-c", limited, "fit", "--gpu", "50MiB", write(SCRIPT), "--mib=40"]
    done = run_python(words, env={**os.environ, "TMPDIR": str(temporary_folder)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"pytorch-memlab fit: error: cannot write the result of a run to {temporary_folder}: the"
        " disk may be full (TMPDIR names another folder)\n"
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nothing.py"], "cannot open the script nothing.py: No such file or directory"),
        (["-m", "nothing"], "there is no module named nothing"),
        (["-"], "fit runs a program several times: give the file of a script, not -"),
        (["broken.py"], "{folder}/broken.py:1: invalid syntax"),
        (["bytes.py"], "bytes.py: source code "),
        (["--gpu", "rtx409", "script.py"], "unknown GPU 'rtx409' (did you mean rtx4090"),
        (["--gpu", "", "script.py"], "unknown GPU ''"),
        (["--reserve", "24GiB", "--gpu", "t4", "script.py"], "nothing is left of the GPU's"),
        (
            ["--reserve", "much", "script.py"],
            "--reserve is a size such as '450MiB'",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_said_in_a_line(words, error, write, capsys, tmp_path):
    write("x = = 1\n", "broken.py")
    write("\0", "bytes.py")
    write(SCRIPT)
    assert main(["fit", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("pytorch-memlab fit: error: " + error.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--gpus", "t4", "script.py"], "unknown option --gpus: did you mean --gpu?"),
        ([], "SCRIPT is missing: for example, pytorch-memlab fit train.py --batch-size 8"),
        (["--num-gpus", "0", "s.py"], "--num-gpus is a number from 1 to 128, not 0"),
        (["--steps", "0", "s.py"], "--steps is a number of optimizer steps from 1 on, not 0"),
        (["--steps", "many", "s.py"], "--steps is a number of optimizer steps from 1 on, not many"),
    ],
)
def test_a_mistyped_option_is_named(words, error, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["fit", *words])
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"pytorch-memlab fit: error: {error}\n"
