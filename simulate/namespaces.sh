# namespaces.sh MODEL MODELS PROGRAM [ARGUMENT...]: simulate/inplace.py runs it first in new namespaces.
# It mounts MODEL as /opt/ml/model and MODELS as /opt/ml/models, both read-only, and keeps the rest of /opt. The folders
# lie on a memory disk in this mount namespace, so that the machine itself is not changed.
set -e
model=$1 models=$2
shift 2
ip link set lo up
mount -t tmpfs tmpfs /dev/shm

new=/dev/shm/opt
mkdir -p "$new"
mount -t tmpfs tmpfs "$new"
for entry in /opt/*; do
    if [ -d "$entry" ] && [ "$entry" != /opt/ml ]; then
        mkdir "$new/${entry#/opt/}"
        mount --rbind "$entry" "$new/${entry#/opt/}"
    fi
done
mkdir -p "$new/ml/model" "$new/ml/models"
mount --bind "$model" "$new/ml/model"
mount -o remount,bind,ro "$new/ml/model"
mount --bind "$models" "$new/ml/models"
mount -o remount,bind,ro "$new/ml/models"
mkdir -p /opt
mount --move "$new" /opt
rmdir "$new"
exec "$@"
