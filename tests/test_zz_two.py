import sys
import numpy as np
import pytest
import gcs, program
from jaxdistill.workdir import bucket

def test_two(tmp_path):
    with gcs.emulated() as (store, variables), pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        program.tiny_arguments(tmp_path)
        opts = dict(data__cache_folder="", student__dropout=0.1, evals__every=10, run__steps=20)
        w = "gs://bucket/runs/two"
        given = [*program.tiny_arguments(tmp_path, **opts, run__sharding=(("kernel$", ("data", "")),)), f"--workdir={w}"]
        own = [{"JAXDISTILL_CACHE": str(tmp_path / f"cache{n}")} for n in (0, 1)]
        both = program.start_all(given, variables=own)
        (first, e1), (second, e2) = program.ended(both, 0)
        print(first[-500:], e1[-800:], e2[-800:])
        patched.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
        alone = tmp_path / "alone"
        program.run("main", [*program.tiny_arguments(tmp_path, **opts), f"--workdir={alone}"])
        found = bucket.fetched(w).folder
        np.testing.assert_allclose(list(program.series(found, "loss").values()), list(program.series(alone, "loss").values()), rtol=1e-5)
        assert any("ocdbt.process_1" in n for n in store.objects)
        assert (tmp_path / "cache1" / "workdirs").is_dir()
