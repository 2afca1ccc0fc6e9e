"""Literal unrolling: `for i in unroll(4):` becomes four copies of its body, with `i` a literal in each.

LLVM unrolls most constant loops by itself; it gives up on very large bodies, and then a local array that is
indexed by the loop variable goes to memory. A function decorated with `unrolled` is rewritten before numba
sees it. Undecorated, and in plain Python, `unroll` is `range`: the meaning is the same.

The contract:
- The arguments of `unroll` (as of `range`) are constant: literals, integers from the closure or the module
  (elements of tuples there too), variables of enclosing `unroll` loops, and arithmetic on them.
- The body does not assign the loop variable, and does not `break` or `continue` this loop (it may its own
  inner loops).
- The loop variable is not used after the loop.
- An `if` whose test is constant, after substitution in an unrolled body or from the closure or the module,
  keeps only the branch taken.
- Line numbers stay those of the source, so that tracebacks and traces point at it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable
from types import CodeType

unroll = range


def unrolled(function: Callable) -> Callable:
    """Return `function` with its `unroll` loops written out (see the module's contract).

    Raises ValueError, naming the line, where the contract is broken."""
    file = inspect.getsourcefile(function)
    definition = _definition(function.__code__, file)
    closure = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned: only a branch that is folded away may name it
            closure[name] = cell.cell_contents
    # A name that the function assigns is local to it, whatever the module holds under that name.
    scope = {**function.__globals__, **closure}
    constants = {
        name: value
        for name, value in scope.items()
        if isinstance(value, (int, float, str, tuple)) and name not in function.__code__.co_varnames
    }
    # Compiled inside a function that has the free variables as parameters: they stay closure variables.
    outer = ast.fix_missing_locations(
        ast.parse(f"def _enclose({', '.join(closure)}):\n    return {definition.name}")
    )
    outer.body[0].body.insert(0, _with(definition, body=_Unroller(constants, file).block(definition.body)))
    namespace: dict = {}
    exec(compile(outer, file, "exec"), function.__globals__, namespace)
    result = namespace["_enclose"](**closure)
    result.__defaults__, result.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    result.__module__, result.__qualname__ = function.__module__, function.__qualname__
    return result


@functools.cache
def _definition(code: CodeType, file: str) -> ast.FunctionDef:
    """The syntax tree of the function with this code, without decorators, its unroll loops checked. Nobody
    changes it: a factory makes the same function again and again."""
    lines, first = inspect.getsourcelines(code)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    definition.decorator_list = []
    for node in ast.walk(definition):
        if _is_unroll_loop(node):
            _check_loop(node, file)
    return definition


def _check_loop(node: ast.For, file: str) -> None:
    if not isinstance(node.target, ast.Name) or node.orelse or node.iter.keywords:
        _fail(file, node, "an unroll loop has one variable and no else")
    variable = node.target.id
    for statement in node.body:
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and part.id == variable and not isinstance(part.ctx, ast.Load):
                _fail(file, part, f"the unrolled variable {variable} is assigned")
    jump = _jump(node.body)
    if jump is not None:
        _fail(file, jump, "break and continue of an unroll loop are not supported")


def _fail(file: str, node: ast.AST, message: str):
    raise ValueError(f"{file}:{node.lineno}: {message}")


class _Unroller:
    """Makes lists of statements anew; `constants` maps names to their values, unrolled loop variables
    included. Trees are never changed: what stays the same is shared."""

    def __init__(self, constants: dict, file: str):
        self.constants = constants
        self.file = file

    def constant(self, node: ast.expr):
        """The value of a constant expression; raises LookupError if it is not one."""
        allowed = (
            ast.Constant,
            ast.Name,
            ast.BinOp,
            ast.UnaryOp,
            ast.BoolOp,
            ast.Compare,
            ast.IfExp,
            ast.Subscript,
        )
        syntax = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
        for part in ast.walk(node):
            if not isinstance(part, allowed + syntax):
                raise LookupError
            if isinstance(part, ast.Name) and part.id not in self.constants:
                raise LookupError
        return eval(compile(ast.Expression(node), self.file, "eval"), {}, dict(self.constants))

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements rewritten."""
        result = []
        for statement in statements:
            result += self.statement(statement)
        return result

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if _is_unroll_loop(node):
            return self.loop(node)
        if isinstance(node, ast.If):
            try:
                taken = node.body if self.constant(node.test) else node.orelse
            except LookupError:
                pass
            else:
                return self.block(taken)
        if isinstance(node, ast.FunctionDef):
            return [node]
        parts = {part: self.block(old) for part in _BLOCKS if (old := getattr(node, part, None))}
        # A body must not become empty.
        made = {part: new or [ast.copy_location(ast.Pass(), node)] for part, new in parts.items()}
        return [_with(node, **made)] if made else [node]

    def loop(self, node: ast.For) -> list[ast.stmt]:
        try:
            bounds = [self.constant(argument) for argument in node.iter.args]
        except LookupError:
            _fail(self.file, node, "the arguments of unroll are not constant")
        variable, outer = node.target.id, self.constants
        result = []
        for value in range(*bounds):
            self.constants = {**outer, variable: value}
            result += self.block([_substituted(statement, variable, value) for statement in node.body])
        self.constants = outer
        return result or [ast.copy_location(ast.Pass(), node)]


_BLOCKS = ("body", "orelse", "finalbody")


def _substituted(node: ast.AST, name: str, literal: int) -> ast.AST:
    """The tree with a literal in place of a variable."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Constant(literal), node) if node.id == name else node
    changed = {}
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, ast.AST):
            made = _substituted(value, name, literal)
            if made is not value:
                changed[field] = made
        elif isinstance(value, list):
            items = [_substituted(v, name, literal) if isinstance(v, ast.AST) else v for v in value]
            if any(map(operator.is_not, items, value)):
                changed[field] = items
    return _with(node, **changed) if changed else node


def _with(node: ast.AST, **fields) -> ast.AST:
    """The node with other fields, at the same place."""
    made = type(node).__new__(type(node))
    made.__dict__.update(node.__dict__, **fields)
    return made


def _is_unroll_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and _is_unroll(node.iter.func)


def _is_unroll(function: ast.expr) -> bool:
    return getattr(function, "id", getattr(function, "attr", None)) == "unroll"


def _jump(statements: list[ast.stmt]) -> ast.stmt | None:
    """The first break or continue that belongs to the loop whose body this is."""
    for statement in statements:
        if isinstance(statement, (ast.Break, ast.Continue)):
            return statement
        if isinstance(statement, (ast.For, ast.While)):
            found = _jump(statement.orelse)
        else:
            parts = [getattr(statement, part, None) or [] for part in ("body", "orelse", "finalbody")]
            found = next((jump for part in parts if (jump := _jump(part)) is not None), None)
        if found is not None:
            return found
    return None
