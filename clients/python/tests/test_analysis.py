"""Analyses of files: what memscope-ctl is asked, and what its answer becomes."""

import os
from pathlib import Path

import memscope

from .common import WithCtl

ALL = ["early_allocation", "late_deallocation", "temporary_idleness"]


def leak(**change):
    return {"id": 26, "ptr": "0x000012c007c05200", "size_bytes": 512, **change}


def device(**change):
    known = {"device": "0", "marks": 6, "verdict": "leaks", "leaked_bytes": 512}
    return {**known, "leaks": [leak()], **change}


def block(**change):
    known = {"id": 7, "pid": 42, "device": "1", "pool": "PTA", "ptr": "0x10", "size_bytes": 1024}
    return {**known, "types": ["early_allocation"], **change}


class Leaks(WithCtl):
    def setUp(self):
        super().setUp()
        self.answers(out={"devices": []})

    def test_what_is_asked(self):
        memscope.check_leaks("dump.csv", "step start")
        memscope.check_leaks(Path("/a/b.csv"), mstx_info="--odd", start_index=3)
        memscope.check_leaks("-x.csv", "n")
        asked = [(one["file"], one["mark"], one["start_index"]) for one in self.asked]
        expected = [("dump.csv", "step start", 0), ("/a/b.csv", "--odd", 3), ("./-x.csv", "n", 0)]
        self.assertEqual(asked, expected)
        self.assertEqual({one["command"] for one in self.asked}, {"check-leaks"})

    def test_what_is_answered(self):
        few = device(device=None, marks=2, verdict="too_few_marks", leaked_bytes=None, leaks=[])
        document = {"devices": [device(leaks=[leak(), leak(id=29, ptr=None)]), few], "more": 1}
        self.answers(out=document)
        report = memscope.check_leaks("f", "m")
        first, second = report.devices
        expected = (memscope.Leak(26, 0x12C007C05200, 512), memscope.Leak(29, None, 512))
        self.assertEqual(first, memscope.DeviceLeaks("0", 6, "leaks", 512, expected))
        self.assertEqual(second, memscope.DeviceLeaks(None, 2, "too_few_marks", None, ()))
        self.assertEqual(report.leaks, expected)
        self.assertEqual(report.document, document)

    def test_an_answer_that_is_not_understood(self):
        for document, word in (
            ({}, "check-leaks has no list devices"),
            ({"devices": [3]}, "check-leaks.devices[0] is no object"),
            ({"devices": [device(device=0)]}, "check-leaks.devices[0] has no text device"),
            ({"devices": [device(verdict=None)]}, "devices[0] has no text verdict"),
            ({"devices": [device(leaked_bytes="1")]}, "devices[0] has no number leaked_bytes"),
            ({"devices": [device(), device(leaks={})]}, "devices[1] has no list leaks"),
            ({"devices": [device(leaks=[leak(id="x")])]}, "leaks[0] has no number id"),
            ({"devices": [device(leaks=[leak(ptr="N/A")])]}, "ptr='N/A', which is no address"),
            ({"devices": [device(leaks=[leak(size_bytes=True)])]}, "leaks[0] has no number size_bytes"),
        ):
            self.answers(out=document)
            with self.assertRaises(memscope.AnswerError) as caught:
                memscope.check_leaks("f", "m")
            self.assertIn(word, caught.exception.message)
            self.assertIn("same version", caught.exception.hint)

    def test_a_file_that_cannot_be_judged(self):
        self.refuses("bad_dump", "f: no mark is called m", "the marks there are: x")
        with self.assertRaises(memscope.CtlError) as caught:
            memscope.check_leaks("f", "m")
        self.assertEqual(caught.exception.code, "bad_dump")
        self.assertEqual(caught.exception.hint, "the marks there are: x")

    def test_what_makes_no_sense(self):
        check = memscope.check_leaks
        for error, word, arguments in (
            (TypeError, "input_path is the path of a file, not int", (3, "m")),
            (TypeError, "input_path is the path of a file, not bytes", (b"f", "m")),
            (memscope.ConfigError, "input_path='' is no path", ("", "m")),
            (memscope.ConfigError, "is no path", ("a\0b", "m")),
            (TypeError, "mstx_info is a str, not NoneType", ("f", None)),
            (memscope.ConfigError, "mstx_info='' is the name of no mark", ("f", "")),
            (TypeError, "start_index is an int, not str", ("f", "m", "0")),
            (TypeError, "start_index is an int, not bool", ("f", "m", True)),
            (memscope.ConfigError, "start_index=-1 is out of range", ("f", "m", -1)),
        ):
            with self.assertRaises(error) as caught:
                check(*arguments)
            self.assertIn(word, str(caught.exception))
        self.assertEqual(self.asked, [])


