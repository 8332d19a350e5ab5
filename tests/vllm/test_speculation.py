"""Gemma 3 over HTTP with speculation by n-grams, every step compiled before it is needed."""

import forms
import pytest
from step_program import promises


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory):
    return forms.served("gemma3 ngram", checkpoint, tmp_path_factory.mktemp("server"), ahead=True)


def test_200_requests_at_once(served):
    assert served.faults == {}


def test_steps_that_only_verify_drafts_promise_it(served):
    """They have up to 16 * 4 tokens; and none was compiled later."""
    assert promises(served.programs) == [(16, 0), (32, 0), (32, 4), (64, 0), (64, 4)]
