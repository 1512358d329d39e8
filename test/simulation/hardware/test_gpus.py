"""Presets, spellings and sizes of simulated GPUs."""

import dataclasses
import re
import tomllib

import pytest
import torch

import pytorch_memlab
from pytorch_memlab import GPU, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UnknownGPUError, UsageError
from pytorch_memlab.simulation.hardware import presets
from pytorch_memlab.simulation.hardware.presets import PRESETS, find_gpu

PRESETS_FILE = presets._FILE

KIB, MIB, GIB = 1024, 1024**2, 1024**3

# short name: name, total_memory, capability, SMs, L2, MiB of the context
EXPECTED = {
    "t4": ("Tesla T4", 15843721216, (7, 5), 40, 4194304, 135),
    "v100": ("Tesla V100-SXM2-16GB", 16945512448, (7, 0), 80, 6291456, 368),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 34089730048, (7, 0), 80, 6291456, 385),
    "rtx2080ti": ("NVIDIA GeForce RTX 2080 Ti", 11519590400, (7, 5), 68, 5767168, 135),
    "quadro-rtx6000": ("Quadro RTX 6000", 25393994137, (7, 5), 72, 6291456, 135),
    "quadro-rtx8000": ("Quadro RTX 8000", 51131585658, (7, 5), 72, 6291456, 135),
    "a10": ("NVIDIA A10", 23609475072, (8, 6), 72, 6291456, 224),
    "a10g": ("NVIDIA A10G", 23684186112, (8, 6), 80, 6291456, 224),
    "a40": ("NVIDIA A40", 47608692736, (8, 6), 84, 6291456, 224),
    "rtx3060": ("NVIDIA GeForce RTX 3060", 12587106304, (8, 6), 28, 2359296, 224),
    "rtx3060ti": ("NVIDIA GeForce RTX 3060 Ti", 8359641088, (8, 6), 38, 3145728, 224),
    "rtx3070": ("NVIDIA GeForce RTX 3070", 8197111808, (8, 6), 46, 4194304, 224),
    "rtx3080": ("NVIDIA GeForce RTX 3080", 10487857152, (8, 6), 68, 5242880, 224),
    "rtx3090": ("NVIDIA GeForce RTX 3090", 25447170048, (8, 6), 82, 6291456, 304),
    "rtxa4000": ("NVIDIA RTX A4000", 16761109872, (8, 6), 48, 4194304, 210),
    "rtxa5000": ("NVIDIA RTX A5000", 25402343424, (8, 6), 64, 6291456, 224),
    "rtxa6000": ("NVIDIA RTX A6000", 51160023040, (8, 6), 84, 6291456, 224),
    "l4": ("NVIDIA L4", 23612293120, (8, 9), 58, 50331648, 236),
    "l40": ("NVIDIA L40", 47674136985, (8, 9), 142, 100663296, 507),
    "l40s": ("NVIDIA L40S", 47576711168, (8, 9), 142, 100663296, 429),
    "rtx4060ti": ("NVIDIA GeForce RTX 4060 Ti", 8185184256, (8, 9), 34, 33554432, 429),
    "rtx4060ti-16gb": ("NVIDIA GeForce RTX 4060 Ti", 16722821120, (8, 9), 34, 33554432, 429),
    "rtx4070": ("NVIDIA GeForce RTX 4070", 12585009152, (8, 9), 46, 37748736, 429),
    "rtx4070ti": ("NVIDIA GeForce RTX 4070 Ti", 12590252032, (8, 9), 60, 50331648, 429),
    "rtx4080": ("NVIDIA GeForce RTX 4080", 16828596224, (8, 9), 76, 67108864, 429),
    "rtx4080-super": ("NVIDIA GeForce RTX 4080 SUPER", 16852844544, (8, 9), 80, 67108864, 429),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 25250627584, (8, 9), 128, 75497472, 495),
    "rtx6000ada": ("NVIDIA RTX 6000 Ada Generation", 50852790272, (8, 9), 142, 100663296, 429),
    "rtx5080": ("NVIDIA GeForce RTX 5080", 16609443840, (12, 0), 84, 67108864, 607),
    "rtx5090": ("NVIDIA GeForce RTX 5090", 33680457728, (12, 0), 170, 100663296, 607),
    "rtxpro6000": (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        101974016000,
        (12, 0),
        188,
        134217728,
        607,
    ),
    "a100": ("NVIDIA A100-SXM4-80GB", 84987740160, (8, 0), 108, 41943040, 501),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 42298834944, (8, 0), 108, 41943040, 501),
    "h100": ("NVIDIA H100 80GB HBM3", 85028896768, (9, 0), 132, 52428800, 601),
    "h100-pcie": ("NVIDIA H100 PCIe", 84943044608, (9, 0), 114, 52428800, 563),
    "h200": ("NVIDIA H200", 150109945856, (9, 0), 132, 62914560, 525),
    "gh200": ("NVIDIA GH200 120GB", 101468602368, (9, 0), 132, 62914560, 563),
    "b200": ("NVIDIA B200", 191502483456, (10, 0), 148, 132644864, 712),
    "b300": ("NVIDIA B300 SXM6 AC", 287429948866, (10, 3), 148, 132644864, 712),
}

