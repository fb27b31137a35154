"""Pictures of views, on matplotlib's axes. The colours are of Okabe and Ito's set, which colour-blind people tell apart."""

from __future__ import annotations

import math
from typing import Any

from ._extras import need
from .views import View, readable, size_text

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"
#: Bars that are drawn at most; the table has the others.
DRAWN_BARS = 20
#: Segments that are drawn at most, the largest ones.
DRAWN_SEGMENTS = 40
#: Blocks that are drawn one by one. Of more, neighbours in the same state are drawn as one.
DRAWN_BLOCKS = 5000
#: Ends of steps that are drawn at most. With more of them, none is.
DRAWN_STEPS = 60
#: Marks that are drawn at most, the last ones.
DRAWN_MARKS = 12


def _quiet(ax: Any, title: str) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    # A program's name may have the signs in it that matplotlib would take for mathematics.
    ax.set_title(readable(title, 100), loc="left", fontsize=10, parse_math=False)


def _bytes_on(axis: Any) -> None:
    """Has an axis tell bytes. It is called when all is drawn: its length is known then."""
    ticker = need("matplotlib.ticker", "a picture")
    least, most = axis.get_view_interval()
    step = 1 << max(0, math.ceil(math.log2(max(abs(most - least), 1) / 6)))
    axis.set_major_locator(ticker.MultipleLocator(step))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: size_text(value)))


def _legend(ax: Any) -> None:
    ax.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4)


def _seconds(column: Any, beginning: int) -> list[float]:
    return [(one - beginning) / 1e9 for one in column.to_pylist()]


def _device(device: int | None) -> str:
    return "device unknown" if device is None else f"device {device}"


def timeline(ax: Any, view: View) -> None:
    """Bands from the smallest to the largest bytes of each interval, with the ends of steps and the marks."""
    colours = [BLUE, GREEN, RED, ORANGE]
    table = view.table
    beginning = min(table.column("from_boot_ns").to_pylist(), default=0)
    devices = list(dict.fromkeys(table.column("device").to_pylist()))
    arrow = need("pyarrow.compute", "a picture")
    for number, device in enumerate(devices):
        column = table.column("device")
        rows = table.filter(arrow.is_null(column) if device is None else arrow.equal(column, device))
        starts = _seconds(rows.column("from_boot_ns"), beginning)
        ends = _seconds(rows.column("to_boot_ns"), beginning)
        # Each interval from its begin to its end, so that nothing is between two of them.
        times = [time for pair in zip(starts, ends) for time in pair]
        colour = colours[number % len(colours)]
        for word, shade, at_top in (("reserved", 0.25, False), ("allocated", 0.65, True)):
            least, most = (
                [value for value in rows.column(f"{end}_{word}_bytes").to_pylist() for _ in range(2)]
                for end in ("min", "max")
            )
            label = f"{word}, {_device(device)}"
            ax.fill_between(times, least, most, color=colour, alpha=shade, linewidth=0.5, label=label)
            if not at_top:
                ax.plot(times, most, color=colour, linewidth=0.8, linestyle="--")
    until = max(table.column("to_boot_ns").to_pylist(), default=0)
    steps = sorted({one for one in view.step_ends if beginning <= one <= until})
    if len(steps) <= DRAWN_STEPS:
        for one in steps:
            ax.axvline((one - beginning) / 1e9, color=GREY, linewidth=0.5, zorder=0)
    marks = [one for one in view.marks if beginning <= one[0] <= until]
    for at, name in marks[-DRAWN_MARKS:]:
        seconds = (at - beginning) / 1e9
        ax.axvline(seconds, color=ORANGE, linewidth=1, linestyle=":")
        ax.text(
            seconds,
            1,
            readable(name, 24),
            transform=ax.get_xaxis_transform(),
            rotation=90,
            fontsize=7,
            va="top",
            ha="right",
            parse_math=False,
        )
    ax.set_ylim(bottom=0)
    ax.set_xlabel("seconds")
    _bytes_on(ax.yaxis)
    _quiet(ax, view.title)
    if devices:
        _legend(ax)


