#!/usr/bin/env bash
# Builds the image of packaging/Containerfile with the Debian package in target/dist, and tries it as a server. No hub is asked:
# debootstrap makes the image that it begins with. Takes root on Debian with podman, runc, debootstrap and curl.
set -euo pipefail
cd "$(dirname "$0")/../.."
for program in podman runc debootstrap curl; do
    command -v "$program" >/dev/null || { echo "container: $program is missing" >&2; exit 1; }
done
# Where nothing of this project can be wrong yet: the machine, or its network.
impossible() {
    echo "container: $* (see $work)" >&2
    exit 77
}
work=$PWD/target/package-test
base=$work/base
image=localhost/trine-trial
name=trine-trial-$$
mkdir -p "$work"

# A store of its own, and limits that a root without all its rights may set.
podman() {
    command podman --root "$work/images" --runroot "$work/images-run" --cgroup-manager cgroupfs --runtime runc \
        --events-backend file --log-level error "$@"
}
files=$(ulimit -Hn)
limits=(--ulimit "nofile=$files:$files" --ulimit nproc=4096:4096)
inside() { podman exec "$name" "$@"; }
# Whether what a command prints has a text in it. All of it is read, so that no command writes to nobody.
prints() {
    local text=$1
    shift
    [[ $("$@") == *"$text"* ]]
}
fail() {
    echo "container: FAILED: $*" >&2
    podman logs "$name" >&2 || true
    exit 1
}
trap 'podman rm --force "$name" >/dev/null 2>&1 || true; podman volume rm --force "$name" >/dev/null 2>&1 || true' EXIT

if [ ! -e "$base/whole" ]; then
    rm -rf "$base"
    debootstrap --variant=minbase bookworm "$base" >"$work/debootstrap.log" || impossible "debootstrap failed"
    touch "$base/whole"
fi
tar --directory "$base" --create . | podman import - localhost/trine-trial-base >"$work/import.log" 2>&1 \
    || impossible "podman keeps no images"
podman run --rm "${limits[@]}" localhost/trine-trial-base true >"$work/run.log" 2>&1 || impossible "no container runs"
# The health check is of Docker's format, which podman has to be asked for.
podman build --format docker --network host "${limits[@]}" --build-arg BASE=localhost/trine-trial-base \
    --file packaging/Containerfile --tag "$image" target/dist >"$work/build.log" 2>&1 \
    || { tail -20 "$work/build.log" >&2; exit 1; }

podman run --detach --name "$name" --read-only --cap-drop all --security-opt no-new-privileges "${limits[@]}" \
    --volume "$name:/var/lib/trine" --publish 127.0.0.1::8080 "$image" >/dev/null 2>"$work/run.log"
url=http://$(podman port "$name" 8080)
for _ in $(seq 60); do
    podman healthcheck run "$name" >/dev/null 2>&1 && break
    sleep 1
done
podman healthcheck run "$name" >/dev/null 2>&1 || fail "the health check"
[ "$(inside id -un)" = trine ] || fail "the server runs as $(inside id -un)"
inside touch /etc/x 2>/dev/null && fail "its system can be written"
inside touch /var/lib/trine/x || fail "the volume cannot be written"
prints '<!doctype html>' curl --fail --silent "$url/" || fail "the page"
prints '"completion_tokens":8' curl --fail --silent "$url/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"max_tokens": 8, "messages": [{"role": "user", "content": "Tell me a story"}]}' || fail "a chat"
inside trine run --quiet "Tell me a story" --max-tokens 8 >/dev/null || fail "a command beside the server"
podman stop "$name" >/dev/null 2>&1
code=$(podman inspect --format '{{.State.ExitCode}}' "$name")
[ "$code" = 0 ] || fail "it ended with code $code"
podman run --rm --read-only "${limits[@]}" "$image" --version >/dev/null 2>"$work/run.log" || fail "another command"
echo "container: passed"
