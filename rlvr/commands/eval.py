"""`rlvr eval`: pass@k of a model on a task pack."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from rlvr.config import Config, ModelConfig, SamplerConfig, TorchSamplerConfig
from rlvr.config.settings import ADVANCED, COUNT, Rules, Used, carry, check_groups, spell
from rlvr.config.shared import (
    WITHOUT_URL,
    AnswerSettings,
    AttentionSetting,
    EnvironmentSettings,
    LoadSettings,
    PassKSettings,
    SamplingSettings,
    SeedSetting,
    ServedSettings,
    TaskSettings,
    TurnSettings,
    VerifierSettings,
    renders_here,
)
from rlvr.core.files.models import check_path, find_model
from rlvr.core.files.write import write_whole
from rlvr.core.registry import key_values, make_verifier
from rlvr.core.types import Problem, Sampling, Task, Verifier
from rlvr.runs.folder import EVALUATION, RunFolder, settings_folder, texts
from rlvr.runs.records import is_graded, with_interval
from rlvr.sampling.samplers import check_sampler
from rlvr.tasks.base import prompt_text, seal_task
from rlvr.training.supervision.signals import StopRequest
from rlvr.verifiers.runner.base import check_references

from .arguments import parse
from .console import Display, color_status, find_program
from .machine import check_device
from .task import apply_environment, apply_verifier, check_names, check_turns, make_pack
from .verifier_runners import open_runners

if TYPE_CHECKING:
    from rlvr.model.load.policy import Policy
    from rlvr.served.speakers import Speaker

# Settings that may change on resume: they affect how many answers are sampled or how fast, never their content.
RESUMABLE = {
    *("k", "threshold", "samples", "max_problems", "workers", "out_dir", "device", "timeout", "reply_seconds"),
    *("concurrency", "key_env", "retry_seconds", "request_seconds"),
}
RENDERS_HERE = Used(renders_here, "without --url, or with --tokenizer")


@dataclass(frozen=True, kw_only=True)
class ModelOnTask(
    AnswerSettings,
    SamplingSettings,
    VerifierSettings,
    AttentionSetting,
    LoadSettings,
    SeedSetting,
    TurnSettings,
    EnvironmentSettings,
    ServedSettings,
    TaskSettings,
):
    """Settings of `rlvr eval` and `rlvr profile`: a model, a task pack, and how its problems are answered."""

    # Settings of a sampler that serve training.
    NOT_READ: ClassVar = {
        "sampler": (
            "max_staleness",
            "slice_tokens",
            "max_versions",
            "in_flight",
            "sync_check_every",
            "mismatch_alarm",
            "sleep",
        ),
    }
    USES: ClassVar = {
        **dict.fromkeys(("attention", "dtype", "device"), WITHOUT_URL),
        **dict.fromkeys(("chat", "revision", "trust_remote_code", "max_prompt_tokens"), RENDERS_HERE),
    }

    model: str
    """Hub name or folder of a causal LM or of an adapter on one; tiny: a small untrained model. With --url: its name
    there."""
    max_problems: Annotated[int | None, COUNT] = None
    """Maximum number of problems, from the start. None: all."""
    sampler: SamplerConfig = field(default_factory=TorchSamplerConfig)

    def rules(self, at: str) -> Rules:
        if self.url is None:
            check_path(self.model)
        named = bool(self.model.strip())
        own = TorchSamplerConfig()
        return [
            (named, f"{at}model is empty; expected a hub name, a folder, or tiny"),
            (
                self.url is None or self.sampler == own,
                f"{at}sampler would have no effect: with {at}url the server samples; leave it out",
            ),
            *super().rules(at),
        ]

    def check(self, at: str = "--") -> None:
        super().check(at)
        check_groups(self)


@dataclass(frozen=True, kw_only=True)
class EvalArgs(PassKSettings, ModelOnTask):
    """pass@k of a model on a task pack: n samples of each problem, intervals over problems, every answer kept."""

    task: str = field()  # required, unlike that of training
    split: Literal["test", "train"] = "test"
    """Split of the task pack."""
    out_dir: Path = Path("runs/eval")
    """Output folder for answers.jsonl and result.json. An evaluation that is already in it is resumed."""
    selector: Annotated[str | None, ADVANCED] = None
    """Verifier whose scores select one of k samples (reward_model, for example), for best@k. None: no best@k."""
    selector_option: Annotated[tuple[str, ...], ADVANCED] = ()
    """Options of the selector, as key=value."""

    def rules(self, at: str) -> Rules:
        several = max(self.k, default=0) > 1
        return [
            *super().rules(at),
            (self.selector is None or several, f"{at}selector selects one of k samples: set {at}k above 1"),
            (
                self.selector is not None or not self.selector_option,
                f"{at}{spell('selector_option', at)} without a selector; set {at}selector too",
            ),
        ]

    def select_by(self) -> Verifier | None:
        """Return the selector, None without one. Raises LookupError or ValueError for one that cannot be made."""
        if self.selector is None:
            return None
        made: Verifier = make_verifier(self.selector, **key_values(self.selector_option, "--selector-option"))
        return made

    def sampling(self) -> Sampling:
        return Sampling(self.max_new_tokens, self.temperature, self.top_p, self.top_k, self.stop)


def load_task(args: EvalArgs) -> Task:
    """Return the pack, with the verifier that was asked for."""
    task = apply_verifier(apply_environment(seal_task(make_pack(args, "--")), args, "--"), args, "--")
    check_turns(task, args, "--")
    if args.verifier is not None or args.verifier_option:
        check_references(task.verifier, chosen_problems(task, args))
    return task


def chosen_problems(task: Task, args: EvalArgs) -> list[Problem]:
    """Return the problems to evaluate. ValueError if the pack has none in that split."""
    problems = list((task.train if args.split == "train" else task.test)[: args.max_problems])
    if not problems:
        raise ValueError(f"task {args.task!r} has no {args.split} problems; see --split and --data")
    return problems


def eval_folder(args: EvalArgs, fingerprint: str) -> RunFolder:
    """Return the folder of an evaluation. One with the same settings is resumed, one without answers overwritten."""

    def simplify(name: str, value: Any) -> Any:
        # A sampler counts by its name. A server may come back at another port; what it serves has a name.
        return value and {"sampler": lambda: value["name"], "url": lambda: "a server"}.get(name, lambda: value)()

    settings = {**dataclasses.asdict(args), "fingerprint": fingerprint}
    inputs = texts({name: value for name, value in settings.items() if name != "out_dir"})
    return settings_folder(
        args.out_dir,
        EVALUATION,
        settings,
        resumable=RESUMABLE,
        results="answers.jsonl",
        simplify=simplify,
        inputs=inputs,
    )


def run(args: EvalArgs) -> dict[str, Any]:
    """Evaluate: write answers.jsonl and result.json, and return the numbers. A signal raises Stopped."""
    with StopRequest().handling_signals() as stop:
        stop.left = lambda: f"run the same command to resume; the answers so far are in {args.out_dir}"
        return _run(args, stop)


def _run(args: EvalArgs, stop: StopRequest) -> dict[str, Any]:
    # Settings, names and data come before torch and transformers, whose import takes seconds.
    args.check()
    check_names(args)
    if args.url is None:
        check_device(args.device)
        check_sampler(args.sampler)
    stop.doing = "reading the task"
    task = load_task(args)
    args.select_by()
    problems = chosen_problems(task, args)
    if args.url is not None:
        from rlvr.core.endpoint import read_key, request_options

        read_key(args.key_env)
        request_options(args.request_option)
    elif args.model != "tiny":
        find_model(args.model, args.revision)
    # From here on the folder is ours.
    folder = eval_folder(args, task.fingerprint)
    with folder.lock() as lines:
        for line in (*lines, *folder.claim(), *task.split_notes, *task.notes):
            print(line)
        if args.url is not None:
            return answer_problems(args, task, problems, stop)
        from rlvr.model.cpu.processor import tuned_cpu

        with tuned_cpu():
            return answer_problems(args, task, problems, stop)


def answer_problems(args: EvalArgs, task: Task, problems: Sequence[Problem], stop: StopRequest) -> dict[str, Any]:
    """Have the problems answered and verified, by a model that is loaded here or one on a server. Return the numbers.

    The folder must be claimed: answers.jsonl and result.json are written there.
    """
    from rlvr.served.evaluation import identical_hint
    from rlvr.training.rollout.episodes import plan_of

    display = Display()
    stop.bars = display.height
    with closing(display), ExitStack() as stack:
        made = load_model(args, task, problems, stop) if args.url is None else reach_server(args, stop, stack)
        made.speaker.announce(task.environment)
        problems = fit_problems(args, made.speaker, problems, made.limit, display)
        plan = plan_of(made.speaker, task, args, made.limit, args.sampler.max_model_len)
        display.say(f"{args.task}: {len(problems)} problems, {args.samples} samples each; {made.description}")
        evaluate = made.open(stack)
        runners = stack.enter_context(
            open_runners(task.verifier, args.select_by(), workers=args.workers, timeout=args.timeout)
        )
        stop.doing = "evaluating"
        display.start("evaluating", len(problems))
        result = evaluate(
            problems=problems,
            **runners,
            sampling=args.sampling(),
            samples=args.samples,
            ks=args.k,
            threshold=args.threshold,
            seed=args.seed,
            answers_file=args.out_dir / "answers.jsonl",
            progress=lambda done: display.step(done, ""),
            plan=plan,
        )
        if hint := identical_hint(result):
            display.say(hint, wrap=True)
    write_whole(args.out_dir / "result.json", json.dumps(result, indent=2) + "\n")
    return result


@dataclass(frozen=True)
class Answering:
    """What answers problems. speaker: renders prompts; limit: tokens that the model reads, None where not known.

    open: returns rlvr.training's `evaluate`, or the served one, bound to the model. The stack closes what it opens.
    """

    speaker: Policy | Speaker
    limit: int | None
    description: str
    open: Callable[[ExitStack], Callable[..., dict[str, Any]]]


def load_model(args: EvalArgs, task: Task, problems: Sequence[Problem], stop: StopRequest) -> Answering:
    from transformers.utils.logging import disable_progress_bar

    from rlvr.model.load.policy import load_policy
    from rlvr.model.text.context import context_limit
    from rlvr.sampling.samplers import open_sampler
    from rlvr.training.evaluation.evaluate import evaluate

    stop.doing = "loading the model"
    disable_progress_bar()
    model = carry(args, ModelConfig, name=args.model)
    words = [getattr(task.environment, "announcement", ""), *(prompt_text(problem.prompt) for problem in problems)]
    policy = load_policy(model, corpus=words, seed=args.seed)

    def open_evaluation(stack: ExitStack) -> Callable[..., dict[str, Any]]:
        sampler = stack.enter_context(open_sampler(args.sampler, policy))
        return partial(evaluate, policy, sampler, answers_at_once=args.sampler.batch_size)

    return Answering(policy, context_limit(policy.causal.config), policy.describe(), open_evaluation)


def reach_server(args: EvalArgs, stop: StopRequest, stack: ExitStack) -> Answering:
    """Reach the server of --url. Prompts become token ids with --tokenizer, otherwise text or messages."""
    from rlvr.core.endpoint import Endpoint
    from rlvr.served.evaluation import Served, evaluate_served
    from rlvr.served.speakers import MessageSpeaker, TokenSpeaker

    assert args.url is not None
    stop.doing = "asking the server for its models"
    names = ("api", "key_env", "retry_seconds", "request_seconds")
    settings = {name: getattr(args, name) for name in names}
    endpoint = stack.enter_context(closing(Endpoint(args.url, args.model, options=args.request_option, **settings)))
    where = f"{args.model} at {args.url}, {args.api}, {args.concurrency} requests at once"
    speaker: Speaker = MessageSpeaker(
        chat=args.api == "chat", system_prompt=args.system_prompt, tool_role=args.tool_role
    )
    if args.tokenizer is not None:
        from rlvr.model.load.pretrained import load_errors_as_value_error, load_tokenizer

        stop.doing = "loading the tokenizer"
        options = {"revision": args.revision or "main", "trust_remote_code": args.trust_remote_code}
        with load_errors_as_value_error(args.tokenizer, "tokenizer"):
            tokenizer = load_tokenizer(args.tokenizer, **options)
        speaker = TokenSpeaker(tokenizer, system_prompt=args.system_prompt, chat=args.chat)
    limit = endpoint.max_model_len if args.tokenizer is not None else None
    served = Served(endpoint, speaker, args.concurrency)
    return Answering(speaker, limit, where, lambda stack: partial(evaluate_served, served))


def fit_problems(
    args: EvalArgs, speaker: Speaker | Policy, problems: Sequence[Problem], limit: int | None, display: Display
) -> Sequence[Problem]:
    """Return the problems whose prompts are short enough. Lengths are known with a tokenizer only.

    Raises ValueError for a prompt that leaves no room for a completion.
    """
    from rlvr.model.text.context import check_fit, leave_out_long
    from rlvr.served.speakers import MessageSpeaker

    if isinstance(speaker, MessageSpeaker):
        return problems
    flags = ("--max-new-tokens", "--max-prompt-tokens")
    if args.max_prompt_tokens is not None:
        problems, dropped = leave_out_long(speaker, problems, args.max_prompt_tokens, flags[1])
        display.say(f"{dropped} problems with prompts of more than {args.max_prompt_tokens} tokens are left out")
    check_fit(speaker, problems, args.max_new_tokens, limit, flags)
    return problems


def main(argv: Sequence[str]) -> int:
    args = parse(EvalArgs, argv, prog="rlvr eval", description=EvalArgs.__doc__ or "")
    result = run(args)
    display = Display()
    display.print_table(result_table(result, args.k))
    if max(args.k) > 1:
        display.print_table(selection_table(result, args.k))
    if table := packs_table(result, args.k):
        display.print_table(table)
    display.console.print(describe(result))
    if hint := threshold_hint(result, args.k):
        display.say(hint, wrap=True)
    display.say(f"answers and numbers: {args.out_dir}")
    return 0


def build_eval_command(config: Config, model: Path) -> str:
    """Return the shell command that evaluates a model on the whole test split with the run's evaluation settings."""
    run, e, sampling = config.run, config.eval, config.eval_sampling()
    given: dict[str, Any] = {"model": model, "task": run.task, "k": e.k, "samples": e.samples}
    given |= {"max_new_tokens": sampling.max_new_tokens, "out_dir": run.out_dir / f"eval-{model.name}"}
    # What is not at the default of `rlvr eval`, by what holds it.
    shared: list[tuple[Any, Sequence[str]]] = [
        (run, ("data", "task_option", "environment", "environment_option")),
        (config.monitor if e.verifier == "monitor" and config.monitor else run, ("verifier", "verifier_option")),
        (e, ("threshold", "temperature", "top_p")),
        (sampling, ("stop",)),
        (config.model, ("system_prompt", "chat", "dtype", "attention", "device", "trust_remote_code")),
        (config.rollout, ("max_prompt_tokens", *(field.name for field in dataclasses.fields(TurnSettings)))),
    ]
    defaults = {field.name: field.default for field in dataclasses.fields(EvalArgs)}
    for holder, names in shared:
        given |= {name: getattr(holder, name) for name in names if getattr(holder, name) != defaults[name]}
    words = []
    for name, value in given.items():
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return f"{find_program()} eval {shlex.join(words)}"


