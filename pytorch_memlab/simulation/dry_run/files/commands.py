"""Commands by what they do to files, as far as their words show it.

Note [Commands of a dry run]

A command that a program starts works on the disk itself. There are four kinds:

* ``cp``, ``mv``, ``rm``, ``mkdir``, ``rmdir``, ``ln``, ``touch`` and ``tee`` are carried out by
  ``file_commands.py`` in the overlay;
* a Python with the simulation's environment joins the overlay;
* some commands only read, and compilers write new files: they run as they are, and where the
  overlay has a copy of a file that is among their words, they read that;
* all others run too, and are named. ``fit``, which runs a program many times, refuses them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Kind(Enum):
    """The kinds of commands, by what they do to files."""

    CARRIED_OUT = "carried out by the overlay"
    PYTHON = "a Python, which joins the overlay"
    READS = "reads, or writes new files alone"
    UNKNOWN = "may change files"


CARRIED_OUT: Final = _words("cp ln mkdir mv rm rmdir tee touch")
_READING: Final = _words(
    """
    [ : addr2line amd-smi arch b2sum base64 basename c++filt cat cd cksum clear cmp column comm cut
    date df diff dirname du echo egrep exit export expr false ffprobe fgrep file fold free getconf
    getent getfacl grep groups head hexdump hostid id infocmp last ldd llvm-symbolizer locale ls
    lsb_release lscpu lsmem lsmod lsof lspci md5sum nl nm nproc objdump od pgrep printenv printf ps
    pwd readelf readlink realpath rev rocm-smi rocminfo seq set sha1sum sha224sum sha256sum
    sha384sum sha512sum sleep stat strings stty sum sw_vers system_profiler tac tail test tput tr
    true tty type ulimit umask uname unset uptime users vm_stat vmstat w wc whereis which who whoami
    zcat
    """
)
_COMPILING: Final = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|nvcc|hipcc|ld|lld|ar|as|ptxas|cuobjdump|nvdisasm|icx"
    r"|icpx)(-\d[\d.]*)?"
)
_PYTHON: Final = re.compile(r"python(\d[\d.]*)?")
_ASKS_ALONE: Final = frozenset({"--version", "-V", "-v", "--help", "-h", "-version"})
_READING_OPTIONS: Final = {
    "ldconfig": frozenset({"-p", "--print-cache", "-pN"}),
    "sysctl": frozenset({"-n", "-a"}),
    "date": frozenset(),
}
_GIT_READS: Final = _words(
    """
    blame branch cat-file config describe diff for-each-ref grep log ls-files ls-remote ls-tree
    merge-base name-rev remote rev-list rev-parse shortlog show show-ref status symbolic-ref version
    """
)
_GIT_READS_ALONE: Final = _words("branch config remote symbolic-ref")
"""Commands of git that only read with the options below, or with none."""
_GIT_READING_OPTIONS: Final = _words(
    """
    -a -l -q -r -v -vv --abbrev-ref --all --contains --get --get-all --get-regexp --get-url --list
    --merged --quiet --short --show-current get-url show
    """
)
_SEPARATORS: Final = frozenset({"|", "||", "&&", ";", "&", "|&"})


def kind_of(words: Sequence[str]) -> Kind:
    """The kind of a command with its arguments."""
    if not words:
        return Kind.READS
    name, arguments = os.path.basename(words[0]), words[1:]
    if name in CARRIED_OUT:
        return Kind.CARRIED_OUT
    if _is_python(words):
        return Kind.PYTHON
    return Kind.READS if _only_reads(name, arguments) else Kind.UNKNOWN


def _only_reads(name: str, arguments: Sequence[str]) -> bool:
    if len(arguments) == 1 and arguments[0] in _ASKS_ALONE:
        return True
    if name == "git":
        return _git_reads(arguments)
    if name == "env":
        return not arguments
    if name == "date":
        return not any(word.startswith(("-s", "--set")) for word in arguments)
    if name == "sort":
        return not any(word.startswith(("-o", "--output")) for word in arguments)
    if name == "nvidia-smi":
        writes = ("-f", "--filename", "-pm", "-pl", "-lgc", "-mig", "--gpu-reset", "-r", "-c")
        return not any(word.split("=")[0] in writes for word in arguments)
    if name in {"hostname", "ifconfig"}:
        return all(word.startswith("-") for word in arguments[:1])
    if name == "ip":
        return not {"add", "del", "set", "flush", "change", "replace"}.intersection(arguments)
    if name in _READING_OPTIONS:
        return (
            bool(arguments)
            and _READING_OPTIONS[name].issuperset(
                word for word in arguments if word.startswith("-")
            )
            and not any("=" in word for word in arguments)
        )
    return name in _READING or bool(_COMPILING.fullmatch(name))


def _git_reads(arguments: Sequence[str]) -> bool:
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in {"-C", "-c", "--git-dir", "--work-tree"} and words:
            words.pop(0)
    if not words:
        return True
    command, *others = words
    if command not in _GIT_READS or any(word.startswith("--output") for word in others):
        return False
    if command not in _GIT_READS_ALONE:
        return True
    return not others or bool(_GIT_READING_OPTIONS.intersection(others[:1]))


def _is_python(words: Sequence[str]) -> bool:
    """True for a Python that runs ``sitecustomize``, and for a script of one."""
    name = os.path.basename(words[0])
    if not _PYTHON.fullmatch(name):
        return _has_python_line(words[0])
    for word in words[1:]:
        if not word.startswith("-") or word in {"-c", "-m", "-"}:
            break
        if not word.startswith("--") and set("IES").intersection(word[1:]):
            return False
    return True


def _has_python_line(path: str) -> bool:
    """True if a file begins with a line that names Python."""
    for folder in [""] if os.sep in path else os.get_exec_path():
        try:
            with open(os.path.join(folder, path), "rb") as file:
                line = file.readline(200)
        except OSError:
            continue
        return line.startswith(b"#!") and b"python" in line and b" -I" not in line
    return False


def simple_commands(text: str) -> list[list[str]] | None:
    """The commands of a line of a shell; None if they cannot be told, or write files."""
    if re.search(r"[`\n(){}]|\$\(|<<", text):
        return None
    words = shlex.shlex(text, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        tokens = list(words)
    except ValueError:
        return None
    waiting = iter(tokens)
    for token in waiting:
        if token in _SEPARATORS:
            commands.append([])
        elif set(token) <= set("<>&|;") and token:
            if not _is_harmless_redirection(token, next(waiting, ""), commands[-1]):
                return None
        elif not commands[-1] and re.fullmatch(r"\w+=.*", token):
            continue  # a variable for this command
        else:
            commands[-1].append(token)
    return [command for command in commands if command]


def _is_harmless_redirection(sign: str, target: str, command: list[str]) -> bool:
    if command and command[-1].isdigit() and ">" in sign:  # the number of a descriptor
        command.pop()
    if sign == "<":
        return True
    return target == os.devnull or (sign == ">&" and target.isdigit())


def kind_of_all(commands: Iterable[Sequence[str]] | None) -> Kind:
    """The kind of a line of a shell."""
    if commands is None:
        return Kind.UNKNOWN
    kinds = {kind_of(command) for command in commands}
    for kind in (Kind.UNKNOWN, Kind.CARRIED_OUT, Kind.PYTHON):
        if kind in kinds:
            return kind
    return Kind.READS
