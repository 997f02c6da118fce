"""Pushes an export to the Hugging Face hub, as one commit."""

import logging
import textwrap
from pathlib import Path

from jaxdistill.core import InputError, TemporaryError, error_line, refuse
from jaxdistill.files.folders import MARK, listed

log = logging.getLogger(__name__)

STARTED = {".gitattributes", "README.md", "LICENSE"}
"""Files that the hub puts into a new repository."""
TRANSIENT = {408, 409, 412, 429}
"""Refusals that a repeat may cure: a timeout, a commit in between, too many requests."""
SIGN_IN = "sign in with `hf auth login`, or set HF_TOKEN to a token that may write"


def check(name: str) -> None:
    """Raises `InputError` if nothing can be pushed to a repository of this name from here: before the export is made."""
    import huggingface_hub
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        valid = "/" in name
    except errors.HFValidationError:
        valid = False
    if not valid:
        raise InputError(f"--push_to_hub={name!r} is not a repository name; give OWNER/NAME, such as me/student.")
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"--push_to_hub={name}: HF_HUB_OFFLINE is set, so nothing can be pushed; unset it.")
    if not huggingface_hub.get_token():
        raise InputError(f"--push_to_hub={name}: there is no hub token; {SIGN_IN}.")


def pushed(folder: Path, name: str, *, public: bool) -> Path:
    """Uploads the files of an export, without others that the folder may hold, and returns the folder.

    Makes the repository if it does not exist, private unless `public`. The token comes from HF_TOKEN or the hub's login. Files
    that only an earlier push had stay.

    Raises:
      InputError: the repository is public and `public` is not given, it holds something else, or the hub refuses; the folder
        stays as it is.
      TemporaryError: the hub does not answer, so the same command may succeed later.
    """
    import huggingface_hub
    from huggingface_hub import errors

    hub = huggingface_hub.HfApi()
    try:
        address = hub.create_repo(name, private=not public, exist_ok=True)
        there = hub.model_info(name)
        names = {file.rfilename for file in there.siblings or ()} - STARTED
        refuse([
            (not there.private and not public, f"{name} is public; give --public to push to it, or another name."),
            (names and MARK not in names, f"{name} holds {min(names, default='')} and no export; give another name."),
        ])  # fmt: skip
        files = [*listed((folder / MARK).read_bytes()), MARK]
        operations = [huggingface_hub.CommitOperationAdd(file, folder / file) for file in files]
        hub.create_commit(name, operations, commit_message="Upload an export of jaxdistill")
        log.info("pushed: %s", address)
        return folder
    except InputError:
        raise
    except Exception as error:  # the hub's client and what it stands on have no common error
        reason = f"{type(error).__name__}: {textwrap.shorten(error_line(error), 200, placeholder=' ...')}"
        response = getattr(error, "response", None) if isinstance(error, errors.HfHubHTTPError) else None
        status = getattr(response, "status_code", 500)
        kind = InputError if status < 500 and status not in TRANSIENT else TemporaryError
        refused = SIGN_IN if status in (401, 403, 404) else "correct what it names"
        advice = refused if kind is InputError else "give the same command again"
        raise kind(f"{folder} is written, but {name} was not pushed ({reason}); {advice}.") from None
