"""Values that names in a function stand for."""

from __future__ import annotations

import ast


class Definitions:
    """Values of variables and attributes, where a file leaves no doubt."""

    def __init__(self, tree: ast.Module, assigned: dict[str, ast.expr]) -> None:
        self._tree = tree
        self._assigned = assigned

    def resolved(self, node: ast.expr) -> ast.expr:
        """The value of a variable, or of an attribute of the class."""
        for _ in range(8):
            if isinstance(node, ast.Name) and node.id in self._assigned:
                node = self._assigned[node.id]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                value = self._attribute(node.attr)
                if value is None:
                    return node
                node = self._value_of_name(value) if isinstance(value, ast.Name) else value
            else:
                return node
        return node

    def _value_of_name(self, node: ast.Name) -> ast.expr:
        """The value of a variable of another function, if the file assigns it once."""
        values = [
            assignment.value
            for assignment in ast.walk(self._tree)
            if isinstance(assignment, ast.Assign)
            and any(
                isinstance(target, ast.Name) and target.id == node.id
                for target in assignment.targets
            )
        ]
        return values[0] if len(values) == 1 else node

    def _attribute(self, name: str) -> ast.expr | None:
        """The value of an attribute or a buffer, if the file assigns it once."""
        values: list[ast.expr] = []
        for node in ast.walk(self._tree):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=attr)], value=value) if attr == name:
                    values.append(value)
                case ast.Assign(
                    targets=[ast.Tuple(elts=attributes)], value=ast.Tuple(elts=parts)
                ) if len(attributes) == len(parts):
                    values += [
                        part
                        for attribute, part in zip(attributes, parts, strict=True)
                        if isinstance(attribute, ast.Attribute) and attribute.attr == name
                    ]
                case ast.Call(
                    func=ast.Attribute(attr="register_buffer"),
                    args=[ast.Constant(value=buffer), value, *_],
                ) if buffer == name:
                    values.append(value)
        return values[0] if len(values) == 1 else None
