"""The pickle of a memory snapshot, read as a stream and without executing anything.

A snapshot has millions of events, and ``pickle.load`` makes a dictionary of each. This reader
takes the opcodes of plain data only, hands every event on as soon as it is complete, and keeps
nothing of it.

Note [Shapes of events]
PyTorch writes all events of a kind alike: keys and repeated values are references to what came
before, numbers have a few sizes, and a stack is a list of references to frames. When the reader has
read one event opcode by opcode, it makes a regular expression of it, with a group for each value.
The events that follow are each one match of that; what does not match is read opcode by opcode.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, NoReturn

EVENT: Final = object()
"""Stands in lists for an event that was handed on."""

_BUFFER: Final = 8 * 2**20
_MARGIN: Final = 2**20
"""Bytes that are always there after the beginning of an opcode, up to the end of the file."""

_LONGEST_TEXT: Final = 2**24
_LONGEST_NUMBER: Final = 16
_MOST_SHAPES: Final = 32
_NEAR: Final = 400
_MOST_KNOWN: Final = 200_000
_LONGEST_KNOWN: Final = 9
"""Bytes of the opcodes of a time, which do not come again."""

_CODE: Final = {
    0x52: "to call a function",
    0x62: "to change an object",
    0x69: "an object of a class",
    0x6F: "an object of a class",
    0x81: "an object of a class",
    0x92: "an object of a class",
    0x82: "a class or a function by its number",
    0x83: "a class or a function by its number",
    0x84: "a class or a function by its number",
    0x50: "an object from elsewhere",
    0x51: "an object from elsewhere",
}
"""Opcodes of objects and calls, and what they want."""

_INTEGER = rb"K.|M..|J.{4}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})"
_GET = rb"h.|j.{4}"


class ForbiddenCodeError(Exception):
    """A pickle wants more than plain data; the message says what."""


class NotPlainPickleError(Exception):
    """Bytes that no pickle of plain data has; the message says what is wrong."""


class StackReference(NamedTuple):
    """A list of frames that was read by its references."""

    stack: int  # its index, as the sink gave it


class Sink:
    """Takes the events of a snapshot."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take an event, as PyTorch writes it; frames are lists or ``StackReference``."""
        raise NotImplementedError

    def adder(self, keys: Sequence[str]) -> Callable[[list[Any]], None]:
        """A function that takes events with the same keys."""
        raise NotImplementedError

    def index_of(self, frames: Any) -> int:
        """The index of a stack of frames."""
        raise NotImplementedError


class _Shape(NamedTuple):
    """The form in which events of one kind are written; see Note [Shapes of events]."""

    match: Callable[[bytes, int], re.Match[bytes] | None]
    add: Callable[[list[Any]], None]
    # indexes of the groups whose values are memoized where they are no references
    memoized: tuple[int, ...]
    is_memoized: bool


