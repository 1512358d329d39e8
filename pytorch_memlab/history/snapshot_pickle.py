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

import pickletools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, NoReturn, Protocol

EVENT: Final = object()
"""Stands in lists for an event that was handed on."""

_BUFFER: Final = 8 * 2**20
_MARGIN: Final = 2**20
"""Bytes that are always there after the beginning of an opcode, up to the end of the file."""

_RUN: Final = 16
"""Opcodes alike, from which on they are read together."""

_MOST_OPCODES: Final = 6_000_000
"""Opcodes that are read one by one, apart from those of events: tens of times as many as the
segments and frames of a large program have."""

_OF_EVENT: Final = 64
"""Opcodes of an event that is read one by one."""

_LONGEST_TEXT: Final = 2**24
_LONGEST_NUMBER: Final = 16
_MOST_SHAPES: Final = 32
_NEAR: Final = 400
_MOST_KNOWN: Final = 200_000
_LONGEST_KNOWN: Final = 9
"""Bytes of the opcodes of a time, which do not come again."""

_PLAIN: Final = {
    opcode.code.encode("latin-1"): opcode
    for opcode in pickletools.opcodes
    if opcode.name
    in {
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "MARK", "NONE"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE"),
        *("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE", "PROTO", "FRAME", "STOP"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    }
}
"""The opcodes of plain data, by their bytes."""

_CODE: Final = {
    0x52: "to call a function",
    0x62: "to change an object",
    **dict.fromkeys((0x69, 0x6F, 0x81, 0x92), "an object of a class"),
    **dict.fromkeys((0x82, 0x83, 0x84), "a class or a function by its number"),
    **dict.fromkeys((0x50, 0x51), "an object from elsewhere"),
}
"""Opcodes of objects and calls, and what they want."""

_INTEGER = rb"K.|M..|J.{4}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})"
_GET = rb"h.|j.{4}"


_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
"""Values of the opcodes NONE, NEWTRUE, NEWFALSE and EMPTY_TUPLE."""

_CONSTANT_RUN: Final = re.compile(rb"[N\x88\x89)]{%d,}" % _RUN)
_NUMBER_RUN: Final = re.compile(rb"(?:K.){%d,}" % _RUN, re.DOTALL)
_REFERENCE_RUN: Final = re.compile(rb"(?:h.){%d,}" % _RUN, re.DOTALL)
_RUNS: Final = {
    **dict.fromkeys(_CONSTANTS, _CONSTANT_RUN),
    0x4B: _NUMBER_RUN,
    0x68: _REFERENCE_RUN,
}
"""By the first byte of a run."""


class ForbiddenCodeError(Exception):
    """A pickle wants more than plain data; the message says what."""


class NotPlainPickleError(Exception):
    """Bytes that no pickle of plain data has; the message says what is wrong."""


class StackReference(NamedTuple):
    """A list of frames that was read by its references."""

    stack: int  # its index, as the sink gave it


class Sink(Protocol):
    """Takes the events of a snapshot."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take an event, as PyTorch writes it; frames are lists or ``StackReference``."""

    def adder(self, keys: Sequence[str]) -> Callable[[list[Any]], None]:
        """A function that takes events with the same keys."""

    def index_of(self, frames: Any) -> int:
        """The index of a stack."""


class _Shape(NamedTuple):
    """The form in which events of one kind are written; see Note [Shapes of events]."""

    match: Callable[[bytes, int], re.Match[bytes] | None]
    add: Callable[[list[Any]], None]
    # indexes of the groups whose values are memoized where they are no references
    memoized: tuple[int, ...]
    is_memoized: bool


class _Buffer:
    """A file of which the part around the position is in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._is_whole = False
        self.data = b""
        self.pos = 0
        self.offset = 0  # in the file, of the data

    def read(self, size: int) -> bytes:
        if size > _LONGEST_TEXT:
            raise NotPlainPickleError(f"a text of {size} bytes")
        self.fill(size)
        start = self.pos
        self.pos += size
        if self.pos > len(self.data):
            raise EOFError
        return self.data[start : self.pos]

    def fill(self, size: int) -> None:
        """Have so many bytes after the position in memory, up to the end of the file."""
        if len(self.data) - self.pos < size and not self._is_whole:
            read = self._file.read(max(_BUFFER, size))
            self._is_whole = not read
            self.offset += self.pos
            self.data = self.data[self.pos :] + read
            self.pos = 0

    def lines(self, count: int) -> list[str]:
        text = self.data[self.pos : self.pos + 500].decode("utf-8", "replace")
        return text.split("\n")[:count]


class PickleReader:
    """Reads one pickle."""

    def __init__(self, file: IO[bytes], sink: Sink) -> None:
        self._file = _Buffer(file)
        self._sink = sink
        self._memo: list[Any] = []
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._shapes: list[_Shape] = []
        self._starts: dict[int, int] = {}
        self._texts: dict[str, str] = {}
        self._lists: dict[bytes, StackReference] = {}
        self._read_alone = 0  # opcodes, without those of events
        self._known: dict[bytes, Any] = {}
        """Values by their opcodes."""

    def read(self) -> Any:
        """The content of the pickle, with ``EVENT`` in place of each event."""
        stack, file = self._stack, self._file
        while True:
            code = file.read(1)
            if code[0] in _RUNS and self._read_run(code[0]):
                continue
            self._read_alone += 1
            if self._read_alone > _MOST_OPCODES:
                raise NotPlainPickleError(
                    f"it has more than {_MOST_OPCODES:,} objects that are no events"
                )
            if code == b"}":
                file.fill(_MARGIN)
                if self._read_event(file.pos - 1):
                    stack.append(EVENT)
                    continue
            opcode = _PLAIN.get(code)
            if opcode is None:
                self._refuse(code[0])
            value: Any = None if opcode.arg is None else opcode.arg.reader(file)  # type: ignore[arg-type]
            if opcode.name == "STOP":
                if len(stack) != 1:
                    raise NotPlainPickleError("it ends within an object")
                return stack[0]
            self._execute(opcode.name, value)

    def _execute(self, name: str, value: Any) -> None:
        """Do what an opcode of plain data does, given its argument."""
        stack, memo, file = self._stack, self._memo, self._file
        match name:
            case "EMPTY_DICT":
                entry: dict[Any, Any] = {}
                self._starts[id(entry)] = file.offset + file.pos - 1
                stack.append(entry)
            case "BINGET" | "LONG_BINGET":
                stack.append(self._got(value))
            case "MEMOIZE":
                memo.append(stack[-1])
            case "BINPUT" | "LONG_BINPUT":
                self._put(value, stack[-1])
            case "MARK":
                self._marks.append(len(stack))
            case "SETITEMS":
                self._set_items(self._since_mark())
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._set_items([key, value])
            case "APPENDS" | "APPEND":
                items = self._since_mark() if name == "APPENDS" else [stack.pop()]
                if type(stack[-1]) is not list:
                    raise NotPlainPickleError("items of something that is no list")
                stack[-1].extend(items)
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                if len(stack) < count:
                    raise NotPlainPickleError("a tuple lacks its items")
                stack[-count:] = [tuple(stack[-count:])]
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                stack.append(self._texts.setdefault(value, value))
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "NONE":
                if type(value) is int and value.bit_length() > 8 * _LONGEST_NUMBER:
                    raise NotPlainPickleError(f"a number of {-(-value.bit_length() // 8)} bytes")
                stack.append(value)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "PROTO" if not 2 <= value <= 5:
                raise NotPlainPickleError(f"protocol {value}; 2 to 5 can be read")

    def _read_run(self, op: int) -> bool:
        """Read many values of one kind together; False where there are few."""
        file = self._file
        run = _RUNS[op].match(file.data, file.pos - 1)
        if run is None:
            return False
        file.pos = run.end()
        if op in _CONSTANTS:
            self._stack.extend(map(_CONSTANTS.__getitem__, run[0]))
        elif op == 0x4B:
            self._stack.extend(run[0][1::2])
        else:
            self._stack.extend(map(self._got, run[0][1::2]))
        return True

    def _refuse(self, op: int) -> NoReturn:
        if op == 0x93:  # STACK_GLOBAL
            names = [text if isinstance(text, str) else "?" for text in self._stack[-2:]]
            raise ForbiddenCodeError(".".join(names))
        if op == 0x63:  # GLOBAL
            raise ForbiddenCodeError(".".join(self._file.lines(2)))
        if op in _CODE:
            raise ForbiddenCodeError(_CODE[op])
        raise NotPlainPickleError(f"the opcode {op:#04x} is none of plain data")

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise NotPlainPickleError("an object without a beginning")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _got(self, index: int) -> Any:
        if index >= len(self._memo):
            raise NotPlainPickleError("a reference to something that follows later")
        value = self._memo[index]
        if value is EVENT:
            raise NotPlainPickleError("an event is in two places")
        return value

    def _put(self, index: int, value: Any) -> None:
        memo = self._memo
        if index > self._file.offset + len(self._file.data):
            raise NotPlainPickleError(f"it numbers its {len(memo)}th object {index}")
        if index < len(memo):
            raise NotPlainPickleError(f"it has two objects of the number {index}")
        memo.extend([None] * (index - len(memo)))
        memo.append(value)

    def _set_items(self, items: list[Any]) -> None:
        """Put keys and values into the dictionary on top, and hand it on if it is an event."""
        entry = self._stack[-1]
        if type(entry) is not dict:
            raise NotPlainPickleError("keys of something that is no dictionary")
        if len(items) % 2:
            raise NotPlainPickleError("a dictionary has a key without a value")
        entry.update(zip(items[::2], items[1::2], strict=True))
        start = self._starts.pop(id(entry), None)
        if "action" not in entry or not ("addr" in entry or "device_free" in entry):
            return
        self._sink.add(entry)
        self._stack[-1] = EVENT
        self._read_alone -= min(_OF_EVENT, self._read_alone)
        memo = self._memo
        for index in range(len(memo) - 1, max(len(memo) - _NEAR, 0) - 1, -1):
            if memo[index] is entry:
                memo[index] = EVENT
                break
        file = self._file
        if start is not None and start >= file.offset and len(self._shapes) < _MOST_SHAPES:
            shape = _shape_of(file.data[start - file.offset : file.pos], memo, self._sink)
            if shape is not None:
                self._shapes.insert(0, shape)

    def _read_event(self, start: int) -> bool:
        """Hand an event of a known shape on; False if there is none."""
        file, shapes = self._file, self._shapes
        for shape in shapes:
            match = shape.match(file.data, start)
            if match is not None:
                break
        else:
            return False
        if shape is not shapes[0]:
            shapes.remove(shape)
            shapes.insert(0, shape)
        values = match.groups()
        memo, known_values = self._memo, self._known
        if shape.is_memoized:
            memo.append(EVENT)
        decoded = list(map(known_values.get, values))
        for number, field in enumerate(decoded):
            if field is None:
                value = values[number]
                decoded[number] = field = self._decoded(value)
                if len(value) < _LONGEST_KNOWN and len(known_values) < _MOST_KNOWN:
                    known_values[value] = field
        for number in shape.memoized:
            if values[number][0] not in _GET_CODES:
                memo.append(decoded[number])
        shape.add(decoded)
        file.pos = match.end()
        return True

    def _decoded(self, value: bytes) -> Any:
        op = value[0]
        if _PAIR.match(value):
            return tuple(map(self._decoded, _NUMBER.findall(value)[:2]))
        if op == 0x8A:
            return int.from_bytes(value[2:], "little", signed=True)
        if op in _GET_CODES:
            return self._got(int.from_bytes(value[1:], "little"))
        if op == 0x5D:
            return self._list(value)
        if op == 0x8C:
            text = value[2 : 2 + value[1]].decode("utf-8", "surrogatepass")
            return self._texts.setdefault(text, text)
        return int.from_bytes(value[1:], "little", signed=op == 0x4A)

    def _list(self, value: bytes) -> StackReference:
        start = 1 + _PUT_WIDTHS.get(value[1], 0) if len(value) > 1 else 1
        reference = self._lists.get(value[start:])
        if reference is None:
            references = re.findall(_GET, value[start:].strip(b"(")[:-1], re.DOTALL)
            frames = [
                self._got(int.from_bytes(reference[1:], "little")) for reference in references
            ]
            reference = StackReference(self._sink.index_of(frames))
            self._lists[value[start:]] = reference
        return reference


_PUT_WIDTHS: Final = {0x94: 1, 0x71: 2, 0x72: 5}
"""Bytes of the opcodes that memoize what is on top: MEMOIZE, BINPUT, LONG_BINPUT."""

_PUT: Final = rb"(?:\x94|q.|r.{4})"
_GET_CODES: Final = (0x68, 0x6A)
_NUMBER: Final = re.compile(_INTEGER, re.DOTALL)
_PAIR: Final = re.compile(rb"(?:" + _INTEGER + rb"){2}\x86" + _PUT, re.DOTALL)
_LIST: Final = rb"\]" + _PUT + rb"(?:\((?:" + _GET + rb")*e|(?:" + _GET + rb")a)?"
_STACKS: Final = ("frames", "forward_frames")
_POOL: Final = "pool_id"
_BEGIN: Final = re.compile(rb"\}(" + _PUT + rb")?\(", re.DOTALL)
_KEY: Final = re.compile(_GET, re.DOTALL)
_VALUE: Final = re.compile(
    rb"(?P<get>%b)|(?P<pair>%b)|(?P<number>%b)|(?P<list>%b)"
    % (_GET, _PAIR.pattern, _INTEGER, _LIST),
    re.DOTALL,
)


def _shape_of(written: bytes, memo: list[Any], sink: Sink) -> _Shape | None:
    """The shape of an event; None if it has parts that differ from event to event."""
    begin = _BEGIN.match(written)
    if begin is None:
        return None
    is_memoized = begin[1] is not None
    pattern = [rb"\}", _PUT if is_memoized else b"", rb"\("]
    pos = begin.end()
    keys: list[str] = []
    memoized: list[int] = []
    while written[pos] != 0x75:
        key = _KEY.match(written, pos)
        if key is None:
            return None
        pattern.append(re.escape(key[0]))
        value = _VALUE.match(written, key.end())
        keys.append(memo[int.from_bytes(key[0][1:], "little")])
        if value is not None:
            pos = value.end()
            is_list = value["list"] is not None or keys[-1] in _STACKS
            is_pair = value["pair"] is not None or keys[-1] == _POOL
            if is_list or is_pair:
                form = _GET + rb"|" + (_LIST if is_list else _PAIR.pattern)
                memoized.append(len(keys) - 1)
            else:
                form = _GET if value["get"] else _INTEGER
            pattern.append(rb"(" + form + rb")")
        elif written[key.end()] == 0x8C:
            size = written[key.end() + 1]
            pos = key.end() + 2 + size
            width = _PUT_WIDTHS.get(written[pos], 0)
            pos += width
            text = re.escape(bytes([0x8C, size])) + rb".{%d}" % size
            pattern.append(rb"(" + text + rb")" + (_PUT if width else rb""))
            memoized += [len(keys) - 1] if width else []
        else:
            return None
    compiled = re.compile(b"".join(pattern) + rb"u", re.DOTALL)
    return _Shape(compiled.match, sink.adder(keys), tuple(memoized), is_memoized)
