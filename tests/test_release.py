"""The release script refuses what is no release before it builds anything."""

import shutil
import subprocess

from conftest import ROOT


def released(folder, *arguments):
    done = subprocess.run(["launch/release.sh", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_a_release_has_a_version_and_is_of_a_commit_that_has_no_tag(tmp_path):
    (tmp_path / "launch").mkdir()
    shutil.copy(ROOT / "launch" / "release.sh", tmp_path / "launch")
    (tmp_path / "jaxdistill").mkdir()
    (tmp_path / "jaxdistill" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (unreleased)\n")
    for command in ("init -q", "add -A", "-c user.name=A -c user.email=a@b commit -qm All"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    for arguments in ((), ("v0.2.0",), ("0.2.0", "--upload")):
        assert "launch/release.sh 0.2.0" in released(tmp_path, *arguments)
    (tmp_path / "new.txt").write_text("new")
    assert "commit them" in released(tmp_path, "0.2.0")
    (tmp_path / "new.txt").unlink()
    subprocess.run(["git", "tag", "v0.2.0"], cwd=tmp_path, check=True)
    assert "give a later version" in released(tmp_path, "0.2.0")
