#!/usr/bin/env python3
"""Runs NeMo Gym 0.7.0 and rollstream side by side against the same scripted servers, and compares all files they leave.

    side_by_side.py --gym VENV/bin/gym --rollstream target/debug/rollstream --out DIR [SCENARIO ...]

For each scenario and file one line says `equal`, or what differs: `path: ours (rollstream's), theirs (NeMo Gym's)`. The
exit code is 1 if anything differs that is not in known_differences.toml. It needs the two programs and the virtual
environment that `gym` is installed in, and takes free ports.
"""

import argparse
import json
import os
import shutil
import sys
import time
import tomllib
from functools import partial
from pathlib import Path

PARSER = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
PARSER.add_argument("--gym", required=True, type=Path, help="`gym` of a virtual environment with nemo-gym 0.7.0")
PARSER.add_argument("--rollstream", required=True, type=Path, help="the rollstream program")
PARSER.add_argument("--out", required=True, type=Path, help="directory for all files; SCENARIO in it is replaced")
PARSER.add_argument("--rounds", type=int, default=8, help="how often scenarios that draw at random do so")
PARSER.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="run these alone")
ARGUMENTS = PARSER.parse_args()

VENV = ARGUMENTS.gym.absolute().parent
if not VENV.parent.samefile(sys.prefix):
    # NeMo Gym's modules are needed below, so all of this runs in its virtual environment.
    os.execv(VENV / "python", [VENV / "python", *sys.argv])

from comparison import NOTHING, Known, Report, by_rollout, by_server, read_json, read_lines, without_ports  # noqa: E402
from servers import Fault, Servers, agent, dice, environment, identity, resources, scored, servers_of  # noqa: E402
from tools import Failed, Simulator, gym, rollstream  # noqa: E402

rollstream = partial(rollstream, ARGUMENTS.rollstream.absolute())

# Makes rollstream call once for each rollout, as NeMo Gym does within a run.
ONE_CALL = "--infra-budget 1 --rate-limit-budget 1 --data-budget 1 --max-attempts 1 --retry-backoff 1ms".split()
FILES = ["r.jsonl", "r_materialized_inputs.jsonl", "r_failures.jsonl"]
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def always(body, task, rollout, attempt, before):
    """Servers that always succeed."""
    return scored(body, task, rollout)


def rows(count, agent_name=None, **fields):
    """Input rows. What is a function gets the row's number; what is None is left out."""
    made = []
    for number in range(count):
        fields_of_row = {
            "id": f"task-{number}",
            "responses_create_params": {
                "input": [{"role": "user", "content": f"{number}² \u2028 藍"}],
                "temperature": 0.1,
            },
            "weight": number / 7,
            "agent_ref": agent_name and {"type": "responses_api_agents", "name": agent_name},
        }
        for name, value in (fields_of_row | fields).items():
            fields_of_row[name] = value(number) if callable(value) else value
        made.append({name: value for name, value in fields_of_row.items() if value is not None})
    return made


def in_turn(*names):
    """Agents that rows name by turns."""
    return lambda number: names[number % len(names)] and {"name": names[number % len(names)]}


def episodes_of(count, *tasksets):
    names = (tasksets[number % len(tasksets)] for number in range(count))
    return [{"task_id": {"taskset": name, "task_name": f"t{at}"}, "task_input": {}} for at, name in enumerate(names)]


def calls(path, asked="/run"):
    """Server and body of each request, in order."""
    return [(line["server"], line["body"]) for line in read_lines(path) if line["path"] == asked]


def requests(path, asked="/run"):
    """What servers were asked for. For each rollout: the bodies in the order of the calls."""
    made = {}
    for server, body in calls(path, asked):
        rollout = " {}/{}".format(*identity(body)) if asked == "/run" else ""
        made.setdefault(server + rollout, []).append(body)
    return dict(sorted(made.items()))


def head_server(servers):
    return ["+head_server.host=127.0.0.1", f"+head_server.port={servers.port}"]


