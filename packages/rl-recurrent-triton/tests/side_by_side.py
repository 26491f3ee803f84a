"""Triton's interpreter with the programs of a grid in concurrent threads, so that they can wait for each other.

One runs at a time. It hands over, to one drawn at random, where it reads or raises a counter; so programs are met in
many orders, and where one waits for what never comes, that is found instead of hanging.
"""

import inspect
import itertools
import random
import threading
from contextlib import contextmanager

from triton.runtime import interpreter

builder = interpreter.interpreter_builder
PATIENCE = 2000  # hand-overs in a row in which no counter is raised and no program ends


class Stuck(RuntimeError):
    """All programs wait."""


class _Grid:
    def __init__(self, places, seed):
        self.places, self.draw = places, random.Random(seed)
        self.running = list(range(len(places)))
        self.turns = [threading.Semaphore(0) for _ in places]
        self.idle, self.error, self.now = 0, None, None

    def start_one(self):
        self.now = self.draw.choice(self.running)
        builder.set_grid_idx(*self.places[self.now])
        self.turns[self.now].release()

    def hand_over(self, *, progress):
        me, self.idle = self.now, 0 if progress else self.idle + 1
        if self.idle > PATIENCE:
            self.error = self.error or Stuck(f"{len(self.running)} programs wait for what never comes")
        if self.error:
            raise self.error
        self.start_one()
        self.turns[me].acquire()
        if self.error:
            raise self.error

    def run(self, me, function, arguments):
        self.turns[me].acquire()
        try:
            if not self.error:
                function(**arguments)
        except BaseException as error:  # noqa: BLE001  the thread that started this one raises it
            self.error = self.error or error
        self.running.remove(me)
        self.idle = 0
        if self.running:
            self.start_one()


@contextmanager
def side_by_side(monkeypatch, seed=0):
    """Launches in this block run side by side; yields the sizes of their grids."""
    grids, now = [], []
    atomic = type(builder).create_atomic_rmw

    def call(self, *given, **named):
        named = {name: value for name, value in named.items() if name in inspect.getfullargspec(self.fn).args}
        scope = interpreter._patch_lang(self.fn)
        try:
            arguments = inspect.getcallargs(self.fn, *given, **named)
            arguments = {
                name: value if name in self.constexprs else interpreter._implicit_cvt(value)
                for name, value in arguments.items()
            }
            size = (*self.grid, 1, 1)[:3]
            builder.set_grid_dim(*size)
            grids.append(size)
            now[:] = [_Grid(list(itertools.product(*map(range, size))), seed)]
            threads = [
                threading.Thread(target=now[0].run, args=(i, self.fn, arguments)) for i in range(len(now[0].places))
            ]
            for thread in threads:
                thread.start()
            now[0].start_one()
            for thread in threads:
                thread.join()
            if now[0].error:
                raise now[0].error
        finally:
            scope.restore()

    def counted(self, operation, pointer, value, *rest):
        raised = bool(value.data.any())
        now[0].hand_over(progress=raised)
        found = atomic(self, operation, pointer, value, *rest)
        if raised:  # what this program has yet to write must not be missed by those that go on now
            now[0].hand_over(progress=True)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", call)
        patch.setattr(type(builder), "create_atomic_rmw", counted)
        yield grids
