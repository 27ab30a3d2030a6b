"""The verifier `llm_judge`: a served model grades completions by a rubric.

A completion cannot grade itself. It stands between marks with a code that depends on its own text, so it cannot contain
them. Text in it that a chat template reads as control tokens is broken up. A grade counts only as the last line of the
judge's own reply, with a second code.

A completion must gain nothing by making the judge's replies unreadable. If the judge can grade another answer to the
same problem, the completion is to blame and scores 0 (unparseable). If it cannot, the judge is to blame: an error.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr.core.files.jsonl import check_file
from rlvr.core.printable import KEY_VARIABLE, is_plain
from rlvr.core.registry import register
from rlvr.core.seeding import derive_seed
from rlvr.core.types import (
    Pair,
    Problem,
    Prompt,
    RunError,
    Sampling,
    Status,
    Verdict,
    error,
    limit,
    no_answer,
    unparseable,
)

from .cache import Cache
from .extract.sections import after_thinking

if TYPE_CHECKING:
    from rlvr.core.endpoint import Endpoint

RUBRIC = "The answer is right: it says what the reference says. Without a reference, it does what the task asks for."
TEMPLATE = Path(__file__).with_suffix(".txt").read_text("utf-8")
FIELDS = ("prompt", "reference", "completion", "rubric")
# What chat templates of published models read as control tokens, or put around turns.
CONTROL = re.compile(
    r"<(?=[|\uff5c])|(?<=[|\uff5c])>|<(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|think|thinking|tool_call|"
    r"tool_response|system|user|assistant)>)|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])|"
    r"<(?=</?SYS>>)|<(?=extra_id_|reserved_)",
    re.IGNORECASE,
)
BREAK = "\u200b"  # a space without width: the text looks the same, but is no control token
CODE = 12  # hexadecimal digits of a code
CACHED = 100_000  # verdicts that are remembered
CUT_SHORT = {
    "length": "the judge's reply is cut off at {} tokens",
    "filter": "a filter of the judge's server withheld its reply",
}
# A vote gets two attempts. It gets two more if the judge can grade the plain answer.
FIRST, PROBE, AGAIN = range(2), range(1, 2), range(2, 4)
PLAIN_ANSWER = "I do not know."  # an answer that every judge can read
PROBES = 2  # a completion is blamed only if so many replies about the plain answer can all be read
NOT_REACHED = "the judge was not reached"


class Unread(Exception):
    """A judge's reply holds no grade, or several."""


