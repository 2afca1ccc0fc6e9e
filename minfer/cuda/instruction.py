"""The seam between kernels written in Python and numba's CUDA compiler.

Two kinds of callables appear in a kernel: an `Instruction` (one block of PTX) and a `DeviceFunction` (plain
Python made of instructions, inlined where it is called). Both have two executions. When numba compiles the
kernel it asks the object for its `_numba_type_`, and only then is numba's machinery built: importing this
module imports no numba. When plain Python calls the object, an instruction runs its semantics from
`minfer.cuda.simulator`, and a device function runs as the Python that it is.

Device functions, `finalize_ptx` and the unroll helpers belong to the seam too and are exported from here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minfer.cuda.device_function import DeviceFunction, device_function
from minfer.cuda.finalize import finalize_ptx
from minfer.cuda.unroll import unroll, unrolled

__all__ = [
    "DeviceFunction",
    "Instruction",
    "Registers",
    "Scalar",
    "address_of",
    "array",
    "device_function",
    "f32",
    "finalize_ptx",
    "instruction",
    "pointer",
    "s32",
    "u32",
    "u64",
    "unroll",
    "unrolled",
]


@dataclass(frozen=True)
class Scalar:
    """A register operand: its name in signatures, its numba type's name and its inline-assembly constraint
    letter."""

    name: str
    numba_name: str
    constraint: str

    @property
    def is_float(self) -> bool:
        return self.constraint == "f"

    def numba_type(self):
        from numba.cuda import types

        return getattr(types, self.numba_name)

    def llvm_type(self):
        from llvmlite import ir

        return {"r": ir.IntType(32), "l": ir.IntType(64), "f": ir.FloatType()}[self.constraint]

    def accepts(self, numba_type) -> bool:
        """Whether a kernel value of this numba type may be passed: any integer for an integer operand
        (truncated or extended), any number for a float. A float is never truncated to an integer in
        silence."""
        from numba.cuda import types

        integers = (types.Integer, types.Boolean)
        return isinstance(numba_type, (*integers, types.Float) if self.is_float else integers)


u32 = Scalar("u32", "uint32", "r")
s32 = Scalar("s32", "int32", "r")
u64 = Scalar("u64", "uint64", "l")
f32 = Scalar("f32", "float32", "f")


@dataclass(frozen=True)
class Registers:
    """An operand that is a whole local array of `count` elements, which LLVM keeps in registers.

    `role` is "in" (read), "out" (written, nothing of its old value is read) or "inout" (read and written in
    place: the same registers, tied)."""

    dtype: Scalar
    count: int
    role: str = "inout"

    def accepts(self, numba_type) -> bool:
        from numba.cuda import types

        return isinstance(numba_type, types.Array) and numba_type.dtype == self.dtype.numba_type()


@dataclass(frozen=True, eq=False)
class Instruction:
    """One block of PTX that a kernel calls like a function.

    `text` holds LLVM's operand placeholders `$0`, `$1`, ... in the order: results, written arrays, then
    inputs (see `constraints`); for arrays it is a function from operand names to lists of placeholders.
    `section` is the number and title in the PTX ISA manual, version 9.0. `arch` is the least compute
    capability times ten; with `arch_specific` the architecture's own `a` target is needed (sm_90a). A `pure`
    instruction only reads and writes registers, so that the compiler may move or drop it; any other keeps its
    order and is a barrier for memory accesses. A `collective` one is executed by all lanes of a warp together
    and is never moved under a condition. `parameters` are the compile-time constants of a factory; the
    simulator's semantics receive them as keyword arguments.
    """

    name: str
    operands: tuple[tuple[str, Any], ...]
    returns: tuple[Scalar, ...]
    text: str | Callable[[dict[str, Any]], str]
    section: str
    arch: int = 80
    arch_specific: bool = False
    pure: bool = False
    collective: bool = False
    tied: tuple[str, ...] = ()
    early_clobber: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)
    documentation: str = ""

    def __post_init__(self):
        object.__setattr__(self, "__name__", self.name)
        object.__setattr__(self, "__doc__", self.documentation)
        object.__setattr__(
            self,
            "__signature__",
            inspect.Signature(
                [
                    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                    for name, _ in self.operands
                ]
            ),
        )

    def __repr__(self) -> str:
        constants = ", ".join(f"{k}={v}" for k, v in self.parameters.items())
        return f"<PTX instruction {self.name}{f'({constants})' if constants else ''}>"

    # ---- execution in plain Python: the simulator's semantics

    @property
    def semantics_name(self) -> str:
        """Key of this instruction in `minfer.cuda.simulator.semantics.SEMANTICS`."""
        return self.name

    @functools.cached_property
    def _semantics(self) -> Callable:
        from minfer.cuda.simulator.semantics import semantics_of

        return semantics_of(self)

    def __call__(self, *args):
        return self._semantics(*args)

    # ---- execution on the device: an inline-assembly block

    @functools.cached_property
    def _layout(self) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """([(constraint, operand name)], {operand name: placeholder or list of placeholders}), in operand
        order."""
        entries: list[tuple[str, str]] = []
        places: dict[str, Any] = {}
        clobber = "&" if self.early_clobber else ""
        results = [f"result{i}" for i in range(len(self.returns))]
        for name, scalar in zip(results, self.returns, strict=True):
            places[name] = f"${len(entries)}"
            entries.append((f"={clobber}{scalar.constraint}", name))
        for name, kind in self.operands:
            if isinstance(kind, Registers) and kind.role != "in":
                places[name] = [f"${len(entries) + i}" for i in range(kind.count)]
                entries += [(f"={clobber}{kind.dtype.constraint}", name)] * kind.count
        ties = dict(zip(self.tied, range(len(self.tied)), strict=True))
        for name, kind in self.operands:
            if isinstance(kind, Registers):
                if kind.role == "in":
                    places[name] = [f"${len(entries) + i}" for i in range(kind.count)]
                    entries += [(kind.dtype.constraint, name)] * kind.count
                elif kind.role == "inout":
                    entries += [(place[1:], name) for place in places[name]]
            else:
                places[name] = f"${len(entries)}"
                entries.append((str(ties[name]) if name in ties else kind.constraint, name))
        return entries, places

    @property
    def constraints(self) -> str:
        """LLVM's constraint string: outputs, inputs, clobbers."""
        letters = [letter for letter, _ in self._layout[0]]
        return ",".join(letters if self.pure else [*letters, "~{memory}"])

    @property
    def ptx(self) -> str:
        """The PTX text with LLVM's placeholders."""
        return self.text if isinstance(self.text, str) else self.text(self._layout[1])

    def _emit(self, context, builder, signature, args):
        """Load array operands, call the assembly block, store written arrays; returns the result value."""
        from llvmlite import ir

        inputs, written = [], []
        for (_, kind), numba_type, value in zip(self.operands, signature.args, args, strict=True):
            if not isinstance(kind, Registers):
                inputs.append(value)
                continue
            data = context.make_array(numba_type)(context, builder, value).data
            slots = [builder.gep(data, [ir.Constant(ir.IntType(64), i)]) for i in range(kind.count)]
            if kind.role != "out":
                inputs += [builder.load(slot) for slot in slots]
            if kind.role != "in":
                written += [(kind.dtype, slot) for slot in slots]
        outputs = [s.llvm_type() for s in self.returns] + [dtype.llvm_type() for dtype, _ in written]
        if not outputs:
            llvm_result = ir.VoidType()
        elif len(outputs) == 1:
            llvm_result = outputs[0]
        else:
            llvm_result = ir.LiteralStructType(outputs)
        function = ir.FunctionType(llvm_result, [value.type for value in inputs])
        block = ir.InlineAsm(function, self.ptx, self.constraints, side_effect=not self.pure)
        call = builder.call(block, inputs, attrs=("convergent",) if self.collective else ())
        values = (
            [call] if len(outputs) == 1 else [builder.extract_value(call, i) for i in range(len(outputs))]
        )
        for value, (_, slot) in zip(values[len(self.returns) :], written, strict=True):
            builder.store(value, slot)
        if not self.returns:
            return context.get_dummy_value()
        if len(self.returns) == 1:
            return values[0]
        return context.make_tuple(builder, signature.return_type, values[: len(self.returns)])

    def _type(self, arguments):
        """(numba signature, code generator) for these argument types."""
        from numba.core.errors import TypingError
        from numba.cuda import types

        for (name, kind), given in zip(self.operands, arguments, strict=True):
            if not kind.accepts(given):
                raise TypingError(f"{self.name}: operand {name} takes {kind}, not {given}")
        if not self.returns:
            result = types.void
        elif len(self.returns) == 1:
            result = self.returns[0].numba_type()
        else:
            result = types.UniTuple(self.returns[0].numba_type(), len(self.returns))
        takes = [
            given if isinstance(kind, Registers) else kind.numba_type()
            for (_, kind), given in zip(self.operands, arguments, strict=True)
        ]
        return result(*takes), self._emit

    @functools.cached_property
    def _numba_type_(self):
        return _intrinsic_type(self.name, [name for name, _ in self.operands], self._type)


