"""Saved profiles of format 1, as releases before format 2 wrote them."""

import json
from dataclasses import asdict

from pytorch_memlab.records import FunctionTable, Report
from pytorch_memlab.render.notes import texts


def render(report: Report) -> str:
    """The tables as JSON of format 1."""
    data = {
        "format": 1,
        "columns": report.columns,
        "tables": [_table_data(table) for table in report.tables],
        "notes": texts(report.notes),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _table_data(table: FunctionTable) -> dict[str, object]:
    function = asdict(table.function)
    if not table.function.folded:
        del function["folded"]
    data: dict[str, object] = {
        "function": function,
        "device": asdict(table.device),
        "rows": {str(line): values for line, values in table.rows.items()},
    }
    if table.approximations:
        data["gaps"] = {
            str(line): [
                {**asdict(approximation), "kind": approximation.kind.value}
                for approximation in approximations
            ]
            for line, approximations in table.approximations.items()
        }
    return data
