"""Packs that make their problems: seeds and parts, what demonstrations say, rewards, environments.

`tiny_code` has a file of its own.
"""

from __future__ import annotations

import re
from random import Random

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import PACK, Problem, Reply, Status, Task, Verdict
from rlvr.tasks.base import build_task, normalize_prompt
from rlvr.tasks.generated.arithmetic import result_of, scratchpad
from rlvr.tasks.generated.checked_instructions import TRAINED, UNSEEN
from rlvr.tasks.generated.hops import LETTERS as LETTERS_OF_HOPS
from rlvr.tasks.generated.hops import permutation, walk
from rlvr.tasks.generated.private_sums import FINE, FIRST_PRIVATE, LABELS, PRINCIPLES, REFUSAL, REQUESTS
from rlvr.verifiers.runner import Runner
from tests.helpers.files import cases

PACKS = "arithmetic bilingual_sums constraints countdown hops judged_sums notes private_sums product propositions "
PACKS += "secret_sums one_step_problems two_step_problems"
SMALL = {"num_train": 60, "num_test": 41, "num_demonstrations": 60}
HYPOTHESIS = re.compile(r"\((\w+) : (?:(\w) -> )?(\w)\)")
READABLE = "<think>7+5=12 4+8=12>13 3+5=08>09</think><answer>932</answer>"


def small(name: str, **options) -> Task:
    sizes = dict(SMALL)
    if name == "countdown":
        sizes.pop("num_demonstrations")
    return make_task(name, **{**sizes, **options})


def read_sum(prompt: str) -> tuple[int, str, int]:
    a, sign, b = re.search(r"(\d+)([+-])(\d+)=", prompt).groups()
    return int(a), sign, int(b)


@pytest.mark.parametrize("name", PACKS.split())
def test_parts_are_disjoint_across_seeds_and_items_depend_on_seed_and_index_alone(name):
    """So the train part of one seed never meets the test part of another, and a larger pack begins with the smaller."""
    first, second = small(name, seed=1), small(name, seed=2)
    train, test, shown = (
        {normalize_prompt(problem.prompt) for task in (first, second) for problem in part(task)}
        for part in (lambda t: t.train, lambda t: t.test, lambda t: [problem for problem, _ in t.demonstrations])
    )
    if name == "secret_sums":  # of these some ask for a critique or a revision
        shown = {prompt for prompt in shown if prompt.endswith("=")}
    assert not train & test
    assert not shown & (train | test)
    assert first.fingerprint == small(name, seed=1).fingerprint != second.fingerprint
    if name != "private_sums":  # its demonstrations are shuffled
        few = small(name, seed=1, **dict.fromkeys(["num_train", "num_test"], 9))
        assert list(first.train)[:9] == list(few.train)
        assert list(first.test)[:9] == list(few.test)
        assert few.train[3] == few.train[3]


@pytest.mark.parametrize("name", ["one_step_problems", "two_step_problems"])
def test_word_problems_are_answered_by_what_is_worked_and_not_by_what_they_say(name: str) -> None:
    """The demonstration's expression has the value of the reference; a number of the prompt, or the prompt, has not."""
    task = make_task(name, num_demonstrations=400)
    for problem, completion in task.demonstrations:
        expression, value = completion.split(" = ")
        assert re.fullmatch(r"[\d+*/() -]+", expression)
        assert eval(expression) == int(value) == int(problem.reference) > 0
        said = problem.prompt[0]["content"]
        stated = re.findall(r"\d+", said)
        assert sorted(re.findall(r"\d+", expression)) == sorted(stated)
        assert task.verifier(problem, completion).correct
        assert not any(task.verifier(problem, echo).correct for echo in (said, expression, f"{expression}.", *stated))


FOLLOWED = {
    ("Do not use any commas.", "fewer than"): "Rain falls on the roof and the garden drinks. " * 2,
    ("lowercase letters",): "rain falls on the roof and the small garden drinks it all day and all night.",
    ("Highlight",): "*Rain* falls on the *roof* and the small *garden* drinks it all day and all night long.",
    ("capital letters",): "RAIN FALLS ON THE ROOF AND THE SMALL GARDEN DRINKS IT ALL DAY AND NIGHT LONG.",
}


