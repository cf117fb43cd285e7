"""Runs the two programs under test: NeMo Gym's command line and rollstream's."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

# Loaded once. Each call of NeMo Gym is a fork of this process that runs its real command line, since loading it takes
# longer than most of what is compared here.
import nemo_gym.cli.eval  # noqa: F401
import nemo_gym.cli.main
import nemo_gym.comparison.runner  # noqa: F401
import nemo_gym.reward_profile  # noqa: F401
import nemo_gym.rollout_collection  # noqa: F401
import nemo_gym.rollout_health  # noqa: F401

TIMEOUT_SECONDS = 120


class Failed(Exception):
    """A program ended with an exit code that was not expected, or did not end."""


def gym(*arguments, cwd, expect=(0,)):
    """Runs `gym ARGUMENTS` in `cwd` and returns its exit code. What it prints goes to `gym.log` there."""
    log = Path(cwd) / "gym.log"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(cwd)
            write_to(log)
            sys.argv = ["gym", *map(str, arguments)]
            nemo_gym.cli.main.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + TIMEOUT_SECONDS
    ended = 0
    while not ended and time.monotonic() < until:
        time.sleep(0.01)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise Failed(f"gym did not end within {TIMEOUT_SECONDS} s; see {log}")
    return checked(os.waitstatus_to_exitcode(status), expect, ["gym", *arguments], log)


def write_to(log):
    """Makes this process write all it prints to the end of a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def rollstream(binary, *arguments, cwd, expect=(0,)):
    """Runs `rollstream ARGUMENTS` in `cwd` and returns its exit code. What it prints goes to `rollstream.log` there."""
    log = Path(cwd) / "rollstream.log"
    command = [binary, *map(str, arguments)]
    with log.open("a") as out:
        try:
            code = subprocess.run(command, cwd=cwd, stdout=out, stderr=out, timeout=TIMEOUT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"rollstream did not end within {TIMEOUT_SECONDS} s; see {log}") from None
    return checked(code, expect, command, log)


def checked(code, expect, command, log):
    command = " ".join(map(str, command))
    with log.open("a") as out:
        out.write(f"$ {command}\nexit code {code}\n")
    if code not in expect:
        raise Failed(f"exit code {code} of {command}; see {log}")
    return code


class Simulator:
    """`rollstream sim`, for as long as the block lasts."""

    def __init__(self, binary, *arguments, cwd):
        self.command, self.cwd = [binary, "sim", "--port", "0", "--json", *arguments], cwd

    def __enter__(self):
        with (Path(self.cwd) / "sim.log").open("w") as log:
            self.process = subprocess.Popen(self.command, cwd=self.cwd, stdout=subprocess.PIPE, stderr=log, text=True)
        self.port = int(json.loads(self.process.stdout.readline())["head_server"].rsplit(":", 1)[1])
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
