"""All errors: one base class, one sentence each, raised where the fault is known and not re-worded
by callers.
"""


def reason_of(error: Exception) -> str:
    """Return why a file cannot be used, without the number and the path that Python adds: the
    sentence around it names the file.
    """
    return (isinstance(error, OSError) and error.strerror) or str(error)


def show(value: object, most: int = 60) -> str:
    """A value for an error's text, cut to `most` characters; never raises, however long or deep the
    value is.
    """
    try:
        text = repr(value[:most] if isinstance(value, (str, bytes)) else value)
    except (ValueError, RecursionError):
        # an integer of more than 4,300 digits, nesting beyond the stack
        text = f"{type(value).__name__} too large to show"
    cut = len(text) > most or (isinstance(value, (str, bytes)) and len(value) > most)
    return f"{text[: most - 3]}..." if cut else text


class SparkStormError(Exception):
    """Root of SparkStorm's own errors; the text is written for the user."""


class InvalidTopologyError(SparkStormError):
    """A topology breaks a rule; the text names the faulty part and the remedy."""


class InvalidConfigError(SparkStormError):
    """A configuration file, key or value is not acceptable; names the file and the key."""


class CodecError(SparkStormError):
    """A value is outside the closed set that frames and state carry."""


class MalformedFrameError(SparkStormError):
    """Bytes read from outside are not a frame of ours; the frame is quarantined, never executed."""


class AlreadyAliveError(SparkStormError):
    """A topology of that name runs already."""


class NotAliveError(SparkStormError):
    """No topology of that name runs."""


class IllegalTransitionError(SparkStormError):
    """A life-cycle action does not apply to a topology in its present status."""


class FailedAssignTopologyError(SparkStormError):
    """No assignment could be made; says what was missing, with numbers."""


class StoreUnavailableError(SparkStormError):
    """Redis or ZooKeeper cannot be reached or refuses us; names the address and the reason."""


class OneStoreAwayError(SparkStormError):
    """One of several Redis servers does not answer; what does not need it goes on, and the rest is
    tried again.
    """


class ReadOnlyConnectionError(SparkStormError):
    """A change was asked for over a connection that may only read; names the file that may do
    more.
    """


class NimbusUnavailableError(StoreUnavailableError):
    """No Nimbus served a request in time; it was withdrawn and is never carried out."""


class RootInUseError(SparkStormError):
    """Another driver holds the ZooKeeper root; names the root, the driver's host and process, and
    the remedy.
    """


class StoreInconsistentError(SparkStormError):
    """A key holds a value that we never write; the topology is stopped and not run on a guess."""


class StateConflictError(SparkStormError):
    """Another writer changed, made or removed a record of the state store first; read it again and
    decide anew.
    """


class FencedError(SparkStormError):
    """Another owner holds the task now; this process must end, its memory is dirty."""


class StoreRolledBackError(SparkStormError):
    """The store is behind this owner's memory (lost tail, fail-over); every worker must reload from
    the store.
    """


class StoreLostError(StoreInconsistentError):
    """The store has lost more than its tail; says what, since when, and how to go on. `loss` is the
    first of these alone.
    """

    def __init__(self, text: str, loss: str = "") -> None:
        super().__init__(text)
        self.loss = loss


class StoreFullError(SparkStormError):
    """Redis has reached its memory limit; nothing of the refused commit was applied."""


class TamperedBlobError(SparkStormError):
    """A blob or record does not carry this cluster's signature; it was not opened."""


class EmbeddedServerError(SparkStormError):
    """An embedded server could not be found, started or stopped; says what to install or free."""


class SlotsUnavailableError(SparkStormError):
    """Spark offers fewer cores than the slots that were asked for; says how many are needed."""


class WorkerFailedError(SparkStormError):
    """A worker cannot run (import, prepare or open keeps failing); carries the last lines of its
    log.
    """


class TopologyPausedError(SparkStormError):
    """Most inputs of a component fail, so its topology was paused; names the component, the last
    error and what goes on.
    """


class ReplayFailedError(SparkStormError):
    """A batch replay cannot go on; names the component, the task and the record, or the input and
    its column.
    """


class CheckpointError(SparkStormError):
    """A checkpoint is damaged, or does not fit the topology that is to begin from it; names the
    file and the field.
    """


class RecordingError(SparkStormError):
    """A recording of a bolt's input cannot be read; names the file and the field."""