class Case:
    """A scenario with its directory, which has one for each of the programs."""

    def __init__(self, name, report):
        self.name, self.report = name, report
        self.directory = ARGUMENTS.out.absolute() / name
        shutil.rmtree(self.directory, ignore_errors=True)
        self.ours, self.theirs = self.directory / "rollstream", self.directory / "gym"
        self.ours.mkdir(parents=True)
        self.theirs.mkdir()
        self.input = self.directory / "input.jsonl"

    def write_input(self, input_rows):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in input_rows)
        self.input.write_text("".join(lines), encoding="utf-8")

    def keys(self, output, servers, *keys):
        files = [f"+input_jsonl_fpath={self.input}", f"+output_jsonl_fpath={output}"]
        return [*files, *head_server(servers), *keys]

    def collect(self, config, input_rows, *keys, behaviour=always, options=(), fails=False, codes=(0,), name="r.jsonl"):
        """Collects with both programs. Where some rollouts fail, neither ends early, and neither tries them again."""
        self.write_input(input_rows)
        if fails:
            options, codes = ONE_CALL, (3,)
        with Servers(config, behaviour, self.theirs / "requests.jsonl") as servers:
            keys_of_gym = self.keys(self.theirs / name, servers, *keys, f"+route_failures_to_sidecar={fails}")
            gym("eval", "run", "--no-serve", *keys_of_gym, cwd=self.theirs)
        with Servers(config, behaviour, self.ours / "requests.jsonl") as servers:
            keys_of_ours = self.keys(self.ours / name, servers, *keys)
            rollstream("collect", *keys_of_ours, *options, cwd=self.ours, expect=codes)

    def compare(self, file, read, ours=None, theirs=None):
        values = (without_ports(read(at)) for at in (ours or self.ours, theirs or self.theirs))
        self.report.compare(self.name, file, *values)

    def compare_collections(self, ours=None, theirs=None, of=""):
        for file, name in zip(("rollouts", "materialized inputs", "failures"), FILES):
            self.compare(of + file, lambda at: by_rollout(read_lines(at / name)), ours, theirs)

    def compare_metrics(self, name="r_aggregate_metrics.json", ours=None, theirs=None, of="aggregate metrics"):
        self.compare(of, lambda at: by_server(read_json(at / name)), ours, theirs)

    def compare_profiles(self, ours=None, theirs=None, prefix="r_"):
        for file in ("reward_profiling.jsonl", "agent_metrics.json", "repeat_level_metrics.json"):
            read = read_lines if file.endswith("l") else read_json
            label = file.partition(".")[0].replace("_", " ")
            self.compare(label, lambda at: read(at / f"{prefix if at == ours else 'r_'}{file}"), ours, theirs)

    def profile(self, program, at, fails=False):
        keys = ["+rollouts_jsonl_fpath=r.jsonl", "+materialized_inputs_jsonl_fpath=r_materialized_inputs.jsonl"]
        words = ["eval", "profile"] if program is gym else ["profile"]
        program(*words, *keys, f"++allow_partial_rollouts={fails}", cwd=at)

    def run(self, config, input_rows, *keys, fails=False, **more):
        """Collects, aggregates and profiles with both programs, and compares all there is."""
        self.collect(config, input_rows, *keys, fails=fails, **more)
        self.compare_collections()
        self.compare("order of inputs", lambda at: [identity(row)[:2] for row in read_lines(at / FILES[1])])
        self.compare("requests", lambda at: requests(at / "requests.jsonl"))
        self.compare_metrics()
        self.profile(gym, self.theirs, fails)
        self.profile(rollstream, self.ours, fails)
        self.compare_profiles()

    def read_both(self, directory, config):
        """Aggregates and profiles the same files with both programs, whoever wrote them."""
        ours, theirs = directory / "by_rollstream", directory / "by_gym"
        for by in (ours, theirs):
            by.mkdir()
            for name in FILES:
                if (directory / name).exists():
                    shutil.copy(directory / name, by)
        keys = ["+input_glob=r.jsonl", "+output_jsonl_fpath=all.jsonl"]
        with Servers(config, always, theirs / "requests.jsonl") as servers:
            gym("eval", "aggregate", *keys, *head_server(servers), cwd=theirs)
        rollstream("aggregate", *keys, cwd=ours)
        self.profile(gym, theirs)
        self.profile(rollstream, ours)
        self.compare("merged files", lambda at: read_lines(at / "all.jsonl"), ours, theirs)
        self.compare_metrics("all_aggregate_metrics.json", ours, theirs)
        self.compare_profiles(ours, theirs)


