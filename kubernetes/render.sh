#!/bin/sh
# Renders the manifests here, each by the command line in its first line.
set -eu
cd "$(dirname "$0")"
for file in manifests/*.yaml manifests/*/*.yaml; do
    command=$(sed -n '1s/^# vllm-fixes manifest //p' "$file")
    [ -n "$command" ] || continue
    eval "python3 ../fixes/apply_all.py manifest $command" > "$file.new"
    mv "$file.new" "$file"
done
