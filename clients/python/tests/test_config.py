"""`config`: what it takes, refuses, and means."""

from unittest import mock

import memscope
from memscope import _config

from .common import Recorded


def arguments():
    return " ".join(_config.wishes().attach_arguments())


class Meanings(Recorded):
    def test_what_nobody_says(self):
        self.assertEqual(arguments(), "--level trace")

    def test_levels(self):
        meanings = {"op": "trace", "0": "trace", "trace": "trace", "blocks": "blocks"}
        meanings.update({"segments": "segments", "read": "read"})
        for level, means in meanings.items():
            memscope.config(level=level)
            self.assertEqual(arguments(), f"--level {means}")

    def test_stacks(self):
        for value, means in {
            "python": " --stacks python",
            "c": " --stacks native",
            "c:7": " --stacks native --stack-depth 7",
            "python:50": " --stacks python --stack-depth 50",
            "python:1000, c:1000": " --stacks all --stack-depth 1000",
            "c,python": " --stacks all",
            "python:0": " --stacks none",
            "python:0,c:3": " --stacks native --stack-depth 3",
            "none": " --stacks none",
        }.items():
            memscope.config(call_stack=value)
            self.assertEqual(arguments(), "--level trace" + means, value)

    def test_what_memscope_does_anyway(self):
        memscope.config(device="npu", events="alloc,free", analysis="leaks,oom")
        memscope.config(events="free", analysis="none")
        self.assertEqual(arguments(), "--level trace")

    def test_accesses(self):
        for said in ({"events": "alloc,free,launch"}, {"events": "access"}, {"analysis": "leaks,inefficient"}):
            with self.subTest(said), mock.patch.object(_config, "_said", _config.Wishes()):
                memscope.config(**said)
                self.assertEqual(arguments(), "--level trace --accesses")
                # What is said of something else leaves it.
                memscope.config(level="blocks", call_stack="none")
                self.assertEqual(arguments(), "--level blocks --stacks none --accesses")

    def test_accesses_are_taken_back(self):
        """By the word that asked for them, each by itself."""
        memscope.config(analysis="inefficient")
        memscope.config(analysis="none")
        self.assertEqual(arguments(), "--level trace")
        memscope.config(events="access")
        memscope.config(events="alloc,free")
        self.assertEqual(arguments(), "--level trace")
        memscope.config(events="launch", analysis="inefficient")
        memscope.config(analysis="leaks")
        self.assertEqual(arguments(), "--level trace --accesses")
        memscope.config(analysis="inefficient", events="free")
        self.assertEqual(arguments(), "--level trace --accesses")
        memscope.config(analysis="oom")
        self.assertEqual(arguments(), "--level trace")

    def test_what_is_watched(self):
        for value, means in {
            "aten::add,aten::mul": _config.Between("aten::add", "aten::mul"),
            "add:3, mul": _config.Between("add", "mul", 3),
            "aten::add:0,mul,full-content": _config.Between("aten::add", "mul", 0, True),
        }.items():
            with self.subTest(value), mock.patch.object(_config, "_said", _config.Wishes()):
                memscope.config(watch=value)
                self.assertEqual(_config.wishes().watch, means)
                memscope.config(watch=value)
                with self.assertRaisesRegex(memscope.ConfigError, "is said once in a process"):
                    memscope.config(watch="aten::sub,aten::mul")

    def test_calls_add_up(self):
        memscope.config(level="blocks")
        memscope.config(call_stack="c", output="here", data_format="html")
        self.assertEqual(arguments(), "--level blocks --stacks native")
        self.assertEqual(_config.wishes().output_path, "here")
        self.assertEqual(_config.wishes().format, "html")

    def test_what_is_said_once_may_be_repeated_but_not_changed(self):
        memscope.config(output_path="here", format="json")
        memscope.config(output_path="here", data_format="json")
        for change in ({"output": "there"}, {"format": "html"}):
            with self.assertRaisesRegex(memscope.ConfigError, "is said once in a process"):
                memscope.config(**change)
        self.assertEqual(_config.wishes().output_path, "here")


class Refusals(Recorded):
    def refused(self, kind, *words, **wanted):
        with self.assertRaises(kind) as caught:
            memscope.config(**wanted)
        self.assertIs(type(caught.exception), kind)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(_config.wishes(), _config.Wishes())

    def test_nothing(self):
        self.refused(memscope.ConfigError, "was given nothing", "output_path")
        with self.assertRaises(ValueError):
            memscope.config()

    def test_arguments_without_a_name(self):
        with self.assertRaises(TypeError):
            memscope.config("op")

    def test_what_is_no_string(self):
        for value in (1, None, ["op"], b"op"):
            self.refused(TypeError, f"level is a string, not {type(value).__name__}", level=value)

    def test_unknown_words(self):
        everything = "device, level, events, call_stack, analysis, watch, format, output_path"
        self.refused(memscope.ConfigError, "does not know lvel", everything, lvel="op")

    def test_unknown_values(self):
        for key, value, there_is in (
            ("level", "deep", "op, read, segments, blocks, trace"),
            ("device", "gpu", "npu, which means"),
            ("device", "npu:x", "npu, which means"),
            ("events", "alloc,frees", "alloc, free"),
            ("call_stack", "java", "python[:N], c[:N]"),
            ("call_stack", "python:-1", "python[:N], c[:N]"),
            ("call_stack", "python:1001", "N from 0 to 1000"),
            ("call_stack", "python:", "python[:N], c[:N]"),
            ("analysis", "leak", "leaks, oom"),
            ("analysis", "oom:", "leaks, oom"),
            ("watch", "aten::add", "start[:output],end"),
            ("watch", "aten::add,aten::mul,content", "start[:output],end"),
            ("watch", "aten::add,aten::mul,full-content,x", "start[:output],end"),
            ("watch", "a" * 256 + ",aten::mul", "start[:output],end"),
            ("format", "xml", "memory-viz, perfetto, html, json, memory-viz-json"),
        ):
            wanted = {key: value}
            self.refused(memscope.ConfigError, f"{key}={value!r}", there_is, **wanted)

    def test_what_memscope_does_not_do(self):
        for key, value, word in (
            ("level", "kernel", "single kernels"),
            ("level", "1", "single kernels"),
            ("device", "cpu", "memory of the host"),
            ("device", "npu:0", "all devices of a process"),
            ("device", "npu,npu:31", "all devices of a process"),
            ("events", "traceback", "Python functions"),
            ("events", "none", "always records"),
            ("call_stack", "python:10,c:20", "one depth"),
            ("analysis", "decompose", "when it is asked"),
            ("analysis", "oom:10", "K largest blocks"),
            ("format", "csv", "no such file"),
            ("data_format", "db", "no such file"),
        ):
            self.refused(memscope.UnsupportedError, word, "\n  try: ", **{key: value})

    def test_empty_twice_and_too_long(self):
        error = memscope.ConfigError
        self.refused(error, "level is empty", level=" ")
        self.refused(error, "has an empty word", events="alloc,,free")
        self.refused(error, "says python twice", call_stack="python:1,python:1")
        self.refused(error, "output_path and output are the same", output_path="a", output="a")
        self.refused(error, "output_path is too long", output_path="x" * 4097)
        self.refused(error, "output_path is no path", output_path="a\0b")

    def test_either_all_of_a_call_holds_or_nothing(self):
        self.refused(memscope.ConfigError, "deep", call_stack="c", output="here", level="deep")
