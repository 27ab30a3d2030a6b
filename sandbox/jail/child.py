"""One run in a forked child: isolate the process, report that by one byte, then execute the program.

Bytes on the status pipe: `R` isolated, `C` compiled, `S` syntax error, `E` and a text: not isolated. The pipe is closed
before the program's first line runs, so that the program cannot forge them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import contextlib
import gc
import json
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from ..wire import service, values
from . import interpreter
from .isolation import Isolation, Layers

# Descriptors of the status pipe, and the first of the channels for answers.
STATUS, FIRST_CHANNEL = 3, 4
# Exit codes after MemoryError, and after another uncaught exception (the interpreter's own).
EXIT_MEMORY, EXIT_CRASH = 86, 1
# The original: the program's may be another function.
_getpid = os.getpid
_HIGH = 200  # descriptors are moved up to here first, and down from here to their places


# This project's modules, which programs do not see.
_ours: dict[str, types.ModuleType] = {}


def hide_ours() -> None:
    """Drop this project's modules from `sys.modules`, in the server: a child would write to every page with a name."""
    for name in [name for name in sys.modules if name == "rlvr" or name.startswith("rlvr.")]:
        _ours[name] = sys.modules.pop(name)


_REHEARSAL = """
import sys
class Solution:
    def total(self, numbers: list[int]) -> int:
        \'\'\'Sum.\'\'\'
        return sum(number for number in numbers if number > 0)
def text(value=1, *rest, **names):
    found = {"a": [value], "b": (1, 2.5)}
    try:
        for index in range(3):
            found["a"].append(index * 2 // 1)
        while not found: pass
    except ValueError as error:
        raise
    return f"{value}" + str(found["b"][0]) + " ".join(map(str, sorted(found["a"], key=lambda each: -each)))
print(text(), sys.stdin.readline()[::-1], Solution().total([1, -2]))
if __name__ == "__main__": print(input())
"""


def rehearse() -> None:
    """Do once, in the server, what a child does: what the interpreter notes of types and functions is then shared."""
    streams = sys.stdin, sys.stdout
    with open(os.devnull) as sys.stdin, open(os.devnull, "w") as sys.stdout:
        for _ in range(2):
            job = os.memfd_create("rehearsal")
            os.write(job, json.dumps({"program": _REHEARSAL, "prelude": "", "calls": []}).encode())
            os.lseek(job, 0, os.SEEK_SET)
            with contextlib.suppress(EOFError):
                exec(_parse_program(_read(job)["program"], "main.py"), types.ModuleType("__main__").__dict__)
            interpreter.flush_streams()
    sys.stdin, sys.stdout = streams
    linecache.cache.clear()


def run(isolation: Isolation, layers: Layers, mode: str, descriptors: list[int]) -> NoReturn:
    """Isolate this process and run what `mode` and the payload descriptor ask for. Ends by `os._exit`."""
    try:
        payload, *others = descriptors
        payload, ruleset = _place(payload, isolation.ruleset, others)
        layers.apply(ruleset)
        os.write(STATUS, b"R")
    except OSError as error:
        # The program has not run: the missing "R" tells the caller so, and the text tells why.
        os.write(STATUS, f"E{error}".encode())
        os._exit(EXIT_CRASH)
    try:
        MODES[mode](_read(payload))
    except MemoryError:
        os._exit(EXIT_MEMORY)
    except BaseException:
        os._exit(EXIT_CRASH)
    os._exit(0)


def _place(payload: int, ruleset: int | None, others: list[int]) -> tuple[int, int | None]:
    """Move stdin, stdout, stderr to 0-2, status pipe and channels to 3 and up, payload and ruleset to high numbers.

    Closes all other descriptors. Returns the new numbers of payload and ruleset.
    """
    kept = [*others, payload] + ([] if ruleset is None else [ruleset])
    for number, descriptor in enumerate(kept):
        os.dup2(descriptor, _HIGH + number)
    os.closerange(3, _HIGH)
    for number in range(len(others)):
        os.dup2(_HIGH + number, number)
        os.close(_HIGH + number)
    return _HIGH + len(others), None if ruleset is None else _HIGH + len(others) + 1


def _read(payload: int) -> dict[str, Any]:
    """Return the job in the payload, and close it."""
    data = b""
    while part := os.read(payload, os.fstat(payload).st_size + 1):
        data += part
    os.close(payload)
    job: dict[str, Any] = json.loads(data.decode())
    return job


def _compile(program: str, name: str) -> types.CodeType:
    """Compile the program, report whether it compiles, and close the status pipe."""
    try:
        code = _parse_program(program, name)
    except (SyntaxError, ValueError, OverflowError, RecursionError) as error:
        os.write(STATUS, b"S")
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_CRASH)
    os.write(STATUS, b"C")
    os.close(STATUS)
    return code


def _parse_program(program: str, name: str) -> types.CodeType:
    code = compile(program, name, "exec", dont_inherit=True)
    # For `inspect.getsource` and tracebacks: there is no such file.
    known = (len(program), None, program.splitlines(keepends=True), name)
    linecache.cache[name] = linecache.cache[os.path.join(os.getcwd(), name)] = known
    return code


def _module(name: str) -> dict[str, Any]:
    """Return the namespace of a fresh module."""
    module = types.ModuleType(name)
    module.__file__ = os.path.join(os.getcwd(), "main.py" if name == "__main__" else f"{name}.py")
    sys.modules[name] = module
    sys.argv = sys.orig_argv = ["main.py"]
    sys.path.insert(0, os.getcwd())
    # Not the function of `signal`, which makes enumerations of its arguments.
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    gc.freeze()
    gc.enable()
    return module.__dict__


