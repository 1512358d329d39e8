"""Presets, spellings and sizes of simulated GPUs."""

import dataclasses
import statistics

import pytest

from pytorch_memlab.errors import UnknownGPUError
from pytorch_memlab.simulation.contexts import CONTEXT_MIB
from pytorch_memlab.simulation.gpus import GPU, PRESETS, find_gpu

KIB, MIB, GIB = 1024, 1024**2, 1024**3

# short name: name, total_memory, capability, SMs, L2, threads per SM, shared memory per SM
EXPECTED = {
    "t4": ("Tesla T4", 15843721216, (7, 5), 40, 4194304, 1024, 65536),
    "v100": ("Tesla V100-SXM2-16GB", 16945512448, (7, 0), 80, 6291456, 2048, 98304),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 34089730048, (7, 0), 80, 6291456, 2048, 98304),
    "a10g": ("NVIDIA A10G", 23684186112, (8, 6), 80, 6291456, 1536, 102400),
    "l4": ("NVIDIA L4", 23612293120, (8, 9), 58, 50331648, 1536, 102400),
    "l40s": ("NVIDIA L40S", 47576711168, (8, 9), 142, 100663296, 1536, 102400),
    "rtx3090": ("NVIDIA GeForce RTX 3090", 25447170048, (8, 6), 82, 6291456, 1536, 102400),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 25250627584, (8, 9), 128, 75497472, 1536, 102400),
    "rtx5090": ("NVIDIA GeForce RTX 5090", 33680457728, (12, 0), 170, 100663296, 1536, 102400),
    "a100": ("NVIDIA A100-SXM4-80GB", 84987740160, (8, 0), 108, 41943040, 2048, 167936),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 42298834944, (8, 0), 108, 41943040, 2048, 167936),
    "h100": ("NVIDIA H100 80GB HBM3", 85028896768, (9, 0), 132, 52428800, 2048, 233472),
    "h200": ("NVIDIA H200", 150109945856, (9, 0), 132, 62914560, 2048, 233472),
    "b200": ("NVIDIA B200", 191502483456, (10, 0), 148, 132644864, 2048, 233472),
}

ALL_NAMES = (
    "Give one of t4, v100, v100-32gb, a10g, l4, l40s, rtx3090, rtx4090, rtx5090, a100, a100-40gb, "
    "h100, h200, b200; or a size such as '24GiB', '24GB' (24 * 10**9 bytes) or 25769803776 (bytes)"
)


def test_presets_are_the_readings():
    assert {
        short_name: (
            gpu.name,
            gpu.total_memory,
            (gpu.major, gpu.minor),
            gpu.multi_processor_count,
            gpu.l2_cache_size,
            gpu.max_threads_per_multi_processor,
            gpu.shared_memory_per_multiprocessor,
        )
        for short_name, gpu in PRESETS.items()
    } == EXPECTED
    assert {gpu.shared_memory_per_block for gpu in PRESETS.values()} == {49152}


@pytest.mark.parametrize(
    ("short_name", "mbytes"),  # as deviceQuery and torch round them, beside the bytes
    [
        ("t4", 15110),
        ("v100", 16160),
        ("v100-32gb", 32510),
        ("a10g", 22587),
        ("l4", 22518),
        ("l40s", 45373),
        ("rtx3090", 24268),
        ("rtx4090", 24081),
        ("rtx5090", 32120),
        ("a100", 81051),
        ("a100-40gb", 40339),
        ("h100", 81090),
        ("h200", 143156),
        ("b200", 182631),
    ],
)
def test_bytes_agree_with_the_mbytes_printed_beside_them(short_name, mbytes):
    assert round(PRESETS[short_name].total_memory / MIB) == mbytes


@pytest.mark.parametrize(
    ("short_name", "gib"),  # an out-of-memory message and a device query
    [("rtx5090", "31.37"), ("b200", "178.35")],
)
def test_capacity_reads_as_in_the_issues_that_gpus_py_names(short_name, gib):
    assert f"{PRESETS[short_name].total_memory / GIB:.2f}" == gib


