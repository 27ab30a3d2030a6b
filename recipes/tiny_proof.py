"""Proofs of small propositions in Coq from nothing, on a CPU: fine-tuning, RL with the prover's verdicts, pass@k.

    Theorem goal : forall (A B C D E F G H : Prop) (ga : A -> G) (c : C) (hg : G -> H) (ac : C -> A), G.
    Proof.
    intros. apply ga. apply ac. apply c.

A model of 0.9M parameters is fine-tuned on scripts that take another hypothesis in every fifth step, and go on from
there. Coq says of each rollout whether it is a proof (`apt install coq`; without it the run says so and ends).
Most of the time goes into the prover: a right proof costs .25 s, and a script that was seen before nothing.

Seen with seeds 0 (on which the settings were chosen), 1 and 2, held-out pass@1 on 128 theorems: .531 → .972, .541 →
.975, .511 → .948. With shuffled rewards (seed 0) .531 becomes .365. About a third of the fine-tuning shows nothing:
then the model finds how names repeat, and the loss halves. With names of one letter, or letters that are parts of
longer tokens, it did not (pass@1 .09).

    rlvr train tiny_proof
    rlvr train tiny_proof --run.seed 1 --run.out-dir runs/tiny_proof_1
    rlvr train tiny_proof --run.shuffle-rewards         # control: rewards that carry no information
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig

CONFIG = Config(
    run=RunConfig(
        task="propositions",
        task_option=("kinds=rules", "slip=0.2", "num_train=512", "num_demonstrations=16000"),
        steps=40,
        out_dir=Path("runs/tiny_proof"),
        save_every=20,
    ),
    # A letter is one token wherever it stands, so that a name in the script is the same token as in the theorem.
    model=ModelConfig(
        name="tiny", tiny_tokens="(?:Theorem|goal|forall|Prop|Proof|intros|split|apply) ?|[A-Za-z]|[^A-Za-z]+"
    ),
    sft=SFTConfig(steps=1400, batch_size=32, lr=2e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=48),
    algo=AlgoConfig("rloo"),
    optim=OptimConfig(lr=4e-4, schedule="linear", decay_steps=40, min_lr_ratio=0.1, tokens_per_microbatch=4096),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8), every=20),
)


if __name__ == "__main__":
    script(globals())
