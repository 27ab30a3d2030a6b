"""The verifier `json_schema`: JSON that satisfies a schema."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from rlvr.core.printable import kind_of
from rlvr.core.registry import register
from rlvr.core.types import Verdict, bad_reference, correct, incorrect, limit, unparseable

from .extract.answer import excerpt, read_answer, without_answer
from .runner.base import ReferenceVerifier, accepts_many

MAX_CHARS = 1_000_000
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?:json[c5]?[ \t]*)?$", re.IGNORECASE | re.MULTILINE)


@register("json_schema")
@dataclass(frozen=True, kw_only=True)
class JsonSchemaVerifier(ReferenceVerifier[Any]):
    """Whether the completion's JSON satisfies a JSON Schema: the option schema, or the reference (an object or text).

    The JSON is the completion after its thinking, or its last fenced block. Duplicate keys, NaN and Infinity are not
    JSON. formats: "format" keywords (date, email, ...) are checked. References to other documents are not followed.
    Runs in the worker pool, since a schema's patterns may take exponential time.
    """

    schema: str | None = None
    formats: bool = True

    isolate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.schema is not None:
            _validator(_schema_text(self.schema), self.formats)

    def judge(self, validator: Any, completion: str) -> Verdict:
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        answer = read_answer(completion, "all")
        if answer.text is None:
            return without_answer(completion, answer)
        text = json_text(answer.text)
        if len(text) > MAX_CHARS:
            return limit(f"JSON of {len(text)} characters; at most {MAX_CHARS} are read")
        try:
            value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        except ValueError as error:
            return unparseable(f"not JSON: {error}", excerpt(text))
        except RecursionError:
            return limit("nested too deeply")
        try:
            wrong = best_match(validator.iter_errors(value))
        except Unresolvable as error:
            return bad_reference(f"the schema refers to {error.ref!r}, which is not in it")
        except RecursionError:
            return limit("nested too deeply")
        if wrong is not None:
            return incorrect(excerpt(f"at {wrong.json_path}: {wrong.message}", 300), excerpt(text))
        return correct(excerpt(text))

    open_answers = accepts_many

    def read_reference(self, reference: Any) -> Any:
        """Return what checks a value. Raise ValueError if the schema is the reference and is not a valid schema."""
        return _validator(_schema_text(reference if self.schema is None else self.schema), self.formats)

    def warm_up(self) -> None:
        """Import the library before the first deadline starts."""
        _validator("true", self.formats)


def json_text(text: str) -> str:
    """Return the last fenced block of a text, or all of it."""
    fences = list(_FENCE.finditer(text))
    if len(fences) < 2:
        return text.strip()
    # Fences come in pairs. If their number is odd, the last one opens a block that is never closed.
    start, end = fences[-2:] if len(fences) % 2 == 0 else fences[-3:-1]
    return text[start.end() : end.start()].strip()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has a key twice")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _schema_text(schema: Any) -> str:
    """Return a schema as JSON text, the key under which its validator is cached."""
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, (dict, bool)):
        raise ValueError(f"the schema is {kind_of(schema)}; expected an object")
    try:
        return json.dumps(schema, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None


@lru_cache(maxsize=256)
def _validator(text: str, formats: bool) -> Any:
    import jsonschema
    import referencing

    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, (dict, bool)):
        raise ValueError(f"the schema is {kind_of(schema)}; expected an object")
    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"not a JSON Schema: {error.message}") from None
    # An empty registry, since the library's default would fetch what a schema refers to from the network.
    return kind(schema, registry=referencing.Registry(), format_checker=kind.FORMAT_CHECKER if formats else None)
