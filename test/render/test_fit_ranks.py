"""The text of the ranks of a job that differ."""

from __future__ import annotations

import pytest

from pytorch_memlab.fitting.mesh import Mesh
from pytorch_memlab.fitting.pipeline_facts import PipelineFacts
from pytorch_memlab.fitting.rank_classes import RankClass, RankSearch, RankVerdict
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Ending, Settings, Trial
from pytorch_memlab.fitting.verdict import Verdict
from pytorch_memlab.render import fit_ranks
from pytorch_memlab.simulation.inspect import find_gpu

MIB = 2**20
GPU = find_gpu("24GiB")


def rank_class(stage: int, peak: int) -> RankClass:
    verdict = Verdict(
        name="24GiB",
        gpu=GPU,
        trial=Trial(gpu=GPU, ending=Ending.FINISHED),
        fits=True,
        device=0,
        reserved_peak=peak,
        active_peak=peak,
        taken=0,
    )
    facts = PipelineFacts("Schedule1F1B", 4, (stage,), 4 - stage)
    shown = RankVerdict(stage, verdict, facts, {"parameters": peak})
    return RankClass((("pp", stage, stage),), (stage,), shown)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_layers_may_move_where_there_is_more_than_one_stage(stages: int) -> None:
    target, mesh = ProgramTarget("train.py"), Mesh({"pp": stages})
    search = RankSearch(target, "24GiB", GPU, mesh, Settings())
    search.classes = [rank_class(stage, (300 - 100 * stage) * MIB) for stage in range(stages)]
    advice = (
        f"not tried: layers that hold {50 * (stages - 1)}.0 MiB moved from pp 0 to"
        f" pp {stages - 1} would make the two alike"
    )
    found = " ".join(fit_ranks.text(search).split())
    assert ("not tried:" in found) == (stages > 1)
    assert (advice in found) == (stages > 1)
