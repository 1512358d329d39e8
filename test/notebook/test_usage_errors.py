"""A cell shows a mistaken argument in one line."""

from __future__ import annotations


def test_the_message_and_the_lines_that_led_to_it(run, capsys):
    run(
        "from pytorch_memlab import gpu_mem_allocate_mbs\n"
        "def helper():\n    return gpu_mem_allocate_mbs('many')\n"
        "def outer():\n    return helper()"
    )
    run("outer()")
    assert "".join(capsys.readouterr()).splitlines() == [
        "UsageError: gpu_mem_allocate_mbs takes a number of MB, not 'many'",
        "  Cell In[2], line 1: outer()",
        "  Cell In[1], line 5, in outer: return helper()",
        "  Cell In[1], line 3, in helper: return gpu_mem_allocate_mbs('many')",
    ]


def test_of_a_cell_with_several_lines_the_one_that_is_wrong(run, capsys):
    run("from pytorch_memlab import IPyExperiments\nx = 1\nexp = IPyExperiments('cpuu')\ny = 2")
    assert "".join(capsys.readouterr()).splitlines() == [
        "UsageError: no backend 'cpuu': there is cpu, pytorch",
        "  Cell In[1], line 3: exp = IPyExperiments('cpuu')",
    ]


def test_a_cell_of_one_line_is_not_repeated(run, capsys):
    run("from pytorch_memlab import IPyExperiments")
    run("exp = IPyExperiments('cpuu')")
    assert "".join(capsys.readouterr()).splitlines() == [
        "UsageError: no backend 'cpuu': there is cpu, pytorch"
    ]
