"""Snapshots: their marks, files and errors."""

import os
import warnings
from pathlib import Path

import memscope

from .common import WithCtl


class Taken(WithCtl):
    def setUp(self):
        super().setUp()
        self.answers(out={"pid": 1, "file": "f", "bytes": 10})

    def names(self):
        return [call[1].decode() for call in self.calls if call[0] == "mark"]

    def test_a_mark_and_a_file(self):
        taken = memscope.take_snapshot()
        self.assertEqual(self.names(), ["Memory Snapshot"])
        [asked] = self.asked
        self.assertEqual(asked["pid"], os.getpid())
        self.assertEqual(asked["format"], "memory-viz")
        self.assertEqual(asked["output"], str(taken.path))
        self.assertEqual((taken.name, taken.bytes, taken.devices), ("Memory Snapshot", 10, None))
        self.assertEqual(taken.path.parent, Path("memscopeDumpResults"))
        self.assertRegex(
            taken.path.name, rf"^\d{{8}}T\d{{6}}Z-pid-{os.getpid()}-\d{{6}}-Memory-Snapshot\.pickle$"
        )
        self.assertEqual(taken.path.read_text(encoding="utf-8"), "a snapshot")

    def test_where_and_how_config_says(self):
        memscope.config(output_path="-a/b c", format="html")
        one, two = (memscope.take_snapshot(name="../ä/\n x" + "y" * 99) for _ in range(2))
        self.assertNotEqual(one.path, two.path)
        self.assertEqual({p.name for p in Path("-a/b c").iterdir()}, {one.path.name, two.path.name})
        self.assertTrue(one.path.name.endswith("-x" + "y" * 39 + ".html"), one.path)
        self.assertTrue(memscope.take_snapshot(name="äö").path.name.endswith("-snapshot.html"))

    def test_masks(self):
        for mask, devices in ((0, (0,)), ([3], (3,)), ((0, 1), (0, 1)), (None, None)):
            self.assertEqual(memscope.take_snapshot(mask).devices, devices)
        for mask in ("0", 1.5, True, [None], {0}, [[0]]):
            with self.assertRaisesRegex(TypeError, "device_mask is None, a device's number"):
                memscope.take_snapshot(mask)
        for mask in (-1, [0, -2], [], ()):
            with self.assertRaisesRegex(ValueError, "no device, or a negative one"):
                memscope.take_snapshot(device_mask=mask)
        self.assertEqual(len(self.asked), 4)
        self.assertEqual(len(self.calls), 4)

    def test_a_folder_that_cannot_be_made(self):
        Path("file").write_text("", encoding="utf-8")
        memscope.config(output_path="file/below")
        with self.assertRaises(memscope.MemscopeError) as caught:
            memscope.take_snapshot()
        self.assertIn("the folder file/below for snapshots cannot be made", str(caught.exception))
        self.assertIn("try: name another: memscope.config(output_path=...)", str(caught.exception))
        self.assertEqual(self.asked, [])

    def test_a_refusal(self):
        self.refuses("not_traced", "process 1 is not traced", "attach it", exit_code=4)
        with self.assertRaises(memscope.CtlError) as caught:
            memscope.take_snapshot()
        self.assertEqual(caught.exception.code, "not_traced")

    def test_an_answer_that_does_not_say_how_large(self):
        self.answers(out={})
        with self.assertRaisesRegex(memscope.AnswerError, "did not say how large"):
            memscope.take_snapshot()


class Around(WithCtl):
    def setUp(self):
        super().setUp()
        self.answers(out={"bytes": 10})

    def names(self):
        return [call[1].decode() for call in self.calls]

    def test_a_block(self):
        with memscope.TakeSnapshot(0, "epoch") as around:
            self.assertEqual(self.names(), ["epoch Start"])
            self.assertIsNone(around.end)
        self.assertEqual(self.names(), ["epoch Start", "epoch End"])
        self.assertEqual((around.start.name, around.end.name), ("epoch Start", "epoch End"))
        self.assertEqual((around.start.devices, around.end.devices), ((0,), (0,)))

    def test_a_function_a_generator_and_a_coroutine(self):
        @memscope.TakeSnapshot(name="f")
        def plain(x):
            return x + 1

        @memscope.TakeSnapshot()
        def items():
            yield 1

        self.assertEqual(plain(1), 2)
        self.assertEqual(list(items()), [1])
        started = ["f Start", "f End", "Memory Snapshot Start", "Memory Snapshot End"]
        self.assertEqual(self.names(), started)

    def test_what_makes_no_sense_is_told_before_anything_runs(self):
        with self.assertRaises(TypeError):
            memscope.TakeSnapshot("0")
        with self.assertRaises(ValueError):
            memscope.TakeSnapshot(-1)
        with self.assertRaises(TypeError):
            memscope.TakeSnapshot(name=3)

    def test_the_blocks_own_error_is_what_is_seen(self):
        with self.assertRaises(KeyError), memscope.TakeSnapshot(name="n"):
            raise KeyError
        self.assertEqual(self.names(), ["n Start", "n End"])

    def test_a_second_snapshot_that_fails(self):
        with self.assertRaises(memscope.CtlError):
            with memscope.TakeSnapshot(name="n"):
                self.refuses("no_daemon", "no daemon answers", "start it")
        self.answers(out={"bytes": 10})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with self.assertRaises(MemoryError), memscope.TakeSnapshot(name="n"):
                self.refuses("no_daemon", "no daemon answers", "start it")
                raise MemoryError
        [warning] = told
        self.assertIn("no snapshot n End: no daemon answers", str(warning.message))
        self.assertEqual(warning.filename, __file__)
