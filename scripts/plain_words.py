"""Refuse words that the glossary replaces, in documents, texts of the code, and names.

A variable of the package says what it holds: its name is none of `VAGUE`. The docstring of an
internal name has one line; see `public_names`.

`make lint` runs it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent

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

_DOCUMENTED: Final = re.compile(r"^(```|~~~).*?^\1$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_MAGICS: Final = ("line_magic", "cell_magic", "line_cell_magic")

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
    for node in ast.walk(_parsed(source)):
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
    tree = _parsed(source)
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


def public_names(trees: Iterable[ast.Module], documents: Iterable[str]) -> set[str]:
    """The names of classes and functions whose docstrings are for users.

    They are those that the package itself has, those in ``__all__`` of a module, and the classes
    that documents for users name in code; with the bases of these, and the classes of their
    results.
    """
    public: set[str] = set()
    leads_to: dict[str, set[str]] = {}
    classes = set()
    for tree in trees:
        public.update(_listed_names(tree))
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                leads_to.setdefault(node.name, set()).update(_bases_and_results(node))
                if isinstance(node, ast.ClassDef):
                    classes.add(node.name)
    for document in documents:
        for code in _DOCUMENTED.finditer(document):
            public.update(classes.intersection(re.findall(r"\w+", code[0])))
    to_follow = list(public)
    while to_follow:
        new = leads_to.get(to_follow.pop(), set()) & classes - public
        public |= new
        to_follow += new
    return public


def _bases_and_results(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """The names of the bases of a class, and of what its public methods or a function return."""
    functions: list[ast.AST] = [node]
    if isinstance(node, ast.ClassDef):
        yield from map(ast.unparse, node.bases)
        functions = [method for method in node.body if not _is_private(method)]
    for function in functions:
        if isinstance(function, ast.FunctionDef) and function.returns is not None:
            yield from re.findall(r"\w+", ast.unparse(function.returns))


def _is_private(node: ast.AST) -> bool:
    return bool(re.match(r"_(?!_)", getattr(node, "name", "")))


def _listed_names(tree: ast.Module) -> Iterator[str]:
    """The strings in ``__all__`` of a module, and in the list of names of the package."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id="__all__" | "_NAMES")], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                for node in ast.walk(value):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield node.value


def long_docstrings(tree: ast.Module, public: set[str]) -> list[Found]:
    """The docstrings of internal names that have more than one line and examples."""
    return sorted(_long_docstrings(tree, public, is_public=False))


def _long_docstrings(scope: ast.AST, public: set[str], *, is_public: bool) -> Iterator[Found]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.expr):
            continue
        of_users = is_public
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(scope, ast.ClassDef):
                of_users = is_public and not _is_private(node)
            else:
                of_users = isinstance(scope, ast.Module) and node.name in public
            of_users = of_users or _is_help(node)
            _, *others = (ast.get_docstring(node) or "").split("\n", 1)
            if others and not of_users and not _are_examples(others[0]):
                line = node.body[0].lineno
                message = f"docstring of {node.name}: write one line, and reasons as comments"
                yield Found(line, message)
        yield from _long_docstrings(node, public, is_public=of_users)


def _are_examples(text: str) -> bool:
    return all(part.startswith(">>> ") for part in re.split(r"\n\s*\n", text.strip()))


def _is_help(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for the docstring of a command or a magic, which is its help."""
    if isinstance(node, ast.ClassDef):
        return node.name.endswith("Command")
    return any(ast.unparse(decorator) in _MAGICS for decorator in node.decorator_list)


@lru_cache(maxsize=1)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


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
        if _is_of_package(path):
            found[path] += vague_variables(text)
    return {path: problems for path, problems in found.items() if problems}


def docstrings_in(paths: Iterable[Path]) -> dict[Path, list[Found]]:
    """The docstrings of the package that are too long, of files that have any."""
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items() if _is_of_package(path)}
    documents = [text for path, text in texts.items() if _is_for_users(path)]
    public = public_names(trees.values(), documents)
    found = {path: long_docstrings(tree, public) for path, tree in trees.items()}
    return {path: problems for path, problems in found.items() if problems}


def _is_of_package(path: Path) -> bool:
    return path.suffix == ".py" and "pytorch_memlab" in path.relative_to(ROOT).parts[:1]


def _is_for_users(path: Path) -> bool:
    """True for a document that is no maintainer's."""
    folder, *_ = path.relative_to(ROOT / "docs").parts if ROOT / "docs" in path.parents else ("",)
    return path.suffix == ".md" and (folder in ("guides", "reference") or path.stem == "README")


def main() -> int:
    """Show what is refused; 1 if there is any."""
    paths = list(files())
    places = [
        (path, problem)
        for found in (found_in(paths), docstrings_in(paths))
        for path, problems in found.items()
        for problem in problems
    ]
    for path, problem in places:
        print(f"{path.relative_to(ROOT)}:{problem.line}: {problem.problem}")
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
