"""The part of a running program that computes without a backward pass.

Note [Where no_grad goes]
``torch.no_grad()`` around too much stops a training. Two questions are answered from the source of
the running functions. Does what they compute reach a backward pass? It is followed from variable to
variable and from function to caller; if it reaches one, or a library, this is no evaluation. The
question is asked of each running function: a step of training runs a teacher, too. Which is the
largest running statement that trains nothing? What a statement does is read from the names
that it uses, those that the functions of its file with such names use, and so on. A name that
stands for several functions stands for all of them.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from ..history.out_of_memory import OutOfMemory, ProgramFrame, ProgramLine
from .lines_to_edit import functions_around
from .rewriting import (
    Loop,
    loop_around,
    name_of_call,
    owners_of_locals,
    shared_names,
    statement_at,
    stored_names,
)

_TRAINS: Final = frozenset(
    {"backward", "manual_backward", "zero_grad", "GradScaler", "set_grad_enabled", "enable_grad"}
)
"""Names of what only programs that train use."""
_GRADIENTS: Final = frozenset({"grad", "vjp", "jacobian", "jacrev", "hessian", "value_and_grad"})
_STEPS: Final = re.compile(r"optim|opt\b|scaler", re.IGNORECASE)
"""Variables whose ``step`` is a part of training."""
_LOOPS: Final = frozenset({"fit", "train"})
"""Methods of libraries that train, if they are called with or on anything."""
_NUMBERS: Final = frozenset({"item", "tolist", "detach", "numpy"})
"""Methods whose result has no graph."""
_CHOICES: Final = frozenset({"sample", "argmax", "argmin", "multinomial", "bernoulli"})
"""Methods whose result is chosen by values, without a gradient."""
_ADDS: Final = frozenset({"append", "appendleft", "extend", "insert"})
"""Methods of lists, after which the list keeps what it got."""
_PLAIN: Final = frozenset(
    {"abs", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min"}
    | {"print", "range", "reversed", "sorted", "sum", "tuple", "type", "zip"}
)
"""Functions of Python that keep nothing of what they get, but for their result."""
_SHOWS: Final = frozenset(
    {"print", "log", "log_dict", "debug", "info", "warning", "error", "write", "add_scalar"}
    | {"add_scalars", "set_description", "set_postfix"}
)
"""Methods that show what they get; their object keeps none of it."""
_CALLED: Final = frozenset({"forward", "__call__"})
"""Functions that the call of an object runs."""
_NO_GRADIENTS: Final = frozenset({"no_grad", "inference_mode"})
_EVALUATES: Final = re.compile(r"eval|valid|test|predict|infer|generat|sampl|embed|encode|extract")


@dataclass(frozen=True, slots=True)
class ForwardOnly:
    """A running statement, or its function, after which no backward pass follows."""

    file: str
    line: int
    is_function: bool


@dataclass(frozen=True, slots=True)
class StatementCalls:
    """A statement, and what it may run."""

    file: str
    first: int  # its lines
    last: int
    functions: frozenset[str]  # of its file that it may run

    def makes(self, line: ProgramLine) -> bool:
        """True if the statement may run a line, which is in its file."""
        is_own = self.first <= line.line <= self.last or line.function in self.functions
        return line.file == self.file and is_own


def forward_only_place(oom: OutOfMemory) -> ForwardOnly | None:
    """The place of ``no_grad``; None if a backward pass follows, or may follow."""
    chain = list(_called_by_program(oom))
    is_evaluating, ends_here = oom.model.is_evaluating, False
    outermost: tuple[int, ast.stmt] | None = None
    for index, frame in enumerate(chain):
        source = _Source.of(frame.place.file)
        statement = source.statement_at(frame.place.line)
        if statement is None or source.reaches_training(statement):
            break
        fate = _fate(chain[index:])
        if fate is _Fate.TRAINS and (ends_here or not is_evaluating):
            break  # a function that trains may run a part that does not, such as a teacher
        ends_here |= fate is _Fate.ENDS
        if ends_here or is_evaluating:
            outermost = index, statement
    if outermost is None:
        return None
    index, statement = outermost
    callee = chain[index - 1].place.function if index else ""
    source = _Source.of(chain[index].place.file)
    if callee and (_EVALUATES.search(callee.lower()) or source.trains_nothing_by(callee)):
        line = min(chain[index - 1].source, default=0)
        return ForwardOnly(chain[index - 1].place.file, line, is_function=True)
    return ForwardOnly(chain[index].place.file, statement.lineno, is_function=False)


def reaches_backward(file: str, line: int) -> bool:
    """True if what a line computes reaches a backward pass within its function."""
    source = _Source.of(file)
    statement = source.statement_at(line)
    return statement is not None and source.flow_from(statement).trains


def loop_trains(file: str, line: int) -> bool:
    """True if the innermost loop around a line trains at times, with what earlier steps kept."""
    # A backward pass of each step needs the graph of that step.
    source = _Source.of(file)
    loop = source.loop_around(line)
    if loop is None or any(_is_simple(part) and _trains(part) for part in loop.body):
        return False
    return source.reaches_training(loop)


def results_without_backward(file: str, name: str) -> Iterator[int]:
    """Lines that give a variable the result of a call whose graph no statement reads."""
    # A variable that several statements set is followed from each of them to the next.
    yield from _Source.of(file).results_without_backward(name)


def calls_at(place: ForwardOnly) -> StatementCalls | None:
    """The statement that a place is; None for a function."""
    source = _Source.of(place.file)
    statement = None if place.is_function else source.statement_at(place.line)
    return None if statement is None else source.calls_of(place.file, statement)


def fills_without_backward(file: str) -> Iterator[tuple[StatementCalls, frozenset[str]]]:
    """Calls in loops whose graphs no backward pass reads, and the variables that keep them."""
    source = _Source.of(file)
    for statement, reached in source.fills_without_backward():
        yield source.calls_of(file, statement), reached


def _called_by_program(oom: OutOfMemory) -> Iterator[ProgramFrame]:
    """Running functions of the program, the innermost first, up to a call by a library."""
    frames = {(frame.place.function, frame.place.file): frame for frame in reversed(oom.frames)}
    remaining = list(oom.frames)
    has_begun = False
    for name, file in oom.functions:
        if remaining and (name, file) == (remaining[0].place.function, remaining[0].place.file):
            has_begun = True
            yield remaining.pop(0)
        elif has_begun and (name, file) not in frames and not _calls_modules(file):
            return


def _calls_modules(file: str) -> bool:
    """True for what stands between a program and its own modules: ``nn.Module.__call__``."""
    return "/torch/" in file.replace("\\", "/") and "/optim/" not in file.replace("\\", "/")


class _Fate(Enum):
    """The end of what a statement computes."""

    TRAINS = "a backward pass runs through it"
    ENDS = "no backward pass can reach it"
    UNKNOWN = "the outermost function returns it"


def _fate(chain: Sequence[ProgramFrame]) -> _Fate:
    """The fate of what the innermost of some running functions computes."""
    for frame in chain:
        source = _Source.of(frame.place.file)
        statement = source.statement_at(frame.place.line)
        if statement is None:
            break
        flow = source.flow_from(statement)
        if flow.trains:
            return _Fate.TRAINS
        if not flow.is_returned:
            return _Fate.ENDS
    return _Fate.UNKNOWN


@dataclass(slots=True)
class _Flow:
    """The way of a statement's result through its function."""

    trains: bool = False
    is_returned: bool = False
    may_escape: bool = False  # to what the function calls, or what outlives it
    reached: frozenset[str] = frozenset()  # variables that have it, or a part of it