def _finish(code: int, held: list[dict[str, Any]] | None = None) -> NoReturn:
    """Shut down as the interpreter does (threads, exit functions, flush), then exit.

    held: the only reference to the variables of the main module. Dropping it ends generators and runs `__del__`, which
    may print.
    """
    threading = sys.modules.get("threading")
    if threading is not None:
        # Private, but the only way to wait for threads as the interpreter does.
        threading._shutdown()
    atexit._run_exitfuncs()
    if held:
        interpreter.flush_streams()
        for name in ("stdin", "stdout", "stderr"):
            # The program may have closed, detached or deleted it.
            with contextlib.suppress(ValueError, AttributeError):
                if not (stream := getattr(sys, f"__{name}__")).closed:
                    setattr(sys, name, stream)
        sys.modules.pop("__main__", None)
        held.clear()
        gc.collect()
    interpreter.flush_streams()
    os._exit(code)


def _exit_code(error: BaseException) -> int:
    """Print an uncaught exception and return its exit code, both as the interpreter does; EXIT_MEMORY out of memory."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code = int(error.code or 0)
            return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
        print(error.code, file=sys.stderr)
        return EXIT_CRASH
    traceback.print_exception(error, limit=-20)
    return EXIT_MEMORY if isinstance(error, MemoryError) else EXIT_CRASH


def _prelude(job: dict[str, Any], names: dict[str, Any]) -> None:
    """Execute the prelude by itself, so that the program may begin with a docstring and imports from __future__."""
    if job["prelude"]:
        exec(compile(job["prelude"], "prelude.py", "exec", dont_inherit=True), names)


def _run_plain(job: dict[str, Any]) -> None:
    code = _compile(job["program"], "main.py")
    held = [_module("__main__")]
    try:
        _prelude(job, held[0])
        exec(code, held[0])
    except BaseException as error:
        result = _exit_code(error)
    else:
        result = 0
    _finish(result, held)


def _load(job: dict[str, Any]) -> dict[str, Any]:
    """Return the program's namespace after program and setup. Its `__name__` is not "__main__": it is imported."""
    code = _compile(job["program"], "solution.py")
    names = _module("solution")
    _prelude(job, names)
    exec(code, names)
    if job["setup"]:
        exec(compile(job["setup"], "setup.py", "exec", dont_inherit=True), names)
    return names


def _run_loaded(then: Callable[[dict[str, Any], dict[str, Any]], None], job: dict[str, Any]) -> None:
    asked = _getpid()
    try:
        names = _load(job)
    except BaseException as error:
        _finish(_exit_code(error) or EXIT_CRASH)
    _end_copies(asked)
    then(names, job)


def _end_copies(asked: int) -> None:
    """End a process that the program has forked: only the one that was asked answers."""
    if _getpid() != asked:
        _finish(0)


def _answer_calls(names: dict[str, Any], job: dict[str, Any]) -> None:
    asked = _getpid()
    for number, call in enumerate(job["calls"]):
        try:
            args, kwargs = values.decode(call["args"]), values.decode(call["kwargs"])
        except values.PlainError:
            service.send(FIRST_CHANNEL, {"n": number, "v": values.LEFT_OUT})
            continue
        try:
            value = service.find_entry(names, call["entry"])(*args, **kwargs)
            answer = {"n": number, "v": values.encode_value(value)}
        except Exception as error:
            answer = {"n": number, "x": type(error).__name__}
        _end_copies(asked)
        service.send(FIRST_CHANNEL, answer)


def _serve(names: dict[str, Any], job: dict[str, Any]) -> None:
    service.serve(names, FIRST_CHANNEL, FIRST_CHANNEL + 1, _end_copies)


def _converse(job: dict[str, Any]) -> None:
    """Run programs one after the other in one namespace, as they come in; after each, tell how it ended.

    "x" is the exit code: 0, EXIT_CRASH after an uncaught exception, EXIT_MEMORY out of memory.
    """
    asked = _getpid()
    _compile("", "main.py")
    names = _module("__main__")
    requests = open(FIRST_CHANNEL, "rb", closefd=False)  # noqa: SIM115
    for number, line in enumerate(iter(requests.readline, b"")):
        try:
            exec(_parse_program(values.loads(line), f"call{number + 1}.py"), names)
            code = 0
        except BaseException as error:
            code = _exit_code(error)
        _end_copies(asked)
        interpreter.flush_streams()
        service.send(FIRST_CHANNEL + 1, {"n": number, "x": code})


def _judge() -> Any:
    """Return the module `judge`, which only servers for tests import: each page of memory slows all forks down."""
    return _ours["rlvr.sandbox.testcode.judge"]


def _test(job: dict[str, Any]) -> None:
    _compile(job["test"], "test.py")
    gc.enable()
    channels = {"requests": FIRST_CHANNEL, "replies": FIRST_CHANNEL + 1, "verdict": FIRST_CHANNEL + 2}
    _judge().run_tests(job, **channels)


def _test_together(names: dict[str, Any], job: dict[str, Any]) -> None:
    asked = _getpid()
    _judge().run_together(names, job, FIRST_CHANNEL, lambda: _end_copies(asked))
    _finish(0)


MODES: dict[str, Callable[[dict[str, Any]], None]] = {
    "plain": _run_plain,
    "calls": lambda job: _run_loaded(_answer_calls, job),
    "serve": lambda job: _run_loaded(_serve, job),
    "session": _converse,
    "test": _test,
    "together": lambda job: _run_loaded(_test_together, job),
}