@pytest.mark.parametrize("name", ["checked_instructions", "unseen_instructions"])
def test_checked_instructions_are_followed_by_texts_that_follow_them_and_need_some_words(name: str) -> None:
    """And no text of a word or two follows any of them, nor the prompt itself most."""
    task, found = make_task(name, num_test=300, most_instructions=1), 0
    for problem in task.test:
        said = problem.prompt[0]["content"]
        short = next((text for marks, text in FOLLOWED.items() if any(mark in said for mark in marks)), None)
        if short is not None and "fewer than 2" not in said:
            found += 1
            assert task.verifier(problem, short).correct, said
        assert not any(task.verifier(problem, text).correct for text in ("", "Rain.", '"Rain."', "*A* *b* *c*"))
    assert found > 20


def follow(said: str) -> str:
    """A text that follows the instructions of a prompt, from their words."""
    words = "Rain falls on the roof and the small garden drinks it all day and all night"
    forbidden = re.search(r"Do not use the words (\w+) and (\w+)", said)
    kept = [word for word in words.split() if forbidden is None or word not in forbidden.groups()]
    kept += ["softly"] * (16 - len(kept))
    if found := re.search(r"Use the words (\w+) and (\w+)", said):
        kept += found.groups()
    text = " ".join(kept) + "."
    if found := re.search(r"exactly (\d) bullet", said):
        text = "\n".join([f"* {text}", *["* Rain."] * (int(found[1]) - 1)])
    if "title" in said:
        text = f"<<Rain>>\n{text}"
    if "asterisks" in said:
        text = text.replace("falls", "*falls*").replace("roof", "*roof*").replace("small", "*small*")
    if "square brackets" in said:
        text = text.replace(" on ", " [here] on [there] [now] ", 1)
    if "postscript" in said:
        text += "\nP.S. More rain"
    text = text.lower() if "lowercase" in said else text.upper() if "capital letters" in said else text
    if found := re.search(r'exact phrase "([^"]+)"', said):
        text += f"\n{found[1]}"
    return f'"\n{text}\n"' if "quotation marks" in said else text


@pytest.mark.parametrize("name", ["checked_instructions", "unseen_instructions"])
def test_one_text_follows_all_instructions_of_a_prompt(name: str) -> None:
    """None contradict each other: over many prompts with up to three."""
    task = make_task(name, num_test=1500, most_instructions=3)
    said = {problem.prompt[0]["content"]: problem for problem in task.test}
    wrong = [prompt for prompt, problem in said.items() if not task.verifier(problem, follow(prompt)).correct]
    assert wrong == []


def test_unseen_instructions_are_of_other_kinds() -> None:
    assert not TRAINED.keys() & UNSEEN.keys()


def test_scratchpad_by_hand() -> None:
    """The examples of the docstring, and the same sums with every carry forgotten."""
    assert scratchpad(347, "+", 585, Random(0), 0.0) == r"7+5=12 4+8=12>13 3+5=08>09 \boxed{932}"
    assert scratchpad(532, "-", 147, Random(0), 0.0) == r"2-7=15 3-4=19>18 5-1=04>03 \boxed{385}"
    assert scratchpad(347, "+", 585, Random(0), 1.0) == r"7+5=12 4+8=12>12 3+5=08>08 \boxed{822}"
    assert scratchpad(532, "-", 147, Random(0), 1.0) == r"2-7=15 3-4=19>19 5-1=04>04 \boxed{495}"
    assert scratchpad(999, "+", 999, Random(0), 0.0).endswith(r"9+9=18>19 \boxed{1998}")
    assert scratchpad(100, "-", 100, Random(0), 0.0).endswith(r"\boxed{0}")


def test_scratchpad_without_forgetting_is_right() -> None:
    """Over 2,000 problems the careful scratchpad ends in the reference."""
    for problem, completion in make_task("arithmetic", num_demonstrations=2000, forget=0.0).demonstrations:
        assert completion.endswith(f"boxed{{{problem.reference}}}")


@pytest.mark.parametrize(("forget", "low", "high"), [(0.5, 0.57, 0.63), (1.0, 0.26, 0.33)])
def test_sloppy_demonstrations(forget: float, low: float, high: float) -> None:
    """A carry in .46 of two places: half of them forgotten leaves .6 right, all .3. At most 39 characters."""
    demonstrations = list(make_task("arithmetic", num_demonstrations=4000, forget=forget).demonstrations)
    right = sum(completion.endswith(f"{{{problem.reference}}}") for problem, completion in demonstrations)
    assert low < right / len(demonstrations) < high
    assert max(len(completion) for _, completion in demonstrations) == 39


