// Package docker tests a job of four containers on a Docker engine: the image is built by the instructions of
// Dockerfile.example and started by examples/compose, as a user would do it. Only the base images differ, so that no
// registry is needed: base.sh makes one from Debian's packages and builder.sh adds this machine's Go. Both are kept by the
// engine and used again.
//
// Every test makes its own project, with its own network, and removes it. The package does nothing else than test.
package docker
