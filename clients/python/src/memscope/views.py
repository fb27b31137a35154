"""What a `memscope.session.Session` answers with: a table that shows itself, in a notebook also as a picture."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from typing import Any

from . import frames
from ._extras import is_there, need

__all__ = ["Frame", "View", "readable"]

#: Rows that are shown of a table; the rest is said to be there.
SHOWN_ROWS = 20
#: Characters that are shown of one value.
SHOWN_CHARACTERS = 60


def readable(value: Any, longest: int = SHOWN_CHARACTERS) -> str:
    """A text in one line, as a program gave it: what is no printable character is escaped, and a long one is cut in its middle."""
    text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(value))
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[: longest - 1 - half]}…{text[-half:]}"


def size_text(number: float) -> str:
    """Bytes in the largest unit of which there is one at least: `1.5 GiB`."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(number) >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def _cell(column: str, value: Any, is_text: bool) -> str:
    if value is None:
        return "" if is_text or column == "line" else "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("address") and isinstance(value, int):
        return f"{value:#x}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}" if column.endswith(("_bytes", "_count", "bytes", "count")) else str(value)
    if isinstance(value, list):
        value = " < ".join(str(one) for one in value)
    return readable(value)


class Frame:
    """A table, with what it is about and what limits its numbers.

    ``table`` is the ``pyarrow.Table``. Polars and others take this object itself (``polars.DataFrame(frame)``): it has Arrow's
    ``__arrow_c_stream__``.
    """

    def __init__(self, title: str, table: Any, *, shown: Sequence[str], summary: Sequence[str] = ()) -> None:
        self.title = title
        self.table = table
        #: Sentences about the whole.
        self.summary = tuple(summary)
        #: The columns that are shown; the table has all of them.
        self.shown = tuple(shown)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self, **options: Any) -> Any:
        """The table as a ``pandas.DataFrame``; `options` are those of pyarrow.

        Without options the columns keep Arrow's types, so that whole numbers stay whole where some are unknown.
        """
        pandas = need("pandas", "to_pandas()")
        options = options or {"types_mapper": pandas.ArrowDtype}
        return self.table.to_pandas(**options)

    @property
    def coverage(self) -> list[dict[str, Any]]:
        """What limits the numbers: notes with ``code``, ``text``, ``affects`` and ``lower_bound``."""
        return frames.coverage_of(self.table)

    def _notes(self) -> list[str]:
        limits = [f"{note['code']}: {note['text']}" for note in self.coverage if note["affects"]]
        return [*self.summary, *limits]

    def _rows(self) -> list[list[str]]:
        part = self.table.slice(0, SHOWN_ROWS).select(list(self.shown))
        columns = [part.column(name) for name in self.shown]
        values = [
            [None if one is None else _time(one) for one in _nanoseconds(column)]
            if str(column.type).startswith("timestamp")
            else column.to_pylist()
            for column in columns
        ]
        cells = [
            [_cell(name, one, str(column.type) == "string") for one in shown]
            for name, column, shown in zip(self.shown, columns, values)
        ]
        return [list(row) for row in zip(*cells)]

    def _more(self) -> str:
        more = len(self) - SHOWN_ROWS
        return f"and {more:,} rows more, in .table" if more > 0 else ""

    def __repr__(self) -> str:
        rows = self._rows()
        lines = [readable(self.title, 200)]
        if rows:
            widths = [max(map(len, column)) for column in zip(self.shown, *rows)]
            for row in (self.shown, *rows):
                lines.append("  ".join(one.ljust(width) for one, width in zip(row, widths)).rstrip())
        else:
            lines.append("(no rows)")
        lines += [self._more()] if self._more() else []
        lines += [readable(note, 400) for note in self._notes()]
        return "\n".join(lines)

    def _picture_html(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        # All of it may be a program's text, so all of it is escaped; there is no script and no link in it.
        def text(value: str) -> str:
            return html.escape(value, quote=True)

        heads = "".join(f"<th>{text(name)}</th>" for name in self.shown)
        rows = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{text(one)}</td>' for one in row) + "</tr>"
            for row in self._rows()
        )
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        picture = self._picture_html()
        if picture:
            table = f"{picture}<details><summary>table</summary>{table}</details>"
        notes = [readable(note, 400) for note in [self._more(), *self._notes()] if note]
        said = "".join(f'<p style="margin:2px 0"><small>{text(note)}</small></p>' for note in notes)
        return f'<div class="memscope"><p><b>{text(readable(self.title, 200))}</b></p>{table}{said}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _nanoseconds(column: Any) -> list[int | None]:
    arrow = need("pyarrow", "a table")
    return list(column.cast(arrow.int64()).to_pylist())


def _time(unix_ns: int) -> str:
    import datetime

    second = datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.timezone.utc)
    return f"{second:%Y-%m-%d %H:%M:%S}.{unix_ns % 10**9 // 10**6:03}Z"


class View(Frame):
    """A `Frame` that can be drawn: `plot` does so on matplotlib's axes. Without matplotlib it shows itself as a table."""

    def __init__(self, *arguments: Any, draw: Callable[[Any, View], None], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._draw = draw

    #: Of stacks: the column that is drawn, or ``growth_bytes``, the live bytes less those of the earlier moment.
    metric = "live_bytes"
    #: Of a timeline: ends of steps, nanoseconds of boot time.
    step_ends: Sequence[int] = ()
    #: Of a timeline: when each mark was, nanoseconds of boot time, and its name.
    marks: Sequence[tuple[int, str]] = ()

    def plot(self, ax: Any = None) -> Any:
        """Draws it on these axes of matplotlib, else on new ones, and returns them."""
        if ax is None:
            ax = need("matplotlib.pyplot", "plot()").subplots(figsize=(9, 4), layout="constrained")[1]
        self._draw(ax, self)
        return ax

    def _repr_png_(self) -> bytes | None:
        if not len(self) or not is_there("matplotlib"):
            return None
        import io
        import warnings

        # Not by pyplot, which would show the picture a second time at the end of the cell.
        figure = need("matplotlib.figure", "a picture").Figure(figsize=(9, 4), dpi=110, layout="constrained")
        with warnings.catch_warnings():
            # A program's names may have characters that the font has not.
            warnings.simplefilter("ignore")
            self._draw(figure.subplots(), self)
            picture = io.BytesIO()
            figure.savefig(picture, format="png", metadata={"Software": None})
        return picture.getvalue()

    def _picture_html(self) -> str:
        picture = self._repr_png_()
        if picture is None:
            return ""
        coded = base64.b64encode(picture).decode("ascii")
        return f'<img style="max-width:100%" alt="plot" src="data:image/png;base64,{coded}">'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_()
        picture = self._repr_png_()
        if picture is not None:
            bundle["image/png"] = base64.b64encode(picture).decode("ascii")
        return bundle
