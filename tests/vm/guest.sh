#!/bin/sh
# First process of the guest on its root: no service manager. Mounts, the job, its result, the end.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
mount -t securityfs securityfs /sys/kernel/security
mount -t bpf bpf /sys/fs/bpf
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
for pair in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "/proc/self/${pair#*:}" "/dev/${pair%%:*}"; done
ip link set lo up
hostname testbed
ulimit -n 20000
modprobe -qa $(cat /scratch/job/modules)
mkdir -m 1777 /scratch/tmp

output=$(echo /dev/vport*p1) result=$(echo /dev/vport*p2)
{ . /scratch/job/prepare && sh /scratch/job/command; } < /dev/null > "$output" 2>&1
code=$?
report=/scratch/report
touch "$report"
{ printf 'result %d %d\n' "$code" "$(stat -c %s "$report")"; cat "$report"; } > "$result"
sync
busybox reboot -f
