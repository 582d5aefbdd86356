// Package docker tests jobs of several containers on a Docker engine. Like a user, it builds the image with
// Dockerfile.example and starts it with examples/compose. Only the base images differ, so that the tests need no
// registry: base.sh makes one from Debian's packages and builder.sh adds this machine's Go. The engine keeps both for
// later runs.
//
// Every test creates its own project, with its own network, and removes it. The package contains only tests.
package docker