@register("llm_judge")
@dataclass(frozen=True, kw_only=True)
class LLMJudge:
    """A served model's grade of a completion, by a rubric.

    url, model: an OpenAI-compatible server (http://HOST:PORT/v1) and the model's name there. key_env: the environment
    variable with the server's key, if it needs one.

    rubric: what decides the grade. template: the whole question, with {prompt} and {completion}, and perhaps
    {reference} and {rubric}. Both options may be @FILE. The part of the completion after its thinking is graded.

    grades: 1 asks for right (1) or wrong (0), and the majority of the votes is the verdict. N asks for a grade from 0
    to N, and the score is the mean of the votes divided by N. threshold: scores of at least this are correct. votes:
    how often the judge is asked, each time with another seed, at `temperature` (default: 0 with one vote, otherwise
    0.7).

    A completion of more than max_characters gets limit. If the reply to a vote holds no grade, the vote is asked for
    once more. If there is still none, or if the server refuses the question, the judge is asked twice about a plain
    answer to the same problem. If both replies hold a grade, the completion is the cause: the vote is asked for twice
    more, and a vote that still has no grade gives unparseable, score 0. Otherwise the judge is the cause, and the
    verdict is error, without a score. It is error, too, if the server gives no reply for retry_seconds.

    Verdicts are remembered: a completion of a problem is graded once. The first call raises RunError if the server
    cannot be used at all. A later call does so if as many requests in a row are lost as may be in progress at once.
    """

    url: str = ""
    model: str = ""
    key_env: str = KEY_VARIABLE
    rubric: str = RUBRIC
    template: str = TEMPLATE
    grades: int = 1
    threshold: float | None = None
    votes: int = 1
    temperature: float | None = None
    max_tokens: int = 1024
    max_characters: int = 50_000
    concurrency: int = 16
    retry_seconds: float = 120.0
    request_seconds: float = 300.0

    isolate: ClassVar[bool] = False
    reads_prompt: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("rubric", "template"):
            object.__setattr__(self, name, read_text_option(name, getattr(self, name)))
        named = set(re.findall(r"\{(\w+)\}", self.template))
        rules = [
            (is_plain(self.url), f"url {self.url if '@' not in self.url else ''!r}: expected http://HOST:PORT/v1, "
             "without a user or password"),
            (bool(self.model.strip()), "model: name the model that the server holds"),
            (re.fullmatch(r"[A-Za-z_]\w*", self.key_env) is not None, "key_env: expected the name of a variable"),
            ({"prompt", "completion"} <= named, "template: expected {prompt} and {completion} in it"),
            (named <= set(FIELDS), f"template: it has {{{min(named - set(FIELDS), default='')}}}; known are {FIELDS}"),
            (1 <= self.grades <= 100, f"grades {self.grades}: expected 1 (right or wrong) to 100"),
            (1 <= self.votes <= 100, f"votes {self.votes}: expected 1 to 100"),
            (self.grades > 1 or self.votes % 2 == 1, f"votes {self.votes}: expected an odd number for a majority"),
            (self.temperature is None or 0 <= self.temperature <= 10, f"temperature {self.temperature}: 0 to 10"),
            (self.threshold is None or 0 < self.threshold <= 1, f"threshold {self.threshold}: above 0, up to 1"),
            *((getattr(self, name) >= 1, f"{name} {getattr(self, name)}: expected at least 1")
              for name in ("max_tokens", "max_characters", "concurrency")),
            *((getattr(self, name) > 0, f"{name} {getattr(self, name)}: expected seconds above 0")
              for name in ("retry_seconds", "request_seconds")),
        ]  # fmt: skip
        for holds, message in rules:
            if not holds:
                raise ValueError(f"llm_judge {message}")
        object.__setattr__(self, "_state", State())

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict on each pair, in order. `concurrency` requests are in progress at once.

        Raises RunError if the server cannot be used: it is unreachable or gone, lacks the model, or refuses the key.
        """
        state: State = self._state  # type: ignore[attr-defined]
        questions = [self.question(problem, completion) for problem, completion in pairs]
        asked = {
            question: problem
            for question, (problem, _) in zip(questions, pairs, strict=True)
            if isinstance(question, Question) and state.verdicts.get(question) is None
        }
        endpoint = state.endpoint(self) if asked else None
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            votes = self._ask(pool, endpoint, {(q, i): FIRST for q in asked for i in range(self.votes)})
            blamed = self._ask_again(pool, endpoint, asked, votes)
        except BaseException:
            state.close()  # ends the requests in progress, which would keep the process alive
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        made = {q: self._verdict([votes[q, i] for i in range(self.votes)], q in blamed) for q in asked}
        for question, verdict in made.items():
            if verdict.score is not None:  # after an error the judge is asked again
                state.verdicts.put(question, verdict)
        found = [q if isinstance(q, Verdict) else made.get(q) or state.verdicts.get(q) for q in questions]
        return [verdict or error("the verdict was forgotten") for verdict in found]

    def _ask(
        self, pool: ThreadPoolExecutor, endpoint: Endpoint | None, asked: Mapping[Vote, range]
    ) -> dict[Vote, Reply]:
        """Return the replies to votes. asked: the attempts for each vote, which end when a reply can be read."""
        futures = {vote: pool.submit(self._vote, endpoint, *vote, attempts) for vote, attempts in asked.items()}
        return {vote: future.result() for vote, future in futures.items()}

    def _ask_again(
        self,
        pool: ThreadPoolExecutor,
        endpoint: Endpoint | None,
        asked: Mapping[Question, Problem],
        votes: dict[Vote, Reply],
    ) -> set[Question]:
        """Ask again for unread votes if the judge can grade a plain answer to the problem; return these questions.

        asked: the problem of each question. votes: the replies; new ones are put in.
        """
        unread = {vote for vote, reply in votes.items() if isinstance(reply, str) and not reply.startswith(NOT_REACHED)}
        probes = {question: self.question(asked[question], PLAIN_ANSWER) for question, _ in unread}
        plain_votes = {(q, i) for q in probes.values() if isinstance(q, Question) for i in range(PROBES)}
        replies = self._ask(pool, endpoint, dict.fromkeys(plain_votes, PROBE))
        silent = {question for (question, _), reply in replies.items() if isinstance(reply, str)}
        blamed = {question for question, probe in probes.items() if probe != question and probe not in silent}
        votes |= self._ask(pool, endpoint, {vote: AGAIN for vote in unread if vote[0] in blamed})
        return blamed

    def question(self, problem: Problem, completion: str) -> Question | Verdict:
        """Return the question about a completion, or the verdict if there is nothing to ask."""
        answer = after_thinking(completion)
        if answer is None:
            return no_answer("unterminated <think> block")
        if not answer.strip():
            return no_answer("an empty answer")
        if len(answer) > self.max_characters:
            return limit(f"an answer of {len(answer)} characters; at most {self.max_characters} are graded")
        prompt = flatten_prompt(problem.prompt)
        mark, seal = (derive_code(part, prompt, str(problem.reference), answer) for part in ("mark", "seal"))
        reference = "none is given" if problem.reference is None else str(problem.reference)
        texts = {
            "prompt": break_control_tokens(prompt),
            "reference": break_control_tokens(reference),
            "completion": f"<<<{mark}\n{break_control_tokens(answer)}\n{mark}>>>",
            "rubric": self.rubric,
        }
        # In one pass, so that a placeholder within a completion stays as it is.
        text = re.sub(r"\{(\w+)\}", lambda found: texts[found[1]], self.template)
        scale = "1 for right or 0 for wrong" if self.grades == 1 else f"a whole number from 0 to {self.grades}"
        form = f"Reason briefly. Then end your reply with this line, alone, GRADE being {scale}:\nverdict {seal}: GRADE"
        return Question(f"{text}\nThe answer ends at the mark {mark}>>>. {form}", seal)

    def _vote(self, endpoint: Endpoint | None, question: Question, vote: int, attempts: range) -> Reply:
        """Return one grade, or why there is none."""
        from rlvr.core.endpoint import RequestLost
        from rlvr.core.http import RequestRefused

        assert endpoint is not None
        state: State = self._state  # type: ignore[attr-defined]
        warmth = self.temperature if self.temperature is not None else 0.0 if self.votes == 1 else 0.7
        reason = ""
        for attempt in attempts:
            # A greedy reply would be the same again, so further attempts are sampled.
            sampling = Sampling(self.max_tokens, max(warmth, 0.5) if attempt else warmth)
            seed = derive_seed("llm_judge", question.text, vote, attempt)
            try:
                reply = endpoint.complete([{"role": "user", "content": question.text}], sampling, seed)
                state.note_answer()
                if reply.finish != "stop":
                    raise Unread(CUT_SHORT[reply.finish].format(self.max_tokens))
                return read_grade(reply.content, question.seal, self.grades)
            except Unread as unread:
                reason = str(unread)
            except RequestLost as lost:
                if (count := state.note_loss()) >= max(self.concurrency, 8):
                    raise RunError(f"llm_judge: {count} requests in a row were lost; the last: {lost}") from lost
                return f"{NOT_REACHED}: {lost}"
            except RequestRefused as refused:
                state.note_answer()
                if refused.status in (401, 403, 404):
                    raise RunError(str(refused)) from refused
                return f"the judge refused: {refused}"
        return reason

    def _verdict(self, votes: Sequence[Reply], blamed: bool) -> Verdict:
        reasons = [vote for vote in votes if isinstance(vote, str)]
        if reasons:
            lost = next((reason for reason in reasons if reason.startswith(NOT_REACHED)), None)
            if lost is None and blamed:
                return unparseable(f"{reasons[0]}, though it reads another answer to this problem")
            return error(lost or reasons[0])
        grades = [vote for vote in votes if isinstance(vote, int)]
        reason = f"graded {' '.join(map(str, grades))} of {self.grades}"
        mean = sum(grades) / (len(grades) * self.grades)
        score = float(mean > 0.5) if self.grades == 1 else mean
        right = score >= (1.0 if self.threshold is None else self.threshold)
        status = Status.CORRECT if right else Status.PARTIAL if score > 0 else Status.INCORRECT
        return Verdict(status, score, reason)


@dataclass(frozen=True)
class Question:
    """What the judge is asked, and the code in its line with the grade."""

    text: str
    seal: str


Vote = tuple[Question, int]
"""A question, and the number of a vote about it."""
Reply = int | str
"""A grade, or why there is none."""


class State:
    """The connection of a judge, opened with the first question, and its latest verdicts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self.verdicts: Cache[Question, Verdict] = Cache(CACHED)
        self.in_a_row = 0  # requests lost since the last one that was answered

    def note_answer(self) -> None:
        """Start to count lost requests anew."""
        with self._lock:
            self.in_a_row = 0

    def note_loss(self) -> int:
        """Count a lost request; return how many were lost in a row."""
        with self._lock:
            self.in_a_row += 1
            return self.in_a_row

    def __reduce__(self) -> tuple[Any, ...]:
        return State, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return State()

    def endpoint(self, judge: LLMJudge) -> Endpoint:
        """Return the connection. Raises RunError if it cannot be opened."""
        from rlvr.core.endpoint import Endpoint

        with self._lock:
            if self._endpoint is None:
                try:
                    self._endpoint = Endpoint(
                        judge.url,
                        judge.model,
                        key_env=judge.key_env,
                        retry_seconds=judge.retry_seconds,
                        request_seconds=judge.request_seconds,
                    )
                except ValueError as problem:
                    raise RunError(f"llm_judge: {problem}") from problem
            return self._endpoint

    def close(self) -> None:
        """End the requests in progress. The next question opens another connection."""
        with self._lock:
            if self._endpoint is not None:
                self._endpoint.close()
            self._endpoint, self.in_a_row = None, 0