@scenario
def plain(case):
    """One agent, four repeats."""
    case.run(servers_of("math_agent"), rows(9, "math_agent"), "+num_repeats=4", "+num_samples_in_parallel=8")


@scenario
def bare_answers(case):
    """Answers that repeat nothing of their rows; prompts from a template; overridden parameters; a limit."""

    def bare(body, task, rollout, attempt, before):
        wrong = {"_ng_task_index": "x", "_ng_result_type": "x", "agent_ref": {"name": "x"}}
        return scored({}, task, rollout) if rollout else {"reward": 0.5, "response": None, **wrong}

    template = case.directory / "prompt.yaml"
    template.write_text('system: "You solve {id}."\nuser: "{{braces}} {weight}"\n')
    input_rows = rows(12, agent_ref=in_turn("a_agent", "b_agent"), responses_create_params={"temperature": 0.5})
    case.run(
        servers_of("a_agent", "b_agent"),
        input_rows * 2,
        "+num_repeats=2",
        "+limit=16",
        f"+prompt_config={template}",
        "++responses_create_params.temperature=0.25",
        "++responses_create_params.metadata={a: b}",
        behaviour=bare,
    )


@scenario
def masks(case):
    """Rollouts that are done and measure nothing: some of a task, all of a task, all of an agent."""

    def masked(body, task, rollout, attempt, before):
        is_masked = task in (2, 3, 7) or rollout == 1 and [True, 1, "yes", 0, [], None, 0.5, {"a": 1}][task % 8]
        return scored(body, task, rollout, mask_sample=is_masked)

    input_rows = rows(8, agent_ref=lambda number: {"name": "b_agent" if number in (3, 7) else "a_agent"})
    case.run(servers_of("a_agent", "b_agent"), input_rows, "+num_repeats=3", behaviour=masked)


@scenario
def fan_out(case):
    """Rows that go to several agents, each with a number of repeats of its own."""
    case.run(
        servers_of("a_agent", "b_agent", "c_agent"),
        rows(6, agent_ref=in_turn("a_agent", "c_agent")),
        "+fan_out={a_agent: [a_agent, b_agent]}",
        "+num_repeats={a_agent: 2, b_agent: 3, _default: 1}",
    )


@scenario
def agent_map(case):
    """Rows that go to other agents than they name."""
    case.run(
        servers_of("a_agent", "b_agent", "c_agent"),
        rows(8, agent_ref=in_turn("old_agent", "c_agent", None, "a_agent")),
        "+agent_map={old_agent: a_agent, c_agent: c_agent}",
        "+agent_name=b_agent",
        "+num_repeats=2",
    )


@scenario
def task_source(case):
    """Rows that name the data set which they are of."""
    datasets = [{"name": "a", "type": "example", "jsonl_fpath": "x.jsonl", "agent": "pinned_agent"}]
    config = servers_of("math_agent", "judge_agent", "pinned_agent") | {"judge": resources(datasets=datasets)}
    config |= {"judge_agent": agent("judge"), "pinned_agent": agent("judge", "other_agent")}
    sources = ["verifier", "judge", "judge_agent", "judge"]
    case.run(
        config,
        rows(8, task_source=lambda number: sources[number % 4], agent_ref=lambda number: {} if number == 2 else None),
        "+num_repeats={judge: 3, verifier: 2, judge_agent: 1}",
    )


@scenario
def episodes(case):
    """Rows of tasksets for environment servers, some of which fail, beside rows for an agent."""
    config = servers_of("math_agent") | {"a_agent": agent(), "b_agent": agent()}
    config |= {"a": environment("a_agent", "single_agent_turn"), "b": environment("b_agent", "nemo_user_sim")}

    def failing(body, task, rollout, attempt, before):
        answer = scored(body, task, rollout)
        if task == 1:
            del answer["result"]
            answer["failure"] = {
                "failure_reason": "lost",
                "terminal": rollout == 0,
                "failure_kind": "session_lost",
                "stage": "seed" if rollout else None,
                "partial_response": {"output": []},
            }
        return answer

    case.run(
        config,
        episodes_of(5, "x", "y") + rows(3, "math_agent"),
        "+environment_server_routes={x: a, y: b}",
        "+num_repeats={x: 2, y: 3, math_agent: 1}",
        behaviour=failing,
        fails=True,
    )