class PickleReader:
    """Reads one pickle."""

    def __init__(self, file: IO[bytes], sink: Sink) -> None:
        self._file = file
        self._sink = sink
        self._data = b""
        self._is_whole = False
        self._memo: list[Any] = []
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._shapes: list[_Shape] = []
        self._starts: dict[int, int] = {}
        self._offset = 0
        self._texts: dict[bytes, str] = {}
        self._lists: dict[bytes, StackReference] = {}
        self._known: dict[bytes, Any] = {}
        """Values by their opcodes."""

    def read(self) -> Any:
        """The content of the pickle, with ``EVENT`` in place of each event."""
        stack, marks, memo = self._stack, self._marks, self._memo
        data, pos = self._refilled(0)
        while True:
            if pos > len(data) - _MARGIN and not self._is_whole:
                data, pos = self._refilled(pos)
            if pos >= len(data):
                raise EOFError
            op = data[pos]
            pos += 1
            if op == 0x7D:  # EMPTY_DICT
                end = self._read_event(pos - 1)
                if end:
                    pos = end
                    stack.append(EVENT)
                    continue
                entry: dict[Any, Any] = {}
                self._starts[id(entry)] = self._offset + pos - 1
                stack.append(entry)
            elif op == 0x68:  # BINGET
                stack.append(self._got(data[pos]))
                pos += 1
            elif op == 0x6A:  # LONG_BINGET
                stack.append(self._got(int.from_bytes(data[pos : pos + 4], "little")))
                pos += 4
            elif op == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif op == 0x28:  # MARK
                marks.append(len(stack))
            elif op == 0x75:  # SETITEMS
                items = self._since_mark()
                if len(items) % 2:
                    raise NotPlainPickleError("a dictionary has a key without a value")
                self._set_items(items, pos)
            elif op == 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                self._set_items([key, value], pos)
            elif op == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif op == 0x65:  # APPENDS
                items = self._since_mark()
                self._top_list().extend(items)
            elif op == 0x61:  # APPEND
                value = stack.pop()
                self._top_list().append(value)
            elif op == 0x4B:  # BININT1
                stack.append(data[pos])
                pos += 1
            elif op == 0x4D:  # BININT2
                stack.append(int.from_bytes(data[pos : pos + 2], "little"))
                pos += 2
            elif op == 0x4A:  # BININT
                stack.append(int.from_bytes(data[pos : pos + 4], "little", signed=True))
                pos += 4
            elif op == 0x8A:  # LONG1
                size = data[pos]
                if size > _LONGEST_NUMBER:
                    raise NotPlainPickleError(f"a number of {size} bytes")
                pos += 1
                stack.append(int.from_bytes(data[pos : pos + size], "little", signed=True))
                pos += size
            elif op == 0x8C:  # SHORT_BINUNICODE
                size = data[pos]
                pos += 1
                stack.append(self._text(data[pos : pos + size]))
                pos += size
            elif op in (0x58, 0x8D):  # BINUNICODE, BINUNICODE8
                width = 4 if op == 0x58 else 8
                size = int.from_bytes(data[pos : pos + width], "little")
                if size > _LONGEST_TEXT:
                    raise NotPlainPickleError(f"a text of {size} bytes")
                pos += width
                if pos + size > len(data):
                    data, pos = self._refilled(pos, size)
                stack.append(self._text(data[pos : pos + size]))
                pos += size
            elif op == 0x4E:  # NONE
                stack.append(None)
            elif op in (0x88, 0x89):  # NEWTRUE, NEWFALSE
                stack.append(op == 0x88)
            elif op == 0x47:  # BINFLOAT
                stack.append(struct.unpack(">d", data[pos : pos + 8].ljust(8, b"\0"))[0])
                pos += 8
            elif op == 0x95:  # FRAME
                pos += 8
            elif op in (0x71, 0x72):  # BINPUT, LONG_BINPUT
                width = 1 if op == 0x71 else 4
                self._put(int.from_bytes(data[pos : pos + width], "little"), stack[-1])
                pos += width
            elif op == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif op in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
                count = op - 0x84
                if len(stack) < count:
                    raise NotPlainPickleError("a tuple lacks its items")
                items = stack[-count:]
                stack[-count:] = [tuple(items)]
            elif op == 0x74:  # TUPLE
                stack.append(tuple(self._since_mark()))
            elif op == 0x80:  # PROTO
                if not 2 <= data[pos] <= 5:
                    raise NotPlainPickleError(f"protocol {data[pos]}; 2 to 5 can be read")
                pos += 1
            elif op == 0x2E:  # STOP
                if len(stack) != 1:
                    raise NotPlainPickleError("it ends within an object")
                return stack[0]
            else:
                self._refuse(op, data[pos : pos + 500])

    def _refuse(self, op: int, following: bytes) -> NoReturn:
        if op == 0x93:  # STACK_GLOBAL
            names = [one if isinstance(one, str) else "?" for one in self._stack[-2:]]
            raise ForbiddenCodeError(".".join(names))
        if op == 0x63:  # GLOBAL
            names = following.decode("utf-8", "replace").split("\n")[:2]
            raise ForbiddenCodeError(".".join(names))
        if op in _CODE:
            raise ForbiddenCodeError(_CODE[op])
        raise NotPlainPickleError(f"the opcode {op:#04x} is none of plain data")

    def _refilled(self, pos: int, needed: int = 0) -> tuple[bytes, int]:
        """The buffer from a position on, with more of the file, and the position in it."""
        read = self._file.read(max(_BUFFER, needed))
        self._is_whole = not read
        self._offset += pos
        self._data = self._data[pos:] + read
        return self._data, 0

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise NotPlainPickleError("an object without a beginning")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _top_list(self) -> list[Any]:
        top = self._stack[-1]
        if type(top) is not list:
            raise NotPlainPickleError("items of something that is no list")
        return top

    def _got(self, index: int) -> Any:
        if index >= len(self._memo):
            raise NotPlainPickleError("a reference to something that follows later")
        found = self._memo[index]
        if found is EVENT:
            raise NotPlainPickleError("an event is in two places")
        return found

    def _put(self, index: int, value: Any) -> None:
        memo = self._memo
        if index > self._offset + len(self._data):
            raise NotPlainPickleError(f"it numbers its {len(memo)}th object {index}")
        if index < len(memo):
            raise NotPlainPickleError(f"it has two objects of the number {index}")
        memo.extend([None] * (index - len(memo)))
        memo.append(value)

    def _text(self, encoded: bytes) -> str:
        """A text; equal ones are one object."""
        known = self._texts.get(encoded)
        if known is None:
            known = self._texts[encoded] = encoded.decode("utf-8", "surrogatepass")
        return known

    def _set_items(self, items: list[Any], end: int) -> None:
        """Put keys and values into the dictionary on top, and hand it on if it is an event."""
        entry = self._stack[-1]
        if type(entry) is not dict:
            raise NotPlainPickleError("keys of something that is no dictionary")
        entry.update(zip(items[::2], items[1::2], strict=True))
        start = self._starts.pop(id(entry), None)
        if "action" not in entry or not ("addr" in entry or "device_free" in entry):
            return
        self._sink.add(entry)
        self._stack[-1] = EVENT
        memo = self._memo
        for index in range(len(memo) - 1, max(len(memo) - _NEAR, 0) - 1, -1):
            if memo[index] is entry:
                memo[index] = EVENT
                break
        if start is not None and start >= self._offset and len(self._shapes) < _MOST_SHAPES:
            shape = _shape_of(self._data[start - self._offset : end], self._memo, self._sink)
            if shape is not None:
                self._shapes.insert(0, shape)

    def _read_event(self, pos: int) -> int:
        """Hand an event of a known shape on."""
        shapes = self._shapes
        for shape in shapes:
            match = shape.match(self._data, pos)
            if match is not None:
                break
        else:
            return 0
        if shape is not shapes[0]:
            shapes.remove(shape)
            shapes.insert(0, shape)
        values = match.groups()
        memo, known = self._memo, self._known
        if shape.is_memoized:
            memo.append(EVENT)
        decoded = list(map(known.get, values))
        for number, found in enumerate(decoded):
            if found is None:
                value = values[number]
                decoded[number] = found = self._decoded(value)
                if len(value) < _LONGEST_KNOWN and len(known) < _MOST_KNOWN:
                    known[value] = found
        for number in shape.memoized:
            if values[number][0] in (0x5D, 0x8C):
                memo.append(decoded[number])
        shape.add(decoded)
        return match.end()

    def _decoded(self, value: bytes) -> Any:
        """The value that the opcodes of a group stand for."""
        op = value[0]
        if op == 0x8A:
            return int.from_bytes(value[2:], "little", signed=True)
        if op in (0x68, 0x6A):
            return self._got(int.from_bytes(value[1:], "little"))
        if op == 0x5D:
            return self._list(value)
        if op == 0x8C:
            return self._text(value[2 : 2 + value[1]])
        return int.from_bytes(value[1:], "little", signed=op == 0x4A)

    def _list(self, value: bytes) -> StackReference:
        """The stack of a list of references to frames."""
        start = 1 + _PUT_WIDTHS.get(value[1], 0) if len(value) > 1 else 1
        known = self._lists.get(value[start:])
        if known is None:
            references = re.findall(_GET, value[start:].strip(b"(")[:-1], re.DOTALL)
            frames = [self._got(int.from_bytes(one[1:], "little")) for one in references]
            known = StackReference(self._sink.index_of(frames))
            self._lists[value[start:]] = known
        return known


