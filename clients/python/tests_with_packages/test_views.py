"""Tables and pictures of messages that are made up. They need the packages of the extra ``notebook``; tests/tests/notebooks.rs
runs them."""

import datetime
import html.parser
import json
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import pandas
import polars
import pyarrow
from memscope import ConfigError, ExtraMissingError, _cell, _drawing, _magic, frames, session, v1, views

#: Names that programs might have for themselves, to do harm where they are shown.
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><h1>",
    "$\\frac{1}{0$",
    "$x$ \x1b[31m\x00\u202e\n" + "a" * 5000,
]


#: Draws one view of each kind, where there is no pandas. Times have nanoseconds in them.
WITHOUT_PANDAS = '''
import sys

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

sys.meta_path.insert(0, NoPandas())
from memscope import _drawing, frames, views

# One of each type of a column.
values = {"time": 1_700_000_000_123_456_789, "string": "x", "list<string>": ["x"], "double": 0.5, "bool": True}
count = 0
for name, draw in (
    ("timeline", _drawing.timeline),
    ("stacks", _drawing.stacks),
    ("call_stacks", _drawing.call_stacks),
    ("leaks", _drawing.leaks),
    ("owners", _drawing.owners),
    ("steps", _drawing.steps),
    ("blocks", _drawing.blocks),
):
    columns = frames.TABLES[name]
    row = tuple(values.get(column.type, 7) for column in columns)
    view = views.View(name, frames.made(name, [row]), shown=[column.name for column in columns], draw=draw)
    view.metric = "live_bytes"
    count += view._repr_png_().startswith(b"\\x89PNG")
    repr(view)
print("pictures:", count)
'''


