"""The ranks of a job that differ, one of each kind.

Note [Ranks that differ]
The stages of a pipeline differ, so all of them run, side by side: Note [Ranks side by side]. Along
the other dimensions of a mesh, ranks run the same program with shards of the same tensors. Shards
get smaller with the rank, or stay alike. So the first and the last rank of each dimension run; if
these need the same, so do those between, and otherwise the ranks in the middle run too, until it is
known where they begin to differ.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from .._common.patching.patches import Patches
from .._common.torch.optimizer_steps import ProgramDone
from ..errors import MemlabError
from ..history.holders import peak_holders
from ..simulation.inspect import GPU, ExpertGroup, peers
from .change import Change
from .expert_load import ExpertFacts, ExpertLoad, LoadOnRanks, checked_loads
from .mesh import Mesh
from .pipeline_changes import changes_for
from .pipeline_facts import PipelineFacts, PipelineWatch
from .target import Target
from .trial import Settings, Trial, TrialRequest
from .trial_run import run_all
from .verdict import Verdict, requests_of, verdict

_PORT: Final = "29500"  # that of torchrun; nothing listens there


class RankOfJob(Change):
    """The program runs as one rank of a job, beside others."""

    def __init__(
        self, rank: int, world_size: int, per_node: int, address: str, store: tuple[int, str]
    ) -> None:
        self.name = f"rank {rank}"
        self.rank = rank
        self._environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank % per_node),
            "LOCAL_WORLD_SIZE": str(min(per_node, world_size)),
            "GROUP_RANK": str(rank // per_node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _PORT,
            peers.VARIABLE: address,
        }
        self._store = store
        self._watch: PipelineWatch | None = None

    def environment(self) -> Mapping[str, str]:
        """As ``torchrun`` sets it."""
        return self._environment

    @contextmanager
    def applied(self) -> Iterator[None]:
        self._watch = PipelineWatch()
        with Patches() as patches:
            self._watch.watch(patches)
            try:
                yield
            except ProgramDone:
                raise
            except BaseException as error:
                if not isinstance(error, SystemExit) or error.code not in (None, 0):
                    peers.tell_own_end(*self._store, self.rank, f"{type(error).__name__}: {error}")
                raise

    def finding(self) -> PipelineFacts:
        return PipelineFacts() if self._watch is None else self._watch.facts()


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """The verdict on one rank that ran."""

    rank: int
    verdict: Verdict
    facts: PipelineFacts
    categories: Mapping[str, int]  # bytes by category at the peak
    experts: ExpertFacts = field(default_factory=ExpertFacts)

    @property
    def needs(self) -> tuple[int, int]:
        return self.verdict.reserved_peak, self.verdict.active_peak


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that are alike, of which one ran."""

    place: tuple[tuple[str, int, int], ...]  # names of dimensions, with the first and the last
    ranks: tuple[int, ...]
    shown: RankVerdict


@dataclass(frozen=True, slots=True)
class TriedOnRanks:
    """The effect of a change on the fullest rank."""

    name: str
    peak: int | None  # reserved bytes of the rank that is fullest then; None if the program fails
    rank: int = 0


