# namespaces.sh MODEL MODELS PROGRAM [ARGUMENT...]: what simulate/inplace.py runs first in new namespaces.
# MODEL becomes /opt/ml/model, MODELS becomes /opt/ml/models, both read-only; what else lies in /opt stays. The folders
# are made on a memory disk of this mount namespace alone, so that nothing is changed on the machine itself.
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
