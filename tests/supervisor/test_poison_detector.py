"""The count of deaths per row: who is blamed, and when."""

import pytest

from sparkstorm.common.model.worker_messages import Beat, ExitCode, Passed, Trying
from sparkstorm.common.model.worker_spec import Suspect
from sparkstorm.control_plane.supervisor.poison_detector import MAX_SUSPECTS, PoisonDetector


def test_the_first_death_blames_no_row_but_asks_for_care() -> None:
    after = PoisonDetector().died(-11)
    assert after.careful and after.suspects() == ()


def test_a_first_kill_from_outside_asks_for_no_care_but_a_second_does() -> None:
    after = PoisonDetector().died(-9)
    assert not after.careful and after.suspects() == ()
    assert after.died(-9).careful


def test_a_careful_death_is_held_against_the_row_being_tried() -> None:
    suspicion = PoisonDetector().died(-11)
    for _ in range(3):
        suspicion = (
            suspicion.heard(Trying(3, "1-0", 4))
            .heard(Trying(3, "1-0", 5))
            .died(-11, end="killed by signal 11")
        )
    assert suspicion.suspects() == (Suspect(3, "1-0", 5, 3, "killed by signal 11"),)


def test_a_row_that_was_passed_is_forgotten_with_the_care() -> None:
    suspicion = PoisonDetector().died(7).heard(Trying(3, "1-0", 5)).heard(Passed())
    assert suspicion == PoisonDetector(unfound=1)


def test_a_beat_changes_nothing() -> None:
    trying = PoisonDetector().died(7).heard(Trying(3, "1-0", 5))
    assert trying.heard(Beat({})) == trying


@pytest.mark.parametrize(
    "code",
    [
        ExitCode.STOPPED,
        ExitCode.FENCED,
        ExitCode.STORE_LOST,
        ExitCode.FAILED_START,
        ExitCode.DAMAGED,
        ExitCode.MISTAKEN,
    ],
)
def test_an_end_with_a_cause_of_its_own_blames_nobody(code: ExitCode) -> None:
    assert PoisonDetector().died(code, has_said_why=True) == PoisonDetector()
    assert (
        PoisonDetector().died(7).heard(Trying(3, "1-0", 5)).died(code, has_said_why=True).suspects()
        == ()
    )
    assert PoisonDetector().died(7).heard(Trying(3, "1-0", 5)).died(code).suspects(), (
        "os._exit(0) of user code says nothing"
    )


def test_rows_are_counted_apart_and_the_oldest_are_forgotten() -> None:
    suspicion = PoisonDetector().died(7)
    for row in range(MAX_SUSPECTS + 2):
        suspicion = suspicion.heard(Trying(3, "1-0", row)).died(7)
    suspects = suspicion.suspects()
    assert len(suspects) == MAX_SUSPECTS
    assert suspects[0].row == 2
    assert {s.deaths for s in suspects} == {1}


def test_a_child_is_careful_for_longer_when_it_has_missed_the_row() -> None:
    detector = PoisonDetector().died(7)
    inputs = [detector.careful]
    for _ in range(3):
        detector = detector.heard(Passed()).died(7)
        inputs.append(detector.careful)
    assert inputs == [5_000, 20_000, 80_000, 80_000]
    found = detector.heard(Trying(1, "1-0", 4)).died(7).heard(Passed())
    assert found == PoisonDetector()
