#!/bin/bash
# What service.sh does inside the machine that it boots. The first check that fails ends it.
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive
url=http://127.0.0.1:8080

fail() {
    echo "trial: FAILED: $*"
    journalctl --unit trine --no-pager --lines 30
    exit 1
}
step() { echo "trial: $*"; }
property() { systemctl show --property "$1" --value trine; }
# Waits until a command succeeds; processors in software are slow.
until_ok() {
    for _ in $(seq 60); do
        "$@" >/dev/null 2>&1 && return
        sleep 1
    done
    fail "$*"
}
# Whether what a command prints has a text in it. All of it is read, so that no command writes to nobody.
prints() {
    local text=$1
    shift
    [[ $("$@") == *"$text"* ]]
}
options() {
    printf 'TRINE_SERVE="%s"\n' "$1" >/etc/default/trine
    systemctl restart trine
}
status() { curl --silent --output /dev/null --write-out '%{http_code}' "$@"; }
is() { [ "$1" = "$2" ] || fail "$3 is $1, not $2"; }
has_state() { [ "$(property ActiveState)" = "$1" ]; }

step "the package installs and the server answers"
apt-get install --yes --no-install-recommends /root/trine.deb >/root/apt.log 2>&1 || fail "$(tail -5 /root/apt.log)"
until_ok curl --fail --silent "$url/ready"
is "$(property ActiveState)" active "the service"
is "$(systemctl is-enabled trine)" enabled "the service"
prints '<!doctype html>' curl --silent "$url/" || fail "the page"
prints '"completion_tokens":8' curl --silent "$url/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"max_tokens": 8, "messages": [{"role": "user", "content": "Tell me a story"}]}' || fail "a chat"
prints 'serving demo at' journalctl --unit trine --no-pager || fail "the journal"

step "the server has no rights but its own"
id=$(property MainPID)
is "$(stat --format %U "/proc/$id")" trine "the server's user"
grep -q '^CapBnd:[[:space:]]*0*$' "/proc/$id/status" || fail "it may have capabilities"
grep -q '^NoNewPrivs:[[:space:]]*1$' "/proc/$id/status" || fail "it may gain rights"
grep -q '^Seccomp:[[:space:]]*2$' "/proc/$id/status" || fail "no system call is refused to it"
touch /root/secret
for path in /usr /etc /etc/trine /boot; do
    nsenter --target "$id" --mount touch "$path/x" 2>/dev/null && fail "$path can be written"
done
is "$(nsenter --target "$id" --mount sh -c 'ls /root | wc -l')" 0 "what it sees of /root"
systemd-analyze security --no-pager --threshold 18 trine >/root/security.log || fail "$(tail -1 /root/security.log)"

step "a server that dies comes back"
kill -9 "$id"
until_ok curl --fail --silent "$url/ready"
is "$(property NRestarts)" 1 "the number of restarts"
[ "$(property MainPID)" != "$id" ] || fail "it is the same process"

step "options that cannot be understood are not tried again"
options "--contxt 8192"
until_ok has_state failed
is "$(property NRestarts)" 0 "the number of restarts"
prints "'--context'" systemctl status --no-pager --full trine || fail "the remedy is not in the status"

step "a model that is not there is tried five times"
# Starts before this one count too.
systemctl reset-failed trine
options "nothing.gguf"
until_ok has_state failed
is "$(property NRestarts)" 4 "the number of restarts"
systemctl reset-failed trine

step "settings and keys of /etc/trine hold"
printf '[server]\nport = 9000\n' >/etc/trine/config.toml
echo secret >/etc/trine/keys
chown root:trine /etc/trine/keys
chmod 0640 /etc/trine/keys
options "--api-key-file /etc/trine/keys"
until_ok curl --fail --silent http://127.0.0.1:9000/health
is "$(status http://127.0.0.1:9000/v1/models)" 401 "the answer without a key"
is "$(status -H 'Authorization: Bearer secret' http://127.0.0.1:9000/v1/models)" 200 "the answer with a key"

step "it stops in good order, and leaves nothing"
systemctl stop trine || fail "it does not stop"
is "$(property Result) $(property ExecMainStatus)" "success 0" "its end"
rm -r /etc/trine/config.toml /etc/trine/keys
apt-get purge --yes trine >/root/apt.log 2>&1 || fail "$(tail -5 /root/apt.log)"
for path in /usr/bin/trine /etc/default/trine /etc/trine /var/lib/trine /var/cache/trine; do
    [ ! -e "$path" ] || fail "$path is still there"
done
getent passwd trine >/dev/null && fail "its user is still there"
echo "trial: passed"
