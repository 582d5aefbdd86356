// Package kubernetes tests examples/kubernetes on a real Kubernetes of one node: etcd, API server, controllers, scheduler, kubelet,
// CoreDNS and kubectl, built from their modules by cluster/build.sh, with Debian's containerd and CNI plugins. make test-kubernetes
// runs it; without the build tag kubernetes there is nothing here to test.
//
// It wants root. The cluster lives in namespaces of its own and ends with the test, whatever becomes of that.
package kubernetes
