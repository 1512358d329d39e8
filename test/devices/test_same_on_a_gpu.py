"""One program, profiled with what the simulation knows, and as on a real GPU."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.blind import blind

from pytorch_memlab import LineProfiler, MemReporter, simulate
from pytorch_memlab.devices.failed_request import observe
from pytorch_memlab.out_of_memory import report_of

COLUMNS = ("active_bytes.all.peak", "reserved_bytes.all.peak", "delta", "hits")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)
        self.norm = torch.nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        return self.norm(x + self.down(hidden))


def train(steps: int, batch: int) -> Any:
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        x = torch.randn(batch, 256, device="cuda")
        out = model(x)
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return model, optimizer, losses


def with_and_without(work: Any) -> list[Any]:
    """The results of some work on a simulated GPU, and on one that is taken for real."""
    found = []
    for is_hidden in (False, True):
        with blind() if is_hidden else nullcontext(), simulate("1GiB"):
            found.append(work())
    return found


@pytest.mark.knows_simulation("the note that names the simulated GPU")
def test_tables_and_peak_holders_are_equal() -> None:
    def profiled() -> tuple[Any, ...]:
        with LineProfiler(train, Net.forward, history=True) as profiler:
            kept = train(3, 64)
        report = profiler.display(columns=COLUMNS).report
        tables = {table.function.qual_name: table.rows for table in report.tables}
        text = str(profiler.display(columns=COLUMNS))
        holders = profiler.peak_holders()
        lines = [(row.line, row.function, row.size) for row in holders.by_line()]
        peak = holders.peak
        del kept
        return tables, text, lines, (peak.active, peak.reserved, len(peak.blocks))

    known, real = with_and_without(profiled)
    assert real[0] == known[0]
    marked, note = known[1].rsplit("\n\n", 1)
    assert real[1].splitlines() == re.sub(r"(?<=\d)[?~*]", " ", marked).rstrip().splitlines()
    assert note.startswith("simulated GPU:")
    assert real[2:] == known[2:]
    assert len(real[2]) > 5


def test_reports_of_tensors_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    def reported() -> str:
        model, optimizer, losses = train(2, 64)
        MemReporter(model, optimizer).report(verbose=True)
        del model, optimizer, losses
        return capsys.readouterr().out

    known, real = (text.splitlines() for text in with_and_without(reported))
    driver = re.compile("CUDA context|other processes|in use by the driver|not by this process")
    assert [line for line in real if not driver.search(line)] == [
        line.replace(", simulated", "") for line in known if not driver.search(line)
    ]
    assert any("AdamW" in line or "exp_avg" in line for line in real)


def test_facts_of_an_out_of_memory_error_are_equal() -> None:
    def failed() -> Any:
        observe()
        model, optimizer, losses = train(2, 64)
        rest = torch.empty(880 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            model(torch.ones(40_000, 256, device="cuda"))
        report = report_of(caught.value)
        del model, optimizer, losses, rest, caught
        return report.facts

    known, real = with_and_without(failed)
    assert not real.missing
    assert real.model == known.model
    assert real.optimizers == known.optimizers
    assert real.groups == known.groups
    # A traceback ends where the error is caught.
    places = [[frame.place for frame in one.frames] for one in (known, real)]
    assert places[1] == places[0][: len(places[1])]
    assert places[1][0].function == "forward"
    unknown = {"context": None, "others": None, "free_blocks": (), "text": ""}
    requests = [
        replace(one.request, **unknown, requested=one.request.segment) for one in (known, real)
    ]
    assert requests[1] == requests[0]
    by_category: list[dict[str, int]] = [{}, {}]
    for sizes, one in zip(by_category, (known, real), strict=True):
        for block in one.blocks:
            name = block.category.value
            sizes[name] = sizes.get(name, 0) + block.size
    assert by_category[1] == by_category[0]
