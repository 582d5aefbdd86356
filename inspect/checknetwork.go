package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// greetingTimeout is more than a paiinit waits before it sends its identification to a silent client.
const greetingTimeout = 600 * time.Millisecond

// port reports whether the port is free on TCP and UDP.
func (e *examination) port(ctx context.Context) []Finding {
	const name = "port"
	switch {
	case e.alone():
		return []Finding{pass(name, "a job of one rank opens none")}
	case e.job.Port == 0:
		return nil
	}
	tcp, udp := e.TryPort(e.job.Port)
	switch {
	case tcp == nil && udp == nil:
		return []Finding{pass(name, fmt.Sprintf("%d/tcp and %[1]d/udp are free", e.job.Port))}
	case errors.Is(tcp, syscall.EADDRINUSE):
		ctx, cancel := context.WithTimeout(ctx, greetingTimeout)
		defer cancel()
		return []Finding{e.portUser(strings.TrimSpace(e.Greeting(ctx, e.job.Port)))}
	case errors.Is(udp, syscall.EADDRINUSE):
		return []Finding{e.portTaken("udp", "another program")}
	case tcp != nil:
		fix := "give all ranks another --port"
		if errors.Is(tcp, syscall.EACCES) {
			fix += " from 1024 on, or run as root"
		}
		text := fmt.Sprintf("%d/tcp cannot be opened: %v", e.job.Port, tcp)
		return []Finding{failure(name, text, fix, statusUnmendable)}
	}
	return []Finding{warning(name, fmt.Sprintf("%d/udp cannot be opened: %v; gathering takes longer without it",
		e.job.Port, udp), "")}
}

// portUser reports who uses the port, by the greeting of the server there.
func (e *examination) portUser(greeting string) Finding {
	isPaiinit := strings.Contains(strings.ToLower(greeting), "paiinit")
	if e.Running != "" && isPaiinit {
		return pass("port", fmt.Sprintf("%d/tcp is the running paiinit's", e.job.Port))
	}
	by := "another program"
	switch {
	case isPaiinit:
		by = "the paiinit of another job or container"
	case greeting != "":
		by = fmt.Sprintf("another program (%.40q)", greeting)
	}
	return e.portTaken("tcp", by)
}

func (e *examination) portTaken(protocol, by string) Finding {
	return warning("port", fmt.Sprintf("%d/%s is in use by %s: paiinit would take the next free port, where the other "+
		"ranks may not find it", e.job.Port, protocol, by), "end that program, or give all ranks another --port")
}

// unresolved says which hosts of the job DNS does not know, and about how many it did not answer in time.
type unresolved struct {
	unknown []string
	late    int
	broken  error // why DNS cannot be asked
}

// resolversAtOnce bounds the DNS queries that run at the same time.
const resolversAtOnce = 32

// resolve asks DNS for all hosts of the job that are names.
func (e *examination) resolve(ctx context.Context) (result unresolved) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	slots := make(chan struct{}, resolversAtOnce)
	for _, host := range hostNames(e.job.Hosts) {
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, err := e.Resolve(ctx, host)
			mu.Lock()
			defer mu.Unlock()
			var slow interface{ Timeout() bool }
			var broken interface{ Temporary() bool } // as opposed to an answer that there is no such name
			switch {
			case err == nil:
			case ctx.Err() != nil, errors.As(err, &slow) && slow.Timeout():
				result.late++
			case errors.As(err, &broken) && broken.Temporary():
				result.broken = err
			default:
				result.unknown = append(result.unknown, host)
			}
		})
	}
	asking.Wait()
	slices.Sort(result.unknown)
	return result
}

// hostNames returns the hosts that are names, each once.
func hostNames(hosts []string) (names []string) {
	for _, h := range hosts {
		if _, err := netip.ParseAddr(h); err != nil && h != "" && !slices.Contains(names, h) {
			names = append(names, h)
		}
	}
	return names
}

// names reports whether the names of the job's hosts resolve. A scheduler may publish a name only once its container
// has started, so a missing name is never a failure.
func (e *examination) names(u unresolved) (found []Finding) {
	const name = "dns"
	all := len(hostNames(e.job.Hosts))
	if all == 0 {
		return nil
	}
	if u.late > 0 {
		found = append(found, warning(name, fmt.Sprintf("DNS gave no answer in time about %d of %d hosts of the job",
			min(u.late, all), all), "check /etc/resolv.conf and its servers"))
	}
	if u.broken != nil {
		found = append(found, warning(name, fmt.Sprintf("DNS cannot be asked: %v", u.broken),
			"check the container's network, /etc/resolv.conf and its servers"))
	}
	if len(u.unknown) > 0 {
		found = append(found, warning(name, "these hosts of the job have no address yet: "+firstOf(u.unknown),
			"nothing, if their containers have not started; else correct the names"))
	}
	if found == nil {
		found = append(found, pass(name, plural(all, "host")+" of the job found by name"))
	}
	return found
}
