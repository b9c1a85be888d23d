"""When the delay relay lets packets go, and which it loses: its C header, loaded as a library."""

import ctypes
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

HEADER = Path(__file__).parents[2] / "src" / "pliant" / "network" / "delay_line.h"
SOURCE = f"""
#include "{HEADER}"
int64_t due(delay_line_t *line, int64_t now_ns) {{ return due_ns(line, now_ns); }}
int lost(delay_line_t *line) {{ return is_lost(line); }}
"""


class Line(ctypes.Structure):
    """A `delay_line_t`."""

    _fields_ = (
        ("delay_ns", ctypes.c_int64),
        ("jitter_ns", ctypes.c_int64),
        ("loss", ctypes.c_double),
        ("random", ctypes.c_uint64),
        ("last_ns", ctypes.c_int64),
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to load the header with")
    folder = tmp_path_factory.mktemp("delay_line")
    (folder / "line.c").write_text(SOURCE)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(folder / "line.so"), str(folder / "line.c")], check=True)
    loaded = ctypes.CDLL(str(folder / "line.so"))
    loaded.due.restype = ctypes.c_int64
    loaded.due.argtypes = (ctypes.POINTER(Line), ctypes.c_int64)
    loaded.lost.argtypes = (ctypes.POINTER(Line),)
    return loaded


TIMES = st.integers(0, 10**9)


@given(gaps=st.lists(TIMES, min_size=1, max_size=50), delay=TIMES, jitter=TIMES, seed=st.integers(1, 2**64 - 1))
def test_packets_keep_their_order_and_wait_at_least_the_delay(library, gaps, delay, jitter, seed):
    line = Line(delay_ns=delay, jitter_ns=jitter, random=seed)
    arrivals = np.cumsum(gaps)
    leaves = [library.due(ctypes.byref(line), int(now)) for now in arrivals]
    assert leaves == sorted(leaves)
    for k, (now, due) in enumerate(zip(arrivals, leaves, strict=True)):
        # Late by its own jitter, or held back by one that came earlier.
        assert now + delay <= due <= max(int(now) + delay + jitter, leaves[k - 1] if k else 0)


@given(before=TIMES, after=TIMES, gap=TIMES)
def test_a_shorter_delay_overtakes_nobody(library, before, after, gap):
    line = Line(delay_ns=before, random=1)
    first = library.due(ctypes.byref(line), 0)
    line.delay_ns = after
    assert library.due(ctypes.byref(line), gap) == max(first, gap + after)


def test_jitter_is_even_between_nothing_and_the_most(library):
    line, far = Line(delay_ns=5, jitter_ns=10**6, random=7), 10**9  # so far apart that none waits for another
    extra = np.array([library.due(ctypes.byref(line), k * far) - k * far - 5 for k in range(20_000)])
    assert extra.min() >= 0
    assert extra.max() < 10**6
    counts, _ = np.histogram(extra, bins=10, range=(0, 10**6))
    assert np.square(counts - 2000).sum() / 2000 < 50  # chi-squared: by chance 1 in 10 million


@pytest.mark.parametrize("loss", [0.0, 0.005, 0.2, 1.0])
def test_losses_have_their_share_and_are_independent(library, loss):
    line, num = Line(loss=loss, random=3), 100_000
    lost = np.array([library.lost(ctypes.byref(line)) for _ in range(num)])
    spread = 6 * np.sqrt(loss * (1 - loss) * num)
    assert abs(lost.sum() - loss * num) <= spread
    pairs = (lost[1:] & lost[:-1]).sum()
    assert abs(pairs - loss**2 * num) <= 6 * np.sqrt(loss**2 * num) + 1 if 0 < loss < 1 else pairs in (0, num - 1)


def test_two_lines_of_other_seeds_draw_otherwise(library):
    lines = [Line(loss=0.5, random=seed) for seed in (1, 2, 1)]
    drawn = [[library.lost(ctypes.byref(line)) for _ in range(200)] for line in lines]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    ("arguments", "text", "status", "words"),
    [
        (["1"], "", 0, ""),  # it ends with its input, as when who started it is gone
        (["1"], "0 50 0\n", 2, "no figures of a queue: 0 50 0"),
        (["1"], "256 50 0 0\n", 2, "no figures of a queue"),
        ([], "", 2, "usage"),
    ],
)
def test_the_relay_takes_figures_and_ends_with_its_input(arguments, text, status, words):
    found = find_spec("pliant.network._delay_relay")
    if found is None:
        pytest.skip("the relay was not built on this system")
    done = subprocess.run([found.origin, *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert words in done.stderr
