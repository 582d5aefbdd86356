// Package kubernetes tests examples/kubernetes on a real Kubernetes cluster of one node. cluster/build.sh builds etcd,
// API server, controllers, scheduler, kubelet, CoreDNS and kubectl from their modules; containerd and the CNI plugins
// are Debian's. Run it with make test-kubernetes: the tests have the build tag kubernetes.
//
// It needs root. The cluster has namespaces of its own and ends with the test, even if the test is killed.
package kubernetes
