"""``cp``, ``mv`` and others in Python; Note [Commands of a dry run]."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

_FLAGS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "cp": {
        "recursive": ("-r", "-R", "--recursive"),
        "archive": ("-a", "--archive"),
        "preserve": ("-p",),
        "force": ("-f", "--force"),
        "verbose": ("-v", "--verbose"),
        "no_clobber": ("-n", "--no-clobber"),
        "update": ("-u",),
        "keep_links": ("-d", "-P", "--no-dereference"),
        "follow": ("-L", "--dereference"),
        "no_target": ("-T", "--no-target-directory"),
    },
    "mv": {
        "force": ("-f", "--force"),
        "verbose": ("-v", "--verbose"),
        "no_clobber": ("-n", "--no-clobber"),
        "no_target": ("-T", "--no-target-directory"),
    },
    "rm": {
        "recursive": ("-r", "-R", "--recursive"),
        "force": ("-f", "--force"),
        "verbose": ("-v", "--verbose"),
        "folders": ("-d", "--dir"),
    },
    "mkdir": {"parents": ("-p", "--parents"), "verbose": ("-v", "--verbose")},
    "rmdir": {"parents": ("-p", "--parents"), "verbose": ("-v", "--verbose")},
    "ln": {
        "symbolic": ("-s", "--symbolic"),
        "force": ("-f", "--force"),
        "no_dereference": ("-n", "--no-dereference"),
        "no_target": ("-T", "--no-target-directory"),
        "verbose": ("-v", "--verbose"),
    },
    "touch": {"no_create": ("-c", "--no-create")},
    "tee": {"append": ("-a", "--append")},
}
_TARGET: Final = ("cp", "mv", "ln")
"""Commands with ``-t FOLDER``."""


class _UnknownOptionError(Exception):
    """An option that is not carried out here."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise _UnknownOptionError(message)


def _parsed(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    for field, flags in _FLAGS[name].items():
        parser.add_argument(*flags, dest=field, action="store_true")
    if name in _TARGET:
        parser.add_argument("-t", "--target-directory", dest="target")
    if name == "mkdir":
        parser.add_argument("-m", "--mode", type=lambda text: int(text, 8), default=0o777)
    parser.add_argument("paths", nargs="*")
    return parser.parse_intermixed_args(list(arguments))


def can_carry_out(name: str, arguments: Sequence[str]) -> bool:
    """True if a command has no option that is not known here."""
    try:
        _parsed(name, arguments)
    except (_UnknownOptionError, TypeError):
        return False
    return True


class _FailedError(Exception):
    """A command cannot do what it was told to; others of its arguments are still done."""


def _targets(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Each source with its target."""
    paths = list(options.paths)
    folder = options.target
    if folder is None:
        if len(paths) < 2:
            raise _FailedError("missing file operand")
        *paths, folder = paths
        is_link = getattr(options, "no_dereference", False) and os.path.islink(folder)
        if options.no_target or is_link or not os.path.isdir(folder):
            if len(paths) > 1:
                raise _FailedError(f"target '{folder}' is not a directory")
            return [(paths[0], folder)]
    return [
        (path, os.path.join(folder, os.path.basename(path.rstrip("/")) or path)) for path in paths
    ]


def _cp(options: argparse.Namespace) -> None:
    keeps_links = (
        options.archive or options.keep_links or (options.recursive and not options.follow)
    )
    copy = shutil.copy2 if options.archive or options.preserve else shutil.copy
    for source, target in _targets(options):
        exists = os.path.lexists(target)
        if exists and options.no_clobber:
            continue
        if exists and options.update and os.stat(source).st_mtime <= os.stat(target).st_mtime:
            continue
        if os.path.isdir(source) and not (keeps_links and os.path.islink(source)):
            if not (options.recursive or options.archive):
                raise _FailedError(f"-r not specified; omitting directory '{source}'")
            shutil.copytree(
                source, target, symlinks=keeps_links, copy_function=copy, dirs_exist_ok=True
            )
        elif exists and os.path.samefile(source, target):
            raise _FailedError(f"'{source}' and '{target}' are the same file")
        else:
            copy(source, target, follow_symlinks=not keeps_links)
        _say(options, f"'{source}' -> '{target}'")


def _mv(options: argparse.Namespace) -> None:
    for source, target in _targets(options):
        if os.path.lexists(target) and options.no_clobber:
            continue
        os.rename(source, target)
        _say(options, f"renamed '{source}' -> '{target}'")


def _rm(options: argparse.Namespace) -> None:
    for path in options.paths:
        if options.force and not os.path.lexists(path):
            continue
        if not os.path.isdir(path) or os.path.islink(path):
            os.remove(path)
        elif options.recursive:
            shutil.rmtree(path)
        elif options.folders:
            os.rmdir(path)
        else:
            raise _FailedError(f"cannot remove '{path}': Is a directory")
        _say(options, f"removed '{path}'")


def _mkdir(options: argparse.Namespace) -> None:
    for path in options.paths:
        if options.parents:
            os.makedirs(path, options.mode, exist_ok=True)
        else:
            os.mkdir(path, options.mode)
        _say(options, f"mkdir: created directory '{path}'")


def _rmdir(options: argparse.Namespace) -> None:
    for path in options.paths:
        (os.removedirs if options.parents else os.rmdir)(path)
        _say(options, f"rmdir: removing directory, '{path}'")


def _ln(options: argparse.Namespace) -> None:
    if options.target is None and len(options.paths) == 1:
        options.target = "."
    for source, target in _targets(options):
        if options.force and os.path.lexists(target):
            os.remove(target)
        (os.symlink if options.symbolic else os.link)(source, target)
        _say(options, f"'{target}' -> '{source}'")


def _touch(options: argparse.Namespace) -> None:
    for path in options.paths:
        if os.path.exists(path):
            os.utime(path)
        elif not options.no_create:
            with open(path, "a", encoding="utf-8"):
                pass


def _tee(options: argparse.Namespace) -> None:
    files = [open(path, "ab" if options.append else "wb") for path in options.paths]  # noqa: SIM115
    while data := os.read(0, 1 << 16):
        for file in files:
            file.write(data)
            file.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    for file in files:
        file.close()


def _say(options: argparse.Namespace, text: str) -> None:
    if options.verbose:
        print(text, flush=True)


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], None]]] = {
    "cp": _cp,
    "mv": _mv,
    "rm": _rm,
    "mkdir": _mkdir,
    "rmdir": _rmdir,
    "ln": _ln,
    "touch": _touch,
    "tee": _tee,
}


def carry_out(name: str, arguments: Sequence[str]) -> int:
    """Carry out a command; its exit code."""
    try:
        _COMMANDS[name](_parsed(name, arguments))
    except _UnknownOptionError as error:
        print(f"{name}: {error}: not known in a dry run (--allow-writes)", file=sys.stderr)
        return 1
    except _FailedError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{name}: '{error.filename}': {error.strerror}", file=sys.stderr)
        return 1
    except shutil.Error as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0
