# Installs missing Debian packages, and looks at what a machine or container allows. Sourced by the other scripts.

say() { printf '\n== %s\n' "$*" >&2; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# cores: how many may be kept busy: those of this process, or fewer where the container has a limit (docker run --cpus=2).
cores() {
  local count quota=max period=1
  count=$(nproc)
  read -r quota period < <(cat /sys/fs/cgroup/cpu.max 2> /dev/null) || true
  if [[ $quota =~ ^[1-9][0-9]*$ && $period =~ ^[1-9][0-9]*$ ]] && (((quota + period - 1) / period < count)); then
    count=$(((quota + period - 1) / period))
  fi
  echo "$count"
}
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(cores)}

# tests_can_run_what_they_write: programs and libraries, for which build/tmp is used where the folder for temporary files
# allows none.
tests_can_run_what_they_write() {
  local probe
  probe=$(mktemp)
  printf '#!/bin/sh\n' > "$probe"
  chmod +x "$probe"
  if ! "$probe" 2> /dev/null; then
    mkdir -p build/tmp
    export TMPDIR=$PWD/build/tmp
  fi
  rm -f "$probe"
}

# sanitized COMMAND…: runs programs with sanitizers of gcc 12 or clang 14, which may not start where more than 28 bits of
# addresses are random. Only root sees how many are.
sanitized() {
  local bits
  bits=$(cat /proc/sys/vm/mmap_rnd_bits 2> /dev/null || echo unknown)
  if [[ $bits != 28 ]] && setarch -R true 2> /dev/null; then
    setarch -R "$@"
  elif [[ $bits =~ ^[0-9]+$ ]] && ((bits > 28)); then
    fail "the sanitizers of gcc 12 and clang 14 need: sysctl vm.mmap_rnd_bits=28"
  else
    "$@"
  fi
}

# Build dependencies. ocl-icd-opencl-dev: CMake finds Debian's oneDNN only together with OpenCL.
BUILD_PACKAGES=(g++ cmake ninja-build ccache libprotobuf-dev protobuf-compiler libdnnl-dev ocl-icd-opencl-dev
  libspdlog-dev libfmt-dev nlohmann-json3-dev zlib1g-dev liblzma-dev libpng-dev libjpeg62-turbo-dev libwebp-dev libutf8proc-dev libpcre2-dev libssl-dev)

# For training in several processes (mpirun, srun): optional.
MPI_PACKAGES=(openmpi-bin libopenmpi-dev)

# need_packages NAME…: installs missing packages with apt-get; does not run apt if all are installed. With OFFLINE
# set it only lists the missing ones.
need_packages() {
  if ! command -v dpkg-query > /dev/null; then
    say "this is not Debian, so nothing was installed; these packages are needed (Debian names): $*"
    return
  fi
  local package missing=() as_root=()
  for package in "$@"; do
    [[ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null)" == installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  [[ -z "${OFFLINE:-}" ]] || fail "packages are missing, and --offline forbids downloads: ${missing[*]}"
  say "installing ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo > /dev/null ||
      fail "packages are missing; install them as root: apt-get install ${missing[*]}"
    as_root=(sudo)
    [[ -t 0 ]] || as_root=(sudo --non-interactive)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes)
  # The package lists may be recent enough: they are updated only if the installation fails.
  if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" > /dev/null 2>&1; then
    "${apt[@]}" update >&2 ||
      fail "apt-get update failed (see the output above); check the network and /etc/apt"
    "${apt[@]}" install --no-install-recommends "${missing[@]}" >&2 ||
      fail "apt-get could not install ${missing[*]} (see the output above); pipetrain is built on Debian 12"
  fi
}
