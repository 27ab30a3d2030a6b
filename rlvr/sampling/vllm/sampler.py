"""Sampling by vLLM with the trainer's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from rlvr.config import EngineConfig, VLLMConfig, VLLMServerConfig
from rlvr.core.types import Ask, Completion, Conversations, Sampler, Sampling
from rlvr.model.load.policy import Policy

from .engine import CPU_BLOCK, LONGEST_BLOCK, Batch, Engine, Output, Report, Request, Requests
from .local import LocalEngine
from .proof import (
    SYNC_TOKENS,
    SyncCheck,
    WeightsDiffer,
    compare_continuations,
    sync_prompt,
)


def open_engine(policy: Policy, config: EngineConfig) -> Engine:
    """Return vLLM with the policy's weights: in this process, or on servers."""
    if isinstance(config, VLLMServerConfig):
        from .servers import ServersEngine

        return ServersEngine(policy, config)
    return LocalEngine(policy, config)


class VLLMSampler(Sampler):
    """vLLM as a sampler, in this process (LocalEngine) or on servers (ServersEngine).

    `load_weights` pushes the policy's weights into the engine. At the start and after every `sync_check_every`-th push
    `check_sync` compares the engine with the trainer, and raises WeightsDiffer where they differ.
    """

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig | None = None,
    ) -> None:
        config = config or VLLMConfig()
        if config.sleep and policy.device.type != "cuda":
            raise ValueError(
                f"sampler.sleep {config.sleep} frees GPU memory, and the model is on {policy.device}; set 0, or "
                "--sampler torch"
            )
        self.policy = policy
        self.config = config
        self.pushes = 0
        self.engine: Engine = open_engine(policy, config)
        try:
            self.check_sync()
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Sample len(seeds[p]) completions of each prompt; see rlvr.core.types.Sampler. Raises what `stream` raises."""
        return self.stream(prompts, sampling, seeds, lambda p, completions: None)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """Sample like `generate`, and pass on each group when it is complete; see rlvr.core.types.Sampler.

        Raises ValueError for an empty prompt, one too long for the engine, or other than one list of seeds per prompt.
        """
        self._check(prompts, sampling, seeds)
        places = [(p, g) for p, group in enumerate(seeds) for g in range(len(group))]
        requests = [self._request(prompts[p], sampling, seeds[p][g]) for p, g in places]
        groups: list[dict[int, Completion]] = [{} for _ in prompts]

        def keep(index: int, output: Output) -> None:
            p, g = places[index]
            groups[p][g] = self._completion(output, sampling)
            if len(groups[p]) == len(seeds[p]):
                on_group(p, [groups[p][i] for i in range(len(seeds[p]))])

        self.engine.sample(Batch(requests, keep))
        return [[group[g] for g in range(len(group))] for group in groups]

    def sample_rows(self, asks: Sequence[Ask], on_row: Callable[[int, Completion], None]) -> None:
        """Sample a completion for each ask; see rlvr.core.types.Sampler. Raises ValueError as `stream` does."""
        self.engine.sample(
            Batch(
                [self._request_of(ask) for ask in asks],
                lambda place, output: on_row(place, self._completion(output, asks[place].sampling)),
            )
        )

    def converse(self, rollouts: Conversations) -> None:
        """Sample the turns of rollouts, each as soon as the reply before it is there; see rlvr.core.types.Sampler.

        Raises ValueError as `stream` does.
        """
        self.engine.sample(Turns(rollouts, self._request_of, self._completion))

    def interrupt(self) -> None:
        """End the sampling under way in another thread; it raises RunError there, as does all later sampling."""
        self.engine.interrupt()

    def report_to(self, report: Report) -> None:
        """Call `report` when a server is lost or replaced; see rlvr.sampling.vllm.engine.Engine."""
        self.engine.report_to(report)

    def measures(self) -> dict[str, float]:
        """Return how far the last push moved the trainer's logprobs, and how far servers are from them."""
        return self.engine.measures()

    def sleep(self) -> None:
        """Free the engine's GPU memory until the next push, if sampler.sleep asks for it."""
        if self.config.sleep:
            self.engine.sleep(self.config.sleep)

    def load_weights(self, policy: Any) -> None:
        """Push the policy's weights. Raises WeightsDiffer if a sync check is due and fails."""
        self.policy = policy
        due = self.config.sync_check_every > 0 and (self.pushes + 1) % self.config.sync_check_every == 0
        if due and not self.config.sleep:
            # Caches the check's prompt under the old weights: if the push does not reset the cache, the check fails.
            # A sleeping engine has no cache.
            self._continue_greedily(1)
        self.pushes += 1
        self.engine.load(policy)
        if due:
            self.check_sync()

    def check_sync(self) -> SyncCheck:
        """Compare greedy continuations, one of each server, with the trainer's; return the one that differs most.

        Raises WeightsDiffer where an engine differs by more than rounding.
        """
        prompt, outputs = self._continue_greedily(SYNC_TOKENS)
        checks = [compare_continuations(self.policy, prompt, list(o.token_ids), list(o.logprobs)) for o in outputs]
        check = max(checks, key=lambda check: check.difference)
        if not check.passes:
            raise WeightsDiffer(
                f"after {self.pushes} pushes vLLM does not sample from the trainer's weights: logprobs of a greedy "
                f"continuation differ by {check.difference:.3g} (expected at most {check.tolerance:g}). It did not "
                "load a push, or uses keys and values cached under older weights"
            )
        return check

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _check(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]) -> None:
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts and {len(seeds)} lists of seeds; expected one list per prompt")
        longest = max((len(prompt) for prompt in prompts), default=1)
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued; expected at least one token")
        if longest + sampling.max_new_tokens > self.engine.max_model_len:
            raise ValueError(
                f"a prompt of {longest} tokens and {sampling.max_new_tokens} new ones; vLLM was started for "
                f"{self.engine.max_model_len} together (--sampler.max-model-len)"
            )

    def _continue_greedily(self, count: int) -> tuple[list[int], list[Output]]:
        """Return the prompt of the check, and its continuation by each server."""
        block = CPU_BLOCK if self.policy.device.type == "cpu" else LONGEST_BLOCK
        length = max(1, min(block + 5, self.engine.max_model_len - count))
        prompt = sync_prompt(self.policy, length)
        request = Request(prompt, seed=0, max_new_tokens=count, temperature=0.0, top_p=1.0, top_k=0)
        return prompt, self.engine.sample_everywhere(request)

    def _request(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Request:
        s = sampling
        stop_ids = tuple(sorted(self.policy.eos_ids))
        return Request(prompt, seed, s.max_new_tokens, s.temperature, s.top_p, s.top_k, s.stop, stop_ids)

    def _request_of(self, ask: Ask) -> Request:
        self._check([ask.context], ask.sampling, [[ask.seed]])
        return replace(self._request(ask.context, ask.sampling, ask.own_seed), group=ask.group)

    def _completion(self, output: Output, sampling: Sampling) -> Completion:
        """Return a Completion like the torch sampler's: an EOS is in the ids only, a stop string in the text too.

        Logprobs are 0 under greedy sampling.
        """
        by_eos = isinstance(output.stop_reason, int)
        text = self.policy.decode(output.token_ids[:-1] if by_eos else output.token_ids)
        ends = [text.find(string) + len(string) for string in sampling.stop if not by_eos and string in text]
        reason: Literal["stop", "length"] = "length" if output.stop_reason is None else "stop"
        logprobs = output.logprobs if sampling.temperature > 0 else (0.0,) * len(output.logprobs)
        return Completion(text[: min(ends)] if ends else text, output.token_ids, logprobs, reason)


class Turns(Requests):
    """The turns of rollouts as an engine's requests, numbered by row."""

    def __init__(
        self,
        rollouts: Conversations,
        request: Callable[[Ask], Request],
        completion: Callable[[Output, Sampling], Completion],
    ) -> None:
        self.rollouts, self.request, self.completion = rollouts, request, completion
        self.sampling: dict[int, Sampling] = {}

    def take(self) -> Sequence[tuple[int, Request]] | None:
        asks = self.rollouts.asks(every=False)
        if asks is None:
            return None
        self.sampling |= {row: ask.sampling for row, ask in asks}
        return [(row, self.request(ask)) for row, ask in asks]

    def take_output(self, number: int, output: Output) -> None:
        self.rollouts.add_turn(number, self.completion(output, self.sampling[number]))

    def on_more(self, wake: Callable[[], None]) -> None:
        self.rollouts.on_reply(wake)