def _bars(ax: Any, view: View, labels: list[str], values: list[int], colours: list[str]) -> None:
    labels, values, colours = labels[:DRAWN_BARS], values[:DRAWN_BARS], colours[:DRAWN_BARS]
    at = list(range(len(values)))
    ax.barh(at, values, color=colours, height=0.7)
    ax.set_yticks(at)
    ax.set_yticklabels([readable(one) for one in labels], fontsize=8, parse_math=False)
    # A single bar is as thick as one of four.
    ax.set_ylim(max(len(values), 4) - 0.5, -0.5)
    for number, value in enumerate(values):
        ax.text(value, number, f" {size_text(value)}", va="center", fontsize=7)
    ax.margins(x=0.12)
    _bytes_on(ax.xaxis)
    _quiet(ax, view.title)


def place(row: dict[str, Any]) -> str:
    """Where a row of stacks or leaks is: `function (file:line)`, else why that is not known."""
    name, file, line = row["function"], row["file"], row["line"]
    if not file and not name:
        return f"({row.get('missing') or 'line not known'})"
    file = str(file).rsplit("/", 1)[-1] if file else "?"
    where = f"{file}:{line}" if line else file
    return f"{name} ({where})" if name else where


def _of_metric(view: View) -> list[tuple[dict[str, Any], int]]:
    """The rows that have any of what is drawn, each with how much."""
    if view.metric == "growth_bytes":
        found = [(row, row["live_bytes"] - (row["before_bytes"] or 0)) for row in view.table.to_pylist()]
    else:
        found = [(row, row[view.metric]) for row in view.table.to_pylist()]
    return [(row, value) for row, value in found if value]


def stacks(ax: Any, view: View) -> None:
    """A bar for each line, function or file."""
    rows = _of_metric(view)
    colours = [GREY if row["missing"] else BLUE for row, _ in rows]
    _bars(ax, view, [place(row) for row, _ in rows], [value for _, value in rows], colours)


def call_stacks(ax: Any, view: View) -> None:
    """A bar for each stack, called by its innermost frame."""
    rows = _of_metric(view)
    labels = [row["frames"][0] if row["frames"] else f"({row['missing'] or 'no frames'})" for row, _ in rows]
    _bars(ax, view, labels, [value for _, value in rows], [BLUE] * len(rows))


def leaks(ax: Any, view: View) -> None:
    """A bar for each line: what it grew by; orange where that is not decided."""
    rows = [row for row in view.table.to_pylist() if row["verdict"] != "steady"]
    colours = [RED if row["verdict"] == "growing" else ORANGE for row in rows]
    labels = [
        f"{place(row)}" + (f", {row['confidence']:.0%} sure" if row["confidence"] is not None else "") for row in rows
    ]
    _bars(ax, view, labels, [row["growth_bytes"] for row in rows], colours)


def owners(ax: Any, view: View) -> None:
    """A bar for each category and device."""
    sums: dict[tuple[str, int | None], int] = {}
    for row in view.table.to_pylist():
        key = row["category"], row["device"]
        sums[key] = sums.get(key, 0) + row["bytes"]
    ordered = sorted(sums.items(), key=lambda one: -one[1])
    labels = [f"{category}, {_device(device)}" for (category, device), _ in ordered]
    _bars(ax, view, labels, [size for _, size in ordered], [BLUE] * len(ordered))


