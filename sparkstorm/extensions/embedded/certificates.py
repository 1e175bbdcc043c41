"""Certificates for a trial of TLS: `python -m sparkstorm.extensions.embedded.certificates FOLDER NAME...`.

Its own authority, a certificate for servers under these host names and addresses, and one for
clients, by the command `openssl`. For a trial: the authority's key lies next to the rest, and
everything ends after 30 days.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkstorm.common.errors import InvalidConfigError, SparkStormError

# Short, so that a trial does not become the way a cluster is run: its authority's key lies next to
# the rest.
_DAYS = "30"
_LIMIT_S = 60
_NEW_KEY = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of what was made; `server` has certificate and key in one file, as ZooKeeper takes
    them.
    """

    folder: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority."""
        return self.folder / "ca.pem"

    @property
    def server(self) -> Path:
        """Certificate and key of servers."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """Key of servers."""
        return self.folder / "server.key"

    @property
    def client(self) -> Path:
        """Certificate of clients."""
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        """Key of clients."""
        return self.folder / "client.key"


def make_certificates(folder: Path, names: Sequence[str]) -> Certificates:
    """Make the files of an authority, of servers with these names and of clients; those of an
    earlier call are replaced.

    Raises InvalidConfigError when there is no `openssl`, a name is none, or the folder cannot be
    written.
    """
    if shutil.which("openssl") is None:
        raise InvalidConfigError("the command openssl is missing (Debian: apt-get install openssl)")
    made = Certificates(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            _make(Path(draft), [_alternative(name) for name in names])
            for file in Path(draft).iterdir():
                file.chmod(0o600)
                file.replace(folder / file.name)
    except OSError as error:
        raise InvalidConfigError(f"{folder} cannot be written: {error.strerror}") from error
    return made


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        pass
    if not name or not all(
        part and part.replace("-", "a").isalnum() and part.isascii() for part in name.split(".")
    ):
        raise InvalidConfigError(f"{name!r} is no host name and no address")
    return f"DNS:{name}"


def _make(draft: Path, alternatives: Sequence[str]) -> None:
    ca_key = draft / "ca.key"
    ca = draft / "ca.pem"
    _openssl(
        *_NEW_KEY,
        "-x509",
        "-days",
        _DAYS,
        "-subj",
        "/CN=trial authority",
        "-keyout",
        ca_key,
        "-out",
        ca,
    )
    uses = {
        # ZooKeepers are clients of each other
        "server": f"serverAuth,clientAuth\nsubjectAltName={','.join(alternatives)}",
        "client": "clientAuth",
    }
    for number, (name, use) in enumerate(uses.items(), 1):
        key = draft / f"{name}.key"
        request = draft / f"{name}.csr"
        extensions = draft / f"{name}.ext"
        _openssl(*_NEW_KEY, "-subj", f"/CN=trial {name}", "-keyout", key, "-out", request)
        extensions.write_text(
            f"basicConstraints=CA:FALSE\nextendedKeyUsage={use}\n", encoding="ascii"
        )
        signed = (
            "-CA",
            ca,
            "-CAkey",
            ca_key,
            "-set_serial",
            str(number),
            "-days",
            _DAYS,
            "-extfile",
            extensions,
        )
        _openssl("x509", "-req", "-in", request, *signed, "-out", draft / f"{name}.pem")
        request.unlink()
        extensions.unlink()
    with (draft / "server.pem").open("a", encoding="ascii") as file:
        file.write((draft / "server.key").read_text(encoding="ascii"))


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
        umask=0o077,
    )
    if done.returncode:
        raise InvalidConfigError(f"openssl {words[0]}: {done.stderr.strip()[-300:] or 'failed'}")


def main(arguments: Sequence[str]) -> int:
    """Make them and print the settings that use them."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkstorm.extensions.embedded.certificates", description=__doc__
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="where the files go; copy it to every host"
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="host names and addresses of Redis and ZooKeeper"
    )
    options = parser.parse_args(arguments)
    try:
        made = make_certificates(Path(os.path.abspath(options.folder)), options.names)
    except SparkStormError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"sparkstorm.tls.ca.file: {made.ca}")
    print(f"sparkstorm.tls.certificate.file: {made.client}")
    print(f"sparkstorm.tls.key.file: {made.client_key}")
    print("storm.zookeeper.ssl.enable: true")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
