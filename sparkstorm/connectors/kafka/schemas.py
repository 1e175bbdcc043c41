"""SchemaRegistry: values of Kafka's records by the schemas of a Confluent Schema Registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, SparkStormError, show
from sparkstorm.connectors.kafka.client import CALL_SECS
from sparkstorm.connectors.kafka.debezium import Debezium
from sparkstorm.connectors.kafka.formats import HEAD_BYTES, Format, make_format
from sparkstorm.connectors.kafka.typed import TypedFields
from sparkstorm.connectors.patience import Patience, Secret, without_password

_SECRETS = frozenset(
    {"basic.auth.user.info", "ssl.key.password", "bearer.auth.token", "bearer.auth.client.secret"}
)
_UNKNOWN = frozenset({40401, 40402, 40403})  # subject, version, schema
_AWAY = frozenset({408, 429})
_MOST_REFERENCES = 100
_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json": "JSON"}
SUBJECTS = ("topic", "record", "topic-record")


class SchemaRegistry:
    """Confluent Schema Registry, or one with its REST interface: schemas of a topic's values in
    Avro, Protobuf or JSON Schema.

    `options` are those of confluent's SchemaRegistryClient, without secrets (`ssl.ca.location`,
    `ssl.certificate.location`, `ssl.key.location`, `proxy`).
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        options: Mapping[str, Any] | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        if not isinstance(options, Mapping | None):
            raise InvalidConfigError(
                f"SchemaRegistry: options is {show(options)}; write the client's options by name"
            )
        self.url = without_password(url, "SchemaRegistry")
        self.where = f"Schema Registry at {self.url}"
        self._user = user
        self._options = dict(options or {})
        self._secret = Secret("SchemaRegistry", password_file, password_env)
        if not self.url.startswith(("http://", "https://")):
            raise InvalidConfigError(
                f"SchemaRegistry: {url!r:.80} begins with no http:// or https://"
            )
        if held := sorted(_SECRETS & self._options.keys()):
            raise InvalidConfigError(
                f"SchemaRegistry: options holds the secret {held[0]}; name its place with user and password_file or password_env"
            )
        if (user is None) != (password_file is None and password_env is None):
            raise InvalidConfigError(
                "SchemaRegistry: user and the place of its password go together"
            )

    def connect(self) -> Any:
        """Return a client; it has connected to nothing yet."""
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise InvalidConfigError(
                f"a library of the Schema Registry is not installed here ({error}): pip install 'sparkstorm[schemas]'"
            ) from error
        # the caller waits between tries, so that its worker goes on
        own = {"url": self.url, "max.retries": 0, "timeout": CALL_SECS}
        if self._user is not None:
            own["basic.auth.user.info"] = f"{self._user}:{self._secret.read()}"
        try:
            return SchemaRegistryClient({**self._options, **own})
        except (ValueError, TypeError, OSError) as error:
            raise InvalidConfigError(f"{self.where}: {error}") from error


class _UnfitError(Exception):
    """A schema cannot be used."""


