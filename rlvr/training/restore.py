"""Where a run begins: the last checkpoint, the fine-tuned start, or the model as it was loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlvr.core.types import Task
from rlvr.model.critic import Critic
from rlvr.model.memory import microbatch_tokens
from rlvr.runs.log import STREAMS
from rlvr.training.checkpoint import damage, load_checkpoint, newest_whole
from rlvr.training.reporter import Reporter
from rlvr.training.rollback import delete_undone, load_state
from rlvr.training.rollout.episodes import plan_of
from rlvr.training.sft import sft
from rlvr.training.snapshot import save_checkpoint
from rlvr.training.step.learner import Learner
from rlvr.training.supervised_checkpoints import Saving, SupervisedCheckpoints, discard
from rlvr.training.supervision.signals import StopRequest


def restore(learner: Learner, task: Task, reporter: Reporter, say: Callable[[str], None], stop: StopRequest) -> int:
    """Load what is saved into the learner, and truncate the logs to it. Return the step to start from.

    The policy is fine-tuned first where sft.steps asks for it and that is not saved yet. The learner's reference policy
    and critic are made here, from the fine-tuned policy. `say` shows a line. Raises ValueError where no checkpoint is
    whole.
    """
    config, accelerator, log = learner.config, learner.accelerator, reporter.log
    out_dir = config.run.out_dir

    def tell(kind: str, line: str) -> None:
        say(line)
        reporter.event(kind, line)

    if accelerator.is_main_process:
        delete_undone(out_dir)
    accelerator.wait_for_everyone()
    saved = newest_whole(out_dir, partial(tell, "damaged"), move=accelerator.is_main_process)
    if not saved and accelerator.is_main_process:
        if log.read("metrics"):
            tell("restart", f"{out_dir} has no checkpoint yet: its steps are repeated, and its logs replaced")
        log.truncate_to(dict.fromkeys((*STREAMS, "parts"), 0), step=-1)
    if config.sft.steps:
        restore_start(learner, task, reporter, out_dir / "start", tell, stop)
    learner.reference = learner.policy.reference() if config.algo.needs_reference else None
    learner.critic = Critic(learner.policy, config.critic, config.optim) if config.critic is not None else None
    if not saved:
        accelerator.wait_for_everyone()  # until the logs have been truncated
        return 0
    step, folder = saved
    load_state(learner, folder, log)
    reporter.last_step = step
    tell("resume", f"resuming from step {step} ({folder})")
    return step


def restore_start(
    learner: Learner, task: Task, reporter: Reporter, folder: Path, tell: Callable[[str, str], None], stop: StopRequest
) -> None:
    """Load the fine-tuned policy from `folder`, or fine-tune and save it there. tell: of a kind, a line."""
    why_not = damage(folder)
    if why_not is None:
        load_checkpoint(folder, learner.policy, None)
        if learner.accelerator.is_main_process:
            discard(folder)
        return
    if folder.exists():
        tell("damaged", f"{folder} is damaged ({why_not}); fine-tuning again")
    fine_tune(learner, task, reporter, folder, partial(tell, "fine-tuning"), stop)
    with stop.busy("saving the fine-tuned policy"):
        if learner.accelerator.is_main_process or learner.policy.mesh is not None:
            save_checkpoint(folder, 0, learner.policy, None, {})
        if learner.accelerator.is_main_process:
            discard(folder)


def fine_tune(
    learner: Learner, task: Task, reporter: Reporter, folder: Path, say: Callable[[str], None], stop: StopRequest
) -> None:
    """Fine-tune the policy on the task's demonstrations, from the last checkpoint on where an earlier run left any."""
    config = learner.config
    reporter.tell(lambda callback: callback.on_sft_begin(config.sft.steps))
    with SupervisedCheckpoints(
        folder,
        "the fine-tuning",
        Saving(config.sft.save_every, config.run.keep_checkpoints, config.run.async_save),
        learner.accelerator,
        config=config,
        sharded=learner.policy.mesh is not None,
        stop=stop,
        say=say,
    ) as checkpoints:
        sft(
            learner.policy,
            task.demonstrations,
            config.sft,
            learner.accelerator,
            seed=config.run.seed,
            tokens_per_microbatch=microbatch_tokens(learner.policy, config),
            plan=plan_of(learner.policy, task, config.rollout),
            optim=config.optim,
            on_step=lambda step, loss: reporter.tell(lambda callback: callback.on_sft_step(step, loss)),
            warn=reporter.warn,
            checkpoints=checkpoints,
        )
