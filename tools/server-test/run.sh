#!/usr/bin/env bash
# Tests the server from outside: with the clients that people use, vLLM's own tests, requests made up from OpenAI's
# document and from its own, and behind a router. Builds trine unless a program is named.
#
#   run.sh [--trine PROGRAM] [--openapi FILE] [--model FILE] [--cases N] [PART...]
#
#   PART            clients, document, openapi, vllm, router, fairness; without one all of them. router alone installs no
#                   clients, fairness alone nothing
#   --openapi FILE  OpenAI's OpenAPI document; without it the pinned one of fetch_openapi.sh
#   --model FILE    a .gguf file for vLLM's tests, instead of the model inside the program
#   --cases N       requests made up for each path of a document and each way (default: 60)
#
# Needs Python 3.11 or later with venv, and the Python and the Rust registry for the first run. Everything is written under
# target/server-test. What is expected to fail, and why, stands in exceptions.md.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$root/target/server-test
trine="" openapi="" model="" cases=60
parts=()

while [ $# -gt 0 ]; do
    case $1 in
        --trine) trine=$(realpath "$2"); shift 2 ;;
        --openapi) openapi=$(realpath "$2"); shift 2 ;;
        --model) model=$(realpath "$2"); shift 2 ;;
        --cases) cases=$2; shift 2 ;;
        clients | document | openapi | vllm | router | fairness) parts+=("$1"); shift ;;
        *) sed -n '2,/^set/p' "$0" | sed '$d;s/^# \{0,1\}//' >&2; exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(clients document openapi vllm router fairness)

if [ -z "$trine" ]; then
    (cd "$root" && cargo build --release -p trine)
    trine=${CARGO_TARGET_DIR:-$root/target}/release/trine
fi

mkdir -p "$scratch"
venv=$scratch/venv packages=(-r "$here/requirements.txt")
if [ "${parts[*]}" = router ]; then
    venv=$scratch/venv-router packages=(-c "$here/requirements.txt" prometheus_client pytest sglang-router)
fi
python=$venv/bin/python
if [ "${parts[*]}" != fairness ] && ! cmp -s "$here/requirements.txt" "$venv/installed"; then
    python3 -m venv --clear "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
    cp "$here/requirements.txt" "$venv/installed"
fi

test_here() {
    echo "== $1"
    shift
    (cd "$here" && "$python" -B -m pytest -p no:cacheprovider -q -rx \
        --trine "$trine" "$@") || failed=1
}

failed=0
for part in "${parts[@]}"; do
    case $part in
        clients) test_here clients test_openai_chat.py test_openai_others.py test_anthropic.py test_ollama.py test_ollama_models.py test_pictures.py ;;
        document) test_here document test_document.py --cases "$cases" -rP ;;
        openapi)
            [ -n "$openapi" ] || openapi=$("$here/fetch_openapi.sh" "$scratch/openapi")
            test_here openapi test_openapi.py --openapi "$openapi" --cases "$cases" -rP
            ;;
        vllm)
            "$python" "$here/vllm_subset.py" unpack "$scratch/vllm"
            PYTHONPATH=$here test_here vllm -p vllm_subset -o asyncio_default_fixture_loop_scope=function \
                ${model:+--model "$model"} \
                --confcutdir "$scratch/vllm" --rootdir "$scratch/vllm" "$scratch/vllm/tests"
            ;;
        router) test_here router test_router.py ;;
        fairness) (cd "$here" && python3 -B fairness.py --trine "$trine") || failed=1 ;;
    esac
done
exit $failed
