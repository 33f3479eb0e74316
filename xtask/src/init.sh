#!/bin/busybox sh
# The first process of a guest: sets up, runs /command, tells its exit code, and ends the machine.
# ttyS0 is the console, ttyS1 standard output, ttyS2 standard error, ttyS3 for the harness.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin HOME=/root TERM=dumb IOTRACE_GUEST=1
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t securityfs securityfs /sys/kernel/security
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
hostname guest
ifconfig lo up
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
if [ -e /sys/class/net/eth0 ]; then
    ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
    route add default gw 10.0.2.2
fi
ulimit -l unlimited
# Held open, so that the settings stay: bytes pass as they are.
exec 4>/dev/ttyS1 5>/dev/ttyS2 6>/dev/ttyS3
for tty in 1 2 3; do stty -F /dev/ttyS$tty raw -echo; done
echo up >&6
cd /root
sh /command </dev/null >&4 2>&5 4>&- 5>&- 6>&-
code=$?
# Closing waits until all is sent.
exec 4>&- 5>&-
echo "exit $code" >&6
exec 6>&-
poweroff -f
