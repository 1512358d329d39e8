"""Refuse words that the glossary replaces, in documents, texts of the code, and names.

A variable of the package says what it holds: its name is none of `VAGUE`.

`make lint` runs it. A folder of the code may have as many as `scripts/plain_words.toml` says: the
numbers only become smaller (`--lower` writes them).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
ALLOWED: Final = ROOT / "scripts" / "plain_words.toml"

WORDS: Final = {
    "anew": "again",
    "as there": "a complete sentence",
    "at hand": "'near', or nothing",
    "besides": "'and' or 'with'",
    "let go": "'release'",
    "likewise": "'also', or repeat it",
    "meanwhile": "'while'",
    "nobody": "a subject",
    "of its own": "'own', or nothing",
    "somebody": "a subject",
    "whoever": "a subject",
}
"""Words in sentences, and what to write in their place."""

JARGON: Final = {
    "lap": "restart",
    "ledger": "peak tracker",
    "surprises": "mismatches",
}
"""Private words in sentences and in names, and the words of the field."""

NAMES: Final = JARGON | {
    "at_rest": "unchanged",
    "hand_out": "alloc_found_block",
    "host_results": "cpu_outputs",
    "launch_config": "reduce_config",
    "let_go": "release",
    "making_on": "device_override",
    "missing_shapes": "missing_meta",
    "newcomers": "newly_used",
    "pass_by": "alloc_and_free",
    "resting": "unchanged",
    "shape_rules": "data_dependent_ops",
    "taken_memory": "memory_overhead",
    "traits": "op_info",
    "uncovered": "unsupported",
    "unwinding": "traceback_frames",
    "values_read": "data_dependent_reads",
}
"""Parts of names, and those of the glossary."""

VAGUE: Final = frozenset({"each", "found", "given", "known", "one", "shown"})
"""Names of variables of the package that do not say what these hold."""

OPENINGS: Final = ("How", "What", "Where", "Whether", "Which")
"""First words of docstrings that are no statement."""

_WORD: Final = re.compile(rf"\b(?:({'|'.join(WORDS)})|({'|'.join(JARGON)})s?)\b", re.IGNORECASE)
_PART: Final = re.compile(rf"(?:^|_)({'|'.join(NAMES)})s?(?=_|$)")
_CODE: Final = re.compile(
    r"^(```|~~~).*?^\1$|`[^`\n]*`|<svg.*?</svg>|\]\([^)]*\)", re.DOTALL | re.MULTILINE
)


class Found(NamedTuple):
    """A word that is refused: its line, and what to write in its place."""

    line: int
    problem: str


def words_in(text: str, line: int = 1) -> Iterator[Found]:
    """The refused words of a text that begins in a line."""
    for found in _WORD.finditer(text):
        sentence, name = (part and part.lower() for part in found.groups())
        instead = WORDS[sentence] if sentence else repr(JARGON[name])
        line_of_word = line + text.count("\n", 0, found.start())
        yield Found(line_of_word, f"{found[0].lower()!r}: write {instead}")


def in_document(text: str) -> list[Found]:
    """The refused words of a Markdown document, without its code."""
    return list(words_in(_CODE.sub(lambda code: "\n" * code[0].count("\n"), text)))


def in_program(source: str) -> list[Found]:
    """The refused words of strings, comments and names, and docstrings that are no statement."""
    found: list[Found] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found += words_in(token.string, token.start[0])
        elif token.type == tokenize.NAME and (part := _PART.search(_snake_case(token.string))):
            found.append(Found(token.start[0], f"name {token.string}: write {NAMES[part[1]]!r}"))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += words_in(node.value, node.lineno)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").split(maxsplit=1)[:1]
            if first and first[0].rstrip(":,") in OPENINGS:
                line = node.body[0].lineno
                found.append(
                    Found(line, f"a docstring begins with '{first[0]}': write a statement")
                )
    return sorted(found)


def vague_variables(source: str) -> list[Found]:
    """The variables and parameters that do not say what they hold; fields of classes may."""
    tree = ast.parse(source)
    fields = {
        statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign | ast.Assign)
    }
    variables = []
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=str() as name):
                variables.append((node.lineno, name))
            case ast.Name(id=name, ctx=ast.Store()) if node not in fields:
                variables.append((node.lineno, name))
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                variables.append((node.lineno, name))
            case ast.ExceptHandler(name=str() as name):
                variables.append((node.lineno, name))
    return [
        Found(line, f"variable {name}: say what it holds")
        for line, name in sorted(variables)
        if name in VAGUE
    ]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def group_of(path: Path) -> str:
    """The folder whose number counts a file; empty for files that may have none."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "pytorch_memlab" and len(parts) > 2:
        return "/".join(parts[: 3 if parts[1] == "simulation" and len(parts) > 3 else 2])
    return parts[0] if parts[0] == "test" else ""


def files() -> Iterator[Path]:
    """Documents and programs, without what is generated and without this list of words."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in (
        ".github",
        "benchmarks",
        "docs",
        "examples",
        "pytorch_memlab",
        "scripts",
        "test",
    ):
        for path in sorted((ROOT / folder).rglob("*")):
            is_own = path.suffix in (".md", ".py") and "_generated" not in path.parts
            if is_own and path.name not in ("plain_words.py", "test_plain_words.py"):
                yield path


def found_in(paths: Iterable[Path]) -> dict[Path, list[Found]]:
    """The refused words of files that have any."""
    found = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found[path] = in_document(text) if path.suffix == ".md" else in_program(text)
        if path.suffix == ".py" and "pytorch_memlab" in path.relative_to(ROOT).parts[:1]:
            found[path] += vague_variables(text)
    return {path: problems for path, problems in found.items() if problems}


def main() -> int:
    """Show what is refused; 1 if a folder has more than it may have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="write the smaller numbers")
    parser.add_argument("folder", nargs="*", help="show all of these folders")
    options = parser.parse_args()
    found = found_in(files())
    counts: Counter[str] = Counter()
    for path, problems in found.items():
        counts[group_of(path)] += len(problems)
    allowed: dict[str, int] = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    if options.lower:
        write_allowed({group: min(counts[group], most) for group, most in allowed.items()})
        return 0
    too_many = {group for group, count in counts.items() if count > allowed.get(group, 0)}
    for path, problems in found.items():
        group = group_of(path)
        if group in too_many or group in options.folder:
            for problem in problems:
                print(f"{path.relative_to(ROOT)}:{problem.line}: {problem.problem}")
    for group in sorted(too_many):
        name = group or "documents, scripts and top-level modules"
        most = allowed.get(group, 0)
        print(f"{name}: {counts[group]} words to replace, at most {most} may be there")
    return 1 if too_many else 0


def write_allowed(numbers: dict[str, int]) -> None:
    """Write how many words a folder may have; a folder without any is left out."""
    lines = [f'"{group}" = {most}\n' for group, most in sorted(numbers.items()) if most]
    head = (
        "# Words to replace in each folder: plain_words.py allows no more, --lower writes fewer.\n"
    )
    ALLOWED.write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
