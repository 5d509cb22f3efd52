#!/bin/bash
# A container's health check without starting an interpreter every few seconds.
#   probe.sh http PORT PATH   succeeds when GET http://127.0.0.1:PORT/PATH answers 200
#   probe.sh tcp PORT         succeeds when something accepts connections there
set -eu
exec 3<>"/dev/tcp/127.0.0.1/$2"
[ "$1" = tcp ] && exit 0
printf 'GET %s HTTP/1.0\r\nHost: 127.0.0.1:%s\r\n\r\n' "$3" "$2" >&3
read -r -t 4 status <&3
case "$status" in
  *" 200 "*) exit 0 ;;
  *) echo "$status"; exit 1 ;;
esac
