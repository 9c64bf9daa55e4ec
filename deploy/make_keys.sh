#!/usr/bin/env bash
# Makes a file of keys with one key of each role, and prints the keys, which are shown only this once:
#   make_keys.sh FOLDER
set -euo pipefail

if [[ $# -ne 1 ]]; then
  echo "usage: $0 FOLDER" >&2
  exit 2
fi
file=$1/keys.json
if [[ -e $file ]]; then
  echo "$file is there already: add to it with 'prefixcache keys add'" >&2
  exit 1
fi

umask 077
mkdir -p "$1"
for role in user publisher admin; do
  prefixcache keys add --file "$file" --tenant example --role "$role" --label "example $role"
done
