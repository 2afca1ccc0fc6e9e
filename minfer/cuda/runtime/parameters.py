"""A kernel's parameters: what callers may pass for each, and the 8-byte slots that the driver reads.

Packing is on the path of every launch, so its function is generated for the kernel: plain numbers and
DeviceArrays of the right dtype go into their slots without a call each, everything else through the
argument's converter.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from minfer.cuda.kernel import Argument, Kernel
from minfer.cuda.runtime.arrays import DeviceArray, describe
from minfer.cuda.runtime.devices import device
from minfer.cuda.runtime.tensor_maps import TensorMap

# struct formats; every parameter is padded to its slot.
SCALARS = {
    "int8": "b7x",
    "uint8": "B7x",
    "int16": "h6x",
    "uint16": "H6x",
    "int32": "i4x",
    "uint32": "I4x",
    "int64": "q",
    "uint64": "Q",
    "float16": "e6x",
    "float32": "f4x",
    "float64": "d",
    "bool": "?7x",
}
# Dtypes that arrays may have under another name; the last is a DeviceArray's.
_SAME_BITS = {"bfloat16": ("bfloat16", "uint16"), "bool": ("uint8", "bool")}


class Parameters:
    """The parameter slots of one launch, and the pointers to them that the driver takes.

    Attributes:
        address: where the pointers lie. pack(args): fills the slots.
    """

    def __init__(self, kernel: Kernel) -> None:
        n = len(kernel.passed)
        self._kernel = kernel
        self._slots = [_slot(kernel, i, argument) for i, argument in enumerate(kernel.passed)]
        self._buffer = ctypes.create_string_buffer(8 * max(n, 1))
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * max(n, 1))(*(start + 8 * i for i in range(n)))
        self.address = ctypes.addressof(self._pointers)
        self.pack: Callable[[tuple], None] = self._make_pack()

    def _make_pack(self) -> Callable[[tuple], None]:
        """`pack(args)`; raises TypeError or ValueError with the argument's name."""
        scope: dict[str, Any] = {
            "DeviceArray": DeviceArray,
            "buffer": self._buffer,
            "pointers": self._pointers,
            "pack_into": struct.Struct("=" + "".join(slot.format for slot in self._slots)).pack_into,
            "explain": self._explain,
            "misaligned": self._misaligned,
        }
        names = [f"a{i}" for i in range(len(self._slots))]
        values, maps, aligned = [], [], {}
        for i, (name, slot) in enumerate(zip(names, self._slots, strict=True)):
            scope[f"convert{i}"] = slot.convert
            convert = f"convert{i}({name})"
            if self._kernel.passed[i].kind == "tensor_map":  # by value: the driver reads the map itself
                maps.append(f"        pointers[{i}] = {name} = {convert}")
                values.append(name)
            elif slot.number is not None:
                values.append(f"{name} if type({name}) is {slot.number} else {convert}")
            else:
                fits = f"type({name}) is DeviceArray and {name}.dtype_name == {slot.dtype!r}"
                value = f"{name}.pointer if {fits} else {convert}"
                if (align := self._kernel.passed[i].align) > 1:
                    maps.append(f"        p{i} = {value}")
                    value = f"p{i}"
                    aligned.setdefault(align, []).append(value)
                values.append(value)
        lines = [
            "def pack(args):",
            "    try:",
            f"        [{', '.join(names)}] = args",
            *maps,
            *(
                f"        if ({' | '.join(found)}) & {align - 1}: misaligned({align}, {', '.join(found)})"
                for align, found in aligned.items()
            ),
            f"        pack_into(buffer, 0, {', '.join(values)})",
            "    except Exception:",
            "        explain(args)",
            "        raise",
        ]
        exec("\n".join(lines), scope)
        return scope["pack"]

    def _misaligned(self, align: int, *addresses: int) -> None:
        """Raise the error that names the first address that is no multiple of `align`."""
        named = [a.name for a in self._kernel.passed if a.align == align and a.kind != "scalar"]
        for name, address in zip(named, addresses, strict=True):
            if address % align:
                raise ValueError(
                    f"{self._kernel}: argument {name!r} lies at {address:#x}, no multiple of {align} bytes: "
                    "pass whole rows of an aligned array, or a copy"
                )

    def _explain(self, args: tuple) -> None:
        """Raise the error that names what is wrong with the arguments, if one of them is."""
        if len(args) != len(self._slots):
            names = ", ".join(a.name for a in self._kernel.passed)
            raise TypeError(
                f"{self._kernel} takes {len(self._slots)} arguments ({names}), got {len(args)}"
            ) from None
        for value, slot in zip(args, self._slots, strict=True):
            slot.convert(value)


