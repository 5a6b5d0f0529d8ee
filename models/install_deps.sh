#!/usr/bin/env bash
# Installs what building needs and is missing: LLVM 22 from Debian's packages. Rust comes from rustup.
set -euo pipefail
say() { printf 'deps: %s\n' "$*" >&2; }
if ! command -v cargo >/dev/null; then
  say "cargo is missing: install Rust 1.95 or newer with rustup"
  exit 1
fi
need=()
command -v llvm-config-22 >/dev/null || need+=(llvm-22-dev)
command -v cc >/dev/null || need+=(gcc)
command -v g++ >/dev/null || need+=(g++)
command -v python3 >/dev/null || need+=(python3)
python3 -m pip --version >/dev/null 2>&1 || need+=(python3-pip)
[ ${#need[@]} -eq 0 ] && exit 0
say "apt-get install ${need[*]}"
run=()
[ "$(id -u)" -eq 0 ] || run=(sudo)
"${run[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
