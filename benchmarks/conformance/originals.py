"""Original Java classes: pinned jars from Maven Central, the harness around them, and their answers."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "originals"
SHARED = ("Launcher", "Order", "OrderedMap", "OrderedSet", "Json")
# Hosts are looked up in an empty file: JStorm compares host names by their addresses, and a name server takes seconds.
CALM_FLAGS = (
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Xmx1g",
    f"-Djdk.net.hosts.file={os.devnull}",
)
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sparkstorm</groupId><artifactId>conformance</artifactId><version>1</version>
<dependencies><dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency></dependencies>
</project>
"""


@dataclass(frozen=True, slots=True)
class Original:
    """A pinned artifact and the harness that drives it."""

    group: str
    artifact: str
    version: str
    harness: str
    classes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The artifact with its version."""
        return f"{self.group}:{self.artifact}:{self.version}"


STORM = Original(
    "org.apache.storm",
    "storm-server",
    "2.8.3",
    "StormHarness",
    ("Calm", "CalmHosts", "CalmSet", "Watched", "Pools", "SeenFreePool", "SeenDefaultPool", "SeenIsolatedPool"),
)
JSTORM = Original("com.alibaba.jstorm", "jstorm-core", "2.2.1", "JStormHarness")


def original_for(scheduler: str) -> Original:
    """Which original answers problems for a scheduler."""
    return JSTORM if scheduler == "jstorm" else STORM


def _cache(original: Original) -> Path:
    texts = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.java")))
    stamp = hashlib.sha256(original.name.encode() + texts).hexdigest()[:16]
    base = os.environ.get("CONFORMANCE_CACHE") or Path(tempfile.gettempdir()) / "sparkstorm-conformance"
    return Path(base) / f"{original.artifact}-{original.version}-{stamp}"


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not on PATH: the comparison needs Maven and a JDK, 17 or newer")
    return found


def class_path(original: Original) -> str:
    """The jars (fetched once by Maven) and our compiled harness, as a class path."""
    folder = _cache(original)
    jars = folder / "jars.txt"
    if not jars.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pom = folder / "pom.xml"
        pom.write_text(POM.format(original.group, original.artifact, original.version))
        fetched = folder / f"fetched.{os.getpid()}.txt"  # two comparisons may begin at once
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={fetched}"]
        subprocess.run([_tool("mvn"), "-q", "-B", "-f", str(pom), *goal], check=True)
        names = (*SHARED, *original.classes, original.harness)
        sources = [str(SOURCES / f"{name}.java") for name in names]
        classes = ["-nowarn", "-d", str(folder / "classes"), "-cp", fetched.read_text().strip()]
        subprocess.run([_tool("javac"), *classes, *sources], check=True)
        fetched.rename(jars)
    return f"{folder / 'classes'}{os.pathsep}{jars.read_text().strip()}"


def answers(original: Original, problems: Iterable[str], log: Path) -> Sequence[str]:
    """One line of JSON per problem; what the originals log goes to a file."""
    command = [_tool("java"), *CALM_FLAGS, "-cp", class_path(original), "originals.Launcher"]
    with log.open("wb") as errors:
        done = subprocess.run(
            [*command, f"originals.{original.harness}"],
            input="\n".join(problems).encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            check=True,
        )
    return done.stdout.decode().splitlines()
