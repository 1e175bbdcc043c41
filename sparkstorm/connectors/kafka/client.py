"""Client of Kafka that KafkaSource and KafkaSink share: address, credentials, and the errors that
last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.connectors.patience import Secret

CALL_SECS = 10.0
_SECRETS = frozenset(
    {"sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"}
)
# set for every client, and why a user's value is left out
_OWN = {
    "bootstrap.servers": "the address is the argument servers",
    "metadata.broker.list": "the address is the argument servers",
    "group.id": "no group is joined, and its name belongs to the task",
    "auto.offset.reset": "the arguments start and lost say where to begin",
    "enable.auto.commit": "positions are in the commit of the worker",
    "enable.partition.eof": "ends of partitions are followed in any case",
    "transactional.id": "its name belongs to the task",
    "error_cb": "errors are counted and reported in any case",
}


class KafkaClient:
    """Address and credentials of a Kafka; secrets are read where it is used."""

    def __init__(
        self, what: str, servers: str, options: Mapping[str, Any] | None, secret: Secret
    ) -> None:
        if not isinstance(servers, str):
            raise InvalidConfigError(f"{what}: servers is {show(servers)}; write 'host:port'")
        if not isinstance(options, Mapping | None):
            raise InvalidConfigError(
                f"{what}: options is {show(options)}; write librdkafka's options by name"
            )
        self._options = dict(options or {})
        self._secret = secret
        if held := sorted(_SECRETS & self._options.keys()):
            raise InvalidConfigError(
                f"{what}: options holds the secret {held[0]}; name its place with password_file or password_env"
            )
        if ours := sorted(_OWN.keys() & self._options.keys()):
            raise InvalidConfigError(
                f"{what}: options holds {ours[0]}, which would have no effect: {_OWN[ours[0]]}; drop it"
            )
        self._what = what
        self.servers = servers
        self.problem: Any = None  # the last error that belongs to no record

    def consumer(self, group: str, reset: str) -> Any:
        """Return a consumer that commits nothing."""
        from confluent_kafka import Consumer

        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "enable.partition.eof": True,
        }
        return self._made(Consumer, own)

    def producer(self, name: str, batch: int) -> Any:
        """Return a producer of transactions under a name, with at most `batch` records in a
        batch (0: as many as librdkafka likes).
        """
        from confluent_kafka import Producer

        own = {"transactional.id": name}
        return self._made(Producer, {**own, **({"batch.num.messages": batch} if batch else {})})

    def _made(self, kind: Any, own: Mapping[str, Any]) -> Any:
        """Return a client; InvalidConfigError for an option that librdkafka does not have."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            return kind(self._conf(own))
        except KafkaException as error:
            if error.args[0].code() != KafkaError._INVALID_ARG:
                raise
            raise InvalidConfigError(
                f"{self._what} at {self.servers}: options: {error.args[0].str()}"
            ) from error

    def _conf(self, own: Mapping[str, Any]) -> dict[str, Any]:
        password = self._secret.read()
        secret = {} if password is None else {"sasl.password": password}
        # doubled up to 10 s; a first call waits for it even without an outage
        quick = {"log_level": 0, "reconnect.backoff.ms": 1, "linger.ms": 2}
        return {
            **quick,
            **self._options,
            **own,
            **secret,
            "bootstrap.servers": self.servers,
            "error_cb": self._note,
        }

    def _note(self, error: Any) -> None:
        if self.problem is None or not is_lasting(self.problem):
            self.problem = error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "problem": None}


def is_lasting(error: Any) -> bool:
    """Return whether another try will not resolve an error: a topic that is not there, credentials,
    a wrong option.
    """
    from confluent_kafka import KafkaError

    denied = (
        KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )  # fmt: skip
    return is_gone(error) or error.code() in (*denied, KafkaError._INVALID_ARG)


def is_gone(error: Any) -> bool:
    """Return whether there is no such topic: partitions go with it."""
    from confluent_kafka import KafkaError

    return error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )


def exception(error: Any) -> Exception:
    """Return an error of librdkafka as an exception."""
    from confluent_kafka import KafkaException

    problem: Exception = KafkaException(error)
    return problem


def topic_name(name: str, what: str) -> str:
    """Return the name of a topic; InvalidConfigError for one that Kafka refuses (Kafka's
    Topic.validate).
    """
    if not re.fullmatch(r"[\w.-]{1,249}", str(name), re.ASCII) or name in (None, ".", ".."):
        raise InvalidConfigError(
            f"{what}: {name!r:.80} is no name of a topic: up to 249 letters, digits, dots, '_' and '-'"
        )
    return name


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """Return the names of a source's topics, each once."""
    given = [topics] if isinstance(topics, str) else topics
    if not isinstance(given, Sequence):
        raise InvalidConfigError(f"KafkaSource: topics is {show(topics)}; write a name, or a list")
    names = [topic_name(topic, "KafkaSource") for topic in given]
    if not names:
        raise InvalidConfigError("KafkaSource: name a topic, at least one")
    return list(dict.fromkeys(names))
