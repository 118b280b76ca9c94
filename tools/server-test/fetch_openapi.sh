#!/usr/bin/env bash
# Writes OpenAI's OpenAPI document, version 2.3.0, into a folder and prints its path.
#
#   fetch_openapi.sh FOLDER
#
# OpenAI publishes it only on GitHub (openai/openai-openapi). The crate conversa_openai_client carries a copy, so that the
# Rust registry is enough; cargo checks the crate, and the document's own hash is checked here.
set -euo pipefail

folder=$1
crate=conversa_openai_client
version=0.1.0
file=openapi.documented.yml
sha256=e190fffd30dc4e4f13249e6fc8d19ca2135a133463a61862f71418455069eb9f

if [ ! -f "$folder/$file" ]; then
    mkdir -p "$folder/fetch/src"
    : >"$folder/fetch/src/lib.rs"
    cat >"$folder/fetch/Cargo.toml" <<MANIFEST
[package]
name = "fetch-openapi"
version = "0.0.0"
edition = "2021"
[workspace]
[dependencies]
$crate = { version = "=$version", default-features = false }
MANIFEST
    cargo vendor --quiet --manifest-path "$folder/fetch/Cargo.toml" "$folder/fetch/vendor" >/dev/null
    cp "$folder/fetch/vendor/$crate/$file" "$folder/$file"
    rm -r "$folder/fetch"
fi
echo "$sha256  $folder/$file" | sha256sum --check --quiet >&2
echo "$folder/$file"
