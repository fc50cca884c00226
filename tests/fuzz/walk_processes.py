# SPDX-License-Identifier: Apache-2.0
"""Calls in processes that are forked from this one, so that what it imported and keeps is theirs; if one crashes, the others go on."""

import gc
import itertools
import multiprocessing
from multiprocessing.connection import wait

BLOCK = 40  # calls of one process: what PyTorch keeps of models that are gone makes the next calls slower


def each(function, values, jobs):
    """(a value, what the function returns for it) of all values, in any order; a str for a process that ended without it."""
    values = iter(values)
    if jobs == 1:
        yield from ((value, function(value)) for value in values)
        return
    gc.collect()
    gc.freeze()
    running = dict(filter(None, (_started(function, values) for _ in range(jobs))))
    while running:
        for pipe in wait([*running]):
            process, left = running[pipe]
            try:
                result = pipe.recv()
            except EOFError:
                del running[pipe]
                process.join()
                if left:
                    yield left[0], f"the process ended with {process.exitcode}"
                    values = itertools.chain(left[1:], values)
                if new := _started(function, values):
                    running[new[0]] = new[1]
            else:
                yield left.pop(0), result


def _started(function, values):
    """(pipe, (process, the values whose results it has not sent)); None without values."""
    block = [*itertools.islice(values, BLOCK)]
    if not block:
        return None
    context = multiprocessing.get_context("fork")
    pipe, end = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(function, block, end))
    process.start()
    end.close()
    return pipe, (process, block)


def _run(function, block, end):
    gc.set_threshold(50_000, 20, 50)  # a fifteenth of the time
    for value in block:
        end.send(function(value))
