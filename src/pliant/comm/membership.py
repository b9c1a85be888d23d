"""Membership: ranks that have lost each other agree, over a key-value store, on one list of members per epoch.

No torch and no clock in here, so that a test can be every rank's scheduler.
"""

from collections.abc import Sequence

from pliant.comm.epoch_messages import EpochMessages
from pliant.comm.heartbeats import Heartbeats
from pliant.comm.membership_errors import MembershipError, incomplete_start_error, too_few_ranks_error
from pliant.comm.records import Decision, Epoch, Here, Life, MemberRecord, Over, Text
from pliant.comm.signed_records import KeyValueStore, Records, Seal, digest_of

__all__ = ["Epoch", "KeyValueStore", "MemberRecord", "MembershipError", "MembershipProtocol"]


class MembershipProtocol:
    """One rank's side of agreeing on members. `poll` does one round and waits for nobody.

    Epoch e + 1 begins when any rank ends epoch e: because a communication failed, because it wants to join, or because
    it leaves. Each rank then announces itself. A rank that sees that all members of epoch e have announced themselves,
    are gone or have been silent for long, or whose own time is up, writes the list of those that have. The first to
    write decides, by one compare-and-set, and all read that list. A rank that is not on it ends that epoch, to join the
    next. Epoch 0 waits for all ranks of the world.

    Only records that are signed for their own key are accepted. Against repetition of old records, each names something
    new: lives are random, a heartbeat has a higher count than the one before, and all records of an epoch name the
    digest of the decision that it follows.

    Args:
        kv_store: The store, under a prefix of this run.
        rank: This rank's number in the world.
        size: Ranks of the world that begin together.
        seal: Signs and verifies; without a secret, anybody can.
        min_ranks: Fewest ranks that continue.
        regroup_s: Seconds to wait for members that are alive but do not arrive.
        exchange_s: Seconds that a failing exchange may take: a leaving rank waits so much longer, since members inside
            one could not be met later.
        start_s: Seconds to wait for all at the beginning.
        silent_s: Seconds without a heartbeat after which a rank is lost.
        started: A number that grows from one start of a rank to the next, such as the time.

    """

    def __init__(
        self,
        kv_store: KeyValueStore,
        *,
        rank: int,
        size: int,
        seal: Seal | None = None,
        min_ranks: int = 1,
        regroup_s: float = 30.0,
        exchange_s: float = 0.0,
        start_s: float = 300.0,
        silent_s: float = 5.0,
        started: int = 0,
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is none of a world of {size}; its ranks are 0 to {size - 1}.")
        self.records = Records(kv_store, seal or Seal())
        self._size, self._min_ranks = size, min_ranks
        self._regroup_s, self._exchange_s, self._start_s = regroup_s, exchange_s, start_s
        self.rank = rank
        self.lives = Heartbeats(self.records, rank, silent_s=silent_s, started=started)
        self.number = -1
        """Epoch of this rank, or the one that it is to join."""
        self._after = ""
        """Id of the epoch before that one."""
        self._in = Epoch(number=-1, members=())
        """The last epoch that this rank was a member of."""
        self._before: tuple[MemberRecord, ...] = ()
        """Members of the epoch before `number`."""
        self._mine: MemberRecord | None = None
        self._deadline_s = 0.0
        self.heartbeat()

    def heartbeat(self, records: Records | None = None) -> None:
        """Send a heartbeat, through another connection if another thread does."""
        self.lives.heartbeat(records or self.records, self._in)

    def agree_on(self, fingerprint: str) -> str:
        """Return the fingerprint of the first rank that has set one."""
        found = self.records.first(Text, "fingerprint", Text(text=fingerprint))
        if found is None:
            raise MembershipError(f"rank {self.rank}: a stranger writes into the store of this elastic run; end it.")
        return found.text

    def is_over(self, records: Records | None = None) -> bool:
        """Say whether the epoch of this rank has been ended by a rank."""
        epoch, key = self._in, f"over {self._in.number}"
        said = (records or self.records).get(Over, key)
        return said is not None and self.records.fits(key, (said.epoch, said.id) == (epoch.number, epoch.id))

    def leave(self) -> None:
        """Tell the others not to wait for this rank, now or ever."""
        self.lives.end()
        self.heartbeat()

    def finalize(self) -> None:
        """Record for ranks that come too late that the run has ended."""
        self.records.put("concluded", Text(text=self._in.id))

    @property
    def words(self) -> EpochMessages:
        """Messages that the members of this rank's epoch send each other."""
        return EpochMessages(self.records, self._in, self.lives.own.life)

    def has_lost(self, member: MemberRecord, now_s: float) -> bool:
        """Say whether a member of this rank's epoch has left, was started again, or sends no heartbeat."""
        life = self.lives.own if member.rank == self.rank else self.lives.of(member.rank)
        return life is None or life.life != member.life or self.lives.is_lost(life, now_s)

    def announce(self, *, step: int, sound: bool, closing: bool, now_s: float) -> None:
        """Call the latest epoch over, and ask to be in the next.

        Raises:
            MembershipError: This rank brings no state, and the run has ended.

        """
        if not sound and self.records.get(Text, "concluded") is not None:
            raise MembershipError(f"rank {self.rank} has come too late: the elastic run has ended.")
        self._mine = MemberRecord(life=self.lives.own.life, rank=self.rank, step=step, sound=sound, closing=closing)
        self.lives.look_anew()
        if self._in.number >= 0 and self._in.number == self.number:
            self._call_over(self._in)
        self._set_out(now_s)

    def poll(self, now_s: float) -> Epoch | None:
        """Return the epoch that this rank is a member of, if it is decided.

        Raises:
            MembershipError: Too few ranks are left, not all have come to the start, and the time is up, or a later
                process has the place of this one.

        """
        epoch = self._decided()
        if epoch is None and self._in.number < 0 and self._is_misled() and (epoch := self._decided()) is None:
            self._set_out(now_s)  # the second look: what was decided since the first is where the others are
            return None
        if epoch is None:
            self._repeat()
            candidates, awaited = self._roll(now_s)
            late = now_s >= self._deadline_s
            enough = len(candidates) >= self._min_ranks or (bool(candidates) and all(m.closing for m in candidates))
            if self.number == 0:
                enough = not awaited
            if late and not enough:
                self._give_up([m.rank for m in candidates], awaited)
            if enough and (late or not awaited):
                epoch = self._decide(sorted(candidates, key=lambda m: (not m.sound, m.rank)))
        if epoch is None:
            return None
        if any(member.life == self.lives.own.life for member in epoch.members):
            self._in = epoch
            self.heartbeat()  # so that who comes knows that it is decided, whatever stands there
            return epoch
        self._call_over(epoch)  # decided without this rank: ask for the next
        self._ask(now_s)
        return None

    def _set_out(self, now_s: float) -> None:
        """Call over whatever is decided, and ask to be in what is not."""
        if self._in.number < 0:
            self._find_latest()
        while (epoch := self._decided()) is not None:
            self._call_over(epoch)
        self._ask(now_s)

    def _is_misled(self) -> bool:
        """Say whether a rank that lives is where this one, which has come, does not head for."""
        return any(
            life.epoch >= self.number or (life.epoch == self.number - 1 and life.id != self._after)
            for life in map(self.lives.of, sorted(self.lives.fresh))
            if life is not None and not life.gone
        )

    def _find_latest(self) -> None:
        """Set out from the latest epoch that any rank says it is in."""
        self.number = 0
        found = [life for life in map(self.lives.of, range(self._size)) if life is not None and life.epoch >= 0]
        lives = [life for life in found if life.rank in self.lives.fresh] or found
        self._after, self._before = "", ()
        if lives:
            latest = max(lives, key=lambda life: life.epoch)
            self._call_over(Epoch(number=latest.epoch, members=(), id=latest.id))

    def _decided(self) -> Epoch | None:
        """Return the epoch that this rank heads for, if it is decided."""
        found = self.records.get(Decision, f"members {self.number}")
        if found is None or not self.records.fits(f"members {self.number}", self._follows(found)):
            return None
        return Epoch(number=found.epoch, members=found.members, id=digest_of(found))

    def _follows(self, decision: Decision) -> bool:
        return decision.epoch == self.number and (decision.after == self._after or not self._after)

    def _decide(self, members: Sequence[MemberRecord]) -> Epoch | None:
        """Write the list of members, unless one is there; return which it is."""
        own = Decision(epoch=self.number, after=self._after, rank=self.rank, members=tuple(members))
        found = self.records.first(Decision, f"members {self.number}", own, self._follows)
        return None if found is None else Epoch(number=found.epoch, members=found.members, id=digest_of(found))

    def _ask(self, now_s: float) -> None:
        self._repeat()
        leaves_s = self._exchange_s if self._mine is not None and self._mine.closing else 0.0
        self._deadline_s = now_s + (self._regroup_s + leaves_s if self.number else self._start_s)

    def _repeat(self) -> None:
        """Say that this rank is here, unless that stands there."""
        if self._mine is not None:
            key = f"here {self.number} {self.lives.own.life}"
            said = Here(epoch=self.number, after=self._after, member=self._mine)
            if self.records.get(Here, key) != said:
                self.records.put(key, said)

    def _call_over(self, epoch: Epoch) -> None:
        self.records.put(f"over {epoch.number}", Over(epoch=epoch.number, id=epoch.id, rank=self.rank))
        self.number, self._after, self._before = epoch.number + 1, epoch.id, epoch.members

    def _roll(self, now_s: float) -> tuple[list[MemberRecord], list[int]]:
        """Return the ranks that have announced themselves and are alive, and those still awaited."""
        lives = [life for life in map(self.lives.of, range(self._size)) if life is not None]
        if self.lives.replaced:
            raise MembershipError(f"rank {self.rank} was started again, and the later process has its place.")
        alive = [life for life in lives if not self.lives.is_lost(life, now_s)]
        candidates = [member for member in map(self._member_of, alive) if member is not None]
        here = {member.life for member in candidates}
        if self.number == 0:
            return candidates, sorted(set(range(self._size)) - {m.rank for m in candidates})
        # Who was in no epoch yet takes nobody's word for who was in the last one: it waits for all that live.
        # Who was closing there is waited for as well: it has left if that came to be, and else it comes again.
        before = {m.life for m in self._before}
        missing = (life for life in alive if life.life not in here and (life.life in before or self._in.number < 0))
        return candidates, sorted(life.rank for life in missing)

    def _member_of(self, life: Life) -> MemberRecord | None:
        key = f"here {self.number} {life.life}"
        said = self.records.get(Here, key)
        if said is None:
            return None
        whose = (said.epoch, said.member.life, said.member.rank) == (self.number, life.life, life.rank)
        return said.member if self.records.fits(key, whose and said.after == self._after) else None

    def _give_up(self, here: Sequence[int], awaited: Sequence[int]) -> None:
        if self.number > 0:
            raise too_few_ranks_error(self.rank, here, self._min_ranks, self._regroup_s, self.records.refused)
        lives = [life for rank in awaited if (life := self.lives.of(rank)) and self._member_of(life)]
        came = {life.rank: life.gone for life in lives}
        raise incomplete_start_error(self.rank, self._size, here, awaited, came, self._start_s, self.records.refused)
