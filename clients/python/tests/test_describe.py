"""`describe`: which marks label memory, and what is no label."""

import threading

import memscope
from memscope import describe

from .common import Recorded


class Storage:
    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


class Tensor:
    """As much of a tensor as is asked of it."""

    def untyped_storage(self):
        return Storage(0x7F00_0000_1000)


class Labels(Recorded):
    def test_contexts_and_decorators_are_ranges(self):
        with describe.describer(owner="replay buffer"):
            with describe.describer(owner="inside"):
                pass

        @describe.describer(owner="of a function")
        def function():
            return 7

        self.assertEqual((function(), function()), (7, 7))
        names = [call[2].decode() for call in self.calls if call[0] == "begin"]
        self.assertEqual(
            names,
            [
                "memscope:owner=replay buffer",
                "memscope:owner=inside",
                "memscope:owner=of a function",
                "memscope:owner=of a function",
            ],
        )
        self.assertEqual([call[1] for call in self.calls if call[0] == "end"], [2, 1, 3, 4])

    def test_tensors_and_addresses_are_labelled_at_once(self):
        self.assertIsNone(describe.describer(Tensor(), owner="kv"))
        self.assertIsNone(memscope.describe.describer(4096, owner="ключ"))
        self.assertEqual(
            self.calls,
            [
                ("mark", b"memscope:owner=kv@7f0000001000"),
                ("mark", "memscope:owner=ключ@1000".encode()),
            ],
        )

    def test_the_longest_label_fits_into_what_is_read_of_a_mark(self):
        describe.describer(2**64 - 1, owner="x" * 94)
        self.assertLessEqual(len(self.calls[0][1]), 128)
        describe.describer(1, owner="ж" * 47)
        with self.assertRaisesRegex(memscope.ConfigError, "at most 94 bytes"):
            describe.describer(1, owner="x" * 95)
        with self.assertRaisesRegex(memscope.ConfigError, "at most 94 bytes"):
            describe.describer(owner="ж" * 48)

    def test_what_is_no_label(self):
        for owner in ("", "  ", "a@b", "a\nb", "a\0b"):
            with self.assertRaisesRegex(memscope.ConfigError, "is no label"):
                describe.describer(owner=owner)
        for owner in (None, 3, b"x"):
            with self.assertRaisesRegex(TypeError, "owner is a str"):
                describe.describer(owner=owner)
        for what in ("x", True, 1.5, []):
            with self.assertRaisesRegex(TypeError, "a tensor or an address"):
                describe.describer(what, owner="x")
        for what in (0, -1, 2**64):
            with self.assertRaisesRegex(memscope.ConfigError, "is no address"):
                describe.describer(what, owner="x")
        self.assertEqual(self.calls, [])

    def test_one_that_is_open_is_not_entered_again(self):
        label = describe.describer(owner="x")
        with label:
            with self.assertRaisesRegex(RuntimeError, "has begun and not ended"):
                label.__enter__()
        self.assertEqual(repr(label), "memscope.describe.describer(owner='x')")

    def test_each_call_has_its_own_also_in_other_threads(self):
        @describe.describer(owner="x")
        def function():
            pass

        threads = [threading.Thread(target=function) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = sorted(call[1] for call in self.calls if call[0] == "end")
        self.assertEqual(ends, [1, 2, 3, 4])