def result_table(result: dict[str, Any], ks: Sequence[int]) -> Table:
    """Return a table of pass@k with 95 % intervals over problems, a row per way of extracting; graded scores too."""
    table = Table(
        title=f"{result['num_problems']} problems, {result['num_samples']} answers, 95 % intervals",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shows_score = is_graded([result])
    table.add_column("extraction", no_wrap=True)
    for name in (*(f"pass@{k}" for k in ks), *(["score"] if shows_score else [])):
        table.add_column(name, justify="right", no_wrap=True)
    score = [escape(with_interval(result, "score", 2))] if shows_score else []
    for name, cells in extractions(result, ks):
        table.add_row(name, *cells, *(score if name == "as configured" else [""] * len(score)))
    return table


def selection_table(result: dict[str, Any], ks: Sequence[int]) -> Table:
    """Return a table of what k samples are worth where all must be right, or one answer is given, with intervals."""
    columns = {"pass^k": "all right", "maj@k": "the most frequent", "best@k": "the selector's"}
    table = Table(title="of k samples (pass^k, maj@k, best@k)", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("k", justify="right")
    shown = [name for name in columns if any(name.replace("k", str(k)) in result for k in ks)]
    for name in shown:
        table.add_column(columns[name], justify="right", no_wrap=True)
    if "best@k" in shown:
        table.add_column("its KL, at most", justify="right", no_wrap=True)
    for k in (k for k in ks if k > 1):
        bound = result.get(f"best@{k}_kl")
        cells = [escape(with_interval(result, name.replace("k", str(k)), 2)) for name in shown]
        table.add_row(str(k), *cells, *([] if bound is None else [f"{bound:.2f}"]))
    return table


def packs_table(result: dict[str, Any], ks: Sequence[int]) -> Table | None:
    """Return a table of pass@k with a row for each pack of a mixture; None for other tasks."""
    if "packs" not in result:
        return None
    table = Table(title="by pack", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("pack", "problems", "extraction", *(f"pass@{k}" for k in ks)):
        table.add_column(name, justify="right" if "@" in name or name == "problems" else "left", no_wrap=True)
    for pack, held in result["packs"].items():
        rows = extractions(held, ks) if held else [("", ["unscored"] * len(ks))]
        for number, (name, cells) in enumerate(rows):
            of_pack = ["", ""] if number else [escape(pack), str(held["num_problems"] if held else "")]
            table.add_row(*of_pack, name, *cells)
    return table


def extractions(result: dict[str, Any], ks: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Return pass@k with intervals by each way of extracting answers: its name, and a cell of markup for each k."""
    forms = (("as configured", ""), ("strict", "strict_"), ("lenient", "lenient_"))
    return [
        (name, [escape(with_interval(result, f"{prefix}pass@{k}", 2)) for k in ks])
        for name, prefix in forms
        if f"{prefix}pass@{ks[0]}" in result
    ]


def threshold_hint(result: dict[str, Any], ks: Sequence[int]) -> str:
    """Return a hint where pass@k is 0 because the verifier grades and never says `correct`; else ""."""
    silent = not any(result[f"pass@{k}"] for k in ks) and is_graded([result]) and "threshold" not in result
    return "no verdict is `correct` and scores are graded: --threshold X counts a score of at least X" if silent else ""


def describe(result: dict[str, Any]) -> str:
    """Return truncation, length and verdicts in one line of rich markup."""
    statuses = ", ".join(color_status(name, f"{count} {name}") for name, count in result["status"].items())
    filtered = f"withheld by a filter {result['filtered']:.1%}, " if "filtered" in result else ""
    length = f"truncated {result['truncated']:.1%}, {filtered}{result['completion_tokens']:.1f} tokens on average"
    right = f"; right is a score of at least {result['threshold']:g}" if "threshold" in result else ""
    return f"{length}; verdicts: {statuses}{right}"
