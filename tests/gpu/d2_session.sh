#!/bin/sh
# What is to be checked and measured of D2 on a GPU, most wanted first, in three parts of at most nine minutes each:
#     tests/gpu/d2_session.sh 1 [FOLDER]     are the bits the CPU's? golden runs, operators, tiles, controls, plans
#     tests/gpu/d2_session.sh 2 [FOLDER]     where time and memory of a step go; models of full size against the CPU
#     tests/gpu/d2_session.sh 3 [FOLDER]     the figures of docs/benchmarks.md; REPDL=FOLDER builds RepDL and compares
# BUILT=1: the C library is there. KERNELS=FILE.tar.xz: compiled kernels, which each part leaves in the folder.
# Logs and results go to the folder ($OUT, else benchmarks/results). FLAGS="--device cpu --tiny" tries it without a GPU.
# The last lines say of each step how it ended: 0 is good, 124 is out of time.
set -u
part=${1:?1, 2 or 3}
cd "$(dirname "$0")/../.."
folder=${2:-${OUT:-benchmarks/results}}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
python=${PYTHON:-python3}
flags=${FLAGS:-}
export PYTHON="$python" PYTHONPATH="$PWD/src:$PWD:$PWD/tests" CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
ended=""
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/d2-kernels}"
mkdir -p "$TRITON_CACHE_DIR"
[ -z "${KERNELS:-}" ] || tar -xJf "$KERNELS" -C "$TRITON_CACHE_DIR"

# of so many seconds at most, with a log of this name, whose last characters are shown
step() {
    limit=$1 name=$2 shown=$3
    shift 3
    began=$(date +%s)
    timeout -k 10 "$limit" "$@" >"$folder/$name.log" 2>&1
    code=$?
    echo "== $name"
    tail -c "$shown" "$folder/$name.log"
    ended="$ended
$name: $code after $(($(date +%s) - began)) s"
}

# kernels are compiled on all cores, before something is timed: seconds, then lines of options of benchmarks/gpu/d2.py
compiled() {
    limit=$1
    shift
    for line in "$@"; do
        timeout "$limit" $python benchmarks/gpu/d2.py $flags --rounds 1 --results "$(mktemp -u)" $line >/dev/null 2>&1 &
    done
    wait
}

# several lines of options of test_d2.py at once: seconds, name, lines
together() {
    limit=$1 name=$2
    shift 2
    mkdir -p "$folder/$name"
    for line in "$@"; do
        set -- "$@" "$line $flags"
        shift
    done
    export LIMIT="$limit"
    step $((limit + 20)) "$name" 1 sh tests/gpu/d2_together.sh "$folder/$name" "$@"
    unset LIMIT
    cat "$folder/$name"/part-*.log | grep '^| [a-z]* | [^w]\|Error' | cut -c 1-400
    grep -B1 'no verdict' "$folder/$name.log"
}

# shellcheck disable=SC2086  flags are several words
case $part in
1)
    [ -n "${BUILT:-}" ] || step 60 build 300 $python hatch_build.py
    if [ -z "$flags" ]; then # writes who recorded them, where all bits are the same; nothing where they are not
        step 120 golden 1500 $python tests/gpu/record_golden.py
        cp tests/golden/d2.json "$folder/golden-d2.json"
    else
        step 120 golden 1500 $python tests/gpu/test_d2.py --only golden $flags
    fi
    together 330 bits "--only plans --names plans" "--only plans --names flight" "--only operators --names sliced" \
        "--only operators --names convolutions" "--only operators --names covered" "--only operators --names safe" \
        "--only operators --names products" "--only operators --names rows" "--only operators --names channels" \
        "--only formulas" "--only tiles" "--only controls"
    ;;
2)
    [ -n "${BUILT:-}" ] || step 60 build 300 $python hatch_build.py
    step 200 profile 6500 $python benchmarks/gpu/d2_profile.py $flags --results "$folder/d2-profile-gpu.json" \
        --models shufflenetv2,yolov3,vgg19,resnet50,electra,bert,swin,gpt,neumf
    export THREADS=5
    together 250 models "--only models --steps 2 --models vgg19" "--only models --steps 2 --models yolov3" \
        "--only models --steps 2 --models electra"
    step 70 curves 1500 $python benchmarks/gpu/d2.py $flags --results "$folder/d2-gpu.json" --only curves \
        --models shufflenetv2,bert,neumf
    ;;
3)
    results=$folder/d2-gpu.json
    [ -n "$flags" ] || [ -e "$results" ] || cp benchmarks/results/d2-gpu.json "$results"
    bench="$python benchmarks/gpu/d2.py $flags --results $results"
    [ -n "${BUILT:-}" ] || step 60 build 300 $python hatch_build.py
    if [ -n "${REPDL:-}" ] && [ -z "$flags" ]; then
        (cd "$REPDL" && mkdir -p repdl/backend && TORCH_CUDA_ARCH_LIST=9.0 $python setup.py build_ext --inplace) >"$folder/repdl-build.log" 2>&1 &
    fi
    began=$(date +%s)
    compiled 150 "--only steps --models vgg19" "--only steps --models shufflenetv2" "--only steps --models yolov3" \
        "--only steps --models resnet50" "--only steps --models bert" "--only steps --models electra" \
        "--only steps --models gpt" "--only steps --models swin" "--only steps --models neumf" "--only operators" \
        "--only convolutions --models vgg19" "--only products --models swin"
    ended="$ended
compiled: 0 after $(($(date +%s) - began)) s"
    step 200 steps 2500 $bench --only steps --models shufflenetv2,bert,electra,yolov3,swin,neumf,gpt,resnet50,vgg19
    step 60 operators 2500 $bench --only operators
    step 70 convolutions 2500 $bench --only convolutions --models vgg19
    step 60 products 1500 $bench --only products --models swin
    if [ -n "${REPDL:-}" ] && [ -z "$flags" ]; then
        step 70 repdl 2500 $python benchmarks/gpu/repdl.py --path "$REPDL" --results "$results"
    fi
    ;;
*)
    echo "no part $part"
    exit 2
    ;;
esac
tar -cJf "$folder/kernels.tar.xz" -C "$TRITON_CACHE_DIR" --exclude='*.ttir' --exclude='*.ttgir' --exclude='*.llir' \
    --exclude='*.ptx' --exclude='*.source' .
echo "$ended"
! echo "$ended" | grep -q ': [1-9]'
