"""Mutants of the reference programs of HumanEval and MBPP: strong tests judge them as Python does in one process."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.sandbox import Job, Limits, Pool, TestJob
from rlvr.verifiers.unit_tests import UnitTests, program_of
from tests.helpers.files import DataSets
from tests.helpers.programs import make_files, runs_programs

MANY = 100
OPERATORS: Sequence[ast.operator] = (ast.Add(), ast.Sub(), ast.Mult(), ast.FloorDiv(), ast.Mod())
COMPARISONS: Sequence[ast.cmpop] = (ast.Lt(), ast.LtE(), ast.Gt(), ast.GtE(), ast.Eq(), ast.NotEq())
WRAPPED = ("list({})", "tuple({})", "str({})", "iter({})", "bool({})", "[{}]", "float({})", "sorted({})")
CHANGED = ("clear()", "sort()", "reverse()", "append(0)", "pop()", "update({1: 1})")


class Mutation(ast.NodeTransformer):
    """Changes the node of a number: an operator, a constant, a comparison, a result, or an argument in place."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.number, self.rng, self.seen = number, rng, 0

    def is_next(self) -> bool:
        self.seen += 1
        return self.seen == self.number

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self.is_next():
            node.op = self.rng.choice(OPERATORS)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self.is_next():
            node.ops[0] = self.rng.choice(COMPARISONS)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and self.is_next():
            return ast.Constant(node.value + self.rng.choice((-1, 1)))
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and self.is_next():
            node.value = ast.parse(self.rng.choice(WRAPPED).format(ast.unparse(node.value))).body[0].value  # type: ignore[attr-defined]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.args.args and self.is_next():
            change = f"{self.rng.choice(node.args.args).arg}.{self.rng.choice(CHANGED)}"
            node.body.insert(0, ast.parse(f"try: {change}\nexcept Exception: pass").body[0])
        return node


def mutate(program: str, rng: random.Random) -> str:
    """Return a program whose last function is changed in one place. Tests have those of the prompt themselves."""
    tree = ast.parse(program_of(program))
    last = max(i for i, node in enumerate(tree.body) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    count = Mutation(0, rng)
    count.visit(ast.parse(ast.unparse(tree.body[last])))
    tree.body[last] = Mutation(rng.randint(1, max(count.seen, 1)), rng).visit(tree.body[last])
    return ast.unparse(ast.fix_missing_locations(tree))


def in_one_process(reference: dict[str, Any], program: str) -> TestJob:
    call = f"\ncheck({reference['entry']})\n" if reference["type"] == "check" else ""
    job = Job(program, setup=reference.get("setup", ""), prelude=reference.get("prelude", ""), limits=Limits(seconds=2))
    return TestJob(job, reference["code"] + call, together=True)


@runs_programs
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_mutants_are_judged_as_in_one_process(rlvr_data: DataSets) -> None:
    """Some pass and most do not; both ways of running the tests agree on each."""
    data, files, rng = rlvr_data("mbpp/mbpp.jsonl").parent.parent, make_files(), random.Random(0)
    rlvr_data("humaneval/HumanEval.jsonl")
    sets = files.humaneval_files(data) | files.mbpp_files(data, "mbpp", sanitized=False)
    rows = [row for found in sets.values() for row in found if row["expected"]]
    chosen = [(row["reference"], mutate(row["completion"], rng)) for row in rng.choices(rows, k=MANY)]
    verifier, pool = UnitTests(timeout=2), Pool(2)
    try:
        verdicts = verifier.verify_batch([(Problem("p", "", reference), program) for reference, program in chosen])
        plain = pool.run_many([in_one_process(reference, program) for reference, program in chosen])
    finally:
        verifier.close()
        pool.close()
    differ = [
        (reference["code"], program, verdict.reason, result.detail)
        for (reference, program), verdict, result in zip(chosen, verdicts, plain)
        if verdict.correct != bool(result.tests_passed)
    ]
    assert not differ, differ
    assert MANY / 10 < sum(bool(verdict.correct) for verdict in verdicts) < MANY / 2
