"""`rlvr eval --url` and `rlvr profile --url`: the same evaluation with a model that a server holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rlvr.commands.console import Display
from rlvr.commands.verifier_runners import open_runners
from rlvr.files.write import write_whole
from rlvr.training.signals import StopRequest
from rlvr.types import Problem, Task

if TYPE_CHECKING:
    from rlvr.commands.eval import EvalArgs
    from rlvr.model.policy import Policy
    from rlvr.served.speakers import Speaker


def answer_problems(args: EvalArgs, task: Task, problems: Sequence[Problem], stop: StopRequest) -> dict[str, Any]:
    """Sample and verify a served model's answers, and write the numbers into a folder that is claimed."""
    from rlvr.endpoint import Endpoint
    from rlvr.served.evaluation import Served, evaluate_served, identical_hint
    from rlvr.training.episodes import plan_of

    stop.doing = "asking the server for its models"
    assert args.url is not None
    endpoint = Endpoint(
        args.url,
        args.model,
        api=args.api,
        key_env=args.key_env,
        retry_seconds=args.retry_seconds,
        request_seconds=args.request_seconds,
        options=args.request_option,
    )
    display = Display()
    stop.bars = display.height
    with closing(endpoint), closing(display):
        stop.doing = "loading the tokenizer"
        speaker = open_speaker(args)
        speaker.announce(task.environment)
        plan = plan_of(speaker, task, args, endpoint.max_model_len if args.tokenizer else None)
        problems = fitting(args, speaker, problems, endpoint.max_model_len, display)
        display.say(
            f"{args.task}: {len(problems)} problems, {args.samples} samples each; {args.model} at {args.url}, "
            f"{args.api}, {args.concurrency} requests at once"
        )
        stop.doing = "evaluating"
        display.start("evaluating", len(problems))
        with open_runners(task.verifier, args.select_by(), workers=args.workers, timeout=args.timeout) as runners:
            result = evaluate_served(
                Served(endpoint, speaker, args.concurrency),
                problems,
                runners["verifier"],
                runners.get("lenient"),
                runners.get("strict"),
                runners.get("selector"),
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


def open_speaker(args: EvalArgs) -> Speaker:
    """Return what makes requests of prompts: with a tokenizer token ids, otherwise text or messages."""
    from rlvr.served.speakers import MessageSpeaker, TokenSpeaker

    if args.tokenizer is None:
        return MessageSpeaker(chat=args.api == "chat", system_prompt=args.system_prompt, tool_role=args.tool_role)
    from rlvr.model.load_errors import load_errors_as_value_error
    from rlvr.model.tokenizer import load_tokenizer

    with load_errors_as_value_error(args.tokenizer, "tokenizer"):
        tokenizer = load_tokenizer(
            args.tokenizer, revision=args.revision or "main", trust_remote_code=args.trust_remote_code
        )
    return TokenSpeaker(tokenizer, system_prompt=args.system_prompt, chat=args.chat)


def fitting(
    args: EvalArgs, speaker: Speaker | Policy, problems: Sequence[Problem], limit: int | None, display: Display
) -> Sequence[Problem]:
    """Return the problems whose prompts are short enough; ValueError for one that leaves no room for a completion.

    Lengths are known with a tokenizer only.
    """
    from rlvr.model.context import check_fit, leave_out_long
    from rlvr.served.speakers import MessageSpeaker

    if isinstance(speaker, MessageSpeaker):
        return problems
    flags = ("--max-new-tokens", "--max-prompt-tokens")
    if args.max_prompt_tokens is not None:
        problems, dropped = leave_out_long(speaker, problems, args.max_prompt_tokens, flags[1])
        display.say(f"{dropped} problems with prompts of more than {args.max_prompt_tokens} tokens are left out")
    check_fit(speaker, problems, args.max_new_tokens, limit, flags)
    return problems
