"""The word count over TLS: Redis and ZooKeeper want a certificate of every process, and slots have
their own folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.extensions.embedded.certificates import make_certificates
from sparkstorm.testing.servers.processes import command_of
from tests.system.main_job import ROOT, MainJob, count_words
from tests.tls_servers import TlsProxy, settings_of, tls_zookeeper

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.system,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="certificates are made by the command openssl"
    ),
]


def test_the_word_count_is_exact_over_tls_and_its_key_is_told_to_nobody(
    tmp_path: Path, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificates(tmp_path / "tls", ["127.0.0.1"])
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"word{n % 97} {n} the quick brown fox\n" for n in range(5_000)))
    monkeypatch.setenv("SPARKSTORM_REDIS_PASSWORD", own_redis.password)
    proxy = TlsProxy(made, own_redis.port)
    try:
        with tls_zookeeper(made, tmp_path / "zookeeper") as port:
            settings = settings_of(made) | {
                "sparkstorm.redis.url": f"rediss://127.0.0.1:{proxy.port}",
                "storm.zookeeper.servers": f"[127.0.0.1:{port}]",
                "storm.zookeeper.ssl.enable": "true",
                "sparkstorm.worker.local.dir": str(tmp_path / "of-slots"),
            }
            run = MainJob(
                tmp_path / "run", ROOT / "conf" / "wordcount.yaml", [corpus], "local[3]", settings
            )
            try:
                run.start()
                run.sight().close()
                commands = "\n".join(command_of(pid) for pid in run.tree())
                assert run.wait() == 0, run.output()
            finally:
                run.close()
    finally:
        proxy.close()
    assert run.counts() == count_words([corpus])
    logs = sorted(path.name for path in (tmp_path / "of-slots" / "logs").iterdir())
    assert any(name.startswith("wordcount-") for name in logs), logs
    secret = made.client_key.read_text().splitlines()[1]
    told = [
        path
        for place in ("run", "of-slots")
        for path in (tmp_path / place).rglob("*")
        if path.is_file()
    ]
    assert [path for path in told if secret.encode() in path.read_bytes()] == []
    assert secret not in commands and own_redis.password not in commands
