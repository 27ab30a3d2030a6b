"""GSM8K with Python as a tool, and RLOO: the model writes programs in its turns, and reads what they print.

The default is Qwen/Qwen2.5-1.5B-Instruct, whose chat template shows it the tool. A turn with a call runs the program in
the sandbox; a turn without one is the answer, which the math verifier judges. With 8 completions for each of 64
problems a step 25 GB are held throughout, on a GPU of 40 GB or more, as of math_grpo. `--model.lora-rank 32 --optim.lr
2e-5` fits a GPU of 16 GB. The sandbox needs level 2 or 3.

What to expect: this has not been run on a GPU here. Follow turns/count beside correct: a model that gives up its
tool, or that calls it without reading it, shows there first.

    rlvr train tool_math
    rlvr train tool_math --run.data path/to/gsm8k          # train.jsonl and test.jsonl, instead of the hub
    rlvr train tool_math --model.name tiny --run.data path/to/gsm8k --run.environment-option calls=fenced \
        --rollout.max-new-tokens 100 --rollout.max-prompt-tokens 850 --run.steps 5     # try it on a CPU
    rlvr train tool_math --run.environment-option tools=calculator calls=hermes
    rlvr train tool_math --model.name meta-llama/Llama-3.2-1B-Instruct --run.environment-option calls=llama
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import (
    AlgoConfig,
    Config,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    fastest_sampler,
)

CONFIG = Config(
    run=RunConfig(
        task="gsm8k",
        environment="tools",
        environment_option=("tools=python", "calls=hermes"),
        steps=200,
        out_dir=Path("runs/tool_math"),
        save_every=50,
    ),
    model=ModelConfig(name="Qwen/Qwen2.5-1.5B-Instruct"),
    rollout=RolloutConfig(problems_per_step=64, group_size=8, max_new_tokens=768, max_turns=4, reply_tokens=256),
    algo=AlgoConfig("rloo", clip_high=0.28, normalize="constant", minibatches=2),
    sampler=fastest_sampler(),
    optim=OptimConfig(lr=1e-6, warmup_steps=5),
    eval=EvalConfig(num_problems=256, samples=4, k=(1, 4), every=50, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
