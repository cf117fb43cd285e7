"""Compares JSON by type and value, and tells known differences from unexpected ones."""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass

RELATIVE_TOLERANCE = 1e-9
# Bounds of intervals need Student's distribution, which every library approximates in its own way. All else is exact.
INTERVAL = "ci_"
NOTHING = "<nothing>"
SHOWN = 12


@dataclass
class Difference:
    path: str
    ours: object
    theirs: object

    def __str__(self):
        texts = (
            value if value is NOTHING else json.dumps(value, ensure_ascii=False) for value in (self.ours, self.theirs)
        )
        ours, theirs = (text if len(text) <= 160 else text[:157] + "..." for text in texts)
        return f"{self.path}: ours {ours}, theirs {theirs}"

    def size(self):
        return abs(self.ours - self.theirs) / max(abs(self.ours), abs(self.theirs))


class Comparison:
    """The differences of two JSON values; bounds of intervals that agree but for the last digits stand apart."""

    def __init__(self, ours, theirs):
        self.differences, self.intervals = [], []
        self.compare("", ours, theirs)

    def compare(self, path, ours, theirs):
        # Types come first, because Python says that True == 1 == 1.0.
        if type(ours) is not type(theirs):
            self.differences.append(Difference(path, ours, theirs))
        elif isinstance(ours, dict):
            for key in ours | theirs:
                self.compare(f"{path}.{key}", ours.get(key, NOTHING), theirs.get(key, NOTHING))
            if ours.keys() == theirs.keys() and list(ours) != list(theirs):
                self.differences.append(Difference(f"{path} (order of keys)", list(ours), list(theirs)))
        elif isinstance(ours, list):
            for index in range(max(len(ours), len(theirs))):
                pair = (values[index] if index < len(values) else NOTHING for values in (ours, theirs))
                self.compare(f"{path}[{index}]", *pair)
        elif isinstance(ours, float):
            self.numbers(path, ours, theirs)
        elif ours != theirs:
            self.differences.append(Difference(path, ours, theirs))

    def numbers(self, path, ours, theirs):
        if ours.hex() == theirs.hex():
            return
        is_close = math.isclose(ours, theirs, rel_tol=RELATIVE_TOLERANCE, abs_tol=0.0)
        if is_close and INTERVAL in path:
            self.intervals.append(Difference(path, ours, theirs))
        else:
            self.differences.append(Difference(f"{path} (last digits)" if is_close else path, ours, theirs))


@dataclass
class Known:
    """A known difference, by regular expressions: `scenario` and `file` have to match in full, `path` anywhere."""

    scenario: str
    file: str
    path: str
    reason: str
    seen: bool = False

    def matches(self, scenario, file, path):
        found = re.fullmatch(self.scenario, scenario) and re.fullmatch(self.file, file) and re.search(self.path, path)
        self.seen = self.seen or bool(found)
        return bool(found)


class Report:
    """Prints one line for each file that was compared, and counts what was not expected."""

    def __init__(self, known):
        self.known = known
        self.compared = self.unexpected = 0

    def compare(self, scenario, file, ours, theirs):
        comparison = Comparison(ours, theirs)
        known, unexpected = Counter(), []
        for difference in comparison.differences:
            entry = next((entry for entry in self.known if entry.matches(scenario, file, difference.path)), None)
            if entry:
                known[entry.reason] += 1
            else:
                unexpected.append(difference)
        self.compared += 1
        self.unexpected += len(unexpected)
        notes = [f"{len(ours)} entries"] if isinstance(ours, list | dict) else []
        notes += [f"{count} known: {reason}" for reason, count in known.items()]
        if comparison.intervals:
            worst = max(difference.size() for difference in comparison.intervals)
            notes.append(f"{len(comparison.intervals)} bounds of intervals differ, at most by {worst:.0e}")
        self.line(scenario, file, f"{f'{len(unexpected)} DIFFERENCES' if unexpected else 'equal'} ({'; '.join(notes)})")
        for difference in unexpected[:SHOWN]:
            print(f"    {difference}", flush=True)
        if len(unexpected) > SHOWN:
            print(f"    ... and {len(unexpected) - SHOWN} more", flush=True)

    def line(self, scenario, file, text):
        print(f"{scenario:<22} {file:<24} {text}", flush=True)

    def failed(self, scenario, error):
        """Counts a scenario that did not get to its end."""
        self.unexpected += 1
        self.line(scenario, "", f"FAILED: {error}")


def read_lines(path):
    """The rows of a JSONL file; `NOTHING` if there is no file."""
    if not path.exists():
        return NOTHING
    # Line feeds alone end lines: texts may contain U+2028, which Python's `splitlines` splits at.
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]


def read_json(path):
    return json.loads(path.read_bytes()) if path.exists() else NOTHING


def by_rollout(rows):
    """Rows under `TASK/ROLLOUT`, since nobody promises an order of completion. Attempts of a rollout keep theirs."""
    if rows is NOTHING:
        return rows
    rollouts = {}
    for row in sorted(rows, key=lambda row: (row["_ng_task_index"], row["_ng_rollout_index"])):
        rollouts.setdefault(f"{row['_ng_task_index']}/{row['_ng_rollout_index']}", []).append(row)
    return rollouts


def by_server(entries):
    """Entries of aggregate metrics under their servers: NeMo Gym has them in the order in which servers answer."""
    return entries if entries is NOTHING else {server_name(entry): entry for entry in sorted(entries, key=server_name)}


def server_name(entry):
    return str(entry.get("_ng_environment_server"))


def without_ports(value):
    """The same with `PORT` in place of all ports of this machine: each program has servers of its own."""
    return json.loads(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", json.dumps(value)))