# short name: GiB of the process, GiB allocated, MiB reserved besides, by contexts.py's messages
MESSAGES = {
    "t4": [(14.52, 14.06, 330.42), (4.11, 3.72, 264.21), (11.32, 8.40, 2.80 * KIB)],
    "v100": [(14.83, 14.01, 472.05)],
    "v100-32gb": [(18.00, 17.61, 13.91)],
    "a10g": [(21.91, 21.69, 1.55)],
    "l4": [(20.78, 18.66, 1.89 * KIB)],
    "l40s": [(44.29, 43.88, 582 / KIB), (11.13, 10.25, 394.50), (44.40, 43.94, 41.95)],
    "rtx3090": [(20.50, 20.02, 187.61)],
    "rtx4090": [(14.56, 13.86, 213.20), (22.80, 22.10, 222.14), (22.69, 21.72, 520.54)],
    "rtx5090": [(31.34, 30.74, 19.41), (26.89, 25.95, 343.86)],
    "a100": [(9.25, 8.27, 500.38), (16.54, 15.94, 205.65), (14.25, 12.87, 912.01)],
    "a100-40gb": [(9.25, 8.27, 500.38), (16.54, 15.94, 205.65), (14.25, 12.87, 912.01)],
    "h100": [(39.75, 39.13, 35.42), (79.13, 77.91, 648.28), (91.91, 86.10, 5.15 * KIB)],
    "h200": [(12.62, 12.10, 7.55)],
    "b200": [(168.34, 167.64, 4.62)],
}


@pytest.mark.parametrize("short_name", PRESETS)
def test_contexts_are_the_medians_of_messages(short_name):
    contexts = [(used - taken) * KIB - rest for used, taken, rest in MESSAGES[short_name]]
    assert round(statistics.median(contexts)) == CONTEXT_MIB[short_name]
    assert PRESETS[short_name].context == CONTEXT_MIB[short_name] * MIB


def test_a_gpu_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["t4"].total_memory = 1


@pytest.mark.parametrize("short_name", PRESETS)
def test_a_preset_is_found_by_its_short_and_its_full_name(short_name):
    gpu = PRESETS[short_name]
    assert find_gpu(short_name) is gpu
    assert find_gpu(short_name.upper().replace("-", " ")) is gpu
    assert find_gpu(gpu.name) is gpu
    assert find_gpu(f"  NVIDIA {short_name}\n") is gpu


