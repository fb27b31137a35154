"""Eight threads that allocate without a pause and free what others allocated."""

import queue
import threading

import torch

torch.cuda.init()
boxes = [queue.Queue() for _ in range(8)]
errors = []


def work(number):
    try:
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            for turn in range(250):
                size = 1000 + 7919 * ((number * 31 + turn * 17) % 97) * (1 + turn % 5)
                boxes[(number + turn) % 8].put(torch.empty(size, dtype=torch.uint8, device="cuda"))
                if turn % 4 and not boxes[number].empty():
                    try:
                        boxes[number].get_nowait()
                    except queue.Empty:
                        pass
    except Exception as error:  # noqa: BLE001: raised below
        errors.append(error)


workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
for error in errors:
    raise error
