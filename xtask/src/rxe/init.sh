#!/bin/busybox sh
# The machine's first process: loads the modules, lays a writable layer over the host's files, makes two
# RDMA devices on a pair of network devices, runs the job, writes how it ended to the second serial line, and has
# the machine's exit device end it.
B=/bin/busybox
end() { $B printf '\0' | $B dd of=/dev/port bs=1 seek=244 2>/dev/null; $B poweroff -f; }
fail() { echo "rxe: $1"; end; }

$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
$B stty -F /dev/console -opost 2>/dev/null
for module in /modules/*; do $B insmod "$module" || echo "rxe: $module was not loaded"; done

$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host || fail "no host files"
$B mount -t tmpfs top /top
$B mkdir -p /top/upper /top/work
$B mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work,xino=off new /new || fail "no layer"
for folder in proc sys dev; do $B mount --bind /$folder /new/$folder; done
$B mkdir -p /dev/shm /dev/pts
$B mount -t tmpfs run /new/run
$B mount -t tmpfs shm /dev/shm
$B mount --bind /dev/shm /new/dev/shm
$B mount -t devpts pts /new/dev/pts

# Two addresses of one machine: packets between them would take the short way through the loopback
# device, which rxe does not listen on. So each is asked for by way of its own device first.
$B cat > /new/run/network.sh <<'N'
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -e
ip link set lo up
ip link add v0 type veth peer name v1
for n in 0 1; do
    sysctl -qw net.ipv6.conf.v$n.disable_ipv6=1 net.ipv4.conf.v$n.accept_local=1 net.ipv4.conf.v$n.rp_filter=0
    ip link set v$n address 02:00:00:00:00:0$((n + 1)) mtu 4200
    ip address add 192.0.2.$((n + 1))/32 dev v$n
    ip link set v$n up
done
sysctl -qw net.ipv4.conf.all.rp_filter=0
ip rule add priority 100 lookup local
ip rule del priority 0
for n in 0 1; do
    peer=$((2 - n))
    ip neigh add 192.0.2.$peer lladdr 02:00:00:00:00:0$peer dev v$n nud permanent
    ip route add 192.0.2.$peer dev v$n table $((200 + n))
    ip rule add priority $((10 + n)) oif v$n to 192.0.2.$peer lookup $((200 + n))
    rdma link add rxe$n type rxe netdev v$n
done
N
job=/sys/firmware/qemu_fw_cfg/by_name/opt/headworks/job/raw
$B test -r $job || fail "no job"
$B cat $job > /new/run/job.sh
export HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb
$B chroot /new /bin/sh /run/network.sh || fail "no network"
$B chroot /new /bin/sh /run/job.sh </dev/null
echo $? > /dev/ttyS1
end
