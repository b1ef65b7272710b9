"""The states of a change of a deployment, the moves between them, and what is remembered, known and done.

Nouns alone: `rollout` decides.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from forebay.engines.deployment import Deployment, Replica, ReplicaStatus
from forebay.engines.judging import Figures


class Phase(StrEnum):
    STEADY = "steady"  #: nothing is changed
    PREPARING = "preparing"  #: replicas for the next step get ready
    WATCHING = "watching"  #: the new revision has its share, and is judged
    REPLACING = "replacing"  #: it has been found good: it takes the place of the old one


class Turn(StrEnum):
    """What makes a change go on."""

    ASKED = "asked"  #: for another revision than the one that serves
    PREPARED = "prepared"  #: enough replicas are ready for the next step
    TRUSTED = "trusted"  #: likewise, and there is nothing to be judged
    PASSED = "passed"  #: the step, and another one follows
    PROVEN = "proven"  #: it passed the last step
    FAILED = "failed"
    WITHDRAWN = "withdrawn"  #: something else is asked for by now; in `replacing`, what is replaced
    DONE = "done"  #: the old revision's replicas are gone from service


P, T = Phase, Turn

#: Every move.  A pair that is missing can't happen: `_find_turn` does not say it in that phase.
MOVES: Final[Mapping[tuple[Phase, Turn], Phase]] = {
    (P.STEADY, T.ASKED): P.PREPARING,
    (P.PREPARING, T.PREPARED): P.WATCHING,
    (P.PREPARING, T.TRUSTED): P.REPLACING,
    (P.PREPARING, T.FAILED): P.STEADY,
    (P.PREPARING, T.WITHDRAWN): P.STEADY,
    (P.WATCHING, T.PASSED): P.PREPARING,
    (P.WATCHING, T.PROVEN): P.REPLACING,
    (P.WATCHING, T.FAILED): P.STEADY,
    (P.WATCHING, T.WITHDRAWN): P.STEADY,
    (P.REPLACING, T.DONE): P.STEADY,
    (P.REPLACING, T.FAILED): P.REPLACING,  #: the other way round
    (P.REPLACING, T.WITHDRAWN): P.REPLACING,  #: likewise
}


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one deployment from one decision to the next."""

    name: str
    serving: Deployment | None = None  #: has the requests; None: nothing of it was ever asked for
    candidate: Deployment | None = None  #: is to take its place
    phase: Phase = Phase.STEADY
    step: int = 0  #: of `list_shares`
    share: float = 0.0  #: of the candidate, in force
    is_trusted: bool = False  #: the candidate is not judged: it has served before, or nothing serves now
    began_s: float = 0.0  #: of the change
    since_s: float = 0.0  #: of the phase
    stopped: str = ""  #: the revision that failed: it is not tried again before something else was asked for
    reason: str = ""  #: of the last move, for people
    proven: tuple[str, ...] = ()  #: revisions that have served whole, the newest last
    leaving: Mapping[str, float] = {}  #: replicas that get no more requests, since when
    #: revisions found running when nothing was remembered: they serve until those asked for are ready
    found: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()  #: steps of the last change that passed with too few requests, for people


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one deployment now."""

    replicas: tuple[ReplicaStatus, ...] | None  #: all of it that runs; None: nobody could say
    free: frozenset[str] = frozenset()  #: replicas to which nobody sends any more, and that answer nobody
    figures: Mapping[
        str, Figures
    ] = {}  #: of the candidate since the phase began, and of what serves, by revision
    count: int = 1  #: replicas that are to serve
    now_s: float
    watched_since_s: float = 0.0  #: before that nobody looked: no step is passed by time that nobody saw


class Share(msgspec.Struct, frozen=True):
    """A replica that serves, and its weight; None: by load."""

    replica: ReplicaStatus
    weight: float | None = None


class Start(msgspec.Struct, frozen=True):
    replica: Replica


class Stop(msgspec.Struct, frozen=True):
    replica_id: str


class Told(msgspec.Struct, frozen=True):
    """A move, for the audit."""

    turn: Turn
    revision: str
    message: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    track: Track
    serving: tuple[Share, ...] | None  #: None: as before
    actions: tuple[Start | Stop, ...] = ()
    told: tuple[Told, ...] = ()
    waits: str = ""  #: what is waited for, and how long; for people