@scenario
def legacy_routing(case):
    """All rows go to the environment server of a setting."""
    reference = {"type": "resources_servers", "name": "verifier"}
    config = servers_of("math_agent")
    config["turns"] = environment("math_agent", "single_agent_turn_legacy", resources_server=reference)
    case.run(
        config,
        rows(5, agent_ref=in_turn("math_agent", None), task_source=lambda number: ["verifier", None][number % 2]),
        "+environment_routing_mode=legacy",
        "+environment_server_name=turns",
        "+num_repeats=2",
    )


FAULTS = [
    Fault("status", 500, '"Traceback: it broke"'),
    Fault("status", 429, '{"detail": "slow down"}'),
    Fault("status", 503),
    Fault("status", 502, "bad gateway " * 300),
    Fault("status", 504, "tïme" * 501),
    Fault("status", 422, '{"detail": []}'),
    Fault("status", 404, "Not Found"),
    Fault("status", 400, "\u2028é"),
    Fault("status", text="{not json"),
    Fault("status", text=""),
    Fault("status", text='{"reward": NaN}'),
    Fault("cut"),
]


@scenario
def faults(case):
    """Calls that fail: by their status, because the answer is no JSON, or because it is cut off."""

    def faulty(body, task, rollout, attempt, before):
        return FAULTS[task] if task < len(FAULTS) and rollout == 1 else scored(body, task, rollout)

    case.run(
        servers_of("math_agent"), rows(len(FAULTS) + 2, "math_agent"), "+num_repeats=2", behaviour=faulty, fails=True
    )


@scenario
def disconnects(case):
    """Connections that end without an answer; slow answers, compressed and in chunks."""

    def faulty(body, task, rollout, attempt, before):
        if task % 3 == 0 and before < 2:
            return Fault("disconnect")
        answer = scored(body, task, rollout, filler="x" * 10**6)
        return Fault("slow", text=json.dumps(answer)) if task % 3 == 1 else answer

    case.run(servers_of("math_agent"), rows(6, "math_agent"), "+num_repeats=2", behaviour=faulty)


@scenario
def flags(case):
    """Answers in which an agent says that it has failed, or that the answer is not to be kept."""
    said = [
        {"_ng_failure_class": "agent_timeout", "error": "late"},
        {"_ng_failure_class": "skipped", "_ng_failure_terminal": True},
        {"_ng_no_persist": True},
        {"_ng_no_persist": True, "_ng_failure_class": "kill_shaped"},
        {"_ng_failure_class": None},
        {"_ng_failure_class": ""},
        {"_ng_failure_class": "agent_run_error", "reward": None},
        {},
    ]

    def flagged(body, task, rollout, attempt, before):
        return scored(body, task, rollout, **({} if rollout else said[task]))

    case.run(servers_of("math_agent"), rows(8, "math_agent"), "+num_repeats=2", behaviour=flagged, fails=True)


@scenario
def unscored(case):
    """Results without a reward, and rewards that are no numbers. NeMo Gym keeps them since 0.7."""
    config = servers_of("math_agent") | {"a_agent": agent(), "turns": environment("a_agent", "single_agent_turn")}
    rewards = [NOTHING, None, "1.0", True, 2]

    def without(body, task, rollout, attempt, before):
        answer = scored(body, task, rollout)
        if rollout == 0:
            result = answer.get("result", answer)
            result["reward"] = rewards[task % 5]
            if result["reward"] is NOTHING:
                del result["reward"]
        return answer

    case.collect(
        config,
        rows(5, "math_agent") + episodes_of(5, "x"),
        "+environment_server_routes={x: turns}",
        "+num_repeats=2",
        behaviour=without,
        options=ONE_CALL,
        codes=(0, 3),
    )
    case.compare_collections()
    # Both read files with such results.
    case.read_both(case.theirs, config)