class _Source:
    """The functions of a file, and what can be reached from a statement."""

    def __init__(self, text: str) -> None:
        try:
            self._tree = ast.parse(text)
        except (SyntaxError, ValueError):
            self._tree = ast.Module([], [])
        names: defaultdict[str, set[str]] = defaultdict(set)
        trains: set[str] = set()
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._without_gradients = {
            id(part)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.With) and _turns_gradients_off(node)
            for part in ast.walk(node)
        }
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = ast.Module(node.body, [])
                self._functions.setdefault(node.name, []).append(node)
                names[node.name] |= _names_in(body)
                if _trains(body):
                    trains.add(node.name)
        self._names: Mapping[str, set[str]] = names
        self._trains = trains
        self._of_torch = frozenset(_imported_from(self._tree, "torch", "numpy"))

    @staticmethod
    def of(file: str) -> _Source:
        return _source("".join(linecache.getlines(file)))

    def statement_at(self, line: int) -> ast.stmt | None:
        """The smallest statement that a line is part of."""
        return statement_at(self._tree, line)

    def flow_from(self, statement: ast.stmt) -> _Flow:
        """Follow the result of a statement through the function that it is in."""
        if _trains(statement):
            return _Flow(trains=True)
        flow = _Flow(is_returned=isinstance(statement, ast.Return))
        scope = self._scope_of(statement)
        owners = owners_of_locals(scope)
        tainted = {(name, 0) for name in self._results(statement)}
        parts = [
            (part, owners.get(id(node), {}))
            for node in ast.walk(scope)
            if id(node) not in self._without_gradients
            for part in ([node] if _is_simple(node) else _set_by_head(node))
        ]
        grown = True
        while grown:
            grown = False
            for part, owner_of in parts:
                read = part.value if isinstance(part, ast.Assign) else part
                names = {name for name, owner in tainted if owner == owner_of.get(name, 0)}
                if part is statement or not _uses(read, names):
                    continue
                if isinstance(part, ast.stmt) and self.reaches_training(part):
                    return _Flow(trains=True)
                flow.is_returned |= isinstance(part, (ast.Return, ast.Yield))
                flow.may_escape |= self._passes_on(part, names)
                new = {(name, owner_of.get(name, 0)) for name in self._results(part, names)}
                grown |= not new <= tainted
                tainted |= new
        flow.reached = frozenset(name for name, _ in tainted)
        flow.may_escape |= not flow.reached <= _own_variables(scope)
        return flow

    def _passes_on(self, part: ast.AST, names: set[str]) -> bool:
        """True if code passes variables to a function that may keep them."""
        return any(
            any(_uses(value, names) for value in (*call.args, *call.keywords))
            and not self._keeps_nothing(call)
            for call in ast.walk(part)
            if isinstance(call, ast.Call)
        )

    def _keeps_nothing(self, call: ast.Call) -> bool:
        name = name_of_call(call)
        if name in self._functions:
            return not any(map(_keeps, self._functions[name]))
        match call.func:
            case ast.Name():
                return name in _PLAIN or name in self._of_torch
            case ast.Attribute(value=owner):
                is_of_torch = ast.unparse(owner).partition(".")[0] in self._of_torch
                return is_of_torch or name in _ADDS | _SHOWS | _NUMBERS
        return False

    def fills_without_backward(self) -> Iterator[tuple[ast.stmt, frozenset[str]]]:
        for node in ast.walk(self._tree):
            is_call = isinstance(node, (ast.Assign, ast.Expr)) and isinstance(node.value, ast.Call)
            if not is_call or id(node) in self._without_gradients:
                continue
            assert isinstance(node, (ast.Assign, ast.Expr))
            if self.reaches_training(node) or self.loop_around(node.lineno) is None:
                continue
            if any(map(_keeps, self._functions_of(node))):
                continue
            flow = self.flow_from(node)
            if not (flow.trains or flow.is_returned or flow.may_escape):
                yield node, flow.reached

    def calls_of(self, file: str, statement: ast.stmt) -> StatementCalls:
        functions = frozenset(function.name for function in self._functions_of(statement))
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        return StatementCalls(file, first, last, functions)

    def _results(self, node: ast.AST, used: set[str] | None = None) -> set[str]:
        """Variables that get a result which may have a graph, if only some values have one."""
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if (
                used is not None and len(targets) == len(values)
            ):
                pairs = zip(targets, values, strict=True)
                parts = [target for target, value in pairs if _uses(value, used)]
                return set[str]().union(*map(_names_of_target, parts))
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() as call):
                chosen = self._chosen_results(name_of_call(call), len(targets))
                parts = [target for index, target in enumerate(targets) if index not in chosen]
                return set[str]().union(*map(_names_of_target, parts))
        return _targets(node)

    def _chosen_results(self, name: str, count: int) -> set[int]:
        """Places of results of a function that have no graph, such as actions."""
        functions = self._functions.get(name, [])
        if len(functions) != 1:
            return set()
        [function] = functions
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
        chosen = set(range(count))
        for value in returned:
            if not isinstance(value, ast.Tuple) or len(value.elts) != count:
                return set()
            chosen &= {
                index for index, element in enumerate(value.elts) if _is_chosen(element, function)
            }
        return chosen if returned else set()

    def results_without_backward(self, name: str) -> Iterator[int]:
        for node in ast.walk(self._tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call()):
                    if target == name and not _trains(node) and not self._reads_graph(node, name):
                        yield node.lineno

    def _reads_graph(self, statement: ast.stmt, name: str) -> bool:
        """True if a variable may be read, other than as a number, before it is set again."""
        scope = self._scope_of(statement)
        inner = [node for node in ast.walk(scope) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        if any(_uses(inner_scope, {name}) for inner_scope in inner if inner_scope is not scope):
            return True
        parts = [node for node in ast.walk(scope) if isinstance(node, ast.stmt)]
        loops = [
            part
            for part in parts
            if isinstance(part, (ast.For, ast.While, ast.AsyncFor))
            and part.lineno < statement.lineno <= (part.end_lineno or 0)
        ]
        heads = sorted((part for part in parts if _is_simple(part)), key=lambda part: part.lineno)
        after = [head for head in heads if head.lineno > statement.lineno]
        if not loops:
            return _is_read_before_set(after, scope, name) is not False
        loop = max(loops, key=lambda node: node.lineno)
        rest = [head for head in after if head.lineno <= (loop.end_lineno or 0)]
        behind = [head for head in after if head.lineno > (loop.end_lineno or 0)]
        again = [head for head in heads if loop.lineno < head.lineno < statement.lineno]
        read = _is_read_before_set(rest, loop, name)
        if read is None:
            read = _is_read_before_set([*again, statement], loop, name)
        return bool(read) or _is_read_before_set(behind, scope, name) is True

    def _scope_of(self, statement: ast.stmt) -> ast.AST:
        """The function that a statement is in, or the module."""
        around = functions_around(self._tree, statement.lineno)
        return max(around, key=lambda node: node.lineno, default=self._tree)

    def loop_around(self, line: int) -> Loop | None:
        """The innermost loop around the statement of a line."""
        statement = self.statement_at(line)
        return None if statement is None else loop_around(self._tree, statement.lineno)

    def trains_nothing_by(self, function: str) -> bool:
        """True if several statements call a function, and no training needs a result of it."""
        if function not in self._functions or function == "forward":
            return False
        calls = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call) and name_of_call(node) == function
        ]
        statements = [self.statement_at(call.lineno) for call in calls]
        flows = [
            self.flow_from(other)
            for other in statements
            if other is not None and not self.reaches_training(other)
        ]
        return 1 < len(statements) == len(flows) and not any(
            flow.trains or flow.is_returned for flow in flows
        )

    def _functions_of(self, statement: ast.stmt) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """The functions of the file that a statement may run, if it calls a module too."""
        waiting = (_names_in(statement) | _CALLED) & self._names.keys()
        reached: set[str] = set()
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= (self._names[name] & self._names.keys()) - reached
        return [function for name in sorted(reached) for function in self._functions[name]]

    def reaches_training(self, statement: ast.stmt) -> bool:
        if _trains(statement):
            return True
        waiting, seen = _names_in(statement) & self._names.keys(), set[str]()
        while waiting:
            name = waiting.pop()
            if name in self._trains:
                return True
            seen.add(name)
            waiting |= (self._names[name] & self._names.keys()) - seen
        return False


