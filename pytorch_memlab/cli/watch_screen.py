"""The screen of ``watch``: ranks, categories and lines of a job that goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import ClassVar, Final

from rich.markup import escape
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from .._common.text.prose_size import prose_size
from .._common.text.quoted import visible
from ..jobs.watching import (
    WatchedLine,
    WatchedProfile,
    WatchedRank,
    highest_rank,
    watched_profile,
    watched_ranks,
)

ORDERS: Final[dict[str, Callable[[WatchedLine], int | float]]] = {
    "peak": lambda line: line.peak,
    "kept": lambda line: line.entry.kept,
    "delta": lambda line: line.entry.delta,
    "hits": lambda line: line.entry.hits,
    "seconds": lambda line: line.entry.time,
}
"""What lines are sorted by, the highest first."""

_WHERE: Final = 24
"""Characters of a line's place, and of the line at which a rank is."""


class LineScreen(ModalScreen[None]):
    """A line that was opened, with its neighbours and all that was measured of it."""

    CSS = """
    LineScreen { align: center middle; }
    #line { width: 90%; max-height: 80%; border: round $accent; padding: 1 2; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "close"),
    ]

    def __init__(self, line: WatchedLine, source: Sequence[tuple[int, str]]) -> None:
        super().__init__()
        self._line = line
        self._source = source

    def compose(self) -> ComposeResult:
        yield Static(self.text(), id="line")

    def text(self) -> str:
        """The place, the measured values, and the source around the line."""
        line, entry = self._line, self._line.entry
        values = (
            f"peak {prose_size(line.peak)}, kept {prose_size(entry.kept)},"
            f" freed {prose_size(entry.freed)} a hit, {entry.hits} hits, {entry.time:.2f} s"
        )
        rows = [line.name, values, ""]
        for number, text in self._source:
            mark = ">" if number == entry.line else " "
            rows.append(f"{mark} {number:>5}  {visible(text)}")
        return escape("\n".join(rows))


class WatchApp(App[None]):
    """Shows a folder of a job, and reads it again every ``every`` seconds."""

    TITLE = "pytorch-memlab watch"
    ENABLE_COMMAND_PALETTE = False  # its key would hide others at 80 columns
    CSS = """
    #headline { height: auto; padding: 0 1; }
    #upper { height: 40%; }
    #ranks { width: 2fr; }
    #categories { width: 1fr; padding: 0 1; }
    #lines { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort lines"),
        Binding("h", "highest", "highest rank"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, folder: str, called: str, every: float, refresh: Callable[[], None]) -> None:
        super().__init__()
        self._folder = folder
        self._called = called
        self._every = every
        self._ask = refresh
        self._order = "peak"
        self._ranks: list[WatchedRank] = []
        self._rank: int | None = None  # the one that was chosen; None for that of the highest peak
        self._read: WatchedRank | None = None  # whose profile this is
        self._profile: WatchedProfile | None = None
        self._lines: list[WatchedLine] = []
        self.problem = ""

    def compose(self) -> ComposeResult:
        yield Static(id="headline")
        with Horizontal(id="upper"):
            yield DataTable(id="ranks", cursor_type="row")
            yield Static(id="categories")
        yield DataTable(id="lines", cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        """Read the folder now, and from time to time."""
        ranks = self.query_one("#ranks", DataTable)
        ranks.add_columns("rank", "peak", "headroom", "state", "seconds ago", "line")
        self.query_one("#lines", DataTable).focus()
        self.read_again()
        self.set_interval(self._every, self.read_again)

    def read_again(self) -> None:
        """Read the files of the ranks, and show them."""
        try:
            self._ask()
            self._ranks = watched_ranks(self._folder, datetime.now(UTC))
            self.problem = ""
        except Exception as error:  # the view stays: the next reading may succeed
            self.problem = visible(str(error))
        chosen = self._chosen()
        if chosen is None:
            self._read = self._profile = None
        elif self._read is None or chosen.digest != self._read.digest:
            profile = watched_profile(chosen)
            if profile is not None:  # else its file cannot be read now
                self._read, self._profile = chosen, profile
        self._show_headline(chosen)
        self._show_ranks(chosen)
        self._show_categories()
        self._show_lines()

    def _chosen(self) -> WatchedRank | None:
        if not self._ranks:
            return None
        own = [rank for rank in self._ranks if rank.digest.run.rank == self._rank]
        return own[0] if own else self._ranks[highest_rank(self._ranks)]

    def _show_headline(self, chosen: WatchedRank | None) -> None:
        text = f"{self._called}: no rank has written its file so far"
        if chosen is not None:
            digest = chosen.digest
            count, capacity = len(self._ranks), prose_size(digest.capacity)
            parts = [
                f"{self._called}: {count} rank" + "s" * (count != 1),
                f"rank {chosen.name}: peak {prose_size(digest.active)} of {capacity}",
                f"headroom {prose_size(digest.headroom)}",
            ]
            if self._profile is not None and self._profile.growth:
                rise = prose_size(self._profile.rise)
                parts.append(f"grows by {rise} an iteration at {self._profile.growth}")
            text = ", ".join(parts)
        self.query_one("#headline", Static).update(escape(self.problem or visible(text)))

    def _show_ranks(self, chosen: WatchedRank | None) -> None:
        table = self.query_one("#ranks", DataTable)
        with self.prevent(DataTable.RowSelected, DataTable.RowHighlighted):
            table.clear()
            for rank in self._ranks:
                digest = rank.digest
                table.add_row(
                    *_cells(
                        rank.name,
                        prose_size(digest.active),
                        prose_size(digest.headroom),
                        rank.state,
                        f"{rank.age:.0f}",
                        digest.run.last_line[-_WHERE:],
                    )
                )
            if chosen is not None:
                table.move_cursor(row=self._ranks.index(chosen))

    def _show_categories(self) -> None:
        held = () if self._profile is None else self._profile.categories
        lines = [f"{prose_size(size):>10}  {name}" for name, size in held if size]
        self.query_one("#categories", Static).update(escape("\n".join(["at the peak", *lines])))

    def _show_lines(self) -> None:
        table = self.query_one("#lines", DataTable)
        place = table.cursor_row
        table.clear(columns=True)
        heads = [f"{name} v" if name == self._order else name for name in ORDERS]
        table.add_columns(*heads, "line", "")
        lines = () if self._profile is None else self._profile.lines
        order = ORDERS[self._order]
        # Of lines with the same peak, the one that adds to it comes first.
        self._lines = sorted(lines, key=lambda line: (order(line), line.entry.delta), reverse=True)
        for line in self._lines:
            entry = line.entry
            sizes = [prose_size(size) for size in (line.peak, entry.kept, entry.delta)]
            values = [*sizes, str(entry.hits), f"{entry.time:.2f}"]
            table.add_row(*_cells(*values, line.name[-_WHERE:], line.source))
        table.move_cursor(row=min(place, max(len(self._lines) - 1, 0)))

    def action_sort(self) -> None:
        """Sort by the next column."""
        names = list(ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self._show_lines()

    def action_highest(self) -> None:
        """Follow the rank with the highest peak."""
        self._rank = None
        self.read_again()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the rank that was chosen, or open the line."""
        if event.data_table.id == "ranks":
            self._rank = self._ranks[event.cursor_row].digest.run.rank
            self.read_again()
        elif self._profile is not None and self._lines:
            line = self._lines[event.cursor_row]
            self.push_screen(LineScreen(line, self._profile.around(line)))


def _cells(*texts: str) -> list[Text]:
    """Cells in which nothing is taken for markup."""
    return [Text(visible(text), no_wrap=True) for text in texts]
