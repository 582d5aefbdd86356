package envspec

import (
	"strconv"
	"strings"
)

// Source: pkg/utils/pod/pod_utils.go of github.com/kubernetes-sigs/lws.

func matchLeaderWorkerSet(r *reader) string { return r.sees("LWS_LEADER_ADDRESS") }

// readLeaderWorkerSet reads a pod of a group: the leader is SET-GROUP, the workers are SET-GROUP-1 and so on.
func readLeaderWorkerSet(r *reader, job *Job) error {
	leader, ok := r.get("LWS_LEADER_ADDRESS")
	if !ok {
		return r.missing("", "LWS_LEADER_ADDRESS")
	}
	if problem := checkHost(leader.value); problem != "" {
		return r.wrong(leader, "", "%s", problem)
	}
	if err := r.soleRole(job, leader); err != nil {
		return err
	}
	if err := r.ownIndex(job, "LWS_WORKER_INDEX"); err != nil {
		return err
	}
	size, sizeVar, err := r.required("", 1, maxTasks, "LWS_GROUP_SIZE")
	if err != nil {
		return err
	}
	group, domain, _ := strings.Cut(leader.value, ".")
	r.jobID(job, group, leader)
	hosts := []string{leader.value}
	for i := 1; i < size; i++ {
		host := group + "-" + strconv.Itoa(i)
		if domain != "" {
			host += "." + domain
		}
		hosts = append(hosts, host)
	}
	r.note("size", sizeVar)
	if err := r.addRole(job, job.Role, hosts, leader); err != nil {
		return err
	}
	r.counts[job.Role] = sizeVar
	return nil
}
