"""Wide problems for the BlacklistScheduler: many rounds in which supervisors, ports and topologies
come and go.
"""

from random import Random
from typing import Any

from benchmarks.conformance import wide

Problem = dict[str, Any]


def blacklist(rng: Random) -> Problem:
    """Rounds around any scheduler; supervisors fail in streaks, new ones appear, some change their
    ports.
    """
    inner = rng.choice(("default", "even", "resource-aware", "isolation", "multitenant"))
    made = {
        "resource-aware": wide.resource_aware,
        "isolation": wide.isolation,
        "multitenant": wide.multitenant,
    }
    problem = made.get(inner, wide.default)(rng)
    problem |= {"scheduler": "blacklist", "inner": inner}
    problem.pop("rounds", None)
    _set_limits(rng, problem["conf"])
    problem["rounds"] = _rounds(rng, problem)
    return problem


def _set_limits(rng: Random, conf: Problem) -> None:
    frequency = rng.choice((1, 10, 10, 7))
    wanted = {
        "nimbus.monitor.freq.secs": frequency,
        "blacklist.scheduler.tolerance.time.secs": frequency * rng.choice((1, 2, 4, 6))
        + rng.choice((0, 0, 3)),
        "blacklist.scheduler.tolerance.count": rng.randint(1, 4),
        "blacklist.scheduler.resume.time.secs": frequency * rng.choice((1, 2, 4, 6))
        + rng.choice((0, 0, 3)),
        "blacklist.scheduler.assume.supervisor.bad.based.on.bad.slot": rng.random() < 0.7,
    }
    conf |= {key: value for key, value in wanted.items() if rng.random() < 0.85}
    if rng.random() < 0.4:
        kind = f"{rng.choice(('Default', 'Ras'))}BlacklistStrategy"
        conf["blacklist.scheduler.strategy"] = (
            f"org.apache.storm.scheduler.blacklist.strategies.{kind}"
        )


def _rounds(rng: Random, problem: Problem) -> list[Problem]:
    everything = problem["supervisors"]
    fails = {supervisor["id"]: rng.choice((0.0, 0.05, 0.3, 0.6)) for supervisor in everything}
    late = {supervisor["id"] for supervisor in everything if rng.random() < 0.1}
    down: set[str] = set()
    rounds = []
    for index in range(rng.randint(1, 14)):
        for name, chance in fails.items():
            if rng.random() < (0.5 if name in down else chance):
                down ^= {name}
        shown = [
            _with_ports(rng, supervisor)
            for supervisor in everything
            if supervisor["id"] not in down and (index > 3 or supervisor["id"] not in late)
        ]
        later: Problem = {"supervisors": shown}
        if rng.random() < 0.6:
            later["assignments"] = wide.assignments(rng, problem)
        rounds.append(later)
    return rounds


def _with_ports(rng: Random, supervisor: Problem) -> Problem:
    ports = supervisor["ports"]
    if rng.random() < 0.9 or len(ports) < 2:
        return supervisor
    return supervisor | {"ports": [port for port in ports if rng.random() < 0.6]}
