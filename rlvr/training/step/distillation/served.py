"""A teacher on a server: token ids in, log-probabilities out; what it answered is kept for a step that is repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr.config import TeacherConfig
from rlvr.core.endpoint import Endpoint, PromptLogprobs, RequestLost
from rlvr.core.files.write import write_whole
from rlvr.core.heartbeat import beat
from rlvr.core.http import RequestRefused
from rlvr.core.types import RunError
from rlvr.model.load.policy import Policy

from ...checkpoint.folders import list_checkpoints

PROBE = "Hello, world! 0123456789 = 1.5e3\n\tdef f(x): return {'a': x}  # naïve ∑ 東京"
FOLDER = "teacher"


class ServedTeacher:
    """A model that vLLM serves. The answers to a step lie in OUT_DIR/teacher until a checkpoint is beyond that step.

    So a step that is repeated after a resume gets the same answers, byte for byte, whatever the server would say now.
    Raises ValueError if the server is no vLLM, does not serve the model, or reads a text as other tokens than `policy`.
    """

    def __init__(self, settings: TeacherConfig, policy: Policy, out_dir: Path) -> None:
        assert settings.url is not None
        assert settings.name is not None
        self.out_dir, self.requests, self.top_k = out_dir, settings.requests, max(settings.top_k, 1)
        self.endpoint = Endpoint(
            settings.url,
            settings.name,
            api="completions",
            retry_seconds=settings.retry_seconds,
            request_seconds=settings.request_seconds,
        )
        if self.endpoint.engine != "vllm":
            raise ValueError(f"--teacher.url {settings.url}: expected a server of vLLM, which tells prompt logprobs")
        try:
            found = self.endpoint.prompt_logprobs(PROBE).ids
        except (RequestLost, RequestRefused, RunError) as error:
            raise ValueError(f"--teacher.url {settings.url}: {error}") from error
        if found != tuple(policy.tokenizer(PROBE).input_ids):
            raise ValueError(
                f"--teacher.name {settings.name}: the server reads a text as other tokens than the policy; a teacher "
                "must have the policy's tokenizer"
            )

    @property
    def limit(self) -> int | None:
        """The tokens that the server reads: it is asked for one more."""
        length = self.endpoint.max_model_len
        return None if length is None else length - 1

    def score(self, rows: Sequence[tuple[int, ...]], step: int) -> list[PromptLogprobs]:
        """Return the server's answer for each row of token ids, asked once for equal ones. step: from 1.

        Raises RunError in one line where an answer does not come or is not for these tokens.
        """
        path = self.out_dir / FOLDER / f"step-{step:06d}.jsonl"
        known = read_answers(path)
        keys = [key_of(row, self.top_k) for row in rows]
        missing = {key: row for key, row in zip(keys, rows) if key not in known}
        if missing:
            known |= dict(zip(missing, self._ask(list(missing.values()), step)))
            self._keep(path, {key: known[key] for key in keys})
        return [known[key] for key in keys]

    def _ask(self, rows: Sequence[tuple[int, ...]], step: int) -> list[PromptLogprobs]:
        def ask(row: tuple[int, ...]) -> PromptLogprobs:
            found = self.endpoint.prompt_logprobs(row, self.top_k)
            beat()
            return found

        pool = ThreadPoolExecutor(self.requests)
        try:
            return list(pool.map(ask, rows))
        except (RequestLost, RequestRefused, RunError) as error:
            self.endpoint.close()  # ends the other requests
            raise RunError(
                f"stopped in step {step}, which trained on nothing: the teacher did not answer: {error}; repeat the "
                "command to go on from the last checkpoint"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)

    def _keep(self, path: Path, answers: dict[str, PromptLogprobs]) -> None:
        """Write the answers to a step, and delete those to steps that no checkpoint goes back to."""
        path.parent.mkdir(exist_ok=True)
        write_whole(path, "".join(json.dumps({"key": key, **asdict(found)}) + "\n" for key, found in answers.items()))
        first = min((step for step, _ in list_checkpoints(self.out_dir)), default=0)
        for old in path.parent.glob("step-*.jsonl"):
            if int(old.stem.removeprefix("step-")) <= first:
                old.unlink()

    def close(self) -> None:
        """End the requests under way."""
        self.endpoint.close()


def key_of(row: Sequence[int], top_k: int) -> str:
    """Return the name of a question: a digest of its token ids and of how many tokens are asked for."""
    return hashlib.sha256(json.dumps([list(row), top_k]).encode()).hexdigest()


def read_answers(path: Path) -> dict[str, PromptLogprobs]:
    """Return the answers to a step that were kept, by key; none without a file."""
    if not path.exists():
        return {}
    found: dict[str, Any] = {(row := json.loads(line)).pop("key"): row for line in path.read_text().splitlines()}
    return {
        key: PromptLogprobs(
            tuple(row["ids"]),
            tuple(row["logprobs"]),
            tuple(map(tuple, row["top_ids"])),
            tuple(map(tuple, row["top_logprobs"])),
        )
        for key, row in found.items()
    }
