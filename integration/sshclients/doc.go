// Package sshclients holds the tests of the SSH server against the clients that people have: each proves bytes, statuses and
// refusals against the binary as it is shipped.
//
// Two of them take a size: go test ./integration/sshclients -args -bytes 1000000000 -commands 100000 is what make soak runs.
package sshclients