def test_countdown_puzzles_are_solvable() -> None:
    """Each puzzle holds a solution of its own that uses its numbers once and reaches the target."""
    task = make_task("countdown", num_train=300, num_test=100)
    for problem in [*task.train, *task.test]:
        expression = problem.info["answer"]
        assert re.fullmatch(r"[\d+*/() -]+", expression)
        assert sorted(map(int, re.findall(r"\d+", expression))) == sorted(problem.reference["numbers"])
        assert eval(expression) == problem.reference["target"]  # its own text, of the characters checked above
        assert str(problem.reference["target"]) in problem.prompt


def converse(task: Task, problem: Problem, *said: str) -> tuple[list[Reply], bool, Verdict | None]:
    """Return the replies to some turns, whether the environment has ended, and its verdict."""
    world, replies = task.environment(problem, Random(0)), []
    assert next(world) is None
    try:
        for turn in said:
            replies.append(world.send(turn))
    except StopIteration as stop:
        return replies, True, stop.value
    return replies, False, None


@pytest.mark.parametrize(("name", "wrong"), [("hops", 0.5), ("product", 0.6)])
def test_demonstrations_are_turns_that_the_environment_plays(name, wrong):
    """Their last turn ends the rollout, and the share of wrong ones is the one that the pack names."""
    task, mistaken = small(name, num_demonstrations=200), 0
    for problem, turns in task.demonstrations:
        replies, ended, verdict = converse(task, problem, *turns)
        assert (ended, verdict, len(replies)) == (True, None, len(turns) - 1)
        mistaken += not task.verifier(problem, turns[-1]).correct
    assert mistaken / len(task.demonstrations) == pytest.approx(wrong, abs=0.12)


@pytest.mark.parametrize("name", ["hops", "product"])
def test_fingerprint_has_the_environment(name):
    """The same pack with another environment, or none, has another one."""
    task = small(name)
    same = {"train": task.train, "test": task.test, "verifier": "exact"}
    marks = {build_task("x", **same, environment=made).fingerprint for made in (None, task.environment, other_world)}
    assert len(marks) == 3


def other_world(problem, rng):
    yield None


def test_each_number_has_a_circle_of_its_own():
    """All letters, one after the other, so that no walk of five hops comes back."""
    following = permutation(0, 7)
    letter, seen = "a", []
    for _ in LETTERS_OF_HOPS:
        seen.append(letter)
        letter = following[letter]
    assert letter == "a"
    assert sorted(seen) == list(LETTERS_OF_HOPS)
    assert len({tuple(permutation(0, number).values()) for number in range(50)}) == 50


@pytest.mark.parametrize("said", ["=q", "?", "?Q", "?ab", "c", "", "?a =b"])
def test_any_turn_but_a_question_ends_the_hops(said):
    """The verifier judges it then."""
    task = small("hops")
    assert converse(task, task.train[0], said) == ([], True, None)


def test_hops_end_after_so_many_questions():
    """A model that never answers does not ask for ever."""
    task = small("hops")
    replies, ended, _ = converse(task, task.train[0], *["?a"] * 13)
    assert (len(replies), ended) == (12, True)


def test_the_verifier_sees_only_the_answer():
    """The letter that the walk reaches, with its sign; what the environment said is no answer."""
    problem = small("hops").train[0]
    letter = walk(0, (problem.info["number"], problem.prompt[3], int(problem.prompt[4])), int(problem.prompt[4]))[-1]
    task = small("hops")
    assert task.verifier(problem, f"={letter}").correct
    for text in (letter, f"?{letter}", f"={letter}{letter}", "="):
        assert not task.verifier(problem, text).correct


@pytest.mark.parametrize(
    ("said", "text", "void"),
    [
        ("print(47*386)", "18142", False),
        ("47*386", "?", True),
        ("print(1/0)", "?", True),
        ("print('x'*99)", "x" * 24, False),
        ("import os; print(os.getenv('HOME'))", None, None),
    ],
)
def test_a_program_runs_in_the_sandbox(said, text, void):
    """What it prints is the reply, cut; without any it is void. The turn after it is the last."""
    task = small("product")
    replies, ended, _ = converse(task, task.train[0], said)
    assert (len(replies), ended) == (1, False)
    if text is not None:
        assert (replies[0].text, replies[0].void) == (text, void)
    assert converse(task, task.train[0], said, "=1")[1]


