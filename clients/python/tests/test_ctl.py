"""What memscope-ctl is asked, and what becomes of its answers."""

import os
import signal
import tempfile
from unittest import mock

import memscope
from memscope import _ctl

from .common import Recorded, WithCtl


class Attaching(WithCtl):
    def test_start_and_stop_are_of_this_process(self):
        memscope.start()
        memscope.config(level="segments", call_stack="python:20,c:20")
        memscope.start()
        memscope.stop()
        pid = os.getpid()
        self.assertEqual(
            self.asked,
            [
                {"json": True, "command": "attach", "pid": pid, "wait": True, "level": "trace"},
                {
                    "json": True,
                    "command": "attach",
                    "pid": pid,
                    "wait": True,
                    "level": "segments",
                    "stacks": "all",
                    "stack_depth": 20,
                },
                {"json": True, "command": "detach", "pid": pid},
            ],
        )
        self.assertEqual(self.calls, [])

    def test_a_refusal_has_its_words_and_the_way_out(self):
        self.refuses("not_permitted", "you may not", "ask with sudo", exit_code=5)
        for ask in (memscope.start, memscope.stop):
            with self.assertRaises(memscope.CtlError) as caught:
                ask()
            error = caught.exception
            self.assertEqual((error.message, error.hint), ("you may not", "ask with sudo"))
            self.assertEqual((error.code, error.exit_code), ("not_permitted", 5))
            self.assertEqual(str(error), "you may not\n  try: ask with sudo")
            self.assertIsInstance(error, memscope.MemscopeError)

    def test_a_refusal_without_a_way_out(self):
        self.refuses("failed", "it went wrong", None)
        with self.assertRaises(memscope.CtlError) as caught:
            memscope.start()
        self.assertEqual(str(caught.exception), "it went wrong")


class Answers(WithCtl):
    def wrong(self, kind, *words):
        with self.assertRaises(kind) as caught:
            memscope.stop()
        for word in words:
            self.assertIn(word, str(caught.exception))
        return caught.exception

    def test_no_document(self):
        for out in ("", "Detached.\n", "[1, 2]", '{"cut": ', '"text"'):
            self.answers(out=out)
            self.wrong(memscope.AnswerError, "detach did not answer with a JSON object", "--version")

    def test_an_error_that_says_it_is_none(self):
        self.answers(out={"error": {"code": "x", "message": "m", "hint": None}}, exit=0)
        self.wrong(memscope.AnswerError, "did not answer")

    def test_a_failure_without_a_document(self):
        self.answers(out="", err="it broke\nand more\n", exit=1)
        error = self.wrong(memscope.CtlError, "detach ended with 1: it broke\nand more")
        self.assertEqual((error.code, error.exit_code), ("", 1))
        for out in ("[]", {"error": "text"}, {"error": {"message": 3}}):
            self.answers(out=out, exit=1)
            self.wrong(memscope.CtlError, "detach ended with 1")

    def test_a_command_that_an_older_one_does_not_know(self):
        with self.assertRaises(memscope.CtlError) as caught:
            _ctl.ask("question-of-tomorrow")
        self.assertEqual(caught.exception.exit_code, 2)
        self.assertIn("invalid choice", str(caught.exception))
        self.assertIn("is it older than this package?", str(caught.exception))

    def test_one_that_is_killed(self):
        self.answers(out="", signal=int(signal.SIGKILL))
        error = self.wrong(memscope.CtlError, f"was ended by signal {int(signal.SIGKILL)}")
        self.assertEqual(error.exit_code, -int(signal.SIGKILL))

    def test_one_that_never_ends(self):
        # It waits for what nobody writes.
        os.mkfifo(self.folder / "fifo")
        self.ctl.write_text("#!/bin/sh\nexec cat fifo\n", encoding="utf-8")
        with self.assertRaises(memscope.CtlError) as caught:
            _ctl.ask("detach", seconds=0.2)
        self.assertEqual(caught.exception.code, "timeout")
        self.assertIn("did not end within 0.2 s", str(caught.exception))


class Finding(Recorded):
    def missing(self, *words, **environment):
        with mock.patch.dict(os.environ, environment):
            if "MEMSCOPE_CTL" not in environment:
                os.environ.pop("MEMSCOPE_CTL", None)
            for ask in (memscope.start, memscope.stop, memscope.take_snapshot):
                with self.assertRaises(memscope.CtlMissingError) as caught:
                    ask()
                for word in words:
                    self.assertIn(word, str(caught.exception))

    def setUp(self):
        super().setUp()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        memscope.config(output_path=place.name)

    def test_nowhere(self):
        self.missing(
            "memscope-ctl is not on PATH, and MEMSCOPE_CTL is not set",
            "put memscope-ctl on PATH, or name it with MEMSCOPE_CTL",
            PATH="/nonexistent",
        )

    def test_a_name_of_nothing(self):
        for name in ("/nonexistent/ctl", "no-such-program", "/etc/passwd", "/"):
            self.missing(f"MEMSCOPE_CTL names {name}, which is no program", MEMSCOPE_CTL=name)


class OnPath(WithCtl):
    def test_it_is_found_on_path_and_an_empty_name_is_none(self):
        path = f"{self.folder}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"PATH": path, "MEMSCOPE_CTL": ""}):
            memscope.stop()
        self.assertEqual([one["command"] for one in self.asked], ["detach"])

    def test_what_is_no_program_although_it_may_be_started(self):
        self.ctl.write_bytes(b"\x7fELF nothing")
        with self.assertRaises(memscope.CtlMissingError) as caught:
            memscope.stop()
        self.assertIn("memscope-ctl cannot be started: ", str(caught.exception))
