#!/usr/bin/env bash
# build.sh DIR: builds the peer, llama.cpp, from the source that the crate llama-cpp-sys-4 carries, into
# DIR/bin: llama-bench and llama-perplexity. About 8 minutes on 2 cores; done steps are kept.
set -euo pipefail
dir=${1:?usage: build.sh DIR}
mkdir -p "$dir/bin"
dir=$(cd "$dir" && pwd)
crate=llama-cpp-sys-4 version=0.11.0
say() { printf 'peer: %s\n' "$*" >&2; }

missing=()
for tool in cmake:cmake ninja:ninja-build g++:g++; do
  command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "apt-get install ${missing[*]}"
  run=()
  [ "$(id -u)" -eq 0 ] || run=(sudo)
  "${run[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null
fi

if [ ! -f "$dir/source/CMakeLists.txt" ]; then
  say "fetching $crate $version"
  fetch=$dir/fetch
  rm -rf "$fetch"
  mkdir -p "$fetch/src"
  : > "$fetch/src/lib.rs"
  cat > "$fetch/Cargo.toml" <<TOML
[package]
name = "fetch-peer"
version = "0.0.0"
edition = "2024"
[dependencies]
$crate = "=$version"
[workspace]
TOML
  (cd "$fetch" && cargo vendor -q vendor >/dev/null)
  mv "$fetch/vendor/$crate/llama.cpp" "$dir/source"
  rm -rf "$fetch"
fi

say "building"
cmake -S "$dir/source" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
  -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF > "$dir/cmake.log" 2>&1
ninja -C "$dir/build" llama-bench llama-perplexity > "$dir/ninja.log" 2>&1
for tool in llama-bench llama-perplexity; do
  ln -sfn "$dir/build/bin/$tool" "$dir/bin/$tool"
done
