"""Data shows itself, and knows nothing that composes text."""

import re
from pathlib import Path

from support.python_process import run_python

import pytorch_memlab
from pytorch_memlab._common.text.displayed import Displayed

PACKAGE = Path(pytorch_memlab.__file__).parent


def every_class(base: type) -> set[type]:
    return {one for each in base.__subclasses__() for one in (each, *every_class(each))}


def test_whatever_displays_itself_is_registered() -> None:
    from pytorch_memlab._common.text import displayed
    from pytorch_memlab.render import displays

    for register in displays.REGISTER:
        register()
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"^class (\w+)\(Displayed\b", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named == {one.__name__ for one in displayed._displays}
    assert every_class(Displayed) >= set(displayed._displays)


def test_what_composes_text_is_loaded_when_the_first_object_is_shown() -> None:
    program = (
        "import sys\n"
        "from pytorch_memlab.history.holders import PeakHolders\n"
        "from pytorch_memlab.history.peak import Peak\n"
        "found = PeakHolders(Peak(0, 0, 512, -1, 2, ()), [])\n"
        "print('pytorch_memlab.render' in sys.modules)\n"
        "print(found)\n"
        "print('pytorch_memlab.render.peak' in sys.modules)\n"
    )
    done = run_python(["-c", program], imports_package=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "False",
        "cuda:0: 0 B in use at the peak, 512 B reserved (before the first event of 2)",
        "True",
    ]
