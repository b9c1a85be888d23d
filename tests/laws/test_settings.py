"""What the settings of every codec and algorithm must obey."""

from dataclasses import FrozenInstanceError, fields

import pytest

from tables import ALGORITHMS, BETWEEN_STEPS, CODECS

ROWS = [(str(codec), codec) for codec in CODECS] + [*ALGORITHMS.items(), *BETWEEN_STEPS.items()]


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_settings_are_given_by_name_and_stay(row):
    settings = {field.name: getattr(row, field.name) for field in fields(row)}
    assert type(row)(**settings) == row
    for setting, value in settings.items():
        with pytest.raises(TypeError, match="positional argument"):
            type(row)(value)
        with pytest.raises(FrozenInstanceError):
            setattr(row, setting, value)
