package inspect

import (
	"fmt"
	"slices"
	"strings"
)

// prefix begins the names of all variables that paiinit reads or sets.
const prefix = "PAIINIT_"

// variables returns the variables that no flag of run has as its twin, without the prefix.
func variables() []string {
	return []string{
		"SECRET",          // the job's secret
		"TERMINATION_LOG", // the file for the last message
		"POD_NAME",        // the pod's name, where the host has another one
		"JOB_INDEX",       // of a JobSet, from the pod's labels
		"JOB_REPLICAS",
		// What paiinit sets for the job, for its second process and for the scripts of examples/.
		"ACTIVE", "AGENT", "HOSTFILE", "MASTER", "PID1", "IMAGE",
		"GENERATION", "RESTART_REASON", "PREVIOUS_STATUS",
	}
}

// Unknown returns one text for each variable that looks like paiinit's and has no meaning, with the likely name. twins
// returns the twins of all flags; it is called only if there is a variable to compare. closest returns the name that a
// word most likely means, "" if it resembles none.
func Unknown(environ []string, twins func() []string, closest func(word string, names []string) string) []string {
	var found, names []string
	for _, kv := range environ {
		if kv == "" || kv[0] != 'P' && kv[0] != 'p' {
			continue
		}
		name, _, _ := strings.Cut(kv, "=")
		start, rest, ok := strings.Cut(name, "_")
		if !ok || start+"_" != prefix && !resemblesPrefix(start, closest) || strings.HasPrefix(rest, "TEST_") {
			continue
		}
		if names == nil {
			names = variables()
			for _, twin := range twins() {
				names = append(names, strings.TrimPrefix(twin, prefix))
			}
		}
		isKnown := slices.Contains(names, rest)
		switch {
		case start+"_" != prefix && isKnown:
			found = append(found, explained(name, rest))
		case start+"_" != prefix || isKnown || isServiceLink(environ, name):
		default:
			found = append(found, explained(name, likelyName(rest, names, closest)))
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func explained(name, likely string) string {
	if likely == "" {
		return name + " has no meaning"
	}
	return fmt.Sprintf("%s: did you mean %s%s?", name, prefix, likely)
}

// likelyName compares names without their prefix, which all have in common.
func likelyName(rest string, names []string, closest func(string, []string) string) string {
	lower := make([]string, len(names))
	for i, n := range names {
		lower[i] = strings.ToLower(n)
	}
	return strings.ToUpper(closest(rest, lower))
}

// resemblesPrefix reports whether a word is most likely a misspelt prefix: PAINIT, PAIINTI, paiinit. The length rules
// out most variables of an environment at no cost.
func resemblesPrefix(word string, closest func(string, []string) string) bool {
	const right = "paiinit"
	return len(word) >= len(right)-1 && len(word) <= len(right)+1 &&
		closest(word, []string{right}) != ""
}

// isServiceLink reports whether Kubernetes set a variable for a Service whose name begins with paiinit: for each
// Service it sets NAME_SERVICE_HOST, NAME_SERVICE_PORT, NAME_PORT, NAME_PORT_80_TCP and so on.
func isServiceLink(environ []string, name string) bool {
	for _, kv := range environ {
		service, ok := strings.CutSuffix(strings.SplitN(kv, "=", 2)[0], "_SERVICE_HOST")
		if ok && (strings.HasPrefix(name, service+"_SERVICE_") || name == service+"_PORT" ||
			strings.HasPrefix(name, service+"_PORT_")) {
			return true
		}
	}
	return false
}
