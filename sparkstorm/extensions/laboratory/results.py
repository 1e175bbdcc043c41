"""Results of a sweep: rows, their means, an Arrow table, CSV and LaTeX. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, reason_of, show
from sparkstorm.extensions.laboratory.arguments import (
    check_kind,
    check_known,
    checked_whole,
    listed,
)
from sparkstorm.extensions.laboratory.scene import Row, checked_rows

_CONFIDENT = 1.96  # standard errors, for 95 % of a normal distribution


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results: a row per seed, parameters and scheduler; all rows have the same columns."""

    rows: tuple[Row, ...]
    parameters: tuple[str, ...]

    def table(self) -> Any:
        """Return a pyarrow Table; a column without any value has doubles."""
        arrow = import_module("pyarrow")
        columns = {name: [row[name] for row in self.rows] for name in self._names}
        kinds = {
            name: arrow.float64() if values.count(None) == len(values) else None
            for name, values in columns.items()
        }
        kinds |= {"reason": arrow.string()} if "reason" in kinds else {}
        return arrow.table(
            {name: arrow.array(values, kinds[name]) for name, values in columns.items()}
        )

    @property
    def _names(self) -> list[str]:
        return list(self.rows[0]) if self.rows else []

    def to_csv(self, path: Path | str) -> None:
        """Write all rows as CSV with a header."""
        check_kind("path", path, (Path, str), "a file's path")
        write_csv = import_module("pyarrow.csv").write_csv
        try:
            with Path(path).open("wb") as file:
                write_csv(self.table(), file)
        except OSError as error:
            raise InvalidConfigError(f"{path} cannot be written: {reason_of(error)}") from error

    def summary(
        self,
        values: Iterable[str],
        by: Iterable[str] = ("scheduler",),
        ratios: Iterable[str] = (),
        to: str = "default",
    ) -> list[Row]:
        """Return the mean of columns for each combination of others, with half the width of its 95 %
        confidence interval as `NAME_ci`, and the number of rows as `count`.

        Values of the columns in `ratios` are first divided by those of the scheduler `to` for the
        same seed and parameters. What has no value, no finite one, or a divisor of 0, is left out of
        a mean.
        """
        values, by, ratios = (
            listed(name, columns, "columns")
            for name, columns in (("values", values), ("by", by), ("ratios", ratios))
        )
        for name in (*values, *by, *ratios):
            check_known(name, self._names, "columns")
        for name in (*values, *ratios):
            if any(isinstance(row[name], str) for row in self.rows):
                raise InvalidConfigError(f"columns: {name} has texts, of which there is no mean")
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self._divided(ratios, to) if ratios else self.rows:
            groups.setdefault(tuple(row[name] for name in by), []).append(row)
        return [
            dict(zip(by, key, strict=True)) | {"count": len(rows)} | _means(rows, values)
            for key, rows in groups.items()
        ]

    def _divided(self, names: Sequence[str], scheduler: str) -> Iterator[Row]:
        def key(row: Row) -> tuple[Any, ...]:
            return tuple(row[name] for name in ("seed", *self.parameters))

        base = {key(row): row for row in self.rows if row["scheduler"] == scheduler}
        if not base:
            raise InvalidConfigError(f"to: no row is of a scheduler {show(scheduler)}")
        for row in self.rows:
            by = base[key(row)]
            yield row | {
                name: row[name] / by[name] if row[name] is not None and by[name] else None
                for name in names
            }


def _means(rows: Sequence[Row], values: Sequence[str]) -> Row:
    summary: Row = {}
    for name in values:
        # A deviation of infinities is no number, and statistics fails on them.
        numbers = [row[name] for row in rows if row[name] is not None and math.isfinite(row[name])]
        error = stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
        summary[name] = float(mean(numbers)) if numbers else None
        summary[f"{name}_ci"] = _CONFIDENT * error if numbers else None
    return summary


def latex(rows: Sequence[Row], caption: str = "", digits: int = 2) -> str:
    """Return rows as a LaTeX table (booktabs); a column with its `_ci` becomes one with a ±."""
    rows = checked_rows(rows)
    check_kind("caption", caption, str, "a text")
    checked_whole(digits, "digits", most=17, least=0)
    names = list(dict.fromkeys(name for row in rows for name in row if not name.endswith("_ci")))
    aligned = "".join(
        "l" if any(isinstance(row.get(name), str) for row in rows) else "r" for name in names
    )
    body = [" & ".join(_cell(row, name, digits) for name in names) + r" \\" for row in rows]
    head = " & ".join(_escaped(name.replace("_", " ")) for name in names) + r" \\"
    named = [rf"\caption{{{_escaped(caption)}}}"] if caption else []
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            *named,
            rf"\begin{{tabular}}{{{aligned}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _cell(row: Row, name: str, digits: int) -> str:
    value = row.get(name)
    if value is None:
        return "--"
    if not isinstance(value, float):
        return _escaped(str(value))
    error = row.get(f"{name}_ci")
    return f"{value:.{digits}f}" + (rf" $\pm$ {error:.{digits}f}" if error is not None else "")


_SPECIAL = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def _escaped(words: str) -> str:
    # A reason may have several lines: an empty one ends a paragraph, which no cell may.
    line = " ".join(words.split())
    return "".join(_SPECIAL.get(character, character) for character in line)