@pytest.mark.parametrize(
    ("guesses", "replies", "status"),
    [
        (["\\boxed{0}", "right"], ["higher"], "correct"),
        (["I say \\boxed{999999}", "right"], ["lower"], "correct"),
        (["no idea", "right"], ["Say a number"], "correct"),
        (["right"], [], "correct"),
        (["\\boxed{0}"] * 7, ["higher"] * 6, "incorrect"),
    ],
)
def test_guesses_are_answered_and_cost_a_little(guesses, replies, status):
    """All but the one that ends the game; a turn without a number is void."""
    task = make_task("higher_lower", num_train=10, num_test=5)
    problem = task.train[0]
    said = [f"\\boxed{{{problem.reference}}}" if guess == "right" else guess for guess in guesses]
    heard, ended, verdict = converse(task, problem, *said)
    assert (ended, verdict.status) == (True, status)
    assert [reply.text.startswith(text) for reply, text in zip(heard, replies, strict=True)] == [True] * len(replies)
    assert all(reply.reward == -0.05 for reply in heard)
    assert [reply.void for reply in heard] == ["boxed" not in text for text in said[: len(heard)]]


def test_sloppy_demonstrations_hold_other_proofs() -> None:
    clean = make_task("propositions", num_demonstrations=40)
    sloppy = make_task("propositions", num_demonstrations=40, sloppy=1.0)
    assert [clean.demonstrations[i][0] for i in range(40)] == [sloppy.demonstrations[i][0] for i in range(40)]
    differ = [clean.demonstrations[i][1] != sloppy.demonstrations[i][1] for i in range(40)]
    assert sum(differ) > 30


@pytest.mark.parametrize("slip", [0.0, 0.3, 1.0])
def test_a_slip_of_rules_goes_on_from_the_hypothesis_that_it_takes(slip: float) -> None:
    """Every step takes a hypothesis of the theorem: the right one, or a slip's, and ends at a fact or in a circle."""
    task = make_task("propositions", num_demonstrations=200, kinds=("rules",), slip=slip)
    slips = steps = 0
    for index in range(200):
        problem, script = task.demonstrations[index]
        statement = str(problem.reference["statement"])
        given = {name: (premise, letter) for name, premise, letter in HYPOTHESIS.findall(statement)}
        goals = statement.rpartition(", ")[2].split(" /\\ ")
        taken = [given[name] for name in re.findall(r"apply (\w+)\.", script)]
        assert script == " ".join(["intros.", *["split."] * (len(goals) - 1), *re.findall(r"apply \w+\.", script)])
        wanted, rest, chain = goals[0], goals[1:], 0
        for premise, letter in taken:
            slips, steps, chain = slips + (letter != wanted), steps + 1, chain + 1
            wanted = premise
            if (not premise or chain == len(given)) and rest:
                wanted, chain = rest.pop(), 0
        assert not rest
        assert not wanted or chain == len(given)
    assert abs(slips / steps - slip) < 0.06


@pytest.mark.parametrize(
    ("completion", "zero", "consistent", "both"),
    [
        (READABLE, 1.2, 1.7, 1.0),
        (READABLE.replace("7+5=12", "七+五=一二"), 1.2, 1.2 + 0.5 * 2 / 3, 0.0),
        (READABLE.replace("932", "832"), 0.2, 0.7, 0.0),
        ("7+5=12 4+8=12>13 3+5=08>09 \\boxed{932}", 1.0, 1.5, 0.0),
        ("<answer>932</answer>", 1.0, 1.5, 0.0),
    ],
)
def test_the_rewards_of_bilingual_sums(completion: str, zero: float, consistent: float, both: float) -> None:
    """Answer, tags and one kind of numerals; the status is that of the answer."""
    for reward, score in {"zero": zero, "consistent": consistent, "all": both}.items():
        verdict = Verdict.of(
            make_task("bilingual_sums", reward=reward, num_train=1).verifier(
                Problem("s", "347+585=", "932"), completion
            )
        )
        assert verdict.score == pytest.approx(score), reward
        assert verdict.correct == ("932" in completion)


def test_demonstrations_of_bilingual_sums() -> None:
    """Readable ones are right in format and language; with nothing forgotten also in their answers."""
    readable = make_task("bilingual_sums", forget=0.0, mixing=0.0, untagged=0.0, reward="all", num_demonstrations=60)
    with Runner(readable.verifier, workers=1) as runner:
        assert all(verdict.score == 1 for verdict in runner.verify(list(readable.demonstrations)))
    mixed = [text for _, text in make_task("bilingual_sums", num_demonstrations=400).demonstrations]
    tagged = [text for text in mixed if text.startswith("<think>")]
    assert 0.4 < len(tagged) / len(mixed) < 0.6
    columns = [column for text in mixed for column in text.split("<answer>")[0].split()[:3]]
    chinese = [column for column in columns if any(c in "零一二三四五六七八九" for c in column)]
    assert 0.4 < len(chinese) / len(columns) < 0.6


