"""The launchers' files, which other programs run: the JobSet of GKE, SkyPilot's task, the container."""

import itertools
import math
import os
import re
import subprocess

import pytest
import yaml
from jax._src.clusters.cloud_tpu_cluster import coordinator_port

from jaxdistill import cli

from conftest import ROOT


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
    assert refusal["containerName"] == container["name"] and refusal["values"] == [cli.BAD_INPUT]
    assert int(coordinator_port) in [port["containerPort"] for port in container["ports"]]
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["args"][0] == "train" and f"--workdir={mounted[0]}/runs/l3" in container["args"]
    assert [volume["name"] for volume in pod["volumes"]] == [mount["name"] for mount in container["volumeMounts"]]


def test_the_sky_task_joins_its_nodes_and_goes_on_after_a_preemption(tmp_path):
    task = loaded("sky.yaml")
    assert task["resources"]["use_spot"] and task["resources"]["job_recovery"]["recover_on_exit_codes"] == [cli.AGAIN]
    ((mounted, bucket),) = task["file_mounts"].items()
    assert bucket["mode"] == "MOUNT" and f"--config.data.text={mounted}/" in task["envs"]["ARGUMENTS"]
    # What is written does not go through the mount, which has no locks and no renames of folders.
    assert task["envs"]["WORKDIR"].startswith(f"gs://{bucket['name']}/") and bucket["store"] == "gcs"
    assert not task["envs"]["JAXDISTILL_CACHE"].startswith(mounted) and "$EXTRA,storage]" in task["setup"]
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho $JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID "$@"\n')
    python.chmod(0o755)
    nodes = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}

    def started(**given):
        command, environment = ["bash", "-c", task["run"]], os.environ | task["envs"] | nodes | given
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    expected = ["10.0.0.1:8476", "2", "1", "-m", "jaxdistill.main", *task["envs"]["ARGUMENTS"].split()]
    assert started().stdout.split() == [*expected, f"--workdir={task['envs']['WORKDIR']}"]
    refused = started(WORKDIR="/data/runs/l3")
    assert refused.returncode == cli.BAD_INPUT and "WORKDIR=/data/runs/l3 is lost with the machine" in refused.stderr


@pytest.mark.parametrize("name", ["sky.yaml", "gke_jobset.yaml"])
def test_the_configs_of_the_launchers_exist(name):
    path, preset = re.findall(r"--config=(configs/\w+\.py):([\w-]+)", (ROOT / "launch" / name).read_text())[-1]
    assert f'"{preset}"' in (ROOT / path).read_text()


def instructions(path):
    """(instruction, words) of a Dockerfile."""
    text = re.sub(r"\\\n", " ", path.read_text())
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_container_takes_what_exists_and_ends_as_a_plain_user():
    steps = instructions(ROOT / "launch" / "Dockerfile")
    copied = [rest.split()[:-1] for word, rest in steps if word == "COPY" and "--from" not in rest]
    sources = set(itertools.chain.from_iterable(copied))
    assert all((ROOT / source).exists() for source in sources)
    sent = (ROOT / "launch" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == sources
    assert [rest for word, rest in steps if word == "USER"][-1] not in ("root", "0")
    assert steps[-2] == ("ENTRYPOINT", '["jaxdistill"]')
