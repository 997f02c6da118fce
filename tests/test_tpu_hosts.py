"""Hosts of a TPU slice find each other, on a Cloud TPU by its metadata and on GKE by variables; both are simulated here."""

import http.server
import os
import threading

import pytest
from jax._src import cloud_tpu_init
from jax._src.clusters import cloud_tpu_cluster

from jaxdistill.core import InputError
from jaxdistill.processes.launch import own_place


@pytest.fixture(autouse=True)
def a_tpu_host(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TPU_", "MEGASCALE_", "JAX_COORDINATOR", "JAX_NUM_PROC", "JAX_PROCESS", "SLURM_", "OMPI_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for module in (cloud_tpu_init, cloud_tpu_cluster):
        monkeypatch.setattr(module, "running_in_cloud_tpu_vm", True)


@pytest.fixture
def metadata(monkeypatch):
    """Values that a server hands out as Google's metadata server does."""
    values: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            found = values.get(self.path.removeprefix("/computeMetadata/v1/instance/attributes/"))
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "*")
    yield values
    server.shutdown()
    server.server_close()


WORKERS = "key:unused:127.0.0.1,key:unused:127.0.0.2,key:unused:127.0.0.3,key:unused:127.0.0.4"


def test_hosts_of_a_cloud_tpu_find_each_other_by_its_metadata(metadata):
    metadata |= {"tpu-env": "ZONE: 'z'\n", "agent-worker-number": "2", "worker-network-endpoints": WORKERS}
    assert own_place() == ("127.0.0.1", 8482, 4, 2, None)


def test_hosts_of_several_slices_count_all_of_them(metadata):
    slices = "MEGASCALE_COORDINATOR_ADDRESS: '127.0.0.9:8080'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    metadata |= {"tpu-env": slices, "agent-worker-number": "2", "worker-network-endpoints": WORKERS}
    assert own_place() == ("127.0.0.9", 8482, 8, 6, None)


def test_pods_of_gke_find_each_other_by_variables(metadata, monkeypatch):
    metadata["tpu-env"] = ""
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "true")  # as GKE sets it
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "127.0.0.1,127.0.0.2")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    assert own_place() == ("127.0.0.1", 8482, 2, 1, None)


def test_a_host_of_a_slice_whose_number_is_not_given_is_refused(metadata, monkeypatch):
    metadata["tpu-env"] = ""
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "true")  # as GKE sets it
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "127.0.0.1,127.0.0.2")
    with pytest.raises(InputError, match="set JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT"):
        own_place()
