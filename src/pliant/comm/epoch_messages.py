"""Words of an epoch's members: what the first of them hands to those that come, and who has met the others."""

from dataclasses import dataclass

from pliant.comm.records import Epoch, EpochState, Here, MemberRecord, Text
from pliant.comm.signed_records import Records

__all__ = ["EpochMessages"]


@dataclass(frozen=True)
class EpochMessages:
    """Signed words of one epoch, each with the id of that epoch, so that none of another is taken for one of it."""

    records: Records
    epoch: Epoch
    life: str
    """Which member speaks."""

    def vouch(self, part: str, digest: str) -> None:
        """Say what the first member of this epoch hands to those that come."""
        said = EpochState(epoch=self.epoch.number, id=self.epoch.id, rank=self._first, part=part, digest=digest)
        self.records.put(f"state {self.epoch.number} {part}", said)

    def vouched(self, part: str) -> str | None:
        """Return what the first member has vouched for, or None as long as it has not."""
        key = f"state {self.epoch.number} {part}"
        said = self.records.get(EpochState, key)
        if said is None:
            return None
        if (said.epoch, said.id, said.rank, said.part) != (self.epoch.number, self.epoch.id, self._first, part):
            self.records.refuse(key, "it was said of another epoch, of another part, or by another rank")
            return None
        return said.digest

    def note_met(self) -> None:
        """Say that this member has met the others: that it has all that they were to have alike."""
        self.records.put(f"met {self.epoch.number} {self.life}", Text(text=self.epoch.id))

    def not_met(self) -> list[MemberRecord]:
        """Return the members that have not met the others, as far as they have said."""
        said = {m.life: self.records.get(Text, f"met {self.epoch.number} {m.life}") for m in self.epoch.members}
        return [m for m in self.epoch.members if (word := said[m.life]) is None or word.text != self.epoch.id]

    def asks_again(self, member: MemberRecord) -> bool:
        """Say whether a member asks to be in the epoch after this one."""
        asked = self.records.get(Here, f"here {self.epoch.number + 1} {member.life}")
        return asked is not None and asked.after == self.epoch.id

    @property
    def _first(self) -> int:
        return self.epoch.members[0].rank
