"""The reading side's table: what may follow what, and that a lost connection is proven before
anything is read.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import Entry
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.reading import NEXT, ReadPhase, StreamEvent, StreamRead
from sparkstorm.extensions.embedded import RedisServer
from tests.system.proxy import TcpProxy
from tests.waiting import wait_until

asking_phases = {phase for phase, event in NEXT if event is StreamEvent.ASK}


def test_a_question_is_opened_only_where_none_is_open_and_no_answer_waits() -> None:
    assert asking_phases == {ReadPhase.FREE, ReadPhase.LOOKED}


def test_only_proof_leads_out_of_a_lost_connection() -> None:
    out = {
        event
        for (phase, event), then in NEXT.items()
        if phase is ReadPhase.LOST and then is not ReadPhase.LOST
    }
    assert out == {StreamEvent.PROVE}


def test_every_phase_may_lose_its_connection_and_every_phase_is_reached() -> None:
    assert {phase for phase, event in NEXT if event is StreamEvent.CUT} == set(ReadPhase)
    assert set(NEXT.values()) == set(ReadPhase)


@given(st.lists(st.integers(min_value=0), max_size=30))
def test_from_any_history_a_poll_and_a_proof_lead_back_to_a_phase_that_may_ask(
    choices: list[int],
) -> None:
    phase = ReadPhase.FREE
    for choice in choices:
        events = [event for at, event in NEXT if at is phase]
        phase = NEXT[phase, events[choice % len(events)]]
    for event in (StreamEvent.PROVE, StreamEvent.ANSWER, StreamEvent.TAKE):
        phase = NEXT.get((phase, event), phase)
    assert phase in asking_phases


def test_a_lost_connection_reads_nothing_until_the_store_was_asked(
    redis_server: RedisServer,
) -> None:
    proxy = TcpProxy(redis_server.host, redis_server.port)
    keys = Keys("reading-1")
    link = Link(RedisAddress(proxy.host, proxy.port, redis_server.password), 60)
    reading = StreamRead(link, keys)
    try:
        link.ask(("PING",))
        reading.forget([1])
        assert reading.poll({1: "0-0"}, 8) == []
        assert reading.phase is ReadPhase.ASKED
        proxy.cut_all()
        wait_until(
            lambda: reading.wait(100, ()) and not reading.poll({1: "0-0"}, 8) and reading.was_lost,
            "the loss is seen",
        )
        redis_server.client().xadd(keys.stream(1), {"f": b"row"})
        reading.wanted = ({1: "0-0"}, 8)
        assert reading.request() == ()
        assert reading.poll({1: "0-0"}, 8) == []
        # as a worker does that asks whether the store is behind
        link.ask(("PING",))
        reading.note_proven()
        found: list[Entry] = []

        def has_read() -> bool:
            found.extend(reading.poll({1: "0-0"}, 8))
            return bool(found)

        wait_until(has_read, "the row is read")
        assert [entry.data for entry in found] == [b"row"]
    finally:
        reading.drop()
        link.close()
        proxy.close()