def steps(ax: Any, view: View) -> None:
    """The floor and the peak of each step."""
    colours = [BLUE, GREEN, RED, ORANGE]
    # Without pandas, Arrow gives no objects of Python for times to the nanosecond.
    drawn = ["step", "device", "min_allocated_bytes", "max_allocated_bytes"]
    rows = view.table.select(drawn).to_pylist()
    for number, device in enumerate(dict.fromkeys(row["device"] for row in rows)):
        of = [row for row in rows if row["device"] == device]
        colour = colours[number % len(colours)]
        numbers = [row["step"] for row in of]
        for end, style, word in (("max", "-", "peak"), ("min", "--", "floor")):
            values = [row[f"{end}_allocated_bytes"] for row in of]
            label = f"{word}, {_device(device)}"
            ax.plot(numbers, values, style, color=colour, linewidth=1.2, marker=".", markersize=3, label=label)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(need("matplotlib.ticker", "a picture").MaxNLocator(integer=True))
    ax.set_xlabel("step")
    _bytes_on(ax.yaxis)
    _quiet(ax, view.title)
    if rows:
        _legend(ax)


def blocks(ax: Any, view: View) -> None:
    """A lane for each segment, the largest ones, with its blocks where they are."""
    keys = ["device", "segment_address"]
    sums = view.table.group_by(keys).aggregate([("size_bytes", "sum")]).sort_by([("size_bytes_sum", "descending")])
    largest = sums.slice(0, DRAWN_SEGMENTS).select(keys)
    chosen = sorted((row["device"], row["segment_address"]) for row in largest.to_pylist())
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = {key: [] for key in chosen}
    drawn = view.table.join(largest, keys=keys, join_type="inner").sort_by([("address", "ascending")])
    are_joined = drawn.num_rows > DRAWN_BLOCKS
    for row in drawn.select([*keys, "address", "size_bytes", "state"]).to_pylist():
        lane = lanes[(row["device"], row["segment_address"])]
        last = lane[-1] if are_joined and lane else None
        # Of very many blocks, those in the same state that touch one another are drawn as one.
        if last and last["state"] == row["state"] and last["address"] + last["size_bytes"] == row["address"]:
            last["size_bytes"] += row["size_bytes"]
        else:
            lane.append(row)
    named = {"active": BLUE, "pending_free": ORANGE, "inactive": "#E6E6E6"}
    for number, key in enumerate(chosen):
        rows = lanes[key]
        # Where an expandable segment has no memory there is a gap, so a block's place is that of its address.
        parts = [(row["address"] - key[1], row["size_bytes"]) for row in rows]
        colours = [named.get(row["state"], GREY) for row in rows]
        ax.broken_barh(parts, (number - 0.4, 0.8), facecolors=colours, edgecolor="white", linewidth=0.3)
    ax.set_yticks(range(len(chosen)))
    ax.set_yticklabels([f"{device}: {address:#x}" for device, address in chosen], fontsize=7)
    ax.invert_yaxis()
    _bytes_on(ax.xaxis)
    patch = need("matplotlib.patches", "a picture").Patch
    ax.legend(
        handles=[patch(color=colour, label=state.replace("_", " ")) for state, colour in named.items()],
        fontsize=8,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
    )
    _quiet(ax, view.title)


def cell(ax: Any, view: View) -> None:
    """For each line of a cell what came, and over it what is left of that."""
    rows = [row for row in view.table.to_pylist() if row["came_bytes"] or row["left_bytes"]][:DRAWN_BARS]
    at = list(range(len(rows)))
    came = [row["came_bytes"] for row in rows]
    ax.barh(at, came, color=BLUE, alpha=0.3, height=0.7, label="came")
    ax.barh(at, [row["left_bytes"] for row in rows], color=BLUE, height=0.35, label="stayed, or went of earlier memory")
    labels = [f"line {row['line']}: {row['code']}" if row["line"] else row["place"] for row in rows]
    ax.set_yticks(at)
    ax.set_yticklabels([readable(one) for one in labels], fontsize=8, parse_math=False)
    ax.set_ylim(max(len(rows), 4) - 0.5, -0.5)
    _bytes_on(ax.xaxis)
    _quiet(ax, view.title)
    if rows:
        _legend(ax)
