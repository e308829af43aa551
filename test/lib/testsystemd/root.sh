# Makes the root of a machine, enters it, and executes systemd when a line is read: $1 is a directory for the root, $2 a
# control group.
set -e
echo $$ >"$2/cgroup.procs"
exec unshare --cgroup sh -c '
set -e
root=$1
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$root"
cd "$root"
mkdir usr etc var run tmp proc sys dev root mnt opt home srv old
mkdir -p .usr/changes .usr/work
chmod 700 root .usr
mount -t overlay -o "lowerdir=/usr,upperdir=$root/.usr/changes,workdir=$root/.usr/work" usr usr
for link in bin sbin lib lib32 lib64 libx32; do
	if [ -L "/$link" ]; then cp -P "/$link" .; fi
done
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
node() { mknod -m "$1" "dev/$2" "$3" "$4" "$5"; }
node 666 null c 1 3; node 666 zero c 1 5; node 666 full c 1 7
node 666 random c 1 8; node 666 urandom c 1 9; node 666 tty c 5 0
node 660 loop-control c 10 237; node 666 fuse c 10 229; node 660 autofs c 10 235
node 600 mem c 1 1 # as in a privileged container: its loop devices are not given to it (see mountuse)
for n in $(seq 0 127); do node 660 "loop$n" b 7 "$n"; done
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
cat proc/sys/kernel/random/uuid >.boot_id
mount --bind .boot_id proc/sys/kernel/random/boot_id
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup sys/fs/cgroup
for file in passwd group nsswitch.conf mke2fs.conf ld.so.cache ld.so.conf; do
	if [ -e "/etc/$file" ]; then cp "/etc/$file" etc/; fi
done
cp -r /etc/alternatives etc/
ln -s /proc/self/mounts etc/mtab
: >etc/fstab
echo machine >etc/hostname
tr -d - <proc/sys/kernel/random/uuid >etc/machine-id
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s /lib/systemd/system/remote-fs.target etc/systemd/system/multi-user.target.wants/
for unit in systemd-sysctl.service systemd-modules-load.service systemd-timesyncd.service systemd-logind.service \
	systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket \
	systemd-journald-audit.socket systemd-networkd.service getty.target dbus.service dbus.socket dev-hugepages.mount \
	sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount proc-sys-fs-binfmt_misc.automount; do
	ln -s /dev/null "etc/systemd/system/$unit"
done
pivot_root . old
umount -l /old
rmdir /old
mount --make-rshared /
echo ready
read -r _
exec env -i container=pannier-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	/usr/lib/systemd/systemd --show-status=0 --log-level=info --unit=multi-user.target
' sh "$1"
