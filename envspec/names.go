package envspec

import (
	"bytes"
	"cmp"
	"context"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Names of containers for people: kubectl and docker know a container by its own name, not by role and index. Compose
// counts containers from 1 and paiinit from 0, so "worker-2" alone could name the wrong container.

// nameContainers sets the names of this container and of its peers.
func nameContainers(r *reader, job *Job) {
	own := cmp.Or(r.container, podOf(r, job))
	for i := range job.Peers {
		p := &job.Peers[i]
		if p.Name = p.Alias; job.System != "single" { // whose only peer has the host name, under docker an id
			p.Name = cmp.Or(hostLabel(p.Host), p.Alias)
		}
		if job.Index >= 0 && p.Role == job.Role && p.Index == job.Index {
			if own == "" {
				own = p.Name
			}
			p.Name = own
		}
	}
	if job.Name = own; checkHost(own) != "" {
		job.Name = job.Alias
	}
}

// podOf returns the name of this pod, "" outside of Kubernetes. OpenPAI hides its pods: people know role and index.
func podOf(r *reader, job *Job) string {
	if job.System == "openpai" || !r.inPod && !r.has("PAIINIT_POD_NAME", "KUBERNETES_SERVICE_HOST") {
		return ""
	}
	return r.podName().value
}

// hostLabel returns a host's name up to its first dot: of a pod, its name. It returns "" for an address.
func hostLabel(host string) string {
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return ""
	}
	label, _, _ := strings.Cut(host, ".")
	return label
}

// nameTimeout bounds NameAt: docker's DNS answers at once.
const nameTimeout = 2 * time.Second

// Own returns the container's own name; "" = it has none besides Alias.
func (j *Job) Own() string { return besides(j.Alias, j.Name) }

// Own returns the container's own name, as the environment predicts it; "" = none besides Alias.
func (p *Peer) Own() string { return besides(p.Alias, p.Name) }

func besides(alias, name string) string {
	if name == alias {
		return ""
	}
	return name
}

// AskName returns the container's own name: where the environment does not tell it, by its address.
func (j *Job) AskName(ctx context.Context, files fs.FS, dns Resolver, addr netip.Addr) string {
	if own := j.Own(); own != "" {
		return own
	}
	return NameAt(ctx, files, dns, addr)
}

// NameAt asks docker's DNS for the name of the container with an address, such as proj-worker-2; it asks no other DNS.
// It returns "" if there is none.
func NameAt(ctx context.Context, files fs.FS, dns Resolver, addr netip.Addr) string {
	conf, err := fs.ReadFile(files, "etc/resolv.conf")
	if err != nil || !bytes.Contains(conf, []byte("nameserver 127.0.0.11")) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	names, err := dns.LookupPTR(ctx, addr.Unmap())
	if err != nil || len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	name := containerName(names[0])
	if checkHost(name) != "" {
		return ""
	}
	return name
}

// containerName removes the network from a name that docker's DNS gives: the name of a container may contain dots, as
// under swarm, and a network's usually has none.
func containerName(name string) string {
	name = strings.TrimSuffix(name, ".")
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		return name[:i]
	}
	return name
}
