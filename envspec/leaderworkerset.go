package envspec

import "strings"

// Source: pkg/utils/pod/pod_utils.go of github.com/kubernetes-sigs/lws.

func matchLeaderWorkerSet(r *reader) string { return r.sees("LWS_LEADER_ADDRESS") }

// readLeaderWorkerSet reads a pod of a group: the leader is SET-GROUP, the workers are SET-GROUP-1 and so on.
func readLeaderWorkerSet(r *reader, job *Job) {
	leader := r.need("", "LWS_LEADER_ADDRESS")
	r.check(leader, checkHost(leader.value))
	r.soleRole(job, leader)
	r.ownIndex(job, "LWS_WORKER_INDEX")
	size, sizeVar := r.needNumber("", 1, maxTasks, "LWS_GROUP_SIZE")
	group, domain, _ := strings.Cut(leader.value, ".")
	r.jobID(job, group, leader)
	hosts := []string{leader.value}
	for i := 1; i < size; i++ {
		hosts = append(hosts, inDomain(alias(group, i), domain))
	}
	r.note("size", sizeVar)
	r.addHosts(job, hosts, leader, sizeVar)
}