def _intrinsic_type(name: str, operand_names: list[str], typer: Callable):
    """numba's function type of an intrinsic whose typing and lowering come from `typer(argument types)`."""
    from numba.cuda import types
    from numba.cuda.typing.templates import make_intrinsic_template

    def definition(typing_context, *arguments):
        return typer(arguments)

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    definition.__name__ = name
    definition.__signature__ = inspect.Signature(
        [inspect.Parameter(p, positional) for p in ("typing_context", *operand_names)]
    )
    return types.Function(make_intrinsic_template(definition, definition, name, kwargs={"target": "cuda"}))


def instruction(
    text: str | Callable[[dict[str, Any]], str],
    *,
    section: str,
    name: str | None = None,
    arch: int = 80,
    arch_specific: bool = False,
    pure: bool = False,
    collective: bool = False,
    tied: tuple[str, ...] = (),
    early_clobber: bool = False,
    parameters: dict[str, Any] | None = None,
) -> Callable[[Callable], Instruction]:
    """Make an `Instruction` from a stub whose annotations are its operand types and whose docstring documents
    it.

        @instruction("dp4a.s32.s32 $0, $1, $2, $3;", section="9.7.1.23 dp4a", pure=True)
        def dp4a(a: u32, b: u32, c: s32) -> s32:
            \"\"\"...\"\"\"

    `tied` names the operands that share the registers of results 0, 1, ... in that order."""

    def build(stub: Callable) -> Instruction:
        signature = inspect.signature(stub)
        result = signature.return_annotation
        if result is None or result is inspect.Signature.empty:
            returns = ()
        else:
            returns = result if isinstance(result, tuple) else (result,)
        return Instruction(
            name=name or stub.__name__,
            operands=tuple((p.name, p.annotation) for p in signature.parameters.values()),
            returns=returns,
            text=text,
            section=section,
            arch=arch,
            arch_specific=arch_specific,
            pure=pure,
            collective=collective,
            tied=tied,
            early_clobber=early_clobber,
            parameters=parameters or {},
            documentation=inspect.cleandoc(stub.__doc__ or ""),
        )

    return build


