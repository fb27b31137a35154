"""Marks: what the library is called with."""

import asyncio
import inspect
import threading
import unittest

import memscope

from .common import Recorded


class Names(Recorded):
    def test_a_mark_is_its_name_in_utf_8(self):
        memscope.mark("forward")
        memscope.mark("прямой ход")
        memscope.mark("")
        self.assertEqual(
            self.calls,
            [("mark", b"forward"), ("mark", "прямой ход".encode()), ("mark", b"")],
        )

    def test_a_nul_and_half_a_surrogate_pair_are_replaced(self):
        memscope.mark("a\0b\0")
        memscope.mark("\ud800x\0")
        with memscope.range("r\0"):
            pass
        self.assertEqual(
            self.calls,
            [
                ("mark", "a␀b␀".encode()),
                ("mark", "?x␀".encode()),
                ("begin", 1, "r␀".encode()),
                ("end", 1),
            ],
        )

    def test_what_is_no_str_is_refused_by_name(self):
        for wrong in (b"bytes", None, 3, ["x"]):
            for use in (memscope.mark, memscope.range):
                with self.assertRaisesRegex(TypeError, f"not {type(wrong).__name__}$"):
                    use(wrong)
        with self.assertRaisesRegex(TypeError, "not function$"):

            @memscope.range
            def without_a_name():
                pass

        self.assertEqual(self.calls, [])


class Ranges(Recorded):
    def test_ranges_overlap_by_their_numbers(self):
        outer, inner = memscope.range("outer"), memscope.range("inner")
        with outer:
            inner.__enter__()
        inner.__exit__(None, None, None)
        expected = [("begin", 1, b"outer"), ("begin", 2, b"inner"), ("end", 1), ("end", 2)]
        self.assertEqual(self.calls, expected)

    def test_a_range_ends_where_it_raises(self):
        with self.assertRaises(KeyError), memscope.range("r"):
            raise KeyError
        self.assertEqual(self.calls, [("begin", 1, b"r"), ("end", 1)])

    def test_a_range_can_be_used_again_but_not_twice_at_once(self):
        one = memscope.range("r")
        for _ in range(2):
            with one:
                pass
        with one, self.assertRaisesRegex(RuntimeError, "'r' has begun and not ended"):
            one.__enter__()
        numbers = [call[1] for call in self.calls]
        self.assertEqual(numbers, [1, 1, 2, 2, 3, 3])

    def test_what_never_began_ends_nothing(self):
        memscope.range("r").__exit__(None, None, None)
        self.assertEqual(self.calls, [])

    def test_it_says_what_it_is(self):
        self.assertEqual(repr(memscope.range("a'b")), 'memscope.range("a\'b")')


