"""Files of a run, and the fields of every JSON Lines file that rlvr writes or reads."""

from __future__ import annotations

from dataclasses import dataclass

from .markdown import page, table

RUN = (
    ("config.json", "the settings, and under `history` what changed at which resume"),
    ("metrics.jsonl", "a line for each step: [metrics](metrics.md)"),
    ("teacher/step-000020.jsonl", "what a served teacher answered, since the oldest checkpoint"),
    ("rollouts.jsonl", "a line for each rollout; older parts are compressed as rollouts-0000.jsonl.gz and so on"),
    ("eval.jsonl", "a line for each evaluation"),
    (
        "answers-000020.jsonl.gz",
        "answers of the evaluation after a step to at most eval.keep_answers problems; a line for each problem",
    ),
    ("alarms.jsonl", "a line for each alarm of the monitor, with the rollouts that show it"),
    ("events.jsonl", "what happened to the run and when; no resume truncates it"),
    (
        "start/",
        "the fine-tuned policy, where the recipe fine-tunes; until it is complete start.training/ has its checkpoints",
    ),
    (
        "checkpoints/step-000020/",
        "a model that transformers loads (an adapter under LoRA), with optimizer state and state.json",
    ),
    ("report.html", "the page that `rlvr report` writes; a run writes it at its end"),
    ("trackers.json", "with trackers: the run's ids there, and the last step that they have"),
    ("lock", "held while a process writes in the folder"),
)
CHANGES = """
A resume truncates metrics, rollouts, eval and alarms to its checkpoint, and deletes the answers of later evaluations.
A number that is NaN or infinite is written as null.
"""


@dataclass(frozen=True)
class Field:
    """A field of a line. always: every line has it."""

    name: str
    type: str
    meaning: str
    always: bool = True