# compute capability: threads per SM, shared memory per SM
PER_SM = {
    (7, 0): (2048, 98304),
    (7, 5): (1024, 65536),
    (8, 0): (2048, 167936),
    (8, 6): (1536, 102400),
    (8, 9): (1536, 102400),
    (9, 0): (2048, 233472),
    (10, 0): (2048, 233472),
    (10, 3): (2048, 233472),
    (12, 0): (1536, 102400),
}

HOW_TO_NAME_ONE = (
    "Give its memory, such as 12GiB (--gpu 12GiB, %simulate 12GiB); or describe it in a TOML file "
    f"(--gpu my_gpu.toml) or as GPU(...); or take one of {', '.join(PRESETS)}"
)
A_SIZE = "Give a size such as '24GiB', '24GB' (24 * 10**9 bytes) or 25769803776 (bytes)"


def test_presets_are_the_readings():
    assert {
        short_name: (
            gpu.name,
            gpu.total_memory,
            (gpu.major, gpu.minor),
            gpu.multi_processor_count,
            gpu.l2_cache_size,
            gpu.context / MIB,
        )
        for short_name, gpu in PRESETS.items()
    } == EXPECTED
    for gpu in PRESETS.values():
        limits = gpu.max_threads_per_multi_processor, gpu.shared_memory_per_multiprocessor
        assert limits == PER_SM[gpu.major, gpu.minor]
        assert gpu.shared_memory_per_block == 49152


@pytest.mark.parametrize(
    ("capability", "limits"),
    [
        ((6, 0), (2048, 65536)),
        ((6, 1), (2048, 98304)),
        ((8, 7), (1536, 167936)),
        ((12, 1), (1536, 102400)),
    ],
)
def test_the_limits_of_other_gpus_follow_their_compute_capability(capability, limits):
    gpu = GPU("any", "8GiB", capability, 20)
    assert (gpu.max_threads_per_multi_processor, gpu.shared_memory_per_multiprocessor) == limits


def test_every_preset_has_a_source_and_no_two_share_a_spelling():
    tables = tomllib.loads(PRESETS_FILE.read_text())
    assert all(len(table["source"]) > 20 for table in tables.values())
    assert all(("context_messages" in t) == ("context_source" in t) for t in tables.values())
    spellings = [
        re.sub("[ -]", "", spelling.casefold())
        for name, table in tables.items()
        for spelling in (name, *table["aliases"])
    ]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    ("short_name", "mbytes"),  # as deviceQuery and torch round them, beside the bytes
    [
        ("t4", 15110),
        ("v100", 16160),
        ("v100-32gb", 32510),
        ("rtx2080ti", 10986),
        ("a10", 22516),
        ("a40", 45403),
        ("l4", 22518),
        ("l40s", 45373),
        ("rtx3060", 12004),
        ("rtx3060ti", 7972),
        ("rtx3070", 7817),
        ("rtx3090", 24268),
        ("rtxa5000", 24226),
        ("rtxa6000", 48790),
        ("rtx4060ti-16gb", 15948),
        ("rtx4080-super", 16072),
        ("rtx4090", 24081),
        ("rtx5090", 32120),
        ("a100", 81051),
        ("a100-40gb", 40339),
        ("h100", 81090),
        ("gh200", 96768),
    ],
)
def test_bytes_agree_with_the_mbytes_printed_beside_them(short_name, mbytes):
    assert round(PRESETS[short_name].total_memory / MIB) == mbytes


@pytest.mark.parametrize(
    ("short_name", "gib"),  # out-of-memory messages, a device query, logs of TensorFlow
    [
        ("rtx5090", "31.37"),
        ("b200", "178.35"),
        ("b300", "267.69"),
        ("rtxa4000", "15.61"),
        ("l40", "44.40"),
        ("quadro-rtx6000", "23.65"),
        ("quadro-rtx8000", "47.62"),
    ],
)
def test_capacity_reads_as_in_the_messages_that_presets_toml_names(short_name, gib):
    assert f"{PRESETS[short_name].total_memory / GIB:.2f}" == gib


