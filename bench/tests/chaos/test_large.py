"""The training of one large parameter, small."""

import pytest

pytestmark = pytest.mark.processes


def test_a_parameter_of_known_gradients_ends_where_it_must(monkeypatch):
    from chaos import large

    line = large.large_trial(0, ranks=2, rows=3)
    assert line["outcome"] == "went on right", line