@dataclass(eq=False)
class RankSearch:
    """Finds the ranks of a job that differ, and runs one of each kind."""

    target: Target
    name: str  # of the GPU
    gpu: GPU
    mesh: Mesh
    settings: Settings
    only: tuple[int, ...] | None = None  # the ranks to run; None for all that differ
    loads: tuple[float, ...] = ()  # of experts; otherwise tokens choose them evenly
    tries: bool = True  # whether changes of a pipeline are tried
    ended: Callable[[int], object] = lambda _runs: None
    check_side_by_side: Callable[[int], object] = lambda _ranks: None  # of where they run
    runs: int = 0
    classes: list[RankClass] = field(default_factory=list)
    tried: list[TriedOnRanks] = field(default_factory=list)
    uneven: tuple[str, ...] = ()  # dimensions along which ranks differ
    alike: tuple[str, ...] = ()  # those along which the first and the last rank are alike
    failed: RankVerdict | None = None  # the rank whose error ended the search
    failed_with: float | None = (
        None  # the load of experts with which it failed; None for an even one
    )
    by_load: list[LoadOnRanks] = field(default_factory=list)
    no_loads: str = ""  # why the load of experts is no question; empty if it is one

    def __post_init__(self) -> None:
        self._store = peers.make_store()
        self._lines: dict[tuple[int, ...], list[RankVerdict]] = {}
        self._all: dict[int, RankVerdict] = {}

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Of the ranks that ran, those with loads of experts last."""
        even = (self._all[rank].verdict for rank in sorted(self._all))
        return (*even, *(loaded.verdict for loaded in self.by_load if loaded.load != 1.0))

    @property
    def ranks_run(self) -> int:
        """The number of ranks that ran, each counted once."""
        return len(self._all)

    @property
    def exchanges_tokens(self) -> bool:
        """True if tokens went to experts of other ranks."""
        ranks = self._all.values()
        return any(rank.experts.choices and self._experts_of(rank) is not None for rank in ranks)

    @property
    def fullest(self) -> RankClass | None:
        """The ranks whose allocator leaves least: what NCCL takes no change of layers moves."""
        return min(self.classes, key=lambda class_: class_.shown.verdict.room, default=None)

    @property
    def emptiest(self) -> RankClass | None:
        return max(self.classes, key=lambda class_: class_.shown.verdict.room, default=None)

    def run(self) -> None:
        """Run them, and then those that are fullest with each load of experts."""
        self._run_kinds()
        if self.loads and not self._has_failed():
            self._run_loads()
        if self.tries and self.only is None and not self._has_failed() and not self.no_loads:
            self._try()

    def _run_kinds(self) -> None:
        if self.only is not None:
            verdicts = self._run_beside(self.only)
            self.classes = [
                RankClass(
                    tuple((n, i, i) for n, i in self.mesh.place(judged.rank).items()),
                    (judged.rank,),
                    judged,
                )
                for judged in verdicts
            ]
            return
        first = self._line({})
        if self._has_failed():
            self._show({}, {}, first)
            return
        classes: dict[str, list[range]] = {}
        for name in self.mesh.replicas:
            classes[name] = self._classes_along(name)
            if self._has_failed():
                return
        self.uneven = tuple(name for name, ranges in classes.items() if len(ranges) > 1)
        self.alike = tuple(name for name, ranges in classes.items() if len(ranges) == 1)
        self._show(classes, {}, first)
        for name in self.uneven:
            for others in classes[name][1:]:
                self._show(classes, {name: others}, self._line({name: others[0]}))

    def _classes_along(self, name: str) -> list[range]:
        """The places of a dimension, those that are alike together."""

        def between(first: int, last: int) -> Iterator[int]:
            """The places after the first one at which others begin."""
            if self._has_failed() or self._is_alike({name: first}, {name: last}):
                return
            if last - first == 1:
                yield last
                return
            middle = (first + last) // 2
            yield from between(first, middle)
            yield from between(middle, last)

        size = self.mesh.sizes[name]
        begins = [0, *between(0, size - 1), size]
        return [range(a, b) for a, b in itertools.pairwise(begins)]

    def _has_failed(self) -> bool:
        return self.failed is not None

    def _is_alike(self, place: Mapping[str, int], other: Mapping[str, int]) -> bool:
        """True if all stages need the same at two places."""
        pairs = zip(self._line(place), self._line(other), strict=False)
        return all(a.needs == b.needs for a, b in pairs)

    def _line(self, place: Mapping[str, int]) -> list[RankVerdict]:
        ranks = tuple(self.mesh.line(place))
        if ranks not in self._lines:
            self._lines[ranks] = self._run_beside(ranks)
        return self._lines[ranks]

    def _show(
        self,
        classes: Mapping[str, Sequence[range]],
        chosen: Mapping[str, range],
        line: Sequence[RankVerdict],
    ) -> None:
        """Add the ranks that these verdicts stand for."""
        ranges = {
            name: chosen.get(name) or (classes[name][0] if name in classes else range(1))
            for name in self.mesh.sizes
            if name not in self.mesh.stages
        }
        for judged in line:
            stage = self.mesh.place(judged.rank)
            at = {
                **ranges,
                **{name: range(stage[name], stage[name] + 1) for name in self.mesh.stages},
            }
            places = itertools.product(*(at[name] for name in self.mesh.sizes))
            ranks = [self.mesh.rank(dict(zip(self.mesh.sizes, p, strict=True))) for p in places]
            names = (*self.mesh.stages, *self.uneven)
            span = tuple((name, at[name][0], at[name][-1]) for name in names)
            self.classes.append(RankClass(span, tuple(ranks), judged))

    def _run_beside(
        self,
        ranks: Sequence[int],
        changes: Sequence[Change] = (),
        loads: Mapping[int, ExpertLoad] | None = None,
    ) -> list[RankVerdict]:
        """Run some ranks at the same time, each in a process."""
        is_changed = bool(changes or loads)
        self.check_side_by_side(len(ranks))
        prefix = str(self.runs)
        # Changed ranks send other messages.
        before = () if is_changed else tuple(self._all)
        if not is_changed:
            prefix = "unchanged"
        port: int = self._store.port
        address = peers.address(port, prefix, ranks, before)
        requests = []
        for rank in ranks:
            job = RankOfJob(
                rank, self.mesh.world_size, self.settings.num_gpus, address, (port, prefix)
            )
            load = (loads or {}).get(rank) or ExpertLoad(is_given=bool(self.loads))
            file = f"rank{rank}" + f"-{self.runs}" * is_changed
            requests.append(
                TrialRequest(self.target, self.gpu, self.settings, (job, load, *changes), file)
            )
        judged_ranks: dict[int, RankVerdict] = {}
        for index, trial in run_all(requests, len(requests)):
            rank = ranks[index]
            reason = trial.error.strip().splitlines()[-1:] if trial.failed else []
            peers.tell_end(self._store, prefix, rank, "".join(reason))
            judged_ranks[rank] = self._judged(rank, trial)
            self.runs += 1
            self.ended(self.runs)
        if not is_changed:
            self._all.update(judged_ranks)
            self.failed = self.failed or _first_failed(judged_ranks.values())
        return [judged_ranks[rank] for rank in ranks]

    def _judged(self, rank: int, trial: Trial) -> RankVerdict:
        judged, findings = verdict(trial, self.gpu, self.name, self.settings), trial.findings
        return RankVerdict(
            rank,
            judged,
            next((seen for seen in findings if isinstance(seen, PipelineFacts)), PipelineFacts()),
            _categories(judged),
            next((seen for seen in findings if isinstance(seen, ExpertFacts)), ExpertFacts()),
        )

    def _fullest_line(self, fullest: RankClass) -> Sequence[int]:
        """The fullest rank, and those that run beside it."""
        if self.only is not None:
            return self.only
        place = self.mesh.place(fullest.shown.rank)
        return self.mesh.line({n: i for n, i in place.items() if n not in self.mesh.stages})

    def _experts_of(self, rank: RankVerdict) -> ExpertGroup | None:
        """The ranks that share the experts, as the mesh says or an all-to-all showed it."""
        for name in self.mesh.experts:
            return ExpertGroup(self.mesh.place(rank.rank)[name], self.mesh.sizes[name])
        group = rank.experts.exchanging
        return group if group is not None and group.size > 1 else None

    def _run_loads(self) -> None:
        """Run the line of the fullest rank with each load of experts."""
        fullest = self.fullest
        if fullest is None:
            return
        ranks = self._fullest_line(fullest)
        even_ranks = [self._all[rank] for rank in ranks]
        choosing = [judged for judged in even_ranks if judged.experts.choices]
        groups = {judged.rank: group for judged in choosing if (group := self._experts_of(judged))}
        if not choosing:
            self.no_loads = "no tokens choose experts: no topk, argmax or max of scores ran"
            return
        if not groups:
            self.no_loads = (
                "which experts a rank has is not known: no all_to_all_single with splits ran, and"
                " --mesh has no ep"
            )
            return
        checked_loads(
            self.loads, groups, {judged.rank: judged.experts.choices for judged in choosing}
        )
        changes_something = False
        for load in self.loads:
            verdicts = even_ranks
            if load != 1.0:
                changed = {rank: ExpertLoad(load, group) for rank, group in groups.items()}
                verdicts = self._run_beside(ranks, loads=changed)
                self.failed = _first_failed(verdicts)
                if self.failed is not None:
                    self.failed_with = load
                    return
            before = [requests_of(judged.verdict.trial) for judged in even_ranks]
            after = [requests_of(judged.verdict.trial) for judged in verdicts]
            changes_something = changes_something or after != before
            fullest_rank = min(verdicts, key=lambda judged: judged.verdict.room)
            self.by_load.append(LoadOnRanks(load, fullest_rank.rank, fullest_rank.verdict))
        if not changes_something and self.loads != (1.0,):
            self.no_loads = "the load of experts changes nothing: all loads need the same"

    def _try(self) -> None:
        """Run the line of the fullest rank with each change that its pipeline may have."""
        fullest = self.fullest
        if fullest is None or not fullest.shown.facts.schedule:
            return
        ranks = self._fullest_line(fullest)
        for change in changes_for(fullest.shown.facts):
            verdicts = self._run_beside(ranks, [change])
            if any(judged.verdict.trial.failed for judged in verdicts):
                self.tried.append(TriedOnRanks(change.name, None))
                continue
            most = max(verdicts, key=lambda judged: judged.verdict.reserved_peak)
            self.tried.append(TriedOnRanks(change.name, most.verdict.reserved_peak, most.rank))
        self.tried.sort(key=lambda change: math.inf if change.peak is None else change.peak)


def _first_failed(verdicts: Iterable[RankVerdict]) -> RankVerdict | None:
    """A rank that failed by itself, before one that waited for another."""
    failed = [judged for judged in verdicts if judged.verdict.trial.failed]
    return min(
        failed, key=lambda judged: "RankHasEndedError" in judged.verdict.trial.error, default=None
    )


def _categories(judged: Verdict) -> Mapping[str, int]:
    """The bytes of each category at the peak of the GPU with least memory left."""
    history = judged.trial.history
    if history is None or not history.devices:
        return {}
    try:
        shares = peak_holders(history, judged.device).by_category()
    except MemlabError:
        return {}
    return Counter({share.name: share.size for share in shares})
