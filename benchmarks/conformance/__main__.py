"""Owns the comparison's command: the same problems to both sides, the differences counted, tagged and kept."""

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.conformance.compare import same, tag
from benchmarks.conformance.originals import answers, original_for
from benchmarks.conformance.problems import GENERATORS
from benchmarks.conformance.shapes import SHAPES, generate
from sparkstorm.scheduling.form.solve import answer_to


def compare(scheduler: str, shape: str, seed: int, count: int, folder: Path) -> int:
    """Compare one scheduler on so many problems; the number of differences that nothing explains."""
    problems = generate(scheduler, seed, count, shape)
    lines = [json.dumps(problem) for problem in problems]
    original = original_for(scheduler)
    theirs = answers(original, lines, folder / f"{scheduler}.{shape}.log")
    found: Counter[str] = Counter()
    with (folder / f"{scheduler}.{shape}.differences.jsonl").open("w") as out:
        for at, (problem, line, answer) in enumerate(zip(problems, lines, theirs, strict=True)):
            ours: dict[str, Any] = json.loads(answer_to(line)[0])
            their: dict[str, Any] = json.loads(answer)
            word = "equal" if same(problem, ours, their) else tag(problem, ours, their) or "DIFFERENT"
            found[word] += 1
            if word != "equal":
                out.write(json.dumps({"at": at, "tag": word, "problem": problem, "ours": ours, "theirs": their}) + "\n")
    print(f"{scheduler}: {count} {shape} problems, seed {seed}, against {original.name}")
    for word, number in found.most_common():
        print(f"  {number:6} {word}")
    return found["DIFFERENT"]


def record(schedulers: Sequence[str], shape: str, seed: int, count: int, folder: Path, path: Path) -> None:
    """Write problems with the originals' answers, for tests that run without Java; those that made them raise are out."""
    rows = []
    for scheduler in schedulers:
        problems = generate(scheduler, seed, count, shape)
        lines = [json.dumps(problem) for problem in problems]
        for problem, answer in zip(problems, answers(original_for(scheduler), lines, folder / "record.log"), strict=True):
            ours = json.loads(answer_to(json.dumps(problem))[0])
            if same(problem, ours, json.loads(answer)):
                rows.append(json.dumps({"problem": problem, "answer": json.loads(answer)}))
    path.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


def main() -> int:
    """Compare; 1 when a difference is left unexplained."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("schedulers", nargs="*", help=f"of {', '.join(GENERATORS)}; all when none is named")
    parser.add_argument("--count", type=int, default=2000, help="problems per scheduler (2000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the problems (1)")
    parser.add_argument("--shape", choices=list(SHAPES), help="of problems; both when none is named")
    parser.add_argument("--out", type=Path, default=Path("build/conformance"), help="where differences are written")
    parser.add_argument("--record", type=Path, help="write problems and the originals' answers there, compare nothing")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.schedulers or list(GENERATORS)
    if arguments.record is not None:
        record(names, arguments.shape or "small", arguments.seed, arguments.count, arguments.out, arguments.record)
        return 0
    shapes = [arguments.shape] if arguments.shape else list(SHAPES)
    left = sum(compare(name, shape, arguments.seed, arguments.count, arguments.out) for name in names for shape in shapes)
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
