"""InstructGPT (arXiv:2203.02155) on two cores: fine-tuning, a reward model on pairs, PPO against it with PPO-ptx.

A model of 0.9M parameters learns three-digit sums and differences. `sft`: it is fine-tuned on demonstrations, of which
many are wrong. `reward`: its sums are told apart in pairs by the math verifier, which stands in for the labellers, and
a reward model learns their choice. `ppo`: PPO on sums against the reward model, with a KL term per token in the reward
and, beside it, the language-model loss on demonstrations of differences (`text`), which the reward is not about and
PPO would change; the verifier monitors, enters nothing, and measures pass@1. A KL coefficient of .02, as
InstructGPT's, lets this small policy find what the reward model overrates: pass@1 then falls.

Seen with seeds 0, 1, 2 and 4: the reward model is right on .96, .90, .95 and .97 of held-out pairs; pass@1 on sums
.474, .466, .479 and .476, after PPO .739, .667, .762 and .815; with seeds 0, 1 and 2 the loss on held-out
demonstrations of differences stays .016, .016 and .017, and becomes .019, .053 and .020 at the same reward without the
mix (benchmarks/training/pretraining_mix.py).

    rlvr pipeline instructgpt
    rlvr pipeline instructgpt --seeds 0 1 2 --out-dir runs/instructgpt_seeds
    rlvr pipeline instructgpt --set ppo.algo.ptx-coef=0 --out-dir runs/instructgpt_without_mix
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, CriticConfig, MonitorConfig, RolloutConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.recipes import rm_pairs, tiny_math

if TYPE_CHECKING:
    from rlvr.pipeline.stages import Made, Stages

CONFIG = PipelineConfig(out_dir=Path("runs/instructgpt"))
TEXT = 4000  # demonstrations in the pretraining mix
SUMS, DIFFERENCES = ("signs=+",), ("signs=-",)
PAIRS = dataclasses.replace(rm_pairs.CONFIG.pairs, task_option=SUMS, num_problems=2800)
REWARD = dataclasses.replace(rm_pairs.CONFIG, pairs=PAIRS)
PPO = dataclasses.replace(
    tiny_math.CONFIG,
    run=dataclasses.replace(
        tiny_math.CONFIG.run,
        task_option=SUMS,
        verifier="reward_model",
        steps=40,
        save_every=10,
        keep_checkpoints=10,
    ),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=42),
    algo=AlgoConfig("ppo", kl_coef=0.2, kl_in="reward", ptx_coef=0.1, ptx_batch_size=16),
    optim=dataclasses.replace(tiny_math.CONFIG.optim, lr=4e-4, warmup_steps=0),
    critic=CriticConfig(lr=4e-4),
    monitor=MonitorConfig("math"),
    eval=dataclasses.replace(tiny_math.CONFIG.eval, every=20, verifier="monitor"),
)


def stages(pipeline: Stages) -> None:
    """Fine-tune, learn the reward, train against it; measure also what the training is not about."""
    from rlvr.commands.eval import EvalArgs

    start, text, reward = before_ppo(pipeline)
    ppo = pipeline.train("ppo", against(reward, text), policy=start)
    other = EvalArgs(model="", task="arithmetic", task_option=DIFFERENCES, max_problems=128, samples=8)
    pipeline.evaluate("ppo-differences", dataclasses.replace(other, max_new_tokens=42), policy=ppo)


def before_ppo(pipeline: Stages) -> tuple[Made, Made, Made]:
    """Return the fine-tuned policy, the text of the pretraining mix, and the reward model."""
    start = pipeline.sft("sft", tiny_math.CONFIG)
    text = pipeline.make("text", {"demonstrations": TEXT, "of": DIFFERENCES}, write_text)
    return start, text, pipeline.reward_model("reward", REWARD, policy=start)


def write_text(folder: Path) -> dict[str, float]:
    """Write demonstrations of differences, as the fine-tuning has seen them."""
    from rlvr.core.files.write import write_whole
    from rlvr.core.registry import make_task

    shown = make_task("arithmetic", signs="-", num_demonstrations=TEXT).demonstrations
    lines = [json.dumps({"prompt": problem.prompt, "completion": said}) + "\n" for problem, said in shown]
    write_whole(folder / "data.jsonl", "".join(lines))
    return {"demonstrations": len(lines)}


def against(reward: Made, text: Made) -> Config:
    run = dataclasses.replace(PPO.run, verifier_option=(f"model={reward.path}",))
    return dataclasses.replace(PPO, run=run, sft=dataclasses.replace(PPO.sft, data=text.path / "data.jsonl"))


if __name__ == "__main__":
    script(globals())
