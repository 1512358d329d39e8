"""Graphs that run op by op, each op from its line of the program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from torch._dynamo.backends import cudagraphs
from torch.fx import GraphModule, Interpreter

from ..._common.frames.compiled_code import Frames, compiled_code
from ..._common.patching.patches import Patches
from .line_entries import LineEntries
from .program_frames import frames_of, frames_of_ops, in_frames

Run = Callable[..., Any]

_TANGENTS: Final = "tangents_"
"""Begins the names of the gradients that a graph of a backward pass gets."""


def install(patches: Patches) -> None:
    """Let what an op interprets, such as a checkpointed part, come from its lines, until undone."""

    @patches.around(Interpreter, "run_node")
    def run_node(run: Run, self: Any, node: Any) -> Any:
        frames = frames_of(node.meta.get("stack_trace") or "") if compiled_code.runs() else ()
        if not frames:
            return run(self, node)
        compiled_code.at(frames)()
        return in_frames(frames)(run, self, node)

    @patches.around(cudagraphs, "boxed_nop")
    def recorded(compiler: Callable[..., Run], module: GraphModule, inputs: list[Any]) -> Run:
        is_backward = any(node.name.startswith(_TANGENTS) for node in module.graph.nodes)
        return boxed(compiler, is_hit=not is_backward)(module, inputs)


def from_lines(
    module: GraphModule,  # whose code is changed in place, for others hold its function already
    *,
    is_hit: bool,  # a run of the graph is one of its lines
) -> Callable[[Run], Run]:
    """A decorator for what runs a graph: the ops of the graph come from lines of the program."""
    graphs = list(_nested(module))
    lines = frozenset[Frames]().union(*(frames_of_ops(graph.graph) for graph in graphs))
    for graph in graphs:
        _tell_lines(graph)

    def with_lines(run: Run) -> Run:
        def run_from_lines(*args: Any) -> Any:
            with compiled_code.running(lines, is_hit):
                return run(*args)

        return run_from_lines

    return with_lines


def boxed(compiler: Callable[..., Run], *, is_hit: bool) -> Callable[..., Run]:
    """A compiler like another one that runs graphs op by op, on a list of inputs."""

    def compile_graph(module: GraphModule, inputs: list[Any]) -> Run:
        run = compiler(module, inputs)
        from_line = from_lines(module, is_hit=is_hit)(run)
        from_line._boxed_call = True  # type: ignore[attr-defined]
        return from_line

    return compile_graph


def _nested(module: GraphModule) -> Iterator[GraphModule]:
    """A graph, and those that its ops call."""
    return (submodule for submodule in module.modules() if isinstance(submodule, GraphModule))


def _tell_lines(module: GraphModule) -> None:
    origins = {
        node.name: frames
        for node in module.graph.nodes
        if node.op not in ("placeholder", "output")
        and (frames := frames_of(node.meta.get("stack_trace") or ""))
    }
    tree = ast.parse(module.code)  # which makes the function of a lazy module
    forward: Any = type(module).forward
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    entries = LineEntries()
    function.body = [
        statement
        for _, line in groupby(function.body, key=lambda statement: statement.lineno)
        for statement in _with_line(list(line), origins, entries)
    ]
    names = {**forward.__globals__, **entries.names()}
    exec(compile(ast.fix_missing_locations(tree), __file__, "exec", dont_inherit=True), names)  # noqa: S102 - PyTorch's compiler wrote it
    forward.__code__ = names[function.name].__code__
    forward.__globals__.update(entries.names())


def _with_line(
    statements: list[ast.stmt], origins: Mapping[str, Frames], entries: LineEntries
) -> list[ast.stmt]:
    """The statements of one op, which begin where the program's line does."""
    for statement in statements:
        match statement:
            case ast.Assign(value=ast.Constant()):  # a name that nothing needs any more
                continue
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name in origins:
                frames = origins[name]
                if isinstance(value, ast.Call):
                    statement.value = entries.call(frames, value)
                elif not isinstance(value, (ast.Name, ast.Attribute)):
                    computed = ast.Lambda(_no_arguments(), value)
                    statement.value = entries.call(frames, ast.Call(computed, [], []))
                return [entries.arrival(frames), *statements]
    return statements


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])
