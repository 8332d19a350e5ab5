"""The JAX call adds at most 5 us to an empty jitted call of the same arguments (median, CPU).

On a slow machine, whose empty call takes more than 7 us, in proportion: both are Python's and XLA's
code, and a machine that is slow for one is for the other.
"""

import pathlib
import sys

import jax
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

LIMIT_US, LIMIT_OF_EMPTY = 5.0, 0.7  # of today's code 0.5 to 0.66, also beside four busy loops


def beyond_limits(measured):
    """Of the calls that add too much, all figures."""
    said = []
    for call, base in (("paged_attention", "empty"), ("simple_add", "empty, two arguments")):
        adds, empty = measured[f"{call} adds at least"], measured[base]
        limit = max(LIMIT_US, LIMIT_OF_EMPTY * empty)
        if adds > limit:
            said.append(f"{call} adds {adds:.1f} us to {empty:.1f} of {base}; allowed {limit:.1f}")
    return said


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="measured on the CPU")
def test_a_jitted_call_adds_at_most_five_microseconds():
    from overhead import measure

    # Other processes only ever add: the best of a few measurements tells, each the fastest of
    # rounds that are shorter than a time slice.
    for _ in range(5):
        measured = measure(rounds=40, repeats=25)
        said = beyond_limits(measured)
        if not said:
            break
    print({name: round(us, 2) for name, us in measured.items()})
    assert not said


def test_limits_grow_with_the_empty_call():
    def figures(empty, attention, add):
        calls = {"paged_attention": attention, "simple_add": add}
        adds = {f"{name} adds at least": us for name, us in calls.items()}
        return {"empty": empty, "empty, two arguments": empty, **adds}

    assert not beyond_limits(figures(5.4, 4.5, 0.7))
    assert not beyond_limits(figures(31.0, 15.9, 6.2))  # a busy machine of CI
    assert len(beyond_limits(figures(5.4, 9.0, 0.7))) == 1
    assert len(beyond_limits(figures(31.0, 31.8, 6.2))) == 1
    assert len(beyond_limits(figures(5.4, 9.0, 7.0))) == 2
