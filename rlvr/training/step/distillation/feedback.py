"""The feedback in a self-teacher's prompt: the verdict on a completion, and a correct completion of the same group.

SDPO (arXiv:2601.20802): the policy with feedback in its prompt is the teacher of the policy without it. The texts are
those of the paper and of TRL's `experimental/sdpo`; status and reference are additions. Rollouts and evaluations use
the prompt without feedback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Group, Problem, Prompt, Verdict

TEMPLATE = """{prompt}

Correct solution:
{sibling}

The correct answer is {reference}.

Your earlier attempt was judged: {status}.

The following is feedback from your unsuccessful earlier attempt:
{reason}

Correctly solve the original question.
"""
FIELD = re.compile(r"\{(prompt|status|reason|sibling|reference)\}")


@dataclass(frozen=True)
class Feedback:
    """Makes the teacher's prompts. verifier: its trait `feedback_template` is used if `template` is None.

    tells: the parts of the feedback, some of TOLD in rlvr.config.teacher.
    """

    verifier: Any
    tells: Sequence[str]
    template: str | None = None

    def prompts_of(self, group: Group) -> list[Prompt | None]:
        """Return the teacher's prompt for each completion of a group; None if there is no feedback on it.

        Status and reason are those of a verdict that is not correct. The sibling is the first correct completion of the
        group other than the completion itself (TRL: dont_reprompt_on_self_success). A completion whose verdict has no
        score gets no feedback.
        """
        verdicts = group.verdicts
        solved = [place for place, verdict in enumerate(verdicts) if verdict.correct]
        found: list[Prompt | None] = []
        for place, verdict in enumerate(verdicts):
            sibling = next((other for other in solved if other != place), None)
            text = None if sibling is None else group.completions[sibling].text
            found.append(None if verdict.score is None else self.prompt_of(group.problem, verdict, text))
        return found

    def prompt_of(self, problem: Problem, verdict: Verdict, sibling: str | None) -> Prompt | None:
        """Return the teacher's prompt for a completion with this verdict; None if there is no feedback.

        If the prompt is chat messages, the feedback goes into the last one.
        """
        known = {
            "sibling": sibling,
            "reference": None if problem.reference is None else str(problem.reference),
            "status": None if verdict.correct else str(verdict.status),
            "reason": None if verdict.correct else verdict.reason,
        }
        told = {name: text.strip() for name, text in known.items() if text and name in self.tells}
        prompt = problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"]
        template = self.template or template_of(self.verifier, problem) or TEMPLATE
        if not told.keys() & set(FIELD.findall(template)):
            return None
        text = fill_template(template, {**told, "prompt": prompt})
        if isinstance(problem.prompt, str):
            return text
        return [*problem.prompt[:-1], {**problem.prompt[-1], "content": text}]


def template_of(verifier: Any, problem: Problem) -> str | None:
    """Return the template of a problem's verifier; in a mixture or a combination, of the part that judges it."""
    traits = VerifierTraits.of(verifier)
    if traits.feedback_template or traits.problem_for is None:
        return traits.feedback_template
    parts = (part for name, part in traits.components.items() if traits.problem_for(name, problem) is not None)
    return next(filter(None, (template_of(part, problem) for part in parts)), None)


def fill_template(template: str, values: dict[str, str]) -> str:
    """Return a template with its fields filled in, without the paragraphs that name a field without a value.

    Paragraphs lie between blank lines. Text that is put in is not read again.
    """
    kept = [part for part in template.split("\n\n") if values.keys() >= set(FIELD.findall(part))]
    return "\n\n".join(FIELD.sub(lambda found: values[found[1]], part) for part in kept)
