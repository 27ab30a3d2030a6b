"""`rlvr eval`: pass@k of a model on a task pack."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from rlvr.commands.arguments import key_values, parse
from rlvr.commands.console import Display, colored
from rlvr.commands.verifier_runners import open_runners
from rlvr.config import ModelConfig
from rlvr.config.bounds import DEVICES, EVAL_BOUNDS, SAMPLERS, is_device
from rlvr.config.quantities import check_bounds
from rlvr.files.models import check_path
from rlvr.files.write import write_whole
from rlvr.registry import did_you_mean, make_task, make_verifier
from rlvr.runs.folder import EVALUATION, RunFolder, texts
from rlvr.runs.records import graded, with_interval
from rlvr.tasks.base import prompt_text, sealed
from rlvr.training.evaluate import check_ks, evaluate
from rlvr.training.signals import StopRequest
from rlvr.types import Problem, Sampling, Task
from rlvr.verifiers.runner.base import check_references

# Settings that may change when an evaluation goes on in the same folder: they decide which answers are needed and how
# fast they come, and not what an answer is.
RESUMABLE = {"k", "threshold", "samples", "max_problems", "batch_size", "workers", "out_dir", "device", "timeout"}


@dataclass(frozen=True)
class EvalArgs:
    """pass@k of a model on a task pack: n samples of each problem, intervals over problems, every answer kept."""

    model: str
    """Hub name or folder of a causal LM, or of an adapter on one; "tiny" is a small untrained one."""
    task: str
    """Task pack: a registered name or module:attribute (see `rlvr list`)."""
    data: Path | None = None
    """Local file or folder in the data set's own format, read instead of the hub."""
    task_option: list[str] = field(default_factory=list)
    """Options of the task pack, as key=value."""
    split: Literal["test", "train"] = "test"
    """Which problems of the pack."""
    k: list[int] = field(default_factory=lambda: [1])
    """pass@k for these k, each at most the number of samples."""
    samples: int = 1
    """n: completions of each problem."""
    threshold: float | None = None
    """For verifiers that grade: a score of at least this counts as right for pass@k. None: verdicts `correct` do."""
    max_problems: int | None = None
    """Only the first so many problems."""
    out_dir: Path = Path("runs/eval")
    """Folder for answers.jsonl and result.json; an evaluation that is already in it goes on."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus sampling: smallest set of tokens that holds this mass. 1: off."""
    top_k: int = 0
    """Sample among the k likeliest tokens. 0: off."""
    max_new_tokens: int = 256
    """Tokens of a completion at most."""
    max_prompt_tokens: int | None = None
    """Problems whose prompt is longer are left out, and counted."""
    stop: list[str] = field(default_factory=list)
    """Strings that end a completion (kept in it)."""
    sampler: str = "torch"
    """Engine that samples: torch, vllm or vllm-server."""
    verifier: str | None = None
    """Verifier to use instead of the pack's own."""
    option: list[str] = field(default_factory=list)
    """Options of that verifier, as key=value."""
    seed: int = 0
    """Seed of the samples."""
    batch_size: int = 512
    """Sequences decoded at once by the torch sampler."""
    workers: int = 2
    """Worker processes that a verifier runs in, unless it opts out or brings its own concurrency."""
    timeout: float = 10.0
    """Seconds that a verifier may take for one completion."""
    system_prompt: str | None = None
    """Put before every prompt as a system message."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Render prompts through the tokenizer's chat template. auto: where it has one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on a GPU that has it, else float32."""
    device: str = "auto"
    """auto: cuda, else mps, else cpu."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub."""
    trust_remote_code: bool = False
    """Run the Python code that the model brings with it."""
    attention: str = "auto"
    """transformers' attention implementation: sdpa, eager, flash_attention_2, ... auto: see model.attention."""

    def sampling(self) -> Sampling:
        """How completions are drawn."""
        return Sampling(self.max_new_tokens, self.temperature, self.top_p, self.top_k, tuple(self.stop))

    def check(self) -> None:
        """Raises ValueError with one line for the first setting that cannot work."""
        check_path(self.model)
        rules = [
            (
                self.max_prompt_tokens is None or self.max_prompt_tokens >= 1,
                f"--max-prompt-tokens {self.max_prompt_tokens}: expected at least 1",
            ),
            (self.samples >= 1, f"--samples {self.samples}: expected at least 1"),
            (
                self.max_problems is None or self.max_problems >= 1,
                f"--max-problems {self.max_problems}: expected 1 or more",
            ),
            (
                self.threshold is None or math.isfinite(self.threshold),
                f"--threshold {self.threshold}: expected a score, a finite number",
            ),
            (self.temperature >= 0, f"--temperature {self.temperature}: expected 0 (greedy) or more"),
            (0 < self.top_p <= 1, f"--top-p {self.top_p}: expected a share in (0, 1]"),
            (self.top_k >= 0, f"--top-k {self.top_k}: expected 0 (off) or more"),
            (self.max_new_tokens >= 1, f"--max-new-tokens {self.max_new_tokens}: expected at least 1"),
            (self.batch_size >= 1, f"--batch-size {self.batch_size}: expected at least 1"),
            (
                self.verifier is not None or not self.option,
                "--option needs --verifier: they are that verifier's options",
            ),
        ]
        for holds, message in (*rules, *self.text_rules()):
            if not holds:
                raise ValueError(message)
        check_bounds(vars(self), EVAL_BOUNDS, "--")
        check_ks(self.k, self.samples)

    def text_rules(self) -> list[tuple[bool, str]]:
        """Rules of what is no number."""
        return [
            (bool(self.model.strip()), "--model is empty; expected a hub name, a folder, or tiny"),
            (self.sampler in SAMPLERS, f"--sampler {self.sampler!r}; {did_you_mean(self.sampler, SAMPLERS)}"),
            (is_device(self.device), f"--device {self.device!r}; expected {DEVICES}"),
            ("" not in self.stop, "--stop holds an empty text, which would end every completion at once; leave it out"),
        ]


