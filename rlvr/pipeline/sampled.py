"""What stages share that sample texts of a policy: settings, the pack's problems, the sampler, principles."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rlvr.commands.task import apply_verifier, make_pack
from rlvr.config import ModelConfig
from rlvr.config.settings import ADVANCED, COUNT, carry
from rlvr.config.shared import (
    BatchSizeSetting,
    LengthSettings,
    LoadSettings,
    SeedSetting,
    TaskSettings,
    VerifierSettings,
)
from rlvr.core.files.jsonl import read_objects
from rlvr.core.files.write import write_whole
from rlvr.core.types import Problem, Prompt, Sampling, Task


@dataclass(frozen=True, kw_only=True)
class SampledArgs(BatchSizeSetting, VerifierSettings, LengthSettings, LoadSettings, SeedSetting, TaskSettings):
    """A model, a pack, and how the completions of its training problems are sampled. The verifier only measures."""

    model: str = ""
    """Hub name or folder of a causal LM. An earlier stage's policy is set by the pipeline."""
    max_problems: Annotated[int | None, COUNT] = None
    """Maximum number of training problems, from the start. None: all."""
    seed: Annotated[int, ADVANCED] = 0
    """Seed of all random numbers."""

    def problems(self) -> tuple[Task, list[Problem]]:
        """Return the pack, with the verifier that was asked for, and its training problems that are sampled.

        Raises ValueError for a pack without any and for one with an environment.
        """
        task = apply_verifier(make_pack(self, ""), self, "")
        if task.environment is not None:
            raise ValueError(f"task {self.task!r} has an environment; expected completions of one turn")
        problems = list(task.train[: self.max_problems])
        if not problems:
            raise ValueError(f"task {self.task!r} has no training problems")
        return task, problems


class Writer:
    """A model that is sampled: one completion, or several, of each prompt."""

    def __init__(self, args: SampledArgs) -> None:
        from transformers.utils.logging import disable_progress_bar

        from rlvr.model.cpu.processor import tuned_cpu
        from rlvr.model.load.policy import load_policy
        from rlvr.model.text.context import context_limit
        from rlvr.sampling.torch_sampler import TorchSampler

        disable_progress_bar()
        self.args = args
        with tuned_cpu():
            self.policy = load_policy(carry(args, ModelConfig, name=args.model))
        self.sampler = TorchSampler(self.policy, batch_size=args.batch_size)
        self.sampling = Sampling(args.max_new_tokens, args.temperature)
        limit = context_limit(self.policy.causal.config)
        self.longest = None if limit is None else limit - args.max_new_tokens

    def write(self, ids: Sequence[str], prompts: Sequence[Prompt], *, samples: int, key: str) -> list[list[str | None]]:
        """Return completions of each prompt. None: it was cut off, or the prompt is too long for the model.

        Seeds are functions of (seed, key, id, sample).
        """
        from rlvr.model.cpu.processor import tuned_cpu
        from rlvr.model.text.context import longer_than
        from rlvr.training.rollout.rollout import rollout

        problems = [Problem(name, prompt) for name, prompt in zip(ids, prompts, strict=True)]
        longest = self.longest
        long = set() if longest is None else {p.id for p, _ in longer_than(self.policy, problems, longest)}
        fitting = [problem for problem in problems if problem.id not in long]
        seed = (self.args.seed, key)
        with tuned_cpu():
            groups = rollout(self.policy, self.sampler, fitting, self.sampling, group_size=samples, seed=seed)
        made = {
            group.problem.id: [None if c.finish_reason != "stop" else c.text for c in group.completions]
            for group in groups
        }
        return [made.get(problem.id, [None] * samples) for problem in problems]


def form_rule(at: str, name: str, form: str, known: set[str]) -> tuple[bool, str]:
    """Return the rule that a form has all of some fields, and no others."""
    named = set(re.findall(r"\{(\w+)\}", form))
    wanted = ", ".join(f"{{{one}}}" for one in sorted(known))
    return named == known, f"{at}{name} {form!r:.80}: expected {wanted} in it, and no others"


def fill_form(form: str, texts: Mapping[str, str]) -> str:
    """Return a form with its fields filled in one pass, so that a placeholder within a text stays text."""
    return re.sub(r"\{(\w+)\}", lambda found: texts[found[1]], form)


def write_rows(path: Path, rows: Any) -> None:
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@dataclass(frozen=True)
class Constitution:
    """Principles. requests: texts that ask for a critique, each with the text that then asks for a revision.

    principles: texts by which a judge compares two answers. Constitutional AI (arXiv:2212.08073) draws one for each
    critique and each comparison.
    """

    requests: tuple[tuple[str, str], ...] = ()
    principles: tuple[str, ...] = ()


def read_constitution(path: Path) -> Constitution:
    """Read JSON Lines of two kinds: {"critique": ..., "revision": ...} and {"principle": ...}.

    Raises ValueError naming a line that is neither, and for a file without any; OSError where there is no such file.
    """
    requests: list[tuple[str, str]] = []
    principles: list[str] = []
    for number, row in read_objects(path):
        where = f"{path}, line {number}"
        if set(row) not in ({"principle"}, {"critique", "revision"}):
            fields = ", ".join(row) or "none"
            raise ValueError(f"{where}: its fields are {fields:.80}; expected critique and revision, or principle")
        for name, value in row.items():
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{where}: {name} is {value!r:.80}; expected text")
        if "principle" in row:
            principles.append(row["principle"])
        else:
            requests.append((row["critique"], row["revision"]))
    if not requests and not principles:
        raise ValueError(f"{path} has no principles: the file is empty")
    return Constitution(tuple(requests), tuple(principles))


def choose_constitution(path: Path | None, default: Constitution, needed: str) -> Constitution:
    """Return the constitution in a file, or the default without a file. `needed`: requests or principles.

    Raises ValueError where there are none of those, and what `read_constitution` raises.
    """
    found = default if path is None else read_constitution(path)
    if not getattr(found, needed):
        fields = "critique and revision" if needed == "requests" else "principle"
        raise ValueError(f"{path or 'the constitution'} has no line with {fields}; expected one at least")
    return found
