"""Frames of PyTorch's memory history in files that Inductor wrote."""

from __future__ import annotations

from pathlib import Path

from pytorch_memlab.history.generated_code import named
from pytorch_memlab.history.model import Frame

WRAPPER = """
    def call(self, args):
        arg0_1, = args
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
            # Topologically Sorted Source Nodes: [y], Original ATen: [aten.sin]
            raw_stream0 = get_raw_stream(0)
            triton_poi_fused_sin_0.run(arg0_1, buf0, 64, stream=raw_stream0)
            buf1 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
            # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.sin, aten.mm]
            extern_kernels.mm(buf0, arg0_1, out=buf1)
            del buf0
        return (buf1, )
"""


def test_a_frame_of_generated_code_has_the_name_of_its_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "torchinductor_me" / "ab"
    folder.mkdir(parents=True)
    file = folder / "cabcdefgh234.py"
    file.write_text(WRAPPER)
    frames = [named(Frame(str(file), line, "call")) for line in (5, 9, 12)]
    assert frames == [
        Frame("", 0, "compiled code: triton_poi_fused_sin_0 of y"),
        Frame("", 0, "compiled code: extern_kernels.mm of y, z"),
        Frame("", 0, "compiled code"),
    ]


def test_a_file_that_is_gone_is_compiled_code_and_other_files_stay() -> None:
    gone = Frame("/tmp/torchinductor_you/xx/cxxabc.py", 102, "call")
    assert named(gone) == Frame("", 0, "compiled code")
    own = Frame("/home/me/model.py", 3, "call")
    assert named(own) is own
