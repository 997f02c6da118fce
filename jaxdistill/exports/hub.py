"""Pushes an export to the Hugging Face hub, as one commit."""

import logging
import textwrap
from pathlib import Path

from jaxdistill.core import InputError, TemporaryError

log = logging.getLogger(__name__)

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
        raise InputError(f"--push_to_hub={name!r} is no name of a repository; give OWNER/NAME, such as me/student.")
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"--push_to_hub={name}: HF_HUB_OFFLINE is set, so nothing can be pushed; unset it.")
    if not huggingface_hub.get_token():
        raise InputError(f"--push_to_hub={name}: there is no token of the hub; {SIGN_IN}.")


def pushed(folder: Path, name: str, *, public: bool) -> Path:
    """Uploads all files of a folder, says where to, and returns the folder.

    Makes the repository if it does not exist, private unless `public`; one that exists keeps its visibility. The token comes
    from HF_TOKEN or the hub's login. Files that only an earlier push had stay.

    Raises:
      InputError: the hub refuses; the folder stays as it is.
      TemporaryError: the hub does not answer, so the same command may succeed later.
    """
    import huggingface_hub
    from huggingface_hub import errors

    hub = huggingface_hub.HfApi()
    try:
        address = hub.create_repo(name, private=not public, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload an export of jaxdistill")
        log.info("pushed: %s", address)
        return folder
    except Exception as error:  # the hub's client and what it stands on have no common error
        first = str(error).strip().split("\n")[0] or type(error).__name__
        reason = f"{type(error).__name__}: {textwrap.shorten(first, 200, placeholder=' ...')}"
        response = getattr(error, "response", None) if isinstance(error, errors.HfHubHTTPError) else None
        status = getattr(response, "status_code", 500)
        kind = InputError if status < 500 and status != 429 else TemporaryError
        refused = SIGN_IN if status in (401, 403, 404) else "correct what it names"
        advice = refused if kind is InputError else "give the same command again"
        raise kind(f"{folder} is written, but {name} was not pushed ({reason}); {advice}.") from None
