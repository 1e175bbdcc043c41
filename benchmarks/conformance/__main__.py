"""The comparison's command: the same problems to both sides, the differences counted, tagged and
kept.
"""

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.conformance.compare import (
    DIFFERENT,
    same,
    second_question,
    verdict,
    with_idle_rules,
    with_scope,
)
from benchmarks.conformance.originals import Original, answers, original_for
from benchmarks.conformance.problems import GENERATORS
from benchmarks.conformance.shapes import SHAPES, generate
from sparkstorm.extensions.laboratory.form.solve import answer_to


def compare(
    scheduler: str, shape: str, seed: int, count: int, folder: Path, sources: Path | None = None
) -> int:
    """Compare one scheduler on so many problems; the number of differences that nothing
    explains.
    """
    original = original_for(scheduler, sources)
    problems = problems_for(original, scheduler, shape, seed, count)
    lines = [json.dumps(problem) for problem in problems]
    log = folder / f"{scheduler}.{shape}.log"
    ours = [json.loads(answer_to(line)[0]) for line in lines]
    theirs = _asked(original, lines, log)
    second = _asked_again(original, problems, ours, theirs, log)
    count_by_verdict: Counter[str] = Counter()
    with (folder / f"{scheduler}.{shape}.differences.jsonl").open("w") as out:
        for index, problem in enumerate(problems):
            word = verdict(problem, ours[index], theirs[index], second.get(index))
            count_by_verdict[word] += 1
            if word != "equal":
                row = {
                    "problem": problem,
                    "ours": ours[index],
                    "theirs": theirs[index],
                    "second": second.get(index),
                }
                out.write(json.dumps({"at": index, "tag": word, **row}) + "\n")
    print(f"{scheduler}: {count} {shape} problems, seed {seed}, against {original.name}")
    for word, number in count_by_verdict.most_common():
        print(f"  {number:6} {word}")
    return count_by_verdict[DIFFERENT]


def problems_for(
    original: Original, scheduler: str, shape: str, seed: int, count: int
) -> list[dict[str, Any]]:
    """Return problems with the settings by which ours does as that version."""
    problems = [
        with_scope(problem, original.scope) for problem in generate(scheduler, seed, count, shape)
    ]
    if not original.sources:
        return problems
    return [
        with_idle_rules(problem, Random(f"idle-{seed}-{index}"))
        for index, problem in enumerate(problems)
    ]


def _asked(original: Original, lines: Sequence[str], log: Path) -> list[dict[str, Any]]:
    return [json.loads(answer) for answer in answers(original, lines, log)]


def _asked_again(
    original: Original,
    problems: Sequence[Any],
    ours: Sequence[Any],
    theirs: Sequence[Any],
    log: Path,
) -> dict[int, dict[str, Any]]:
    """The answers to second questions, by the number of the problem."""
    asked = {
        index: second_question(problem, ours[index], theirs[index])
        for index, problem in enumerate(problems)
    }
    asked = {index: question for index, question in asked.items() if question is not None}
    if not asked:
        return {}
    second_answers = _asked(
        original,
        [json.dumps(question) for question in asked.values()],
        log.with_suffix(".second.log"),
    )
    return dict(zip(asked, second_answers, strict=True))


def record(
    schedulers: Sequence[str],
    shape: str,
    seed: int,
    count: int,
    folder: Path,
    path: Path,
    sources: Path | None = None,
) -> None:
    """Write problems with the originals' answers, for tests that run without Java; those that made
    them raise are out.
    """
    rows = []
    for scheduler in schedulers:
        original = original_for(scheduler, sources)
        problems = problems_for(original, scheduler, shape, seed, count)
        lines = [json.dumps(problem) for problem in problems]
        for problem, answer in zip(
            problems, answers(original, lines, folder / "record.log"), strict=True
        ):
            ours = json.loads(answer_to(json.dumps(problem))[0])
            if same(problem, ours, json.loads(answer)):
                rows.append(json.dumps({"problem": problem, "answer": json.loads(answer)}))
    path.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))


def main() -> int:
    """Compare; 1 when a difference is left unexplained."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "schedulers", nargs="*", help=f"of {', '.join(GENERATORS)}; all when none is named"
    )
    parser.add_argument("--count", type=int, default=2000, help="problems per scheduler (2000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the problems (1)")
    parser.add_argument(
        "--shape", choices=list(SHAPES), help="of problems; both when none is named"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/conformance"), help="where differences are written"
    )
    parser.add_argument(
        "--record",
        type=Path,
        help="write problems and the originals' answers there, compare nothing",
    )
    parser.add_argument(
        "--storm-sources",
        type=Path,
        metavar="FOLDER",
        help="a checkout of apache/storm: ask its schedulers",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.schedulers or list(GENERATORS)
    if arguments.record is not None:
        shape = arguments.shape or "small"
        seed = arguments.seed
        count = arguments.count
        out = arguments.out
        record(names, shape, seed, count, out, arguments.record, arguments.storm_sources)
        return 0
    shapes = [arguments.shape] if arguments.shape else list(SHAPES)
    asked = (arguments.seed, arguments.count, arguments.out, arguments.storm_sources)
    num_different = sum(compare(name, shape, *asked) for name in names for shape in shapes)
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
