#!/usr/bin/env bash
# Installs what a build needs and is missing: a C++ compiler, a fast linker, a Python environment; with the word `llama`,
# also what llama.cpp is built with. Runs again in under a second when nothing is missing. Prints only what it does.
set -euo pipefail
cd "$(dirname "$0")/.."

need_packages=()
command -v g++ >/dev/null || need_packages+=(g++)
command -v mold >/dev/null || need_packages+=(mold)
command -v python3 >/dev/null || need_packages+=(python3)
python3 -c 'import venv, ensurepip' 2>/dev/null || need_packages+=(python3-venv)
if [ "${1:-}" = llama ]; then
  for tool in cmake ccache; do command -v $tool >/dev/null || need_packages+=($tool); done
  command -v ninja >/dev/null || need_packages+=(ninja-build)
  ls /usr/lib/llvm-*/lib/libclang.so* /usr/lib/*/libclang*.so* >/dev/null 2>&1 || need_packages+=(libclang-dev)
fi
if [ ${#need_packages[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
    echo "setup: installing ${need_packages[*]}"
    "${as_root[@]}" apt-get update -qq >/dev/null
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need_packages[@]}" >/dev/null ||
      echo "setup: apt-get could not install ${need_packages[*]}; the build goes on without" >&2
  else
    echo "setup: please install: ${need_packages[*]}" >&2
  fi
fi

if ! command -v cargo >/dev/null; then
  echo "setup: Rust 1.95 or newer is needed (cargo is not on the PATH); install it with rustup or your distribution" >&2
  exit 1
fi

# Cargo tells old from new by time alone. Where another checkout built last, its artefacts must not pass for this one's.
if [ -n "${CARGO_TARGET_DIR:-}" ]; then
  mkdir -p "$CARGO_TARGET_DIR"
  if [ "$(cat "$CARGO_TARGET_DIR/.checkout" 2>/dev/null)" != "$PWD" ]; then
    find core bindings benches tests examples -name '*.rs' -exec touch {} +
    pwd >"$CARGO_TARGET_DIR/.checkout"
  fi
fi

stamp=.venv/.requirements
if [ ! -x .venv/bin/python ] || ! cmp -s scripts/requirements.txt "$stamp"; then
  echo "setup: making the Python environment .venv"
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
fi
