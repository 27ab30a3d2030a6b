"""One run in a forked child: isolate the process, report that by one byte, then execute the program.

Bytes on the status pipe: `R` isolated, `C` compiled, `S` syntax error, `E` and a text: not isolated. The pipe is closed
before the program's first line runs, so that the program cannot forge them.
"""

from __future__ import annotations

import atexit
import gc
import json
import linecache
import os
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from rlvr.sandbox.inside import interpreter, judge, kernel, landlock, plain, seccomp, service, syscalls

# Descriptors of the status pipe, and the first of the channels for answers.
STATUS, FIRST_CHANNEL = 3, 4
# Exit codes after MemoryError, and after another uncaught exception (the interpreter's own).
EXIT_MEMORY, EXIT_CRASH = 86, 1
# Devices that a program may open.
# Not /dev/zero: mapped, it is shared memory that no limit counts.
DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
# The original: the program's raises no error where a limit cannot be set.
_setrlimit = resource.setrlimit
_STACK = 64 << 20  # bytes, the limit of the stack
_SIGNALS = 128  # queued, of all processes of the user
_HIGH = 200  # descriptors are moved up to here first, and down from here to their places
# The scratch directory holds this many files of maximum size, and this many files in all.
SCRATCH_FILES, MAX_FILES = 4, 4096


class Isolation(NamedTuple):
    """Isolation layers that a server determined once and each of its children applies.

    `landlock`: ABI version, 0 for none. `scratch`: directory that the program may write to. `ruleset`: descriptor of a
    prepared Landlock ruleset, or None. `uid`: user to become if the server had to stay root, else None. `last_pid`:
    descriptor that sets process numbers, or None.
    """

    namespaces: bool
    landlock: int
    seccomp: bool
    scratch: str
    ruleset: int | None = None
    uid: int | None = None
    last_pid: int | None = None

    @property
    def place(self) -> str:
        """The directory in which a program starts. Without a mount for each run, it is made for each run."""
        return self.scratch if self.namespaces else os.path.join(self.scratch, "run")


def make_place(isolation: Isolation) -> None:
    """Make the directory of the next run, whose dates and size tell nothing of the one before."""
    os.mkdir(isolation.place, 0o700)


def run(isolation: Isolation, header: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Isolate this process and run what `header` and the payload descriptor ask for. Ends by `os._exit`."""
    try:
        payload, *others = descriptors
        payload, ruleset = _place(payload, isolation.ruleset, others)
        _isolate(isolation, ruleset, header)
        os.write(STATUS, b"R")
    except OSError as error:
        # The program has not run: the missing "R" tells the caller so, and the text tells why.
        os.write(STATUS, f"E{error}".encode())
        os._exit(EXIT_CRASH)
    try:
        with open(payload, "rb") as file:
            job = json.load(file)
        MODES[header["mode"]](job)
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


def _isolate(isolation: Isolation, ruleset: int | None, header: dict[str, Any]) -> None:
    os.setpgid(0, 0)
    if isolation.namespaces:
        size = SCRATCH_FILES * header["file_mb"]
        kernel.unshare(kernel.CLONE_NEWNS)
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", isolation.scratch, "tmpfs", flags, f"size={size}m,nr_inodes={MAX_FILES},mode=0700")
    os.chdir(isolation.place)
    _limit(header)
    if isolation.uid is not None:
        kernel.become_but_for_files(isolation.uid)
    kernel.drop_capabilities()
    # Set last of these: the kernel resets both where ids or capabilities change.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if isolation.landlock:
        if ruleset is None:
            ruleset = landlock.create(isolation.landlock, ["/"], [isolation.scratch], DEVICES)
        landlock.restrict(ruleset)
        os.close(ruleset)
    if isolation.seccomp:
        free_signals = isolation.namespaces or isolation.landlock >= 6
        seccomp.install(seccomp.build(syscalls.architecture(), None if free_signals else os.getpid()))


def _limit(header: dict[str, Any]) -> None:
    seconds = int(header["seconds"]) + 2
    memory = header["memory_mb"] << 20
    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NPROC, header["processes"]),
        (resource.RLIMIT_NOFILE, header["files"]),
        (resource.RLIMIT_FSIZE, header["file_mb"] << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, _STACK),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        _setrlimit(what, (value, value))


def _compile(program: str, name: str) -> types.CodeType:
    """Compile the program, report whether it compiles, and close the status pipe."""
    try:
        code = compile(program, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError) as error:
        os.write(STATUS, b"S")
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_CRASH)
    os.write(STATUS, b"C")
    os.close(STATUS)
    # For `inspect.getsource` and tracebacks: there is no such file.
    known = (len(program), None, program.splitlines(keepends=True), name)
    linecache.cache[name] = linecache.cache[os.path.join(os.getcwd(), name)] = known
    return code


def _module(name: str) -> dict[str, Any]:
    """Return the namespace of a fresh module and drop rlvr's modules from `sys.modules`."""
    for ours in [key for key in sys.modules if key == "rlvr" or key.startswith("rlvr.")]:
        del sys.modules[ours]
    module = types.ModuleType(name)
    module.__file__ = os.path.join(os.getcwd(), "main.py" if name == "__main__" else f"{name}.py")
    sys.modules[name] = module
    sys.argv = sys.orig_argv = ["main.py"]
    sys.path.insert(0, os.getcwd())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    return module.__dict__


def _finish(code: int) -> NoReturn:
    """Shut down as the interpreter does (threads, exit functions, flush), then exit."""
    threading = sys.modules.get("threading")
    if threading is not None:
        # Private, but the only way to wait for threads as the interpreter does.
        threading._shutdown()
    atexit._run_exitfuncs()
    interpreter.flush_streams()
    os._exit(code)


def _exit_code(error: BaseException) -> int:
    """Print an uncaught exception and return its exit code, both as the interpreter does; EXIT_MEMORY out of memory."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return int(error.code or 0) & 0xFF
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
    names = _module("__main__")
    try:
        _prelude(job, names)
        exec(code, names)
    except BaseException as error:
        result = _exit_code(error)
    else:
        result = 0
    _finish(result)


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
    try:
        names = _load(job)
    except BaseException as error:
        _finish(_exit_code(error) or EXIT_CRASH)
    then(names, job)


def _answer_calls(names: dict[str, Any], job: dict[str, Any]) -> None:
    for number, call in enumerate(job["calls"]):
        try:
            if call["expression"]:
                value = eval(compile(call["expression"], "call.py", "eval", dont_inherit=True), names)
            else:
                value = service.entry(names, call["entry"])(*plain.decode(call["args"]), **plain.decode(call["kwargs"]))
            answer = {"n": number, "v": service.written(value)}
        except Exception as error:
            answer = {"n": number, "x": type(error).__name__}
        service.send(FIRST_CHANNEL, answer)


def _serve(names: dict[str, Any], job: dict[str, Any]) -> None:
    service.serve(names, FIRST_CHANNEL, FIRST_CHANNEL + 1)


def _test(job: dict[str, Any]) -> None:
    _compile(job["test"], "test.py")
    gc.enable()
    channels = {"requests": FIRST_CHANNEL, "replies": FIRST_CHANNEL + 1, "verdict": FIRST_CHANNEL + 2}
    judge.run_tests(job, **channels)


MODES: dict[str, Callable[[dict[str, Any]], None]] = {
    "plain": _run_plain,
    "calls": lambda job: _run_loaded(_answer_calls, job),
    "serve": lambda job: _run_loaded(_serve, job),
    "test": _test,
}