@pytest.mark.parametrize(
    ("spelling", "short_name"),
    [
        ("RTX 4090", "rtx4090"),
        ("GeForce RTX 4090", "rtx4090"),
        ("nvidia_geforce_rtx_4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("3090", "rtx3090"),
        ("RTX-5090 32GB", "rtx5090"),
        ("A100 40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("a100-80gb", "a100"),
        ("A100 80 GB", "a100"),
        ("a100-sxm4", "a100"),
        ("H100 80GB", "h100"),
        ("H100-SXM5", "h100"),
        ("nvidia h200 141gb", "h200"),
        ("V100-SXM2", "v100"),
        ("Tesla V100 16GB", "v100"),
        ("V100_32GB", "v100-32gb"),
        ("tesla t4", "t4"),
        ("L40S-48GB", "l40s"),
        ("L4 24GB", "l4"),
        ("A10G 24GB", "a10g"),
    ],
)
def test_forgiving_spellings(spelling, short_name):
    assert find_gpu(spelling) is PRESETS[short_name]


@pytest.mark.parametrize(
    ("spec", "total_memory", "name"),
    [
        ("24GiB", 24 * GIB, "Simulated GPU (24.00 GiB)"),
        ("24gib", 24 * GIB, "Simulated GPU (24.00 GiB)"),
        ("24G", 24 * GIB, "Simulated GPU (24.00 GiB)"),
        (" 24 GB ", 24 * 10**9, "Simulated GPU (22.35 GiB)"),
        ("8192MiB", 8 * GIB, "Simulated GPU (8.00 GiB)"),
        ("512M", 512 * MIB, "Simulated GPU (512.00 MiB)"),
        ("512MB", 512 * 10**6, "Simulated GPU (488.28 MiB)"),
        ("1.5GiB", 3 * GIB // 2, "Simulated GPU (1.50 GiB)"),
        ("79.19GiB", 85029615042, "Simulated GPU (79.19 GiB)"),
        ("1TiB", 1024 * GIB, "Simulated GPU (1024.00 GiB)"),
        ("4096KiB", 4 * MIB, "Simulated GPU (4.00 MiB)"),
        ("4000KB", 4 * 10**6, "Simulated GPU (3.81 MiB)"),
        ("25769803776", 24 * GIB, "Simulated GPU (24.00 GiB)"),
        ("25769803777B", 24 * GIB + 1, "Simulated GPU (24.00 GiB)"),
        (25769803777, 24 * GIB + 1, "Simulated GPU (24.00 GiB)"),
        (2 * MIB, 2 * MIB, "Simulated GPU (2.00 MiB)"),
        (2**47, 2**47, "Simulated GPU (131072.00 GiB)"),
    ],
)
def test_a_size_gives_a_generic_gpu(spec, total_memory, name):
    assert find_gpu(spec) == GPU(
        name=name,
        total_memory=total_memory,
        major=8,
        minor=0,
        multi_processor_count=108,
        l2_cache_size=40 * MIB,
        max_threads_per_multi_processor=2048,
        shared_memory_per_multiprocessor=164 * KIB,
        shared_memory_per_block=48 * KIB,
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("h10", "unknown GPU 'h10' (did you mean h100?)."),
        ("A100 60GB", "unknown GPU 'A100 60GB' (did you mean a100 or a100-40gb or v100?)."),
        ("H100 PCIe", "unknown GPU 'H100 PCIe' (did you mean h100?)."),
        ("RTX 4080", "unknown GPU 'RTX 4080' (did you mean rtx4090 or rtx5090 or rtx3090?)."),
        ("radeon", "unknown GPU 'radeon'."),
        ("", "unknown GPU ''."),
        ("two\nlines", "unknown GPU 'two\\nlines'."),
        ("24PB", "unknown GPU '24PB'."),
        ("24 gigabytes", "unknown GPU '24 gigabytes'."),
        ("9" * 25, f"unknown GPU '{'9' * 25}'."),
        ("0", "a GPU has 2 MiB to 128 TiB of memory, not '0'."),
        ("0GiB", "a GPU has 2 MiB to 128 TiB of memory, not '0GiB'."),
        ("-24GiB", "a GPU has 2 MiB to 128 TiB of memory, not '-24GiB'."),
        ("-4090", "a GPU has 2 MiB to 128 TiB of memory, not '-4090'."),
        ("24", "a GPU has 2 MiB to 128 TiB of memory, not '24'."),
        ("129TiB", "a GPU has 2 MiB to 128 TiB of memory, not '129TiB'."),
        (0, "a GPU has 2 MiB to 128 TiB of memory, not 0."),
        (-1, "a GPU has 2 MiB to 128 TiB of memory, not -1."),
        (2 * MIB - 1, "a GPU has 2 MiB to 128 TiB of memory, not 2097151."),
        (2**47 + 1, "a GPU has 2 MiB to 128 TiB of memory, not 140737488355329."),
        (2**99, "a GPU has 2 MiB to 128 TiB of memory, not an int of 100 bits."),
        (True, "a GPU is a name or a size, not True."),
        (None, "a GPU is a name or a size, not None."),
        (24.0, "a GPU is a name or a size, not 24.0."),
    ],
)
def test_what_is_no_gpu_gets_one_line(spec, problem):
    with pytest.raises(UnknownGPUError) as caught:
        find_gpu(spec)
    assert str(caught.value) == f"{problem} {ALL_NAMES}"
    assert isinstance(caught.value, ValueError)


def test_an_int_too_long_to_print_gets_the_same_line():
    with pytest.raises(UnknownGPUError, match="not an int of 100000 bits"):
        find_gpu(1 << 99999)
