#!/bin/sh
# First process of the guest, from the initramfs: modules, the root (read-only image below, scratch disk above).
for module in $(cat /modules/order); do insmod "/modules/$module"; done
mount -t devtmpfs devtmpfs /dev
mount -t erofs -o ro /dev/vda /lower
mount -t ext4 /dev/vdb /scratch
mkdir /scratch/upper /scratch/work /scratch/job
mount -t overlay -o lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work root /root
cp -r /job/. /scratch/job
mkdir -p /root/scratch
mount --move /scratch /root/scratch
mount --move /dev /root/dev
exec switch_root /root /bin/sh /scratch/job/guest
