#!/bin/sh
# Parts of tests/gpu/test_d2.py side by side, each a process with a log in the folder $1 (compiling kernels takes one
# core each); the tables last. One that takes longer than $LIMIT seconds, where that is set, is ended, and is bad.
# Further arguments are lines of options:
#     tests/gpu/d2_together.sh logs "--only operators --names rows" "--only tiles"
set -u
cd "$(dirname "$0")/../.."
folder=$1
shift
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- "--only operators --names covered" "--only operators --names safe" "--only operators --names products" \
    "--only operators --names convolutions" "--only operators --names rows" "--only operators --names channels" \
    "--only formulas" "--only tiles" "--only golden" "--only controls"
number=0
for options in "$@"; do
    number=$((number + 1))
    # shellcheck disable=SC2086  options are several words
    OMP_NUM_THREADS=${THREADS:-2} ${LIMIT:+timeout -k 10 "$LIMIT"} $python -u tests/gpu/test_d2.py $options >"$folder/part-$number.log" 2>&1 &
done
wait
bad=0
for log in "$folder"/part-*.log; do
    echo "== $log"
    tail -n 40 "$log" | cut -c 1-600
    grep -q 'BAD\|Traceback' "$log" && bad=1
    grep -q '^| part' "$log" || { echo "no verdict: it was ended, or did not begin"; bad=1; }
done
exit $bad