VERDICT = (
    Field("status", "text", "of the [verdict](verdicts.md)"),
    Field("score", "number or null", "null where the verifier or the reference failed"),
    Field("reason", "text", "why, in words"),
    Field("extracted", "text or null", "the answer that was read from the completion"),
)
TURNS = Field(
    "turns",
    "list of objects",
    "with an environment: role, text, tokens; reward, void, calls, failed where not 0",
    False,
)
WRITTEN: dict[str, tuple[str, tuple[Field, ...]]] = {
    "rollouts.jsonl": (
        "A line for each completion of a run, in the order of step, problem and sample.",
        (
            Field("step", "whole number", "from 1"),
            Field("problem", "text", "id of the problem"),
            Field("sample", "whole number", "place in the group, from 0"),
            Field("prompt", "text or messages", "as the pack gives it, before the chat template"),
            Field("completion", "text", "what was sampled; with an environment its last turn"),
            *VERDICT,
            Field("reward", "number or null", "score, penalties and rewards of turns"),
            Field("advantage", "number, list or null", "null: not trained on; a list with credit per turn or step"),
            Field("parts", "object", "named parts of the score"),
            Field("steps", "list of [end, score]", "process rewards; end in characters", False),
            Field("finish_reason", "text", "stop, length, context, turns or error"),
            Field("tokens", "whole number", "sampled tokens"),
            TURNS,
            Field("judged_by", "text", "`environment` where it returned the verdict", False),
            Field("versions", "list of [version, tokens]", "with slices: tokens that each version sampled", False),
            Field("kept", "true or false", "with dynamic sampling: the group is trained on", False),
            Field("round", "whole number", "with dynamic sampling: 0 for the step's first problems", False),
            Field("kl_cost", "number or null", "where the KL term is in the reward", False),
            Field("shuffled_status", "text", "with shuffled rewards: of the rewarded completion", False),
            Field(
                "token_values",
                "object",
                "of `--run.token-values` rollouts of a step, for each sampled token: lengths in characters; difference "
                "(log pi_trainer - log pi_sampler) and entropy in nats / 1000; advantage where tokens have their own",
                False,
            ),
            Field("monitor_status", "text", "with a monitor", False),
            Field("monitor_score", "number or null", "with a monitor", False),
        ),
    ),
    "eval.jsonl": (
        "A line for each evaluation of a run; result.json of `rlvr eval` has the same fields but step. How "
        "the numbers are made: [pass@k and its intervals](../explained/pass-at-k.md).",
        (
            Field("step", "whole number", "steps done; 0: before the first"),
            Field("num_problems", "whole number", "problems"),
            Field("num_samples", "whole number", "answers"),
            Field("truncated", "number", "share of answers that a limit of tokens ended"),
            Field("filtered", "number", "share of answers that a server withheld", False),
            Field("completion_tokens", "number", "mean length"),
            Field("unscored", "whole number", "answers without a score"),
            Field("unscored_problems", "whole number", "problems without any"),
            Field("status", "object", "number of answers with each status"),
            Field("threshold", "number", "score from which an answer counts as right", False),
            Field("pass@K", "number", "for each K of `--eval.k`"),
            Field("pass^K", "number", "all K right; from K = 2 on", False),
            Field("maj@K", "number", "the most frequent answer is right; from K = 2 on", False),
            Field("best@K", "number", "the selector's choice of K is right, with best@K_kl", False),
            Field("NAME_ci", "two numbers", "95 % interval of a number"),
            Field("lenient_NAME, strict_NAME", "number", "pass@K and pass^K by such extraction", False),
            Field("score", "number", "mean score over problems"),
            Field("packs", "object", "the same for each pack of a mixture", False),
        ),
    ),
    "alarms.jsonl": (
        "A line for each alarm of the monitor.",
        (
            Field("step", "whole number", "at which it began"),
            Field("signs", "object", "each sign with its figures in words"),
            Field("figures", "object", "the step's metrics"),
            Field("rollouts", "list of objects", "lines of rollouts.jsonl that show it"),
        ),
    ),
    "events.jsonl": (
        "What happened to a run. Other programs may add lines of their own kind.",
        (
            Field("time", "text", "UTC, ISO 8601"),
            Field("step", "whole number", "the last one done"),
            Field("kind", "text", "one word: changed, warning, alarm, regression, rollback, stopped, failed, end, ..."),
            Field("message", "text", "one line"),
        ),
    ),
    "answers.jsonl": (
        "A line for each answer of `rlvr eval`.",
        (
            Field("id", "text", "of the problem"),
            Field("sample", "whole number", "from 0"),
            Field("pack", "text", "of a mixture", False),
            Field("completion", "text", "what was sampled"),
            *VERDICT,
            Field("correct", "true or false", "whether pass@k counts it"),
            Field("lenient_status, lenient_correct, lenient_score", "as above", "also strict_, selector_", False),
            Field("finish_reason", "text", "as in rollouts.jsonl"),
            Field("tokens", "whole number", "sampled tokens"),
            TURNS,
        ),
    ),
    "answers-000020.jsonl.gz": (
        "A line for each problem whose held-out answers an evaluation kept.",
        (
            Field("step", "whole number", "the one after which they were given"),
            Field("problem", "text", "its id"),
            Field("prompt", "text or list of messages", "what was asked"),
            Field("answers", "list of objects", "fields as in answers.jsonl, without id"),
        ),
    ),
    "profile.jsonl": (
        "A line for each problem of `rlvr profile`; `--curriculum.profile` reads it.",
        (
            Field("id", "text", "of the problem"),
            Field("samples", "whole number", "scored answers"),
            Field("correct", "whole number", "right ones"),
            Field("score", "number", "mean score"),
            Field("fingerprint", "text", "of the pack's problems; a run refuses another one's"),
            Field("model", "text", "whose pass rates these are"),
            Field("verifier", "text or null", "null: the pack's own"),
        ),
    ),
    "verdicts of rlvr grade": (
        "A line for each line of the input, in its order.",
        (
            Field("id", "text or number", "of the input, else the line's number"),
            *VERDICT,
            Field("correct", "true or false", "whether pass@k counts it"),
            Field("seconds", "number", "duration of the check"),
        ),
    ),
    "disagreements.jsonl": (
        "A line of `rlvr regrade` for each rollout whose verdict changed.",
        (
            Field("step", "whole number", "of the rollout"),
            Field("problem", "text", "its id"),
            Field("sample", "whole number", "place in the group"),
            Field("completion", "text", "what was judged"),
            Field("reference", "anything", "as the pack has it, in words where it is an object"),
            Field("stored", "object", "status, score, reason, extracted of the run"),
            Field("new", "object", "the same by the other verifier"),
            Field("reward", "two numbers", "of the run and by the other verifier"),
        ),
    ),
}  # fmt: skip
READ: dict[str, tuple[str, tuple[Field, ...]]] = {
    "Problems": (
        "For the pack `jsonl`: `--run.task jsonl --run.data FILE`. A folder has train and test files. Further columns "
        "become the problem's `info`; other names of the columns are options of the pack.",
        (
            Field("prompt", "text or messages", "ends with the user's message"),
            Field("reference", "anything", "what the verifier compares with", False),
            Field("id", "text or number", "default: FILE/LINE", False),
        ),
    ),
    "Completions": (
        "For `rlvr grade`.",
        (
            Field("completion", "text", "what is judged"),
            Field("reference", "anything", "or gold, or answer", False),
            Field("prompt", "text or messages", "where the verifier reads it", False),
            Field("id", "text or number", "default: the line's number", False),
            Field("expected", "true or false", "whether it is correct: rlvr then prints the agreement", False),
        ),
    ),
    "Demonstrations": (
        "For fine-tuning: `--sft.data FILE`.",
        (
            Field("prompt", "text or messages", "as in training"),
            Field("completion", "text or messages", "of the assistant only; several are its turns in an environment"),
        ),
    ),
    "Preference pairs": (
        "For `rlvr rm`: `--pairs.file FILE`.",
        (
            Field("prompt", "text or messages", ""),
            Field("chosen", "text", "the better completion"),
            Field("rejected", "text", "another text"),
            Field("margin", "number", "least difference of their scores in log-odds", False),
        ),
    ),
    "Ids": (
        "For `--run.leave-out FILE`: an id, or an object with `id`, on each line.",
        (Field("id", "text", "of a problem that is not trained on"),),
    ),
}  # fmt: skip


def pages() -> dict[str, str]:
    """Return the pages of a run's folder and of the formats."""
    rows = ([f"`{name}`", text] for name, text in RUN)
    run = page("Files of a run", "What stands in `--run.out-dir`.", table(["file", "holds"], rows), CHANGES)
    written = [section(name, *given) for name, given in WRITTEN.items()]
    read = [section(name, *given) for name, given in READ.items()]
    formats = page(
        "Formats", "JSON Lines in UTF-8: an object on each line.", "## Written", CHANGES, *written, "## Read", *read
    )
    return {"files.md": run, "formats.md": formats}


def section(name: str, text: str, fields: tuple[Field, ...]) -> str:
    """Return the section of a format."""
    rows = ([f"`{f.name}`", f.type, f"{f.meaning}{'' if f.always else ' (optional)'}"] for f in fields)
    return "\n\n".join([f"### {name}", text, table(["field", "type", "means"], rows)])