@scenario
def repeats(case):
    """Numbers of repeats by agent, in rounds, with seeds, one call at a time."""
    case.run(
        servers_of("a_agent", "b_agent"),
        rows(6, agent_ref=in_turn("a_agent", "b_agent")),
        "+num_repeats={a_agent: 3, _default: 2}",
        "+num_repeats_add_seed=true",
        "+interleave_repeats=true",
        "+num_samples_in_parallel=1",
    )
    case.compare("order of requests", lambda at: [identity(body) for _, body in calls(at / "requests.jsonl")])


def own_metrics(tasks):
    """Metrics of a benchmark's own."""
    answers = [answer["extracted_answer"] for task in tasks for answer in task]
    return {
        "share/A": answers.count("A") / len(answers),
        "mean/reward": 5.0,
        "who": "me",
        "nested": {"a": [1, 2.0, None]},
    }


HOOKS = {
    "compute_metrics_fn": own_metrics,
    "compute_repeat_metrics_fn": lambda tasks: {"share/A": own_metrics(tasks)["share/A"]},
    "get_key_metrics_fn": lambda metrics: {"share/A": metrics["share/A"], "none": None},
}


@scenario
def server_metrics(case):
    """Metrics that servers define, by POST /aggregate_metrics: of a run, whose servers are on record, and of a file."""
    config = servers_of("math_agent") | {"a_agent": agent(), "turns": environment("a_agent", "single_agent_turn")}
    case.write_input(rows(5, "math_agent") + episodes_of(4, "x"))
    keys = ["+num_repeats=3", "+environment_server_routes={x: turns}"]
    with Servers(config, always, case.theirs / "requests.jsonl", HOOKS) as servers:
        gym("eval", "run", "--no-serve", *case.keys(case.theirs / "r.jsonl", servers, *keys), cwd=case.theirs)
    with Servers(config, always, case.ours / "requests.jsonl", HOOKS) as servers:
        rollstream("collect", *case.keys(case.ours / "r.jsonl", servers, *keys), cwd=case.ours)
        case.compare_metrics()
        for measured, options in (("r", []), ("r.jsonl", ["--head-server", f"http://127.0.0.1:{servers.port}"])):
            at = case.ours / f"of_{measured}"
            at.mkdir()
            (case.ours / "requests.jsonl").unlink(missing_ok=True)
            options += ["--agent-metrics", "--gym-output", at / "r.jsonl", "--no-merge"]
            rollstream("aggregate", measured, *options, cwd=case.ours)
            (case.ours / "requests.jsonl").rename(at / "requests.jsonl")
            case.compare_metrics(ours=at, of=f"{measured}: metrics")
            case.compare(f"{measured}: requests", lambda at: requests(at / "requests.jsonl", "/aggregate_metrics"), at)


@scenario
def shards(case):
    """Aggregation of several files, with failures and missing rollouts that count as zero."""
    config = servers_of("a_agent", "b_agent")

    def failing(body, task, rollout, attempt, before):
        if (task, rollout) == (1, 0):
            return Fault("status", 500, "broken")
        said = {(2, 1): {"_ng_no_persist": True}, (3, 1): {"_ng_failure_class": "agent_timeout", "mask_sample": True}}
        return scored(body, task, rollout, **said.get((task, rollout), {}))

    for number, name in enumerate(("a_agent", "b_agent", "a_agent")):
        case.write_input(rows(5 + number, name))
        with Servers(config, failing, case.theirs / "requests.jsonl") as servers:
            keys = case.keys(case.directory / f"shard-{number}.jsonl", servers, "+num_repeats=2")
            keys += ["+route_failures_to_sidecar=true", "+disable_aggregation=true"]
            gym("eval", "run", "--no-serve", *keys, cwd=case.theirs)
    failures = "+count_failure_classes_as_zero=[agent_run_error,agent_timeout]"
    missing = "+count_missing_rollouts_as_zero=true"
    counted = [("none", "1", []), ("failures", "0", [failures]), ("missing", "[01]", [missing])]
    for name, chosen, zeros in [*counted, ("both", "[12]", [failures, missing])]:
        keys = [f"+input_glob='{case.directory}/shard-{chosen}.jsonl'", f"+output_jsonl_fpath={name}.jsonl", *zeros]
        with Servers(config, always, case.theirs / "requests.jsonl") as servers:
            gym("eval", "aggregate", *keys, *head_server(servers), cwd=case.theirs)
        rollstream("aggregate", *keys, cwd=case.ours)
        case.compare(f"{name}: merged files", lambda at: read_lines(at / f"{name}.jsonl"))
        case.compare_metrics(f"{name}_aggregate_metrics.json", of=f"{name}: metrics")


