"""The texts of all reports on a cell, byte for byte."""

from __future__ import annotations

from pytorch_memlab.profiles.cells import CellReading, CpuLoad, Usage
from pytorch_memlab.render import cell_reports

MIB = 2**20


def reading(number=4, seconds=0.0, host=(45, 45, 170), gpu=(2467, 2467, 1465)) -> CellReading:
    """Consumed, peak and used of both kinds of memory, in MiB."""
    return CellReading(
        number,
        seconds,
        Usage(*(int(value * MIB) for value in host)),
        Usage(*(int(value * MIB) for value in gpu)),
    )


def test_table_of_the_gpu_logger():
    assert cell_reports.gpu_logger_table(reading()) == (
        "RAM: Consumed Peaked  Used Total in 0.000s (In [4])\n"
        "Gen:       45      0      170 MB\n"
        "GPU:     2467      0     1465 MB"
    )
    peaked = reading(5, 1.0456, (0, 0, 170), (2567, 4004, 5465))
    assert cell_reports.gpu_logger_table(peaked) == (
        "RAM: Consumed Peaked  Used Total in 1.046s (In [5])\n"
        "Gen:        0      0      170 MB\n"
        "GPU:     2567   1437     5465 MB"
    )


def test_line_of_the_gpu_logger():
    assert cell_reports.gpu_logger_line(reading(7, 0.5, (0, 3, 170), (-2, 1, 5))) == (
        "Gen: 0/3/170 MB | GPU: -2/3/5 MB | 0.500s | In [7] (Consumed/Peaked/Used Total)"
    )


def test_table_of_an_experiment():
    taken = reading(2, 0.032, (128, 128, 3561), (0, 0, 795))
    assert cell_reports.experiment_table(taken, with_gpu=True) == (
        "･ RAM:  △Consumed    △Peaked    Used Total | Exec time 0:00:00.032\n"
        "･ CPU:        128          0      3,561 MB |\n"
        "･ GPU:          0          0        795 MB |"
    )


def test_columns_of_an_experiment_grow_with_their_numbers():
    taken = reading(2, 3725.9996, (123_456_789, 123_456_794, 3))
    assert cell_reports.experiment_table(taken, with_gpu=False) == (
        "･ RAM:   △Consumed    △Peaked    Used Total | Exec time 1:02:06.000\n"
        "･ CPU: 123,456,789          5          3 MB |"
    )


def test_line_of_an_experiment():
    # What a cell gave back was there before it: a peak at the beginning is none.
    taken = reading(2, 0.0, (0, 0, 5124), (-8, 0, 795))
    assert cell_reports.experiment_line(taken, with_gpu=True) == (
        "CPU: 0/0/5124 MB | GPU: -8/0/795 MB | Time 0:00:00.000 | (Consumed/Peaked/Used Total)"
    )


def test_line_of_the_mem_watcher():
    taken = reading(5, 0.3301, (76.332, 80, 112.602))
    assert cell_reports.mem_watcher_line(taken) == (
        "In [5] used 76.332 MiB RAM in 0.330s, peaked 3.668 MiB above current, "
        "total RAM usage 112.602 MiB"
    )


def test_line_of_imu():
    load = CpuLoad(7.4, 99.6)
    first = reading(3, 1.823, (763.3, 763.3, 832.5))
    assert cell_reports.memory_usage_line(first, int(763.3 * MIB), load) == (
        "In [3] used 763.3 MiB RAM in 1.82s (system mean cpu 7%, single max cpu 100%), "
        "peaked 0.0 MiB above final usage, current RAM usage now 832.5 MiB"
    )
    second = reading(4, 35.58, (5, 57470, 804.6))
    assert cell_reports.memory_usage_line(second, int(-27.9 * MIB), load) == (
        "In [4] used -27.9 MiB RAM in 35.58s (system mean cpu 7%, single max cpu 100%), "
        "peaked 57465.0 MiB above final usage, current RAM usage now 804.6 MiB"
    )
