"""Sampling by vLLM, in step with the trainer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

from torch import Tensor

from rlvr.config import EngineConfig, VLLMConfig, VLLMServerConfig
from rlvr.model.policy import Policy
from rlvr.types import Completion, Sampling
from rlvr.vllm.engine import CPU_BLOCK, LONGEST_BLOCK, Drawn, LocalEngine, Request
from rlvr.vllm.server import ServerEngine
from rlvr.vllm.sync import PROOF_TOKENS, SyncCheck, WeightsDiffer, compare, engine_weights, proof_prompt


class Engine(Protocol):
    """vLLM, wherever it runs."""

    max_model_len: int

    def sample(self, requests: Sequence[Request], on_drawn: Callable[[int, Drawn], None] = ...) -> list[Drawn]: ...

    def interrupt(self) -> None: ...

    def push(self, weights: dict[str, Tensor]) -> None: ...

    def differing(self, weights: dict[str, Tensor]) -> list[str]: ...

    def close(self) -> None: ...


class VLLMSampler:
    """vLLM behind rlvr.types.Sampler.

    `load_weights` pushes the policy's weights into the engine. At the start and with every `sync_check_every`-th push
    the engine must prove that it samples from them; otherwise WeightsDiffer names the tensors that differ.
    """

    def __init__(self, policy: Policy, config: EngineConfig | None = None) -> None:
        config = config or VLLMConfig()
        if config.lora == "adapter" and policy.causal is policy.model:
            raise ValueError("sampler.lora adapter, and the model has no adapter; set --model.lora-rank")
        if config.sleep and policy.device.type != "cuda":
            raise ValueError(
                f"sampler.sleep {config.sleep} frees GPU memory, and the model is on {policy.device}; set 0"
            )
        self.policy = policy
        self.config = config
        self.pushes = 0
        self.engine: Engine
        if isinstance(config, VLLMServerConfig):
            self.engine = ServerEngine(policy, config)
        else:
            self.engine = LocalEngine(policy, config)
        self._adapters = TemporaryDirectory(prefix="rlvr-adapter-")
        try:
            if config.lora == "adapter":
                self._push()
            self.prove()
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Draws len(seeds[p]) completions for each prompt; see rlvr.types.Sampler. Raises ValueError like `stream`."""
        return self.stream(prompts, sampling, seeds, lambda place, completions: None)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """The same, each group handed over as soon as it is drawn; see rlvr.types.StreamingSampler.

        Raises ValueError for an empty prompt, one too long for the engine, or if there is not one list of seeds per
        prompt.
        """
        self._check(prompts, sampling, seeds)
        places = [(p, g) for p, group in enumerate(seeds) for g in range(len(group))]
        requests = [self._request(prompts[p], sampling, seeds[p][g]) for p, g in places]
        groups: list[dict[int, Completion]] = [{} for _ in prompts]

        def keep(number: int, drawn: Drawn) -> None:
            p, g = places[number]
            groups[p][g] = self._completion(drawn, sampling)
            if len(groups[p]) == len(seeds[p]):
                on_group(p, [groups[p][i] for i in range(len(seeds[p]))])

        self.engine.sample(requests, keep)
        return [[group[g] for g in range(len(group))] for group in groups]

    def interrupt(self) -> None:
        """Ends the sampling that is going on in another thread: it raises RunError there, as all later ones do."""
        self.engine.interrupt()

    def sleep(self) -> None:
        """Frees the engine's GPU memory until the next push, where sampler.sleep asks for it."""
        if self.config.sleep:
            assert isinstance(self.engine, LocalEngine)
            self.engine.sleep(self.config.sleep)

    def load_weights(self, policy: Any) -> None:
        """Pushes the policy's weights. Raises WeightsDiffer where the proof is due and fails."""
        self.policy = policy
        due = self.config.sync_check_every > 0 and (self.pushes + 1) % self.config.sync_check_every == 0
        if due and not self.config.sleep:
            # The proof's prompt is in the cache under the old weights: a cache that is not reset shows in the proof.
            # An engine that sleeps has no cache.
            self._continue_greedily(1)
        self._push()
        if due:
            self.prove()

    def prove(self) -> SyncCheck:
        """Compares a greedy continuation with the trainer's. Raises WeightsDiffer with the names of what differs."""
        prompt, drawn = self._continue_greedily(PROOF_TOKENS)
        proof = compare(self.policy, prompt, list(drawn.token_ids), list(drawn.logprobs))
        if not proof.holds:
            adapted = self.config.lora == "adapter"
            names = self.engine.differing(engine_weights(self.policy, merged=not adapted))
            shown = f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''} ({len(names)} tensors)"
            stale = f"keys and values cached under older weights{' or an older adapter' if adapted else ''}"
            cause = f"other values than the trainer's: {shown}" if names else f"all tensors are equal: it uses {stale}"
            raise WeightsDiffer(
                f"after {self.pushes} pushes vLLM does not sample from the trainer's weights: logprobs of a greedy "
                f"continuation differ by {proof.difference:.3g} (expected at most {proof.tolerance:g}); {cause}"
            )
        return proof

    def close(self) -> None:
        """Ends the engine."""
        self.engine.close()
        self._adapters.cleanup()

    def _check(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]) -> None:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts and {len(seeds)} lists of seeds; expected one list per prompt")
        longest = max((len(prompt) for prompt in prompts), default=1)
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued; render it with at least one token")
        if longest + sampling.max_new_tokens > self.engine.max_model_len:
            raise ValueError(
                f"a prompt of {longest} tokens and {sampling.max_new_tokens} new ones; vLLM was started for "
                f"{self.engine.max_model_len} together (--sampler.max-model-len)"
            )

    def _push(self) -> None:
        self.pushes += 1
        if self.config.lora == "merge":
            self.engine.push(engine_weights(self.policy))
            return
        assert isinstance(self.engine, LocalEngine)
        folders = Path(self._adapters.name)
        self.policy.model.save_pretrained(folders / str(self.pushes))
        self.engine.push_adapter(folders / str(self.pushes), self.pushes)
        shutil.rmtree(folders / str(self.pushes - 1), ignore_errors=True)

    def _continue_greedily(self, count: int) -> tuple[list[int], Drawn]:
        block = CPU_BLOCK if self.policy.device.type == "cpu" else LONGEST_BLOCK
        length = max(1, min(block + 5, self.engine.max_model_len - count))
        prompt = proof_prompt(self.policy, length)
        request = Request(prompt, seed=0, max_new_tokens=count, temperature=0.0, top_p=1.0, top_k=0)
        return prompt, self.engine.sample([request])[0]

    def _request(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Request:
        s = sampling
        ends = tuple(sorted(self.policy.eos_ids))
        return Request(prompt, seed, s.max_new_tokens, s.temperature, s.top_p, s.top_k, s.stop, ends)

    def _completion(self, drawn: Drawn, sampling: Sampling) -> Completion:
        """As the torch sampler makes them: an EOS is among the ids and not in the text, a stop string in both."""
        by_eos = isinstance(drawn.ended_by, int)
        text = self.policy.decode(drawn.token_ids[:-1] if by_eos else drawn.token_ids)
        ends = [text.find(string) + len(string) for string in sampling.stop if not by_eos and string in text]
        reason: Literal["stop", "length"] = "length" if drawn.ended_by is None else "stop"
        logprobs = drawn.logprobs if sampling.temperature > 0 else (0.0,) * len(drawn.logprobs)
        return Completion(text[: min(ends)] if ends else text, drawn.token_ids, logprobs, reason)