@scenario
def reports(case):
    """NeMo Gym's comparison of two runs and its health check, and both programs on the files of rollstream's."""
    config = servers_of("a_agent", "b_agent")
    input_rows = rows(8, agent_ref=in_turn("a_agent", "b_agent"))

    def weaker(body, task, rollout, attempt, before):
        return scored(body, task, rollout, reward=float(dice("weak", task, rollout).random() < 0.3))

    case.collect(config, input_rows, "+num_repeats=3")
    case.collect(config, input_rows, "+num_repeats=3", behaviour=weaker, name="weak.jsonl")
    for at in (case.theirs, case.ours):
        gym("eval", "compare", "--baseline", "r.jsonl", "--candidates", "weak.jsonl", "--output-dir", "report", cwd=at)
        gym("eval", "health-check", ".", "--rollouts-file", "r.jsonl", cwd=at)
    case.compare("comparison", lambda at: without_names(read_json(at / "report" / "compare_report.json")))
    case.compare("health", lambda at: read_json(at / "quality_summary.json"))
    case.compare("verdicts", lambda at: by_rollout(read_lines(at / "rollout_verdicts.jsonl")))
    case.read_both(case.ours, config)


def without_names(report):
    """A report of `gym eval compare` without the names of files and its time."""
    if isinstance(report, dict):
        names = ("generated_at", "label", "command")
        kept = [key for key in report if key not in names and not key.endswith("_fpath")]
        return {key: without_names(report[key]) for key in kept}
    return [without_names(value) for value in report] if isinstance(report, list) else report


# For each field, the types that it has in a file.
KINDS = (
    "float int bool tie zero null float|gap int|null bool|null bool|int float|text int|float|gap bool|gap object|float"
)
KINDS = f"{KINDS} list|gap int|gap|bool text|null tie|null|gap bool|float|null".split()


def drawn(roll, prefix, kinds):
    """Fields with values of these kinds at random."""
    fields = {}
    for index, choices in enumerate(kinds):
        value = {
            "float": roll.gauss(0, 3),
            "int": roll.randrange(-5, 50),
            "bool": roll.random() < 0.5,
            "text": roll.choice(["a", "", "1.5"]),
            "tie": roll.choice([0.1, 0.2, 0.30000000000000004]),
            "zero": roll.choice([0, 0.0]),
            "list": [1],
            "object": {"x": 1},
            "null": None,
        }
        kind = roll.choice(choices.split("|"))
        if kind != "gap":
            fields[f"{prefix}{index}"] = value[kind]
    return fields


