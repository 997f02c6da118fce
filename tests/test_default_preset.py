"""The command with nothing but a config: its quickstart, in a folder named after it."""

import pytest

from jaxdistill import main
from jaxdistill.config.files import shipped_configs
from jaxdistill.core import InputError

CONFIGS = shipped_configs()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_alone_trains_offline_on_the_embedded_text(path, tmp_path, monkeypatch):
    """Its quickstart: text and models come with packages, and nothing but the config has to be given."""
    monkeypatch.chdir(tmp_path)
    main.main([f"--config=configs/{path.name}", "--check=here"])
    flags = main.parse_flags([f"--config={path}"])
    assert flags.workdir == f"runs/{path.stem}-quickstart"
    for stage in flags.stages:
        sources = [stage.data.text, stage.teacher.model, stage.student.model]
        assert all(not name or name.startswith(("package:", "teacher", "previous", "stage")) for name in sources)


def test_the_workdir_is_named_after_config_and_preset(tmp_path):
    assert main.parse_flags(["--config=l2.py:paper:bert-tiny"]).workdir == "runs/l2-paper-bert-tiny"
    (tmp_path / "mine.py").write_text(
        "from jaxdistill.config import defaults\ndef get_config(): return defaults(objective='simcse')\n"
    )
    assert main.parse_flags([f"--config={tmp_path / 'mine.py'}"]).workdir == "runs/mine"
    with pytest.raises(InputError, match="--workdir is empty"):
        main.parse_flags(["--config=l2.py", "--workdir="])