_PUT_WIDTHS: Final = {0x94: 1, 0x71: 2, 0x72: 5}
"""Bytes of the opcodes that memoize what is on top: MEMOIZE, BINPUT, LONG_BINPUT."""

_PUT: Final = rb"(?:\x94|q.|r.{4})"


def _shape_of(written: bytes, memo: list[Any], sink: Sink) -> _Shape | None:
    """The shape of an event; None if it has parts that differ from event to event."""
    pos = 1
    pattern = [rb"\}"]
    keys: list[str] = []
    memoized: list[int] = []

    def put() -> bool:
        nonlocal pos
        width = _PUT_WIDTHS.get(written[pos], 0)
        pos += width
        if width:
            pattern.append(_PUT)
        return bool(width)

    def get() -> bytes:
        nonlocal pos
        width = {0x68: 2, 0x6A: 5}.get(written[pos], 0)
        pos += width
        return written[pos - width : pos]

    is_memoized = put()
    if written[pos] != 0x28:
        return None
    pattern.append(rb"\(")
    pos += 1
    while written[pos] != 0x75:
        key = get()
        if not key:
            return None
        keys.append(memo[int.from_bytes(key[1:], "little")])
        pattern.append(re.escape(key))
        op = written[pos]
        if get():
            is_stack = keys[-1] in _STACKS
            pattern.append(rb"(" + _GET + (rb"|" + _LIST if is_stack else rb"") + rb")")
            memoized += [len(keys) - 1] if is_stack else []
        elif op in _NUMBER_WIDTHS or op == 0x8A:
            pos += _NUMBER_WIDTHS.get(op) or 2 + written[pos + 1]
            pattern.append(rb"(" + _INTEGER + rb")")
        elif op == 0x8C:
            size = written[pos + 1]
            pos += 2 + size
            begin = len(pattern)
            is_put = put()
            del pattern[begin:]
            text = re.escape(bytes([0x8C, size])) + rb".{%d}" % size
            pattern.append(rb"(" + text + rb")" + (_PUT if is_put else rb""))
            if is_put:
                memoized.append(len(keys) - 1)
        elif op == 0x5D:
            match = re.compile(_LIST, re.DOTALL).match(written, pos)
            if match is None:
                return None
            pos = match.end()
            pattern.append(rb"(" + _GET + rb"|" + _LIST + rb")")
            memoized.append(len(keys) - 1)
        else:
            return None
    pattern.append(rb"u")
    compiled = re.compile(b"".join(pattern), re.DOTALL)
    return _Shape(compiled.match, sink.adder(keys), tuple(memoized), is_memoized)


_LIST: Final = rb"\]" + _PUT + rb"(?:\((?:" + _GET + rb")*e|(?:" + _GET + rb")a)?"
_STACKS: Final = ("frames", "forward_frames")
_NUMBER_WIDTHS: Final = {0x4B: 2, 0x4D: 3, 0x4A: 5}
