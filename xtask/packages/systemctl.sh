#!/bin/sh
# Stands for systemctl where systemd is not the first process, because a container that shares the process ids of its machine cannot have
# it as that. It does with the unit what matters for an upgrade: starts ExecStart=, runs ExecReload=, starts anew after exit code 75, and
# ends the service with SIGTERM. deb-systemd-invoke and the package's scripts call it as they call systemctl. Other services do not run.
set -u
unit=/usr/lib/systemd/system/memscoped.service
state=/run/memscope-stand-in
mkdir -p "$state" /run/memscope
setting() {
	sed -n "s/^$1=//p" "$unit"
}
main_pid() {
	cat "$state/pid" 2>/dev/null
}
is_active() {
	pid=$(main_pid) && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null
}
start() {
	is_active && return 0
	mkdir -p -m 0700 /sys/fs/bpf/memscope
	setsid sh -c '
		while :; do
			$1 &
			echo $! > "$2/pid"
			wait $!
			[ $? -eq 75 ] || exit
			sleep 0.5
		done' sh "$(setting ExecStart)" "$state" >>/var/log/memscoped.log 2>&1 </dev/null &
	until memscope-ctl status >/dev/null 2>&1; do sleep 0.2; done
}
stop() {
	is_active || return 0
	pid=$(main_pid)
	kill -TERM "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}
verb=
ours=
for word; do
	case $word in
	-*) ;;
	memscoped | memscoped.service) ours=yes ;;
	*) [ -n "$verb" ] || verb=$word ;;
	esac
done
if [ -z "$ours" ]; then
	[ "$verb" != is-active ]
	exit
fi
case $verb in
start) start ;;
stop) stop ;;
restart) stop; start ;;
reload) is_active && MAINPID=$(main_pid) sh -ec "$(setting ExecReload)" ;;
is-active) is_active ;;
is-enabled) echo enabled ;;
show) main_pid ;;
*) ;;
esac