def read_grade(reply: str, seal: str, most: int) -> int:
    """Return the grade in a judge's reply. The last line must be `verdict SEAL: GRADE`, and no other line may differ.

    Raises Unread for any other reply, and for a grade that is not a whole number from 0 to `most`.
    """
    said = after_thinking(reply)
    lines = [line.strip().strip("*`").strip() for line in (said or "").splitlines() if line.strip().strip("*`")]
    form = re.compile(rf"verdict {seal}: *(\d{{1,3}})\.?", re.IGNORECASE | re.ASCII)
    found = [match for line in lines if (match := form.fullmatch(line))]
    if not found or not lines or form.fullmatch(lines[-1]) is None:
        raise Unread("the judge's reply does not end with a grade in the form that was asked for")
    if len({int(match[1]) for match in found}) > 1:
        raise Unread("the judge's reply holds several grades")
    value = int(found[-1][1])
    if value > most:
        raise Unread(f"the judge's grade {value} is above {most}")
    return value


def derive_code(*parts: str) -> str:
    """Return a code that depends on every part, so no part can contain it."""
    text = "\x1f".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=CODE // 2).hexdigest()


def break_control_tokens(text: str) -> str:
    """Return the text without control tokens of chat templates."""
    return CONTROL.sub(lambda found: found[0] + BREAK if found[0] != ">" else BREAK + found[0], text)


def flatten_prompt(prompt: Prompt) -> str:
    """Return a prompt as one text, with the roles of its messages."""
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m['content']}" for m in prompt)


def read_text_option(name: str, value: str) -> str:
    """Return an option's text; for @FILE, the text of that file. Raises ValueError if it is empty or unreadable."""
    if value.startswith("@"):
        try:
            check_file(path := Path(value[1:]).expanduser())
            value = path.read_text("utf-8")
        except (OSError, ValueError) as problem:
            reason = "expected text in UTF-8" if isinstance(problem, ValueError) else problem.strerror or problem
            raise ValueError(f"llm_judge {name} {value}: {reason}") from problem
    if not value.strip():
        raise ValueError(f"llm_judge {name} is empty; leave it out")
    return value