class _Client:
    """Connection to a registry: schemas with those that they refer to."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._client: Any = None

    def ask(self, call: Callable[[Any], Any], what: str = "") -> Any:
        """Return what the registry answers; None if it does not know what is asked for. Raises
        InvalidConfigError for what another try will not change.
        """
        if self._client is None:
            self._client = self._registry.connect()
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return call(self._client)
        except SchemaRegistryError as error:
            if error.error_code in _UNKNOWN:
                return None
            if error.http_status_code < 500 and error.http_status_code not in _AWAY:
                raise InvalidConfigError(
                    f"{self._registry.where}{what}: {' '.join(str(error).split()):.300}"
                ) from error
            raise

    def format(self, schema: Any, reader_text: str | None = None) -> Format:
        """Return the format of a schema, whose references are fetched; _UnfitError for one that
        cannot be used.
        """
        named: dict[str, str] = {}
        self._refer(schema, named, ())
        try:
            return make_format(
                schema.schema_type, schema.schema_str or "", list(named.items()), reader_text
            )
        except ImportError as error:
            raise InvalidConfigError(
                f"a library of {schema.schema_type} is not installed here ({error}): pip install 'sparkstorm[schemas]'"
            ) from error
        except Exception as error:  # of a foreign schema, by four libraries
            raise _UnfitError(" ".join(str(error).split())[:200]) from error

    def _refer(self, schema: Any, named: dict[str, str], above: tuple[str, ...]) -> None:
        for ref in schema.references or ():
            if ref.name in named or ref.name in above:
                continue
            if len(named) + len(above) > _MOST_REFERENCES:
                raise _UnfitError(f"it refers to more than {_MOST_REFERENCES} schemas")
            form = "serialized" if schema.schema_type == "PROTOBUF" else None
            found = self.ask(methodcaller("get_version", ref.subject, ref.version, True, form))
            if found is None:
                raise _UnfitError(
                    f"it refers to version {ref.version} of {ref.subject}, which is not there"
                )
            self._refer(found.schema, named, (*above, ref.name))
            named[ref.name] = found.schema.schema_str or ""

    def of_id(self, number: int) -> Any:
        """Return a schema by its id; None for one that the registry does not know."""
        found = self.ask(lambda client: client.get_schema(number))
        if found is not None and found.schema_type == "PROTOBUF":
            # Protobuf's is asked for compiled; the client's cache knows an id, not a form
            self._client.clear_caches()
            return self.ask(lambda client: client.get_schema(number, None, "serialized"))
        return found


class RegistryReader:
    """Decoder of the values of a topic. `load` asks the registry for what is new in some values,
    once for each id; `parse` only computes.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        fields: Mapping[str, str],
        patience: Patience,
        reader_schema: str | None = None,
        changes: Debezium | None = None,
    ) -> None:
        self._registry = registry
        self._client = _Client(registry)
        self._fields = fields
        self._patience = patience
        self._reader_schema = reader_schema
        self._changes = changes
        self._parsers: dict[bytes, Callable[[bytes], tuple[Any, ...]]] = {}

    @property
    def is_resting(self) -> bool:
        """Return whether the registry is away, and not to be asked yet."""
        return self._patience.is_resting

    def load(self, values: Iterable[bytes | None]) -> bool:
        """Fetch the schemas that values name; False when the registry does not answer, and
        WorkerFailedError when that has lasted too long.

        An id that the registry does not know is asked for again with the next values that have it:
        its replicas learn of a new schema a little later.
        """
        heads = {value[:HEAD_BYTES] for value in values if value is not None}
        for head in heads - self._parsers.keys():
            if len(head) < HEAD_BYTES or head[0]:
                continue
            try:
                self._load(head, int.from_bytes(head[1:], "big"))
            except SparkStormError:
                raise
            except Exception as error:  # of the client's libraries
                self._patience.bear(error)
                return False
        self._patience.succeed()
        return True

    def _load(self, head: bytes, number: int) -> None:
        schema = self._client.of_id(number)
        if schema is None:
            return
        try:
            self._parsers[head] = self._parser(number, schema)
        except _UnfitError as error:
            self._parsers[head] = _refusing(f"schema {number} cannot be used: {error}")

    def parse(self, value: bytes) -> tuple[Any, ...]:
        """Return the values of a record; ValueError for any that is damaged, or not what the fields
        declare.
        """
        head = value[:HEAD_BYTES]
        parser = self._parsers.get(head)
        if parser is not None:
            return parser(value)
        if len(head) < HEAD_BYTES or head[0]:
            raise ValueError(
                f"it begins with {head!r}, not with 0 and the 4 bytes of a schema's id: no registry's format"
            )
        raise ValueError(
            f"its schema {int.from_bytes(head[1:], 'big')} is not in the {self._registry.where}"
        )

    def _parser(self, number: int, schema: Any) -> Callable[[bytes], tuple[Any, ...]]:
        format = self._client.format(schema, self._reader_schema)
        decode = format.decode
        where = f"{schema.schema_type} schema {number} ({format.name})"
        if self._changes is not None:
            row = self._changes.reader(self._fields)
            hints = format.hints

            def take(record: Any) -> tuple[Any, ...]:
                return row(record, hints)
        else:
            has = format.fields
            if lacking := [name for name in self._fields if has is not None and name not in has]:
                return _refusing(
                    f"{where} has no field '{lacking[0]}', which the source declares; it has {', '.join(has or ())}"
                )
            take = TypedFields(self._fields)

        def parse(value: bytes) -> tuple[Any, ...]:
            try:
                record = decode(value)
            except Exception as error:  # of foreign bytes, by four libraries
                reason = f"{type(error).__name__} {error}".strip()
                raise ValueError(f"its bytes are none of {where}: {reason:.160}") from error
            return take(record)

        return parse


