"""Which statements of test code can be executed, and which expressions have the same truth whatever a program does."""

from __future__ import annotations

import ast

ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def called_name(node: ast.AST) -> str:
    """Return the last name of what a call calls, "" for anything else."""
    func = node.func if isinstance(node, ast.Call) else node
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def truth(node: ast.expr | None) -> bool | None:
    """Return the truth of an expression that has the same one whatever the program does; else None."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        return True
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return None if any(isinstance(item, ast.Starred) for item in node.elts) else bool(node.elts)
    if isinstance(node, ast.Dict):
        return None if None in node.keys else bool(node.keys)
    if isinstance(node, ast.JoinedStr):
        texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return True if any(texts) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand)
        return None if inner is None else not inner
    if isinstance(node, ast.NamedExpr):
        return truth(node.value)
    if isinstance(node, ast.BoolOp):
        parts = [truth(value) for value in node.values]
        decisive = isinstance(node.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    if isinstance(node, ast.IfExp):
        branches = {truth(node.body), truth(node.orelse)}
        return branches.pop() if len(branches) == 1 else None
    return None


def _is_empty(node: ast.expr) -> bool:
    """Whether a loop over the expression has no turn: an empty display, or range(0)."""
    if isinstance(node, ast.Call) and called_name(node) == "range" and len(node.args) == 1:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in (0, False)
    return isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Constant)) and truth(node) is False


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a statement that can be executed."""
    if isinstance(statement, (ast.If, ast.While)):
        known = truth(statement.test)
        return [block for block, dead in ((statement.body, False), (statement.orelse, True)) if known is not dead]
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.orelse] if _is_empty(statement.iter) else [statement.body, statement.orelse]
    blocks = [getattr(statement, name) for name in ("body", "orelse", "finalbody") if hasattr(statement, name)]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    return blocks + [case.body for case in getattr(statement, "cases", [])]
