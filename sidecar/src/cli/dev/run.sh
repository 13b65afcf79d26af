# Runs the Envoy $1 with the configuration in $CONFIGURATION until standard input is closed: by `sluicegate dev`, or by the
# system when that was killed. Leaves no process and no file behind.
umask 077
file=${TMPDIR:-/tmp}/sluicegate-dev-$$.yaml
set -C # The file, which may contain a pepper, must be a new one.
printf '%s' "$CONFIGURATION" >"$file" || exit
unset CONFIGURATION
# Hot restart would leave shared memory behind. The access log is flushed without delay.
"$1" --disable-hot-restart --concurrency 1 --file-flush-interval-msec 50 \
  --log-level warning --component-log-level main:error --log-format '%l: %v' -c "$file" 2>&1 &
# The reader of the pipe sees its end when Envoy ends.
exec >&- 2>&-
read -r _
kill -9 $!
rm -f "$file"
wait