def load_task(args: EvalArgs) -> Task:
    """The pack, with the verifier that was asked for."""
    options: dict[str, Any] = dict(key_values(args.task_option, "--task-option"))
    if args.data is not None:
        options["data"] = args.data
    task = sealed(make_task(args.task, **options))
    if args.verifier is None:
        return task
    verifier = make_verifier(args.verifier, **key_values(args.option, "--option"))
    check_references(verifier, chosen_problems(task, args))
    return dataclasses.replace(task, verifier=verifier)


def chosen_problems(task: Task, args: EvalArgs) -> list[Problem]:
    """The problems that are evaluated. ValueError where the pack has none in that split."""
    problems = list((task.train if args.split == "train" else task.test)[: args.max_problems])
    if not problems:
        raise ValueError(f"task {args.task!r} has no {args.split} problems; see --split and --data")
    return problems


def eval_folder(args: EvalArgs, fingerprint: str) -> RunFolder:
    """The folder of an evaluation, which goes on where it holds one with the same settings; without answers anew."""
    settings = {**dataclasses.asdict(args), "fingerprint": fingerprint}
    settings = json.loads(json.dumps(settings, default=str))
    defaults = {f.name: f.default for f in dataclasses.fields(args) if f.default is not dataclasses.MISSING}

    def difference(held: dict[str, Any]) -> str | None:
        for name, value in settings.items():
            there = held.get(name, defaults.get(name))
            if name not in RESUMABLE and there != value:
                return f"an evaluation with other settings: {name} is {there!r} there and {value!r} here"
        return None

    answers = args.out_dir / "answers.jsonl"
    return RunFolder(
        args.out_dir,
        EVALUATION,
        flag="--out-dir",
        record=lambda held: settings,
        difference=difference,
        loses=lambda held: answers.exists() and answers.stat().st_size > 0,
        inputs=texts({name: value for name, value in settings.items() if name != "out_dir"}),
    )


def run(args: EvalArgs) -> dict[str, Any]:
    """The evaluation: answers.jsonl and result.json in the folder. Returns the numbers. A signal raises Stopped."""
    with StopRequest().answering() as stop:
        stop.left = lambda: f"the same command goes on from the answers in {args.out_dir}"
        return _run(args, stop)


def _run(args: EvalArgs, stop: StopRequest) -> dict[str, Any]:
    # torch and transformers take seconds to import; bad arguments are told before that
    args.check()
    stop.doing = "reading the task"
    task = load_task(args)
    problems = chosen_problems(task, args)
    folder = eval_folder(args, task.fingerprint)
    with folder.locked() as lines:
        for line in (*lines, *folder.claim()):
            print(line)
        return answer_problems(args, task, problems, stop)