@lru_cache(maxsize=8)
def _source(text: str) -> _Source:
    return _Source(text)


def _names_in(node: ast.AST) -> set[str]:
    """Names that code uses, those of attributes too."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _is_simple(node: ast.AST) -> bool:
    """True for a statement without a body, and for the head of a loop."""
    return isinstance(node, ast.stmt) and not hasattr(node, "body")


def _set_by_head(node: ast.AST) -> Iterator[ast.Assign]:
    """Assignments that do what the head of a loop or of a ``with`` statement does."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    match node:
        case ast.For(target=ast.Tuple(elts=targets), iter=ast.Call(args=args) as call) if (
            name_of_call(call) == "zip" and len(targets) == len(args)
        ):
            pairs += zip(targets, args, strict=True)
        case ast.For(target=ast.Tuple(elts=[_, target]), iter=ast.Call(args=[taken]) as call) if (
            name_of_call(call) == "enumerate"
        ):
            pairs.append((target, taken))
        case ast.For(target=target, iter=taken) | ast.AsyncFor(target=target, iter=taken):
            pairs.append((target, taken))
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                if item.optional_vars is not None:
                    pairs.append((item.optional_vars, item.context_expr))
    for target, value in pairs:
        yield ast.copy_location(ast.Assign([target], value), value)


