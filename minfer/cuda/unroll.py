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
import inspect
import textwrap
from collections.abc import Callable

unroll = range


def unrolled(function: Callable) -> Callable:
    """Return `function` with its `unroll` loops written out (see the module's contract).

    Raises ValueError, naming the line, where the contract is broken."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    definition = tree.body[0]
    definition.decorator_list = []
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
    definition.body = _Unroller(constants, inspect.getsourcefile(function)).block(definition.body)
    # Compiled inside a function that has the free variables as parameters: they stay closure variables.
    outer = ast.parse(f"def _enclose({', '.join(closure)}):\n    return {definition.name}")
    outer.body[0].body.insert(0, definition)
    namespace: dict = {}
    code = compile(ast.fix_missing_locations(outer), inspect.getsourcefile(function), "exec")
    exec(code, function.__globals__, namespace)
    result = namespace["_enclose"](**closure)
    result.__defaults__, result.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    result.__module__, result.__qualname__ = function.__module__, function.__qualname__
    return result


class _Unroller:
    """Rewrites lists of statements; `constants` maps names to their values, unrolled loop variables
    included."""

    def __init__(self, constants: dict, filename: str | None):
        self.constants = constants
        self.filename = filename

    def fail(self, node: ast.AST, message: str):
        raise ValueError(f"{self.filename}:{node.lineno}: {message}")

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
        return eval(compile(ast.Expression(node), self.filename or "", "eval"), {}, dict(self.constants))

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The statements rewritten."""
        result = []
        for statement in statements:
            result += self.statement(statement)
        return result

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and _is_unroll(node.iter.func):
            return self.loop(node)
        if isinstance(node, ast.If):
            try:
                taken = node.body if self.constant(node.test) else node.orelse
            except LookupError:
                pass
            else:
                return self.block(taken)
        for part in ("body", "orelse", "finalbody"):
            if getattr(node, part, None) and not isinstance(node, (ast.FunctionDef, ast.Lambda)):
                # A body must not become empty.
                rewritten = self.block(getattr(node, part))
                setattr(node, part, rewritten or [ast.copy_location(ast.Pass(), node)])
        return [node]

    def loop(self, node: ast.For) -> list[ast.stmt]:
        if not isinstance(node.target, ast.Name) or node.orelse or node.iter.keywords:
            self.fail(node, "an unroll loop has one variable and no else")
        try:
            bounds = [self.constant(argument) for argument in node.iter.args]
        except LookupError:
            self.fail(node, "the arguments of unroll are not constant")
        variable = node.target.id
        for statement in node.body:
            for part in ast.walk(statement):
                if isinstance(part, ast.Name) and part.id == variable and not isinstance(part.ctx, ast.Load):
                    self.fail(part, f"the unrolled variable {variable} is assigned")
        jump = _jump(node.body)
        if jump is not None:
            self.fail(jump, "break and continue of an unroll loop are not supported")
        outer = self.constants
        result = []
        for value in range(*bounds):
            self.constants = {**outer, variable: value}
            copies = [_Substitute(variable, value).visit(_copy(statement)) for statement in node.body]
            result += self.block(copies)
        self.constants = outer
        return result or [ast.copy_location(ast.Pass(), node)]


class _Substitute(ast.NodeTransformer):
    """Puts a literal in place of a variable."""

    def __init__(self, name: str, value: int):
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(self.value), node) if node.id == self.name else node


def _copy(node):
    """A deep copy of a syntax tree, locations included."""
    if isinstance(node, list):
        return [_copy(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: _copy(value) for name, value in ast.iter_fields(node)}
    return ast.copy_location(type(node)(**fields), node)


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
