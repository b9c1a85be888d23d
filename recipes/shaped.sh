#!/bin/sh
# usage: shaped.sh RATE COMMAND...: limit what this host sends to a rate, such as 100mbit, and run the command there.
# All hosts do so; what a host receives is limited by who sends. Needs tc (iproute2) and the capability NET_ADMIN.
set -e
rate=$1
shift
tc qdisc replace dev eth0 root tbf rate "$rate" burst 128kb latency 50ms
exec "$@"