def _keeps(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if a function, other than a constructor, changes what is there after its end."""
    own = _own_variables(function)
    return function.name != "__init__" and any(
        not _targets(node) <= own for node in ast.walk(function)
    )


def _own_variables(scope: ast.AST) -> set[str]:
    """The variables that a function or a module sets, and that are its own."""
    shared = set() if isinstance(scope, ast.Module) else shared_names(scope)
    return stored_names(scope) - shared


def _imported_from(tree: ast.AST, *packages: str) -> Iterator[str]:
    """The names that a file has from some packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                if package in packages:
                    yield alias.asname or package
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in packages:
            yield from (alias.asname or alias.name for alias in node.names)


def _uses(node: ast.AST, names: set[str]) -> bool:
    """True if code reads one of some variables, other than as a number."""
    numbers = {
        id(part)
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _NUMBERS
        for part in ast.walk(call.func.value)
    }
    return any(
        id(part) not in numbers
        and isinstance(part, (ast.Name, ast.Attribute))
        and ast.unparse(part) in names
        for part in ast.walk(node)
    )


def _is_read_before_set(parts: Sequence[ast.stmt], around: ast.AST, name: str) -> bool | None:
    """None if a variable is neither read nor set by a statement that always runs."""
    always = {id(part) for part in getattr(around, "body", [])}
    for part in parts:
        is_set = isinstance(part, ast.Assign) and name in _targets(part)
        if _uses(part.value if is_set and isinstance(part, ast.Assign) else part, {name}):
            return True
        if is_set and id(part) in always:
            return False
    return None


def _targets(node: ast.AST) -> set[str]:
    """Variables and attributes that get the result of a statement."""
    match node:
        case ast.Assign(targets=targets):
            return set[str]().union(*map(_names_of_target, targets))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return _names_of_target(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method))):
            if method not in _SHOWS:
                return _names_of_target(owner)  # a list that something is appended to
    return set()