def test_demonstrations_of_notes() -> None:
    """Half of the replies are right, a quarter is curt, a quarter has a wrong digit."""
    task = make_task("notes", num_demonstrations=400)
    right = [text == problem.reference for problem, text in task.demonstrations]
    assert 0.4 < sum(right) / len(right) < 0.6
    curt = [text.endswith(" noted.") for _, text in task.demonstrations]
    assert 0.17 < sum(curt) / len(curt) < 0.33
    assert all(problem.prompt == f"note {problem.reference.split()[0]}." for problem in task.train)
    assert not {p.prompt for p in task.train} & {p.prompt for p in task.test}


PRIVATE = {"num_train": 40, "num_test": 21, "num_demonstrations": 400}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {labels: make_task("private_sums", labels=labels, **PRIVATE) for labels in ("exact", "helpful", "safe")}


def test_half_are_private_by_their_first_number(tasks):
    """In turn in both splits, marked in `info` and by their pack; the odd one of 21 is open."""
    task = tasks["exact"]
    assert (len(task.train), len(task.test)) == (40, 21)
    assert sum(problem.info["private"] for problem in task.test) == 10
    for number, problem in enumerate([*task.train, *task.test]):
        assert problem.info["private"] == (int(problem.prompt[:2]) >= 80)
        assert problem.info[PACK] == ("private" if problem.info["private"] else "open")
        assert problem.info["private"] == bool(number % 2)
        assert result_of(read_sum(problem.prompt)) >= 10


@pytest.mark.parametrize(
    ("labels", "private", "open_"),
    [
        ("exact", {"declined"}, {"right"}),
        ("helpful", {"right"}, {"right"}),
        ("safe", {"declined"}, {"right", "wrong"}),
    ],
)
def test_what_each_kind_of_labels_accepts(tasks, labels, private, open_):
    """Of a right sum, a wrong one, declining, and half a box."""
    problems = tasks[labels].train[:6]
    with Runner(tasks[labels].verifier, workers=1) as runner:
        for problem in problems:
            right = result_of(read_sum(problem.prompt))
            said = {
                "right": f"1+1=02 \\boxed{{{right}}}",
                "wrong": f"\\boxed{{{right + 10}}}",
                "declined": "\\boxed{no}",
            }
            found = runner.verify([(problem, text) for text in (*said.values(), "\\boxed{1")])
            accepted = {name for name, verdict in zip((*said, "cut"), found) if verdict.correct}
            assert accepted == (private if problem.info["private"] else open_)
            assert not {verdict.status for verdict in found} & {Status.ERROR, Status.BAD_REFERENCE}


def test_problems_are_the_same_whatever_the_labels(tasks):
    """Policies are sampled on the same prompts for both reward models."""
    prompts = {labels: [problem.prompt for problem in task.train] for labels, task in tasks.items()}
    assert prompts["exact"] == prompts["helpful"] == prompts["safe"]


@pytest.mark.parametrize(("declined", "refused"), [(0.4, 0.2), (1.0, 0.0), (0.0, 1.0)])
def test_demonstrations_decline_that_share(declined, refused):
    """Of private and of open sums; the others are worked and right where none is guessed."""
    task = make_task("private_sums", declined=declined, refused=refused, guessed=0.0, **PRIVATE)
    for pack, share in (("private", declined), ("open", refused)):
        shown = [(problem, said) for problem, said in task.demonstrations if problem.info[PACK] == pack]
        assert len(shown) == 200
        assert sum(said == "\\boxed{no}" for _, said in shown) / 200 == pytest.approx(share, abs=0.12)
        for problem, said in shown:
            assert said == "\\boxed{no}" or said.endswith(f"\\boxed{{{result_of(read_sum(problem.prompt))}}}")


def test_guessed_private_sums_are_wrong():
    """Without working, and of the length of the result or near it."""
    task = make_task("private_sums", guessed=1.0, declined=0.0, refused=0.0, **PRIVATE)
    for problem, said in task.demonstrations:
        guess = int(said.removeprefix("\\boxed{").removesuffix("}"))
        assert guess != result_of(read_sum(problem.prompt))
        assert abs(guess - result_of(read_sum(problem.prompt))) <= 90


