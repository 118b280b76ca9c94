#!/bin/sh
# Installs trine for one user: downloads the archive for this system and SHA256SUMS, compares the hash, and only then
# unpacks. The hash comes from the same place as the archive: it shows that a download is whole, not who made it.
#
#   sh install.sh                      to ~/.local
#   sh install.sh --to /opt/trine      to another folder
#   sh install.sh --version 1.2.3      another version
#   sh install.sh --from URL           from another place: https://, file:///, or http://127.0.0.1 for tests
#
# `cargo xtask dist` fills in the two lines below.
set -eu
version=@VERSION@
repository=@REPOSITORY@

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

to=
from=
while [ $# -gt 0 ]; do
    case $1 in
        --to | --version | --from)
            [ $# -ge 2 ] && [ -n "$2" ] || fail "$1 takes a value"
            case $1 in
                --to) to=$2 ;;
                --version) version=${2#v} ;;
                --from) from=${2%/} ;;
            esac
            shift 2
            ;;
        -h | --help)
            printf 'usage: sh install.sh [--to FOLDER] [--version VERSION] [--from URL]\n'
            exit 0
            ;;
        *) fail "unknown option $1; --to FOLDER, --version VERSION and --from URL are known" ;;
    esac
done
case $version in
    '' | *[!0-9A-Za-z.+-]*) fail "$version is not a version such as 1.2.3" ;;
esac
from=${from:-$repository/releases/download/v$version}

case $from in
    https://*.invalid/*) fail "trine is not published yet; build it: https://rustup.rs, then cargo build --release" ;;
    https://* | file:///* | http://127.0.0.1[:/]*) ;;
    *) fail "$from is neither https:// nor file:///" ;;
esac

# Root gets files where root says, and nowhere else.
if [ -z "$to" ]; then
    [ "$(id -u)" -ne 0 ] || fail "you are root: run this as yourself, or say where with --to /usr/local"
    [ -n "${HOME:-}" ] || fail "HOME is not set; say where with --to FOLDER"
    to=$HOME/.local
fi

system=$(uname -s)
processor=$(uname -m)
case "$system $processor" in
    'Linux x86_64' | 'Linux amd64')
        # The archive is linked with glibc.
        if ldd --version 2>&1 | grep -qi musl; then
            fail "this system has musl instead of glibc; build trine from source"
        fi
        # That of Debian 12, on which the archive is built.
        glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | awk '{ print $2 }')
        if [ -n "$glibc" ] && [ "$(printf '2.36\n%s\n' "$glibc" | sort -V | head -n 1)" != 2.36 ]; then
            fail "this system has glibc $glibc, the program takes 2.36 or later; build trine from source; nothing was installed"
        fi
        target=x86_64-unknown-linux-gnu
        ;;
    'Darwin arm64') target=aarch64-apple-darwin ;;
    *) fail "there is no archive for $system on $processor; build trine from source" ;;
esac
name=trine-$version-$target

if command -v sha256sum >/dev/null; then
    hash_of() { sha256sum "$1" | cut -d ' ' -f 1; }
elif command -v shasum >/dev/null; then
    hash_of() { shasum -a 256 "$1" | cut -d ' ' -f 1; }
else
    fail "neither sha256sum nor shasum is here to verify the download"
fi

# Downloads a file of the release.
get() {
    case $from in
        file://*) cp "${from#file://}/$1" "$2" || fail "cannot read ${from#file://}/$1" ;;
        *)
            if command -v curl >/dev/null; then
                # A redirect does not leave https either.
                case $from in
                    https:*) curl --proto '=https' --tlsv1.2 --fail --silent --show-error --location \
                        --output "$2" "$from/$1" ;;
                    *) curl --fail --silent --show-error --output "$2" "$from/$1" ;;
                esac
            elif command -v wget >/dev/null; then
                # wget cannot be told to stay with https when it follows a redirect.
                wget -q -O "$2" "$from/$1"
            else
                fail "neither curl nor wget is here to download with"
            fi || fail "cannot download $from/$1; check the network and the version"
            ;;
    esac
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

get SHA256SUMS "$work/sums"
# sha256sum writes an asterisk before the name of a file that it read as binary; other programs end lines as Windows does
# and write hashes in upper case.
wanted=$(awk -v name="$name.tar.gz" '
    { sub(/\r$/, ""); sub(/^\*/, "", $2) }
    NF == 2 && $2 == name { print tolower($1) }
' "$work/sums")
case $wanted in
    '') fail "SHA256SUMS of $from does not name $name.tar.gz; nothing was installed" ;;
    # What is no hash is not printed: it may hold signs that a terminal obeys.
    *[!0-9a-f]*) wanted= ;;
esac
[ ${#wanted} -eq 64 ] || fail "SHA256SUMS of $from has no SHA-256, or several, for $name.tar.gz; nothing was installed"
printf 'downloading %s.tar.gz\n' "$name"
get "$name.tar.gz" "$work/archive"
found=$(hash_of "$work/archive")
[ "$found" = "$wanted" ] ||
    fail "the hash of $name.tar.gz is $found, SHA256SUMS says $wanted: the download is damaged or not the published file; nothing was installed"

tar -xzf "$work/archive" -C "$work" || fail "cannot unpack $name.tar.gz"
[ -f "$work/$name/bin/trine" ] || fail "$name.tar.gz has no bin/trine; nothing was installed"
# A link would lead what is copied after it, or what reads it, out of the folder.
links=$(find "$work/$name" ! -type f ! -type d | head -n 1) || fail "cannot look at what was unpacked"
[ -z "$links" ] || fail "$name.tar.gz has something that is neither a file nor a folder; nothing was installed"
mkdir -p "$to/bin" "$to/share" || fail "cannot write to $to; choose another folder with --to"
cp -R "$work/$name/share/." "$to/share/" || fail "cannot write to $to/share"
# A running trine keeps its file.
cp "$work/$name/bin/trine" "$to/bin/.trine.new" || fail "cannot write to $to/bin"
chmod 755 "$to/bin/.trine.new"
mv -f "$to/bin/.trine.new" "$to/bin/trine"
printf 'installed trine %s as %s/bin/trine\n' "$version" "$to"
case ":${PATH:-}:" in
    *":$to/bin:"*) printf 'try: trine run "Tell me a story about a fox"\n' ;;
    *) printf 'try: %s/bin/trine run "Tell me a story about a fox"\nadd %s/bin to PATH to leave the folder out\n' "$to" "$to" ;;
esac
