"""Signed records: what is read many times is verified once, and what is kept for that has a bound."""

from torch.distributed import HashStore

from pliant.comm.signed_records import _MOST_KEPT, Records, Seal
from pliant.spec import Host


class CountingSeal(Seal):
    verified = 0

    def body(self, place, raw):
        self.verified += 1
        return super().body(place, raw)


def test_a_record_is_verified_once_however_often_it_is_read():
    board, seal = HashStore(), CountingSeal(b"secret")
    writer, reader = Records(board, Seal(b"secret")), Records(board, seal)
    hosts = {f"host {k}": Host(name=f"host {k}") for k in range(5)}
    for key, host in hosts.items():
        writer.put(key, host)
    for _ in range(3):
        assert {key: reader.get(Host, key) for key in hosts} == hosts
    assert seal.verified == len(hosts)
    writer.put("host 0", Host(name="another"))
    assert reader.get(Host, "host 0") == Host(name="another")
    assert seal.verified == len(hosts) + 1


def test_no_more_than_a_number_of_records_is_kept():
    records = Records(HashStore(), Seal())
    for k in range(_MOST_KEPT + 10):
        records.put(str(k), Host(name=str(k)))
    assert 0 < len(records._read_before) <= _MOST_KEPT