class _Slot(NamedTuple):
    """How one argument is passed.

    `format` is its struct format. A DeviceArray of dtype name `dtype`, or a number of the Python type named
    `number`, needs no further check; `convert` checks and converts everything else.
    """

    format: str
    dtype: str | None
    number: str | None
    convert: Callable[[Any], int | float]


def _slot(kernel: Kernel, index: int, argument: Argument) -> _Slot:
    where = f"{kernel}: argument {index}, {argument.name!r},"
    if argument.kind == "scalar":
        dtype = argument.dtype or "int32"
        if dtype not in SCALARS:
            raise TypeError(f"{where} is a scalar of {dtype}: use one of {', '.join(SCALARS)}")
        number = next((name for name in ("float", "bool") if dtype.startswith(name)), "int")
        return _Slot(SCALARS[dtype], None, number, _scalar_converter(dtype, where))
    if argument.kind == "tensor_map":
        return _Slot("Q", None, None, _map_converter(where))
    accepted = _SAME_BITS.get(argument.dtype, (argument.dtype,)) if argument.dtype else ()
    return _Slot("Q", accepted[-1] if accepted else None, None, _pointer_converter(accepted, where))


def _pointer_converter(accepted: tuple[str, ...], where: str) -> Callable[[Any], int]:
    wanted = accepted[0] if accepted else "any dtype"
    torch_dtypes: set[Any] = set()  # of tensors that passed, so that the next one passes quickly

    def convert(value: Any) -> int:
        if type(value) is int:
            if not 0 <= value < 1 << 64:
                raise ValueError(f"{where} takes an address of 64 bits, got {value}")
            return value
        is_torch = hasattr(value, "data_ptr")
        if (
            is_torch
            and value.dtype in torch_dtypes
            and value.is_contiguous()
            and value.get_device() == device().index
        ):
            return value.data_ptr()
        try:
            pointer, _, name = describe(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where} takes a device array of {wanted}: {error}") from None
        if accepted and name not in accepted:
            raise TypeError(f"{where} takes {wanted}, got an array of {name}: convert or .view() it")
        if is_torch:
            torch_dtypes.add(value.dtype)
        return pointer

    return convert


def _scalar_converter(dtype: str, where: str) -> Callable[[Any], int | float]:
    if dtype == "bool":
        return _bool_converter(where)
    if dtype.startswith("float"):
        return _float_converter(dtype, where)
    bits = int(dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def convert(value: Any) -> int:
        try:
            number = value.__index__()
        except (AttributeError, TypeError):  # TypeError: an array of integers
            raise TypeError(f"{where} takes an integer ({dtype}), got {value!r}") from None
        if not low <= number <= high:
            raise ValueError(f"{where} is {dtype} ({low} to {high}), got {number}")
        return number

    return convert


def _bool_converter(where: str) -> Callable[[Any], bool]:
    def convert(value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{where} takes True or False, got {value!r}")
        return bool(value)

    return convert


def _float_converter(dtype: str, where: str) -> Callable[[Any], float]:
    largest = float(np.finfo(dtype).max)

    def convert(value: Any) -> float:
        if not isinstance(value, Real):
            raise TypeError(f"{where} takes a number ({dtype}), got {value!r}")
        if largest < abs(value) < math.inf:
            raise ValueError(f"{where} is {dtype} (up to {largest:.4g}), got {value}")
        return float(value)

    return convert


def _map_converter(where: str) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, TensorMap):
            raise TypeError(f"{where} takes a TensorMap, got {type(value).__name__}: use tensor_map()")
        return value.address

    return convert
