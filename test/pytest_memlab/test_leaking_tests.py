"""``gpu_leaks``: what stays in use after a test, and what does not count."""

from __future__ import annotations

from inner_runs import section

pytest_plugins = "pytester"

LEAKS = """
kept = []

def fill(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda")

@pytest.fixture
def own():
    return torch.nn.Linear(1024, 1024).cuda()

@pytest.fixture(scope="session")
def of_session():
    return fill(7)

@pytest.mark.gpu_leaks("1 MiB")
def test_leak():
    kept.append(fill(2))
    kept.append(fill(1))

@pytest.mark.gpu_leaks("1 MiB")
def test_within():
    kept.append(fill(1))

@pytest.mark.gpu_leaks(0)
def test_none(own, of_session):
    class Circle:
        pass
    circle = Circle()
    circle.own, circle.data = circle, fill(3)
    own(torch.ones(8, 1024, device="cuda")).sum().backward()

@pytest.mark.gpu_leaks(0)
def test_that_fails():
    kept.append(fill(1))
    assert False

def fill_later():
    return fill(5)

@pytest.fixture
def leaky():
    yield
    kept.append(fill_later())

@pytest.mark.gpu_leaks("1 MiB")
def test_teardown(leaky):
    pass
"""

FOUND = """\
GPU memory leak of 3.0 MiB in 2 blocks on cuda:0, more than 1.0 MiB: it stays in
  use when the test and its fixtures are over

held by these lines:
     3.0 MiB  100.0%  test_it.py:6  fill
                        return torch.empty(size << 20, dtype=torch.uint8, devic…
as: 3.0 MiB inputs and other tensors
"""


def test_leaks(run):
    result = run(LEAKS)

    result.assert_outcomes(passed=4, failed=1, errors=2)
    text = result.stdout.str()
    assert section(text, "ERROR at teardown of test_leak") == FOUND
    assert section(text, "ERROR at teardown of test_teardown").startswith(
        "GPU memory leak of 5.0 MiB in 1 block on cuda:0"
    )