@dataclass(frozen=True)
class _ArrayKind:
    """Operand of an address instruction: any array, or any pointer or array or None."""

    pointers: bool

    def accepts(self, numba_type) -> bool:
        from numba.cuda import types

        pointers = (types.CPointer, types.NoneType) if self.pointers else ()
        return isinstance(numba_type, (types.Array, *pointers))


array = _ArrayKind(pointers=False)
pointer = _ArrayKind(pointers=True)


@dataclass(frozen=True, eq=False, repr=False)
class _AddressOf(Instruction):
    """The address of an array's first element or of a pointer, as an integer (0 of None): no PTX of its
    own."""

    @functools.cached_property
    def _numba_type_(self):
        (operand, kind), (result,) = self.operands[0], self.returns

        def typer(arguments):
            from numba.core.errors import TypingError
            from numba.cuda import types

            (given,) = arguments
            if not kind.accepts(given):
                raise TypingError(f"{self.name} takes an array or a pointer, not {given}")

            def emit(context, builder, signature, args):
                from llvmlite import ir

                if isinstance(given, types.NoneType):
                    return ir.Constant(ir.IntType(64), 0)
                is_array = isinstance(given, types.Array)
                data = context.make_array(given)(context, builder, args[0]).data if is_array else args[0]
                if result is u32 and data.type.addrspace != 3:
                    data = builder.addrspacecast(data, ir.PointerType(data.type.pointee, 3))
                address = builder.ptrtoint(data, ir.IntType(64))
                return builder.trunc(address, ir.IntType(32)) if result is u32 else address

            return result.numba_type()(given), emit

        return _intrinsic_type(self.name, [operand], typer)


def address_of(*, section: str) -> Callable[[Callable], Instruction]:
    """Make the instruction that turns an array (result u32: a shared address) or a pointer (u64) into its
    address."""

    def build(stub: Callable) -> Instruction:
        ((operand, parameter),) = inspect.signature(stub).parameters.items()
        return _AddressOf(
            name=stub.__name__,
            operands=((operand, parameter.annotation),),
            returns=(inspect.signature(stub).return_annotation,),
            text="",
            section=section,
            pure=True,
            documentation=inspect.cleandoc(stub.__doc__ or ""),
        )

    return build