@scenario
def drawn_files(case):
    """Files whose rollouts have fields of all types at random."""
    for number in range(ARGUMENTS.rounds):
        roll = dice("drawn", number)
        inputs, results = [], []
        for task in range(roll.randrange(1, 7)):
            for rollout in range(roll.choice([1, 2, 3, 4, 12])):
                name = "ab"[task % 2]
                inputs.append(
                    {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": f"{name}_agent"}}
                )
                fields = drawn(roll, "m", KINDS) | {
                    "reward": roll.choice([0, 1, 0.0, 1.0, 0.5]),
                    "mask_sample": roll.random() < 0.15,
                }
                fields["response"] = roll.choice([{}, {"usage": None}, {"usage": drawn(roll, "u", KINDS[:9])}])
                results.append(fields | inputs[-1] | {"_ng_environment_server": f"{name}_environment_server"})
        roll.shuffle(results)
        at = case.directory / f"round-{number}"
        at.mkdir()
        for name, lines in zip(FILES, (results, inputs)):
            (at / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        case.read_both(at, servers_of("a_agent", "b_agent"))


@scenario
def resume(case):
    """Files that are cut off at random places, and that both programs finish, whichever of the two began."""
    config = servers_of("math_agent")
    keys = ["+num_repeats=3", "+disable_aggregation=true"]

    def recovering(body, task, rollout, attempt, before):
        if task % 3 == 1 and rollout < 2 and attempt == 0:
            return Fault("status", 500, "broken")
        if task % 3 == 2 and rollout == 0 and attempt < (9 if task == 5 else 1):
            return scored(body, task, rollout, _ng_failure_class="agent_timeout", _ng_failure_terminal=task == 8)
        return scored(body, task, rollout)

    case.collect(config, rows(9, "math_agent"), *keys, behaviour=recovering, fails=True)
    case.compare_collections()
    for number in range(2 * ARGUMENTS.rounds):
        roll = dice("cut", number)
        ours, theirs = (case.directory / f"cut-{number}" / by for by in ("rollstream", "gym"))
        for at in (ours, theirs):
            at.mkdir(parents=True)
        for name in FILES:
            text = ((case.theirs, case.ours)[number % 2] / name).read_bytes()
            if name != FILES[1]:
                text = text[: roll.randrange(len(text) + 1)]
            for at in (ours, theirs):
                (at / name).write_bytes(text)
        # NeMo Gym tries each rollout once in a run, and three times in all.
        for _ in range(3):
            with Servers(config, recovering, theirs / "requests.jsonl") as servers:
                again = case.keys(theirs / "r.jsonl", servers, *keys, "+resume_from_cache=true")
                gym("eval", "run", "--no-serve", *again, "+route_failures_to_sidecar=true", cwd=theirs)
        rollstream("import", "r.jsonl", "-o", "run", "--gym", "0.7", cwd=ours)
        with Servers(config, recovering, ours / "requests.jsonl") as servers:
            options = ["--disable-aggregation", "--infra-budget", "3", "--max-attempts", "3", "--retry-backoff", "1ms"]
            options += ["--head-server", f"http://127.0.0.1:{servers.port}"]
            rollstream("collect", "--resume", "-o", "run", *options, cwd=ours, expect=(0, 3))
        rollstream("export", "run", "-o", "finished/r.jsonl", cwd=ours)
        case.compare_collections(ours / "finished", theirs, f"{number}: ")
        case.compare(f"{number}: requests", lambda at: requests(at / "requests.jsonl"), ours, theirs)


def import_and_export(case, config, input_rows, *keys, **more):
    """Makes a run of NeMo Gym's files, and compares what comes of the run with them."""
    case.collect(config, input_rows, *keys, **more)
    code = rollstream("import", case.theirs / "r.jsonl", "-o", "imported", "--gym", "0.7", cwd=case.ours, expect=(0, 2))
    case.report.compare(case.name, "imported", {"imported": code == 0}, {"imported": True})
    if code == 0:
        rollstream("export", "imported", "-o", "exported/r.jsonl", cwd=case.ours)
        rollstream("aggregate", "imported", "-o", "measured", cwd=case.ours)
        rollstream("profile", "imported", "--allow-partial", "-o", "measured", cwd=case.ours)
        case.profile(gym, case.theirs, True)
        case.compare_collections(case.ours / "exported")
        paths = case.ours / "measured" / "aggregate_metrics.json", case.theirs / "r_aggregate_metrics.json"
        entries = [sorted(read_json(path), key=lambda entry: entry["agent_ref"]["name"]) for path in paths]
        case.report.compare(case.name, "aggregate of the run", *entries)
        case.compare_profiles(case.ours / "measured", prefix="")


@scenario
def again(case):
    """The same command again: it goes on with the files that are there, or replaces them all."""
    config = servers_of("math_agent")
    case.collect(config, rows(4, "math_agent"), "+num_repeats=2")
    resumed = case.directory / "resumed"
    for program in (rollstream, gym):
        at = resumed / ("gym" if program is gym else "rollstream")
        shutil.copytree(case.theirs, at, ignore=shutil.ignore_patterns("*.log", "requests*"))
        lines = (at / FILES[0]).read_bytes().split(b"\n")
        (at / FILES[0]).write_bytes(b"\n".join(lines[:5]) + b"\n")
        words = ["eval", "run", "--no-serve"] if program is gym else ["collect"]
        with Servers(config, always, at / "requests.jsonl") as servers:
            keys = case.keys(at / FILES[0], servers, "+num_repeats=2", "+resume_from_cache=true")
            program(*words, *keys, cwd=at)
    case.compare(
        "requests of a resume", lambda at: requests(at / "requests.jsonl"), resumed / "rollstream", resumed / "gym"
    )
    case.compare_collections(resumed / "rollstream", resumed / "gym")
    case.collect(config, rows(2, "math_agent"), "+disable_aggregation=true", options=["--overwrite"])
    case.compare_collections()
    case.compare("files", lambda at: {path.name: True for path in sorted(at.glob("r_*.json*"))})


@scenario
def round_trip(case):
    """NeMo Gym's files as a run, and the run as NeMo Gym's files."""

    def mixed(body, task, rollout, attempt, before):
        if (task, rollout) == (2, 1):
            return Fault("status", 500, "broken")
        is_skipped = (task, rollout) == (3, 0)
        skipped = {"_ng_failure_class": "skipped", "_ng_failure_terminal": True} if is_skipped else {}
        return scored(body, task, rollout, mask_sample=task == 4, **skipped)

    import_and_export(
        case,
        servers_of("a_agent", "b_agent"),
        rows(8, agent_ref=in_turn("a_agent", "b_agent")),
        "+num_repeats=2",
        "+fan_out={a_agent: [a_agent, b_agent]}",
        behaviour=mixed,
        fails=True,
    )


@scenario
def round_trip_of_episodes(case):
    """The same with rows of tasksets."""
    config = {"verifier": resources(), "math_agent": agent(), "turns": environment("math_agent", "single_agent_turn")}
    import_and_export(case, config, episodes_of(4, "x"), "+environment_server_routes={x: turns}", "+num_repeats=2")


@scenario
def simulator(case):
    """NeMo Gym's collector against `rollstream sim`, with thousands of rollouts and with faults.

    Faults that end without an answer are left out, since NeMo Gym tries such calls again for ever.
    """
    case.write_input(rows(60, "a"))
    # Answers that repeat their rows are filled up to a size, so their text depends on how a row is spelled.
    options = ["--gym", "0.7", "--agents", "a,b", "--latency", "fixed:1ms", "--no-echo"]
    kinds = (
        "error_500 error_503 bad_request_400 truncated_body not_json not_a_number invalid_utf8 no_persist failure_class"
    )
    for fault in [*kinds.split(), "failure_terminal"]:
        options += ["--fault", f"{fault}=0.02"]
    keys = ["+num_repeats=20", "+num_samples_in_parallel=64", "+fan_out={a: [a, b]}", "+disable_aggregation=true"]
    with Simulator(ARGUMENTS.rollstream.absolute(), *options, cwd=case.theirs) as servers:
        of_gym = case.keys(case.theirs / "r.jsonl", servers, *keys, "+route_failures_to_sidecar=true")
        gym("eval", "run", "--no-serve", *of_gym, cwd=case.theirs)
    with Simulator(ARGUMENTS.rollstream.absolute(), *options, cwd=case.ours) as servers:
        ours = case.keys(case.ours / "r.jsonl", servers, *keys)
        rollstream("collect", *ours, *ONE_CALL, cwd=case.ours, expect=(3,))
    case.compare_collections()
    case.profile(gym, case.theirs, fails=True)
    case.profile(rollstream, case.ours, fails=True)
    case.compare_profiles()


def main():
    unknown = set(ARGUMENTS.scenarios) - set(SCENARIOS)
    if unknown:
        PARSER.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    known = tomllib.loads((Path(__file__).parent / "known_differences.toml").read_text())
    report = Report([Known(**entry) for entries in known.values() for entry in entries])
    for name in ARGUMENTS.scenarios or SCENARIOS:
        begun = time.monotonic()
        try:
            SCENARIOS[name](Case(name, report))
        except (Failed, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            report.failed(name, f"{type(error).__name__}: {error}")
        report.line(name, "", f"took {time.monotonic() - begun:.1f} s")
    for entry in report.known:
        if not ARGUMENTS.scenarios and not entry.seen:
            print(f"was not seen this time: {entry.reason}")
    print(f"{report.compared} comparisons, {report.unexpected} unexpected differences")
    return 1 if report.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
