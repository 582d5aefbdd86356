// Package sshclients tests the SSH server of the released binary with the SSH clients that people use. Each test checks
// bytes, exit statuses and refusals.
//
// Two tests take a size: make soak runs go test ./integration/sshclients -args -bytes 1000000000 -commands 100000.
package sshclients
