"""Original Java classes: pinned jars from Maven Central, the harness around them, and their
answers.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

SOURCES = Path(__file__).parent / "originals"
SHARED = ("Launcher", "Order", "OrderedMap", "OrderedSet", "Json")
# Hosts are looked up in an empty file: JStorm compares host names by their addresses, and a name
# server takes seconds.
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
    # checkout of a later version, whose scheduler classes go before the artifact's
    sources: Path | None = None
    scope: str = "cluster"  # our default.scheduler.scope that does as its DefaultScheduler

    @property
    def name(self) -> str:
        """The artifact with its version, and that of the sources."""
        artifact = f"{self.group}:{self.artifact}:{self.version}"
        return (
            f"the schedulers of {_described(self.sources)} over {artifact}"
            if self.sources
            else artifact
        )


STORM = Original(
    "org.apache.storm",
    "storm-server",
    "2.8.3",
    "StormHarness",
    (
        "Calm",
        "CalmHosts",
        "CalmSet",
        "Watched",
        "Pools",
        "SeenFreePool",
        "SeenDefaultPool",
        "SeenIsolatedPool",
    ),
)
JSTORM = Original("com.alibaba.jstorm", "jstorm-core", "2.2.1", "JStormHarness")


_SCHEDULERS = "storm-server/src/main/java/org/apache/storm"


def original_for(scheduler: str, sources: Path | None = None) -> Original:
    """Which original answers problems for a scheduler; `sources` is a checkout of Storm 3."""
    if scheduler == "jstorm":
        return JSTORM
    return replace(STORM, sources=sources, scope="topology") if sources else STORM


def _described(sources: Path | None) -> str:
    """Return the commit of a checkout, or the name of its folder."""
    asked = ["git", "-C", str(sources), "log", "-1", "--format=%h of %cs"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return f"apache/storm {done.stdout.strip()}" if done.returncode == 0 else str(sources)


def _overlay(original: Original, sources: Path, folder: Path, jars: str) -> Path:
    """Compile the schedulers of a checkout against the artifact's jars; what they do not change is
    the artifact's.
    """
    classes = folder / "overlay"
    if not classes.exists():
        parts = [
            path
            for path in (sources / _SCHEDULERS / "scheduler").rglob("*.java")
            if "utils" not in path.parts
        ]
        if not parts:
            raise SystemExit(
                f"{sources}: there are no schedulers in {_SCHEDULERS}/scheduler; name a checkout of apache/storm"
            )
        files = [
            str(path) for path in (*sorted(parts), sources / _SCHEDULERS / "DaemonConfig.java")
        ]
        made = folder / f"overlay.{os.getpid()}"
        made.mkdir()
        subprocess.run(
            [_tool("javac"), "-nowarn", "-d", str(made), "-cp", jars, *files], check=True
        )
        made.rename(classes)
    return classes


def _cache(original: Original) -> Path:
    texts = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.java")))
    if original.sources is not None:
        texts += b"".join(
            path.read_bytes()
            for path in sorted((original.sources / _SCHEDULERS / "scheduler").rglob("*.java"))
        )
    stamp = hashlib.sha256(original.name.encode() + texts).hexdigest()[:16]
    base = (
        os.environ.get("CONFORMANCE_CACHE")
        or Path(tempfile.gettempdir()) / "sparkstorm-conformance"
    )
    return Path(base) / f"{original.artifact}-{original.version}-{stamp}"


def _tool(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise SystemExit(
            f"{name} is not on PATH: the comparison needs Maven and a JDK, 17 or newer"
        )
    return program


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
    jar_path = jars.read_text().strip()
    before = [_overlay(original, original.sources, folder, jar_path)] if original.sources else []
    return os.pathsep.join(map(str, [folder / "classes", *before, jar_path]))


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
