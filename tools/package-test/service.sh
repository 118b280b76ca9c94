#!/usr/bin/env bash
# Tries the service of the Debian package in target/dist under a real systemd: a bare Debian 12 made by debootstrap, booted in qemu
# without hardware support (about 5 minutes). Takes root on Debian with debootstrap, e2fsprogs and qemu-system-x86.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
for program in debootstrap mke2fs qemu-system-x86_64; do
    command -v "$program" >/dev/null || { echo "service: $program is missing" >&2; exit 1; }
done
work=$PWD/target/package-test
system=$work/system
packages=(target/dist/trine_*.deb)
[ "${#packages[@]}" = 1 ] && [ -e "${packages[0]}" ] || { echo "service: target/dist needs one package of trine" >&2; exit 1; }
mkdir -p "$work"

if [ ! -e "$system/whole" ]; then
    rm -rf "$system"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,udev,dbus,curl,linux-image-cloud-amd64 \
        bookworm "$system" >"$work/debootstrap.log"
    touch "$system/whole"
fi
cp "${packages[0]}" "$system/root/trine.deb"
install -m 0755 "$here/service-inside.sh" "$system/root/trial.sh"
echo '/dev/vda / ext4 defaults 0 1' >"$system/etc/fstab"
cat >"$system/etc/systemd/system/trial.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/root/trial.sh
ExecStopPost=/usr/bin/systemctl poweroff --no-block
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
UNIT
mkdir -p "$system/etc/systemd/system/default.target.wants"
ln -sf ../trial.service "$system/etc/systemd/system/default.target.wants/trial.service"
# Whoever asks for a login takes the terminal away from the trial.
ln -sf /dev/null "$system/etc/systemd/system/serial-getty@ttyS0.service"

trap 'rm -f "$work/disk.img"' EXIT
rm -f "$work/disk.img"
mke2fs -q -t ext4 -d "$system" "$work/disk.img" 3G >/dev/null
timeout 1800 qemu-system-x86_64 -machine q35 -accel "${ACCEL:-tcg,thread=multi}" -cpu max -smp 2 -m 2048 \
    -kernel "$(ls "$system"/boot/vmlinuz-*)" -initrd "$(ls "$system"/boot/initrd.img-*)" \
    -append 'root=/dev/vda rw console=ttyS0 quiet panic=5 systemd.show_status=no' \
    -drive "file=$work/disk.img,format=raw,if=virtio,cache=unsafe" -nic none -display none -monitor none -no-reboot \
    -serial "file:$work/console.log" || echo "service: the machine ended with code $?" >&2
tr -d '\r' <"$work/console.log" | sed -n '/^trial:/p'
grep -q '^trial: passed' "$work/console.log" || { tail -40 "$work/console.log" >&2; echo "service: FAILED" >&2; exit 1; }
echo "service: passed"
