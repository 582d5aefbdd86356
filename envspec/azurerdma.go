package envspec

import (
	"strconv"
	"strings"
)

// findAzureRDMA looks for the signs of Azure's Network Direct: the variable by which an OpenPAI job asks for it, the
// directory that OpenPAI then mounts (src/rest-server/src/templates of 0.14), the device of Azure's driver, and its
// line in uDAPL's configuration.
func findAzureRDMA(r *reader, job *Job) error {
	sign := func(name string, seen bool) {
		if seen {
			job.AzureRDMA = append(job.AzureRDMA, name)
		}
	}
	v, _ := r.get("paiAzRDMA")
	asked, _ := strconv.ParseBool(strings.ToLower(v.value))
	sign("paiAzRDMA", asked)
	sign("/var/lib/hyperv", r.exists("/var/lib/hyperv") || r.entries("/var/lib/hyperv") != nil)
	sign("/dev/hvnd_rdma", r.exists("/dev/hvnd_rdma"))
	conf, _ := r.file("/etc/dat.conf")
	sign("/etc/dat.conf", strings.Contains(conf, "ofa-v2-ib0"))
	if len(job.AzureRDMA) > 0 {
		r.sources["azure_rdma"] = strings.Join(job.AzureRDMA, ", ")
	}
	return nil
}
