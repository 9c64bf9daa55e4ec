#!/usr/bin/env bash
# Makes an authority, and certificates for a worker and a client that it signs, for trying TLS:
#   make_certificates.sh FOLDER [NAME_OF_WORKER ...]      (without names: localhost and 127.0.0.1)
# Keep ca.key away from the worker. Run it again to renew the certificates; the authority stays as it is.
set -euo pipefail

if [[ $# -lt 1 ]]; then
  echo "usage: $0 FOLDER [NAME_OF_WORKER ...]" >&2
  exit 2
fi
folder=$1
shift
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  names=(localhost 127.0.0.1)
fi
days=365

umask 077
mkdir -p "$folder"
cd "$folder"

if [[ ! -e ca.key ]]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days $((10 * days)) \
    -subj "/CN=prefixcache authority" -keyout ca.key -out ca.pem 2>/dev/null
fi

# issue NAME_OF_FILES COMMON_NAME EXTENSIONS: writes both files aside first, so that a worker never reads half of one.
issue() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc \
    -subj "/CN=$2" -keyout "$1.key.new" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -days "$days" \
    -extfile <(printf '%s\n' "$3") -out "$1.pem.new" 2>/dev/null
  rm "$1.csr"
  mv "$1.key.new" "$1.key"
  mv "$1.pem.new" "$1.pem"
}

alternatives=""
for name in "${names[@]}"; do
  if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then
    alternatives+="${alternatives:+,}IP:$name"
  else
    alternatives+="${alternatives:+,}DNS:$name"
  fi
done
issue worker "${names[0]}" "subjectAltName=$alternatives
extendedKeyUsage=serverAuth"
issue client "prefixcache client" "extendedKeyUsage=clientAuth"

echo "worker: --tls-certificate $folder/worker.pem --tls-key $folder/worker.key [--tls-client-ca $folder/ca.pem]"
echo "client: --tls-ca $folder/ca.pem [--tls-certificate $folder/client.pem --tls-key $folder/client.key]"
