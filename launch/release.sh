#!/usr/bin/env bash
# Builds the wheel and the sdist of a version and tries both; with --publish, also releases them.
# `launch/release.sh 0.2.0` is a dry run: nothing outside of dist/ changes. With --publish after it, the script writes version and
# changelog, commits, tags v0.2.0 and uploads to PyPI, which asks for a token.
# Each of python3.11, python3.12 and python3.13 that is installed gets an empty environment, the wheel and the sdist.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if [ "${1:-}" = --help ]; then
  usage
  exit
fi
cd "$(dirname "$0")/.."
version=${1:-}
publish=${2:-}
if ! [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { [ -n "$publish" ] && [ "$publish" != --publish ]; }; then
  echo "error: got '$*'; give a version of three numbers, then nothing or --publish: launch/release.sh 0.2.0" >&2
  exit 2
fi
if [ -n "$(git status --porcelain)" ]; then
  echo "error: the working tree has changes; commit them, because a release is of a commit." >&2
  exit 2
fi
if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
  echo "error: the tag v$version exists; give a later version." >&2
  exit 2
fi
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree"
cd "$work/tree"
python3 - "$version" <<'PYTHON'
import datetime, pathlib, re, sys

version = sys.argv[1]
init, log = pathlib.Path("jaxdistill/__init__.py"), pathlib.Path("CHANGELOG.md")
code, notes = init.read_text(), log.read_text()
if not re.search(rf"^## {re.escape(version)} \(unreleased\)$", notes, re.M):
    sys.exit(f"error: CHANGELOG.md has no heading '## {version} (unreleased)'; write what changed under it.")
init.write_text(re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', code, flags=re.M))
log.write_text(notes.replace(f"## {version} (unreleased)", f"## {version} ({datetime.date.today()})"))
PYTHON
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check build twine
"$work/tools/bin/python" -m build --outdir "$work/dist" . >/dev/null
"$work/tools/bin/twine" check --strict "$work"/dist/*
tried=0
for python in python3.11 python3.12 python3.13; do
  "$python" --version >/dev/null 2>&1 || { echo "$python is not installed; not tried"; continue; }
  for package in "$work"/dist/*; do
    "$python" -m venv --clear "$work/empty"
    "$work/empty/bin/pip" install --quiet --disable-pip-version-check "$package"
    (cd "$work" && JAX_PLATFORMS=cpu "$work/empty/bin/jaxdistill" --version)
    echo "$python installs $(basename "$package")"
    tried=$((tried + 1))
  done
done
[ "$tried" -gt 0 ] || { echo "error: none of python3.11, python3.12 and python3.13 is installed; install one." >&2; exit 1; }
if [ -n "$publish" ]; then
  git commit --quiet --all --message "Release $version"
  git tag "v$version"
  "$work/tools/bin/twine" upload "$work"/dist/*
  echo "v$version is uploaded and tagged; now: git merge --ff-only v$version && git push --tags origin HEAD"
else
  mkdir -p "$OLDPWD/dist"
  cp "$work"/dist/* "$OLDPWD/dist/"
  echo "dry run: dist/ has $(cd "$work/dist" && echo ./*); nothing was tagged or uploaded"
fi
