"""Between hosts: what cannot be there says so at once."""

import pytest

import pliant


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (pliant.between_hosts(pliant.allreduce()), "inner has a BetweenHosts already, but there are two levels only"),
        (pliant.between_hosts(pliant.local_sgd(4)), "two levels only: hosts, and the network between them"),
        (
            pliant.sharded_optimizer(),
            "inner must not have owners, since they hold parts of the optimizer for all ranks",
        ),
    ],
)
def test_two_levels_and_no_owners(algorithm, sentence):
    with pytest.raises(ValueError, match=sentence):
        pliant.between_hosts(algorithm)