def _names_of_target(target: ast.AST) -> set[str]:
    """Variables and attributes that an assignment sets or changes, not those of an index."""
    indices = {
        id(part)
        for node in ast.walk(target)
        if isinstance(node, ast.Subscript)
        for part in ast.walk(node.slice)
    }
    parts = [part for part in ast.walk(target) if id(part) not in indices]
    names = {ast.unparse(part) for part in parts if isinstance(part, (ast.Name, ast.Attribute))}
    return names - {"self"}


def _is_chosen(
    value: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int = 0
) -> bool:
    """True for a value that is chosen, such as a sample, in a function that returns it."""
    match value:
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in _CHOICES | _NUMBERS
        case ast.Name(id=name) if depth < 3:
            values = [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                and any(name in _names_of_target(target) for target in node.targets)
            ]
            return bool(values) and all(_is_chosen(value, function, depth + 1) for value in values)
    return False


def _turns_gradients_off(node: ast.With) -> bool:
    calls = (item.context_expr for item in node.items)
    return any(name_of_call(call) in _NO_GRADIENTS for call in calls)


def _trains(node: ast.AST) -> bool:
    """True if code itself runs a backward pass, a step of an optimizer, or a training loop."""
    names = _names_in(node)
    if names & _TRAINS:
        return True
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        function, name = call.func, name_of_call(call)
        owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        if name in _GRADIENTS and ("autograd" in owner or "func" in owner):
            return True
        if name == "step" and _STEPS.search(owner):
            return True
        if name == "fit" or (name in _LOOPS and "rainer" in owner):
            return True
    return False
