#!/bin/sh
# The main job on real weights: `make demo-cluster` builds the program and then runs this.
#
#   demo/run.sh [DCR [WORK_DIR]]     default: build/release/bin/dcr build/demo
#
# Fetches a real model, takes it through the training steps recorded in demo/steps, and then does
# with those checkpoints what a user does: on files diff, apply, verify, a chain, in place; between
# ranks a refit of each step, from sharded owners to sharded receivers, in one process and then in
# a cluster of processes of which some are killed. Files are checked twice, by
# `dcr verify` and by diff(1); receivers byte for byte against a dense load. Ends with a table of
# the steps. Exit code 0 only if everything came out equal.
set -eu

demo=$(cd "$(dirname "$0")" && pwd)
dcr=${1:-$demo/../build/release/bin/dcr}
work=${2:-$demo/../build/demo}

say() { printf '\n== %s\n' "$*"; }

fail() {
  printf '%s: %s\n' "$0" "$*" >&2
  exit 1
}

# Runs a command and shows its standard error, warnings and progress, only if it fails.
quiet() {
  "$@" 2>"$work/stderr.txt" || {
    code=$?
    cat "$work/stderr.txt" >&2
    return "$code"
  }
}

# check NEW COPY: both are the same directory, by dcr and by diff(1).
check() {
  quiet "$dcr" verify --files "$1" "$2" || fail "$2 differs from $1"
  diff -r "$1" "$2" >&2 || fail "$2 differs from $1, and dcr verify did not see it"
}

[ -x "$dcr" ] || fail "there is no program $dcr; run make first, or make demo-cluster"
[ -f "$demo/steps/step1.dcr" ] || fail "there are no recorded steps in $demo/steps"
mkdir -p "$work"
work=$(cd "$work" && pwd)

say "the model: all-MiniLM-L6-v2, a sentence encoder, its weights in BF16"
"$demo/fetch.sh" "$work"
rm -rf "$work"/step* "$work"/made* "$work"/copy* "$work/chain" "$work/in_place"
python3 "$demo/to_bf16.py" "$work/f32" "$work/step0"

say "real training steps, recorded by demo/train.py: each delta makes the next checkpoint"
steps=0
set -- # the chain of recorded deltas
while [ -f "$demo/steps/step$((steps + 1)).dcr" ]; do
  old=$work/step$steps
  steps=$((steps + 1))
  delta=$demo/steps/step$steps.dcr
  set -- "$@" "$delta"
  quiet "$dcr" apply "$delta" "$old" -o "$work/step$steps"
done

say "diff, apply and verify for each step: what goes in must come out, file for file"
n=0
same=0
while [ "$n" -lt "$steps" ]; do
  old=$work/step$n
  n=$((n + 1))
  new=$work/step$n
  "$dcr" diff "$old" "$new" -o "$work/made$n.dcr" --json >"$work/made$n.json"
  "$dcr" apply "$work/made$n.dcr" "$old" -o "$work/copy$n" --json >"$work/copy$n.json"
  printf 'step %s: ' "$n"
  check "$new" "$work/copy$n"
  rm -rf "$work/copy$n"
  if cmp -s "$work/made$n.dcr" "$demo/steps/step$n.dcr"; then same=$((same + 1)); fi
done
# Another version of zstd may compress to other bytes, which decode to the same.
echo "$same of $steps deltas have the very bytes of the recorded ones"

say "refit for each step: 8 owners hold it sharded, 8 receivers serve it fused and sharded"
n=0
while [ "$n" -lt "$steps" ]; do
  old=$work/step$n
  n=$((n + 1))
  for owners in fsdp:8 tp:4,dp:2; do
    "$dcr" refit "$old" "$work/step$n" --owners "$owners" --receivers fused-tp:8 --json \
      >"$work/refit$n-$owners.json" || fail "the refit of step $n from $owners is not exact"
  done
done
quiet "$dcr" refit "$work/step$((steps - 1))" "$work/step$steps" --owners tp:4,dp:2
echo "a refit in mode verify writes nothing and tells whether receivers hold the new weights:"
code=0
"$dcr" refit "$work/step0" "$work/step1" --mode verify >"$work/audit.txt" 2>/dev/null || code=$?
[ "$code" -eq 1 ] || fail "an audit of the wrong weights exited with $code instead of 1"
tail -n 1 "$work/audit.txt"

say "a cluster of real processes: each step a refit, with a receiver and the coordinator killed"
versions=
n=0
while [ "$n" -lt "$steps" ]; do
  n=$((n + 1))
  versions="$versions --to $work/step$n"
done
# $versions is a list of words.
# shellcheck disable=SC2086
"$dcr" local --from "$work/step0" $versions --owners 4 --nodes 3 --receivers-per-node 2 \
  --kill receiver@apply:2 --kill coordinator@commit:3 --report "$work/cluster.json" ||
  fail "the cluster did not come to the last step whole"

say "a chain of all $steps deltas from step 0, into a new directory and in place"
quiet "$dcr" apply "$@" "$work/step0" -o "$work/chain"
check "$work/step$steps" "$work/chain"
cp -R "$work/step0" "$work/in_place"
quiet "$dcr" apply "$@" "$work/in_place" --in-place
check "$work/step$steps" "$work/in_place"

say "what must be refused"
code=0
"$dcr" verify "$work/step0" "$work/step1" >"$work/differs.txt" 2>/dev/null || code=$?
[ "$code" -eq 1 ] || fail "verify of two different checkpoints exited with $code instead of 1"
tail -n 1 "$work/differs.txt"
code=0
"$dcr" apply "$work/made1.dcr" "$work/step$steps" -o "$work/copy" 2>"$work/refused.txt" || code=$?
[ "$code" -eq 3 ] || fail "a delta applied to a wrong base exited with $code instead of 3"
tail -n 1 "$work/refused.txt"

say "where the bytes of step 1 go"
quiet "$dcr" inspect "$work/made1.dcr"

say "summary"
python3 "$demo/table.py" "$work" "$steps"