class Elements(html.parser.HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def line(name):
    return v1.CodeLine(file=name, line=7, name=name)


class Cells(unittest.TestCase):
    def test_a_stack_in_several_rows_is_the_sum_of_them(self):
        """A cell that is run again has new code with the same names, so that its stack has another number."""

        def answer(pid, view, by):
            rows = {
                v1.STACK_METRIC_ALLOCATED: [(3, 1), (4, 2)],
                # The last one only lives: it was there before.
                v1.STACK_METRIC_LIVE: [(4, 2), (3, 1), (0, 5)],
            }[view.metric]
            amount = lambda size: v1.Amount(bytes=size, count=1 if size else 0)
            return v1.StacksResponse(
                strings=["f", "cell.py"],
                frames=[v1.StackFrame(name=0, file=1, line=2)],
                rows=[
                    v1.StackRow(frames=[0], amounts=v1.StackAmounts(allocated=amount(came), live=amount(lives)))
                    for came, lives in rows
                ],
            )

        held = mock.Mock()
        held.daemon.stacks.side_effect = answer
        found, omitted = _cell._by_stack(held, 7)
        self.assertEqual(omitted, 0)
        self.assertEqual(found, {(None, (_cell._Frame("f", "cell.py", 2),), None): (7, 2, 8, 3, 0)})

    def measured(self, before, after, has_run=True):
        """The rows of a cell's table, by place, and what is said beside it. The stacks are as daemons tell of them: for each what came since
        the attach, what lives, and how many blocks these are; `None` for one that does not fit into the answer."""

        class Daemon:
            path = ""

            def __init__(self):
                self.stacks_now = before

            def stacks(self, pid, view, by):
                strings, rows, omitted = ["f"], [], 0
                for name, numbers in self.stacks_now.items():
                    came, came_count, lives, lives_count = numbers or (1, 1, 1, 1)
                    if not (came if view.metric == v1.STACK_METRIC_ALLOCATED else lives):
                        continue
                    if numbers is None:
                        omitted += 1
                        continue
                    strings.append(name)
                    allocated = v1.Amount(bytes=came, count=came_count)
                    amounts = v1.StackAmounts(allocated=allocated, live=v1.Amount(bytes=lives, count=lives_count))
                    rows.append(v1.StackRow(device=0, frames=[len(strings) - 2], amounts=amounts))
                frames_told = [v1.StackFrame(name=0, file=at, line=3) for at in range(1, len(strings))]
                return v1.StacksResponse(strings=strings, frames=frames_told, rows=rows, omitted=omitted)

            def stats(self, pid):
                return v1.StatsResponse(level=v1.LEVEL_READ)

            def mark(self, pid, name):
                return v1.MarkResponse()

        daemon = Daemon()
        held = mock.Mock(daemon=daemon)
        with mock.patch.object(_cell, "_Peaks") as peaks:
            peaks.return_value.largest, peaks.return_value.missed = {}, 0
            cell = _cell.Measured(held, 7)
            daemon.stacks_now = after
            view = cell.end("cell 1", "cell.py", has_run, lambda line: f"line {line}")
        rows = {row["place"] or row["line"]: row for row in view.table.to_pylist()}
        columns = ("came_bytes", "came_count", "went_bytes", "went_count", "left_bytes")
        # All that shows it copes with what it has.
        self.assertIsNotNone(view.plot())
        return {place: tuple(row[column] for column in columns) for place, row in rows.items()}, " ".join(view.summary)

    def test_what_a_reading_found_was_not_seen_to_come_and_did_not_go(self):
        """At level `read` nothing is seen to come, nor is what a baseline brings, nor what came while records were lost."""
        before = {"cell.py": (0, 0, 8, 1), "earlier.py": (5, 1, 5, 1), "gone.py": (0, 0, 4, 1)}
        after = {"cell.py": (0, 0, 20, 3), "earlier.py": (9, 2, 29, 4), "new.py": (0, 0, 6, 2)}
        rows, summary = self.measured(before, after)
        self.assertEqual(
            rows,
            {
                3: (0, 0, 0, 0, 12),
                "f earlier.py:3": (4, 1, 0, 0, 24),
                "f gone.py:3": (0, 0, 4, 1, -4),
                "f new.py:3": (0, 0, 0, 0, 6),
            },
        )
        self.assertIn("38 bytes were found that nobody saw come: they are in left_bytes only", summary)
        self.assertNotIn("left out", summary)

    def test_a_stack_that_the_second_answer_has_no_room_for(self):
        before = {"cell.py": (8, 1, 8, 1), "pushed.py": (90, 9, 10, 1), "read.py": (0, 0, 3, 1)}
        after = {"cell.py": (18, 2, 8, 1), "pushed.py": None, "read.py": None}
        rows, summary = self.measured(before, after)
        self.assertEqual(rows, {3: (10, 1, 10, 1, 0)})
        self.assertIn("2 stacks did not fit into the answer", summary)
        self.assertNotIn("were found", summary)

    def test_a_stack_that_the_first_answer_had_no_room_for(self):
        before = {"other.py": (8, 1, 8, 1), "pushed.py": None}
        after = {"other.py": (18, 2, 8, 1), "pushed.py": (90, 9, 10, 1), "cell.py": (7, 1, 7, 1)}
        # The cell runs for the first time.
        rows, summary = self.measured(before, after, has_run=False)
        self.assertEqual(rows, {3: (7, 1, 0, 0, 7), "f other.py:3": (10, 1, 10, 1, 0)})
        self.assertIn("1 stacks were not in the answer before the code ran", summary)
        self.assertNotIn("were found", summary)
        # It ran before, and what it had then may not have had room.
        rows, summary = self.measured(before, after)
        self.assertEqual(rows, {"f other.py:3": (10, 1, 10, 1, 0)})
        self.assertIn("2 stacks were", summary)

    def test_the_peak_between_readings_is_not_known(self):
        def stats(level, sequence, **peak):
            device = v1.DeviceStats(device=0, allocated_bytes=5, **peak)
            return v1.StatsResponse(level=level, as_of_event=v1.EventId(sequence=sequence), devices=[device])

        before = stats(v1.LEVEL_READ, 4, peak_allocated_bytes=5, peak_event=2)
        for level, how in ((v1.LEVEL_READ, "at least: level read"), (v1.LEVEL_TRACE, "exact, and the most since the attach")):
            after = stats(level, 9, peak_allocated_bytes=70, peak_event=8)
            cell = _cell.Measured.__new__(_cell.Measured)
            cell._before, cell._peaks = before, mock.Mock(largest={}, missed=0)
            [said], _ = cell._totals(after, True)
            self.assertIn(f"peak 70 ({how}", said)

    def test_what_is_no_python_has_no_line(self):
        malloc = _cell._Frame("malloc", "", 0, is_python=False)
        stacks = {(0, (malloc,), None): (9, 1, 9, 1, 9)}
        held = mock.Mock()
        held.daemon.stats.return_value = v1.StatsResponse()
        with mock.patch.object(_cell, "_by_stack", return_value=(stacks, 0)):
            [row] = _cell.by_own_line(held, 7).table.to_pylist()
        self.assertEqual((row["function"], row["file"], row["line"]), ("malloc", None, None))
        self.assertEqual(_cell._elsewhere((malloc,), None), "malloc")

    def test_what_the_programs_own_lines_are_is_told_as_crates_units_tells_it(self):
        table = Path(__file__).parents[3] / "crates" / "units" / "src" / "own.cases"
        cases = [line.split("\t") for line in table.read_text().splitlines() if not line.startswith("#")]
        self.assertGreater(len(cases), 30)
        for whose, name, file, line in cases:
            frame = _cell._Frame(name, file, int(line), is_python=whose != "compiled")
            self.assertEqual(frame.is_own(), whose == "own", (name, file, line))

    def test_a_cell_is_the_programs_and_not_what_runs_it(self):
        launcher = _cell._Frame("<module>", "/v/bin/ipython", 7)
        cell = _cell._Frame("<module>", "<ipython-input-5-23471c91e77a>", 1)
        kernel = _cell._Frame("launch", "/srv/ext.cpp", 9, is_python=False)
        self.assertEqual(_cell._own((kernel, cell, launcher)), cell)
        library = _cell._Frame("forward", "/v/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125)
        self.assertEqual(_cell._own((kernel, library)), library)
        self.assertEqual(_cell._own((kernel,)), kernel)

    def test_lines_as_python_numbers_them(self):
        for cell, transformed, lines in (
            ("a\n%ls\n", "a\nget_ipython()\n", ["a", "%ls"]),
            ("\n  \na\nb", "a\nb\n", ["a", "b"]),
            ("\n%ls \\\n -l\nb", "get_ipython()\nb\n", ["get_ipython()", "b"]),
            ("", "", []),
        ):
            self.assertEqual(_magic._lines(cell, transformed), lines)

    def test_a_peak_that_is_not_known(self):
        told = _magic._most(v1.DeviceStats(peak_allocated_bytes=4096))
        self.assertEqual(told, "most 4,096 allocated since the attach")
        self.assertNotIn("0", _magic._most(v1.DeviceStats()))


class Hostile(unittest.TestCase):
    def shows_harmlessly(self, view):
        bundle = view._repr_mimebundle_()
        allowed = {"div", "p", "b", "small", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "img"}
        for tag, attributes in Elements(bundle["text/html"]).found:
            self.assertIn(tag, allowed)
            self.assertLessEqual(set(attributes), {"class", "style", "alt", "src"})
            self.assertTrue(attributes.get("src", "data:").startswith("data:"), attributes)
        self.assertNotIn("\x1b", bundle["text/plain"] + bundle["text/html"])
        self.assertNotIn("\x00", bundle["text/plain"] + bundle["text/html"])
        self.assertLess(len(bundle["text/plain"]), 20_000)
        if isinstance(view, views.View):
            self.assertTrue(view._repr_png_().startswith(b"\x89PNG"))
            self.assertEqual(view.plot().get_title(loc="left"), views.readable(view.title, 100))

    def test_names_of_lines(self):
        answer = v1.LeaksResponse(
            lines=[
                v1.LeakLine(line=line(name), verdict=v1.VERDICT_GROWING, growth_bytes=5, reason=name)
                for name in HOSTILE
            ],
            coverage=[v1.CoverageNote(code="code", text=HOSTILE[0], affects=["totals"])],
        )
        table = frames.leaks(answer)
        self.assertEqual(table.column("function").to_pylist(), HOSTILE)
        shown = ("function", "file", "reason")
        self.shows_harmlessly(views.View(HOSTILE[1], table, shown=shown, summary=HOSTILE, draw=_drawing.leaks))

    def test_names_in_stacks_and_of_owners(self):
        strings = ["", *HOSTILE]
        answer = v1.StacksResponse(
            strings=strings,
            frames=[v1.StackFrame(name=at, file=at, line=at) for at in range(1, len(strings))],
            groups=[
                v1.StackGroup(frame=at, own=v1.StackAmounts(live=v1.Amount(bytes=9, count=1)))
                for at in range(len(HOSTILE))
            ],
            rows=[v1.StackRow(frames=range(len(HOSTILE)), amounts=v1.StackAmounts(live=v1.Amount(bytes=9)))],
        )
        shown = ("function", "file")
        self.shows_harmlessly(views.View("stacks", frames.stacks(answer), shown=shown, draw=_drawing.stacks))
        table = frames.call_stacks(answer)
        self.shows_harmlessly(views.View("stacks", table, shown=("frames",), draw=_drawing.call_stacks))
        answer = v1.OwnersResponse(owners=[v1.Owner(category=name, owner=name, labels=[name]) for name in HOSTILE])
        shown = ("category", "owner", "labels")
        self.shows_harmlessly(views.View("owners", frames.owners(answer), shown=shown, draw=_drawing.owners))

    def test_names_of_marks_and_processes(self):
        intervals = [v1.Interval(from_boot_ns=at, to_boot_ns=at + 10, max_allocated_bytes=at) for at in (10, 20)]
        answer = v1.FluctuationResponse(devices=[v1.DeviceFluctuation(device=0, intervals=intervals)])
        view = views.View("memory", frames.timeline(answer), shown=("device",), draw=_drawing.timeline)
        view.marks = [(15, name) for name in HOSTILE]
        view.step_ends = [12, 18]
        self.shows_harmlessly(view)
        processes = [v1.Process(facts=v1.ProcessFacts(pid=1, comm=name, cmdline=[name])) for name in HOSTILE]
        table = frames.processes(v1.ListResponse(processes=processes))
        self.shows_harmlessly(views.Frame("processes", table, shown=("comm", "command")))

    def test_lines_of_a_cell(self):
        rows = [(0, None if at % 2 else at + 1, name, name, 5, 1, 2, 1, 3, None) for at, name in enumerate(HOSTILE)]
        table = frames.made("cell", rows)
        self.shows_harmlessly(views.View("cell", table, shown=("code", "place"), draw=_drawing.cell))


class Tables(unittest.TestCase):
    def test_what_is_unknown_is_null_and_types_are_right(self):
        device = v1.DeviceStats(source=v1.SOURCE_POOL, live_blocks=3, peak_unix_ns=1_700_000_000_123_456_789)
        table = frames.stats(v1.StatsResponse(pid=4242, as_of=5, devices=[device]))
        [row] = table.select(["device", "allocated_bytes", "source", "live_blocks"]).to_pylist()
        self.assertEqual(row, {"device": None, "allocated_bytes": None, "source": "pool", "live_blocks": 3})
        self.assertEqual(table.schema.field("peak").type, pyarrow.timestamp("ns", tz="UTC"))
        self.assertEqual(table.column("peak").cast(pyarrow.int64()).to_pylist(), [1_700_000_000_123_456_789])
        self.assertEqual(json.loads(table.schema.metadata[b"memscope"])["pid"], 4242)
        view = views.Frame("stats", table, shown=("device", "allocated_bytes", "peak"))
        self.assertRegex(repr(view), r"\?\s+\?\s+2023-11-14 22:13:20.123Z")
        frame = view.to_pandas()
        self.assertTrue(pandas.isna(frame.allocated_bytes[0]))
        self.assertEqual(frame.live_blocks[0], 3)
        self.assertEqual(polars.DataFrame(view)["peak"][0].astimezone(datetime.timezone.utc).year, 2023)
        self.assertEqual(polars.from_arrow(table)["live_blocks"].to_list(), [3])
        self.assertEqual(pyarrow.table(view).num_rows, 1)

    def test_what_a_level_does_not_show_is_null(self):
        device = v1.DeviceStats(
            source=v1.SOURCE_POOL,
            live_blocks=3,
            alloc_count=4,
            free_count=5,
            oom_count=6,
            peak_allocated_bytes=7,
            peak_unix_ns=8,
        )
        names = ["live_blocks", "alloc_count", "free_count", "oom_count", "peak_allocated_bytes"]
        for code, expected in (
            ("forked", [3, 4, 5, 6, 7]),
            ("level_segments", [None, None, None, 6, 7]),
            ("level_read", [3, None, None, None, None]),
        ):
            notes = [v1.CoverageNote(code=code)]
            table = frames.stats(v1.StatsResponse(devices=[device], coverage=notes))
            [row] = table.select(names).to_pylist()
            self.assertEqual([row[name] for name in names], expected, code)
            self.assertEqual(table.column("peak").null_count, int(code == "level_read"), code)
        holder = v1.DeviceHolder(allocated_bytes=9, allocated_at_least=True)
        answer = v1.DevicesResponse(devices=[v1.MachineDevice(holders=[holder]), v1.MachineDevice()])
        bounds = frames.devices(answer).column("allocated_at_least").to_pylist()
        self.assertEqual(bounds, [True, None])

    def test_the_largest_address_has_room(self):
        parts = [
            v1.SnapshotPart(header=v1.SnapshotHeader(as_of=50, as_of_boot_ns=20)),
            v1.SnapshotPart(segments=v1.SegmentChunk(segments=[_segment(2**64 - 8, False)])),
            v1.SnapshotPart(segments=v1.SegmentChunk(segments=[_segment(2**64 - 8, True)])),
            v1.SnapshotPart(end=v1.SnapshotEnd()),
        ]
        snapshot = frames.SnapshotRead(parts)
        blocks = snapshot.blocks_table().to_pylist()
        self.assertEqual([one["segment_address"] for one in blocks], [2**64 - 8] * 4)
        self.assertEqual([one["requested_bytes"] for one in blocks], [3, None] * 2)
        self.assertEqual(snapshot.blocks_table().column("since").cast(pyarrow.int64()).to_pylist(), [37, None] * 2)
        # A segment that goes on in the next part is one segment.
        [segment] = snapshot.segments_table().to_pylist()
        self.assertEqual((segment["allocated_bytes"], segment["free_bytes"], segment["blocks"]), (8, 16, 4))
        with self.assertRaisesRegex(Exception, "before it was whole"):
            frames.SnapshotRead(parts[:-1])

    def test_each_table_has_its_columns_also_without_rows(self):
        for name in frames.TABLES:
            table = frames.made(name, [])
            self.assertEqual(table.column_names, [column.name for column in frames.TABLES[name]])
            for column, field in zip(frames.TABLES[name], table.schema):
                self.assertEqual(field.metadata[b"what"].decode(), column.what)
                if column.name.endswith("address") or column.name == "stack_id":
                    self.assertEqual(field.type, pyarrow.uint64())

    def test_events_of_each_kind_make_a_row(self):
        bodies = [field.name for field in v1.Event.DESCRIPTOR.oneofs_by_name["body"].fields]
        self.assertGreater(len(bodies), 20)
        events = []
        for name in bodies:
            event = v1.Event(time_boot_ns=7, stack_id=2**64 - 1)
            getattr(event, name).SetInParent()
            events.append(event)
        table = frames.listen(events)
        self.assertEqual(table.column("kind").to_pylist(), bodies)
        self.assertEqual(set(table.column("stack_id").to_pylist()), {2**64 - 1})

    def test_moments(self):
        for text, moment in (
            ("peak", v1.Moment(peak=v1.Peak())),
            ("peak:1", v1.Moment(peak=v1.Peak(device=1))),
            ("mark:a:b", v1.Moment(mark="a:b")),
            ("step:3", v1.Moment(step=3)),
            ("event:9", v1.Moment(event=9)),
            ("1700", v1.Moment(unix_ns=1700)),
        ):
            self.assertEqual(session._moment(text), moment)
        for text in ("", "yesterday", "mark:", "step:x", "peak:-1"):
            with self.assertRaises(ConfigError):
                session._moment(text)

    def test_where_nothing_is_to_draw(self):
        for name, draw in (("leaks", _drawing.leaks), ("timeline", _drawing.timeline), ("blocks", _drawing.blocks)):
            view = views.View("nothing", frames.made(name, []), shown=("device",), draw=draw)
            self.assertNotIn("image/png", view._repr_mimebundle_())
            view.plot()

    def test_very_many_blocks_are_drawn_joined(self):
        count = 3 * _drawing.DRAWN_BLOCKS
        rows = [(0, 4096, 4096 + 8 * at, 8, None, "active", 0, False, 0, 0, None) for at in range(count)]
        # Free room at the end, and a gap before it.
        rows.append((0, 4096, 4096 + 8 * count + 64, 8, None, "inactive", 0, False, 0, 0, None))
        view = views.View("blocks", frames.made("blocks", rows), shown=("address",), draw=_drawing.blocks)
        [lane] = view.plot().collections
        self.assertEqual([round(path.get_extents().width) for path in lane.get_paths()], [8 * count, 8])

    def test_pictures_need_no_pandas(self):
        said = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=False)
        self.assertEqual((said.returncode, said.stdout), (0, "pictures: 7\n"), said.stderr)

    def test_without_matplotlib_there_is_a_table(self):
        answer = v1.OwnersResponse(owners=[v1.Owner(category="weights")])
        view = views.View("owners", frames.owners(answer), shown=("category",), draw=_drawing.owners)
        with mock.patch.dict("sys.modules", {"matplotlib": None, "matplotlib.pyplot": None}):
            bundle = view._repr_mimebundle_()
            self.assertEqual(sorted(bundle), ["text/html", "text/plain"])
            self.assertIn("<td", bundle["text/html"])
            with self.assertRaises(ExtraMissingError) as caught:
                view.plot()
        self.assertIn("pip install matplotlib", caught.exception.hint)


def _segment(address, continued):
    blocks = [
        v1.Block(address=address, size_bytes=4, requested_bytes=3, state=v1.BLOCK_STATE_ACTIVE, since_boot_ns=7),
        v1.Block(address=address + 4, size_bytes=8, requested_bytes=0, state=v1.BLOCK_STATE_INACTIVE),
    ]
    return v1.Segment(address=address, size_bytes=24, blocks=blocks, continued=continued)


if __name__ == "__main__":
    unittest.main()