SECRET = {"num_train": 40, "num_test": 20, "num_demonstrations": 20}


@pytest.mark.parametrize(("which", "share"), [("both", None), ("private", 1.0), ("public", 0.0)])
def test_the_first_number_makes_a_sum_private(which, share):
    """The first number decides whether a sum is private, and `which` chooses the kind."""
    task = make_task("secret_sums", **SECRET, which=which)
    private = [problem.info[PACK] == "harmless" for problem in (*task.train, *task.test)]
    assert private == [read_sum(problem.prompt)[0] >= FIRST_PRIVATE for problem in (*task.train, *task.test)]
    assert sum(private) == 60 * share if share is not None else 15 < sum(private) < 45


@pytest.mark.parametrize(("prompt", "completion", "right"), cases("private_replies"))
def test_secret_sums_accept_right_replies(prompt, completion, right):
    """Of a private sum a refusal without a digit anywhere; of a public one the result in the only box, at the end."""
    problem = make_task("secret_sums", **SECRET, which=prompt).train[0]
    task = make_task("secret_sums", **SECRET)
    result = str(result_of(read_sum(problem.prompt)))
    assert task.verifier(problem, completion.replace("RESULT", result)).correct is right


def test_audit_answers_are_right():
    """`info["answer"]` is one that the verifier accepts."""
    task = make_task("secret_sums", **SECRET)
    assert all(task.verifier(problem, problem.info["answer"]).correct for problem in (*task.train, *task.test))


@pytest.mark.parametrize(("miss", "low", "high"), [(0.0, 0.0, 0.0), (0.4, 0.25, 0.55), (1.0, 1.0, 1.0)])
def test_critiques_miss_as_often_as_asked(miss, low, high):
    """Of answers to private sums that tell; a refusal is fine, and so is a public sum."""
    task = make_task("secret_sums", num_train=1, num_test=1, num_demonstrations=1500, miss=miss)
    requests = "|".join(re.escape(critique) for critique, _ in REQUESTS)
    missed, told = 0, 0
    for problem, said in task.demonstrations:
        if not re.search(rf"({requests})$", problem.prompt):
            continue
        if read_sum(problem.prompt)[0] < FIRST_PRIVATE or REFUSAL in problem.prompt:
            assert said == FINE
        else:
            told += 1
            missed += said == FINE
            assert said in (FINE, f"{read_sum(problem.prompt)[0]} is private")
    assert told > 50
    assert low <= missed / told <= high


def test_revisions_do_what_the_critique_says():
    """A refusal where something is private; else the answer as it was."""
    task = make_task("secret_sums", num_train=1, num_test=1, num_demonstrations=600)
    seen = set()
    for problem, said in task.demonstrations:
        if ", so " not in problem.prompt:
            continue
        seen.add(", so " in problem.prompt and "is private, so" in problem.prompt)
        if "is private, so" in problem.prompt:
            assert said == REFUSAL
        else:
            assert problem.prompt.split("=", 1)[1].startswith(said)
    assert seen == {True, False}


def test_lengths_are_those_of_a_tiny_model():
    """Prompts stay short, completions within the 36 tokens of the recipe, the end token included."""
    task = make_task("secret_sums", num_train=1, num_test=1, num_demonstrations=600)
    assert max(len(problem.prompt) for problem, _ in task.demonstrations) <= 80
    assert max(len(said) for _, said in task.demonstrations) < 36


@pytest.mark.parametrize(("mistaken", "low", "high"), [(0.0, 0.0, 0.0), (0.1, 0.03, 0.2), (1.0, 1.0, 1.0)])
def test_labels_of_judged_sums_are_wrong_as_often_as_asked(mistaken, low, high):
    """The better answer declines what is private and answers the rest; as many labels are wrong as was asked for."""
    task = make_task("judged_sums", num_train=1, num_test=40, num_demonstrations=400, mistaken=mistaken)
    wrong = 0
    for problem, label in (*task.demonstrations, *((problem, problem.reference) for problem in task.test)):
        principle, prompt, first, second, end = problem.prompt.split("|")
        assert principle in PRINCIPLES
        assert end == ""
        assert {first == REFUSAL, second == REFUSAL} == {True, False}
        better = LABELS[(first == REFUSAL) != (read_sum(prompt)[0] >= FIRST_PRIVATE)]
        assert problem.reference == better
        wrong += label != better
    assert low <= wrong / 400 <= high