class Decorated(Recorded):
    def test_a_function_is_a_range_for_each_call_also_inside_itself(self):
        @memscope.range("f")
        def factorial(n, *, log):
            """Its words."""
            log.append(len(self.calls))
            return n * factorial(n - 1, log=log) if n else 1

        log = []
        self.assertEqual(factorial(2, log=log), 2)
        self.assertEqual(log, [1, 2, 3])
        self.assertEqual([call[:2] for call in self.calls[3:]], [("end", 3), ("end", 2), ("end", 1)])
        self.assertEqual((factorial.__name__, factorial.__doc__), ("factorial", "Its words."))

    def test_a_method_keeps_its_object(self):
        class Model:
            @memscope.range("m")
            def forward(self, x):
                return (self, x)

        model = Model()
        self.assertEqual(model.forward(3), (model, 3))
        self.assertEqual(len(self.calls), 2)

    def test_only_what_can_be_called_is_decorated(self):
        with self.assertRaisesRegex(TypeError, "not int"):
            memscope.range("r")(3)

    def test_a_generator_is_a_range_from_its_first_item_to_its_end(self):
        @memscope.range("g")
        def doubled():
            received = yield "first"
            while received is not None:
                try:
                    received = yield received * 2
                except KeyError:
                    received = 0
            return "done"

        self.assertTrue(inspect.isgeneratorfunction(doubled))
        running = doubled()
        self.assertEqual(self.calls, [])
        self.assertEqual(next(running), "first")
        self.assertEqual(self.calls, [("begin", 1, b"g")])
        self.assertEqual(running.send(4), 8)
        self.assertEqual(running.throw(KeyError()), 0)
        self.assertEqual(len(self.calls), 1)
        with self.assertRaises(StopIteration) as ended:
            running.send(None)
        self.assertEqual(ended.exception.value, "done")
        self.assertEqual(self.calls[1:], [("end", 1)])

    def test_a_generator_that_is_closed_or_raises_ends_its_range(self):
        @memscope.range("g")
        def items():
            yield 1
            raise KeyError

        closed, raises = items(), items()
        next(closed)
        next(raises)
        closed.close()
        with self.assertRaises(KeyError):
            next(raises)
        self.assertEqual(self.calls[2:], [("end", 1), ("end", 2)])

    def test_a_coroutine_is_a_range_while_it_waits(self):
        @memscope.range("c")
        async def work(gate, result):
            await gate.wait()
            return result

        async def both():
            gate = asyncio.Event()
            tasks = [asyncio.ensure_future(work(gate, n)) for n in (10, 20)]
            while len(self.calls) < 2:
                await asyncio.sleep(0)
            self.assertEqual([call[0] for call in self.calls], ["begin", "begin"])
            gate.set()
            return await asyncio.gather(*tasks)

        self.assertTrue(inspect.iscoroutinefunction(work))
        self.assertEqual(asyncio.run(both()), [10, 20])
        self.assertEqual(sorted(self.calls[2:]), [("end", 1), ("end", 2)])

    def test_a_coroutine_that_is_cancelled_ends_its_range(self):
        @memscope.range("c")
        async def forever():
            await asyncio.Event().wait()

        async def cancels():
            task = asyncio.ensure_future(forever())
            while not self.calls:
                await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(cancels())
        self.assertEqual(self.calls, [("begin", 1, b"c"), ("end", 1)])

    def test_an_asynchronous_generator_is_a_range_to_its_end(self):
        @memscope.range("a")
        async def doubled():
            received = yield "first"
            while received is not None:
                try:
                    received = yield received * 2
                except KeyError:
                    received = yield "caught"

        async def uses():
            running = doubled()
            self.assertEqual(self.calls, [])
            self.assertEqual(await running.__anext__(), "first")
            self.assertEqual(await running.asend(4), 8)
            self.assertEqual(await running.athrow(KeyError()), "caught")
            self.assertEqual(len(self.calls), 1)
            with self.assertRaises(StopAsyncIteration):
                await running.asend(None)
            self.assertEqual(self.calls[1:], [("end", 1)])

        self.assertTrue(inspect.isasyncgenfunction(doubled))
        asyncio.run(uses())

    def test_an_asynchronous_generator_that_is_closed_or_raises_ends_its_range(self):
        ended = []

        @memscope.range("a")
        async def items():
            try:
                yield 1
                raise KeyError
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        async def uses():
            closed, raises = items(), items()
            await closed.__anext__()
            await raises.__anext__()
            await closed.aclose()
            with self.assertRaises(KeyError):
                await raises.__anext__()

        asyncio.run(uses())
        self.assertEqual(self.calls[2:], [("end", 1), ("end", 2)])
        self.assertEqual(ended, [True, True])


class Steps(Recorded):
    def test_steps_count_up_from_all_threads(self):
        first = memscope.step()
        numbers = []

        def work():
            for _ in range(200):
                numbers.append(memscope.step())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(numbers), list(range(first + 1, first + 801)))
        self.assertEqual(self.calls, [("step",)] * 801)


if __name__ == "__main__":
    unittest.main()
