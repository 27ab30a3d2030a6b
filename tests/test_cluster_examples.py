"""The scripts for clusters in recipes/: run with stand-ins for srun, scontrol and curl, they start what they say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rlvr.commands.arguments import parse
from rlvr.commands.serve import ServeArgs
from rlvr.commands.train import load_recipe, recipe_config
from tests.helpers.files import ROOT

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
    """Its Python part compiles; recipes lists it."""
    text = (ROOT / "recipes" / "ray_job.sh").read_text()
    program = text.split("<<'PYTHON'\n")[1].split("\nPYTHON")[0]
    compile(program, "ray_job.sh", "exec")
    readme = Path(ROOT / "recipes" / "README.md").read_text()
    assert all(name in readme for name in ("slurm.sbatch", "ray_job.sh"))
