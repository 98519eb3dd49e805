"""The field's pickled data sets read as data: a small machine that builds lists and numbers and calls nothing.

A pickle is a program. This machine knows the opcodes and the six globals that the public data sets use, gives each
global a fixed meaning of its own, and refuses everything else. No imported function is ever looked up or called.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnf_cli.errors import DataError
from cnf_cli.formats.dataset import Array

GLOBALS = {
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy._core.multiarray", "scalar"): "scalar",
    ("collections", "OrderedDict"): "nothing",
    ("torch._utils", "_rebuild_tensor_v2"): "tensor",
    ("torch.storage", "_load_from_bytes"): "storage",
}
_DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "b1")
_MAX_NAME = 200
_MAX_INT = 16


class _BadError(Exception):
    """What is wrong, without the place."""


@dataclass(frozen=True)
class _Global:
    meaning: str


@dataclass(frozen=True)
class _Dtype:
    code: str


@dataclass(frozen=True)
class _Storage:
    data: bytes


def _show(value: Any) -> str:
    # Only texts: printing a list that contains itself a million times would never end.
    return value[:60] if isinstance(value, str) else type(value).__name__


Storage = Callable[[bytes], Array]


def loads(data: bytes, storage: Storage, at: str = "pickle") -> Any:
    """The lists, tuples, numbers and arrays a pickle describes; `storage` decodes the bytes of a torch storage."""
    machine = _Machine(data, storage)
    try:
        return machine.run()
    except _BadError as bad:
        message = str(bad)
    except DataError as error:  # from the decoder of a torch storage
        message = error.message
    except (struct.error, IndexError):
        message = "it is truncated"
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        message = f"it is damaged ({type(error).__name__})"
    raise DataError(
        f"this pickle is refused: {message}",
        at=f"{at}: byte {machine.position}",
        hint="only plain lists of numbers, numpy numbers and torch tensors are read; export the data as .csv or .h5",
    )


class _Machine:
    def __init__(self, data: bytes, storage: Storage) -> None:
        self.data, self.storage = data, storage
        self.position = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each open mark
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data = self.data
        if data[:1] != b"\x80" or data[1] > 5:
            raise _BadError("it is not a pickle of protocol 2 to 5")
        while True:
            code = data[self.position]
            self.position += 1
            if code == 0x2E:  # STOP
                if len(self.stack) != 1 or self.outer:
                    raise _BadError("it ends in the middle of a value")
                return self.stack[0]
            step = _STEPS.get(code)
            if step is None:
                raise _BadError(f"opcode {code:#04x} has no place in a data set")
            step(self)

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.position:
            raise _BadError(f"it declares {count} bytes and has {len(self.data) - self.position}")
        out = self.data[self.position : self.position + count]
        self.position += count
        return out

    def number(self, layout: struct.Struct) -> Any:
        out = layout.unpack_from(self.data, self.position)[0]
        self.position += layout.size
        return out

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.position + _MAX_NAME)
        if end < 0:
            raise _BadError("a name has no end")
        out = self.data[self.position : end].decode("ascii")
        self.position = end + 1
        return out

    def close(self) -> list[Any]:
        """Everything since the last mark."""
        if not self.outer:
            raise _BadError("a mark is missing")
        items, self.stack = self.stack, self.outer.pop()
        return items

    def look_up(self, module: Any, name: Any) -> None:
        meaning = GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if meaning is None:
            raise _BadError(f"it wants to use {_show(module)}.{_show(name)}")
        self.stack.append(_Global(meaning))

    def reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(args, tuple):
            raise _BadError("it wants to call something that is not a function")
        self.stack.append(_MEANINGS[function.meaning](self, *args))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        # The state of a plain little-endian number type; byte order and alignment are the only news in it.
        plain = isinstance(state, tuple) and state[0] in (3, 4) and state[1] in ("<", "|", "=") and len(state) >= 8
        if not isinstance(target, _Dtype) or not plain or state[2:5] != (None,) * 3 or state[5:8] != (-1, -1, 0):
            raise _BadError("it wants to change an object's state")

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise _BadError("it appends to something that is not a list")
        target.extend(values)

    def get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise _BadError("a value is missing")
        self.stack[len(self.stack) - count :] = [tuple(self.stack[len(self.stack) - count :])]

    def integer(self, size: int) -> None:
        if size > _MAX_INT:
            raise _BadError(f"an integer of {size} bytes has no place in a data set")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []


def _dtype(_: _Machine, code: Any, align: Any = False, copy: Any = False) -> _Dtype:
    if code not in _DTYPES or not isinstance(align, bool | int) or not isinstance(copy, bool | int):
        raise _BadError(f"number type {_show(code)} has no place in a data set")
    return _Dtype(code)


def _scalar(_: _Machine, dtype: Any, data: Any) -> float | int:
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        raise _BadError("a numpy number has a wrong type")
    kind = np.dtype("<" + dtype.code)
    if len(data) != kind.itemsize:
        raise _BadError("a numpy number has a wrong size")
    value: float | int = np.frombuffer(data, kind)[0].item()
    return value


def _nothing(_: _Machine) -> tuple[()]:
    return ()


def _storage(_: _Machine, data: Any) -> _Storage:
    if not isinstance(data, bytes):
        raise _BadError("a torch storage has a wrong type")
    return _Storage(data)


def _tensor(machine: _Machine, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any) -> Array:
    """A contiguous view of a storage: what every saved tensor is, and bounded by the bytes the storage has."""
    whole = isinstance(storage, _Storage) and isinstance(size, tuple) and isinstance(stride, tuple)
    if not whole or hooks != () or type(offset) is not int or not all(type(s) is int and s > 0 for s in size):
        raise _BadError("a torch tensor has a wrong layout")
    if not 1 <= len(size) <= 4 or max(size) > len(machine.data):
        raise _BadError("a torch tensor has a wrong shape")
    steps = tuple(int(np.prod(size[i + 1 :], dtype=object)) for i in range(len(size)))
    flat = machine.storage(storage.data)
    count = steps[0] * size[0]
    if stride != steps or offset < 0 or offset + count > len(flat):
        raise _BadError("a torch tensor reaches outside its storage")
    return flat[offset : offset + count].reshape(size)


_MEANINGS: dict[str, Callable[..., Any]] = {
    "dtype": _dtype,
    "scalar": _scalar,
    "nothing": _nothing,
    "tensor": _tensor,
    "storage": _storage,
}
_U1, _U2, _I4, _U4, _U8 = (struct.Struct(s) for s in ("<B", "<H", "<i", "<I", "<Q"))
_F8 = struct.Struct(">d")


def _push(layout: struct.Struct) -> Callable[[_Machine], None]:
    def step(m: _Machine) -> None:
        m.stack.append(layout.unpack_from(m.data, m.position)[0])
        m.position += layout.size

    return step


def _text(layout: struct.Struct) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(layout)).decode("utf-8"))


def _bytes(layout: struct.Struct) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(layout)))


def _stack_global(m: _Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.look_up(module, name)


def _append_one(m: _Machine) -> None:
    value = m.stack.pop()
    m.append([value])


def _tuple(m: _Machine) -> None:
    items = m.close()  # swaps the stack, so it comes first
    m.stack.append(tuple(items))


_STEPS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME: only a hint for buffering
    ord("("): _Machine.mark,
    ord("]"): lambda m: m.stack.append([]),
    ord(")"): lambda m: m.stack.append(()),
    ord("a"): _append_one,
    ord("e"): lambda m: m.append(m.close()),
    ord("t"): _tuple,
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("G"): _push(_F8),
    ord("K"): _push(_U1),
    ord("M"): _push(_U2),
    ord("J"): _push(_I4),
    0x8A: lambda m: m.integer(m.number(_U1)),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    0x8C: _text(_U1),
    ord("X"): _text(_U4),
    ord("C"): _bytes(_U1),
    ord("B"): _bytes(_U4),
    0x8E: _bytes(_U8),
    0x94: lambda m: m.put(len(m.memo)),
    ord("q"): lambda m: m.put(m.number(_U1)),
    ord("r"): lambda m: m.put(m.number(_U4)),
    ord("h"): lambda m: m.get(m.number(_U1)),
    ord("j"): lambda m: m.get(m.number(_U4)),
    ord("c"): lambda m: m.look_up(m.line(), m.line()),
    0x93: _stack_global,
    ord("R"): _Machine.reduce,
    ord("b"): _Machine.build,
}