def test_a_gpu_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["t4"].total_memory = 1


@pytest.mark.parametrize("short_name", PRESETS)
def test_a_preset_is_found_by_its_short_and_its_full_name(short_name):
    gpu = PRESETS[short_name]
    assert find_gpu(short_name) is gpu
    assert find_gpu(short_name.upper().replace("-", " ")) is gpu
    assert find_gpu(gpu.name).name == gpu.name
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
        ("RTX 2080 Ti", "rtx2080ti"),
        ("RTX 4060 Ti", "rtx4060ti"),
        ("RTX 4060 Ti 16GB", "rtx4060ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx4060ti"),
        ("A6000", "rtxa6000"),
        ("RTX A6000", "rtxa6000"),
        ("RTX 6000 Ada", "rtx6000ada"),
        ("Quadro RTX 6000", "quadro-rtx6000"),
        ("RTX PRO 6000", "rtxpro6000"),
        ("H100 PCIe", "h100-pcie"),
        ("GH200", "gh200"),
        ("B300", "b300"),
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
        memory=total_memory,
        compute_capability=(8, 0),
        multiprocessors=108,
        threads_per_multiprocessor=2048,
        shared_memory_per_multiprocessor="164KiB",
        shared_memory_per_block="48KiB",
        l2_cache="40MiB",
        context=0,
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("h10", "unknown GPU 'h10' (did you mean h100 or a10?)."),
        ("A100 60GB", "unknown GPU 'A100 60GB' (did you mean a100 or a100-40gb or v100?)."),
        ("RTX 2060", "unknown GPU 'RTX 2060' (did you mean rtx3060 or rtx4060ti or rtx3060ti?)."),
        ("radeon", "unknown GPU 'radeon'."),
        ("", "unknown GPU ''."),
        ("two\nlines", "unknown GPU 'two\\nlines'."),
        ("24PB", "unknown GPU '24PB'."),
        ("24 gigabytes", "unknown GPU '24 gigabytes'."),
        ("9" * 25, f"unknown GPU '{'9' * 25}'."),
        ("x" * 500, f"unknown GPU '{'x' * 99}...."),
        (True, "a GPU is a name, a size, a GPU(...) or a file, not True."),
        (None, "a GPU is a name, a size, a GPU(...) or a file, not None."),
        (24.0, "a GPU is a name, a size, a GPU(...) or a file, not 24.0."),
    ],
)
def test_an_unknown_name_says_how_to_give_any_gpu(spec, problem):
    with pytest.raises(UnknownGPUError) as caught:
        find_gpu(spec)
    assert str(caught.value) == f"{problem} {HOW_TO_NAME_ONE}"
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("0", "a GPU has 2 MiB to 128 TiB of memory, not '0'."),
        ("0GiB", "a GPU has 2 MiB to 128 TiB of memory, not '0GiB'."),
        ("-24GiB", "a GPU has 2 MiB to 128 TiB of memory, not '-24GiB'."),
        ("-4090", "a GPU has 2 MiB to 128 TiB of memory, not '-4090'."),
        ("24", "a GPU has 2 MiB to 128 TiB of memory, not '24' (did you mean 24GiB?)."),
        ("1", "a GPU has 2 MiB to 128 TiB of memory, not '1' (did you mean 1GiB?)."),
        ("9999", "a GPU has 2 MiB to 128 TiB of memory, not '9999' (did you mean 9999GiB?)."),
        ("10000", "a GPU has 2 MiB to 128 TiB of memory, not '10000'."),
        ("129TiB", "a GPU has 2 MiB to 128 TiB of memory, not '129TiB'."),
        (0, "a GPU has 2 MiB to 128 TiB of memory, not 0."),
        (-1, "a GPU has 2 MiB to 128 TiB of memory, not -1."),
        (2 * MIB - 1, "a GPU has 2 MiB to 128 TiB of memory, not 2097151."),
        (2**47 + 1, "a GPU has 2 MiB to 128 TiB of memory, not 140737488355329."),
        (2**99, "a GPU has 2 MiB to 128 TiB of memory, not an int of 100 bits."),
    ],
)
def test_a_size_that_no_gpu_has_gets_one_line(spec, problem):
    with pytest.raises(UnknownGPUError) as caught:
        find_gpu(spec)
    assert str(caught.value) == f"{problem} {A_SIZE}"


def test_an_int_too_long_to_print_gets_the_same_line():
    with pytest.raises(UnknownGPUError, match="not an int of 100000 bits"):
        find_gpu(1 << 99999)


