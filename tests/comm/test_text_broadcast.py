"""Texts on every rank."""

import pytest

from pliant.comm import broadcast_text, run_world


@pytest.mark.parametrize(
    ("text", "source"),
    [("", 0), ("plan", 0), ("höher als 1 €", 2), ("a" * 2039 + "ö€", 1), ("1234" * 510, 0), ("long €" * 2000, 2)],
)
def test_all_ranks_get_the_text_of_one(text, source):
    def body(place):
        return broadcast_text(text if place.rank == source else "another", place.comm, source)

    assert run_world(3, body, timeout_s=20) == [text] * 3
