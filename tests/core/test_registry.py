"""Names of verifiers, packs and environments; an exception in a user's code is reported by the line of that code."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
from fractions import Fraction
from random import Random
from typing import Literal

import numpy
import pytest

from rlvr.commands.list import describe
from rlvr.commands.list import main as list_main
from rlvr.core.registry import VERIFIERS, Registry, did_you_mean, make_environment, make_task, make_verifier
from rlvr.core.types import Problem, Reply, RunError, Status, Verdict
from rlvr.verifiers import BUILT_IN, Runner
from rlvr.verifiers.runner import PoolError
from rlvr.verifiers.runner.base import check_references, verify_one
from tests.helpers.files import GOLDEN, ROOT, cases


@pytest.fixture
def registry():
    """An empty registry; what it imports as its own package registers elsewhere."""
    return Registry("verifier", "rlvr.core.types")


def check_shouting(
    problem: Problem, completion: str, *, marks: int = 0, tone: Literal["loud", "soft"] = "loud"
) -> bool:
    """Whether the completion is in capitals.

    More text.
    """
    return completion.isupper() and completion.count("!") >= marks


def another(problem: Problem, completion: str) -> bool:
    return True


def test_a_name_leads_to_what_was_registered(registry):
    """The decorator gives the function back unchanged."""
    assert registry.register("shouting")(check_shouting) is check_shouting
    assert registry.get("shouting") is check_shouting
    assert registry.names() == ["shouting"]
    assert registry.summary("shouting") == "Whether the completion is in capitals."


def test_a_taken_name_raises_and_names_both(registry):
    """Two verifiers of one name would make a run depend on the order of imports."""
    registry.register("shouting")(check_shouting)
    with pytest.raises(ValueError, match=r"'shouting' is registered twice: by .*shouting and by .*another; rename one"):
        registry.register("shouting")(another)
    assert registry.get("shouting") is check_shouting


def test_the_same_definition_may_come_again(registry, tmp_path, monkeypatch):
    """A module that is loaded twice (a notebook's cell, a script that is also imported) replaces its former self."""
    (tmp_path / "twice.py").write_text("def check(problem, completion):\n    return True\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = importlib.import_module("twice")
    registry.register("check")(first.check)
    held = first.check
    again = importlib.reload(first)
    registry.register("check")(again.check)
    assert registry.get("check") is again.check is not held


CELLS = r"""
from rlvr.core.registry import VERIFIERS, register
first = "@register('mine')\ndef mine(problem, completion):\n    return {answer}"
other = first.replace("def mine", "def renamed")
as_class = "@register('mine')\nclass mine:\n    def __call__(self, problem, completion):\n        return {answer}"
for number, (cell, answer) in enumerate([(first, 1), (first, 2), (other, 3), (as_class, 4), (as_class, 5)]):
    # What IPython and ipykernel call the file of a cell.
    name = f"<ipython-input-{number}-0a1b2c>" if number % 2 else f"/tmp/ipykernel_17/{number}.py"
    exec(compile(cell.format(answer=answer), name, "exec"), globals())
    made = VERIFIERS.get("mine")
    print((made() if answer > 3 else made)(None, ""))
"""


def test_a_notebook_cell_may_be_run_again():
    """At a prompt the last definition counts, changed, renamed or made a class, as it does with `def`."""
    done = subprocess.run([sys.executable, "-"], input=CELLS, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.split(), done.stderr) == (["1", "2", "3", "4", "5"], "")


def test_a_script_may_be_imported_too(registry, tmp_path, monkeypatch):
    """One file under two module names holds one verifier; two files that use the same name hold two."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"mine_{folder}.py").write_text("def check(problem, completion):\n    return True\n")
        monkeypatch.syspath_prepend(tmp_path / folder)
    spec = importlib.util.spec_from_file_location("as_script", tmp_path / "a" / "mine_a.py")
    as_script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(as_script)
    registry.register("check")(as_script.check)
    registry.register("check")(importlib.import_module("mine_a").check)
    with pytest.raises(ValueError, match=r"by mine_a.check and by mine_b.check; rename one"):
        registry.register("check")(importlib.import_module("mine_b").check)


@pytest.mark.parametrize("name", ["", "a:b"])
def test_a_name_is_not_empty_and_has_no_colon(registry, name):
    """A colon means module:attribute."""
    with pytest.raises(ValueError, match="not empty and has no colon"):
        registry.register(name)


def test_a_wrong_name_gets_the_nearest_ones(registry):
    """Or all of them, when none is near."""
    registry.register("shouting")(check_shouting)
    with pytest.raises(LookupError, match=r"no verifier 'shoutin'; did you mean shouting\?"):
        registry.get("shoutin")
    with pytest.raises(
        LookupError, match=r"no verifier 'zzz'; known: shouting.* \(or module:attribute, such as mine:shouting\)"
    ):
        registry.get("zzz")
    assert did_you_mean("x", []) == "none is registered"


def test_the_name_of_a_file_is_answered_with_how_to_name_what_is_in_it(tmp_path, monkeypatch, registry):
    """A module without its attribute, with or without .py, and a data set in place of a pack."""
    (tmp_path / "users_own.py").write_text("def check(problem, completion):\n    return True\n")
    monkeypatch.chdir(tmp_path)
    for spec in ("users_own", "users_own.py"):
        with pytest.raises(LookupError, match="write its name too, as in users_own:shouting"):
            registry.get(spec)
    with pytest.raises(LookupError, match="for a file name the task jsonl, and the file as its data"):
        make_task("sums.jsonl")


def test_a_reward_function_of_another_library_is_refused_with_its_parameters(tmp_path, monkeypatch):
    """TRL's take lists of completions."""
    (tmp_path / "users_reward.py").write_text("def reward(completions, **kwargs):\n    return [1.0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    expected = r"has the parameters \(completions, \*\*kwargs\); expected \(problem, completion\)"
    with pytest.raises(LookupError, match=expected):
        make_verifier("users_reward:reward")


def test_module_and_attribute(tmp_path, monkeypatch, registry):
    """Nothing needs to be registered to be used."""
    (tmp_path / "users_own.py").write_text(
        "class Group:\n    @staticmethod\n    def check(problem, completion):\n        return True\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.get("users_own:Group.check")(None, "") is True
    with pytest.raises(LookupError, match="no module 'users_none' in this folder or among the installed packages"):
        registry.get("users_none:check")
    with pytest.raises(LookupError, match=r"users_own has no 'Grupp.check'; did you mean|known: Group"):
        registry.get("users_own:Grupp.check")
    with pytest.raises(LookupError, match="is a whole number; expected a function or a class"):
        registry.get("users_own:number")


def test_entry_points_of_installed_packages(tmp_path, monkeypatch):
    """A package that declares one in the group rlvr.verifiers is found by its name."""
    (tmp_path / "plugged.py").write_text('def check(problem, completion):\n    """Plugged in."""\n    return True\n')
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlvr.verifiers]\nplugged = plugged:check\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("verifier", "rlvr.verifiers")
    assert "plugged" in registry.names()
    assert registry.get("plugged")(None, "") is True
    assert registry.summary("plugged") == "Plugged in."


def test_options_are_converted_to_their_types(registry):
    """A command line gives text; a program may give the value itself."""
    registry.register("shouting")(check_shouting)
    assert registry.check_options("shouting", {"marks": "2", "tone": "soft"}) == {"marks": 2, "tone": "soft"}
    assert registry.check_options("shouting", {"marks": 2}) == {"marks": 2}


def test_options_that_do_not_fit(registry):
    """Each error names the verifier, the option and what was expected."""
    registry.register("shouting")(check_shouting)
    with pytest.raises(LookupError, match=r"verifier 'shouting' has no option 'mark'; did you mean marks\?"):
        registry.check_options("shouting", {"mark": "2"})
    with pytest.raises(ValueError, match="option marks: 'two'; expected a whole number"):
        registry.check_options("shouting", {"marks": "two"})
    with pytest.raises(ValueError, match="option tone: 'shrill'; expected one of loud, soft"):
        registry.check_options("shouting", {"tone": "shrill"})


def test_a_function_takes_its_options_on_each_call(registry, monkeypatch):
    """Without options it is the function itself."""
    VERIFIERS.register("test-shouting")(check_shouting)
    try:
        assert make_verifier("test-shouting") is check_shouting
        made = make_verifier("test-shouting", marks="1")
        assert made(Problem("1", "", ""), "HEY!") is True
        assert made(Problem("1", "", ""), "HEY") is False
    finally:
        del VERIFIERS._entries["test-shouting"]


TAKEN = """
import sys, rlvr.verifiers
from rlvr.core.registry import register
assert "rlvr.verifiers.regex" not in sys.modules
try:
    register("regex")(print)
except ValueError as error:
    print(error)
"""


def test_the_name_of_a_built_in_verifier_is_taken():
    """Although its module is imported only when it is asked for."""
    done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.startswith("verifier 'regex' is registered twice: by rlvr.verifiers.regex."), done.stderr


def test_the_built_in_verifiers():
    """Each has a line for `rlvr list`."""
    assert {"math", "regex", "unit_tests"} <= set(BUILT_IN) <= set(VERIFIERS.names())
    for name in BUILT_IN:
        assert len(VERIFIERS.summary(name)) > 20


def test_options_of_classes_from_text():
    """Flags, tuples, and None, as a command line gives them."""
    made = make_verifier("format", tags="reason,result", opened="yes")
    assert (made.tags, made.opened) == (("reason", "result"), True)
    assert make_verifier("length", max="none", min="3").max is None
    assert make_verifier("length", max="7").max == 7
    with pytest.raises(ValueError, match="option graded: 'perhaps'; expected true or false"):
        make_verifier("length", graded="perhaps")


def test_importing_the_package_is_cheap():
    """Neither the algebra nor the schemas nor the process pool is loaded before it is needed."""
    code = (
        "import rlvr.verifiers, sys\n"
        "heavy = {'sympy', 'jsonschema', 'torch', 'numpy', 'asyncio', 'rlvr.verifiers.runner.runner'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "from rlvr.verifiers import Runner, VerifierErrors, verify_math, verify_one\n"
        "print(Runner.__name__, verify_math('1/2', r'\\boxed{0.5}').status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == ["[]", "Runner correct"]


def test_unknown_attribute_of_the_package():
    """The lazy exports do not hide a misspelling."""
    package = importlib.import_module("rlvr.verifiers")
    with pytest.raises(AttributeError, match="Runnr"):
        package.Runnr  # noqa: B018


def test_results_become_verdicts():
    """True, 1.0 and more are correct; False and 0 are not; what lies between is partial."""
    assert Verdict.of(True).status is Status.CORRECT
    assert Verdict.of(1.5).status is Status.CORRECT
    assert Verdict.of(False).status is Status.INCORRECT
    assert Verdict.of(-0.5).score == -0.5
    assert (Verdict.of(0.3).status, Verdict.of(0.3).score) == (Status.PARTIAL, 0.3)


@pytest.mark.parametrize(("text", "message"), cases("broken_modules"))
def test_a_module_that_cannot_be_imported_is_told_with_its_line(registry, tmp_path, monkeypatch, text, message):
    """Whatever happens at its top level: one line with file, line and exception, not a traceback."""
    importlib.import_module("rlvr.verifiers")
    name = f"broken_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LookupError, match=rf"'{name}:check': .*{name}.py, {message}") as raised:
        registry.get(f"{name}:check")
    assert "\n" not in str(raised.value)


def test_a_broken_verifier_and_a_broken_recipe_end_with_exit_code_2(tmp_path):
    """From the command line: one line on stderr."""
    (tmp_path / "mine.py").write_text("def check(problem, completion)\n    return True\n")
    (tmp_path / "answers.jsonl").write_text('{"completion": "A"}\n')
    for arguments in (["grade", "--verifier", "mine:check", "answers.jsonl"], ["train", "mine.py"], ["rm", "mine.py"]):
        done = subprocess.run(
            [sys.executable, "-c", "from rlvr.commands.cli import main; raise SystemExit(main())", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert "mine.py, line 1: SyntaxError: expected ':'" in done.stderr


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"returned None \(does it end without return\?\)"),
        ("0.5", "returned a str; expected bool, float or Verdict"),
        ([1.0], "returned a list"),
        ((True, "why"), "returned a tuple"),
        (1 + 2j, "returned a complex"),
        (float("nan"), "returned nan; expected a finite number"),
        (float("-inf"), "returned -inf"),
        pytest.param(10**400, "returned inf", id="too large for a float"),
        (numpy.float64("nan"), "returned nan"),
        (numpy.array([1, 2]), "returned a ndarray"),
    ],
)
def test_results_that_are_no_verdict_are_named(result, message):
    """The verdict then is an error, which says what the verifier returned."""
    with pytest.raises((TypeError, ValueError), match=f"the verifier {message}"):
        Verdict.of(result)


def test_numbers_of_numpy_are_numbers():
    """As a result, and in a Verdict of the verifier's own, which a log must be able to hold."""
    assert Verdict.of(numpy.bool_(True)).status is Status.CORRECT
    assert Verdict.of(numpy.float32(0.5)) == Verdict.of(numpy.array(0.5)) == Verdict.of(Fraction(1, 2))
    own = Verdict(Status.PARTIAL, numpy.float32(0.5), "", numpy.int64(7), {"form": numpy.float64(0.25)})
    assert json.dumps([own.score, own.extracted, own.parts]) == '[0.5, "7", {"form": 0.25}]'
    assert type(own.score) is type(own.parts["form"]) is float


def counting(problem, rng, *, turns: int = 2):
    """Count the turns."""
    for number in range(turns):
        yield Reply(str(number))
    return None


class Countdown:
    """Count down."""

    def __init__(self, *, start: int = 3) -> None:
        self.start = start

    def __call__(self, problem, rng):
        yield
        return None


@pytest.mark.parametrize(
    ("attribute", "options", "held"),
    [("counting", {"turns": "4"}, 4), ("counting", {}, 2), ("Countdown", {"start": 5}, 5)],
)
def test_an_environment_is_a_generator_function_or_a_class_that_is_called_so(attribute, options, held):
    """Options come as strings from a command line, and are converted."""
    made = make_environment(f"{__name__}:{attribute}", **options)
    sent = list(made(Problem("1", "", 1), Random(0)))
    assert len(sent) == held if attribute == "counting" else made.start == held


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("tests.test_registry:registry", {}, "cannot be called"),
        ("tests.test_registry:counting", {"turn": 1}, "did you mean turns"),
        ("tests.test_registry:counting", {"turns": "two"}, "expected a whole number"),
        ("nothing_such", {}, "no environment 'nothing_such'.*mine:higher_lower"),
    ],
)
def test_wrong_environments_are_refused_in_one_line(spec, options, said):
    """With what was expected."""
    with pytest.raises((LookupError, ValueError), match=said) as refused:
        make_environment(spec.replace("tests.test_registry", __name__), **options)
    assert "\n" not in str(refused.value)


def test_list_shows_environments_by_name_and_by_place(capsys):
    """A generator function, or a class whose call is one, is an environment."""
    assert describe(f"{__name__}:counting")[0].startswith(f"{__name__}:counting (environment, ")
    assert "--run.environment-option start=VALUE" in describe(f"{__name__}:Countdown")[0]
    assert list_main([]) == 0
    assert "\nenvironments\n" in capsys.readouterr().out


MODULE = (GOLDEN / "raising_module.txt").read_text()
ITEM = (Problem("1", "", "2"), "{}")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The module, under a name of its own, and the path of its file."""
    name = f"raised_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name), str(tmp_path / f"{name}.py")


def line_of(text: str) -> int:
    return MODULE.splitlines().index(next(line for line in MODULE.splitlines() if text in line)) + 1


@pytest.mark.parametrize(
    ("name", "completion", "place", "message"),
    [
        ("check", "{}", "json.loads(text)", "KeyError: 'answer'"),
        ("check", "no json", "json.loads(text)", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("asks_another", "", "Verdict.of", "TypeError: the verifier returned a str; expected bool, float or Verdict"),
        ("returns_a_dict", "", "def returns_a_dict", "TypeError: the verifier returned a dict; expected bool, float "),
    ],
)
def test_a_verdict_begins_with_the_users_line(mine, name, completion, place, message):
    """Not the library's in which it was raised, nor ours that called it; in the caller's process and in a worker."""
    module, path = mine
    expected = f"{path}, line {line_of(place)}: {message}"
    verifier = getattr(module, name)
    assert verify_one(verifier, ITEM[0], completion).reason.startswith(expected)
    with Runner(verifier, workers=1) as runner:
        assert runner.verify([(ITEM[0], completion)])[0].reason.startswith(expected)
    with Runner(module.Batch()) as runner:
        assert (
            runner.verify([ITEM])[0].reason
            == f"{path}, line {line_of('1 / 0 for')}: ZeroDivisionError: division by zero"
        )


def test_the_log_begins_with_the_users_line_and_leaves_out_ours(mine, caplog):
    """One line, then the traceback from the user's code on."""
    module, path = mine
    with caplog.at_level(logging.ERROR, "rlvr.verifiers"):
        verify_one(module.check, Problem("1", "", "2"), "[]")
    first, _, *rest = caplog.messages[0].splitlines()
    assert first.startswith(f"{path}, line {line_of('json.loads(text)')}: TypeError: list indices must be")
    assert "check" in first
    assert rest[0] == f'  File "{path}", line {line_of("read(completion)")}, in check'
    assert "guarded" not in caplog.messages[0]


def test_failures_in_a_script_name_their_line(tmp_path):
    """Where the verifier is defined in the script that runs, too."""
    script = tmp_path / "script.py"
    script.write_text(
        "from rlvr.core.types import Problem\nfrom rlvr.verifiers import Runner\n"
        "def check(problem, completion):\n    return 1 / 0\n"
        "if __name__ == '__main__':\n    with Runner(check) as runner:\n"
        "        print(runner.verify([(Problem('1', '', ''), 'x')])[0].reason)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{script}, line 4: ZeroDivisionError: division by zero"
    assert done.stderr.startswith(f"{script}, line 4: ZeroDivisionError: division by zero")


def test_failures_before_the_first_call_name_their_line(mine):
    """A method warm_up, in the process that loads the verifier; a check of references."""
    module, path = mine
    with pytest.raises(PoolError) as found, Runner(module.Warm()) as runner:
        runner.verify([ITEM])
    assert str(found.value).startswith(f"{path}, line {line_of('no table')}: RuntimeError: no table; the verifier ")
    with pytest.raises(RunError) as checked:
        check_references(module.Reference(), [Problem("p", "", "{}")])
    line = line_of("json.loads(reference)")
    assert str(checked.value).startswith(f"{path}, line {line}: problem 'p': check_reference of the verifier ")
    assert "failed with KeyError: 'x'" in str(checked.value)


@pytest.mark.parametrize(
    ("make", "name", "options", "place", "message"),
    [
        (make_verifier, "Built", {}, "{}[way]", "KeyError: 'key'"),
        (make_verifier, "Built", {"way": "zero"}, "{}[way]", "ZeroDivisionError: division by zero"),
        (make_task, "pack", {}, "[][0]", "IndexError: list index out of range"),
        (make_environment, "World", {}, "self.value = 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_constructors_that_fail_name_their_line(mine, make, name, options, place, message):
    """One line, as for a module that cannot be imported."""
    module, path = mine
    with pytest.raises(LookupError) as found:
        make(f"{module.__name__}:{name}", **options)
    assert str(found.value) == (
        f"{'task' if make is make_task else 'environment' if make is make_environment else 'verifier'} "
        f"'{module.__name__}:{name}': {path}, line {line_of(place)}: {message}"
    )


def test_a_refusal_keeps_its_words(mine):
    """A ValueError of a constructor is a message for the user already."""
    module, _ = mine
    with pytest.raises(ValueError, match=r"^two tables are one too many$"):
        make_verifier(f"{module.__name__}:Refuses")
