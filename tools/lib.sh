# shellcheck shell=bash
# What the scripts in tools/ share: messages, the packages and how to install them, building a preset.
# Sourced by a script that has said `set -euo pipefail`; runs nothing by itself.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
me=$(basename "$0")

step() { printf '\n==> %s\n' "$*"; }
say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() { # exit code, sentence
  local code=$1
  shift
  say "$*"
  exit "$code"
}
have() { command -v "$1" >/dev/null 2>&1; }

# The comment block at the top of the calling script is its --help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# Debian's names of everything that building, testing and training need.
# shellcheck disable=SC2034 # used by those who source this
packages=(
  g++ cmake ninja-build ccache pkg-config
  libucx-dev
  libdnnl-dev libcli11-dev libspdlog-dev libexpected-dev nlohmann-json3-dev libsodium-dev libhwy-dev
  libzstd-dev liblz4-dev
  libgtest-dev libgmock-dev
  python3 curl ca-certificates
)

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs those of the named packages that are missing, without asking anything: as root, or through `sudo -n`.
# Where neither works, prints the one line to type and exits with 2.
install_packages() {
  local missing=() name
  if ! have dpkg-query || ! have apt-get; then
    say "this is not a Debian system, so nothing is installed here; the build says what it lacks, by Debian's names."
    return
  fi
  for name in "$@"; do
    installed "$name" || missing+=("$name")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "all $# packages are there"
    return
  fi
  local line="apt-get install -y --no-install-recommends ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if have sudo && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      die 2 "these packages are missing and neither root nor a password-less sudo is at hand; type this, then run $me again:
  sudo $line"
    fi
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300
    -o Dpkg::Use-Pty=0)
  echo "installing ${missing[*]}"
  # The lists that are there may do; when they don't (none yet, or a version that has gone), fetch them and try again.
  local try
  for try in 0 1 2 3; do
    if [ "$try" -gt 0 ]; then
      sleep $((3 * (try - 1)))
      "${apt[@]}" update || continue
    fi
    if "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; then
      return
    fi
  done
  die 2 "apt-get could not install the missing packages (see its last lines above); once the network is there, run $me again, or type: sudo $line"
}

# How many jobs this machine carries: one a core, but 1.5 GB of free memory for each.
job_count() {
  local cores free_mb jobs
  cores=$(nproc)
  free_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  jobs=$((free_mb / 1536))
  [ "$jobs" -le "$cores" ] || jobs=$cores
  [ "$jobs" -ge 1 ] || jobs=1
  echo "$jobs"
}

# Configures and builds a preset; with more arguments, only those targets.
build() {
  local preset=$1
  shift
  step "Configuring build/$preset"
  (cd "$root" && cmake --preset "$preset")
  step "Building build/$preset${*:+: $*}"
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  (cd "$root" && cmake --build --preset "$preset" --parallel "$(job_count)" "${targets[@]}")
}
