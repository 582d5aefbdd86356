#!/bin/bash
# PID 1 of the namespaces (mount, PID, network) of a Kubernetes cluster of one node. It prints "ready" on its standard
# output, and ends at EOF on its standard input. All daemons, pods, mounts and networks end with it. It leaves behind
# the directory, the machine's control groups without processes, and three sysctls that kubelet sets.
#
# usage: cluster.sh DIRECTORY PROGRAMS CGROUP
#   DIRECTORY  contains only images.tar, and is not below /run, /var/lib or /var/log nor on an overlay
#   PROGRAMS   directory of the programs kubernetes and coredns
#   CGROUP     name of a control group that exists in every hierarchy
set -euo pipefail
dir=$1 programs=$2 cgroup=$3
address=10.200.0.1

mount --make-rprivate /
mount -t proc proc /proc
for hidden in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs $hidden; done
ip link set lo up
ip link add node type bridge
ip address add $address/24 dev node
ip link set node up
ip route add default dev node # Service addresses need a route, although no host has them
echo 1 >/proc/sys/net/ipv4/ip_forward

cd "$dir"
mkdir keys cni log
export HOME=$dir KUBECONFIG=$dir/kubeconfig
ssh-keygen -q -t rsa -b 2048 -m PEM -N '' -f keys/accounts
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "$token,admin,admin,system:masters" >keys/tokens
cat >kubeconfig <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$address:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
END
cat >cni/pods.conflist <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.201.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
# The sandbox lowers oom_score_adj, which needs CAP_SYS_RESOURCE; root of a virtual machine may lack it.
cat >containerd.toml <<END
version = 2
root = "$dir/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/paiinit-test/sandbox:kubernetes"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
END
# CoreDNS as Kubernetes' own installer configures it (it caches NXDOMAIN for 5 s by default, for 30 s before 1.31), and
# without a cache, each for namespaces of its own. It does not resolve other names.
block() {
	cat <<-END
		$1 {
		  bind $address
		  errors
		  $2
		  kubernetes cluster.local in-addr.arpa ip6.arpa {
		    kubeconfig $KUBECONFIG
		    pods insecure
		    ttl $3
		  }
		}
	END
}
{
	block "cluster.local in-addr.arpa ip6.arpa" "cache 30" 5
	block "long.svc.cluster.local" "cache 30" 30
	block "plain.svc.cluster.local" "ready $address:8181" 5
} >Corefile
cat >kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$address]
resolvConf: $dir/resolv.conf
containerRuntimeEndpoint: unix:///run/containerd.sock
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
END
: >resolv.conf

start() { "$@" >>"log/$(basename "$1")" 2>&1 </dev/null & }
until_done() { until "$@" >/dev/null 2>&1; do sleep 0.1; done; }
hyper() { "$programs/kubernetes" "$@" >>"log/$1" 2>&1 </dev/null & }
kubectl() { "$programs/kubernetes" kubectl "$@"; }

start containerd --config containerd.toml
hyper etcd --data-dir etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
	--listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
hyper kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address $address --advertise-address $address \
	--cert-dir keys --token-auth-file keys/tokens --authorization-mode AlwaysAllow \
	--kubelet-preferred-address-types InternalIP \
	--service-cluster-ip-range 10.96.0.0/16 --service-account-issuer https://kubernetes.default.svc \
	--service-account-signing-key-file keys/accounts --service-account-key-file keys/accounts
until_done ctr --address /run/containerd.sock version
ctr --address /run/containerd.sock --namespace k8s.io images import images.tar >log/import 2>&1
until_done kubectl get --raw /readyz
hyper kube-controller-manager --kubeconfig kubeconfig --leader-elect=false \
	--service-account-private-key-file keys/accounts \
	--root-ca-file keys/apiserver.crt --cert-dir keys/controllers --use-service-account-credentials=false \
	--controllers='*,-nodeipam'
hyper kube-scheduler --kubeconfig kubeconfig --leader-elect=false --cert-dir keys/scheduler
hyper kubelet --config kubelet.yaml --kubeconfig kubeconfig --cert-dir keys/kubelet \
	--hostname-override node --node-ip $address
start "$programs/coredns" -conf Corefile
until_done kubectl get node node
kubectl wait --for=condition=Ready --timeout=60s node/node >/dev/null
until_done curl -sf http://$address:8181/ready
echo ready
cat >/dev/null