def _refusing(reason: str) -> Callable[[bytes], tuple[Any, ...]]:
    def refuse(value: bytes) -> tuple[Any, ...]:
        raise ValueError(reason)

    return refuse


class RegistryWriter:
    """Encoder of values for a topic by one schema: `schema` of `kind`, which is registered, or the
    latest of the topic's subject.
    """

    def __init__(
        self, registry: SchemaRegistry, topic: str, schema: str | None, kind: str, subject: str
    ) -> None:
        if not isinstance(registry, SchemaRegistry):
            raise InvalidConfigError(
                f"KafkaSink: registry is {show(registry)}; write SchemaRegistry(url)"
            )
        if kind not in _KINDS:
            raise InvalidConfigError(
                f"KafkaSink: schema_type is one of {', '.join(_KINDS)}, not {kind!r:.40}"
            )
        if subject not in SUBJECTS:
            raise InvalidConfigError(
                f"KafkaSink: subject is one of {', '.join(SUBJECTS)}, not {subject!r:.40}"
            )
        if schema is None and subject != "topic":
            raise InvalidConfigError(
                f'KafkaSink: subject="{subject}" has the name of a record in it: give its schema'
            )
        self._client = _Client(registry)
        self._where = registry.where
        self._topic = topic
        self._schema = schema
        self._kind = _KINDS[kind]
        self._subject = subject

    def load(self) -> None:
        """Register the schema or find the latest; raises what keeps the registry from answering."""
        try:
            number, self._format = self._find()
        except _UnfitError as error:
            raise InvalidConfigError(
                f"{self._where}: the schema cannot be used: {error}"
            ) from error
        self._head = b"\0" + number.to_bytes(4, "big")

    def encode(self, record: Any) -> bytes:
        """Return a value of the fields that the schema has, whatever other ones there are;
        ValueError for one that does not fit.
        """
        if not isinstance(record, Mapping):
            raise ValueError(f"a {type(record).__name__} is no mapping of fields")
        has = self._format.fields
        own = {name: record[name] for name in (record if has is None else has) if name in record}
        try:
            return self._head + self._format.encode(own)
        except Exception as error:  # of four libraries
            raise ValueError(
                f"it does not fit the schema {self._format.name}: {' '.join(str(error).split()):.300}"
            ) from error

    def _find(self) -> tuple[int, Format]:
        client = self._client
        if self._schema is None:
            subject = f"{self._topic}-value"
            latest = client.ask(lambda c: c.get_latest_version(subject))
            if latest is None:
                raise _UnfitError(f"there is no subject {subject}; give the schema")
            number = latest.schema_id
            return number, client.format(client.of_id(number))
        from confluent_kafka.schema_registry import Schema

        schema = Schema(self._schema, self._kind)
        is_text = self._kind == "PROTOBUF"  # which the registry compiles
        name = _message_name(self._schema) if is_text else client.format(schema).name
        subject = {"topic": f"{self._topic}-value", "record": name}.get(
            self._subject, f"{self._topic}-{name}"
        )
        if self._subject != "topic" and not name:
            raise _UnfitError(
                f'subject="{self._subject}" needs a record with a name (JSON: a title)'
            )
        number = client.ask(
            lambda c: c.register_schema_full_response(subject, schema).schema_id, f", {subject}"
        )
        return number, client.format(client.of_id(number) if is_text else schema)


def _message_name(text: str) -> str:
    """Return the full name of the first message of a .proto file."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    package = re.search(r"\bpackage\s+([\w.]+)\s*;", code)
    message = re.search(r"\bmessage\s+(\w+)", code)
    if message is None:
        raise _UnfitError("the .proto text has no message")
    return f"{package[1]}.{message[1]}" if package else message[1]