def answer_problems(args: EvalArgs, task: Task, problems: list[Problem], stop: StopRequest) -> dict[str, Any]:
    """Loads the model, lets it answer and writes the numbers, in a folder that is claimed."""
    from transformers.utils.logging import disable_progress_bar

    from rlvr.model.context import check_fit, context_limit, leave_out_long
    from rlvr.model.device import tune_cpu
    from rlvr.model.policy import load_policy
    from rlvr.sampling.samplers import open_sampler

    stop.doing = "loading the model"
    tune_cpu()
    disable_progress_bar()
    model = ModelConfig(
        name=args.model,
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        attention=args.attention,
        dtype=args.dtype,
        device=args.device,
        system_prompt=args.system_prompt,
        chat=args.chat,
    )
    policy = load_policy(model, corpus=(prompt_text(problem.prompt) for problem in problems), seed=args.seed)
    display = Display()
    stop.bars = display.height
    flags = ("--max-new-tokens", "--max-prompt-tokens")
    if args.max_prompt_tokens is not None:
        kept, dropped = leave_out_long(policy, problems, args.max_prompt_tokens, flags[1])
        problems = list(kept)
        display.say(f"{dropped} problems with prompts of more than {args.max_prompt_tokens} tokens are left out")
    check_fit(policy, problems, args.max_new_tokens, context_limit(policy.causal.config), flags)
    display.say(f"{args.task}: {len(problems)} problems, {args.samples} samples each; {policy.describe()}")
    with (
        closing(display),
        open_sampler(args.sampler, policy, batch_size=args.batch_size) as sampler,
        open_runners(task.verifier, workers=args.workers, timeout=args.timeout) as runners,
    ):
        stop.doing = "evaluating"
        display.start("evaluating", len(problems))
        result = evaluate(
            policy,
            sampler,
            problems,
            runners["verifier"],
            runners.get("lenient"),
            runners.get("strict"),
            sampling=args.sampling(),
            samples=args.samples,
            ks=args.k,
            threshold=args.threshold,
            seed=args.seed,
            answers_file=args.out_dir / "answers.jsonl",
            answers_at_once=args.batch_size,
            progress=lambda done: display.step(done, ""),
        )
    write_whole(args.out_dir / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def main(argv: Sequence[str]) -> int:
    """`rlvr eval --model M --task T [flags]`."""
    args = parse(EvalArgs, argv, prog="rlvr eval")
    result = run(args)
    display = Display()
    display.print_table(result_table(result, args.k))
    display.console.print(describe(result))
    if hint := threshold_hint(result, args.k):
        display.say(hint, wrap=True)
    display.say(f"answers and numbers: {args.out_dir}")
    return 0


def result_table(result: dict[str, Any], ks: Sequence[int]) -> Table:
    """pass@k with 95 % intervals over problems, a row for each way of extracting the answer; a graded score too."""
    table = Table(
        title=f"{result['num_problems']} problems, {result['num_samples']} answers, 95 % intervals",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shows_score = graded([result])
    table.add_column("extraction", no_wrap=True)
    for name in (*(f"pass@{k}" for k in ks), *(["score"] if shows_score else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for name, prefix in (("as configured", ""), ("strict", "strict_"), ("lenient", "lenient_")):
        if f"{prefix}pass@{ks[0]}" in result:
            cells = [with_interval(result, f"{prefix}pass@{k}", 2) for k in ks]
            cells += [with_interval(result, "score", 2) if not prefix else ""] if shows_score else []
            table.add_row(name, *map(escape, cells))
    return table


def threshold_hint(result: dict[str, Any], ks: Sequence[int]) -> str:
    """What to do where pass@k is 0 because the verifier grades and calls nothing correct; else ""."""
    silent = not any(result[f"pass@{k}"] for k in ks) and graded([result]) and "threshold" not in result
    return "no verdict is `correct` and scores are graded: --threshold X counts a score of at least X" if silent else ""


def describe(result: dict[str, Any]) -> str:
    """Truncation, length and verdicts in one line of rich markup."""
    statuses = ", ".join(colored(name, f"{count} {name}") for name, count in result["status"].items())
    length = f"truncated {result['truncated']:.1%}, {result['completion_tokens']:.1f} tokens on average"
    right = f"; right is a score of at least {result['threshold']:g}" if "threshold" in result else ""
    return f"{length}; verdicts: {statuses}{right}"