class Inefficient(WithCtl):
    def setUp(self):
        super().setUp()
        self.answers(out={"blocks": []})

    def test_what_is_asked(self):
        memscope.check_inefficient("dump.db")
        memscope.check_inefficient("d", 512, ["late_deallocation"], idle_threshold=60)
        memscope.check_inefficient("d", inefficient_type={"temporary_idleness", ALL[0]})
        asked = [
            (one["file"], one["min_size"], one["type"], one["idle_threshold"]) for one in self.asked
        ]
        expected = [
            ("dump.db", 0, ALL, 3000),
            ("d", 512, ["late_deallocation"], 60),
            ("d", 0, ["early_allocation", "temporary_idleness"], 3000),
        ]
        self.assertEqual(asked, expected)

    def test_of_this_process(self):
        memscope.check_inefficient(mem_size=7)
        (asked,) = self.asked
        self.assertEqual((asked.get("file"), asked["pid"]), (None, os.getpid()))
        self.assertEqual(asked["min_size"], 7)

    def test_what_is_answered(self):
        self.answers(out={"blocks": [block(), block(pid=None, ptr=None, types=ALL, device=None)]})
        report = memscope.check_inefficient("f")
        first = memscope.InefficientBlock(7, 42, "1", "PTA", 16, 1024, ("early_allocation",))
        second = memscope.InefficientBlock(7, None, None, "PTA", None, 1024, tuple(ALL))
        self.assertEqual(report.blocks, (first, second))

    def test_an_answer_that_is_not_understood(self):
        for document, word in (
            ({"blocks": None}, "inefficient has no list blocks"),
            ({"blocks": [block(pool=None)]}, "blocks[0] has no text pool"),
            ({"blocks": [block(types="x")]}, "blocks[0] has no list types of texts"),
        ):
            self.answers(out=document)
            with self.assertRaises(memscope.AnswerError) as caught:
                memscope.check_inefficient("f")
            self.assertIn(word, caught.exception.message)

    def test_what_makes_no_sense(self):
        for error, word, arguments in (
            (TypeError, "mem_size is an int, not float", {"mem_size": 1.5}),
            (memscope.ConfigError, "mem_size=-1 is out of range", {"mem_size": -1}),
            (memscope.ConfigError, "is out of range", {"idle_threshold": 2**64}),
            (TypeError, "inefficient_type is a list of str", {"inefficient_type": ALL[0]}),
            (TypeError, "inefficient_type is a list of str", {"inefficient_type": None}),
            (memscope.ConfigError, "there is: " + ", ".join(ALL), {"inefficient_type": ["early"]}),
            (memscope.ConfigError, "inefficient_type is empty", {"inefficient_type": []}),
        ):
            with self.assertRaises(error) as caught:
                memscope.check_inefficient("f", **arguments)
            self.assertIn(word, str(caught.exception))
        self.assertEqual(self.asked, [])


class Analyzers(WithCtl):
    def test_what_there_is(self):
        self.assertEqual(memscope.list_analyzers(), ["leaks", "inefficient"])
        leaks = memscope.get_analyzer_config("leaks")
        self.assertIs(leaks["config_class"], memscope.LeaksConfig)
        self.assertEqual(
            leaks["parameters"],
            {
                "input_path": {"required": True},
                "mstx_info": {"required": True},
                "start_index": {"required": False, "default": 0},
            },
        )
        inefficient = memscope.get_analyzer_config("inefficient")["parameters"]
        self.assertEqual(inefficient["input_path"], {"required": False, "default": None})
        self.assertEqual(inefficient["inefficient_type"]["default"], tuple(ALL))
        self.assertEqual(inefficient["idle_threshold"]["default"], 3000)

    def test_by_name(self):
        self.answers(out={"devices": [], "blocks": []})
        leaks = memscope.analyze("leaks", input_path="f", mstx_info="m", start_index=1)
        self.assertIsInstance(leaks, memscope.LeaksReport)
        blocks = memscope.analyze("inefficient", input_path="f", mem_size=5)
        self.assertIsInstance(blocks, memscope.InefficientReport)
        self.assertEqual([one["command"] for one in self.asked], ["check-leaks", "inefficient"])
        self.assertEqual(self.asked[0]["start_index"], 1)
        self.assertEqual(self.asked[1]["min_size"], 5)

    def test_what_there_is_not(self):
        for call, word in (
            (lambda: memscope.analyze("decompose"), "there is: leaks, inefficient"),
            (lambda: memscope.get_analyzer_config("x"), "there is no analysis 'x'"),
            (lambda: memscope.analyze("leaks", mstx="m"), "there is: input_path, mstx_info, start"),
            (lambda: memscope.analyze("leaks", input_path="f"), "needs mstx_info"),
        ):
            with self.assertRaises(memscope.ConfigError) as caught:
                call()
            self.assertIn(word, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "an analysis is a str, not list"):
            memscope.analyze(["leaks"])

    def test_without_memscope_ctl(self):
        os.environ["MEMSCOPE_CTL"] = "/nonexistent"
        with self.assertRaises(memscope.CtlMissingError):
            memscope.check_inefficient("f")
