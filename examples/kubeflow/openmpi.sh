#!/bin/sh
# A Horovod job by kubeflow/openmpi: one master and four workers. The image has Open MPI, Horovod and paiinit.
set -eu
here=$(dirname "$(realpath "$0")")
NAMESPACE=kubeflow
COMPONENT=openmpi
SECRET=openmpi-secret
VERSION=v0.3.0
IMAGE=my/horovod
WORKERS=4
GPU=1

kubectl create namespace $NAMESPACE || true
# A key pair for this job alone.
mkdir -p .tmp
yes | ssh-keygen -N "" -f .tmp/id_rsa
kubectl delete secret $SECRET -n $NAMESPACE || true
kubectl create secret generic $SECRET -n $NAMESPACE \
    --from-file=id_rsa=.tmp/id_rsa --from-file=id_rsa.pub=.tmp/id_rsa.pub --from-file=authorized_keys=.tmp/id_rsa.pub

ks init horovod-job
cd horovod-job
ks env set default --namespace $NAMESPACE
ks registry add kubeflow github.com/kubeflow/kubeflow/tree/$VERSION/kubeflow
ks pkg install kubeflow/openmpi@$VERSION
cp "$here/openmpi-init.sh" vendor/kubeflow/openmpi*/assets/init.sh

EXEC="mpiexec -n $WORKERS --hostfile /kubeflow/openmpi/assets/hostfile --allow-run-as-root --display-map --tag-output \
--timestamp-output sh -c 'python /examples/train.py'"
ks generate openmpi $COMPONENT --image $IMAGE --secret $SECRET --workers $WORKERS --gpu $GPU --exec "$EXEC" \
    --initTimeout 600 --cpu 4 --memory 16Gi --nodeSelector cloud.google.com/gke-accelerator=nvidia-tesla-k80
ks apply default
