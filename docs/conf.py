"""Sphinx: the documentation. `make docs` builds it into build/docs."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from command_reference import command_sections  # noqa: E402

import pytorch_memlab  # noqa: E402 - from this clone
from pytorch_memlab.simulation.hardware import presets  # noqa: E402
from pytorch_memlab.simulation.ops.core.op_info import ops_without_workspace  # noqa: E402
from pytorch_memlab.simulation.ops.core.registry import Provenance, provenances  # noqa: E402

project = "pytorch_memlab"
release = pytorch_memlab.__version__
html_title = "pytorch_memlab"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_generated"]
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 3
html_theme = "furo"
smartquotes = False  # what is quoted is typed
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_use_rtype = False

GENERATED = Path(__file__).parent / "_generated"


def gpu_rows() -> Iterator[str]:
    """The rows of the table of GPUs."""
    file = Path(presets.__file__).with_name("presets.toml")
    for name in tomllib.loads(file.read_text(encoding="utf-8")):
        gpu = presets.find_gpu(name)
        yield (
            f"| `{name}` | {gpu.name} | {gpu.total_memory / 2**30:.2f} GiB "
            f"| {gpu.multi_processor_count} | {gpu.major}.{gpu.minor} "
            f"| {gpu.context / 2**20:.0f} MiB |\n"
        )


def op_rows() -> Iterator[str]:
    """The rows of the table of ops with a memory model."""
    for name, provenance, source in provenances():
        files = ", ".join(f"`{file}`" for file in source.split(", "))
        yield f"| `{name}` | {provenance.value} | {files} |\n"


def op_summary() -> str:
    """The number of ops with each provenance, and the ops without workspace."""
    counts = Counter(provenance.value for _, provenance, _ in provenances())
    lines = [f"| {one.value} | {counts[one.value]} |\n" for one in Provenance]
    plain = ", ".join(f"`{name}`" for name in sorted(ops_without_workspace()))
    return (
        "| provenance | ops |\n|---|---|\n" + "".join(lines) + "\n## Ops without workspace\n\n"
        "The CUDA kernels of these ops, and of ops that PyTorch tags as pointwise, allocate their"
        f" outputs only:\n\n{plain}\n"
    )


def write_generated_pages() -> None:
    """Write the parts of pages that come from the code."""
    GENERATED.mkdir(exist_ok=True)
    (GENERATED / "commands.md").write_text("".join(command_sections()), encoding="utf-8")
    head = "| name | GPU | memory | multiprocessors | compute capability | CUDA context |\n"
    table = head + "|---|---|---|---|---|---|\n" + "".join(gpu_rows())
    (GENERATED / "gpus.md").write_text(table, encoding="utf-8")
    head = "| op | memory | source |\n|---|---|---|\n"
    (GENERATED / "ops.md").write_text(head + "".join(op_rows()), encoding="utf-8")
    (GENERATED / "ops_summary.md").write_text(op_summary(), encoding="utf-8")


write_generated_pages()
