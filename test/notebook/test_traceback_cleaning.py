"""A failed cell's traceback lets go of its local variables, and stays an ordinary traceback."""

from __future__ import annotations

import gc
import traceback
import weakref

import pytest
import torch

from pytorch_memlab.notebook import traceback_cleaning
from pytorch_memlab.notebook.traceback_cleaning import (
    clear_frames,
    forget_last_error,
    get_ref_free_exc_info,
    gpu_mem_restore,
    gpu_mem_restore_ctx,
    ipython_tb_clear_frames,
    ipython_tb_clear_frames_ctx,
    is_in_ipython,
)


class Big:
    """Something that a weak reference can watch."""


@pytest.fixture
def shell(shell):
    shell.user_ns.update(Big=Big, watched=[], weakref=weakref)
    return shell


def run(shell, source):
    result = shell.run_cell(source, store_history=True)
    gc.collect()
    return result


FAIL = """
def fail(error):
    big = Big()
    watched.append(weakref.ref(big))
    raise error
"""


def alive(shell) -> bool:
    return shell.user_ns["watched"][-1]() is not None


def fail(error):
    big = Big()
    fail.watched = weakref.ref(big)
    raise error


def test_the_context_is_a_class():
    assert isinstance(gpu_mem_restore_ctx, type)
    with gpu_mem_restore_ctx():
        pass


def test_it_knows_a_shell_when_it_runs_in_one(shell):
    assert is_in_ipython()


def test_it_knows_that_there_is_none():
    assert not is_in_ipython()


def test_an_error_leaves_its_variables_alive_without_us(shell):
    run(shell, FAIL + "fail(ValueError())")
    assert alive(shell)


@pytest.mark.parametrize("chained", [False, True])
def test_any_error_of_the_block_lets_go_also_a_chained_one(shell, chained):
    shell.user_ns["restore"] = gpu_mem_restore_ctx
    body = "fail(ValueError('first'))"
    if chained:
        body = f"try: {body}\n    except ValueError: raise KeyError('second')"
    result = run(shell, FAIL + f"with restore():\n    {body}\n")
    assert type(result.error_in_exec) is (KeyError if chained else ValueError)
    assert not alive(shell)


@pytest.mark.parametrize(
    ("error", "switch", "kept"),
    [
        ("RuntimeError('CUDA out of memory. Tried')", None, False),
        ("torch.OutOfMemoryError('full')", None, False),
        ("RuntimeError('CUDA error: device-side assert triggered')", None, False),
        ("KeyboardInterrupt()", None, False),
        ("ValueError('x')", None, True),
        ("ValueError('x')", "1", False),
        ("torch.OutOfMemoryError('full')", "0", True),
    ],
)
def test_the_decorator_clears_what_it_says(shell, monkeypatch, error, switch, kept):
    monkeypatch.delenv("FASTAI_TB_CLEAR_FRAMES", raising=False)
    if switch is not None:
        monkeypatch.setenv("FASTAI_TB_CLEAR_FRAMES", switch)
    shell.user_ns.update(gpu_mem_restore=gpu_mem_restore, torch=torch)
    source = f"""
@gpu_mem_restore
def outer():
    fail({error})
outer()
"""
    if "assert" in error:
        with pytest.warns(UserWarning, match="restart the kernel"):
            run(shell, FAIL + source)
    else:
        run(shell, FAIL + source)
    assert alive(shell) is kept


@pytest.mark.parametrize(
    "source",
    [
        "@restore\ndef outer():\n    yield 1\n    fail(KeyboardInterrupt())\nlist(outer())",
        "@restore\nasync def outer():\n    fail(KeyboardInterrupt())\nawait outer()",
        "@clear\ndef outer():\n    yield 1\n    fail(ValueError())\nlist(outer())",
        "@clear\nasync def outer():\n    fail(ValueError())\nawait outer()",
    ],
)
def test_generators_and_coroutines_are_released_too(shell, source):
    shell.user_ns.update(restore=gpu_mem_restore, clear=ipython_tb_clear_frames)
    assert run(shell, FAIL + source).error_in_exec is not None
    assert not alive(shell)


def test_a_generator_that_nobody_reads_on_ends_as_always(shell, monkeypatch):
    cleared = []
    monkeypatch.setattr(traceback_cleaning, "clear_frames", cleared.append)
    shell.user_ns["clear"] = ipython_tb_clear_frames
    assert run(shell, "@clear\ndef count():\n    yield 1\nnext(count())").success
    assert cleared == []


def test_the_very_same_error_goes_on(shell):
    class TwoArguments(Exception):
        def __init__(self, one, two):
            super().__init__(one, two)

        def __str__(self):
            raise ValueError("no text")

    error = TwoArguments(1, 2)
    for call in (ipython_tb_clear_frames(fail), gpu_mem_restore(fail)):
        with pytest.raises(TwoArguments) as caught:
            call(error)
        assert caught.value is error
    with pytest.raises(TwoArguments), ipython_tb_clear_frames_ctx():
        fail(error)


def test_outside_ipython_nothing_is_changed():
    for guarded in (gpu_mem_restore(fail), ipython_tb_clear_frames(fail)):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            guarded(torch.OutOfMemoryError("CUDA out of memory"))
        assert "big" in caught.tb.tb_next.tb_next.tb_frame.f_locals
        del caught


def test_the_information_of_an_error_comes_without_what_its_frames_held():
    try:
        fail(ValueError("here"))
    except ValueError:
        kind, value, trace = get_ref_free_exc_info()
    gc.collect()
    assert kind is ValueError
    assert value.args == ("here",)
    assert traceback.extract_tb(trace)[-1].name == "fail"
    assert fail.watched() is None
    assert get_ref_free_exc_info() == (None, None, None)


def test_variables_go_also_after_somebody_read_them():
    try:
        fail(ValueError())
    except ValueError as error:
        kept = error
        for frame, _ in traceback.walk_tb(error.__traceback__):
            dict(frame.f_locals)
    clear_frames(kept)
    gc.collect()
    assert fail.watched() is None


def test_a_cycle_of_contexts_ends():
    first, second = ValueError(), KeyError()
    first.__context__, second.__context__ = second, first
    clear_frames(first)


def test_the_last_error_of_a_shell_is_forgotten_whole(shell):
    run(shell, FAIL + "fail(ValueError(Big()))")
    assert alive(shell)
    assert forget_last_error(shell)
    gc.collect()
    assert not alive(shell)
    assert not forget_last_error(shell)
    assert run(shell, "%tb").error_in_exec is None
