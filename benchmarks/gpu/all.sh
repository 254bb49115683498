#!/bin/sh
# All GPU measurements of docs/benchmarks.md, most wanted first, with the bits checked before; about nine minutes on an
# H200. Results go to benchmarks/results, and to the folder $1 after each part, so that a run that is cut off counts.
set -u
cd "$(dirname "$0")/../.."
export PYTHONPATH=src CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
keep() { [ -z "${1:-}" ] || cp benchmarks/results/*-gpu.json benchmarks/results/trace-*.json "$1"/ 2>/dev/null; }

$python benchmarks/gpu/quick_parity.py || { echo "the bits differ: nothing is measured"; exit 1; }
$python benchmarks/gpu/trace.py --model bert-base --ests 4 --staging host
$python benchmarks/gpu/trace.py --model resnet50 --ests 4 --staging host
$python benchmarks/packing.py --only resnet50
keep "${1:-}"
$python benchmarks/ddp.py --only resnet50:2,resnet50:4,bert-base:2
keep "${1:-}"
$python benchmarks/step_cost.py
keep "${1:-}"
$python benchmarks/size.py
$python benchmarks/packing.py --only bert-base
$python benchmarks/gpu/link.py
keep "${1:-}"