TURING = {
    "name": "My Turing",
    "memory": "24GiB",
    "compute_capability": (7, 5),
    "multiprocessors": 72,
    "threads_per_multiprocessor": 1024,
}


def test_a_described_gpu_is_what_programs_see():
    with simulate(gpu=GPU(**TURING)) as machine:
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.total_memory) == ("My Turing", 24 * GIB)
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability() == (7, 5)
        assert properties.multi_processor_count == 72
        assert properties.max_threads_per_multi_processor == 1024
        assert torch.cuda.mem_get_info() == (24 * GIB, 24 * GIB)
        assert machine.gpus[0].model == GPU(**TURING)


@pytest.mark.parametrize(("processors", "threads"), [(72, 1024), (36, 1024), (72, 2048)])
def test_multiprocessors_and_their_threads_decide_what_a_sum_takes(processors, threads):
    # Reduce.cuh: a full sum of 2**22 floats splits over blocks of 512 threads until the GPU is
    # full; every block leaves one float in the buffer, and there is one semaphore of 4 bytes.
    blocks = processors * threads // 512
    gpu = GPU("any", "24GiB", (7, 5), processors, threads)
    with simulate(gpu):
        x = torch.empty(2**22, device="cuda")
        before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        x.sum()
        taken = torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before
    assert taken == 4 + 4 * blocks + 4


UNKNOWN_CAPABILITY = (
    "compute capability 99.0 is not known: "
    "give threads_per_multiprocessor and shared_memory_per_multiprocessor too"
)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "name is the GPU's name, such as 'Quadro RTX 5000', not ''"),
        ({"memory": "many"}, "memory is a size such as '450MiB', or bytes, not 'many'"),
        ({"memory": 1}, f"a GPU has 2 MiB to 128 TiB of memory, not 1. {A_SIZE}"),
        ({"compute_capability": 7.5}, "compute_capability is two numbers such as (7, 5), not 7.5"),
        (
            {"compute_capability": (7, "5")},
            "compute_capability is two numbers such as (7, 5), not (7, '5')",
        ),
        ({"compute_capability": (99, 0)}, UNKNOWN_CAPABILITY),
        ({"multiprocessors": 0}, "multiprocessors is an int of at least 1, not 0"),
        ({"multiprocessors": "72"}, "multiprocessors is an int of at least 1, not '72'"),
        (
            {"threads_per_multiprocessor": 1},
            "threads_per_multiprocessor is an int of at least 32, not 1",
        ),
        ({"context": -1}, "context is a size such as '450MiB', or bytes, not -1"),
        ({"l2_cache": None}, "l2_cache is a size such as '450MiB', or bytes, not None"),
    ],
)
def test_a_wrong_description_names_what_is_wrong(change, problem):
    with pytest.raises(UsageError) as caught:
        GPU(**(TURING | change))
    assert str(caught.value) == problem


FILE = """
name = "My Turing"
memory = "24GiB"
compute_capability = [7, 5]
multiprocessors = 72
threads_per_multiprocessor = 1024
"""


def test_a_file_describes_a_gpu(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    assert find_gpu(str(file)) == GPU(**TURING)


def test_the_command_takes_a_file(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(FILE)
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.cuda.get_device_name())\n")
    main(["run", "--gpu", str(tmp_path / "mine.toml"), str(script)])
    assert capsys.readouterr().out.startswith("My Turing\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            FILE.replace("name", "nam"),
            "a GPU has no 'nam' (did you mean name?). Its keys are name,",
        ),
        (FILE.replace("7, 5", "7"), "compute_capability is two numbers such as (7, 5), not [7]"),
        ("[gpu]\n" + FILE, "a GPU has no 'gpu'. Its keys are name, memory, compute_capability,"),
        (
            'name = "x"\nmemory = 5',
            "the GPU's compute_capability and multiprocessors must be given",
        ),
    ],
)
def test_a_file_that_describes_none_gets_one_line(tmp_path, text, problem):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        find_gpu(str(file))
    assert str(caught.value).startswith(f"{file}: {problem}")


def test_a_file_that_cannot_be_read_gets_one_line(tmp_path):
    with pytest.raises(UnknownGPUError) as missing:
        find_gpu(str(tmp_path / "none.toml"))
    assert str(missing.value) == (
        f"cannot read the GPU's file {tmp_path / 'none.toml'}: No such file or directory"
    )
    (tmp_path / "bad.toml").write_text("name: yaml")
    with pytest.raises(UsageError, match=r"bad\.toml is not a TOML file: "):
        find_gpu(str(tmp_path / "bad.toml"))


def test_the_description_is_public():
    assert pytorch_memlab.GPU is GPU
    assert "GPU" in pytorch_memlab.__all__
